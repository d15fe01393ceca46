//! A service that is told to end: the recordings of its sessions can still be read.

use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{TraceConfig, TracePacket};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConsumerId, FlushOutcome, Original, ProducerId,
};

use crate::world::{World, config, flushes, packet, packets_of, stops, texts};

/// A world with one session, and one producer in it, which has committed a packet.
fn recording(config: &TraceConfig) -> (World, ProducerId, ConsumerId) {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, config);
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("before")]);
    (world, producer, consumer)
}

fn begin_ending(world: &mut World) {
    let now = world.now;
    world.service.begin_ending(&now);
    world.run();
}

fn end(world: &mut World) {
    let now = world.now;
    world.service.end_all_sessions(&now);
    world.run();
}

/// The time at which the service was told to end, according to the trace.
fn marks(packets: &[TracePacket]) -> Vec<u64> {
    let ended = packets.iter().filter(|packet| match &packet.data {
        Some(Data::ServiceEvent(event)) => event.event_type == Some(EventType::ServiceEnded(true)),
        _ => false,
    });
    ended
        .map(|packet| packet.timestamp.expect("it has a time"))
        .collect()
}

#[test]
fn a_session_that_recorded_says_once_that_the_service_ended_it() {
    let (mut world, producer, consumer) = recording(&config(&["d"]));
    world.advance(300);
    let told = world.now.boot;
    begin_ending(&mut world);
    world.advance(10);
    begin_ending(&mut world);
    world.acknowledge_flushes(producer);
    assert_eq!(marks(&world.read(consumer)), [told]);
}

#[test]
fn a_session_that_was_stopped_or_did_not_record_was_not_ended_by_the_service() {
    for stopped_before in [true, false] {
        let (mut world, producer, consumer) = recording(&config(&["d"]));
        let now = world.now;
        if stopped_before {
            world.service.disable_tracing(consumer, &now);
            world.run();
        }
        begin_ending(&mut world);
        world.acknowledge_flushes(producer);
        let expected: &[u64] = if stopped_before { &[] } else { &[now.boot] };
        assert_eq!(marks(&world.read(consumer)), expected);
    }
    let timed = TraceConfig {
        duration_ms: Some(10),
        ..config(&["d"])
    };
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    for config in [timed, deferred] {
        let (mut world, producer, consumer) = recording(&config);
        // At that time the first session waits for its last flush, and the other one for its start.
        world.advance(10);
        begin_ending(&mut world);
        world.acknowledge_flushes(producer);
        assert_eq!(marks(&world.read(consumer)), []);
    }
}

#[test]
fn a_clone_was_not_ended_by_the_service_though_its_original_was() {
    for had_begun in [true, false] {
        let (mut world, producer, consumer) = recording(&config(&["d"]));
        let reader = world.consumer();
        let request = CloneRequest {
            original: Original::Id(1),
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: CloneFile::None,
        };
        world.try_clone(reader, request).expect("a clone begins");
        // The clone is complete before the end begins, or waits for its flush until then.
        if !had_begun {
            world.acknowledge_flushes(producer);
        }
        begin_ending(&mut world);
        world.acknowledge_flushes(producer);
        let clone = world.read(reader);
        assert_eq!(texts(&clone), ["before"]);
        assert_eq!(marks(&clone), []);
        assert_eq!(marks(&world.read(consumer)).len(), 1);
    }
}

#[test]
fn sessions_are_flushed_and_stopped_and_their_consumers_read_them() {
    let (mut world, producer, consumer) = recording(&config(&["d"]));
    begin_ending(&mut world);
    assert_eq!(world.count(producer, flushes), 1);
    assert_eq!(world.count(producer, stops), 0, "first what it holds");
    assert!(world.service.has_running_sessions());
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("held back")]);
    world.acknowledge_flushes(producer);
    assert_eq!(world.count(producer, stops), 1);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert!(!world.service.has_running_sessions() && world.service.has_sessions());
    assert_eq!(texts(&world.read(consumer)), ["before", "held back"]);
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    assert!(!world.service.has_sessions());
}

#[test]
fn an_ending_service_waits_for_slow_producers_no_longer_than_otherwise() {
    let (mut world, _, consumer) = recording(&config(&["d"]));
    begin_ending(&mut world);
    world.advance(4999);
    assert!(world.consumers[&consumer].disabled.is_empty());
    world.advance(1);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert_eq!(texts(&world.read(consumer)), ["before"]);
}

#[test]
fn no_session_begins_any_more() {
    let (mut world, _, _) = recording(&config(&["d"]));
    let original = Original::Id(1);
    begin_ending(&mut world);
    let late = world.consumer();
    let error = world.try_enable(late, &config(&["d"])).unwrap_err();
    assert!(error.contains("ending"), "{error}");
    let request = CloneRequest {
        original,
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    };
    let error = world.try_clone(late, request).unwrap_err();
    assert!(error.contains("ending"), "{error}");
}

#[test]
fn a_flush_is_answered_whenever_it_is_asked_for() {
    let (mut world, producer, consumer) = recording(&config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    begin_ending(&mut world);
    world.acknowledge_flushes(producer);
    // The session is over, and everything was flushed.
    world.service.flush(consumer, 2, 0, 0, &now);
    world.run();
    let succeeded = |token| (token, FlushOutcome::Succeeded);
    assert_eq!(world.consumers[&consumer].flushes, [succeeded(1), succeeded(2)]);
}

#[test]
fn a_flush_after_the_end_fails_if_the_last_one_did() {
    let (mut world, _, consumer) = recording(&config(&["d"]));
    begin_ending(&mut world);
    world.advance(5000);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    world.flush(consumer, 1, 0);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Failed)]);
}

#[test]
fn a_flush_that_the_end_cuts_short_is_not_called_failed() {
    for is_announced in [true, false] {
        let (mut world, _, consumer) = recording(&config(&["d"]));
        let now = world.now;
        world.service.flush(consumer, 1, 0, 0, &now);
        if is_announced {
            begin_ending(&mut world);
        }
        end(&mut world);
        assert!(
            world.consumers[&consumer].flushes.is_empty(),
            "its connection ends"
        );
    }
}

#[test]
fn a_session_that_has_not_started_is_over() {
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    for is_attached in [true, false] {
        let (mut world, producer, consumer) = recording(&deferred);
        if !is_attached {
            world.service.detach(consumer, "key").unwrap();
        }
        begin_ending(&mut world);
        assert_eq!(world.count(producer, flushes), 0);
        assert_eq!(
            world.consumers[&consumer].disabled,
            vec![None; usize::from(is_attached)]
        );
        assert_eq!(world.service.has_sessions(), is_attached, "somebody can read it");
    }
}

#[test]
fn a_detached_session_has_its_file_completed() {
    for streams in [true, false] {
        let streaming = TraceConfig {
            write_into_file: streams.then_some(true),
            ..config(&["d"])
        };
        let (mut world, producer, consumer) = recording(&streaming);
        world.service.detach(consumer, "key").unwrap();
        begin_ending(&mut world);
        let target = world.target(producer);
        world.commit(producer, 1, target, &[&packet("held back")]);
        world.acknowledge_flushes(producer);
        assert!(!world.service.has_sessions());
        if let Some(file) = world.files.values().next() {
            let packets = packets_of(file).into_iter();
            let packets: Vec<_> = packets
                .map(|packet| {
                    ferretto_proto::messages::Message::decode_from_slice(&packet).expect("a packet")
                })
                .collect();
            assert_eq!(texts(&packets), ["before", "held back"]);
        }
    }
}

#[test]
fn a_session_that_is_ending_anyway_ends_once() {
    let timed = TraceConfig {
        duration_ms: Some(10),
        ..config(&["d"])
    };
    let (mut world, producer, consumer) = recording(&timed);
    world.advance(10);
    begin_ending(&mut world);
    assert_eq!(world.count(producer, flushes), 1);
    world.acknowledge_flushes(producer);
    begin_ending(&mut world);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert_eq!(world.count(producer, flushes), 1);
}
