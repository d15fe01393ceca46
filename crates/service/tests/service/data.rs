//! The fate of the data that producers commit, and the packets that the service adds to every trace.

use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_proto::messages::trace_config::trigger_config::Trigger;
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceDescriptor, Message, TraceConfig, TracePacket, trace_config, trace_packet,
};
use ferretto_service::{ConsumerId, ProducerId, ReadCall, Scraping, limits};

use crate::scraping::scraped;
use crate::world::{World, config, decoded, packet, packets_of, texts};

fn data(packet: &TracePacket) -> Option<&trace_packet::Data> {
    packet.data.as_ref()
}

#[test]
fn packets_carry_the_trusted_fields_of_the_service() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("a"), &packet("b")]);
    world.commit(producer, 2, target, &[&packet("c")]);
    let packets: Vec<TracePacket> = world
        .read(consumer)
        .into_iter()
        .filter(|packet| packet.trusted_pid.is_some())
        .collect();
    assert_eq!(texts(&packets), ["a", "b", "c"]);
    for packet in &packets {
        assert_eq!(packet.trusted_pid, Some(77));
        assert_eq!(
            packet.optional_trusted_uid,
            Some(trace_packet::OptionalTrustedUid::TrustedUid(1000))
        );
    }
    let sequences: Vec<_> = packets
        .iter()
        .map(|packet| packet.optional_trusted_packet_sequence_id.clone())
        .collect();
    assert_eq!(sequences[0], sequences[1]);
    assert_ne!(sequences[0], sequences[2]);
}

#[test]
fn a_producer_that_reconnects_never_passes_for_one_that_is_gone() {
    let mut world = World::new();
    let root = world.producer_of(0, "p", Scraping::Disabled);
    world.offer(root, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(root);
    world.commit(root, 1, target, &[&packet("root's")]);
    world.lose_producer(root);
    // This is the largest number of producers at once. If ids were reused, the id of the lost producer would come again.
    for _ in 0..limits::MAX_PRODUCERS - 1 {
        let passing = world.producer_of(1000, "p", Scraping::Disabled);
        world.service.disconnect_producer(passing, &world.now);
    }
    let other = world.producer_of(1000, "p", Scraping::Disabled);
    world.offer(other, "d");
    // The sequence of the lost producer has only its first chunk, and the next chunk would continue it.
    for _ in 0..2 {
        world.commit(other, 1, target, &[&packet("another's")]);
    }
    let packets = world.read(consumer);
    let packets: Vec<_> = packets
        .iter()
        .filter(|packet| packet.trusted_pid.is_some())
        .collect();
    let users: Vec<_> = packets
        .iter()
        .map(|packet| packet.optional_trusted_uid.clone())
        .collect();
    let uid = |uid| Some(trace_packet::OptionalTrustedUid::TrustedUid(uid));
    assert_eq!(users, [uid(0), uid(1000), uid(1000)]);
    let sequence = |packet: &TracePacket| packet.optional_trusted_packet_sequence_id.clone();
    assert_ne!(sequence(packets[0]), sequence(packets[1]));
}

#[test]
fn the_packet_after_an_invalid_one_says_what_is_missing() {
    const PRESENT: u32 = 1;
    const OVERWRITE: u32 = 1 << 6;
    // `trusted_uid: 0`.
    let forged = [0x18, 0];
    let marks = |packets: &[TracePacket]| -> Vec<u32> {
        let of_producer = packets.iter().filter(|packet| packet.trusted_pid.is_some());
        of_producer
            .map(|packet| packet.previous_packet_dropped.unwrap_or_default())
            .collect()
    };
    let (mut world, producer, consumer) = World::offering();
    let mut small = config(&["d"]);
    small.buffers[0].size_kb = Some(4);
    world.enable(consumer, &small);
    let target = world.target(producer);
    let packets = ["before", "after", "later"].map(packet);
    world.commit(
        producer,
        1,
        target,
        &[&packets[0], &forged, &packets[1], &packets[2]],
    );
    assert_eq!(marks(&world.read(consumer)), [0, PRESENT, 0]);
    let filler = packet(&"x".repeat(1000));
    for _ in 0..10 {
        world.commit(producer, 1, target, &[&forged, &filler]);
    }
    let marks = marks(&world.read(consumer));
    assert_eq!(marks, [PRESENT | OVERWRITE, PRESENT, PRESENT]);
}

#[test]
fn packets_with_forged_trusted_fields_are_dropped_and_counted() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    let mut forged = ferretto_wire::Writer::new();
    forged.varint_field(3, 0);
    world.commit(producer, 1, target, &[&packet("honest"), forged.as_slice()]);
    assert_eq!(texts(&world.read(consumer)), ["honest"]);
    assert_eq!(
        world.service.trace_stats(consumer).unwrap().invalid_packets,
        Some(1)
    );
}

#[test]
fn no_producer_writes_into_a_buffer_of_a_session_it_takes_no_part_in() {
    let mut world = World::new();
    let (inside, outside) = (world.producer("inside"), world.producer("outside"));
    world.offer(inside, "d");
    world.offer(outside, "e");
    let (consumer, other) = (world.consumer(), world.consumer());
    world.enable(consumer, &config(&["d"]));
    world.enable(other, &config(&["e"]));
    let target = world.target(inside);
    world.commit(outside, 1, target, &[&packet("intruder")]);
    assert!(texts(&world.read(consumer)).is_empty());
    let mut discarded = |consumer| world.service.trace_stats(consumer).unwrap().chunks_discarded;
    assert_eq!(
        (discarded(consumer), discarded(other)),
        (Some(0), Some(1)),
        "it is missing where the intruder takes part"
    );
}

#[test]
fn a_registered_writer_writes_into_no_other_buffer() {
    let (mut world, producer, consumer) = World::offering();
    let mut two = config(&["d", "d"]);
    two.buffers.push(two.buffers[0].clone());
    two.data_sources[1].config.get_or_insert_default().target_buffer = Some(1);
    world.enable(consumer, &two);
    let targets: Vec<u32> = world
        .instances(producer)
        .iter()
        .map(|(_, config)| config.target_buffer.unwrap())
        .collect();
    world.service.register_trace_writer(producer, 1, targets[0]);
    world.commit(producer, 1, targets[1] as u16, &[&packet("astray")]);
    world.commit(producer, 1, targets[0] as u16, &[&packet("at home")]);
    assert_eq!(texts(&world.read(consumer)), ["at home"]);
}

#[test]
fn target_buffers_are_found_by_index_and_by_name() {
    let mut world = World::new();
    let producer = world.producer("p");
    // Each case has an index and a name, if they are set, and the expected buffer. An index of 0 has no meaning.
    let cases = [
        (None, None, 0),
        (Some(1), None, 1),
        (None, Some("c"), 2),
        (Some(0), Some("c"), 2),
        (Some(2), Some("c"), 2),
    ];
    let names: Vec<String> = (0..cases.len()).map(|case| format!("d{case}")).collect();
    for name in &names {
        world.offer(producer, name);
    }
    let consumer = world.consumer();
    let mut named = config(&names.iter().map(String::as_str).collect::<Vec<_>>());
    // Not every buffer has a name.
    named.buffers = [None, Some("b"), Some("c")]
        .map(|name| trace_config::BufferConfig {
            size_kb: Some(16),
            name: name.map(Into::into),
            ..Default::default()
        })
        .into();
    for (source, (index, name, _)) in named.data_sources.iter_mut().zip(cases) {
        let source = source.config.get_or_insert_default();
        source.target_buffer = index;
        source.target_buffer_name = name.map(Into::into);
    }
    world.enable(consumer, &named);
    let ids: Vec<u32> = world
        .instances(producer)
        .iter()
        .map(|(_, config)| config.target_buffer.unwrap())
        .collect();
    let meant = cases.map(|(_, _, buffer)| ids[0] + buffer);
    assert_eq!(ids, meant);
}

#[test]
fn a_ring_buffer_keeps_the_newest_packets_and_marks_losses() {
    let (mut world, producer, consumer) = World::offering();
    let mut small = config(&["d"]);
    small.buffers[0].size_kb = Some(8);
    world.enable(consumer, &small);
    let target = world.target(producer);
    let filler = "x".repeat(1000);
    for n in 0..30 {
        world.commit(producer, 1, target, &[&packet(&format!("{n} {filler}"))]);
    }
    let packets = world.read(consumer);
    let kept = texts(&packets);
    assert!(
        kept.len() < 30 && kept.last().unwrap().starts_with("29 "),
        "{}",
        kept.len()
    );
    let first = packets
        .iter()
        .find(|packet| packet.trusted_pid.is_some())
        .unwrap();
    assert_ne!(first.previous_packet_dropped.unwrap_or_default(), 0);
    assert!(world.service.trace_stats(consumer).unwrap().buffer_stats[0].chunks_overwritten > Some(0));
}

#[test]
fn a_discard_buffer_keeps_the_oldest() {
    let (mut world, producer, consumer) = World::offering();
    let mut discard = config(&["d"]);
    discard.buffers[0].size_kb = Some(8);
    discard.buffers[0].fill_policy = Some(trace_config::buffer_config::FillPolicy::DISCARD);
    world.enable(consumer, &discard);
    let target = world.target(producer);
    let filler = "x".repeat(1000);
    for n in 0..30 {
        world.commit(producer, 1, target, &[&packet(&format!("{n} {filler}"))]);
    }
    let kept = texts(&world.read(consumer));
    assert!(kept.len() < 30 && kept[0].starts_with("0 "), "{}", kept.len());
    assert!(world.service.trace_stats(consumer).unwrap().buffer_stats[0].chunks_discarded > Some(0));
}

#[test]
fn a_discard_buffer_that_is_written_into_a_file_stops_only_in_upstreams_second_mode() {
    use trace_config::buffer_config::{ExperimentalMode, FillPolicy};
    for (mode, keeps_all) in [(None, true), (Some(ExperimentalMode::TRACE_BUFFER_V2), false)] {
        let (mut world, producer, consumer) = World::offering();
        let mut streaming = config(&["d"]);
        streaming.buffers[0].size_kb = Some(64);
        streaming.buffers[0].fill_policy = Some(FillPolicy::DISCARD);
        streaming.buffers[0].experimental_mode = mode;
        (streaming.write_into_file, streaming.file_write_period_ms) = (Some(true), Some(100));
        let session = world.enable(consumer, &streaming);
        let target = world.target(producer);
        let filler = "x".repeat(1000);
        for n in 0..120 {
            world.commit(producer, 1, target, &[&packet(&format!("{n} {filler}"))]);
            world.advance(100);
        }
        world.disable(consumer);
        let packets: Vec<TracePacket> = packets_of(&world.files[&session])
            .iter()
            .map(|packet| TracePacket::decode_from_slice(packet).expect("a packet"))
            .collect();
        let kept = texts(&packets).len();
        assert_eq!(kept == 120, keeps_all, "{kept} of 120");
    }
}

#[test]
fn chunks_that_were_never_returned_are_scraped_when_the_session_stops() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 2, target.into());
    // One chunk is complete but was never committed. The other is still being written, so its last packet may be incomplete.
    let _ = world.write(producer, 1, target, &[&packet("complete")]);
    let open = world.write_open(producer, 2, &[&packet("finished"), &packet("unfinished")]);
    world.disable(consumer);
    let mut kept = texts(&world.read(consumer));
    kept.sort();
    assert_eq!(kept, ["complete", "finished"]);
    drop(open);
}

#[test]
fn a_chunk_that_is_committed_after_it_was_scraped_brings_the_rest_and_nothing_twice() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let (chunk, page, index) = world.write_open(producer, 1, &[&packet("one"), &packet("two")]);
    world.flush(consumer, 1, 0);
    world.acknowledge_flushes(producer);
    assert_eq!(texts(&world.read(consumer)), ["one"]);
    chunk.complete();
    let request = ferretto_proto::messages::CommitDataRequest {
        chunks_to_move: vec![ferretto_proto::messages::commit_data_request::ChunksToMove {
            page: Some(page as u32),
            chunk: Some(index as u32),
            target_buffer: Some(target.into()),
            ..Default::default()
        }],
        ..Default::default()
    };
    world.service.commit(producer, &request, &world.now);
    assert_eq!(texts(&world.read(consumer)), ["two"]);
}

#[test]
fn chunks_sent_inside_the_request_count_as_well() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let mut chunk = vec![0, 0, 0, 0, 5, 0, 1, 0];
    let text = packet("over the wire");
    chunk.push(text.len() as u8);
    chunk.extend_from_slice(&text);
    for data in [chunk, vec![1, 2, 3], Vec::new()] {
        let request = ferretto_proto::messages::CommitDataRequest {
            chunks_to_move: vec![ferretto_proto::messages::commit_data_request::ChunksToMove {
                target_buffer: Some(world.target(producer).into()),
                data: Some(data),
                ..Default::default()
            }],
            ..Default::default()
        };
        let now = world.now;
        world.service.commit(producer, &request, &now);
    }
    assert_eq!(texts(&world.read(consumer)), ["over the wire"]);
}

#[test]
fn every_trace_has_clocks_config_uuid_system_info_and_statistics() {
    let (mut world, _, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    world.advance(10);
    world.disable(consumer);
    let packets = world.read(consumer);
    let has = |pick: fn(&trace_packet::Data) -> bool| packets.iter().filter_map(data).any(pick);
    assert!(has(|data| matches!(data, trace_packet::Data::ClockSnapshot(_))));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceConfig(_))));
    assert!(has(
        |data| matches!(data, trace_packet::Data::TraceUuid(uuid) if uuid.lsb == Some(7))
    ));
    assert!(has(|data| matches!(data, trace_packet::Data::SystemInfo(_))));
    assert!(has(|data| matches!(
        data,
        trace_packet::Data::SynchronizationMarker(_)
    )));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceStats(_))));
    let events = packets
        .iter()
        .filter_map(data)
        .filter(|data| matches!(data, trace_packet::Data::ServiceEvent(_)));
    assert!(
        events.count() >= 4,
        "started, all started, disabled, buffers read"
    );
    assert!(
        matches!(data(&packets[0]), Some(trace_packet::Data::ClockSnapshot(_))),
        "a reader needs the clocks before anything else"
    );
    for packet in &packets {
        assert_eq!(
            packet.optional_trusted_uid,
            Some(trace_packet::OptionalTrustedUid::TrustedUid(42))
        );
    }
    assert!(
        !world
            .read(consumer)
            .iter()
            .filter_map(data)
            .any(|data| matches!(data, trace_packet::Data::TraceConfig(_))),
        "once"
    );
}

#[test]
fn packets_that_the_config_switches_off_are_not_written() {
    let mut world = World::new();
    let consumer = world.consumer();
    let mut quiet = config(&[]);
    quiet.builtin_data_sources = trace_config::BuiltinDataSource {
        disable_clock_snapshotting: Some(true),
        disable_trace_config: Some(true),
        disable_system_info: Some(true),
        disable_service_events: Some(true),
        ..Default::default()
    }
    .into();
    world.enable(consumer, &quiet);
    world.disable(consumer);
    for packet in world.read(consumer) {
        let kind = data(&packet).unwrap();
        assert!(
            matches!(
                kind,
                trace_packet::Data::TraceUuid(_)
                    | trace_packet::Data::TraceStats(_)
                    | trace_packet::Data::SynchronizationMarker(_)
                    | trace_packet::Data::TraceProvenance(_)
            ),
            "{kind:?}"
        );
    }
}

#[test]
fn reading_in_small_batches_gives_the_same_packets() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    let expected: Vec<String> = (0..50).map(|n| format!("packet {n}")).collect();
    for text in &expected {
        world.commit(producer, 1, target, &[&packet(text)]);
    }
    assert_eq!(texts(&world.read_in_batches(consumer, 64)), expected);
}

#[test]
fn clocks_are_written_again_when_they_have_drifted_apart() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &TraceConfig { ..config(&[]) });
    let snapshots = |packets: &[TracePacket]| {
        packets
            .iter()
            .filter_map(data)
            .filter(|data| matches!(data, trace_packet::Data::ClockSnapshot(_)))
            .count()
    };
    let at_start = snapshots(&world.read(consumer));
    world.advance(60_000);
    let while_steady = snapshots(&world.read(consumer));
    world.now.realtime += 3_600_000_000_000;
    world.now.monotonic_raw += 20_000_000;
    world.disable(consumer);
    assert!(at_start >= 1);
    assert!(
        while_steady >= 1,
        "one snapshot a read-back keeps readers in step"
    );
    assert!(snapshots(&world.read(consumer)) >= 1);
}

#[test]
fn clocks_that_have_drifted_apart_are_read_again_whenever_something_happens() {
    type Happens = fn(&mut World, ProducerId, ConsumerId);
    let happenings: [(&str, Happens); 4] = [
        ("all have started", |world, producer, _| {
            let (instance, now) = (world.instances(producer)[0].0, world.now);
            world.service.data_source_started(producer, instance.0, &now);
        }),
        ("a flush is done", |world, producer, consumer| {
            world.flush(consumer, 1, 0);
            world.acknowledge_flushes(producer);
        }),
        ("a trigger comes", |world, producer, _| {
            world.activate(producer, &["t"])
        }),
        ("it stops", |world, _, consumer| {
            let now = world.now;
            world.service.disable_tracing(consumer, &now);
        }),
    ];
    for (what, happens) in happenings {
        let mut world = World::new();
        let producer = world.producer("p");
        let descriptor = DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_start: Some(true),
            ..Default::default()
        };
        world.register(producer, &descriptor);
        let consumer = world.consumer();
        let mut waiting = config(&["d"]);
        waiting.trigger_config.get_or_insert_default().triggers = vec![Trigger {
            name: Some("t".into()),
            ..Default::default()
        }];
        world.enable(consumer, &waiting);
        world.activate(producer, &["t"]);
        world.read(consumer);
        world.now.realtime += 3_600_000_000_000;
        let wall_clock = world.now.realtime;
        happens(&mut world, producer, consumer);
        world.run();
        let packets = world.read(consumer);
        let read: Vec<u64> = packets
            .iter()
            .filter_map(|packet| match &packet.data {
                Some(trace_packet::Data::ClockSnapshot(snapshot)) => Some(snapshot),
                _ => None,
            })
            .flat_map(|snapshot| &snapshot.clocks)
            .filter(|clock| clock.clock_id == Some(1))
            .filter_map(|clock| clock.timestamp)
            .collect();
        assert_eq!(read, [wall_clock], "when {what}");
    }
}

#[test]
fn packets_that_are_dropped_count_as_work_of_the_batch() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    // A tag must not be zero.
    let invalid: &[u8] = &[0; 300];
    for _ in 0..10 {
        world.commit(producer, 1, target, &[invalid; 10]);
    }
    world.commit(producer, 1, target, &[&packet("valid")]);
    let now = world.now;
    let batch = world
        .service
        .read_buffers(consumer, &mut ReadCall::default(), 3000, &now)
        .unwrap();
    assert!(batch.has_more);
    let dropped = world.service.trace_stats(consumer).unwrap().invalid_packets;
    assert!(dropped < Some(20), "{dropped:?}");
    assert_eq!(texts(&world.read_in_batches(consumer, 3000)), ["valid"]);
    let dropped = world.service.trace_stats(consumer).unwrap().invalid_packets;
    assert_eq!(dropped, Some(100));
}

#[test]
fn a_request_to_read_ends_although_writers_are_faster_than_the_reader() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    let number = |number: u32| format!("packet {number:05}");
    let mut written = 0..;
    let mut write = |world: &mut World, count: usize| {
        for text in written.by_ref().take(count).map(number) {
            world.commit(producer, 1, target, &[&packet(&text)]);
        }
    };
    write(&mut world, 100);
    let mut batches = 0;
    let read = world.read_while(consumer, 1, |world, _| {
        batches += 1;
        assert!(batches < 1000, "it does not end");
        write(world, 2);
    });
    let read = decoded(&read);
    // The request returns everything that existed when it began, and nothing twice. The next request returns the rest.
    let found = texts(&read);
    assert!(found.len() >= 100, "{}", found.len());
    let completed = read
        .iter()
        .any(|packet| format!("{packet:?}").contains("read_tracing_buffers_completed"));
    assert!(completed, "readers are told");
    let mut all = found;
    all.extend(texts(&world.read(consumer)));
    let total = written.start as usize;
    assert_eq!(all, (0..total as u32).map(number).collect::<Vec<_>>());
}

#[test]
fn a_writer_keeps_its_number_however_many_come_after_it() {
    const WRITERS: u16 = 1000;
    // More writers than a buffer and a session always remember.
    const PRODUCERS: usize = 67;
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let first = world.producer("first");
    world.offer(first, "d");
    let target = world.target(first);
    let number = |world: &mut World| {
        world.commit(first, 1, target, &[&packet("first")]);
        let packets = world.read(consumer);
        let mine = packets
            .iter()
            .find(|packet| texts(&[(*packet).clone()]) == ["first"]);
        mine.unwrap().optional_trusted_packet_sequence_id.clone()
    };
    let crowd = |world: &mut World| {
        for _ in 0..PRODUCERS {
            let producer = world.producer("p");
            world.offer(producer, "d");
            let mut request = CommitDataRequest::default();
            for writer in 1..=WRITERS {
                // A chunk with an empty message.
                let mut chunk = ferretto_wire::Writer::new();
                chunk.raw(&0u32.to_le_bytes());
                chunk.raw(&writer.to_le_bytes());
                chunk.raw(&1u16.to_le_bytes());
                chunk.raw(&[2, 0x0a, 0]);
                request.chunks_to_move.push(ChunksToMove {
                    target_buffer: Some(target.into()),
                    data: Some(chunk.as_slice().to_vec()),
                    ..Default::default()
                });
            }
            let now = world.now;
            world.service.commit(producer, &request, &now);
            world.run();
            world.read_encoded(consumer, 1 << 20);
            world.lose_producer(producer);
        }
    };
    crowd(&mut world);
    let before = number(&mut world);
    assert!(before.is_some());
    crowd(&mut world);
    assert_eq!(number(&mut world), before);
}
