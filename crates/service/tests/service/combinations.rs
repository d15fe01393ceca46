//! Features that meet in one session: triggers with sleep, flushes, detaching, guardrails and semaphores; files of sessions that never start or have
//! no more room; timers of a session that only waits for its data sources to stop. Other modules test each feature alone.

use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{
    BuiltinDataSource, IncrementalStateConfig, ProducerConfig, SessionSemaphore, TriggerConfig,
};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_stats::FinalFlushOutcome;
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{
    DataSourceDescriptor, Message, Trace, TraceConfig, TracePacket, observable_events,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConsumerId, FlushOutcome, Original, ProducerCommand,
    StateScope,
};

use crate::data_sources::commands;
use crate::world::{World, config, flushes, packet, starts, stops, texts};

const HOUR_MS: u32 = 3600 * 1000;

/// A session that waits up to this time for the trigger `t`, which takes effect after this delay.
fn triggered(mode: TriggerMode, timeout_ms: u32, delay_ms: u32) -> TraceConfig {
    TraceConfig {
        trigger_config: TriggerConfig {
            trigger_mode: Some(mode),
            trigger_timeout_ms: Some(timeout_ms),
            triggers: vec![Trigger {
                name: Some("t".into()),
                stop_delay_ms: Some(delay_ms),
                ..Default::default()
            }],
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    }
}

/// A data source that acknowledges its stop.
fn slow_to_stop(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(name.into()),
        will_notify_on_stop: Some(true),
        handles_incremental_state_clear: Some(true),
        ..Default::default()
    }
}

fn state(world: &World, consumer: ConsumerId) -> Option<String> {
    let sessions = world.state(consumer, StateScope::Sessions).tracing_sessions;
    sessions.last()?.state.clone()
}

fn has_event(packets: &[TracePacket], wanted: fn(&EventType) -> bool) -> bool {
    packets.iter().any(|packet| match &packet.data {
        Some(Data::ServiceEvent(event)) => event.event_type.as_ref().is_some_and(wanted),
        _ => false,
    })
}

/// `prefer_suspend_clock_for_duration` chooses the clock for times that become the duration: how long a session waits for a trigger that stops or
/// snapshots it, and how long it lasts after a trigger has started it. All other waits use the other clock.
#[test]
fn sleep_counts_where_a_trigger_sets_the_duration_and_nowhere_else() {
    use TriggerMode::{CLONE_SNAPSHOT, START_TRACING, STOP_TRACING};
    let counts_sleep = |mode, activates: bool| {
        let (mut world, producer, consumer) = World::offering();
        let now = world.now;
        let snapshots = observable_events::Type::TYPE_CLONE_TRIGGER_HIT as u32;
        world.service.observe_events(consumer, snapshots, &now);
        let config = TraceConfig {
            prefer_suspend_clock_for_duration: Some(true),
            ..triggered(mode, HOUR_MS, HOUR_MS)
        };
        world.enable(consumer, &config);
        if activates {
            world.activate(producer, &["t"]);
        }
        let happened = |world: &World| {
            let asked = world.count(producer, flushes) + world.count(producer, stops);
            asked + world.consumers[&consumer].snapshots_due.len() > 0
        };
        world.suspend(HOUR_MS.into());
        let while_asleep = happened(&world);
        world.advance(HOUR_MS.into());
        assert!(happened(&world), "{mode:?} {activates}");
        while_asleep
    };
    assert!(!counts_sleep(START_TRACING, false), "the wait for the trigger");
    assert!(counts_sleep(START_TRACING, true), "its delay is the duration");
    assert!(counts_sleep(STOP_TRACING, false), "the wait is the duration");
    assert!(!counts_sleep(STOP_TRACING, true));
    assert!(counts_sleep(CLONE_SNAPSHOT, false));
}

#[test]
fn a_snapshot_is_due_after_its_delay_awake() {
    let (mut world, producer, consumer) = World::offering();
    let now = world.now;
    let snapshots = observable_events::Type::TYPE_CLONE_TRIGGER_HIT as u32;
    world.service.observe_events(consumer, snapshots, &now);
    let config = TraceConfig {
        prefer_suspend_clock_for_duration: Some(true),
        ..triggered(TriggerMode::CLONE_SNAPSHOT, 2 * HOUR_MS, 1000)
    };
    world.enable(consumer, &config);
    world.activate(producer, &["t"]);
    world.suspend(HOUR_MS.into());
    assert!(world.consumers[&consumer].snapshots_due.is_empty());
    world.advance(1000);
    assert_eq!(world.consumers[&consumer].snapshots_due.len(), 1);
}

#[test]
fn a_trigger_that_stops_comes_while_a_flush_is_under_way() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, HOUR_MS, 0));
    world.flush(consumer, 1, HOUR_MS);
    world.activate(producer, &["t"]);
    world.advance(0);
    let requests: Vec<u64> = world.producers[&producer]
        .commands
        .iter()
        .filter_map(|command| match command {
            ProducerCommand::Flush { request, .. } => Some(request.0),
            _ => None,
        })
        .collect();
    assert_eq!(requests.len(), 2);
    let acknowledge = |world: &mut World, request| {
        let done = ferretto_proto::messages::CommitDataRequest {
            flush_request_id: Some(request),
            ..Default::default()
        };
        let now = world.now;
        world.service.commit(producer, &done, &now);
        world.run();
    };
    // The consumer's own flush is over. The session still waits for the last one.
    acknowledge(&mut world, requests[0]);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Succeeded)]);
    assert_eq!(world.count(producer, stops), 0);
    acknowledge(&mut world, requests[1]);
    assert_eq!(world.count(producer, stops), 1);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(
        stats.final_flush_outcome,
        Some(FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED)
    );
}

#[test]
fn a_consumer_that_stops_its_session_before_the_trigger_does_is_not_flushed_again() {
    let mut world = World::new();
    let (producer, consumer) = (world.producer("p"), world.consumer());
    world.register(producer, &slow_to_stop("d"));
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, HOUR_MS, 1000));
    world.activate(producer, &["t"]);
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    world.advance(1000);
    assert_eq!(state(&world, consumer).as_deref(), Some("STOP_WAIT"));
    world.advance(4000);
    assert_eq!(
        world.consumers[&consumer].disabled,
        [None],
        "after the stop timeout"
    );
    assert_eq!(world.count(producer, flushes), 0);
    assert_eq!(world.count(producer, stops), 1);
}

/// As with upstream, a session that never started is not freed with its timeout: a consumer that detached from it may still come back.
#[test]
fn a_detached_session_whose_trigger_never_came_stays_to_be_attached_to() {
    let (mut world, producer, consumer) = World::offering();
    let session = world.enable(consumer, &triggered(TriggerMode::START_TRACING, 1000, 1));
    world.service.detach(consumer, "key").unwrap();
    world.advance(1000);
    assert_eq!(state(&world, consumer).as_deref(), Some("DISABLED"));
    assert_eq!(world.count(producer, stops), 1);
    let heir = world.consumer();
    world.service.attach(heir, "key").unwrap();
    assert_eq!(world.service.await_disabled(heir), Some(session));
    world.run();
    assert_eq!(world.consumers[&heir].ended, [session]);
    assert!(world.read(heir).is_empty());
}

#[test]
fn the_consumer_attached_when_a_snapshot_is_due_is_notified() {
    let (mut world, producer, first) = World::offering();
    let second = world.consumer();
    let now = world.now;
    let snapshots = observable_events::Type::TYPE_CLONE_TRIGGER_HIT as u32;
    for consumer in [first, second] {
        world.service.observe_events(consumer, snapshots, &now);
    }
    world.enable(first, &triggered(TriggerMode::CLONE_SNAPSHOT, HOUR_MS, 1000));
    world.activate(producer, &["t"]);
    world.service.detach(first, "key").unwrap();
    world.service.attach(second, "key").unwrap();
    world.advance(1000);
    let told = [first, second].map(|consumer| world.consumers[&consumer].snapshots_due.len());
    assert_eq!(told, [0, 1]);
}

#[test]
fn guardrails_bound_how_long_a_trigger_is_waited_for() {
    let day = 24 * HOUR_MS;
    for mode in [
        TriggerMode::START_TRACING,
        TriggerMode::STOP_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ] {
        let guarded = |timeout| TraceConfig {
            enable_extra_guardrails: Some(true),
            ..triggered(mode, timeout, 1)
        };
        let (mut world, _, consumer) = World::offering();
        let error = world.try_enable(consumer, &guarded(day + 1)).unwrap_err();
        assert!(error.contains("trigger_timeout_ms"), "{error}");
        world.enable(consumer, &guarded(day));
    }
}

#[test]
fn a_session_that_waits_to_start_or_for_others_to_stop_holds_its_semaphore_and_a_clone_none() {
    let mutex = |config: TraceConfig| TraceConfig {
        session_semaphores: vec![SessionSemaphore {
            name: Some("mutex".into()),
            ..Default::default()
        }],
        unique_session_name: Some("name".into()),
        ..config
    };
    let mut world = World::new();
    let (producer, holder, other) = (world.producer("p"), world.consumer(), world.consumer());
    world.register(producer, &slow_to_stop("d"));
    let unnamed = TraceConfig {
        unique_session_name: None,
        ..mutex(config(&[]))
    };
    let session = world.enable(
        holder,
        &mutex(triggered(TriggerMode::START_TRACING, HOUR_MS, HOUR_MS)),
    );
    assert!(world.try_enable(other, &unnamed).unwrap_err().contains("mutex"));
    world.activate(producer, &["t"]);
    let cloner = world.consumer();
    let request = CloneRequest {
        original: Original::Id(session.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    };
    world.try_clone(cloner, request).unwrap();
    world.acknowledge_flushes(producer);
    assert!(world.cloned(cloner).unwrap().is_ok());
    world.disable(holder);
    assert!(world.try_enable(other, &unnamed).unwrap_err().contains("mutex"));
    world.free(holder);
    // Only the clone remains.
    world.enable(other, &mutex(config(&[])));
}

/// A session keeps its name as long as it exists, and its semaphore only while it runs.
#[test]
fn a_session_that_has_ended_keeps_its_name_and_gives_up_its_semaphore() {
    let (mut world, _, first) = World::offering();
    let second = world.consumer();
    let named = |name: &str| TraceConfig {
        unique_session_name: Some(name.into()),
        session_semaphores: vec![SessionSemaphore {
            name: Some("mutex".into()),
            ..Default::default()
        }],
        ..config(&[])
    };
    world.enable(first, &named("one"));
    world.disable(first);
    assert!(
        world
            .try_enable(second, &named("one"))
            .unwrap_err()
            .contains("one")
    );
    world.enable(second, &named("two"));
}

#[test]
fn while_data_sources_take_their_time_to_stop_nothing_else_comes_of_itself() {
    let mut world = World::new();
    let (producer, consumer) = (world.producer("p"), world.consumer());
    world.register(producer, &slow_to_stop("d"));
    let busy = TraceConfig {
        duration_ms: Some(2000),
        flush_period_ms: Some(100),
        data_source_stop_timeout_ms: Some(60_000),
        incremental_state_config: IncrementalStateConfig {
            clear_period_ms: Some(100),
            ..Default::default()
        }
        .into(),
        builtin_data_sources: BuiltinDataSource {
            snapshot_interval_ms: Some(100),
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    };
    world.enable(consumer, &busy);
    world.disable(consumer);
    world.read(consumer);
    let commands = world.producers[&producer].commands.len();
    world.advance(10_000);
    assert_eq!(world.producers[&producer].commands.len(), commands);
    let packets = world.read(consumer);
    let kinds: Vec<_> = packets.iter().map(|packet| &packet.data).collect();
    assert_eq!(packets.len(), 1, "{kinds:?}");
    assert!(has_event(&packets, |event| {
        matches!(event, EventType::ReadTracingBuffersCompleted(true))
    }));
}

#[test]
fn the_file_of_a_session_that_never_started_says_so() {
    for frees in [false, true] {
        let (mut world, producer, consumer) = World::offering();
        let deferred = TraceConfig {
            deferred_start: Some(true),
            write_into_file: Some(true),
            file_write_period_ms: Some(100),
            ..config(&["d"])
        };
        let session = world.enable(consumer, &deferred);
        world.advance(1000);
        assert!(
            world.files[&session].is_empty(),
            "its periods count from the start"
        );
        let now = world.now;
        if frees {
            world.service.free_buffers(consumer, &now);
        } else {
            world.service.disable_tracing(consumer, &now);
        }
        world.run();
        assert_eq!(world.count(producer, starts), 0);
        assert_eq!(world.closed_files, [session]);
        assert_eq!(world.consumers[&consumer].disabled, [None]);
        let trace = Trace::decode_from_slice(&world.files[&session]).unwrap().packet;
        let has = |kind: fn(&Data) -> bool| trace.iter().filter_map(|packet| packet.data.as_ref()).any(kind);
        assert!(has(|data| matches!(data, Data::TraceConfig(_))));
        assert!(has(|data| matches!(data, Data::ClockSnapshot(_))));
        assert!(has(|data| matches!(data, Data::TraceStats(_))));
        assert!(!has(|data| matches!(data, Data::SynchronizationMarker(_))));
        assert!(has_event(&trace, |event| matches!(
            event,
            EventType::TracingDisabled(true)
        )));
        assert!(!has_event(&trace, |event| matches!(
            event,
            EventType::TracingStarted(true)
        )));
    }
}

/// The session may be read, because its file is closed.
#[test]
fn packets_that_did_not_fit_a_full_file_can_be_read() {
    let (mut world, producer, consumer) = World::offering();
    let limited = TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(200),
        max_file_size_bytes: Some(6000),
        ..config(&["d"])
    };
    let session = world.enable(consumer, &limited);
    let target = world.target(producer);
    let lines: Vec<String> = (0..20).map(|n| format!("{n} {}", "x".repeat(500))).collect();
    for line in &lines {
        world.commit(producer, 1, target, &[&packet(line)]);
    }
    assert!(world.read(consumer).is_empty(), "it streams");
    world.advance(200);
    assert_eq!(world.closed_files, [session]);
    let written = texts(&Trace::decode_from_slice(&world.files[&session]).unwrap().packet);
    assert_eq!(written, lines[..written.len()]);
    // Packets that were on their way to the file when it became full are lost.
    let left = texts(&world.read(consumer));
    assert!(!left.is_empty() && written.len() + left.len() < lines.len());
    assert_eq!(left, lines[lines.len() - left.len()..]);
}

#[test]
fn a_file_that_waits_for_a_trigger_is_written_from_the_start_by_trigger_or_consumer() {
    let (mut world, producer, consumer) = World::offering();
    let config = TraceConfig {
        deferred_start: Some(true),
        write_into_file: Some(true),
        file_write_period_ms: Some(100),
        ..triggered(TriggerMode::START_TRACING, HOUR_MS, 1)
    };
    let session = world.enable(consumer, &config);
    world.start(consumer);
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("before")]);
    world.advance(500);
    assert!(world.files[&session].is_empty());
    world.activate(producer, &["t"]);
    world.advance(100);
    let written = Trace::decode_from_slice(&world.files[&session]).unwrap().packet;
    assert_eq!(texts(&written), ["before"]);
}

/// The commands to producers within a minute, and the kinds of the packets in the file.
fn a_minute_of(config: &TraceConfig) -> (Vec<&'static str>, Vec<String>) {
    let mut world = World::new();
    let (producer, consumer) = (world.producer("p"), world.consumer());
    world.register(producer, &slow_to_stop("d"));
    let session = world.enable(consumer, config);
    for _ in 0..60 {
        world.advance(1000);
        world.acknowledge_flushes(producer);
    }
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    world.advance(5000);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    let packets = Trace::decode_from_slice(&world.files[&session])
        .expect("a whole trace")
        .packet;
    let kinds = packets.iter().map(|packet| {
        let encoded = packet.encode_to_vec();
        let fields = ferretto_wire::Reader::new(&encoded).flatten();
        let numbers: Vec<String> = fields.map(|field| field.number.to_string()).collect();
        numbers.join(" ")
    });
    (commands(&world.producers[&producer], 0), kinds.collect())
}

#[test]
fn zero_and_empty_mean_the_same_as_absent() {
    let absent = TraceConfig {
        write_into_file: Some(true),
        ..config(&["d"])
    };
    let mut zero = TraceConfig {
        duration_ms: Some(0),
        flush_period_ms: Some(0),
        flush_timeout_ms: Some(0),
        data_source_stop_timeout_ms: Some(0),
        file_write_period_ms: Some(0),
        max_file_size_bytes: Some(0),
        output_path: Some(String::new()),
        exclusive_prio: Some(0),
        unique_session_name: Some(String::new()),
        bugreport_filename: Some(String::new()),
        bugreport_score: Some(0),
        trace_uuid_msb: Some(0),
        trace_uuid_lsb: Some(0),
        incremental_state_config: IncrementalStateConfig {
            clear_period_ms: Some(0),
            ..Default::default()
        }
        .into(),
        builtin_data_sources: BuiltinDataSource {
            snapshot_interval_ms: Some(0),
            ..Default::default()
        }
        .into(),
        trigger_config: TriggerConfig {
            trigger_mode: Some(TriggerMode::UNSPECIFIED),
            trigger_timeout_ms: Some(0),
            ..Default::default()
        }
        .into(),
        producers: vec![ProducerConfig {
            producer_name: Some("p".into()),
            shm_size_kb: Some(0),
            page_size_kb: Some(0),
            ..Default::default()
        }],
        ..absent.clone()
    };
    zero.buffers[0].name = Some(String::new());
    let source = &mut zero.data_sources[0];
    source.producer_name_filter.clear();
    let source = source.config.get_or_insert_default();
    source.target_buffer = Some(0);
    source.target_buffer_name = Some(String::new());
    assert_eq!(a_minute_of(&zero), a_minute_of(&absent));
    // An empty name is not a name, so two sessions may have it.
    let mut world = World::new();
    for _ in 0..2 {
        let consumer = world.consumer();
        world.enable(consumer, &zero);
    }
}
