//! Fields of the trace config that decide which sessions may run at the same time, within which bounds, and at which priority: semaphores,
//! exclusive sessions, boosts and guardrails.

use ferretto_proto::messages::priority_boost_config::BoostPolicy;
use ferretto_proto::messages::trace_config::SessionSemaphore;
use ferretto_proto::messages::{PriorityBoostConfig, TraceConfig, trace_config};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, Original, PriorityBoost, StateScope,
};

use crate::world::{Disk, World, config, stops};

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

#[test]
fn a_semaphore_of_zero_is_a_mutex_between_running_sessions() {
    let mut world = World::new();
    let (first, second) = (world.consumer(), world.consumer());
    let mutex = semaphores(&[("mutex", 0)]);
    world.enable(first, &mutex);
    let error = world.try_enable(second, &mutex).unwrap_err();
    assert!(error.contains("\"mutex\""), "{error}");
    // A session that has ended holds no semaphore, even while its consumer still reads it.
    world.disable(first);
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
    // A session without a semaphore waits for none.
    world.enable(fifth, &config(&[]));
}

/// As many semaphores as fit into a request.
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
    // A session of higher priority ends an exclusive one; the owner of the ended session may begin anew.
    world.enable(others[0], &exclusive(2));
    assert_eq!(world.consumers[&others[2]].disabled.len(), 1);
    let root = world.consumer_of(0);
    assert_eq!(world.state(root, StateScope::Sessions).tracing_sessions.len(), 1);
}

#[test]
fn an_exclusive_session_ends_others_in_any_state() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
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
    // These consumers heard of their end before, or have no session that could end.
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
fn the_owner_of_an_ended_session_may_begin_anew_while_the_file_is_being_completed() {
    let mut world = World::new();
    world.disk = Disk::Slow;
    let (ended, other) = (world.consumer_of(1), world.consumer_of(2));
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let streamed = world.enable(ended, &streaming);
    world.enable(other, &exclusive(1));
    assert!(world.closed_files.is_empty(), "it is still being written");
    let anew = world.enable(ended, &exclusive(2));
    world.disk_catches_up();
    world.disk_catches_up();
    assert_eq!(world.closed_files, [streamed]);
    // When the file is complete, the old session ends. The session that came after it goes on.
    let left = world.state(ended, StateScope::Sessions).tracing_sessions;
    let left: Vec<_> = left.iter().map(|session| session.id).collect();
    assert_eq!(left, [Some(anew.0)]);
    assert!(!world.read(ended).is_empty());
}

#[test]
fn a_refused_exclusive_session_ends_no_other() {
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
    world.free(consumer);
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
    // The consumer can try again without a boost.
    world.enable(consumer, &config(&[]));
}

#[test]
fn a_boost_that_was_in_anothers_shadow_is_given_up_if_it_is_not_permitted() {
    let mut world = World::new();
    let (high, low) = (world.consumer(), world.consumer());
    world.enable(high, &boosted(BoostPolicy::POLICY_SCHED_FIFO, 9));
    world.enable(low, &boosted(BoostPolicy::POLICY_SCHED_FIFO, 1));
    world.may_boost = false;
    world.free(high);
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
