//! Data sources whose producers went away, came late or never, and those that left no data.

use ferretto_proto::messages::tracing_service_state::{DataSource as Offer, Producer};
use ferretto_proto::messages::{DataSourceDescriptor, TracingServiceState};

use super::*;

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
fn a_profiler_that_ran_without_a_sample_need_not_be_started() {
    let config = asking_for(&["linux.perf"]);
    let advice = |evidence: &Evidence, watch| {
        let account = judged(&config, Some(evidence), watch);
        let finding = account.findings.into_iter().next().unwrap();
        assert_eq!(finding.cause, "data_source_silent");
        finding.advice.unwrap()
    };
    let unknown = advice(&Evidence::default(), None);
    assert!(unknown.contains("need a running traced_perf"), "{unknown}");
    let mut watch = Watch::from_the_start();
    change(&mut watch, "traced_perf", "linux.perf", STARTED, 0);
    let watched = advice(&Evidence::default(), Some(&watch));
    assert!(watched.contains("sample more often"), "{watched}");
    let mut evidence = Evidence::default();
    event(&mut evidence, 11_000, |event| {
        event.all_data_sources_started(true);
    });
    assert_eq!(advice(&evidence, None), watched);
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
