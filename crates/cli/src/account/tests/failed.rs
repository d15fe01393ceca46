//! Data sources that producers could not set up or start.

use super::*;

fn failure(evidence: &mut Evidence, source: &str, why: &str) {
    packet(evidence, |packet| {
        packet.data_source_failure(|failure| {
            failure.data_source_name(source).failure(why);
        });
    });
}

#[test]
fn a_source_that_could_not_start_is_told_with_its_reason_alone() {
    let why = "could not be started: no";
    let expected = [("data_source_failed", format!("the data source linux.perf: {why}"))];
    let mut evidence = Evidence::default();
    failure(&mut evidence, "linux.perf", why);
    failure(&mut evidence, "linux.perf", why);
    let config = asking_for(&["linux.perf"]);
    let mut watch = Watch::from_the_start();
    change(&mut watch, "perfetto.traced_perf", "linux.perf", STOPPED, 0);
    for watch in [None, Some(&watch)] {
        let account = judged(&config, Some(&evidence), watch);
        assert_eq!(missing(&account), expected);
        assert!(account.is_void);
    }
    // Beside another source it is a part.
    let both = asking_for(&["linux.perf", "linux.sys_stats"]);
    packet(&mut evidence, |packet| {
        packet.sys_stats(|_| {});
    });
    let account = judged(&both, Some(&evidence), None);
    assert_eq!(missing(&account), expected);
    assert!(!account.is_void && !account.is_whole());
}

#[test]
fn counters_that_started_and_say_that_they_record_nothing_are_told_with_the_reason_alone() {
    let why = "could not be set up: no";
    let mut evidence = Evidence::default();
    failure(&mut evidence, "linux.sys_stats", why);
    let config = asking_for(&["linux.sys_stats"]);
    let mut watch = Watch::from_the_start();
    change(
        &mut watch,
        "perfetto.traced_probes",
        "linux.sys_stats",
        STARTED,
        0,
    );
    let expected = [(
        "data_source_failed",
        format!("the data source linux.sys_stats: {why}"),
    )];
    let account = judged(&config, Some(&evidence), Some(&watch));
    assert_eq!(missing(&account), expected);
    assert!(account.is_void);
    // Another instance records.
    packet(&mut evidence, |packet| {
        packet.sys_stats(|_| {});
    });
    let account = judged(&config, Some(&evidence), Some(&watch));
    assert_eq!(missing(&account), expected);
    assert!(!account.is_void && !account.is_whole());
}

#[test]
fn one_failed_instance_of_two_is_missing_and_the_other_is_not() {
    let mut evidence = Evidence::default();
    failure(&mut evidence, "linux.perf", "could not be started: no");
    packet(&mut evidence, |packet| {
        packet.perf_sample(|sample| {
            sample.callstack_iid(1);
        });
    });
    let config = asking_for(&["linux.perf"]);
    let account = judged(&config, Some(&evidence), None);
    assert_eq!(missing(&account).len(), 1);
    assert!(!account.is_void && !account.is_whole());
}

#[test]
fn a_producers_reason_is_bounded() {
    let mut evidence = Evidence::default();
    for number in 0..5_000 {
        failure(&mut evidence, &format!("s{number}"), &"x".repeat(5_000));
    }
    assert_eq!(evidence.failed().len(), 1 << 10);
    assert!(
        evidence
            .failed()
            .iter()
            .all(|failed| failed.failure.len() == 1_000)
    );
}
