//! The flight recorder with real processes: sessions from files on our and upstream's service, seals by command, by trigger and by the state of the
//! machine, the quota, and kills at random moments.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{Message, Trace, trace_packet};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::journal::PrivateJournal;
use crate::support::random::Random;
use crate::support::trace::{LOSSES, Rows, TraceProcessor};
use crate::support::{
    PATIENCE, Program, Programs, Running, Side, System, await_that, spawn_and_await, write_script,
};

const SIDES: [Side; 2] = [Side::Upstream, Side::Ours];

/// A session with a trigger. Its buffer is soon full.
const METERS: &str = r#"
buffers { size_kb: 256 fill_policy: RING_BUFFER }
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 10 stat_period_ms: 10 } } }
trigger_config { trigger_mode: CLONE_SNAPSHOT triggers { name: "slow.frame" } }
"#;

/// The machine of a test: a system, and the files of a recorder.
struct Flight<'a> {
    system: System<'a>,
    traced: u32,
    probes: u32,
    recorder: Option<Running>,
    /// The words before the recorder's own command line.
    enter: Vec<String>,
}

impl<'a> Flight<'a> {
    fn new(programs: &'a Programs, traced: Side, settings: &str) -> Flight<'a> {
        let mut system = System::new(programs);
        let traced = system.start(traced, Program::Traced);
        let probes = system.start(Side::Ours, Program::TracedProbes);
        std::fs::create_dir(system.path("recorder.d")).unwrap();
        let flight = Flight {
            system,
            traced,
            probes,
            recorder: None,
            enter: Vec::new(),
        };
        flight.set(settings);
        flight
    }

    /// Writes the settings.
    fn set(&self, settings: &str) {
        let path = |name| self.system.path(name).display().to_string();
        let places = format!(
            "sessions = {:?}\nfolder = {:?}\nsocket = {:?}\nleave_free = \"1 MiB\"\n",
            path("recorder.d"),
            path("sealed"),
            path("control")
        );
        std::fs::write(self.system.path("recorder.toml"), places + settings).unwrap();
    }

    /// Writes the config of a session, whole.
    fn configure(&self, name: &str, config: &str) {
        let draft = self.system.path("draft");
        std::fs::write(&draft, config).unwrap();
        std::fs::rename(draft, self.config_file(name)).unwrap();
    }

    fn config_file(&self, name: &str) -> PathBuf {
        self.system.path(&format!("recorder.d/{name}.conf"))
    }

    fn command(&self, words: &[&str], log: &str) -> Command {
        let program = env!("CARGO_BIN_EXE_ferretto").to_owned();
        let mut line = self.enter.iter().chain([&program]);
        let mut command = self.system.command(Path::new(line.next().unwrap()), log);
        command.args(line).arg("recorder").args(words);
        command.arg("--settings").arg(self.system.path("recorder.toml"));
        command
    }

    fn start(&mut self) {
        let mut command = self.command(&["run"], "recorder.log");
        let started = spawn_and_await(&mut command, |command, fd| {
            command.env("FERRETTO_RECORDER_NOTIFY_FD", fd.to_string());
        });
        match started {
            Ok((running, _)) => self.recorder = Some(running),
            Err(problem) => panic!("{problem}\n{}", self.said()),
        }
    }

    fn said(&self) -> String {
        self.system.log("recorder.log")
    }

    fn await_said(&self, part: &str) {
        await_that(part, || {
            let log = std::fs::read_to_string(self.system.path("recorder.log")).unwrap_or_default();
            log.contains(part)
        });
    }

    /// Waits until these sessions run, and no others.
    fn await_sessions(&self, names: &[&str]) {
        let wanted: BTreeSet<_> = names
            .iter()
            .map(|name| format!("ferretto-recorder.{name}"))
            .collect();
        self.system.await_state(|state| {
            let sessions = state.tracing_sessions.iter();
            let started = sessions.filter(|session| session.state.as_deref() == Some("STARTED"));
            let names = started.filter_map(|session| session.unique_session_name.clone());
            names.collect::<BTreeSet<_>>() == wanted && state.tracing_sessions.len() == wanted.len()
        });
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = self.command(words, "asked.log");
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    }

    /// Runs `ferretto recorder seal` with these words; returns the sealed files.
    fn seal(&self, words: &[&str]) -> Vec<PathBuf> {
        let output = self.ask(&[&["seal"], words].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{}: {told}\n{}",
            output.status,
            self.said()
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(PathBuf::from)
            .collect()
    }

    fn trigger(&self, name: &str) {
        let program = Path::new(env!("CARGO_BIN_EXE_trigger_perfetto"));
        let status = self.system.command(program, "trigger.log").arg(name).status();
        assert!(status.unwrap().success());
    }

    /// Returns the sealed files, the oldest first, and the names of all others.
    fn files(&self) -> (Vec<PathBuf>, Vec<String>) {
        let (mut sealed, mut others) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(self.system.path("sealed")).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().is_some_and(|extension| extension == "pftrace")
                && !path.file_name().unwrap().to_str().unwrap().starts_with('.')
            {
                true => sealed.push(path),
                false => others.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
            }
        }
        sealed.sort();
        others.sort();
        (sealed, others)
    }

    /// Waits until there is a sealed file for this reason, and returns it.
    fn await_file(&self, session: &str, reason: &str) -> PathBuf {
        let ending = format!("-{session}-{reason}.pftrace");
        let mut found = None;
        await_that(&ending, || {
            let (files, _) = self.files();
            found = files
                .into_iter()
                .rfind(|file| file.to_str().unwrap().ends_with(&ending));
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns the state file; null as long as there is none.
    fn state(&self) -> Value {
        match std::fs::read(self.system.path("sealed/state.json")) {
            Ok(state) => serde_json::from_slice(&state).unwrap(),
            Err(error) if error.kind() == ErrorKind::NotFound => Value::Null,
            Err(error) => panic!("the state file: {error}"),
        }
    }

    /// Ends the recorder as service managers do.
    fn stop(&mut self) {
        let mut recorder = self.recorder.take().unwrap();
        recorder.signal(Signal::TERM);
        let status = recorder.wait(PATIENCE).unwrap();
        assert!(status.success(), "{status}: {}", self.said());
    }

    fn kill(&mut self) {
        let mut recorder = self.recorder.take().unwrap();
        recorder.signal(Signal::KILL);
        let status = recorder.wait(PATIENCE).unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{}", self.said());
    }
}

/// Decodes a trace to its end; returns how many packets have data of the session's source.
fn readings(trace: &Path) -> usize {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let packets = trace.packet.iter();
    let is_reading =
        |data: &Option<trace_packet::Data>| matches!(data, Some(trace_packet::Data::SysStats(_)));
    packets.filter(|packet| is_reading(&packet.data)).count()
}

/// Whether the file has the service's event that says that the clone was read to its end.
fn is_whole(trace: &Path) -> bool {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    trace.packet.iter().any(|packet| match &packet.data {
        Some(trace_packet::Data::ServiceEvent(event)) => {
            event.event_type == Some(EventType::ReadTracingBuffersCompleted(true))
        }
        _ => false,
    })
}

#[test]
fn a_command_and_a_trigger_seal_what_was_recorded_on_either_service() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let processor = TraceProcessor::find();
    for traced in SIDES {
        let mut flight = Flight::new(&programs, traced, "");
        flight.configure("meters", METERS);
        flight.start();
        flight.await_sessions(&["meters"]);
        await_that("data come", || readings(&flight.seal(&[])[0]) > 0);
        let before = flight.files().0.len();
        let began = Instant::now();
        flight.trigger("slow.frame");
        let by_trigger = flight.await_file("meters", "slow.frame");
        println!(
            "traced {traced}: sealed {:?} after the trigger was sent",
            began.elapsed()
        );
        let by_command = flight.seal(&["meters", "--reason", "just because"]);
        assert!(
            by_command[0]
                .to_str()
                .unwrap()
                .ends_with("-meters-just_because.pftrace")
        );
        let files = flight.files().0.split_off(before);
        assert_eq!(files, [by_trigger.clone(), by_command[0].clone()]);
        for file in files {
            assert!(readings(&file) > 0, "{}", file.display());
            if let Some(processor) = &processor {
                let [losses] = processor.query(&file, [LOSSES]);
                assert_eq!(losses, Rows::new(), "{}", file.display());
            }
        }
        // The clone for a trigger says so.
        let trace = Trace::decode_from_slice(&std::fs::read(by_trigger).unwrap()).unwrap();
        let mut data = trace.packet.into_iter().filter_map(|packet| packet.data);
        assert!(data.any(|data| matches!(
            data,
            trace_packet::Data::CloneSnapshotTrigger(trigger) if trigger.trigger_name.as_deref() == Some("slow.frame")
        )));

        let listed = String::from_utf8(flight.ask(&["list"]).stdout).unwrap();
        assert_eq!(listed.lines().count(), before + 3, "{listed}");
        await_that("the state is saved", || {
            flight.state()["seals"]["meters/just_because"]["sealed"] == 1
        });
        let status = flight.ask(&["status"]);
        let told = String::from_utf8(status.stdout).unwrap();
        assert!(
            status.status.success() && told.contains("runs") && told.contains("meters/slow.frame"),
            "{told}"
        );
        let unknown = flight.ask(&["seal", "nothing"]);
        assert_eq!(unknown.status.code(), Some(1));

        // After the recorder has ended, `status` reports its last state.
        let mut recorder = flight.recorder.take().unwrap();
        recorder.signal(Signal::TERM);
        assert!(recorder.wait(PATIENCE).unwrap().success(), "{}", flight.said());
        let status = flight.ask(&["status"]);
        assert_eq!(status.status.code(), Some(3));
        assert_eq!(flight.ask(&["seal"]).status.code(), Some(3));
        flight
            .system
            .await_state(|state| state.tracing_sessions.is_empty());
    }
}

#[test]
fn a_mistake_in_one_file_stops_no_other_and_changed_files_count_at_once() {
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "");
    flight.configure("good", METERS);
    flight.configure("bad", "buffers { size_kb: 64 }\nbufers {}");
    flight.start();
    flight.await_sessions(&["good"]);
    flight.await_said("bad.conf:2:1: error:");
    await_that("the state tells of it", || {
        flight.state()["sessions"]["bad"]["state"] == "refused"
    });
    flight.configure("bad", METERS);
    flight.await_sessions(&["bad", "good"]);
    // A mistake in the config of a running session changes nothing.
    flight.configure("good", "nonsense");
    flight.await_said("good goes on as it was");
    std::fs::remove_file(flight.config_file("bad")).unwrap();
    flight.await_sessions(&["good"]);
    assert_eq!(flight.seal(&[]).len(), 1);

    // So does a mistake in the settings.
    flight.set("quota = 5");
    flight.recorder.as_ref().unwrap().signal(Signal::HUP);
    flight.await_said("the settings stay as they were");
    flight.set("");
    assert_eq!(flight.seal(&[]).len(), 1);
    // A second recorder is refused.
    let second = flight.ask(&["run"]);
    assert_eq!(second.status.code(), Some(1));
}

#[test]
fn sessions_come_back_when_the_service_was_killed() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for traced in SIDES {
        let mut flight = Flight::new(&programs, traced, "");
        flight.configure("meters", METERS);
        flight.start();
        for _ in 0..3 {
            flight.await_sessions(&["meters"]);
            let file = flight.seal(&[]).remove(0);
            await_that("data come", || {
                readings(&file) > 0 || readings(&flight.seal(&[])[0]) > 0
            });
            flight.system.end_with(flight.traced, Signal::KILL);
            flight.traced = flight.system.start(traced, Program::Traced);
        }
        flight.await_sessions(&["meters"]);
        await_that("the state tells of the ends", || {
            flight.state()["sessions"]["meters"]["ends"].as_u64() >= Some(3)
        });
    }
}

#[test]
fn a_storm_of_triggers_costs_as_many_files_as_are_allowed_and_each_is_counted() {
    const STORM: u64 = 100;
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "burst = 2\nperiod = \"1 d\"");
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    for _ in 0..STORM {
        flight.trigger("slow.frame");
    }
    let tally = || flight.state()["seals"]["meters/slow.frame"].clone();
    await_that("all are counted", || {
        let tally = tally();
        let refused = tally["refused"].as_object();
        let refused = refused
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64());
        refused.sum::<u64>() + tally["sealed"].as_u64().unwrap_or(0) == STORM
    });
    assert_eq!(tally()["sealed"], 2, "{}", tally());
    assert_eq!(flight.files().0.len(), 2);
    flight.await_said("not sealed: meters/slow.frame (");
    // Each reason has its own share of seals.
    assert_eq!(flight.seal(&[]).len(), 1);
}

#[test]
fn a_recorder_that_is_told_to_end_has_counted_all_seals() {
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "");
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    // The first is saved soon, and the second is too late for the same second.
    for _ in 0..2 {
        flight.seal(&["meters", "--reason", "twice"]);
    }
    flight.stop();
    let tally = flight.state()["seals"]["meters/twice"].clone();
    assert_eq!(tally["sealed"], 2, "{tally}");
    assert_eq!(flight.files().0.len(), 2);
}

#[test]
fn states_of_the_machine_and_a_missed_watchdog_seal() {
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "");
    let alive = flight.system.path("alive");
    flight.set(&format!(
        r#"
        [[trigger]]
        name = "low"
        memory_below = "100 %"
        [[trigger]]
        name = "hung"
        sessions = ["meters"]
        watchdog = {alive:?}
        within = "1 s"
        "#
    ));
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    std::fs::write(&alive, "").unwrap();
    flight.await_file("meters", "hung");
    // The recorder noticed that memory was low before there was a session to seal.
    await_that("the first look is counted", || {
        flight.state()["seals"]["meters/low"].is_object()
    });
}

#[test]
fn a_line_of_the_journal_and_a_unit_that_fails_seal_within_a_second() {
    let Some(journal) = PrivateJournal::start() else {
        return;
    };
    let programs = Programs::ours();
    let disk = "[[trigger]]\nname = \"disk\"\njournal = 'sd[a-z]: I/O error'\nidentifier = \"kernel\"\n";
    let failed = "[[trigger]]\nname = \"failed\"\nunit_failed = \"app-*.service\"\n";
    let mut flight = Flight::new(&programs, Side::Ours, disk);
    flight.enter = [&["nsenter".to_owned()][..], &journal.nsenter()].concat();
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    flight.await_said("listens to the journal");
    let line = |identifier: &str| {
        journal.send(&[
            ("MESSAGE", b"sdb: I/O error 5"),
            ("SYSLOG_IDENTIFIER", identifier.as_bytes()),
        ]);
    };
    line("somebody");
    let began = Instant::now();
    line("kernel");
    flight.await_file("meters", "disk");
    println!("sealed {:?} after the line", began.elapsed());

    // The recorder uses settings from the moment when it has read them again.
    // The failure is told more often than once, and seals once.
    flight.set(&format!("burst = 1\n{disk}{failed}"));
    flight.recorder.as_ref().unwrap().signal(Signal::HUP);
    await_that("a unit's failure seals", || {
        // This is systemd's message.
        journal.send(&[
            ("MESSAGE", b"app-1.service: Failed with result 'exit-code'."),
            ("MESSAGE_ID", b"d9b373ed55a64feb8242e02dbe79a49c"),
            ("UNIT", b"app-1.service"),
            ("UNIT_RESULT", b"exit-code"),
        ]);
        journal.settle();
        flight.files().0.len() > 1
    });
    flight.await_file("meters", "failed");
    await_that("all is counted", || {
        flight.state()["seals"]["meters/failed"]["sealed"] == 1
    });
    // The recorder has ignored the errors that other programs logged.
    assert_eq!(flight.state()["seals"]["meters/disk"]["sealed"], 1);
    assert_eq!(
        flight.state()["seals"]["meters/disk"]["refused"],
        serde_json::json!({})
    );
}

#[test]
fn upload_becomes_the_uploader() {
    let programs = Programs::ours();
    let flight = Flight::new(&programs, Side::Ours, "");
    let program = flight.system.path("ferretto-upload");
    let upload = |path: &Path| {
        let mut command = flight.command(&["upload", "--once"], "upload.log");
        command
            .env("PATH", path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.output().unwrap()
    };
    let missing = upload(&flight.system.path("nowhere"));
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("install it, or build it in the folder upload")
    );
    write_script(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n");
    let became = upload(&flight.system.path(""));
    let settings = flight.system.path("recorder.toml");
    assert_eq!(
        (String::from_utf8(became.stdout).unwrap(), became.status.code()),
        (format!("--settings {} --once\n", settings.display()), Some(7))
    );
}

#[test]
fn a_folder_of_sessions_that_was_replaced_is_watched_from_sighup_on() {
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "");
    flight.configure("a", METERS);
    flight.start();
    flight.await_sessions(&["a"]);
    let folder = flight.system.path("recorder.d");
    std::fs::rename(&folder, flight.system.path("away")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    flight.configure("b", METERS);
    flight.recorder.as_ref().unwrap().signal(Signal::HUP);
    flight.await_sessions(&["b"]);
    flight.configure("c", METERS);
    flight.await_sessions(&["b", "c"]);
}

/// Sets the flag when it is dropped, also by a failed assertion. Otherwise the other thread would go on, and the scope would wait for it forever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_quota_holds_at_every_moment_and_the_oldest_file_goes_first() {
    let programs = Programs::ours();
    // A file of this session may take 2,432 KiB, so 468 KiB remain for other files. One takes little more than the buffer's 256 KiB.
    let mut flight = Flight::new(&programs, Side::Ours, "quota = \"2900 KiB\"");
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    let over = AtomicBool::new(false);
    let folder = flight.system.path("sealed");
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                let entries = std::fs::read_dir(&folder).unwrap().filter_map(Result::ok);
                let traces =
                    entries.filter(|entry| entry.file_name().to_str().unwrap().ends_with(".pftrace"));
                // Files may vanish meanwhile.
                let sizes = traces.filter_map(|entry| Some(entry.metadata().ok()?.len()));
                most = most.max(sizes.sum::<u64>());
            }
            most
        });
        let told = Over(&over);
        let mut sealed = Vec::new();
        let mut gone = 0;
        // The number of files that fit depends on the data that come meanwhile. Even a file without data has some hundred bytes from the service.
        while gone < 5 && sealed.len() < 1000 {
            sealed.extend(flight.seal(&[]));
            let (left, _) = flight.files();
            gone = sealed.len() - left.len();
            assert_eq!(left, sealed[gone..], "the oldest are gone");
        }
        drop(told);
        assert!(gone >= 5, "{gone} of {}", sealed.len());
        watcher.join().unwrap()
    });
    assert!(most > 0 && most <= 2900 << 10, "{most}");
}

#[test]
fn a_file_that_was_uploaded_makes_room_before_older_ones() {
    let programs = Programs::ours();
    // A file of this session may take 2,432 KiB, so 468 KiB remain for other files. One takes little more than the buffer's 256 KiB, so that the
    // first is still there after the second.
    let mut flight = Flight::new(&programs, Side::Ours, "");
    let state = flight.system.path("upload");
    flight.set(&format!(
        "quota = \"2900 KiB\"\n[upload]\nurl = \"file:///nowhere\"\nstate = {:?}",
        state.display().to_string()
    ));
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    let older = flight.seal(&[]).remove(0);
    let uploaded = flight.seal(&[]).remove(0);
    // As the uploader writes it.
    std::fs::create_dir(&state).unwrap();
    let name = uploaded.file_name().unwrap().to_str().unwrap();
    std::fs::write(
        state.join("draft"),
        format!("{{\"url\": \"file:///nowhere/this\", \"done\": [{name:?}]}}"),
    )
    .unwrap();
    std::fs::rename(state.join("draft"), state.join("state.json")).unwrap();
    for _ in 0..1000 {
        flight.seal(&[]);
        if !uploaded.exists() {
            break;
        }
        assert!(older.exists(), "{}", flight.said());
    }
    assert!(!uploaded.exists(), "no room was needed: {}", flight.said());
    // One more may have had to go at once.
    let deleted = flight.said();
    let deleted: Vec<_> = deleted.lines().filter(|line| line.contains("deleted ")).collect();
    assert!(deleted[0].contains(name), "{deleted:?}");
}

#[test]
fn a_recorder_that_is_killed_at_any_moment_leaves_whole_files_and_comes_back() {
    let seed = seed();
    let rounds = std::env::var("FERRETTO_KILLS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(20);
    let mut random = Random(seed);
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "quota = \"6 MiB\"\nburst = 1000");
    flight.configure("meters", METERS);
    let mut files = 0;
    for _ in 0..rounds {
        flight.start();
        let (_, others) = flight.files();
        assert!(!others.iter().any(|name| name.contains("pftrace")), "{others:?}");
        flight.await_sessions(&["meters"]);
        // The kill comes between the beginning of the first seal and the end of the second.
        let mut seals: Vec<_> = (0..2)
            .map(|_| flight.command(&["seal"], "killed.log").spawn().unwrap())
            .collect();
        let until = Instant::now() + Duration::from_micros(random.below(30_000) as u64);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        flight.kill();
        for seal in &mut seals {
            seal.wait().unwrap();
        }
        let (sealed, _) = flight.files();
        for file in &sealed {
            assert!(is_whole(file), "{}", file.display());
        }
        let sizes: u64 = sealed
            .iter()
            .map(|file| std::fs::metadata(file).unwrap().len())
            .sum();
        assert!(sizes <= 6 << 20);
        files = sealed.len();
        flight
            .system
            .await_state(|state| state.tracing_sessions.is_empty());
    }
    println!("{rounds} kills, {files} files at the end");
    flight.start();
    let (_, others) = flight.files();
    assert!(!others.iter().any(|name| name.contains("pftrace")), "{others:?}");
    flight.await_sessions(&["meters"]);
    assert_eq!(flight.seal(&[]).len(), 1);
}

/// The total size of a recorder's trace files, sealed ones and rings.
fn taken(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().filter_map(Result::ok);
    let is_data = |name: &str| name.ends_with(".pftrace") || name.starts_with(".ring-");
    let data = entries.filter(|entry| is_data(entry.file_name().to_str().unwrap()));
    // Files may vanish meanwhile.
    data.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Returns the times of all readings in a trace, in nanoseconds of boot time.
fn times(trace: &Path) -> BTreeSet<u64> {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let packets = trace.packet.iter();
    let readings = packets.filter(|packet| matches!(packet.data, Some(trace_packet::Data::SysStats(_))));
    readings.filter_map(|packet| packet.timestamp).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service,
    Probes,
    Recorder,
}

/// `FERRETTO_KILLS=1000 cargo test --release -p ferretto-cli --test integration recorder::` kills as often, and holds the second.
#[test]
fn of_a_crash_safe_session_at_most_the_last_second_is_missing_whatever_is_killed() {
    let seed = seed();
    let asked_for: Option<u64> = std::env::var("FERRETTO_KILLS")
        .ok()
        .and_then(|count| count.parse().ok());
    // On a busy machine no process gets a processor in time.
    let most_missing = Duration::from_secs(if asked_for.is_some() { 1 } else { 10 });
    let mut random = Random(seed);
    let programs = Programs::ours();
    let settings = "crash_safe = [\"meters\"]\nring = \"1 MiB\"\nquota = \"6 MiB\"\nburst = 1000000";
    let mut flight = Flight::new(&programs, Side::Ours, settings);
    flight.configure("meters", METERS);
    flight.start();
    let mut worst = Duration::ZERO;
    for round in 0..asked_for.unwrap_or(9) {
        flight.await_sessions(&["meters", "meters.triggers"]);
        let before = flight.files().0;
        await_that("data come", || !times(&flight.seal(&[])[0]).is_empty());
        let pause = Instant::now() + Duration::from_millis(random.below(1500) as u64);
        while Instant::now() < pause {
            std::thread::yield_now();
        }
        let victim = [Victim::Service, Victim::Probes, Victim::Recorder][random.below(3)];
        let killed_at = ferretto_ipc::reactor::boot_now();
        let file = match victim {
            Victim::Service => {
                flight.system.end_with(flight.traced, Signal::KILL);
                flight.traced = flight.system.start(Side::Ours, Program::Traced);
                None
            }
            Victim::Probes => {
                flight.system.end_with(flight.probes, Signal::KILL);
                flight.probes = flight.system.start(Side::Ours, Program::TracedProbes);
                Some(flight.seal(&[]).remove(0))
            }
            Victim::Recorder => {
                flight.kill();
                flight.start();
                None
            }
        };
        let file = file.unwrap_or_else(|| {
            let mut found = None;
            await_that("the ring is sealed", || {
                let files = flight.files().0;
                let mut new = files.into_iter().filter(|file| !before.contains(file));
                found = new.rfind(|file| file.to_str().unwrap().ends_with("-recovered.pftrace"));
                found.is_some()
            });
            found.unwrap()
        });
        let times = times(&file);
        let last = times.range(..=killed_at).next_back().copied().unwrap_or_default();
        let missing = Duration::from_nanos(killed_at - last);
        worst = worst.max(missing);
        assert!(
            missing <= most_missing,
            "round {round}, {victim:?}: {missing:?} are missing in {}",
            file.display()
        );
        assert!(taken(&flight.system.path("sealed")) <= 6 << 20);
    }
    println!("at most {worst:?} were missing");
    // Its triggers work, too.
    flight.await_sessions(&["meters", "meters.triggers"]);
    flight.trigger("slow.frame");
    flight.await_file("meters", "slow.frame");
}

/// The seed of a test, to be given again after a failure.
fn seed() -> u64 {
    let seed = std::env::var("FERRETTO_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("FERRETTO_SEED={seed}");
    seed
}

#[test]
fn metrics_tell_of_sessions_seals_and_the_service_if_they_are_asked_for() {
    let programs = Programs::ours();
    let mut flight = Flight::new(&programs, Side::Ours, "metrics = 0");
    flight.configure("meters", METERS);
    flight.start();
    flight.await_sessions(&["meters"]);
    flight.seal(&[]);
    flight.await_said("metrics are at http://");
    let log = std::fs::read_to_string(flight.system.path("recorder.log")).unwrap();
    let (_, rest) = log.split_once("metrics are at http://").unwrap();
    let (address, _) = rest.split_once("/metrics").unwrap();
    let ask = |path: &str, host: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let get = |path: &str| ask(path, address);
    let expected = [
        "ferretto_service_up 1\n",
        "ferretto_service_sessions 1\n",
        "ferretto_recorder_session_running{session=\"meters\"} 1\n",
        "ferretto_recorder_seals_total{of=\"meters/command\"} 1\n",
        "ferretto_recorder_sealed_files 1\n",
        "ferretto_buffer_written_bytes_total{session=\"meters\",buffer=\"0\"}",
        "ferretto_producer_resident_memory_bytes{producer=\"perfetto.traced_probes\"",
    ];
    // Statistics come a while after the seal.
    let mut page = String::new();
    await_that("all figures are there", || {
        page = get("/metrics");
        expected.iter().all(|line| page.contains(line))
    });
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    assert!(get("/metrics?of=all").starts_with("HTTP/1.1 200 OK"));
    assert!(get("/").starts_with("HTTP/1.1 404"));
    assert!(ask("/metrics", "localhost").starts_with("HTTP/1.1 200 OK"));
    assert!(ask("/metrics", "127.0.0.1.example.org").starts_with("HTTP/1.1 403"));
    // A session that is gone has no figures any more.
    std::fs::remove_file(flight.config_file("meters")).unwrap();
    await_that("its figures are gone", || {
        !get("/metrics").contains("session=\"meters\"")
    });
}
