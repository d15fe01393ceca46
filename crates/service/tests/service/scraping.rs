//! Data that producers did not commit, or committed wrongly: what is taken out of their shared memory, and when.

use ferretto_proto::messages::{CommitDataRequest, commit_data_request};
use ferretto_service::{ConsumerId, FlushOutcome, ProducerId, Scraping};

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

fn flush(world: &mut World, consumer: ConsumerId, timeout_ms: u32) {
    let now = world.now;
    world.service.flush(consumer, 0, timeout_ms, 0, &now);
    world.run();
}

/// Flushes, and reads what there is then.
fn flush_and_read(world: &mut World, producer: ProducerId, consumer: ConsumerId) -> Vec<String> {
    flush(world, consumer, 0);
    world.acknowledge_flushes(producer);
    texts(&world.read(consumer))
}

/// What a writer puts in front of a packet, and the packet.
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
fn a_flush_takes_what_was_not_committed_whether_or_not_it_succeeds() {
    let (mut world, producer, consumer) = scraped();
    // Each chunk is still being written, so its last packet is not taken.
    let (mut chunk, ..) = world.write_open(producer, 1, &[&packet("1"), &packet("2"), &packet("3")]);
    assert_eq!(flush_and_read(&mut world, producer, consumer), ["1", "2"]);
    let end: usize = ["1", "2", "3"].iter().map(|text| framed(text).len()).sum();
    chunk.write(end, &[framed("4"), framed("5")].concat());
    chunk.publish(5);
    flush(&mut world, consumer, 100);
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
    // The next packet is counted before a byte of it is written.
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
    // The last one that was counted could still be unfinished.
    let expected: Vec<String> = (0..LAST).map(|number| number.to_string()).collect();
    assert_eq!(read, expected);
}

#[test]
fn what_a_producer_leaves_behind_is_kept_when_it_is_lost() {
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
fn nothing_is_taken_from_a_producer_that_does_not_want_it() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Disabled);
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    let _ = world.write(producer, 1, target, &[&packet("kept back")]);
    assert!(flush_and_read(&mut world, producer, consumer).is_empty());
    world.lose_producer(producer);
    assert!(texts(&world.read(consumer)).is_empty());
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
    // Many times the chunks that there are.
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
fn what_is_committed_to_a_session_that_ended_is_lost_and_counted() {
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
        (Some(1), Some(3))
    );
}

/// One of so many patches of this chunk, each with this data.
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
    // A packet of one field of bytes: 4 of them, the last thing in it.
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
fn what_a_producer_leaves_for_a_session_that_is_over_is_not_counted_as_lost() {
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
