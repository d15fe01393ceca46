//! Tests of the module.

use super::journal::Orphan;
use super::*;
use crate::ftrace::test_instance::{TestDir, TestInstance};
use crate::test_processes::{nobody_starts, spawn};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

impl Restorer {
    /// Ends the restorer as a kill of the daemon does: nothing is put back, and the journal loses its owner.
    fn crash(mut self) {
        self.changes = Changes::default();
        self.journal = None;
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!['a', '\\', '\n', '\t', ' ', 'n', 't', '=', 'é']),
        0..12,
    )
    .prop_map(String::from_iter)
}

fn any_event() -> impl Strategy<Value = EventName> {
    ("[a-z_]{1,6}", "[a-z_0-9]{1,6}").prop_map(|(group, name)| EventName::new(group, name))
}

fn any_record() -> impl Strategy<Value = Record> {
    let setting = || {
        prop::sample::select(vec![
            Setting::TracingOn,
            Setting::TraceClock,
            Setting::CpuBufferSizeKb(3),
            Setting::Option("event-fork".into()),
            Setting::FunctionFilter,
        ])
    };
    prop_oneof![
        (setting(), any_text()).prop_map(|(setting, value)| Record::Found(setting, value)),
        setting().prop_map(Record::Changing),
        (setting(), any_text()).prop_map(|(setting, value)| Record::Left(setting, value)),
        prop::collection::vec(any_event(), 1..4).prop_map(Record::EventsThere),
        prop::collection::vec(any_event(), 1..4).prop_map(Record::EventsFound),
        prop::collection::vec(any_event(), 1..4).prop_map(Record::EventsOn),
        any_event().prop_map(Record::EventOff),
        any_event().prop_map(Record::KprobeAdded),
    ]
}

/// The settings that are put back from journals without an owner.
fn replay_orphans(journals: &JournalDir) -> Vec<Replayed> {
    let _unlocked = nobody_starts();
    replay(journals).unwrap()
}

/// The journals without an owner.
fn orphans(journals: &JournalDir) -> Vec<Orphan> {
    let _unlocked = nobody_starts();
    journals.orphans().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_journal_reads_as_it_was_written(records in prop::collection::vec(any_record(), 0..20), cut in 0..40usize) {
        let dir = TestDir::new();
        let journals = JournalDir::at(dir.path().join("journals")).unwrap();
        let mut journal = Journal::create(&journals, Path::new("/some/where\tthere")).unwrap();
        for record in &records {
            journal.append(record).unwrap();
        }
        prop_assert!(journals.orphans().unwrap().is_empty(), "its owner lives");
        drop(journal);

        let left = orphans(&journals);
        prop_assert_eq!(left.len(), 1);
        prop_assert_eq!(left[0].root(), Path::new("/some/where\tthere"));
        prop_assert!(left[0].is_of_this_boot());
        prop_assert_eq!(left[0].records().collect::<Vec<_>>(), records.clone());

        // A crash in the middle of a write leaves a line without its end.
        let path = left[0].path().to_owned();
        drop(left);
        let mut text = fs::read_to_string(&path).unwrap();
        let header = text.find('\n').unwrap() + 1;
        let end = text.len().saturating_sub(cut).max(header);
        text.truncate(end - usize::from(!text.is_char_boundary(end)));
        fs::write(&path, &text).unwrap();
        let whole_lines = text.matches('\n').count() - 1;
        let read: Vec<Record> = orphans(&journals)[0].records().collect();
        prop_assert_eq!(&read[..], &records[..whole_lines]);
    }
}

#[test]
fn a_journal_is_only_kept_where_nobody_else_can_write() {
    let dir = TestDir::new();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(JournalDir::at(&open), Err(JournalError::Unsafe { .. })));
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    assert!(matches!(JournalDir::at(&link), Err(JournalError::Unsafe { .. })));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(JournalDir::at(&file), Err(JournalError::Unsafe { .. })));

    let fresh = dir.path().join("fresh");
    JournalDir::at(&fresh).unwrap();
    assert_eq!(fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o700);
    JournalDir::at(&fresh).unwrap();
}

#[test]
fn a_journal_of_another_boot_is_thrown_away() {
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let path = dir.path().join("journals/ftrace-1-0.journal");
    fs::write(
        &path,
        "ferretto ftrace journal 1\tanother\t/nonexistent\nfound\ttracing_on\t1\n",
    )
    .unwrap();
    assert!(replay(&journals).unwrap().is_empty());
    assert!(!path.exists());
}

#[test]
fn no_daemon_starts_while_another_still_puts_back() {
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let journal = dir.path().join("journals/ftrace-1-0.journal");
    for round in 0..200 {
        // The journal is written by hand: a created one holds a lock, which processes that other tests start would inherit for a moment.
        fs::write(&journal, "ferretto ftrace journal 1\tof another boot\t/\n").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    replay(&journals).unwrap();
                    assert!(!journal.exists(), "round {round}");
                });
            }
        });
    }
}

#[test]
fn who_puts_back_for_too_long_is_not_waited_for() {
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let hanging = journals.lock(Duration::ZERO).unwrap();
    let error = journals.lock(Duration::from_millis(20)).unwrap_err();
    assert!(error.to_string().contains("fuser -v"), "{error}");
    drop(hanging);
    journals.lock(Duration::from_secs(120)).unwrap();
}

#[test]
fn a_journal_waits_for_its_tracefs_to_come_back() {
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    drop(Journal::create(&journals, Path::new("/nonexistent")).unwrap());
    for _ in 0..2 {
        let replayed = replay_orphans(&journals);
        assert_eq!(replayed.len(), 1);
        assert!(matches!(replayed[0].errors[..], [TracefsError::NotMounted]));
    }
}

#[test]
fn a_journal_goes_with_its_instance() {
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let instances = dir.path().join("instances");
    fs::create_dir(&instances).unwrap();
    drop(Journal::create(&journals, &instances.join("removed")).unwrap());
    assert!(replay_orphans(&journals).is_empty());
    assert_eq!(fs::read_dir(dir.path().join("journals")).unwrap().count(), 0);
}

/// A change that a session could make.
#[derive(Clone, Debug)]
enum Change {
    Set(Setting, &'static str),
    DisableAll,
    Enable(&'static str),
    Disable(&'static str),
}

impl Change {
    fn make(&self, restorer: &mut Restorer) {
        match self {
            Change::Set(setting, value) => restorer.set(setting, value).unwrap(),
            Change::DisableAll => restorer.disable_all_events().unwrap(),
            Change::Enable(name) => {
                assert!(
                    restorer
                        .enable_events(&[EventName::new("sched", *name)])
                        .is_empty()
                );
            }
            Change::Disable(name) => restorer.disable_event(&EventName::new("sched", *name)).unwrap(),
        }
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let event = || prop::sample::select(vec!["sched_switch", "sched_waking", "sched_process_exit"]);
    prop_oneof![
        prop::sample::select(vec![
            Change::Set(Setting::TracingOn, "0"),
            Change::Set(Setting::TracingOn, "1"),
            Change::Set(Setting::TraceClock, "boot"),
            Change::Set(Setting::TraceClock, "mono_raw"),
            Change::Set(Setting::BufferSizeKb, "64"),
            Change::Set(Setting::BufferSizeKb, "200"),
            Change::Set(Setting::BufferPercent, "7"),
            Change::Set(Setting::EventPids, "1 2 3"),
            Change::Set(Setting::CpuMask, "1"),
            Change::Set(Setting::Option("event-fork".into()), "1"),
            Change::Set(
                Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
                "id == 3 || id == 4"
            ),
        ]),
        Just(Change::DisableAll),
        event().prop_map(Change::Enable),
        event().prop_map(Change::Disable),
    ]
}

/// A state that somebody left tracefs in.
fn leave_in_some_state(instance: &TestInstance) {
    let tracefs = &instance.tracefs;
    tracefs.set(&Setting::BufferPercent, "33").unwrap();
    tracefs.set(&Setting::TraceClock, "global").unwrap();
    tracefs.set(&Setting::EventPids, "77 88").unwrap();
    tracefs
        .set(
            &Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
            "id == 9",
        )
        .unwrap();
    tracefs.set(&Setting::BufferSizeKb, "128").unwrap();
    tracefs.set(&Setting::CpuBufferSizeKb(0), "300").unwrap();
    tracefs
        .set_event(&EventName::new("sched", "sched_process_exit"), Recording::On)
        .unwrap();
    tracefs
        .set_event(&EventName::new("task", "task_rename"), Recording::On)
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn whatever_is_changed_is_put_back(changes in prop::collection::vec(any_change(), 1..12), crashes: bool) {
        let Some(instance) = TestInstance::new() else { return Ok(()) };
        leave_in_some_state(&instance);
        let before = instance.snapshot();
        let dir = TestDir::new();
        let journals = JournalDir::at(dir.path().join("journals")).unwrap();

        let mut restorer = Restorer::new(instance.tracefs.clone(), Some(journals.clone()));
        for change in &changes {
            change.make(&mut restorer);
        }
        prop_assert!(restorer.take_journal_error().is_none());
        let errors = if crashes {
            restorer.crash();
            replay_orphans(&journals).into_iter().flat_map(|replayed| replayed.errors).collect()
        } else {
            restorer.restore()
        };
        prop_assert!(errors.is_empty(), "{:?}", errors);
        prop_assert_eq!(instance.snapshot(), before);
        prop_assert_eq!(fs::read_dir(dir.path().join("journals")).unwrap().count(), 0, "the journal is done with");
    }
}

#[test]
fn what_was_undone_before_the_end_needs_no_journal() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let mut restorer = Restorer::new(instance.tracefs.clone(), Some(journals));
    Change::Enable("sched_waking").make(&mut restorer);
    Change::Disable("sched_waking").make(&mut restorer);
    assert!(restorer.restore().is_empty());
    assert_eq!(fs::read_dir(dir.path().join("journals")).unwrap().count(), 0);
}

#[test]
fn after_a_crash_what_others_have_changed_since_is_left_alone() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let tracefs = &instance.tracefs;
    let dir = TestDir::new();
    let journals = JournalDir::at(dir.path().join("journals")).unwrap();
    let mut restorer = Restorer::new(tracefs.clone(), Some(journals.clone()));
    restorer.set(&Setting::TraceClock, "boot").unwrap();
    restorer.set(&Setting::BufferPercent, "7").unwrap();
    assert!(replay(&journals).unwrap().is_empty(), "the daemon lives");
    restorer.crash();

    tracefs.set(&Setting::TraceClock, "mono").unwrap();
    replay_orphans(&journals);
    assert_eq!(tracefs.get(&Setting::TraceClock).unwrap(), "mono");
    assert_eq!(tracefs.get(&Setting::BufferPercent).unwrap(), "50");
}

#[test]
fn a_journal_is_discarded_where_somebody_else_traces_by_now() {
    for sign in ["an event", "a reader"] {
        let Some(instance) = TestInstance::new() else {
            return;
        };
        let tracefs = &instance.tracefs;
        let dir = TestDir::new();
        let journals = JournalDir::at(dir.path().join("journals")).unwrap();
        let mut restorer = Restorer::new(tracefs.clone(), Some(journals.clone()));
        restorer.set(&Setting::TracingOn, "0").unwrap();
        restorer.set(&Setting::BufferSizeKb, "512").unwrap();
        restorer.set(&Setting::BufferPercent, "7").unwrap();
        restorer.set(&Setting::TracingOn, "1").unwrap();
        restorer.crash();

        let mut reader = None;
        match sign {
            "an event" => tracefs
                .set_event(&EventName::new("sched", "sched_process_exit"), Recording::On)
                .unwrap(),
            _ => {
                let pipe = fs::File::open(tracefs.root().join("trace_pipe")).unwrap();
                let mut sleep = std::process::Command::new("sleep");
                reader = Some(spawn(sleep.arg("1000").stdin(pipe)).unwrap());
            }
        }
        fs::write(tracefs.root().join("trace_marker"), "theirs").unwrap();
        let replayed = replay_orphans(&journals);
        if let Some(mut reader) = reader {
            reader.kill().unwrap();
            reader.wait().unwrap();
        }
        assert!(replayed[0].somebody_else.is_some(), "{sign}: {replayed:?}");
        assert_eq!(tracefs.get(&Setting::BufferPercent).unwrap(), "7", "{sign}");
        assert!(tracefs.read("trace").unwrap().contains("theirs"), "{sign}");
        assert!(
            replay(&journals).unwrap().is_empty(),
            "{sign}: the journal is gone"
        );
    }
}

#[test]
fn what_somebody_else_changed_meanwhile_is_not_put_back() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let tracefs = &instance.tracefs;
    let mut restorer = Restorer::new(tracefs.clone(), None);
    restorer.set(&Setting::TraceClock, "boot").unwrap();
    restorer.set(&Setting::BufferSizeKb, "512").unwrap();
    restorer.set(&Setting::BufferPercent, "7").unwrap();
    restorer.set(&Setting::TracingOn, "1").unwrap();
    tracefs.set(&Setting::TracingOn, "0").unwrap();
    tracefs.set(&Setting::BufferSizeKb, "300").unwrap();
    let size = tracefs.get(&Setting::BufferSizeKb).unwrap();
    assert!(restorer.restore().is_empty());
    assert_eq!(tracefs.get(&Setting::TracingOn).unwrap(), "0");
    assert_eq!(tracefs.get(&Setting::BufferSizeKb).unwrap(), size);
    assert_eq!(tracefs.get(&Setting::TraceClock).unwrap(), "local");
    assert_eq!(tracefs.get(&Setting::BufferPercent).unwrap(), "50");
}

#[test]
fn what_somebody_else_found_good_is_what_they_find_again() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let tracefs = &instance.tracefs;
    let mut restorer = Restorer::new(tracefs.clone(), None);
    restorer.set(&Setting::BufferPercent, "7").unwrap();
    tracefs.set(&Setting::BufferPercent, "60").unwrap();
    restorer.set(&Setting::BufferPercent, "8").unwrap();
    assert!(restorer.restore().is_empty());
    assert_eq!(tracefs.get(&Setting::BufferPercent).unwrap(), "60");
}

#[test]
fn who_traces_at_the_end_keeps_events_and_buffers() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let tracefs = &instance.tracefs;
    let theirs = EventName::new("sched", "sched_process_exit");
    let mut restorer = Restorer::new(tracefs.clone(), None);
    restorer.set(&Setting::TracingOn, "0").unwrap();
    restorer.set(&Setting::BufferSizeKb, "512").unwrap();
    restorer.set(&Setting::BufferPercent, "7").unwrap();
    restorer.set(&Setting::TracingOn, "1").unwrap();
    let size = tracefs.get(&Setting::BufferSizeKb).unwrap();
    tracefs.set_event(&theirs, Recording::On).unwrap();
    fs::write(tracefs.root().join("trace_marker"), "theirs").unwrap();
    assert!(restorer.restore().is_empty());
    assert!(tracefs.read("trace").unwrap().contains("theirs"));
    assert_eq!(tracefs.get(&Setting::BufferSizeKb).unwrap(), size);
    assert_eq!(tracefs.recording().unwrap(), Recording::On);
    assert!(tracefs.event_enabled(&theirs).unwrap());
    assert_eq!(tracefs.get(&Setting::BufferPercent).unwrap(), "50");
}

/// Makes changes in another process and waits to be killed.
#[test]
#[ignore = "only as a child of the next test"]
fn victim() {
    let root = std::env::var_os("FERRETTO_TEST_TRACEFS").unwrap();
    let journals = std::env::var_os("FERRETTO_TEST_JOURNALS").unwrap();
    let mut restorer = Restorer::new(
        Tracefs::at(root).unwrap(),
        Some(JournalDir::at(journals).unwrap()),
    );
    restorer.disable_all_events().unwrap();
    restorer.set(&Setting::TraceClock, "boot").unwrap();
    restorer.set(&Setting::BufferSizeKb, "512").unwrap();
    assert!(
        restorer
            .enable_events(&[EventName::new("sched", "sched_switch")])
            .is_empty()
    );
    println!("changed");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_daemon_that_was_killed_is_cleaned_up_after() {
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    let Some(instance) = TestInstance::new() else {
        return;
    };
    leave_in_some_state(&instance);
    let before = instance.snapshot();
    let dir = TestDir::new();
    let path = dir.path().join("journals");
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim
        .args([
            "--exact",
            "ftrace::restore::tests::victim",
            "--ignored",
            "--nocapture",
        ])
        .env("FERRETTO_TEST_TRACEFS", instance.tracefs.root())
        .env("FERRETTO_TEST_JOURNALS", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = spawn(&mut victim).unwrap();
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap().contains("changed")));
    let journals = JournalDir::at(&path).unwrap();
    assert!(replay(&journals).unwrap().is_empty(), "it is alive");
    assert_ne!(instance.snapshot(), before);
    child.kill().unwrap();
    child.wait().unwrap();

    let replayed = replay(&journals).unwrap();
    assert_eq!(replayed.len(), 1);
    assert!(replayed[0].errors.is_empty(), "{:?}", replayed[0].errors);
    assert_eq!(instance.snapshot(), before);
}

#[test]
fn a_hard_reset_stops_everything() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    leave_in_some_state(&instance);
    reset_one(&instance.tracefs).unwrap();
    assert_eq!(instance.tracefs.recording().unwrap(), Recording::Off);
    assert!(instance.tracefs.enabled_events().unwrap().is_empty());
    assert!(instance.tracefs.buffer_pages(4096).unwrap() <= Some(2));
    assert_eq!(
        instance
            .tracefs
            .get(&Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")))
            .unwrap(),
        "0"
    );
}

#[test]
fn probes_of_an_instance_are_made_and_removed_at_the_top() {
    let dir = TestDir::new();
    let instance = dir.path().join("instances/one");
    let event = instance.join("events/perfetto_kprobes/do_nothing");
    std::fs::create_dir_all(&event).unwrap();
    for file in ["tracing_on", "set_event"] {
        std::fs::write(instance.join(file), "").unwrap();
    }
    std::fs::write(event.join("format"), "").unwrap();
    let list = dir.path().join("kprobe_events");
    std::fs::write(&list, "").unwrap();

    let mut restorer = Restorer::new(Tracefs::at(&instance).unwrap(), None);
    let probe = EventName::new("perfetto_kprobes", "do_nothing");
    restorer
        .add_kprobe(&probe, "p:perfetto_kprobes/do_nothing do_nothing\n")
        .unwrap();
    assert!(restorer.restore().is_empty());
    assert_eq!(
        std::fs::read_to_string(&list).unwrap(),
        "p:perfetto_kprobes/do_nothing do_nothing\n-:perfetto_kprobes/do_nothing"
    );
}
