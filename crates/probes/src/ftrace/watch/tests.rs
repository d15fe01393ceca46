//! Tests of the module: what is found, and its words.

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

/// As all was at the start, but for these.
fn shown(different: &[(Setting, &str)]) -> Shown {
    let mut shown = Shown {
        settings: BTreeMap::from([
            (Setting::TracingOn, "1".to_owned()),
            (Setting::TraceClock, "boot".to_owned()),
            (Setting::BufferSizeKb, "1024".to_owned()),
            (Setting::EventPids, String::new()),
        ]),
        events: Some(events(&["switch", "waking", "of_somebody_else"])),
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
        // What could not be read is not held against anybody.
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
            "Somebody changed /t/buffer_size_kb from `1024` to `4` between 0.0 s and 1.0 s after the start: what had not been \
             read yet may be lost",
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

    // That another clock empties the buffers has been said.
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
