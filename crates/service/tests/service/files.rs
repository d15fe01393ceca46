//! Sessions that stream into a file.

use buffa::Message;
use ferretto_proto::messages::{Trace, TraceConfig, trace_config, trace_packet};

use crate::world::{World, config, flushes, packet, stops, texts};

fn into_file(sources: &[&str]) -> TraceConfig {
    TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(200),
        ..config(sources)
    }
}

fn parse(file: &[u8]) -> Vec<ferretto_proto::messages::TracePacket> {
    Trace::decode_from_slice(file).expect("a trace file").packet
}

#[test]
fn data_reaches_the_file_at_every_period() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let session = world.enable(consumer, &into_file(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("first")]);
    assert!(world.files[&session].is_empty());
    world.advance(200);
    assert_eq!(texts(&parse(&world.files[&session])), ["first"]);
    world.commit(producer, 1, target, &[&packet("second")]);
    world.advance(200);
    assert_eq!(texts(&parse(&world.files[&session])), ["first", "second"]);
}

#[test]
fn the_consumer_is_told_of_the_end_when_the_file_is_complete() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let session = world.enable(
        consumer,
        &TraceConfig {
            duration_ms: Some(50),
            ..into_file(&["d"])
        },
    );
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("x")]);
    world.advance(50);
    world.acknowledge_flushes(producer);
    assert_eq!(world.closed_files, [session]);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    let packets = parse(&world.files[&session]);
    assert_eq!(texts(&packets), ["x"]);
    assert!(
        packets
            .iter()
            .any(|packet| matches!(packet.data, Some(trace_packet::Data::TraceStats(_))))
    );
}

#[test]
fn a_file_at_its_limit_ends_the_session_and_holds_whole_packets_only() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let limit = 6000;
    let session = world.enable(
        consumer,
        &TraceConfig {
            max_file_size_bytes: Some(limit),
            ..into_file(&["d"])
        },
    );
    let target = world.target(producer);
    for n in 0..20 {
        world.commit(
            producer,
            1,
            target,
            &[&packet(&format!("{n} {}", "x".repeat(500)))],
        );
    }
    world.advance(200);
    assert_eq!(world.count(producer, stops), 1);
    let file = &world.files[&session];
    assert!(file.len() as u64 <= limit && file.len() > 4000, "{}", file.len());
    let kept = texts(&parse(file));
    for (n, text) in kept.iter().enumerate() {
        assert!(text.starts_with(&format!("{n} ")));
    }
    assert_eq!(world.consumers[&consumer].disabled, [None]);
}

#[test]
fn a_full_disk_ends_the_session_with_a_reason() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &into_file(&["d"]));
    world.disk_full = true;
    world.advance(200);
    let told = world.consumers[&consumer].disabled.clone();
    assert!(
        matches!(&told[..], [Some(error)] if error.contains("no space left")),
        "{told:?}"
    );
}

#[test]
fn a_consumer_that_goes_away_leaves_a_complete_file() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let session = world.enable(consumer, &into_file(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("kept")]);
    let now = world.now;
    world.service.disconnect_consumer(consumer, &now);
    world.run();
    assert_eq!(texts(&parse(&world.files[&session])), ["kept"]);
    assert_eq!(world.closed_files, [session]);
    assert_eq!(world.service.buffer_bytes(), 0);
}

#[test]
fn a_session_that_streams_cannot_be_read() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &into_file(&[]));
    let now = world.now;
    assert!(world.service.read_buffers(consumer, 1000, &now).is_none());
}

#[test]
fn how_producers_are_flushed_follows_the_write_period() {
    let cases = [
        // (write period, mode, flush period) and flushes asked for within 20 s
        ((1000, None, None), 4),
        ((1000, None, Some(1000)), 4),
        ((8000, None, None), 2),
        (
            (
                1000,
                Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
                None,
            ),
            0,
        ),
        (
            (
                1000,
                Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
                Some(2000),
            ),
            9,
        ),
        (
            (
                4000,
                Some(trace_config::WriteFlushMode::WRITE_FLUSH_ENABLED),
                None,
            ),
            4,
        ),
    ];
    for ((write_period, mode, flush_period), expected) in cases {
        let mut world = World::new();
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        world.enable(
            consumer,
            &TraceConfig {
                file_write_period_ms: Some(write_period),
                write_flush_mode: mode,
                flush_period_ms: flush_period,
                ..into_file(&["d"])
            },
        );
        for _ in 0..190 {
            world.advance(100);
            world.acknowledge_flushes(producer);
        }
        let asked = world.count(producer, flushes);
        assert!(
            asked.abs_diff(expected) <= 1,
            "{write_period} {mode:?} {flush_period:?}: {asked}"
        );
    }
}

#[test]
fn files_are_synced_after_each_write_if_the_config_says_so() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(
        consumer,
        &TraceConfig {
            fflush_post_write: Some(trace_config::FFlushMode::FFLUSH_ENABLED),
            ..into_file(&[])
        },
    );
    world.advance(600);
    assert_eq!(world.syncs, 3);
}
