//! Accounts of recordings, from made-up packets and made-up answers of the service.

use std::time::Duration;

use ferretto_proto::messages::ftrace_stats::Phase;
use ferretto_proto::messages::observable_events::{DataSourceInstanceState, DataSourceInstanceStateChange};
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::CpuEvent;
use ferretto_proto::messages::tracing_service_state::{DataSource as Offer, Producer};
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, FtraceConfig, TracingServiceState, trace_config,
};
use ferretto_proto::write::{self, TracePacket};
use ferretto_wire::Writer;

use super::watch::Question;
use super::*;

mod failed;

fn asking_for(sources: &[&str]) -> TraceConfig {
    let source = |name: &&str| trace_config::DataSource {
        config: DataSourceConfig {
            name: Some((*name).to_owned()),
            ftrace_config: FtraceConfig {
                ftrace_events: vec!["sched/sched_switch".to_owned()],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    TraceConfig {
        duration_ms: Some(1000),
        data_sources: sources.iter().map(source).collect(),
        ..Default::default()
    }
}

fn judged(config: &TraceConfig, evidence: Option<&Evidence>, watch: Option<&Watch>) -> Account {
    Account::of(&Case {
        evidence,
        watch,
        ..Case::of(config, Wording::Config)
    })
}

/// The findings about missing data: cause and sentence.
fn missing(account: &Account) -> Vec<(&'static str, String)> {
    let findings = account.findings.iter();
    let missing = findings.filter(|finding| finding.severity == Severity::Missing);
    missing
        .map(|finding| (finding.cause, finding.sentence()))
        .collect()
}

fn packet(evidence: &mut Evidence, fill: impl FnOnce(&mut TracePacket<'_>)) {
    let mut packet = Writer::new();
    fill(&mut TracePacket::new(&mut packet));
    evidence.observe(packet.as_slice());
}

fn ftrace_stats(evidence: &mut Evidence, fill: impl FnOnce(&mut write::FtraceStats<'_>)) {
    packet(evidence, |packet| {
        packet.ftrace_stats(fill);
    });
}

fn kernel_events(evidence: &mut Evidence) {
    packet(evidence, |packet| {
        packet.ftrace_events(|bundle| {
            bundle.cpu(0);
        });
    });
}

/// A mark of the service, in ms since boot.
fn event(evidence: &mut Evidence, ms: u64, fill: impl FnOnce(&mut write::TracingServiceEvent<'_>)) {
    packet(evidence, |packet| {
        packet.timestamp(ms * 1_000_000).service_event(fill);
    });
}

const STARTED: DataSourceInstanceState = DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
const STOPPED: DataSourceInstanceState = DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STOPPED;
const PROBES: &str = "perfetto.traced_probes";

fn change(
    watch: &mut Watch,
    producer: &str,
    source: &str,
    state: DataSourceInstanceState,
    ms: u64,
) -> Question {
    let change = DataSourceInstanceStateChange {
        producer_name: Some(producer.to_owned()),
        data_source_name: Some(source.to_owned()),
        state: Some(state),
        ..Default::default()
    };
    watch.changed(&change, Duration::from_millis(ms))
}

fn state(producers: &[(i32, &str, &str)]) -> TracingServiceState {
    TracingServiceState {
        producers: producers
            .iter()
            .map(|(id, name, _)| Producer {
                id: Some(*id),
                name: Some((*name).to_owned()),
                ..Default::default()
            })
            .collect(),
        data_sources: producers
            .iter()
            .map(|(id, _, source)| Offer {
                producer_id: Some(*id),
                ds_descriptor: DataSourceDescriptor {
                    name: Some((*source).to_owned()),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

#[test]
fn a_producer_that_disconnects_is_reported_at_once_and_in_the_summary() {
    let mut watch = Watch::from_the_start();
    assert!(watch.is_there(&state(&[(1, PROBES, "linux.ftrace")])).is_empty());
    let set_up = change(&mut watch, PROBES, "linux.ftrace", STOPPED, 0);
    let started = change(&mut watch, PROBES, "linux.ftrace", STARTED, 1);
    assert_eq!([set_up, started], [Question::None; 2]);
    let stopped = change(&mut watch, PROBES, "linux.ftrace", STOPPED, 3200);
    assert_eq!(stopped, Question::WhoIsThere);
    let gone = watch.is_there(&state(&[]));
    assert_eq!(
        gone[0].notice(),
        "traced_probes went away after 3.2 s (linux.ftrace); what it had handed over by then is kept"
    );
    let mut evidence = Evidence::default();
    kernel_events(&mut evidence);
    let config = asking_for(&["linux.ftrace"]);
    let account = judged(&config, Some(&evidence), Some(&watch));
    let sentence =
        "linux.ftrace after 3.2 s: traced_probes went away; what it had handed over by then is kept";
    assert_eq!(missing(&account), [("data_source_gone", sentence.to_owned())]);
    assert!(!account.is_void && !account.is_whole());
    // The producer connects again, with another id.
    change(&mut watch, PROBES, "linux.ftrace", STOPPED, 4000);
    change(&mut watch, PROBES, "linux.ftrace", STARTED, 4100);
    assert!(watch.is_there(&state(&[(2, PROBES, "linux.ftrace")])).is_empty());
    let account = judged(&config, Some(&evidence), Some(&watch));
    assert!(
        missing(&account)[0]
            .1
            .starts_with("linux.ftrace after 3.2 s until it was back after 4.1 s: "),
        "{account:?}"
    );
}

#[test]
fn an_instance_that_is_set_up_beside_another_is_no_producer_that_went_away() {
    let mut watch = Watch::from_the_start();
    watch.is_there(&state(&[(1, "app", "own")]));
    change(&mut watch, "app", "own", STOPPED, 0);
    change(&mut watch, "app", "own", STARTED, 1);
    // A second producer of the same name.
    assert_eq!(change(&mut watch, "app", "own", STOPPED, 2), Question::WhoIsThere);
    assert!(
        watch
            .is_there(&state(&[(1, "app", "own"), (2, "app", "own")]))
            .is_empty()
    );
    change(&mut watch, "app", "own", STARTED, 3);
    // The first one disconnects.
    change(&mut watch, "app", "own", STOPPED, 900);
    assert_eq!(watch.is_there(&state(&[(2, "app", "own")])).len(), 1);
}

#[test]
fn applications_come_and_go() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 100, |event| {
        event.tracing_started(true);
    });
    for app in ["one", "two"] {
        event(&mut evidence, 600, |event| {
            event.data_sources_gone(|gone| {
                gone.data_source(|source| {
                    source.producer_name(app).data_source_name("track_event");
                });
            });
        });
    }
    event(&mut evidence, 700, |event| {
        event.tracing_disabled(true);
    });
    let account = judged(&asking_for(&["track_event"]), Some(&evidence), None);
    assert!(account.is_whole() && !account.is_void, "{account:?}");
    let note = &account.findings[0];
    assert_eq!((note.cause, &*note.what), ("producer_gone", "2 producers"));
    assert!(note.why.contains("(one, two)"), "{note:?}");
}

#[test]
fn marks_tell_the_same_of_a_file() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1000, |event| {
        event.tracing_started(true);
    });
    event(&mut evidence, 4200, |event| {
        event.data_sources_gone(|gone| {
            for source in ["linux.ftrace", "linux.process_stats"] {
                gone.data_source(|gone| {
                    gone.producer_name(PROBES).data_source_name(source);
                });
            }
        });
    });
    event(&mut evidence, 5000, |event| {
        event.data_sources_not_offered(|absent| {
            absent.data_source(|absent| {
                absent.data_source_name("my.own");
            });
        });
    });
    kernel_events(&mut evidence);
    let config = asking_for(&["linux.ftrace", "linux.process_stats", "my.own"]);
    let account = judged(&config, Some(&evidence), None);
    let sentences: Vec<_> = missing(&account);
    assert_eq!(
        sentences,
        [
            (
                "data_source_gone",
                "linux.ftrace, linux.process_stats after 3.2 s: traced_probes went away; what it had handed over by then is kept"
                    .to_owned()
            ),
            (
                "data_source_not_offered",
                "the data source my.own: no producer offered my.own while it was recorded".to_owned()
            ),
        ]
    );
    assert!(!account.is_void);
    assert!(judged(&asking_for(&["my.own"]), Some(&evidence), None).is_void);
}

#[test]
fn processes_that_nobody_looked_for_are_a_matter_of_the_config() {
    let advice = |scan| {
        let mut config = asking_for(&["linux.process_stats"]);
        config.data_sources[0]
            .config
            .get_or_insert_default()
            .process_stats_config
            .get_or_insert_default()
            .scan_all_processes_on_start = scan;
        let account = judged(&config, Some(&Evidence::default()), None);
        account.findings.into_iter().next().unwrap().advice.unwrap()
    };
    assert!(advice(None).contains("scan_all_processes_on_start: true"));
    assert!(advice(Some(true)).contains("ferretto doctor"));
}

#[test]
fn a_recording_that_the_service_ended_lacks_the_rest() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1000, |event| {
        event.tracing_started(true);
    });
    event(&mut evidence, 2200, |event| {
        event.service_ended(true);
    });
    event(&mut evidence, 2300, |event| {
        event.tracing_disabled(true);
    });
    let config = asking_for(&["my.own"]);
    let account = judged(&config, Some(&evidence), None);
    let sentence =
        "everything after 1.2 s: the recording ended then, because the tracing service was told to end";
    assert_eq!(missing(&account), [("service_ended", sentence.to_owned())]);
    assert!(!account.is_void && !account.is_whole());
    assert!(account.findings[0].advice.is_some());
    // A clone has everything that the session had when it was cloned.
    event(&mut evidence, 2300, |event| {
        event.clone_started(true);
    });
    assert_eq!(missing(&judged(&config, Some(&evidence), None)), []);
}

#[test]
fn a_service_may_have_ended_at_an_unknown_time() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 2200, |event| {
        event.service_ended(true);
    });
    let account = judged(&asking_for(&["my.own"]), Some(&evidence), None);
    assert!(missing(&account)[0].1.starts_with("the rest: "), "{account:?}");
}

#[test]
fn a_source_that_nobody_offers_is_missing_whether_or_not_it_is_marked() {
    let watch = Watch::from_the_start();
    let account = judged(&asking_for(&["my.own"]), Some(&Evidence::default()), Some(&watch));
    assert_eq!(missing(&account)[0].0, "data_source_not_offered");
    assert!(account.is_void);
    let attached = Watch::from_now_on();
    let account = judged(&asking_for(&["my.own"]), None, Some(&attached));
    assert_eq!(
        (missing(&account), account.is_void),
        (vec![], false),
        "it may be gone"
    );
}

#[test]
fn a_source_that_never_started_is_missed_and_a_late_one_noted() {
    let mut watch = Watch::from_the_start();
    change(&mut watch, "app", "my.own", STOPPED, 0);
    let config = asking_for(&["my.own"]);
    let account = judged(&config, Some(&Evidence::default()), Some(&watch));
    assert_eq!(
        missing(&account),
        [(
            "data_source_not_started",
            "the data source my.own: app never said that it had started".to_owned()
        )]
    );
    assert!(account.is_void);

    let mut profiling = Watch::from_the_start();
    change(&mut profiling, "traced_perf", "linux.perf", STOPPED, 0);
    let without_samples = judged(
        &asking_for(&["linux.perf"]),
        Some(&Evidence::default()),
        Some(&profiling),
    );
    let advice = without_samples.findings[0].advice.as_deref().unwrap();
    assert!(advice.contains("traced_perf"), "{advice}");

    let mut evidence = Evidence::default();
    event(&mut evidence, 10_000, |event| {
        event.slow_starting_data_sources(|late| {
            late.data_source(|late| {
                late.producer_name("app").data_source_name("my.own");
            });
        });
    });
    let marked = judged(&config, Some(&evidence), None);
    assert_eq!(missing(&marked), missing(&account));
    event(&mut evidence, 11_000, |event| {
        event.all_data_sources_started(true);
    });
    let late = judged(&config, Some(&evidence), None);
    assert_eq!(
        (missing(&late), late.findings[0].cause),
        (vec![], "data_source_late")
    );
}

#[test]
fn a_source_that_left_data_was_recorded_although_it_never_said_that_it_had_started() {
    let config = asking_for(&["android.heapprofd"]);
    let mut watch = Watch::from_the_start();
    change(&mut watch, "heapprofd", "android.heapprofd", STOPPED, 0);
    let mut evidence = Evidence::default();
    let nothing = judged(&config, Some(&evidence), Some(&watch));
    assert_eq!(missing(&nothing)[0].0, "data_source_not_started");
    packet(&mut evidence, |packet| {
        packet.profile_packet(|profile| {
            profile.process_dumps(|dump| {
                dump.pid(7);
            });
        });
    });
    let account = judged(&config, Some(&evidence), Some(&watch));
    assert_eq!((missing(&account), account.is_void), (vec![], false));
}

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
        buffer_stats: vec![ferretto_proto::messages::trace_stats::BufferStats {
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

#[test]
fn data_sources_that_flags_imply_do_not_count_as_requested() {
    let watch = {
        let mut watch = Watch::from_the_start();
        change(&mut watch, PROBES, "linux.process_stats", STARTED, 0);
        watch
    };
    let is_void = |wording, sources: &[&str]| {
        Account::of(&Case {
            watch: Some(&watch),
            ..Case::of(&asking_for(sources), wording)
        })
        .is_void
    };
    let both = ["linux.ftrace", "linux.process_stats"];
    assert!(is_void(Wording::Flags, &both));
    assert!(!is_void(Wording::Config, &both));
    assert!(!is_void(Wording::Flags, &both[1..]), "nothing else was");
}

#[test]
fn counters_of_the_whole_service_count_from_the_start_of_the_session() {
    let stats = TraceStats {
        chunks_discarded: Some(7),
        ..Default::default()
    };
    let found = |baseline| {
        let account = Account::of(&Case {
            stats: Some(&stats),
            baseline,
            ..Case::of(&TraceConfig::default(), Wording::Config)
        });
        let finding = account.findings.into_iter().next();
        finding.map(|finding| (finding.severity, finding.what))
    };
    let at = |chunks_discarded| {
        Some(Baseline {
            chunks_discarded,
            ..Default::default()
        })
    };
    assert_eq!(found(at(7)), None);
    assert_eq!(found(at(5)), Some((Severity::Loss, "2 chunks".to_owned())));
    assert_eq!(
        found(None),
        Some((Severity::Note, "7 chunks".to_owned())),
        "the service's"
    );
}

#[test]
fn a_session_that_began_and_did_not_end_is_not_whole() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let whole = |evidence: &Evidence| judged(&TraceConfig::default(), Some(evidence), None).is_whole();
    assert!(!whole(&evidence));
    event(&mut evidence, 2, |event| {
        event.tracing_disabled(true);
    });
    assert!(whole(&evidence));
}

#[test]
fn a_failed_flush_is_reported_once() {
    let config = TraceConfig::default();
    let found = |stats: Option<&TraceStats>, last_flush| {
        let account = Account::of(&Case {
            stats,
            last_flush,
            ..Case::of(&config, Wording::Config)
        });
        let findings = account.findings.into_iter();
        findings
            .map(|finding| (finding.cause, finding.what))
            .collect::<Vec<_>>()
    };
    let failed = |what: &str| vec![("flush_failed", what.to_owned())];
    let counted = TraceStats {
        flushes_requested: Some(2),
        flushes_failed: Some(1),
        ..Default::default()
    };
    assert_eq!(
        found(Some(&counted), LastFlush::AsCounted),
        failed("1 flush of 2")
    );
    assert_eq!(
        found(Some(&counted), LastFlush::Failed),
        failed("1 flush of 2, the last one among them")
    );
    let silent = TraceStats::default();
    for stats in [None, Some(&silent)] {
        assert_eq!(found(stats, LastFlush::Failed), failed("the last flush"));
        assert_eq!(found(stats, LastFlush::AsCounted), []);
    }
}

#[test]
fn fields_that_no_flag_sets_are_advised_with_a_config_to_put_them_into() {
    let mut config = asking_for(&["linux.ftrace"]);
    let stats = TraceStats {
        buffer_stats: vec![ferretto_proto::messages::trace_stats::BufferStats {
            trace_writer_packet_loss: Some(1),
            ..Default::default()
        }],
        flushes_failed: Some(1),
        ..Default::default()
    };
    let mut evidence = Evidence::default();
    packet(&mut evidence, |packet| {
        packet.ftrace_events(|bundle| {
            bundle.cpu(0).lost_events(true);
        });
    });
    let advice = |config: &TraceConfig, wording| {
        let account = Account::of(&Case {
            stats: Some(&stats),
            evidence: Some(&evidence),
            ..Case::of(config, wording)
        });
        let losses = account
            .findings
            .into_iter()
            .filter(|finding| finding.severity == Severity::Loss);
        losses
            .map(|finding| (finding.cause, finding.advice.unwrap()))
            .collect::<Vec<_>>()
    };
    let causes = ["shared_memory_full", "flush_failed", "kernel_buffer_overrun"];
    let (flags, fields) = (advice(&config, Wording::Flags), advice(&config, Wording::Config));
    assert_eq!(
        [&flags, &fields].map(|all| all.iter().map(|(cause, _)| *cause).collect::<Vec<_>>()),
        [causes, causes]
    );
    for ((_, with_flags), (_, with_config)) in flags.iter().zip(&fields) {
        assert!(with_flags.contains("ferretto config new"), "{with_flags}");
        assert!(!with_config.contains("ferretto config new"), "{with_config}");
    }
    let ftrace = config.data_sources[0]
        .config
        .get_or_insert_default()
        .ftrace_config
        .get_or_insert_default();
    ftrace.buffer_size_kb = Some(1024);
    ftrace.buffer_size_lower_bound = Some(true);
    let bounded = advice(&config, Wording::Config).remove(2).1;
    assert!(
        bounded.starts_with("raise ftrace_config.buffer_size_kb from 1024 to 16384"),
        "{bounded}"
    );
}

#[test]
fn a_clone_has_no_end_whether_or_not_it_is_marked() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let config = TraceConfig::default();
    let clone = Account::of(&Case {
        evidence: Some(&evidence),
        subject: Subject::Clone,
        ..Case::of(&config, Wording::Config)
    });
    assert_eq!(clone.findings, []);
    assert!(!judged(&config, Some(&evidence), None).is_whole());
}

#[test]
fn a_file_that_is_full_does_not_break_off() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let config = TraceConfig {
        write_into_file: Some(true),
        max_file_size_bytes: Some(10 << 20),
        ..Default::default()
    };
    let found = |evidence: &Evidence, wording, size, state| {
        let account = Account::of(&Case {
            evidence: Some(evidence),
            file: Some(TraceFile { size, state }),
            ..Case::of(&config, wording)
        });
        let finding = account.findings.into_iter().next();
        finding.map(|finding| {
            (
                finding.severity,
                finding.cause,
                finding.advice.unwrap_or_default(),
            )
        })
    };
    let full = |advice: &str| Some((Severity::Note, "file_full", advice.to_owned()));
    let broken = Some((Severity::Loss, "no_end", String::new()));
    let (near, far) = ((10 << 20) - 1000, 5 << 20);
    let raise = "for a longer one raise max_file_size_bytes from 10485760 to 20971520";
    assert_eq!(
        found(&evidence, Wording::Config, near, FileState::Unknown),
        full(raise)
    );
    assert_eq!(
        found(&evidence, Wording::Flags, near, FileState::Complete),
        full("for a longer one write -s 20mb")
    );
    assert_eq!(found(&evidence, Wording::Config, far, FileState::Unknown), broken);
    assert_eq!(
        found(&evidence, Wording::Config, far, FileState::Complete),
        full(raise),
        "a large packet did not fit"
    );
    event(&mut evidence, 2, |event| {
        event.tracing_disabled(true);
    });
    assert_eq!(
        found(&evidence, Wording::Config, near, FileState::Complete),
        None,
        "there was room for the end"
    );
}

#[test]
fn sizes_to_choose_are_round_and_large_enough() {
    for (needed, size) in [
        (0, 4),
        (4, 4),
        (5, 6),
        (7, 8),
        (4096, 4096),
        (4097, 6144),
        (6145, 8192),
        (7373, 8192),
    ] {
        assert_eq!(roomy(needed), size, "{needed}");
    }
    assert!(roomy(u64::MAX) >= 1 << 63);
}

#[test]
fn long_lists_are_cut() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let name = |name: &&str| (*name).to_owned();
    assert_eq!(listed(&names, name).as_deref(), Some("a, b, c, d, 2 more"));
    assert_eq!(listed(&names[..2], name).as_deref(), Some("a, b"));
    assert_eq!(listed(&names[..0], name), None);
}

#[test]
fn whatever_is_missing_of_a_cpu_profile_is_reported_with_its_cause() {
    let mut evidence = Evidence::default();
    let mut tell = |fill: fn(&mut write::PerfSample<'_>)| {
        packet(&mut evidence, |packet| {
            packet.perf_sample(fill);
        });
    };
    tell(|sample| {
        sample.cpu(1).kernel_records_lost(7);
    });
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE);
    });
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_READ_STAGE);
    });
    // Nothing is missing.
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE);
    });
    for event in [
        CpuEvent::CPU_THROTTLED,
        CpuEvent::CPU_UNTHROTTLED,
        CpuEvent::CPU_GONE,
        CpuEvent::CPU_SAMPLED,
        CpuEvent::CPU_UNAVAILABLE,
        CpuEvent::CPU_UNREADABLE,
    ] {
        packet(&mut evidence, |packet| {
            packet.perf_sample(|sample| {
                sample.cpu(3).producer_event(|out| {
                    out.cpu_event(event);
                });
            });
        });
    }
    let account = judged(&asking_for(&["linux.perf"]), Some(&evidence), None);
    let findings = account.findings.iter();
    let found: Vec<(Severity, &str, &str)> = findings
        .map(|finding| (finding.severity, finding.cause, &*finding.what))
        .collect();
    let expected = [
        (Severity::Loss, "perf_ring_overrun", "7 records of linux.perf"),
        (Severity::Loss, "perf_throttled", "samples of linux.perf, 1 time"),
        (Severity::Loss, "perf_samples_skipped", "the stacks of 1 sample"),
        (Severity::Missing, "perf_processes_gone", "the stacks of 1 sample"),
        (
            Severity::Missing,
            "perf_cpu_gone",
            "what linux.perf would have recorded on CPU 3 after it went offline",
        ),
        (
            Severity::Missing,
            "perf_cpu_unavailable",
            "what linux.perf would have recorded on CPU 3",
        ),
        (
            Severity::Missing,
            "perf_counters_unreadable",
            "1 reading of counters",
        ),
    ];
    assert_eq!(found, expected);
}
