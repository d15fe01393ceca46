//! Ftrace's statements about itself, and kernel events that are missing.

use ferretto_proto::messages::ftrace_stats::Phase;
use ferretto_proto::messages::trace_stats::BufferStats;

use super::*;

#[test]
fn troubles_of_ftrace_are_told_in_their_own_words() {
    let mut evidence = Evidence::default();
    ftrace_stats(&mut evidence, |stats| {
        stats.atrace_errors("The instance foo is in use by another tracer.\nAsk it to end.");
    });
    let config = asking_for(&["linux.ftrace"]);
    let mut watch = Watch::from_the_start();
    change(&mut watch, PROBES, "linux.ftrace", STOPPED, 0);
    let account = judged(&config, Some(&evidence), Some(&watch));
    let trouble = |sentence: &str| ("ftrace_trouble", format!("kernel events: {sentence}"));
    assert_eq!(
        missing(&account),
        [
            trouble("The instance foo is in use by another tracer"),
            trouble("Ask it to end")
        ],
        "and nothing of a source that did not answer"
    );
    assert!(account.is_void);
    // Another tracer takes the instance in mid-recording, after kernel events have arrived.
    kernel_events(&mut evidence);
    change(&mut watch, PROBES, "linux.ftrace", STARTED, 0);
    let account = judged(&config, Some(&evidence), Some(&watch));
    assert!(!account.is_void && !account.is_whole());
}

#[test]
fn kernel_events_that_cannot_start_are_known_as_those_of_other_sources() {
    let mut evidence = Evidence::default();
    let started = |evidence: &Evidence| {
        let failed = evidence.failed_to_start();
        failed.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    ftrace_stats(&mut evidence, |stats| {
        stats.atrace_errors("linux.ftrace lost its buffers: somebody resized them");
    });
    assert_eq!(started(&evidence), [""; 0]);
    let why = "linux.ftrace could not be set up: the kernel is locked down";
    ftrace_stats(&mut evidence, |stats| {
        stats.atrace_errors(why);
    });
    assert_eq!(started(&evidence), [why]);
}

#[test]
fn events_that_are_not_there_are_all_that_was_asked_for_or_not() {
    let mut evidence = Evidence::default();
    ftrace_stats(&mut evidence, |stats| {
        stats
            .unknown_ftrace_events("sched/sched_switch")
            .phase(Phase::END_OF_TRACE);
    });
    let config = asking_for(&["linux.ftrace"]);
    let account = judged(&config, Some(&evidence), None);
    assert_eq!(
        missing(&account),
        [(
            "kernel_event_unavailable",
            "sched/sched_switch: this kernel has no event of that name".to_owned()
        )]
    );
    assert!(account.is_void);
    kernel_events(&mut evidence);
    assert!(!judged(&config, Some(&evidence), None).is_void);
}

#[test]
fn kernel_events_without_their_last_statistics_break_off() {
    let mut evidence = Evidence::default();
    kernel_events(&mut evidence);
    let config = asking_for(&["linux.ftrace"]);
    assert!(judged(&config, Some(&evidence), None).is_whole(), "it goes on");
    event(&mut evidence, 1, |event| {
        event.tracing_disabled(true);
    });
    assert_eq!(
        missing(&judged(&config, Some(&evidence), None))[0].0,
        "kernel_events_break_off"
    );
    ftrace_stats(&mut evidence, |stats| {
        stats.phase(Phase::END_OF_TRACE);
    });
    assert!(judged(&config, Some(&evidence), None).is_whole());
}

#[test]
fn nothing_at_all_of_ftrace_is_missed_unless_it_may_have_been_lost() {
    let config = asking_for(&["linux.ftrace"]);
    let evidence = Evidence::default();
    let account = judged(&config, Some(&evidence), None);
    assert_eq!(missing(&account)[0].0, "data_source_silent");
    assert!(account.is_void);
    let stats = TraceStats {
        buffer_stats: vec![BufferStats {
            chunks_overwritten: Some(1),
            ..Default::default()
        }],
        ..Default::default()
    };
    let account = Account::of(&Case {
        stats: Some(&stats),
        evidence: Some(&evidence),
        ..Case::of(&config, Wording::Config)
    });
    assert_eq!((missing(&account), account.is_void), (vec![], false));
}
