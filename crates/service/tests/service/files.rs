//! Sessions that stream into a file.

use ferretto_proto::messages::{Message, Trace, TraceConfig, trace_config, trace_packet};
use ferretto_service::{ConfigInput, Output, OutputFile, ReadCall};

use crate::world::{Disk, World, config, flushes, packet, stops, texts};

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
    let (mut world, producer, consumer) = World::offering();
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
fn the_consumer_learns_of_the_end_when_the_file_is_complete() {
    let (mut world, producer, consumer) = World::offering();
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
    let (mut world, producer, consumer) = World::offering();
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
fn no_more_than_one_packet_is_taken_in_vain_for_a_file_that_is_full() {
    const PACKETS: usize = 10;
    let (mut world, producer, consumer) = World::offering();
    let limited = TraceConfig {
        max_file_size_bytes: Some(2000),
        ..into_file(&["d"])
    };
    let session = world.enable(consumer, &limited);
    let target = world.target(producer);
    let text = "x".repeat(300);
    for _ in 0..PACKETS {
        world.commit(producer, 1, target, &[&packet(&text)]);
    }
    world.advance(200);
    assert_eq!(world.closed_files, [session]);
    let in_file = texts(&parse(&world.files[&session])).len();
    assert!(in_file > 0);
    let left = texts(&world.read(consumer)).len();
    assert_eq!(in_file + 1 + left, PACKETS);
}

#[test]
fn a_full_disk_ends_the_session_with_a_reason() {
    let (mut world, _, consumer) = World::offering();
    world.enable(consumer, &into_file(&["d"]));
    world.disk = Disk::Full;
    world.advance(200);
    let told = world.consumers[&consumer].disabled.clone();
    assert!(
        matches!(&told[..], [Some(error)] if error.contains("no space left")),
        "{told:?}"
    );
}

#[test]
fn a_consumer_that_goes_away_leaves_a_complete_file() {
    let (mut world, producer, consumer) = World::offering();
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
    assert!(
        world
            .service
            .read_buffers(consumer, &mut ReadCall::default(), 1000, &now)
            .is_none()
    );
}

#[test]
fn how_producers_are_flushed_follows_the_write_period() {
    use trace_config::WriteFlushMode::{
        WRITE_FLUSH_AUTO, WRITE_FLUSH_DISABLED, WRITE_FLUSH_ENABLED, WRITE_FLUSH_UNSPECIFIED,
    };
    // Write period, mode, and flush period in ms; then the period of the flushes that producers are asked for.
    let cases = [
        ((1000, None, None), Some(5000)),
        ((1000, Some(WRITE_FLUSH_UNSPECIFIED), None), Some(5000)),
        ((1000, Some(WRITE_FLUSH_AUTO), None), Some(5000)),
        ((1000, Some(WRITE_FLUSH_AUTO), Some(1000)), Some(5000)),
        ((0, Some(WRITE_FLUSH_AUTO), None), Some(5000)),
        ((5000, Some(WRITE_FLUSH_AUTO), None), Some(5000)),
        ((5001, Some(WRITE_FLUSH_AUTO), None), Some(5001)),
        ((8000, None, Some(1000)), Some(8000)),
        ((50, Some(WRITE_FLUSH_ENABLED), None), Some(100)),
        ((4000, Some(WRITE_FLUSH_ENABLED), Some(1000)), Some(4000)),
        ((1000, Some(WRITE_FLUSH_DISABLED), None), None),
        ((8000, Some(WRITE_FLUSH_DISABLED), Some(2000)), Some(2000)),
    ];
    for ((write_period, mode, flush_period), expected) in cases {
        let (mut world, producer, consumer) = World::offering();
        world.enable(
            consumer,
            &TraceConfig {
                file_write_period_ms: Some(write_period),
                write_flush_mode: mode,
                flush_period_ms: flush_period,
                ..into_file(&["d"])
            },
        );
        let mut asked = Vec::new();
        while world.now.monotonic < 16_000_000_000 {
            world.advance(1);
            if world.count(producer, flushes) > asked.len() {
                asked.push(world.now.monotonic / 1_000_000);
                world.acknowledge_flushes(producer);
            }
        }
        let multiples = |period: u64| (1..).map(move |n| n * period).skip_while(|at| *at <= 1000);
        let expected: Vec<u64> = expected
            .into_iter()
            .flat_map(|period| multiples(period).take_while(|at| *at <= 16_000))
            .collect();
        assert_eq!(asked, expected, "{write_period} {mode:?} {flush_period:?}");
    }
}

#[test]
fn up_to_the_usual_period_no_write_waits_for_producers() {
    for (period, waits) in [(4999, false), (5000, false), (5001, true)] {
        let (mut world, producer, consumer) = World::offering();
        let session = world.enable(
            consumer,
            &TraceConfig {
                file_write_period_ms: Some(period),
                ..into_file(&["d"])
            },
        );
        let target = world.target(producer);
        world.commit(producer, 1, target, &[&packet("x")]);
        // Writes come at multiples of the period, counted from before the session began.
        let now = world.now.monotonic / 1_000_000;
        world.advance(u64::from(period) - now % u64::from(period));
        let written = |world: &World| texts(&parse(&world.files[&session]));
        assert_eq!(written(&world).is_empty(), waits, "{period}");
        world.acknowledge_flushes(producer);
        assert_eq!(written(&world), ["x"], "{period}");
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

#[test]
fn a_consumer_learns_that_a_part_of_its_file_did_not_reach_the_disk() {
    let mut world = World::new();
    let consumer = world.consumer();
    let synced = TraceConfig {
        fflush_post_write: Some(trace_config::FFlushMode::FFLUSH_ENABLED),
        ..into_file(&[])
    };
    let session = world.enable(consumer, &synced);
    world.advance(200);
    world.service.file_sync_failed(session, "input/output error");
    world.service.file_sync_failed(session, "no such device");
    world.advance(400);
    assert_eq!(world.syncs, 3, "it goes on");
    world.disable(consumer);
    assert_eq!(world.closed_files, [session]);
    let told = &world.consumers[&consumer].disabled;
    assert!(
        matches!(&told[..], [Some(error)] if error.contains("input/output error")),
        "the first, which is why the others: {told:?}"
    );
    let lines = world.log.iter().filter(|line| line.contains("on the disk"));
    assert_eq!(lines.count(), 1);
    // The session is gone, and so is the consumer that would hear of it.
    world.lose_consumer(consumer);
    world.service.file_sync_failed(session, "input/output error");
    world.run();
}

#[test]
fn a_file_is_filled_to_the_last_packet_that_keeps_it_below_its_limit() {
    let run = |limit: Option<u64>| {
        let (mut world, producer, consumer) = World::offering();
        let limited = TraceConfig {
            max_file_size_bytes: limit,
            // The trace would otherwise contain the config, and so the limit itself.
            builtin_data_sources: trace_config::BuiltinDataSource {
                disable_trace_config: Some(true),
                ..Default::default()
            }
            .into(),
            ..into_file(&["d"])
        };
        let session = world.enable(consumer, &limited);
        let target = world.target(producer);
        for n in 0..6 {
            world.commit(producer, 1, target, &[&packet(&n.to_string().repeat(20))]);
        }
        world.advance(200);
        world.disable(consumer);
        assert_eq!(world.consumers[&consumer].disabled, [None], "{limit:?}");
        world.files[&session].clone()
    };
    let whole = run(None);
    let mut ends = vec![0];
    let mut rest = &whole[..];
    while !rest.is_empty() {
        // A packet consists of a tag of one byte, a length, and as many bytes.
        let mut at = 1;
        let mut length = 0usize;
        loop {
            let byte = rest[at];
            length |= usize::from(byte & 0x7f) << (7 * (at - 1));
            at += 1;
            if byte < 0x80 {
                break;
            }
        }
        rest = &rest[at + length..];
        ends.push(whole.len() - rest.len());
    }
    for limit in 1..whole.len() {
        let fits = ends.iter().filter(|end| **end < limit).max().unwrap();
        let file = run(Some(limit as u64));
        assert_eq!(file.len(), *fits, "limit {limit}");
    }
}

#[test]
fn data_reaches_the_file_while_data_sources_take_their_time_to_stop() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
    let consumer = world.consumer();
    let patient = TraceConfig {
        data_source_stop_timeout_ms: Some(60_000),
        ..into_file(&["d"])
    };
    let session = world.enable(consumer, &patient);
    let target = world.target(producer);
    world.disable(consumer);
    // These are far more packets than the buffer of 64 KB holds.
    for n in 0..100 {
        world.commit(
            producer,
            1,
            target,
            &[&packet(&format!("{n} {}", "x".repeat(3000)))],
        );
        world.advance(200);
    }
    let instance = world.instances(producer)[0].0;
    let now = world.now;
    world.service.data_source_stopped(producer, instance.0, &now);
    world.run();
    assert_eq!(texts(&parse(&world.files[&session])).len(), 100);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
}

#[test]
fn packets_that_arrive_while_a_batch_is_being_written_follow_it() {
    let (mut world, producer, consumer) = World::offering();
    let session = world.enable(consumer, &into_file(&["d"]));
    let target = world.target(producer);
    let now = world.now;
    let mut file = Vec::new();
    let write = |world: &mut World, file: &mut Vec<u8>| {
        let batch = world.service.read_for_file(session, 1 << 20, &now).expect("due");
        let before = file.len();
        batch.slices().for_each(|slice| file.extend_from_slice(slice));
        (file.len() - before) as u64
    };
    world.commit(producer, 1, target, &[&packet("first")]);
    let written = write(&mut world, &mut file);
    world.commit(producer, 1, target, &[&packet("second")]);
    world.service.disable_tracing(consumer, &now);
    assert!(
        world.service.read_for_file(session, 1 << 20, &now).is_none(),
        "one at a time"
    );
    while world.service.poll().is_some() {}
    world.service.file_written(session, Ok(written), &now);
    assert!(matches!(world.service.poll(), Some(Output::FileDue(due)) if due == session));
    let written = write(&mut world, &mut file);
    world.service.file_written(session, Ok(written), &now);
    world.run();
    assert_eq!(texts(&parse(&file)), ["first", "second"]);
    assert_eq!(world.closed_files, [session]);
    assert_eq!(world.consumers[&consumer].ended, [session]);
}

#[test]
fn the_consumer_learns_of_the_end_and_the_error_once_the_file_is_closed() {
    for earlier in [None, Some("no such device")] {
        let mut world = World::new();
        let consumer = world.consumer();
        let session = world.enable(consumer, &into_file(&[]));
        let now = world.now;
        world.service.disable_tracing(consumer, &now);
        assert!(matches!(world.service.poll(), Some(Output::FileDue(_))));
        let written = world.service.read_for_file(session, 1 << 20, &now).unwrap().len() as u64;
        world.service.file_written(session, Ok(written), &now);
        assert!(matches!(world.service.poll(), Some(Output::CloseFile(_))));
        assert!(world.service.poll().is_none(), "nothing is told yet");
        assert!(
            world.service.read_for_file(session, 1 << 20, &now).is_none(),
            "nor is anything more written"
        );
        if let Some(error) = earlier {
            world.service.file_sync_failed(session, error);
        }
        world
            .service
            .file_closed(session, Err("input/output error".into()), &now);
        world.run();
        let told = &world.consumers[&consumer].disabled;
        assert!(
            matches!(&told[..], [Some(error)] if error.contains(earlier.unwrap_or("input/output error"))),
            "the first: {told:?}"
        );
    }
}

#[test]
fn each_session_of_a_consumer_that_frees_and_begins_anew_ends_on_its_own() {
    let begin = |world: &mut World, consumer| {
        let config = into_file(&[]);
        let input = ConfigInput {
            bytes: config.encode_to_vec().into(),
            config,
        };
        let now = world.now;
        let enabled = world
            .service
            .enable_tracing(consumer, input, &OutputFile::Passed, 7, &now);
        let session = enabled.expect("a good config");
        world.files.insert(session, Vec::new());
        session
    };
    let mut world = World::new();
    let consumer = world.consumer();
    let first = begin(&mut world, consumer);
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    let second = begin(&mut world, consumer);
    world.run();
    assert_eq!(world.consumers[&consumer].ended, [first]);
    world.disable(consumer);
    assert_eq!(world.consumers[&consumer].ended, [first, second]);
}

#[test]
fn a_write_that_waits_for_a_flush_has_the_flushed_packets() {
    // The producer commits only when it is asked to flush.
    for (mode, expected) in [
        (None, &["asked for"][..]),
        (Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED), &[]),
    ] {
        let (mut world, producer, consumer) = World::offering();
        let slow = TraceConfig {
            file_write_period_ms: Some(10_000),
            write_flush_mode: mode,
            ..into_file(&["d"])
        };
        let session = world.enable(consumer, &slow);
        let target = world.target(producer);
        world.advance(10_000);
        if world.count(producer, flushes) > 0 {
            assert!(world.files[&session].is_empty(), "it waits");
            world.commit(producer, 1, target, &[&packet("asked for")]);
            world.acknowledge_flushes(producer);
        }
        assert!(!world.files[&session].is_empty());
        assert_eq!(texts(&parse(&world.files[&session])), expected);
    }
}

#[test]
fn a_write_that_waits_for_a_flush_in_vain_comes_after_the_timeout() {
    let (mut world, producer, consumer) = World::offering();
    let slow = TraceConfig {
        file_write_period_ms: Some(10_000),
        flush_timeout_ms: Some(300),
        ..into_file(&["d"])
    };
    let session = world.enable(consumer, &slow);
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("x")]);
    world.advance(9_000 + 299);
    assert!(world.files[&session].is_empty());
    world.advance(1);
    assert_eq!(texts(&parse(&world.files[&session])), ["x"]);
}

#[test]
fn the_statistics_at_the_end_of_a_file_count_everything_before_them() {
    let (mut world, producer, consumer) = World::offering();
    let session = world.enable(consumer, &into_file(&["d"]));
    let target = world.target(producer);
    world.advance(1000);
    world.commit(producer, 1, target, &[&packet("last")]);
    world.disable(consumer);
    let packets = parse(&world.files[&session]);
    let Some(trace_packet::Data::TraceStats(stats)) = &packets.last().unwrap().data else {
        panic!("the last packet is the statistics")
    };
    assert_eq!(stats.buffer_stats[0].chunks_written, Some(1));
    assert_eq!(stats.buffer_stats[0].chunks_read, Some(1));
}

#[test]
fn the_write_period_has_a_default_and_a_floor() {
    for (configured, period) in [(None, 5000), (Some(0), 5000), (Some(1), 100), (Some(150), 150)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let config = TraceConfig {
            file_write_period_ms: configured,
            write_flush_mode: Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
            ..into_file(&[])
        };
        // Writes come at multiples of the period since the boot of the machine.
        world.jump(period - world.now.monotonic / 1_000_000 % period);
        let session = world.enable(consumer, &config);
        let mut writes = Vec::new();
        let mut before = 0;
        for ms in 1..=2 * period {
            world.advance(1);
            if world.files[&session].len() > before {
                before = world.files[&session].len();
                writes.push(ms);
            }
        }
        assert_eq!(writes, [period, 2 * period], "{configured:?}");
    }
}
