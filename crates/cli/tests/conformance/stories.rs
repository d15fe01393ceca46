//! Stories of sessions: refused configs, ownership of sessions, and the content that producers and consumers get.

use ferretto_client::consumer::ConsumerReply;
use ferretto_proto::messages::trace_config::{
    BufferConfig, BuiltinDataSource, LockdownModeOperation, ProducerConfig,
};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, Message, TraceConfig,
};

use crate::conformance::parties::{
    Consumer, Service, alike, config, plain, skeleton, steady, without_later_clocks,
};

/// Enables a config; returns whether the service accepts it.
pub(crate) fn taken(consumer: &mut Consumer, config: &TraceConfig) -> &'static str {
    consumer.log.clear();
    consumer.enable(config);
    let refused = consumer.log.iter().any(|told| told == "disabled: refused");
    if refused { "refused" } else { "taken" }
}

#[test]
fn the_same_configs_are_refused() {
    let buffer = |size_kb: u32| BufferConfig {
        size_kb: Some(size_kb),
        ..Default::default()
    };
    let named = |name: &str| BufferConfig {
        name: Some(name.into()),
        ..buffer(4)
    };
    let buffers = |buffers: Vec<BufferConfig>| TraceConfig {
        buffers,
        ..config("d")
    };
    let aimed = |index: Option<u32>, name: Option<&str>| {
        let mut aimed = buffers(vec![named("zero"), named("one"), buffer(4)]);
        let source = aimed.data_sources[0].config.get_or_insert_default();
        source.target_buffer = index;
        source.target_buffer_name = name.map(Into::into);
        aimed
    };
    let lasting = |ms| TraceConfig {
        duration_ms: Some(ms),
        ..config("d")
    };
    let for_bugreports = |name: &str| TraceConfig {
        bugreport_filename: Some(name.into()),
        ..config("d")
    };
    const WEEK_MS: u32 = 7 * 24 * 3600 * 1000;
    let configs = [
        ("nothing", TraceConfig::default()),
        ("a data source without a buffer", buffers(vec![])),
        ("a buffer of nothing", buffers(vec![buffer(0)])),
        ("a buffer of 1 KB", buffers(vec![buffer(1)])),
        ("a buffer of 4 GB", buffers(vec![buffer(4 << 20)])),
        ("128 buffers", buffers(vec![buffer(4); 128])),
        ("129 buffers", buffers(vec![buffer(4); 129])),
        ("two buffers of one name", buffers(vec![named("a"), named("a")])),
        ("two buffers without a name", buffers(vec![named(""), named("")])),
        ("the last buffer", aimed(Some(2), None)),
        ("a buffer past the last", aimed(Some(3), None)),
        ("a buffer by name", aimed(None, Some("one"))),
        ("a buffer by name and index", aimed(Some(1), Some("one"))),
        (
            "a buffer by name and another by index",
            aimed(Some(2), Some("one")),
        ),
        ("a buffer by name and index 0", aimed(Some(0), Some("one"))),
        ("a buffer by the name of none", aimed(None, Some("two"))),
        ("a buffer by an empty name", aimed(Some(2), Some(""))),
        ("a week", lasting(WEEK_MS)),
        ("more than a week", lasting(WEEK_MS + 1)),
        ("a file name", for_bugreports("a-Z_0.9")),
        ("a file name that leads elsewhere", for_bugreports("a/b")),
        ("a file name with a space", for_bugreports("a b")),
        (
            "a file that is not passed",
            TraceConfig {
                write_into_file: Some(true),
                ..config("d")
            },
        ),
        (
            "a file where there is no folder",
            TraceConfig {
                write_into_file: Some(true),
                output_path: Some("/nowhere/at/all".into()),
                ..config("d")
            },
        ),
        (
            "clearing a lockdown that is not",
            TraceConfig {
                lockdown_mode: Some(LockdownModeOperation::LOCKDOWN_CLEAR),
                ..config("d")
            },
        ),
    ];
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for (name, config) in &configs {
            let mut consumer = service.consumer();
            told.push(format!("{name}: {}", taken(&mut consumer, config)));
            // After a refusal the consumer may try again.
            told.push(format!(
                "{name}, then another: {}",
                taken(&mut consumer, &self::config("d"))
            ));
            drop(consumer);
            service.await_quiet();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn as_many_sessions_may_be_as_with_upstream_and_none_twice_of_one_name() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut consumers = Vec::new();
        for _ in 0..7 {
            let mut consumer = service.consumer();
            told.push(taken(&mut consumer, &config("d")).into());
            consumers.push(consumer);
        }
        drop(consumers);
        service.await_quiet();
        let named = TraceConfig {
            unique_session_name: Some("mine".into()),
            ..config("d")
        };
        let (mut first, mut second) = (service.consumer(), service.consumer());
        told.push(format!("named: {}", taken(&mut first, &named)));
        told.push(format!("again: {}", taken(&mut second, &named)));
        first.endpoint.disable_tracing().unwrap();
        first.state();
        told.push(format!("after it ended: {}", taken(&mut second, &named)));
        first.endpoint.free_buffers().unwrap();
        first.state();
        told.push(format!("after it was freed: {}", taken(&mut second, &named)));
        told
    };
    alike(story, &[]);
}

#[test]
fn sessions_are_detached_and_attached_alike() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let [mut a, mut b, mut c] = [(); 3].map(|()| service.consumer());
        let sent = config("d");
        a.enable(&sent);
        b.enable(&sent);
        let mut detach = |who: &str, consumer: &mut Consumer, key: &str| {
            let call = consumer.endpoint.detach(key).unwrap();
            let answer = consumer.answer(call).is_ok();
            told.push(format!("{who} detaches as {key:?}: {answer}"));
        };
        detach("c, without a session,", &mut c, "key");
        detach("a", &mut a, "");
        detach("a", &mut a, "key");
        detach("a", &mut a, "key");
        detach("b", &mut b, "key");
        let mut attach = |who: &str, consumer: &mut Consumer, key: &str| {
            let call = consumer.endpoint.attach(key).unwrap();
            let answer = match consumer.answer(call) {
                Ok(ConsumerReply::Attached { trace_config }) => {
                    let same = TraceConfig::decode_from_slice(&trace_config).unwrap() == sent;
                    format!("with the config that was sent: {same}")
                }
                Ok(other) => format!("{other:?}"),
                Err(_) => "rejected".into(),
            };
            told.push(format!("{who} attaches to {key:?}: {answer}"));
        };
        attach("b, which has one,", &mut b, "key");
        attach("c", &mut c, "another");
        attach("c", &mut c, "key");
        attach("a", &mut a, "key");
        // A session that was never detached has no key, which upstream treats as an empty key.
        attach("with an empty key, a", &mut a, "");
        let sessions = a.state().tracing_sessions.len();
        told.push(format!("{sessions} sessions"));
        told
    };
    alike(story, &["with an empty key"]);
}

#[test]
fn a_consumer_without_a_session_is_answered_alike() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let config = config("d").encode_to_vec();
        for what in ["start", "stop", "free", "stats", "read", "change"] {
            let mut consumer = service.consumer();
            let endpoint = &mut consumer.endpoint;
            let call = match what {
                "start" => endpoint.start_tracing(),
                "stop" => endpoint.disable_tracing(),
                "free" => endpoint.free_buffers(),
                "stats" => endpoint.trace_stats(),
                "read" => endpoint.read_buffers(),
                _ => endpoint.change_trace_config(&config),
            };
            let answer = match consumer.answer(call.unwrap()) {
                Ok(_) => "answered",
                Err(_) => "rejected",
            };
            told.push(format!("{what}: {answer}, {} packets", consumer.read().len()));
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn producers_get_the_same_config() {
    let mut asked = TraceConfig {
        duration_ms: Some(600_000),
        data_source_stop_timeout_ms: Some(1234),
        prefer_suspend_clock_for_duration: Some(true),
        ..config("d")
    };
    asked.buffers.push(BufferConfig {
        name: Some("second".into()),
        ..asked.buffers[0].clone()
    });
    asked.producers.push(ProducerConfig {
        producer_name: Some("p".into()),
        shm_size_kb: Some(512),
        page_size_kb: Some(16),
        ..Default::default()
    });
    let source = asked.data_sources[0].config.get_or_insert_default();
    source.target_buffer_name = Some("second".into());
    source.legacy_config = Some("as it was sent".into());
    let mut second = asked.data_sources[0].clone();
    second.config.get_or_insert_default().target_buffer_name = None;
    asked.data_sources.push(second);
    let story = |service: &Service<'_>| {
        let mut producer = service.producer("p");
        producer.register(plain("d"));
        let mut consumer = service.consumer();
        consumer.enable(&asked);
        producer.settle();
        let mut told = producer.log.clone();
        told.extend(producer.configs.iter().map(|config| {
            let config = DataSourceConfig {
                // Upstream's v56 omits the field if it is not set; ours reports its value.
                enable_extra_guardrails: None,
                ..config.clone()
            };
            format!("{config:?}")
        }));
        told
    };
    alike(story, &[]);
}

#[test]
fn the_state_of_the_service_reads_alike() {
    let story = |service: &Service<'_>| {
        let (mut p, mut q) = (service.producer("p"), service.producer("q"));
        for name in ["of p", "common"] {
            p.register(plain(name));
        }
        for name in ["common", "also of q"] {
            q.register(plain(name));
        }
        p.register(plain("common"));
        let (mut a, mut b) = (service.consumer(), service.consumer());
        a.enable(&TraceConfig {
            unique_session_name: Some("first".into()),
            duration_ms: Some(600_000),
            bugreport_score: Some(7),
            bugreport_filename: Some("name".into()),
            ..config("common")
        });
        b.enable(&TraceConfig {
            deferred_start: Some(true),
            ..config("of p")
        });
        let mut state = *a.state();
        state.tracing_service_version = None;
        let mut told: Vec<String> = Vec::new();
        for mut producer in std::mem::take(&mut state.producers) {
            // The process id of this test is the same with both.
            producer.pid = producer.pid.map(|_| 0);
            told.push(format!("{producer:?}"));
        }
        let sources = std::mem::take(&mut state.data_sources);
        told.extend(sources.iter().map(|source| format!("{source:?}")));
        for mut session in std::mem::take(&mut state.tracing_sessions) {
            session.start_realtime_ns = session.start_realtime_ns.map(|_| 0);
            // An extension of ours.
            session.buffer_used_bytes.clear();
            told.push(format!("{session:?}"));
        }
        told.push(format!("{state:?}"));
        told
    };
    alike(story, &[]);
}

#[test]
fn the_service_writes_the_same_packets_into_a_trace() {
    let quiet = TraceConfig {
        builtin_data_sources: BuiltinDataSource {
            disable_clock_snapshotting: Some(true),
            disable_system_info: Some(true),
            disable_trace_config: Some(true),
            disable_service_events: Some(true),
            disable_chunk_usage_histograms: Some(true),
            ..steady()
        }
        .into(),
        ..config("d")
    };
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for config in [config("d"), quiet.clone()] {
            let mut of_session = Vec::new();
            let mut producer = service.producer("p");
            producer.register(plain("d"));
            let mut consumer = service.consumer();
            consumer.enable(&config);
            producer.settle();
            let mut read = |consumer: &mut Consumer| {
                of_session.extend(consumer.read().iter().map(|packet| skeleton(packet)));
                of_session.push("read".into());
            };
            read(&mut consumer);
            let flush = consumer.endpoint.flush_producers(0, 0x21).unwrap();
            consumer.state();
            producer.settle();
            let done = producer.flushes[0];
            producer.endpoint.acknowledge_flush(done).unwrap();
            producer.settle();
            consumer.answer(flush).unwrap();
            read(&mut consumer);
            consumer.endpoint.disable_tracing().unwrap();
            consumer.until_told("disabled");
            read(&mut consumer);
            read(&mut consumer);
            told.extend(without_later_clocks(of_session));
            drop((producer, consumer));
            service.await_quiet();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn flushes_are_acknowledged_alike() {
    let story = |service: &Service<'_>| {
        let (mut p, mut q) = (service.producer("p"), service.producer("q"));
        p.register(plain("d"));
        q.register(DataSourceDescriptor {
            no_flush: Some(true),
            ..plain("d")
        });
        let mut consumer = service.consumer();
        consumer.enable(&config("d"));
        let calls: Vec<_> = [0, 0, 0, 20]
            .into_iter()
            .map(|timeout| consumer.endpoint.flush_producers(timeout, 0x22).unwrap())
            .collect();
        consumer.state();
        p.settle();
        q.settle();
        let third = p.flushes[2];
        let request = CommitDataRequest {
            flush_request_id: Some(third.0),
            ..Default::default()
        };
        p.endpoint
            .commit(request, ferretto_client::producer::CommitReply::Unwanted)
            .unwrap();
        p.settle();
        let mut told: Vec<String> = calls
            .into_iter()
            .map(|call| format!("succeeded: {}", consumer.answer(call).is_ok()))
            .collect();
        let stats = consumer.stats();
        told.push(format!(
            "{:?} requested, {:?} succeeded, {:?} failed, last: {:?}",
            stats.flushes_requested, stats.flushes_succeeded, stats.flushes_failed, stats.final_flush_outcome
        ));
        told.push(p.log.join(", "));
        told.push(q.log.join(", "));
        told
    };
    alike(story, &[]);
}

#[test]
fn filters_and_registrations_bring_in_the_same_producers() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut producers = ["com.app", "com.app.child", "other"].map(|name| service.producer(name));
        producers[0].register(plain("d"));
        producers[1].register(plain("d"));
        producers[2].register(plain("d"));
        producers[2].register(plain("d"));
        let mut consumer = service.consumer();
        let mut filtered = config("d");
        filtered.data_sources[0].producer_name_regex_filter = vec!["com\\.[a-z]+".into()];
        consumer.enable(&filtered);
        let mut look = |what: &str, producers: &mut [crate::conformance::parties::Producer]| {
            for producer in producers {
                producer.settle();
                told.push(format!("{what}: {}", producer.log.join(", ")));
            }
        };
        look("an expression matches whole names", &mut producers);
        filtered.data_sources[0].producer_name_filter = vec!["other".into()];
        let call = consumer
            .endpoint
            .change_trace_config(&filtered.encode_to_vec())
            .unwrap();
        consumer.answer(call).unwrap();
        look("a name is added", &mut producers);
        producers[2].endpoint.unregister_data_source("d").unwrap();
        look("one of two registrations goes", &mut producers);
        let mut again = service.producer("com.app");
        again.register(plain("d"));
        look("another of the same name comes", std::slice::from_mut(&mut again));
        for machine in ["host", "Linux", "elsewhere"] {
            let mut consumer = service.consumer();
            let mut filtered = config("d");
            filtered.data_sources[0].machine_name_filter = vec![machine.into()];
            consumer.enable(&filtered);
            look(machine, std::slice::from_mut(&mut again));
            drop(consumer);
            service.await_sessions(1);
        }
        told
    };
    alike(story, &[]);
}
