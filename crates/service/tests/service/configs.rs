//! Fields of the trace config that say who may record, for how long, at which priority, and what the service itself
//! writes: each with its effect and without.

use ferretto_proto::messages::priority_boost_config::BoostPolicy;
use ferretto_proto::messages::trace_config::{BuiltinDataSource, SessionSemaphore};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    BuiltinClock, DataSourceDescriptor, Message, PriorityBoostConfig, TraceConfig, TracePacket,
    extension_descriptor, trace_config,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConfigInput, DescriptorEncoding, ExtensionDescriptor,
    Identity, Original, OutputFile, PriorityBoost, StateScope,
};

use crate::world::{Disk, World, config, packet, starts, stops};

fn semaphores(named: &[(&str, u64)]) -> TraceConfig {
    TraceConfig {
        session_semaphores: named
            .iter()
            .map(|(name, max)| SessionSemaphore {
                name: Some((*name).into()),
                max_other_session_count: Some(*max),
                ..Default::default()
            })
            .collect(),
        ..config(&[])
    }
}

fn exclusive(priority: u32) -> TraceConfig {
    TraceConfig {
        exclusive_prio: Some(priority),
        ..config(&[])
    }
}

fn boosted(policy: BoostPolicy, priority: u32) -> TraceConfig {
    TraceConfig {
        priority_boost: PriorityBoostConfig {
            policy: Some(policy),
            priority: Some(priority),
            ..Default::default()
        }
        .into(),
        ..config(&[])
    }
}

fn guarded(name: &str) -> TraceConfig {
    TraceConfig {
        enable_extra_guardrails: Some(true),
        unique_session_name: Some(name.into()),
        ..config(&[])
    }
}

fn builtin(builtin: BuiltinDataSource) -> TraceConfig {
    TraceConfig {
        builtin_data_sources: builtin.into(),
        ..config(&[])
    }
}

/// The trace of a session that starts, stops 100 ms later and is read then.
fn trace_of(world: &mut World, config: &TraceConfig) -> Vec<TracePacket> {
    let consumer = world.consumer();
    world.enable(consumer, config);
    world.advance(100);
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    world.run();
    world.read(consumer)
}

fn count(packets: &[TracePacket], kind: fn(&Data) -> bool) -> usize {
    packets
        .iter()
        .filter_map(|packet| packet.data.as_ref())
        .filter(|data| kind(data))
        .count()
}

#[test]
fn a_semaphore_of_zero_is_a_mutex_between_running_sessions() {
    let mut world = World::new();
    let (first, second) = (world.consumer(), world.consumer());
    let mutex = semaphores(&[("mutex", 0)]);
    world.enable(first, &mutex);
    let error = world.try_enable(second, &mutex).unwrap_err();
    assert!(error.contains("\"mutex\""), "{error}");
    // A session that has ended is out of the way though its consumer still reads it.
    let now = world.now;
    world.service.disable_tracing(first, &now);
    world.run();
    world.enable(second, &mutex);
}

#[test]
fn the_smallest_count_that_any_session_bears_decides() {
    for (running, new) in [(0, 3), (3, 0)] {
        let mut world = World::new();
        let (first, second) = (world.consumer(), world.consumer());
        world.enable(first, &semaphores(&[("s", running)]));
        assert!(world.try_enable(second, &semaphores(&[("s", new)])).is_err());
        world.enable(second, &semaphores(&[("another", new)]));
    }
}

#[test]
fn a_semaphore_admits_as_many_others_as_it_says() {
    let mut world = World::new();
    for uid in 0..4 {
        let consumer = world.consumer_of(uid);
        world.enable(consumer, &semaphores(&[("unrelated", 9), ("s", 3)]));
    }
    let fifth = world.consumer_of(5);
    assert!(world.try_enable(fifth, &semaphores(&[("s", 3)])).is_err());
    assert!(world.try_enable(fifth, &semaphores(&[("s", 9)])).is_err());
    // Who names no semaphore waits for none.
    world.enable(fifth, &config(&[]));
}

/// As many as fit into a request.
#[test]
fn a_config_may_have_many_semaphores() {
    let names: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    let mut world = World::new();
    for _ in 0..3 {
        let consumer = world.consumer();
        world.enable(consumer, &semaphores(&many));
    }
    let consumer = world.consumer();
    let error = world.try_enable(consumer, &semaphores(&many)).unwrap_err();
    assert!(error.contains("3 > min(2, 2)"), "{error}");
}

#[test]
fn an_exclusive_session_turns_others_away() {
    let mut world = World::new();
    let (first, second) = (world.consumer(), world.consumer());
    world.enable(first, &exclusive(5));
    for others in [config(&[]), exclusive(4), exclusive(5)] {
        let error = world.try_enable(second, &others).unwrap_err();
        assert!(error.contains("exclusive_prio 5"), "{error}");
    }
    assert!(world.consumers[&first].disabled.is_empty());
}

#[test]
fn an_exclusive_session_ends_all_others() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let others = [world.consumer_of(1), world.consumer_of(2), world.consumer_of(3)];
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&["d"])
    };
    world.enable(others[0], &config(&["d"]));
    let streamed = world.enable(others[1], &streaming);
    world.enable(others[2], &exclusive(1));
    assert_eq!(world.closed_files, [streamed], "its file is complete");
    for other in &others[..2] {
        let told = &world.consumers[other].disabled;
        assert!(
            matches!(told.as_slice(), [Some(error)] if error.contains("exclusive")),
            "{told:?}"
        );
    }
    assert_eq!(world.count(producer, stops), 2);
    // One of higher priority ends an exclusive one; whoever was ended may begin anew.
    world.enable(others[0], &exclusive(2));
    assert_eq!(world.consumers[&others[2]].disabled.len(), 1);
    let root = world.consumer_of(0);
    assert_eq!(world.state(root, StateScope::Sessions).tracing_sessions.len(), 1);
}

#[test]
fn an_exclusive_session_ends_others_in_whatever_state_they_are() {
    let mut world = World::new();
    let producer = world.producer("p");
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_stop: Some(true),
        ..Default::default()
    };
    world.register(producer, &descriptor);
    let [
        waiting,
        stopping,
        stopped,
        detached,
        snapshots,
        holds_a_clone,
        wants_a_clone,
    ] = [1, 2, 3, 4, 5, 0, 0].map(|uid| world.consumer_of(uid));
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    world.enable(waiting, &deferred);
    world.enable(stopping, &config(&["d"]));
    world.enable(stopped, &config(&[]));
    let now = world.now;
    for consumer in [stopping, stopped] {
        world.service.disable_tracing(consumer, &now);
    }
    world.enable(detached, &config(&["d"]));
    world.service.detach(detached, "key").unwrap();
    let original = world.enable(snapshots, &config(&["d"]));
    let request = CloneRequest {
        original: Original::Id(original.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    };
    world.try_clone(holds_a_clone, request.clone()).unwrap();
    world.acknowledge_flushes(producer);
    assert!(world.cloned(holds_a_clone).unwrap().is_ok());
    world.try_clone(wants_a_clone, request).unwrap();

    let exclusive_one = world.consumer_of(6);
    let only = world.enable(exclusive_one, &exclusive(1));
    let root = world.consumer_of(0);
    let left = world.state(root, StateScope::Sessions).tracing_sessions;
    assert_eq!(
        left.iter().map(|session| session.id).collect::<Vec<_>>(),
        [Some(only.0)]
    );
    for consumer in [waiting, stopping, snapshots] {
        let told = &world.consumers[&consumer].disabled;
        assert!(
            matches!(told.as_slice(), [Some(error)] if error.contains("exclusive")),
            "{told:?}"
        );
    }
    // These were told of their end before, or there is nothing to be told of.
    assert_eq!(world.consumers[&stopped].disabled, [None]);
    for consumer in [detached, holds_a_clone, wants_a_clone] {
        assert!(world.consumers[&consumer].disabled.is_empty());
    }
    assert!(world.cloned(wants_a_clone).unwrap().is_err());
    assert!(world.service.attach(detached, "key").is_err());
    assert_eq!(
        world.count(producer, stops),
        4,
        "once for each instance, whether or not it was waited for"
    );
    world.lose_consumer(exclusive_one);
    for consumer in [waiting, stopping, stopped, detached, snapshots, holds_a_clone] {
        assert!(world.read(consumer).is_empty());
        world.enable(consumer, &config(&["d"]));
    }
}

#[test]
fn a_refused_exclusive_session_ends_nobody() {
    let mut world = World::new();
    let (first, second) = (world.consumer(), world.consumer());
    world.enable(first, &config(&[]));
    let mut impossible = exclusive(1);
    impossible.buffers[0].size_kb = None;
    world.try_enable(second, &impossible).unwrap_err();
    assert!(world.consumers[&first].disabled.is_empty());
}

#[test]
fn an_exclusive_session_needs_no_room_beside_those_it_ends() {
    let mut world = World::new();
    for _ in 0..ferretto_service::limits::MAX_SESSIONS_PER_UID {
        let consumer = world.consumer();
        world.enable(consumer, &config(&[]));
    }
    let consumer = world.consumer();
    world.try_enable(consumer, &config(&[])).unwrap_err();
    world.enable(consumer, &exclusive(1));
}

#[test]
fn the_highest_boost_counts_and_is_taken_back() {
    use PriorityBoost::{Fifo, Other};
    let mut world = World::new();
    let consumers = [world.consumer(), world.consumer(), world.consumer()];
    world.enable(consumers[0], &boosted(BoostPolicy::POLICY_SCHED_OTHER, 20));
    world.enable(consumers[1], &boosted(BoostPolicy::POLICY_SCHED_FIFO, 1));
    world.enable(consumers[2], &boosted(BoostPolicy::POLICY_SCHED_OTHER, 3));
    let now = world.now;
    for consumer in [1, 0, 2] {
        world.service.free_buffers(consumers[consumer], &now);
        world.run();
    }
    assert_eq!(
        world.boosts,
        [
            Some(Other(20)),
            Some(Fifo(1)),
            Some(Other(20)),
            Some(Other(3)),
            None
        ]
    );
}

#[test]
fn a_session_that_was_freed_keeps_no_boost_while_its_file_is_completed() {
    let mut world = World::new();
    world.disk = Disk::Slow;
    let consumer = world.consumer();
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..boosted(BoostPolicy::POLICY_SCHED_OTHER, 1)
    };
    world.enable(consumer, &streaming);
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    world.run();
    assert_eq!(world.boosts, [Some(PriorityBoost::Other(1)), None]);
    assert!(world.closed_files.is_empty(), "it is still being written");
}

#[test]
fn boosts_that_cannot_be_are_refused() {
    use BoostPolicy::{POLICY_SCHED_FIFO, POLICY_SCHED_OTHER, POLICY_UNSPECIFIED};
    for (policy, priority, good) in [
        (POLICY_SCHED_OTHER, 0, true),
        (POLICY_SCHED_OTHER, 20, true),
        (POLICY_SCHED_OTHER, 21, false),
        (POLICY_SCHED_FIFO, 0, false),
        (POLICY_SCHED_FIFO, 1, true),
        (POLICY_SCHED_FIFO, 99, true),
        (POLICY_SCHED_FIFO, 100, false),
        (POLICY_UNSPECIFIED, 1, false),
    ] {
        let mut world = World::new();
        let consumer = world.consumer();
        let result = world.try_enable(consumer, &boosted(policy, priority));
        assert_eq!(result.is_ok(), good, "{policy:?} {priority}: {result:?}");
    }
}

#[test]
fn a_session_whose_boost_is_not_permitted_does_not_run() {
    let mut world = World::new();
    world.may_boost = false;
    let consumer = world.consumer();
    world.enable(consumer, &boosted(BoostPolicy::POLICY_SCHED_FIFO, 1));
    let told = &world.consumers[&consumer].disabled;
    assert!(
        matches!(told.as_slice(), [Some(error)] if error.contains("not permitted")),
        "{told:?}"
    );
    assert_eq!(world.service.buffer_bytes(), 0);
    // And the consumer can try without.
    world.enable(consumer, &config(&[]));
}

#[test]
fn a_boost_that_was_in_anothers_shadow_is_given_up_if_it_is_not_permitted() {
    let mut world = World::new();
    let (high, low) = (world.consumer(), world.consumer());
    world.enable(high, &boosted(BoostPolicy::POLICY_SCHED_FIFO, 9));
    world.enable(low, &boosted(BoostPolicy::POLICY_SCHED_FIFO, 1));
    world.may_boost = false;
    let now = world.now;
    world.service.free_buffers(high, &now);
    world.run();
    assert!(world.consumers[&low].disabled.is_empty(), "it goes on without");
}

#[test]
fn guardrails_bound_the_duration() {
    let day = 24 * 3600 * 1000;
    let mut world = World::new();
    let consumer = world.consumer();
    let lasting = |ms| TraceConfig {
        duration_ms: Some(ms),
        ..guarded("s")
    };
    assert!(
        world
            .try_enable(consumer, &lasting(day + 1))
            .unwrap_err()
            .contains("24 hours")
    );
    world.enable(consumer, &lasting(day));
}

#[test]
fn guardrails_bound_the_buffers_unless_overridden() {
    let mut world = World::new();
    let consumer = world.consumer();
    let sized = |kb: [u32; 2], overridden: Option<u32>| TraceConfig {
        buffers: kb
            .map(|kb| trace_config::BufferConfig {
                size_kb: Some(kb),
                ..Default::default()
            })
            .to_vec(),
        guardrail_overrides: trace_config::GuardrailOverrides {
            max_tracing_buffer_size_kb: overridden,
            ..Default::default()
        }
        .into(),
        ..guarded("s")
    };
    let half = 64 * 1024;
    let refusal = |world: &mut World, config| world.try_enable(consumer, &config).unwrap_err();
    assert!(refusal(&mut world, sized([4, 6], None)).contains("multiple of 4"));
    assert!(refusal(&mut world, sized([half, half + 4], None)).contains("131076 KB"));
    assert!(refusal(&mut world, sized([half, half + 8], Some(2 * half + 4))).contains("131080 KB"));
    // An override below the usual limit lowers nothing.
    assert!(refusal(&mut world, sized([half, half + 4], Some(4))).contains("is 131072 KB"));
    world.enable(consumer, &sized([half, half], None));
    let another = world.consumer();
    let larger = TraceConfig {
        unique_session_name: Some("another".into()),
        ..sized([half, half + 4], Some(2 * half + 4))
    };
    world.enable(another, &larger);
}

#[test]
fn guardrails_and_a_deferred_start_exclude_each_other() {
    let mut world = World::new();
    let consumer = world.consumer();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..guarded("s")
    };
    assert!(
        world
            .try_enable(consumer, &deferred)
            .unwrap_err()
            .contains("deferred_start")
    );
}

#[test]
fn guardrails_keep_sessions_of_one_name_minutes_apart() {
    let mut world = World::new();
    let start = |world: &mut World, name: &str| {
        let consumer = world.consumer();
        let result = world.try_enable(consumer, &guarded(name)).map(drop);
        world.lose_consumer(consumer);
        result
    };
    start(&mut world, "one").unwrap();
    start(&mut world, "two").unwrap();
    start(&mut world, "").unwrap();
    start(&mut world, "").unwrap_err();
    world.advance(300_000);
    assert!(start(&mut world, "one").unwrap_err().contains("300 s ago"));
    // Without guardrails the name is free.
    let consumer = world.consumer();
    let unguarded = TraceConfig {
        enable_extra_guardrails: None,
        ..guarded("one")
    };
    world.enable(consumer, &unguarded);
    world.lose_consumer(consumer);
    // Time asleep counts.
    world.suspend(1000);
    start(&mut world, "one").unwrap();
}

#[test]
fn a_duration_counts_time_asleep_only_if_that_is_asked_for() {
    for (suspend_clock, ended) in [(false, 0), (true, 1)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let lasting = TraceConfig {
            duration_ms: Some(10_000),
            prefer_suspend_clock_for_duration: Some(suspend_clock),
            ..config(&[])
        };
        world.enable(consumer, &lasting);
        world.advance(1_000);
        world.suspend(9_000);
        assert_eq!(
            world.consumers[&consumer].disabled.len(),
            ended,
            "{suspend_clock}"
        );
        world.advance(8_999);
        assert_eq!(world.consumers[&consumer].disabled.len(), ended);
        world.advance(1);
        assert_eq!(world.consumers[&consumer].disabled.len(), 1);
    }
}

#[test]
fn snapshots_are_taken_after_a_sleep_only_if_that_is_asked_for() {
    for (suspend_clock, markers) in [(false, 0), (true, 1)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let with_interval = builtin(BuiltinDataSource {
            snapshot_interval_ms: Some(60_000),
            prefer_suspend_clock_for_snapshot: Some(suspend_clock),
            ..Default::default()
        });
        world.enable(consumer, &with_interval);
        world.read(consumer);
        world.suspend(60_000);
        let packets = world.read(consumer);
        let is_marker = |data: &Data| matches!(data, Data::SynchronizationMarker(_));
        assert_eq!(count(&packets, is_marker), markers, "{suspend_clock}");
    }
}

#[test]
fn snapshots_come_at_their_interval() {
    for (interval, expected) in [(None, 3), (Some(1_000), 30), (Some(15_000), 2)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let with_interval = builtin(BuiltinDataSource {
            snapshot_interval_ms: interval,
            ..Default::default()
        });
        world.enable(consumer, &with_interval);
        world.read(consumer);
        let mut clocks = 0;
        let mut markers = 0;
        for _ in 0..300 {
            world.advance(100);
            let packets = world.read(consumer);
            clocks += count(&packets, |data| matches!(data, Data::ClockSnapshot(_)));
            markers += count(&packets, |data| matches!(data, Data::SynchronizationMarker(_)));
        }
        assert_eq!((clocks, markers), (expected, expected), "{interval:?}");
    }
}

#[test]
fn each_switch_of_the_builtin_data_sources_switches_off_its_own_packets() {
    type Switch = fn(&mut BuiltinDataSource);
    let switches: [(&str, Switch); 5] = [
        ("clocks", |builtin| {
            builtin.disable_clock_snapshotting = Some(true)
        }),
        ("config", |builtin| builtin.disable_trace_config = Some(true)),
        ("system info", |builtin| builtin.disable_system_info = Some(true)),
        ("service events", |builtin| {
            builtin.disable_service_events = Some(true)
        }),
        ("extension descriptors", |builtin| {
            builtin.disable_extension_descriptors = Some(true);
        }),
    ];
    let identity = Identity {
        extension_descriptors: vec![ExtensionDescriptor {
            name: "vendor.gz".into(),
            bytes: vec![0x1f, 0x8b],
            encoding: DescriptorEncoding::Gzip,
        }],
        ..Default::default()
    };
    let kinds = |config: &TraceConfig| {
        let mut world = World::with_identity(identity.clone());
        let packets = trace_of(&mut world, config);
        let kinds = packets.iter().filter_map(|packet| match packet.data.as_ref()? {
            Data::ClockSnapshot(_) => Some("clocks"),
            Data::TraceConfig(_) => Some("config"),
            Data::SystemInfo(_) => Some("system info"),
            Data::ServiceEvent(_) => Some("service events"),
            Data::ExtensionDescriptor(_) => Some("extension descriptors"),
            _ => None,
        });
        kinds.collect::<std::collections::BTreeSet<_>>()
    };
    let all = kinds(&config(&[]));
    assert_eq!(all.len(), switches.len());
    for (name, switch) in switches {
        let mut switched = BuiltinDataSource::default();
        switch(&mut switched);
        let mut expected = all.clone();
        expected.remove(name);
        assert_eq!(kinds(&builtin(switched)), expected, "without {name}");
    }
}

#[test]
fn extension_descriptors_go_into_each_trace_once_and_as_they_are() {
    let plain = vec![0x0a, 0x02, 0x0a, 0x00];
    let gzip = vec![0x1f, 0x8b, 0x08, 0xff];
    let mut world = World::with_identity(Identity {
        extension_descriptors: vec![
            ExtensionDescriptor {
                name: "plain".into(),
                bytes: plain.clone(),
                encoding: DescriptorEncoding::Plain,
            },
            ExtensionDescriptor {
                name: String::new(),
                bytes: gzip.clone(),
                encoding: DescriptorEncoding::Gzip,
            },
        ],
        ..Default::default()
    });
    let packets = trace_of(&mut world, &config(&[]));
    let descriptors: Vec<_> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ExtensionDescriptor(descriptor)) => Some(descriptor),
            _ => None,
        })
        .collect();
    assert_eq!(descriptors.len(), 2);
    assert_eq!(descriptors[0].file_name.as_deref(), Some("plain"));
    // Our schema has no descriptors of descriptors; the field is kept as one that is not known.
    const EXTENSION_SET: u32 = 1;
    let encoded = descriptors[0].encode_to_vec();
    let set = ferretto_wire::Reader::new(&encoded)
        .flatten()
        .find(|field| field.number == EXTENSION_SET)
        .and_then(|field| field.value.as_bytes().map(<[u8]>::to_vec));
    assert_eq!(set, Some(plain));
    assert_eq!(descriptors[1].file_name, None);
    assert!(matches!(
        &descriptors[1].descriptor,
        Some(extension_descriptor::Descriptor::ExtensionSetGzip(bytes)) if *bytes == gzip
    ));
}

#[test]
fn the_primary_clock_is_the_one_of_the_config_else_boot_time() {
    for (wanted, expected) in [
        (None, BuiltinClock::BUILTIN_CLOCK_BOOTTIME),
        (
            Some(BuiltinClock::BUILTIN_CLOCK_UNKNOWN),
            BuiltinClock::BUILTIN_CLOCK_BOOTTIME,
        ),
        (
            Some(BuiltinClock::BUILTIN_CLOCK_MONOTONIC),
            BuiltinClock::BUILTIN_CLOCK_MONOTONIC,
        ),
    ] {
        let packets = trace_of(
            &mut World::new(),
            &builtin(BuiltinDataSource {
                primary_trace_clock: wanted,
                ..Default::default()
            }),
        );
        let clocks: Vec<_> = packets
            .iter()
            .filter_map(|packet| match &packet.data {
                Some(Data::ClockSnapshot(snapshot)) => Some(snapshot.primary_trace_clock),
                _ => None,
            })
            .collect();
        assert!(!clocks.is_empty());
        assert!(clocks.iter().all(|clock| *clock == Some(expected)), "{clocks:?}");
    }
}

#[test]
fn histograms_of_chunks_are_left_out_where_they_are_disabled() {
    for (disabled, expected) in [(None, 1), (Some(true), 0)] {
        let mut world = World::new();
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        let mut quiet = config(&["d"]);
        quiet
            .builtin_data_sources
            .get_or_insert_default()
            .disable_chunk_usage_histograms = disabled;
        world.enable(consumer, &quiet);
        let target = world.target(producer);
        world.commit(producer, 1, target, &[&packet("x")]);
        let packets = world.read(consumer);
        let in_trace = packets.iter().find_map(|packet| match &packet.data {
            Some(Data::TraceStats(stats)) => Some(stats.writer_stats.len()),
            _ => None,
        });
        assert_eq!(in_trace, Some(expected));
        let asked = world.service.trace_stats(consumer).unwrap();
        assert_eq!(asked.writer_stats.len(), expected);
        assert_eq!(asked.chunk_payload_histogram_def.is_empty(), disabled.is_some());
    }
}

#[test]
fn a_machine_is_known_as_host_and_by_its_name() {
    for (names, started) in [
        (&["host"][..], 1),
        (&["other", "here"], 1),
        (&["other"], 0),
        (&["HOST"], 0),
        (&[], 1),
    ] {
        let mut world = World::with_identity(Identity {
            machine_name: "here".into(),
            ..Default::default()
        });
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        let mut filtered = config(&["d"]);
        filtered.data_sources[0].machine_name_filter = names.iter().map(|name| (*name).into()).collect();
        world.enable(consumer, &filtered);
        assert_eq!(world.count(producer, starts), started, "{names:?}");
    }
}

#[test]
fn what_the_service_does_not_do_is_refused_with_a_reason() {
    let mut world = World::new();
    let consumer = world.consumer();
    let persistent = TraceConfig {
        persist_trace_across_reboots: Some(true),
        ..config(&[])
    };
    let error = world.try_enable(consumer, &persistent).unwrap_err();
    assert!(error.contains("persist_trace_across_reboots"), "{error}");
}

#[test]
fn a_file_is_either_passed_or_named() {
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    for (file, error) in [(OutputFile::None, "neither"), (OutputFile::Both, "both")] {
        let mut world = World::new();
        let consumer = world.consumer();
        let input = ConfigInput {
            config: streaming.clone(),
            bytes: streaming.encode_to_vec().into(),
        };
        let now = world.now;
        let refused = world
            .service
            .enable_tracing(consumer, input, &file, 0, &now)
            .unwrap_err();
        assert!(
            refused.contains(error) || refused.contains("has neither"),
            "{refused}"
        );
    }
}

#[test]
fn a_flush_period_that_does_nothing_is_pointed_out() {
    use trace_config::WriteFlushMode::{WRITE_FLUSH_AUTO, WRITE_FLUSH_DISABLED, WRITE_FLUSH_ENABLED};
    for (into_file, mode, told) in [
        (false, None, false),
        (true, None, true),
        (true, Some(WRITE_FLUSH_AUTO), true),
        (true, Some(WRITE_FLUSH_ENABLED), true),
        (true, Some(WRITE_FLUSH_DISABLED), false),
    ] {
        let mut world = World::new();
        let consumer = world.consumer();
        let flushing = TraceConfig {
            write_into_file: Some(into_file),
            write_flush_mode: mode,
            flush_period_ms: Some(1000),
            ..config(&[])
        };
        world.enable(consumer, &flushing);
        let line = world.log.iter().any(|line| line.contains("flush_period_ms"));
        assert_eq!(line, told, "{into_file} {mode:?}");
    }
}

#[test]
fn what_only_android_or_the_command_line_heed_is_carried_into_the_trace() {
    use trace_config::{
        AndroidReportConfig, CmdTraceStartDelay, IncidentReportConfig, StatsdLogging, StatsdMetadata,
    };
    let mut carried = TraceConfig {
        statsd_metadata: StatsdMetadata {
            triggering_alert_id: Some(1),
            ..Default::default()
        }
        .into(),
        statsd_logging: Some(StatsdLogging::STATSD_LOGGING_ENABLED),
        notify_traceur: Some(true),
        bugreport_score: Some(10),
        allow_user_build_tracing: Some(true),
        incident_report_config: IncidentReportConfig {
            destination_package: Some("p".into()),
            ..Default::default()
        }
        .into(),
        android_report_config: AndroidReportConfig {
            skip_report: Some(true),
            ..Default::default()
        }
        .into(),
        cmd_trace_start_delay: CmdTraceStartDelay {
            min_delay_ms: Some(1),
            max_delay_ms: Some(2),
            ..Default::default()
        }
        .into(),
        activate_triggers: vec!["t".into()],
        trace_all_machines: Some(true),
        experimental_trace_buffer_v2_compaction: Some(true),
        ..config(&[])
    };
    carried.trace_attributes.get_or_insert_default();
    carried.buffers[0].experimental_mode =
        Some(trace_config::buffer_config::ExperimentalMode::TRACE_BUFFER_V2);
    let packets = trace_of(&mut World::new(), &carried);
    let in_trace = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::TraceConfig(config)) => Some(config.as_ref()),
        _ => None,
    });
    assert_eq!(in_trace, Some(&carried));
    let nothing_else = trace_of(&mut World::new(), &config(&[]));
    assert_eq!(packets.len(), nothing_else.len(), "and has no other effect");
}
