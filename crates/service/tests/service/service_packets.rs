//! The service's own packets in a trace: events of the session, clocks, markers, statistics, and the writers of packets.

use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId, OptionalTrustedUid};
use ferretto_proto::messages::tracing_service_event::{DataSources, EventType};
use ferretto_proto::messages::{
    BuiltinClock, DataSourceDescriptor, Message, Trace, TraceConfig, TracePacket, TraceStats, trace_config,
};
use ferretto_service::{ConsumerId, Identity, ProducerId, SystemFacts, limits};

use crate::world::{World, config, packet, texts};

/// The events of the session, in the order of the trace.
fn events(packets: &[TracePacket]) -> Vec<&'static str> {
    let events = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::ServiceEvent(event)) => event.event_type.as_ref(),
        _ => None,
    });
    events
        .map(|event| match event {
            EventType::TracingStarted(true) => "started",
            EventType::AllDataSourcesStarted(true) => "all started",
            EventType::FlushStarted(true) => "flush",
            EventType::AllDataSourcesFlushed(true) => "flushed",
            EventType::ReadTracingBuffersCompleted(true) => "read",
            EventType::TracingDisabled(true) => "disabled",
            EventType::SlowStartingDataSources(_) => "slow to start",
            EventType::LastFlushSlowDataSources(_) => "slow to flush",
            other => panic!("{other:?}"),
        })
        .collect()
}

fn stats(packets: &[TracePacket]) -> Vec<&TraceStats> {
    let stats = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::TraceStats(stats)) => Some(&**stats),
        _ => None,
    });
    stats.collect()
}

/// A world with one session, and one producer in it that acknowledges nothing.
fn recording(config: &TraceConfig) -> (World, ProducerId, ConsumerId) {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, config);
    (world, producer, consumer)
}

#[test]
fn slow_producers_are_named_before_the_events_that_waited_for_the_flush() {
    let timed = TraceConfig {
        duration_ms: Some(100),
        flush_timeout_ms: Some(50),
        ..config(&["d"])
    };
    let (mut world, _, consumer) = recording(&timed);
    world.read(consumer);
    world.advance(150);
    assert_eq!(
        events(&world.read(consumer)),
        ["flush", "slow to flush", "flushed", "disabled", "read"]
    );
}

fn named(sources: &DataSources) -> Vec<(String, String)> {
    let names = sources.data_source.iter().map(|source| {
        (
            source.producer_name.clone().unwrap_or_default(),
            source.data_source_name.clone().unwrap_or_default(),
        )
    });
    names.collect()
}

fn slow_to_start(packets: &[TracePacket]) -> Option<Vec<(String, String)>> {
    packets.iter().find_map(|packet| match &packet.data {
        Some(Data::ServiceEvent(event)) => match &event.event_type {
            Some(EventType::SlowStartingDataSources(slow)) => Some(named(slow)),
            _ => None,
        },
        _ => None,
    })
}

#[test]
fn data_sources_that_do_not_start_within_20_s_are_named() {
    for (waited, acknowledged, expected) in [
        (19_999, 2, None),
        (20_000, 3, None),
        (20_000, 2, Some(vec![("p".to_owned(), "d2".to_owned())])),
    ] {
        let mut world = World::new();
        let (producer, consumer) = (world.producer("p"), world.consumer());
        for n in 0..3 {
            let descriptor = DataSourceDescriptor {
                name: Some(format!("d{n}")),
                will_notify_on_start: Some(true),
                ..Default::default()
            };
            world.register(producer, &descriptor);
        }
        world.enable(consumer, &config(&["d0", "d1", "d2"]));
        let now = world.now;
        for (instance, _) in world.instances(producer).iter().take(acknowledged) {
            world.service.data_source_started(producer, instance.0, &now);
        }
        world.advance(waited);
        assert_eq!(slow_to_start(&world.read(consumer)), expected);
        assert_eq!(slow_to_start(&world.read(consumer)), None, "once");
    }
}

#[test]
fn writers_are_numbered_as_they_appear_with_their_users_and_processes() {
    let mut world = World::new();
    let producers = [123, 456].map(|uid| world.producer_of(uid, "p", Default::default()));
    for producer in producers {
        world.offer(producer, "d");
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producers[0]);
    for (producer, writer, text) in [(0, 1, "1a"), (0, 2, "1b"), (1, 1, "2a"), (0, 1, "1a again")] {
        world.commit(producers[producer], writer, target, &[&packet(text)]);
    }
    let packets = world.read(consumer);
    let of_producers: Vec<_> = packets
        .iter()
        .filter(|packet| packet.trusted_pid.is_some())
        .map(|packet| {
            (
                texts(std::slice::from_ref(packet)).concat(),
                packet.optional_trusted_uid.clone(),
                packet.optional_trusted_packet_sequence_id.clone(),
                packet.trusted_pid,
            )
        })
        .collect();
    let expected = |text: &str, uid, sequence| {
        (
            text.to_owned(),
            Some(OptionalTrustedUid::TrustedUid(uid)),
            Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(sequence)),
            Some(77),
        )
    };
    assert_eq!(
        of_producers,
        [
            expected("1a", 123, 2),
            expected("1b", 123, 3),
            expected("2a", 456, 4),
            expected("1a again", 123, 2),
        ]
    );
    for packet in packets.iter().filter(|packet| packet.trusted_pid.is_none()) {
        let service = OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(1);
        assert_eq!(packet.optional_trusted_packet_sequence_id, Some(service));
        assert_eq!(packet.machine_id, None, "it is this machine's");
    }
}

#[test]
fn a_trace_says_which_sequences_of_which_producers_are_in_which_buffer() {
    let mut two = config(&["d", "d"]);
    two.buffers.push(two.buffers[0].clone());
    two.data_sources[1].config.get_or_insert_default().target_buffer = Some(1);
    let (mut world, producer, consumer) = recording(&two);
    let target = world.target(producer);
    for (writer, target) in [(1, target), (2, target), (3, target + 1)] {
        world.commit(producer, writer, target, &[&packet("x")]);
    }
    let packets = world.read(consumer);
    let provenance = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::TraceProvenance(provenance)) => Some(provenance),
        _ => None,
    });
    let buffers: Vec<Vec<(u32, i32)>> = provenance
        .unwrap()
        .buffers
        .iter()
        .map(|buffer| {
            let sequence = buffer.sequences.iter();
            sequence
                .map(|sequence| (sequence.id.unwrap(), sequence.producer_id.unwrap()))
                .collect()
        })
        .collect();
    assert_eq!(buffers, [vec![(2, 1), (3, 1)], vec![(4, 1)]]);
}

#[test]
fn statistics_have_the_chunk_sizes_of_each_writer_and_its_buffer() {
    for disabled in [false, true] {
        let mut three = config(&["d", "d"]);
        three.buffers = vec![three.buffers[0].clone(); 3];
        for (index, source) in three.data_sources.iter_mut().enumerate() {
            source.config.get_or_insert_default().target_buffer = Some(index as u32 + 1);
        }
        three.builtin_data_sources = trace_config::BuiltinDataSource {
            disable_chunk_usage_histograms: Some(disabled),
            ..Default::default()
        }
        .into();
        let (mut world, producer, consumer) = recording(&three);
        let target = world.target(producer);
        for (writer, target, size) in [
            (1, target, 100),
            (1, target, 1000),
            (2, target + 1, 500),
            (2, target + 1, 2000),
            (2, target + 1, 2000),
        ] {
            world.commit(producer, writer, target, &[&packet(&"x".repeat(size))]);
        }
        let packets = world.read(consumer);
        let [in_trace] = stats(&packets)[..] else {
            panic!("one packet of statistics")
        };
        let asked = world.service.trace_stats(consumer).unwrap();
        for stats in [in_trace, &asked] {
            let writers: Vec<_> = stats
                .writer_stats
                .iter()
                .map(|writer| {
                    let counts = writer.chunk_payload_histogram_counts.clone();
                    (writer.sequence_id.unwrap(), writer.buffer.unwrap(), counts)
                })
                .collect();
            if disabled {
                assert!(writers.is_empty() && stats.chunk_payload_histogram_def.is_empty());
                continue;
            }
            assert_eq!(
                stats.chunk_payload_histogram_def,
                [8, 32, 128, 512, 1024, 2048, 4096, 8192, 12288, 16384]
            );
            let expected = [
                (2, 1, vec![0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
                (3, 2, vec![0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0]),
            ];
            assert_eq!(writers, expected);
            let written: Vec<_> = stats
                .buffer_stats
                .iter()
                .map(|b| b.chunks_written.unwrap())
                .collect();
            assert_eq!(written, [0, 2, 3]);
        }
    }
}

#[test]
fn markers_and_statistics_come_at_every_interval_and_with_the_first_read() {
    let mut quick = config(&["d"]);
    quick.builtin_data_sources = trace_config::BuiltinDataSource {
        snapshot_interval_ms: Some(100),
        ..Default::default()
    }
    .into();
    let (mut world, _, consumer) = recording(&quick);
    let mut written = |wait| {
        world.advance(wait);
        let packets = world.read(consumer);
        let markers = packets
            .iter()
            .filter(|packet| matches!(packet.data, Some(Data::SynchronizationMarker(_))));
        (markers.count(), stats(&packets).len())
    };
    assert_eq!(written(0), (1, 1));
    assert_eq!(written(99), (0, 0));
    assert_eq!(written(1), (1, 1));
    assert_eq!(written(1000), (1, 1), "what was missed is made good once");
    world.disable(consumer);
    world.advance(1000);
    assert!(stats(&world.read(consumer)).is_empty(), "it has ended");
}

#[test]
fn a_trace_can_be_cut_after_each_marker() {
    let mut streaming = config(&["d"]);
    streaming.write_into_file = Some(true);
    streaming.file_write_period_ms = Some(100);
    streaming.builtin_data_sources = trace_config::BuiltinDataSource {
        snapshot_interval_ms: Some(100),
        ..Default::default()
    }
    .into();
    let (mut world, producer, consumer) = World::offering();
    let session = world.enable(consumer, &streaming);
    let target = world.target(producer);
    for n in 1..=100 {
        let letter = char::from(b'A' + n % 25);
        let text: String = std::iter::repeat_n(letter, n.into()).collect();
        world.commit(producer, 1, target, &[&packet(&text)]);
        if n % 20 == 0 {
            world.advance(100);
        }
    }
    world.disable(consumer);
    const MARKER: [u8; 16] = [
        0x82, 0x47, 0x7a, 0x76, 0xb2, 0x8d, 0x42, 0xba, 0x81, 0xdc, 0x33, 0x32, 0x6d, 0x57, 0xa0, 0x79,
    ];
    let file = &world.files[&session];
    let whole = Trace::decode_from_slice(file).unwrap();
    let ends = (0..file.len()).filter(|end| file[..*end].ends_with(&MARKER));
    let ends: Vec<usize> = ends.chain([file.len()]).collect();
    assert!(ends.len() > 5, "{} parts", ends.len());
    let mut start = 0;
    let mut together = Vec::new();
    for end in ends {
        let part = Trace::decode_from_slice(&file[start..end]).expect("each part is a trace");
        together.extend(part.packet);
        start = end;
    }
    assert_eq!(together, whole.packet);
    assert_eq!(texts(&whole.packet).len(), 100);
}

#[test]
fn the_first_and_the_newest_snapshots_of_drifting_clocks_wait_for_a_read_back() {
    let primary = BuiltinClock::BUILTIN_CLOCK_MONOTONIC;
    let mut drifting = config(&[]);
    drifting.builtin_data_sources = trace_config::BuiltinDataSource {
        snapshot_interval_ms: Some(1000),
        primary_trace_clock: Some(primary),
        ..Default::default()
    }
    .into();
    let mut world = World::new();
    let consumer = world.consumer();
    let start = world.now.boot;
    world.enable(consumer, &drifting);
    for second in 1..=40 {
        world.now.monotonic_raw = second * 20_000_000;
        world.advance(1000);
    }
    let end = world.now.boot;
    let newest = (0..limits::MAX_PENDING_CLOCK_SNAPSHOTS as u64).rev();
    let newest = newest.map(|seconds| end - seconds * 1_000_000_000);
    let packets = world.read(consumer);
    let snapshots: Vec<_> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ClockSnapshot(snapshot)) => Some(snapshot),
            _ => None,
        })
        .collect();
    let taken: Vec<u64> = snapshots
        .iter()
        .map(|snapshot| snapshot.clocks[0].timestamp.unwrap())
        .collect();
    assert_eq!(taken, std::iter::once(start).chain(newest).collect::<Vec<u64>>());
    for snapshot in snapshots {
        assert_eq!(snapshot.primary_trace_clock, Some(primary));
        let ids: Vec<u32> = snapshot
            .clocks
            .iter()
            .map(|clock| clock.clock_id.unwrap())
            .collect();
        assert_eq!(ids, [6, 2, 4, 1, 3, 5], "boot time first");
    }
}

#[test]
fn a_trace_records_how_far_local_time_is_ahead_when_it_is_first_read() {
    let identity = Identity {
        system: SystemFacts {
            timezone_offset_minutes: Some(60),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut world = World::with_identity(identity);
    let told = |world: &mut World, consumer| {
        let packets = world.read(consumer);
        let mut offsets = packets.iter().filter_map(|packet| match &packet.data {
            Some(Data::SystemInfo(info)) => Some(info.timezone_off_mins),
            _ => None,
        });
        offsets.next()
    };
    let (first, second) = (world.consumer(), world.consumer());
    world.enable(first, &config(&[]));
    world.enable(second, &config(&[]));
    assert_eq!(told(&mut world, first), Some(Some(60)));
    // Summer begins.
    world.service.local_time_offset(Some(120));
    assert_eq!(told(&mut world, second), Some(Some(120)));
    assert_eq!(told(&mut world, first), None, "once");
}

#[test]
fn ticks_of_the_counter_are_recorded_at_every_interval() {
    let mut quick = config(&[]);
    quick.builtin_data_sources = trace_config::BuiltinDataSource {
        snapshot_interval_ms: Some(1000),
        ..Default::default()
    }
    .into();
    let mut world = World::new();
    let consumer = world.consumer();
    world.now.tsc = Some(0);
    world.enable(consumer, &quick);
    let mut expected = vec![(world.now.boot, 0); 2];
    for second in 1..=5 {
        // All clocks advance equally.
        let clocks = [
            &mut world.now.realtime_coarse,
            &mut world.now.monotonic_coarse,
            &mut world.now.monotonic_raw,
        ];
        clocks.into_iter().for_each(|clock| *clock += 1_000_000_000);
        let ticks = second * 2_500_000_000;
        world.now.tsc = Some(ticks);
        world.jump(1000);
        expected.push((world.now.boot, ticks));
    }
    const TSC: u32 = 9;
    let told: Vec<_> = world
        .read(consumer)
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ClockSnapshot(snapshot)) => Some(snapshot.clocks.clone()),
            _ => None,
        })
        .map(|clocks| {
            let last = clocks.last().expect("clocks");
            assert_eq!(last.clock_id, Some(TSC));
            (
                clocks[0].timestamp.expect("boot time"),
                last.timestamp.expect("ticks"),
            )
        })
        .collect();
    // With only the first snapshot, readers would place the last events seconds too early or too late.
    assert_eq!(told, expected);
}
