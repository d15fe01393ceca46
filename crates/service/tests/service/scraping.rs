//! Data that producers did not commit, or committed wrongly: when the service takes it out of their shared memory, and how much of it.

use ferretto_proto::messages::{
    CommitDataRequest, DataSourceDescriptor, Message, commit_data_request, trace_config,
};
use ferretto_service::{ConsumerId, FlushOutcome, ProducerId, Scraping};
use ferretto_smb::{FirstPacket, NewChunk};

use crate::world::{World, config, packet, texts};

/// A world with one session, and one producer in it whose writer 1 is registered.
pub(crate) fn scraped() -> (World, ProducerId, ConsumerId) {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    (world, producer, consumer)
}

/// Flushes, and then reads the buffers.
fn flush_and_read(world: &mut World, producer: ProducerId, consumer: ConsumerId) -> Vec<String> {
    world.flush(consumer, 0, 0);
    world.acknowledge_flushes(producer);
    texts(&world.read(consumer))
}

/// A packet after its length, as writers write it.
fn framed(text: &str) -> Vec<u8> {
    let packet = packet(text);
    let mut framed = ferretto_wire::Writer::new();
    framed.varint(packet.len() as u64);
    framed.raw(&packet);
    framed.as_slice().to_vec()
}

fn commit_of(page: usize, chunk: usize, target: u16) -> CommitDataRequest {
    CommitDataRequest {
        chunks_to_move: vec![commit_data_request::ChunksToMove {
            page: Some(page as u32),
            chunk: Some(chunk as u32),
            target_buffer: Some(target.into()),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[test]
fn a_flush_scrapes_uncommitted_chunks_whether_or_not_it_succeeds() {
    let (mut world, producer, consumer) = scraped();
    // Each chunk is still being written, so its last packet is not taken.
    let (mut chunk, ..) = world.write_open(producer, 1, &[&packet("1"), &packet("2"), &packet("3")]);
    assert_eq!(flush_and_read(&mut world, producer, consumer), ["1", "2"]);
    let end: usize = ["1", "2", "3"].iter().map(|text| framed(text).len()).sum();
    chunk.write(end, &[framed("4"), framed("5")].concat());
    chunk.publish(5);
    world.flush(consumer, 0, 100);
    world.advance(100);
    assert_eq!(
        world.consumers[&consumer].flushes.last(),
        Some(&(0, FlushOutcome::Failed))
    );
    assert_eq!(texts(&world.read(consumer)), ["3", "4"]);
}

#[test]
fn a_packet_that_was_counted_before_it_was_finished_comes_out_once_and_whole() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let (mut chunk, page, index) = world.write_open(producer, 1, &[&packet("only")]);
    let end = framed("only").len();
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    // The writer counts the next packet before it writes the first byte of it.
    chunk.publish(2);
    assert_eq!(flush_and_read(&mut world, producer, consumer), ["only"]);
    chunk.write(end, &[0]);
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    chunk.complete();
    let now = world.now;
    world
        .service
        .commit(producer, &commit_of(page, index, target), &now);
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.buffer_stats[0].abi_violations, Some(0));
}

#[test]
fn a_packet_that_was_withheld_comes_with_the_commit() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let (mut chunk, page, index) = world.write_open(producer, 1, &[&packet("only")]);
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    chunk.write(framed("only").len(), &[0]);
    chunk.publish(2);
    chunk.complete();
    let now = world.now;
    world
        .service
        .commit(producer, &commit_of(page, index, target), &now);
    assert_eq!(flush_and_read(&mut world, producer, consumer), ["only"]);
}

#[test]
fn a_writer_that_goes_on_while_it_is_scraped_has_each_packet_read_once_and_whole() {
    const LAST: u16 = 300;
    let (mut world, producer, consumer) = scraped();
    let (mut chunk, ..) = world.write_open(producer, 1, &[&packet("0")]);
    let mut read = Vec::new();
    let _open = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut end = framed("0").len();
            for number in 1..=LAST {
                let framed = framed(&number.to_string());
                chunk.write(end, &framed);
                end += framed.len();
                chunk.publish(number + 1);
            }
            chunk
        });
        while !writer.is_finished() {
            read.extend(flush_and_read(&mut world, producer, consumer));
        }
        writer.join().expect("a chunk")
    });
    read.extend(flush_and_read(&mut world, producer, consumer));
    // The last packet that was counted could still be unfinished.
    let expected: Vec<String> = (0..LAST).map(|number| number.to_string()).collect();
    assert_eq!(read, expected);
}

#[test]
fn leftovers_of_a_lost_producer_go_to_an_ended_session_if_the_producer_may_be_scraped() {
    for (scraping, expected) in [(Scraping::Enabled, &["1", "2"][..]), (Scraping::Disabled, &[])] {
        let mut world = World::new();
        let producer = world.producer_with("p", scraping);
        world.offer(producer, "d");
        let [over, recording] = [world.consumer(), world.consumer()];
        for consumer in [over, recording] {
            world.enable(consumer, &config(&["d"]));
        }
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 1, target.into());
        let (chunk, ..) = world.write_open(producer, 1, &[&packet("1"), &packet("2")]);
        world.disable(over);
        chunk.complete();
        world.lose_producer(producer);
        assert_eq!(texts(&world.read(over)), expected);
        assert!(texts(&world.read(recording)).is_empty());
    }
}

#[test]
fn leftovers_of_a_lost_producer_are_kept() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let _ = world.write(producer, 1, target, &[&packet("complete")]);
    let _open = world.write_open(producer, 1, &[&packet("finished"), &packet("unfinished")]);
    world.lose_producer(producer);
    assert_eq!(texts(&world.read(consumer)), ["complete", "finished"]);
}

#[test]
fn a_scrape_takes_only_from_writers_of_the_session_that_are_registered() {
    let (mut world, producer, consumer) = scraped();
    let other = world.consumer();
    world.enable(other, &config(&["d"]));
    let targets: Vec<u16> = world
        .instances(producer)
        .iter()
        .map(|(_, config)| config.target_buffer.unwrap() as u16)
        .collect();
    world
        .service
        .register_trace_writer(producer, 2, targets[1].into());
    world
        .service
        .register_trace_writer(producer, 3, targets[0].into());
    world.service.unregister_trace_writer(producer, 3);
    for writer in 1..=4 {
        let text = format!("by {writer}");
        let _ = world.write(producer, writer, 0, &[&packet(&text)]);
    }
    assert_eq!(flush_and_read(&mut world, producer, consumer), ["by 1"]);
    assert!(texts(&world.read(other)).is_empty());
    assert_eq!(flush_and_read(&mut world, producer, other), ["by 2"]);
}

#[test]
fn from_a_producer_that_does_not_want_it_nothing_is_taken_while_it_is_there() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Disabled);
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    let _ = world.write(producer, 1, target, &[&packet("kept back")]);
    let _open = world.write_open(producer, 1, &[&packet("finished"), &packet("unfinished")]);
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    world.lose_producer(producer);
    assert_eq!(
        texts(&world.read(consumer)),
        ["kept back", "finished"],
        "but it is not lost"
    );
}

#[test]
fn leftovers_of_an_unscraped_producer_go_only_into_sessions_that_record() {
    for stops_at_once in [true, false] {
        let mut world = World::new();
        let producer = world.producer_with("p", Scraping::Disabled);
        world.register(
            producer,
            &DataSourceDescriptor {
                name: Some("d".into()),
                will_notify_on_stop: Some(!stops_at_once),
                ..Default::default()
            },
        );
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 1, target.into());
        let _ = world.write(producer, 1, target, &[&packet("left")]);
        world.disable(consumer);
        world.lose_producer(producer);
        let expected: &[&str] = if stops_at_once { &[] } else { &["left"] };
        assert_eq!(
            texts(&world.read(consumer)),
            expected,
            "it was to acknowledge the stop"
        );
    }
}

#[test]
fn unpatched_leftovers_of_a_lost_producer_stay_out_and_hold_up_nothing() {
    const CONTINUES_ON_NEXT: u16 = 2;
    const NEEDS_PATCHING: u16 = 4;
    // A writer may be unregistered again, or not registered yet, while it has chunks to be committed.
    for (scraping, is_registered) in [
        (Scraping::Enabled, true),
        (Scraping::Disabled, true),
        (Scraping::Enabled, false),
    ] {
        let mut world = World::new();
        let producer = world.producer_with("p", scraping);
        world.offer(producer, "d");
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
        let target = world.target(producer);
        if is_registered {
            world.service.register_trace_writer(producer, 1, target.into());
        }
        // The chunk is committed. Its last packet goes on in the next chunk, and the length of that packet is to be patched.
        let mut chunk = ferretto_wire::Writer::new();
        chunk.raw(&0u32.to_le_bytes());
        chunk.raw(&1u16.to_le_bytes());
        chunk.raw(&(2 | (CONTINUES_ON_NEXT | NEEDS_PATCHING) << 10).to_le_bytes());
        chunk.raw(&framed("whole"));
        chunk.raw(&framed("begun"));
        let mut request = commit_of(0, 0, target);
        request.chunks_to_move[0].data = Some(chunk.as_slice().to_vec());
        let now = world.now;
        world.service.commit(producer, &request, &now);
        // The producer does not commit the next chunk if the service is to find it by the registration.
        let new = NewChunk {
            first: FirstPacket::Continued,
            writer: ferretto_smb::WriterId(1),
            chunk: ferretto_smb::ChunkId(1),
        };
        let mut next = world.take_chunk(producer, new);
        next.write(0, &[framed("end of it"), framed("after it")].concat());
        next.publish(2);
        let next_commit = commit_of(next.page(), next.index(), target);
        next.complete();
        if !is_registered {
            world.service.commit(producer, &next_commit, &now);
        }
        assert_eq!(texts(&world.read(consumer)), ["whole"]);
        world.lose_producer(producer);
        let read = world.read(consumer);
        assert_eq!(texts(&read), ["after it"]);
        let marked = read.iter().find(|packet| packet.trusted_pid.is_some());
        assert!(marked.is_some_and(|packet| packet.previous_packet_dropped.is_some()));
    }
}

#[test]
fn leftovers_of_a_producer_are_taken_once_for_all_waiting_flushes() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    world.register(
        producer,
        &DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_stop: Some(true),
            ..Default::default()
        },
    );
    let consumer = world.consumer();
    let mut small = config(&["d"]);
    small.buffers[0].size_kb = Some(4);
    small.buffers[0].fill_policy = Some(trace_config::buffer_config::FillPolicy::DISCARD);
    world.enable(consumer, &small);
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    world.commit(producer, 1, target, &[&packet(&"x".repeat(3000))]);
    let _ = world.write(producer, 1, target, &[&packet(&"y".repeat(3000))]);
    let now = world.now;
    world.service.flush(consumer, 0, 0, 0, &now);
    world.service.disable_tracing(consumer, &now);
    world.run();
    world.lose_producer(producer);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.buffer_stats[0].chunks_discarded, Some(1));
}

/// The number of chunks that this consumer's session counts as lost.
fn discarded(world: &mut World, consumer: ConsumerId) -> u64 {
    let stats = world.service.trace_stats(consumer).expect("a session");
    stats.chunks_discarded.unwrap_or_default()
}

#[test]
fn leftovers_of_unregistered_writers_go_to_the_only_possible_buffer() {
    for scraping in [Scraping::Enabled, Scraping::Disabled] {
        let mut world = World::new();
        let producer = world.producer_with("p", scraping);
        world.offer(producer, "d");
        let (over, consumer) = (world.consumer(), world.consumer());
        world.enable(over, &config(&["d"]));
        world.disable(over);
        world.enable(consumer, &config(&["d", "d"]));
        let _ = world.write(producer, 1, 0, &[&packet("complete")]);
        let _open = world.write_open(producer, 1, &[&packet("finished"), &packet("unfinished")]);
        // No writer can have this id.
        let _ = world.write(producer, 0x8000, 0, &[&packet("forged")]);
        assert!(flush_and_read(&mut world, producer, consumer).is_empty());
        world.lose_producer(producer);
        assert_eq!(texts(&world.read(consumer)), ["complete", "finished"]);
        assert!(texts(&world.read(over)).is_empty());
        assert_eq!(discarded(&mut world, consumer), 0);
    }
}

#[test]
fn leftovers_of_unregistered_writers_count_as_lost_for_all_possible_buffers() {
    for scraping in [Scraping::Enabled, Scraping::Disabled] {
        let mut world = World::new();
        let producer = world.producer_with("p", scraping);
        world.offer(producer, "d");
        let other = world.producer("q");
        world.offer(other, "e");
        let recording = [world.consumer(), world.consumer()];
        let (over, of_other) = (world.consumer(), world.consumer());
        for consumer in [recording[0], recording[1], over] {
            world.enable(consumer, &config(&["d"]));
        }
        world.enable(of_other, &config(&["e"]));
        world.disable(over);
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 2, target.into());
        let _ = world.write(producer, 1, 0, &[&packet("complete")]);
        let _open = world.write_open(producer, 1, &[&packet("finished"), &packet("unfinished")]);
        let _ = world.write(producer, 2, target, &[&packet("known")]);
        world.lose_producer(producer);
        assert_eq!(texts(&world.read(recording[0])), ["known"]);
        assert!(texts(&world.read(recording[1])).is_empty());
        for (consumer, lost) in [(recording[0], 2), (recording[1], 2), (over, 0), (of_other, 0)] {
            assert_eq!(discarded(&mut world, consumer), lost);
        }
    }
}

#[test]
fn leftovers_of_a_producer_are_in_no_session_that_it_took_no_part_in() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let other = world.producer("q");
    world.offer(other, "e");
    let (consumer, of_other) = (world.consumer(), world.consumer());
    world.enable(consumer, &config(&["d"]));
    world.enable(of_other, &config(&["e"]));
    let (own, foreign) = (world.target(producer), world.target(other));
    for (writer, target) in [(1, own), (2, foreign), (3, 4711)] {
        world
            .service
            .register_trace_writer(producer, writer, target.into());
        let _ = world.write(
            producer,
            writer as u16,
            target,
            &[&packet(&format!("by {writer}"))],
        );
    }
    let _ = world.write(producer, 4, foreign, &[&packet("by nobody known")]);
    world.lose_producer(producer);
    assert_eq!(texts(&world.read(consumer)), ["by 1", "by nobody known"]);
    assert!(texts(&world.read(of_other)).is_empty());
}

#[test]
fn a_chunk_that_is_lost_is_counted_and_its_place_is_free_again() {
    let (mut world, producer, consumer) = scraped();
    let good = world.target(producer);
    world.service.unregister_trace_writer(producer, 1);
    let bad = [
        None,
        Some(0),
        Some(70_000),
        Some(u32::from(good) + 65_536),
        Some(999),
    ];
    // Each round repeats all of them, many more times than there are chunks.
    let rounds = 100;
    for target in std::iter::repeat_n(bad, rounds).flatten() {
        let mut request = world.write(producer, 1, 0, &[&packet("nowhere")]);
        request.chunks_to_move[0].target_buffer = target;
        let now = world.now;
        world.service.commit(producer, &request, &now);
    }
    world.run();
    assert!(texts(&world.read(consumer)).is_empty());
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.chunks_discarded, Some((rounds * bad.len()) as u64));
}

#[test]
fn chunks_that_are_not_there_or_not_complete_are_counted_and_nothing_else() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let (_open, page, index) = world.write_open(producer, 1, &[&packet("open")]);
    let now = world.now;
    for (page, chunk) in [
        (page, index),
        (page, 1),
        (63, 0),
        (64, 0),
        (u32::MAX as usize, 0),
        (0, 99),
    ] {
        world
            .service
            .commit(producer, &commit_of(page, chunk, target), &now);
    }
    world.run();
    assert!(texts(&world.read(consumer)).is_empty());
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.chunks_discarded, Some(6));
    assert!(world.producers[&producer].disconnected.is_none());
}

#[test]
fn chunks_for_an_ended_session_are_no_loss_of_another() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    world.enable(consumer, &config(&["d"]));
    world.service.unregister_trace_writer(producer, 1);
    world.commit(producer, 1, target, &[&packet("too late")]);
    let patch = CommitDataRequest {
        chunks_to_patch: vec![commit_data_request::ChunkToPatch {
            target_buffer: Some(target.into()),
            writer_id: Some(1),
            chunk_id: Some(0),
            patches: vec![Default::default(); 3],
            ..Default::default()
        }],
        ..Default::default()
    };
    world.service.commit(producer, &patch, &now);
    assert!(texts(&world.read(consumer)).is_empty());
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(
        (stats.chunks_discarded, stats.patches_discarded),
        (Some(0), Some(0))
    );
}

#[test]
fn chunks_without_a_buffer_are_counted_where_they_are_missing() {
    let mut world = World::new();
    let (producer, other) = (world.producer("p"), world.producer("q"));
    for (producer, name) in [(producer, "d"), (producer, "e"), (other, "f")] {
        world.offer(producer, name);
    }
    let before = world.consumer();
    world.enable(before, &config(&["d"]));
    let lost = |world: &mut World, consumer| {
        let stats = world.service.trace_stats(consumer).unwrap();
        (stats.chunks_discarded.unwrap(), stats.patches_discarded.unwrap())
    };
    let target = u32::from(world.target(producer));
    let foreign = {
        let consumer = world.consumer();
        world.enable(consumer, &config(&["f"]));
        u32::from(world.target(other))
    };
    let send = |world: &mut World, target: u32| {
        let mut request = commit_of(0, 0, 0);
        // There is no such chunk and no such writer.
        request.chunks_to_move[0].target_buffer = Some(target);
        request.chunks_to_patch = vec![commit_data_request::ChunkToPatch {
            target_buffer: Some(target),
            patches: vec![Default::default(); 2],
            ..Default::default()
        }];
        let now = world.now;
        world.service.commit(producer, &request, &now);
    };
    send(&mut world, target);
    assert_eq!(lost(&mut world, before), (1, 2));
    let after = world.consumer();
    world.enable(after, &config(&["e"]));
    assert_eq!(lost(&mut world, after), (0, 0), "it was not there then");
    send(&mut world, target);
    assert_eq!(
        (lost(&mut world, before), lost(&mut world, after)),
        ((2, 4), (0, 0))
    );
    // Some of these buffers never existed, and the producer may not write into another one. The data could be missing in either session.
    for unknown in [0, 999, 70_000, foreign] {
        send(&mut world, unknown);
    }
    assert_eq!(
        (lost(&mut world, before), lost(&mut world, after)),
        ((6, 12), (4, 8))
    );
    let of_other = world.consumer();
    world.enable(of_other, &config(&["f"]));
    let now = world.now;
    world.service.disable_tracing(before, &now);
    send(&mut world, 0);
    assert_eq!(lost(&mut world, of_other), (0, 0));
    assert_eq!(lost(&mut world, before), (6, 12), "it is over");
    world.service.free_buffers(before, &now);
    send(&mut world, target);
    assert_eq!(
        lost(&mut world, after),
        (5, 10),
        "but for what was meant for a session that is over"
    );
}

/// A request with one patch of this chunk for each element of `data`.
fn patches(target: u16, writer: u32, data: &[&[u8]]) -> CommitDataRequest {
    use commit_data_request::chunk_to_patch::Patch;
    let patch = |data: &&[u8]| Patch {
        offset: Some(2),
        data: Some(data.to_vec()),
        ..Default::default()
    };
    CommitDataRequest {
        chunks_to_patch: vec![commit_data_request::ChunkToPatch {
            target_buffer: Some(target.into()),
            writer_id: Some(writer),
            chunk_id: Some(0),
            patches: data.iter().map(patch).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[test]
fn patches_reach_the_chunks_of_their_own_producer_only() {
    let mut world = World::new();
    let (producer, intruder) = (world.producer("p"), world.producer("intruder"));
    world.offer(producer, "d");
    world.offer(intruder, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    // A packet with one field of bytes, whose last four bytes are patched.
    let mut body = ferretto_wire::Writer::new();
    body.bytes_field(900, b"\x0a\x04....");
    world.commit(producer, 1, target, &[body.as_slice()]);
    let now = world.now;
    let at = body.len() as u32 + 1 - 4;
    let aimed = |writer, data: &[&[u8]]| {
        let mut request = patches(target, writer, data);
        for patch in &mut request.chunks_to_patch[0].patches {
            patch.offset = Some(at);
        }
        request
    };
    world.service.commit(intruder, &aimed(1, &[b"evil"]), &now);
    world.service.commit(producer, &aimed(2, &[b"lost"]), &now);
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.buffer_stats[0].patches_failed, Some(2));
    world.service.commit(producer, &aimed(1, &[b"good"]), &now);
    assert_eq!(texts(&world.read(consumer)), ["good"]);
}

#[test]
fn patches_that_cannot_be_are_discarded_one_by_one_or_all_together() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("a packet of some length")]);
    let now = world.now;
    let discarded = |world: &mut World, request: &CommitDataRequest| {
        world.service.commit(producer, request, &now);
        let stats = world.service.trace_stats(consumer).unwrap();
        (
            stats.patches_discarded.unwrap(),
            stats.buffer_stats[0].patches_succeeded.unwrap(),
        )
    };
    let odd = patches(target, 1, &[b"", b"123", b"12345", b"1234"]);
    assert_eq!(discarded(&mut world, &odd), (3, 1));
    for nobody in [0, 0x8000, u32::MAX] {
        discarded(&mut world, &patches(target, nobody, &[b"1234"]));
    }
    let most = vec![&b"1234"[..]; ferretto_service::limits::MAX_PATCHES_PER_CHUNK];
    assert_eq!(discarded(&mut world, &patches(target, 1, &most)), (6, 1025));
    let too_many = [&most[..], &[b"1234"]].concat();
    assert_eq!(
        discarded(&mut world, &patches(target, 1, &too_many)),
        (6 + 1025, 1025)
    );
}

#[test]
fn leftovers_for_an_ended_session_are_not_counted_as_lost() {
    let (mut world, producer, consumer) = scraped();
    let _open = world.write_open(producer, 1, &[&packet("late"), &packet("unfinished")]);
    let now = world.now;
    world.service.disconnect_consumer(consumer, &now);
    world.run();
    let other = world.consumer();
    world.enable(other, &config(&["d"]));
    world.lose_producer(producer);
    assert_eq!(
        world.service.trace_stats(other).unwrap().chunks_discarded,
        Some(0)
    );
}

#[test]
fn a_flush_without_acknowledging_producers_scrapes_again() {
    let (mut world, producer, consumer) = scraped();
    assert_eq!(flush_and_read(&mut world, producer, consumer), [""; 0]);
    let silent = DataSourceDescriptor {
        name: Some("d".into()),
        no_flush: Some(true),
        ..Default::default()
    };
    let other = world.producer_with("q", Scraping::Enabled);
    let now = world.now;
    world.service.unregister_data_source(producer, "d", &now);
    world
        .service
        .register_data_source(other, &silent.encode_to_vec(), &now);
    world.run();
    let target = world.target(other);
    world.service.register_trace_writer(other, 1, target.into());
    let _ = world.write(other, 1, target, &[&packet("left")]);
    world.flush(consumer, 0, 0);
    assert_eq!(texts(&world.read(consumer)), ["left"]);
}

#[test]
fn flushes_that_time_out_one_after_the_other_each_scrape() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    world.flush(consumer, 0, 100);
    world.flush(consumer, 0, 200);
    world.advance(100);
    assert_eq!(texts(&world.read(consumer)), [""; 0]);
    let _ = world.write(producer, 1, target, &[&packet("later")]);
    world.advance(100);
    assert_eq!(texts(&world.read(consumer)), ["later"]);
}
