//! Tests of the module: its findings and their words.

use std::path::Path;

use super::finding::{names, short};
use super::*;

const SECOND: BootTime = 1_000_000_000;
/// When the session of these tests started.
const START: BootTime = 100 * SECOND;

fn event(name: &str) -> EventName {
    EventName::new("sched", name)
}

fn events(names: &[&str]) -> BTreeSet<EventName> {
    names.iter().map(|name| event(name)).collect()
}

fn watch() -> Watch {
    let mut watch = Watch::default();
    for (setting, value) in [
        (Setting::TracingOn, "1"),
        (Setting::TraceClock, "boot"),
        (Setting::BufferSizeKb, "1024"),
        (Setting::EventPids, ""),
    ] {
        watch.expect(setting, value.to_owned(), START);
    }
    watch.expect_events(events(&["switch", "waking"]), START);
    watch.expect_buffers(&BTreeMap::from([(0, 10), (1, 0)]), START);
    watch
}

/// The state at the start, but for these settings.
fn shown(different: &[(Setting, &str)]) -> Shown {
    let mut shown = Shown {
        settings: BTreeMap::from([
            (Setting::TracingOn, "1".to_owned()),
            (Setting::TraceClock, "boot".to_owned()),
            (Setting::BufferSizeKb, "1024".to_owned()),
            (Setting::EventPids, String::new()),
        ]),
        events: Some(events(&["switch", "waking", "of_somebody_else"])),
        gone: BTreeSet::new(),
    };
    for (setting, value) in different {
        shown.settings.insert(setting.clone(), (*value).to_owned());
    }
    shown
}

fn sentences(findings: &[Finding]) -> Vec<String> {
    let recorded = events(&["switch", "waking"]);
    let sentence = |finding: &Finding| finding.sentence(START, &recorded, Path::new("/t"));
    findings.iter().filter_map(sentence).collect()
}

#[test]
fn as_long_as_all_is_as_it_was_nothing_is_said() {
    let mut watch = watch();
    for second in 1..5 {
        assert_eq!(watch.see(&shown(&[]), START + second * SECOND), []);
        // A file that could not be read is not held against anybody.
        assert_eq!(watch.see(&Shown::default(), START + second * SECOND), []);
        watch.read_here(0, Some(5));
        watch.read_here(1, Some(7));
        let counted = BTreeMap::from([(0, 10 + second * 5), (1, second * 7)]);
        let now = START + second * SECOND;
        assert_eq!(watch.see_buffers(&counted, Depth::Whole, now), []);
    }
}

#[test]
fn a_change_is_told_once_and_its_end_with_the_time_between() {
    let mut watch = watch();
    let now = |tenths: u64| START + tenths * SECOND / 10;
    assert_eq!(watch.see(&shown(&[]), now(31)), []);
    let off = shown(&[(Setting::TracingOn, "0")]);
    assert_eq!(
        sentences(&watch.see(&off, now(32))),
        [
            "Somebody switched recording off 3.2 s after the start: /t/tracing_on is 0, and nothing is recorded until it is 1"
        ]
    );
    assert_eq!(watch.see(&off, now(40)), []);
    assert_eq!(
        sentences(&watch.see(&shown(&[]), now(47))),
        ["Recording is on again 4.7 s after the start: the events of about 1.5 s are missing"]
    );
    assert_eq!(watch.see(&shown(&[]), now(48)), []);
}

#[test]
fn each_change_has_its_sentence() {
    for (setting, value, expected) in [
        (
            Setting::TraceClock,
            "global",
            "Somebody changed /t/trace_clock from `boot` to `global` between 0.0 s and 1.0 s after the start: what had not been \
             read yet is lost, and later events have times of another clock",
        ),
        (
            Setting::BufferSizeKb,
            "4",
            "Somebody changed /t/buffer_size_kb from `1024` to `4` between 0.0 s and 1.0 s after the start: what no longer fits \
             is lost, and Linux since 6.7 does not record while it changes that",
        ),
        (
            Setting::BufferSizeKb,
            "2048",
            "Somebody changed /t/buffer_size_kb from `1024` to `2048` between 0.0 s and 1.0 s after the start: what was in the \
             buffers stays, but Linux since 6.7 does not record while it changes that",
        ),
        (
            Setting::EventPids,
            "1 2",
            "Somebody changed /t/set_event_pid from `` to `1 2` between 0.0 s and 1.0 s after the start: what the new value \
             leaves out is not recorded",
        ),
    ] {
        let mut watch = watch();
        let findings = watch.see(&shown(&[(setting.clone(), value)]), START + SECOND);
        assert_eq!(sentences(&findings), [expected]);
        let back = sentences(&watch.see(&shown(&[]), START + 3 * SECOND));
        let file = setting.file();
        assert_eq!(
            back,
            [format!(
                "/t/{file} is what it was again 3.0 s after the start, after about 2.0 s"
            )]
        );
    }
}

#[test]
fn a_setting_that_this_program_changes_is_expected() {
    let mut watch = watch();
    watch.expect(Setting::EventPids, "5".into(), START + SECOND);
    assert_eq!(
        watch.see(&shown(&[(Setting::EventPids, "5")]), START + 2 * SECOND),
        []
    );
    assert_eq!(watch.expected(&Setting::EventPids), Some("5"));
}

#[test]
fn an_event_that_is_off_is_told_to_those_that_record_it() {
    let mut watch = watch();
    let only = |names: &[&str]| Shown {
        events: Some(events(names)),
        ..Shown::default()
    };
    let findings = watch.see(&only(&["switch"]), START + SECOND);
    assert_eq!(
        sentences(&findings),
        [
            "Somebody switched events off between 0.0 s and 1.0 s after the start (sched/waking): they are not recorded until they are on again"
        ]
    );
    let other = findings[0].sentence(START, &events(&["switch"]), Path::new("/t"));
    assert_eq!(other, None, "it does not record that one");
    // One session fewer: its event goes, and the state of the others stays.
    watch.expect_events(events(&["waking"]), START + SECOND);
    assert_eq!(watch.see(&only(&[]), START + 2 * SECOND), []);
    assert_eq!(
        sentences(&watch.see(&only(&["waking"]), START + 4 * SECOND)),
        ["Events are on again 4.0 s after the start (sched/waking): those of about 3.0 s are missing"]
    );
}

#[test]
fn many_events_are_not_all_named() {
    let many: BTreeSet<EventName> = (0..7).map(|number| event(&number.to_string())).collect();
    assert_eq!(names(&many), "sched/0, sched/1, sched/2, sched/3 and 3 more");
    assert_eq!(short(&"1 ".repeat(100)).chars().count(), 61);
}

#[test]
fn filters_are_looked_at_in_turn() {
    let mut watch = Watch::default();
    let many: BTreeSet<EventName> = (0..40).map(|number| event(&number.to_string())).collect();
    watch.expect_events(many.clone(), START);
    for event in &many {
        watch.expect(Setting::EventFilter(event.clone()), "0".into(), START);
    }
    watch.expect(Setting::TracingOn, "1".into(), START);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let settings = watch.settings_to_look_at(Depth::Regular);
        assert_eq!(settings.len(), 1 + FILTERS_PER_LOOK);
        assert!(settings.contains(&Setting::TracingOn));
        seen.extend(settings);
    }
    assert_eq!(seen.len(), 41);
    assert_eq!(watch.settings_to_look_at(Depth::Whole).len(), 41);
    assert_eq!(watch.settings_to_look_at(Depth::Quick), [Setting::TracingOn]);
}

#[test]
fn events_that_others_read_are_missing_here() {
    let mut watch = watch();
    let now = START + SECOND;
    watch.read_here(0, Some(3));
    let findings = watch.see_buffers(&BTreeMap::from([(0, 15), (1, 4)]), Depth::Regular, now);
    assert_eq!(
        sentences(&findings),
        [
            "Somebody else read 6 events out of the kernel's buffers in /t between 0.0 s and 1.0 s after the start: they are missing here"
        ]
    );
    let more = BTreeMap::from([(0, 20), (1, 4)]);
    assert_eq!(
        watch.see_buffers(&more, Depth::Regular, now),
        [],
        "it is told already"
    );
    assert_eq!(
        sentences(&watch.see_buffers(&more, Depth::Whole, now + SECOND)),
        [
            "By 2.0 s after the start somebody else had read 11 events out of the kernel's buffers in /t: they are missing here"
        ]
    );
    assert_eq!(watch.see_buffers(&more, Depth::Whole, now + 2 * SECOND), []);
}

#[test]
fn buffers_that_count_from_zero_again_were_emptied() {
    let mut watch = watch();
    watch.read_here(0, Some(100));
    let counted = BTreeMap::from([(0, 20), (1, 0)]);
    assert_eq!(
        sentences(&watch.see_buffers(&counted, Depth::Regular, START + SECOND)),
        [
            "Somebody emptied the kernel's buffers in /t between 0.0 s and 1.0 s after the start: what had not been read yet is lost"
        ]
    );
    assert_eq!(watch.see_buffers(&counted, Depth::Regular, START + SECOND), []);

    // The trace has said that another clock empties the buffers.
    watch.see(&shown(&[(Setting::TraceClock, "local")]), START + 2 * SECOND);
    let counted = BTreeMap::from([(0, 0), (1, 0)]);
    assert_eq!(
        watch.see_buffers(&counted, Depth::Regular, START + 2 * SECOND),
        []
    );
}

#[test]
fn where_a_page_could_not_be_read_nothing_is_said_of_its_events() {
    let mut watch = watch();
    watch.read_here(0, None);
    watch.read_here(0, Some(4));
    let counted = BTreeMap::from([(0, 1000), (1, 0)]);
    assert_eq!(watch.see_buffers(&counted, Depth::Whole, START), []);
    watch.read_here(0, Some(4));
    let counted = BTreeMap::from([(0, 1004), (1, 0)]);
    assert_eq!(watch.see_buffers(&counted, Depth::Whole, START), []);
}

#[test]
fn what_is_excused_has_no_end_to_tell() {
    let mut watch = watch();
    assert_eq!(
        watch
            .see(&shown(&[(Setting::TracingOn, "0")]), START + SECOND)
            .len(),
        1
    );
    watch.excuse(&Setting::TracingOn);
    assert_eq!(watch.see(&shown(&[]), START + 2 * SECOND), []);
    assert_eq!(
        watch
            .see(&shown(&[(Setting::TracingOn, "0")]), START + 3 * SECOND)
            .len(),
        1
    );
}

fn program(pid: u32, file: &str) -> FileUser {
    FileUser {
        pid,
        name: "bash".to_owned(),
        file: file.to_owned(),
    }
}

fn written(programs: &[(u32, &str)]) -> BTreeSet<FileUser> {
    programs.iter().map(|(pid, file)| program(*pid, file)).collect()
}

const NOTHING_READ: [(u32, u64); 2] = [(0, 10), (1, 0)];

#[test]
fn a_write_that_left_no_other_trace_is_told_with_its_writer() {
    for (file, expected) in [
        (
            "tracing_on",
            "Process 7 (bash) wrote to /t/tracing_on between 0.0 s and 1.0 s after the start: it is 1 now, but events in \
             between may be missing",
        ),
        (
            "set_event_pid",
            "Process 7 (bash) wrote to /t/set_event_pid between 0.0 s and 1.0 s after the start: it is empty now, but events in \
             between may be missing",
        ),
        (
            "per_cpu/cpu3/buffer_size_kb",
            "Process 7 (bash) wrote to /t/per_cpu/cpu3/buffer_size_kb between 0.0 s and 1.0 s after the start: it is 1024 now, \
             but events in between may be missing",
        ),
        (
            "events/sched/waking/enable",
            "Process 7 (bash) wrote to /t/events/sched/waking/enable between 0.0 s and 1.0 s after the start: the events are on \
             now, but those in between may be missing",
        ),
    ] {
        let mut watch = watch();
        watch.wrote(written(&[(7, file)]));
        let findings = watch.see(&shown(&[]), START + SECOND);
        assert_eq!(sentences(&findings), [expected]);
        assert!(findings[0].is_complete());
        assert_eq!(watch.see(&shown(&[]), START + 2 * SECOND), [], "{file}: once");
    }
}

#[test]
fn a_writer_is_told_once_and_what_it_goes_on_with_in_the_end() {
    let mut watch = watch();
    for second in 1..=5 {
        watch.wrote(written(&[(7, "tracing_on")]));
        let findings = watch.see(&shown(&[]), START + second * SECOND);
        assert_eq!(findings.len(), usize::from(second == 1), "{findings:?}");
        let counted = NOTHING_READ.into();
        assert_eq!(
            watch.see_buffers(&counted, Depth::Regular, START + second * SECOND),
            []
        );
    }
    // No program can fill a trace with it.
    for pid in 100..200 {
        watch.wrote(written(&[(pid, "tracing_on")]));
        watch.see(&shown(&[]), START + 6 * SECOND);
    }
    let in_all = watch.see_buffers(&NOTHING_READ.into(), Depth::Whole, START + 7 * SECOND);
    assert_eq!(
        sentences(&in_all),
        [
            "By 7.0 s after the start others had written to files in /t that decide what is recorded, at 101 times that are \
             not told one by one: events in between may be missing"
        ]
    );
    assert_eq!(
        watch.see_buffers(&NOTHING_READ.into(), Depth::Whole, START + 8 * SECOND),
        []
    );
    // A recorder that has just started does not know.
    watch.tell_anew();
    watch.wrote(written(&[(7, "tracing_on")]));
    assert_eq!(watch.see(&shown(&[]), START + 9 * SECOND).len(), 1);
}

#[test]
fn a_change_has_the_writer_whether_the_write_is_known_before_the_look_or_after_it() {
    let off = [(Setting::TracingOn, "0")];
    for known_before in [&[(7, "tracing_on")][..], &[]] {
        let mut watch = watch();
        watch.wrote(written(known_before));
        let findings = watch.see(&shown(&off), START + SECOND);
        watch.wrote(written(&[(7, "tracing_on"), (8, "trace_clock")]));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(watch.writers(&findings[0]), [program(7, "tracing_on")]);
        assert_eq!(watch.writers(&findings[0]), []);
        // The change under way is told. That of the clock is not known yet.
        watch.wrote(written(&[(7, "tracing_on")]));
        let findings = watch.see(&shown(&off), START + 2 * SECOND);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(sentences(&findings)[0].starts_with("Process 8 (bash) wrote to /t/trace_clock"));
        // Nor does the end need a second sentence.
        watch.wrote(written(&[(7, "tracing_on")]));
        let findings = watch.see(&shown(&[]), START + 3 * SECOND);
        assert_eq!(findings.len(), 1, "{findings:?}");
        watch.writers(&findings[0]);
        assert_eq!(watch.see(&shown(&[]), START + 4 * SECOND), []);
    }
}

#[test]
fn a_write_waits_for_a_look_at_what_it_was_to() {
    let mut watch = watch();
    watch.wrote(written(&[(7, "set_event"), (7, "buffer_size_kb"), (7, "trace")]));
    let mut quick = shown(&[]);
    quick.events = None;
    quick.settings.remove(&Setting::BufferSizeKb);
    assert_eq!(watch.see(&quick, START + SECOND), []);
    let mut whole = shown(&[(Setting::BufferSizeKb, "2048")]);
    whole.events = Some(BTreeSet::new());
    let findings = watch.see(&whole, START + 2 * SECOND);
    let writers: Vec<_> = findings.iter().map(|finding| watch.writers(finding)).collect();
    assert_eq!(
        writers,
        [[program(7, "buffer_size_kb")], [program(7, "set_event")]]
    );
    let findings = watch.see_buffers(&[(0, 0), (1, 0)].into(), Depth::Regular, START + 2 * SECOND);
    assert_eq!(findings.len(), 1);
    assert_eq!(watch.writers(&findings[0]), [program(7, "trace")]);
}

#[test]
fn who_writes_to_a_switch_is_told_to_those_whose_events_it_switches() {
    let mut watch = watch();
    let both = [
        (7, "events/sched/waking/enable"),
        (7, "events/sched/switch/enable"),
        (8, "events/irq/enable"),
        (8, "events/sched/waking/trigger"),
        (8, "options/of_no_interest"),
    ];
    watch.wrote(written(&both));
    let findings = watch.see(&shown(&[]), START + SECOND);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let told_to = |names: &[&str]| findings[0].sentence(START, &events(names), Path::new("/t"));
    assert!(
        told_to(&["waking"])
            .unwrap()
            .contains("/t/events/sched/waking/enable between")
    );
    assert!(
        told_to(&["waking", "switch"])
            .unwrap()
            .contains("/t/events/sched/switch/enable and to 1 more between")
    );
    assert_eq!(told_to(&["other"]), None);

    // One event is off, the other was in between.
    watch.wrote(written(&both));
    watch.tell_anew();
    let mut off = shown(&[]);
    off.events = Some(events(&["switch"]));
    let findings = watch.see(&off, START + 2 * SECOND);
    assert!(
        matches!(&findings[..], [Finding::Wrote { by, .. }, Finding::EventsOff { .. }] if *by == [program(7, "events/sched/switch/enable")]),
        "{findings:?}"
    );
    assert_eq!(
        watch.writers(&findings[1]),
        [program(7, "events/sched/waking/enable")]
    );
}

#[test]
fn buffers_that_are_emptied_before_they_are_read_are_told_by_who_wrote() {
    let mut watch = Watch::default();
    watch.expect_buffers(&BTreeMap::from([(0, 0), (1, 0)]), START);
    watch.wrote(written(&[(7, "trace")]));
    watch.read_here(0, Some(3));
    let findings = watch.see_buffers(&[(0, 3), (1, 0)].into(), Depth::Regular, START + SECOND);
    assert_eq!(
        sentences(&findings),
        [
            "Process 7 (bash) wrote to /t/trace between 0.0 s and 1.0 s after the start: whoever truncates it empties the \
             kernel's buffers, and what had not been read yet is lost"
        ]
    );
    // A truncation would show in the count of the first buffer, but not in that of the second.
    watch.wrote(written(&[
        (8, "trace"),
        (9, "per_cpu/cpu0/trace"),
        (10, "per_cpu/cpu1/trace"),
    ]));
    let findings = watch.see_buffers(&[(0, 3), (1, 0)].into(), Depth::Regular, START + 2 * SECOND);
    assert!(
        matches!(&findings[..], [Finding::Wrote { by, .. }] if by[0].pid == 10),
        "{findings:?}"
    );
    // A write of the same clock empties the buffers again; the report names its writer.
    watch.expect(Setting::TraceClock, "boot".into(), START + 2 * SECOND);
    watch.wrote(written(&[(11, "trace_clock")]));
    assert_eq!(
        sentences(&watch.see(&shown(&[]), START + 3 * SECOND)),
        [
            "Process 11 (bash) wrote to /t/trace_clock between 2.0 s and 3.0 s after the start, which empties the kernel's \
             buffers: what had not been read yet is lost"
        ]
    );
    assert_eq!(
        watch.see_buffers(&[(0, 0), (1, 0)].into(), Depth::Regular, START + 3 * SECOND),
        []
    );
}

#[test]
fn events_that_the_kernel_has_no_more_were_not_switched_off() {
    let mut watch = watch();
    let mut unloaded = shown(&[]);
    unloaded.events = Some(BTreeSet::new());
    unloaded.gone = events(&["waking"]);
    let findings = watch.see(&unloaded, START + SECOND);
    assert_eq!(
        sentences(&findings),
        [
            "Events are not there any more between 0.0 s and 1.0 s after the start (sched/waking): the module that had them was \
             unloaded, or their probe removed. They are not recorded from then on, and the kernel empties its buffers when \
             that happens",
            "Somebody switched events off between 0.0 s and 1.0 s after the start (sched/switch): they are not recorded until they are on again",
        ]
    );
    // The kernel did that.
    assert_eq!(
        watch.see_buffers(&[(0, 0), (1, 0)].into(), Depth::Regular, START + SECOND),
        []
    );
    assert_eq!(watch.see(&unloaded, START + 2 * SECOND), []);
}
