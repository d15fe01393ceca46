//! Writing and reading back: order, whole packets, packets put together from several chunks.

use super::*;

#[test]
fn an_empty_buffer_gives_nothing() {
    assert_eq!(ring(4096).read(), NOTHING);
}

#[test]
fn without_a_read_cycle_nothing_is_read_and_a_write_ends_it() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10));
    assert_eq!(buffer.next(), None);
    buffer.0.begin_read();
    buffer.commit(chunk(1, 1, 1).whole('b', 10));
    assert_eq!(buffer.next(), None);
    assert_eq!(buffer.read(), ["a10", "b10"]);
}

#[test]
fn each_packet_is_read_once_and_counted_on_both_sides() {
    let mut buffer = ring(64 << 10);
    for id in 0..1000 {
        buffer.commit(chunk(1, 1, id).whole('a', 42));
        assert_eq!(buffer.read(), ["a42"]);
        assert_eq!(buffer.read(), NOTHING);
        let stats = buffer.stats();
        assert_eq!(
            (stats.chunks_written, stats.chunks_read),
            (u64::from(id) + 1, u64::from(id) + 1)
        );
        assert_eq!(stats.bytes_written, 64 * (u64::from(id) + 1));
        assert_eq!(stats.bytes_written, stats.bytes_read);
        assert_eq!((stats.padding_bytes_written, stats.padding_bytes_cleared), (0, 0));
        assert_eq!(stats.bytes_in_use(), 0);
    }
}

#[test]
fn sequences_come_out_in_the_order_of_their_commits() {
    let mut buffer = ring(4096);
    for (index, letter) in ('a'..='j').enumerate() {
        let index = index as u16 + 1;
        buffer.commit(chunk(index.into(), index, index.into()).whole(letter, 16));
    }
    let expected: Vec<String> = ('a'..='j').map(|letter| format!("{letter}16")).collect();
    assert_eq!(buffer.read(), expected);
}

#[test]
fn random_writers_come_out_in_the_order_of_their_commits() {
    for seed in 1..=32 {
        let mut random = Random(seed);
        let mut buffer = ring(4096 * (1 + random.below(32) as u64));
        let mut expected = Vec::new();
        for id in 0.. {
            let size = 2 + random.below(4000);
            if size as u32 + 32 > buffer.room_to_end() {
                break;
            }
            let (producer, writer) = (1 + random.below(1 << 31) as u32, 1 + random.below(32_767) as u16);
            buffer.commit(chunk(producer, writer, id).whole('x', size));
            expected.push(format!("x{size}"));
        }
        assert_eq!(buffer.read(), expected, "seed {seed}");
    }
}

#[test]
fn empty_packets_are_left_out() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 42).whole('b', 1).whole('c', 42));
    assert_eq!(buffer.read(), ["a42", "c42"]);
    assert_eq!(buffer.stats().abi_violations, 0);
}

#[test]
fn a_packet_names_its_writer() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).begin('b', 10).uid(11));
    buffer.commit(chunk(2, 1, 0).whole('c', 10).whole('d', 10).uid(22));
    buffer.commit(chunk(1, 1, 1).end('e', 10).whole('f', 10).uid(11));
    buffer.0.begin_read();
    let mut seen = Vec::new();
    while let Some(packet) = buffer.0.read_next_packet() {
        let letter = packet.fragments().next().unwrap()[0] as char;
        let SequenceInfo {
            producer,
            writer,
            identity,
        } = packet.sequence;
        seen.push((letter, producer.0, writer.0, identity.uid, identity.pid));
    }
    let expected = [
        ('a', 1, 11),
        ('b', 1, 11),
        ('c', 2, 22),
        ('d', 2, 22),
        ('f', 1, 11),
    ]
    .map(|(l, p, u)| (l, p, 1, u, Some(7)));
    assert_eq!(seen, expected);
}

#[test]
fn packets_can_be_gathered_and_looked_at_together() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).begin('b', 20));
    buffer.commit(chunk(1, 1, 1).end('c', 30));
    buffer.0.begin_read();
    let mut spans = Vec::new();
    while let Some(packet) = buffer.0.read_next_packet() {
        assert_eq!(packet.size(), packet.fragments().map(<[u8]>::len).sum());
        spans.extend_from_slice(packet.spans());
    }
    let bytes: Vec<&[u8]> = spans.iter().map(|&span| buffer.0.bytes(span)).collect();
    assert_eq!(bytes, [[b'a'; 9].as_slice(), &[b'b'; 19], &[b'c'; 29]]);
}

#[test]
fn fragments_are_stitched_across_chunks() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('b', 20).whole('c', 30).begin('d', 10));
    buffer.commit(chunk(1, 1, 1).end('e', 20).whole('f', 30));
    assert_eq!(buffer.read(), ["b20", "c30", "d10+e20", "f30"]);
    assert_eq!(buffer.stats().readaheads_succeeded, 1);
}

#[test]
fn a_packet_may_span_any_number_of_chunks() {
    for middle in 1..=10 {
        let mut buffer = ring(8192);
        buffer.commit(chunk(1, 1, 0).whole('a', 10).begin('b', 20));
        let mut expected = String::from("b20");
        for id in 1..=middle {
            buffer.commit(chunk(1, 1, id).middle('m', 20 + id as usize));
            expected += &format!("+m{}", 20 + id);
        }
        buffer.commit(chunk(1, 1, middle + 1).end('y', 30).whole('z', 50));
        assert_eq!(buffer.read(), ["a10", &(expected + "+y30"), "z50"]);
    }
}

#[test]
fn an_unfinished_packet_is_kept_until_its_end_arrives() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 5).begin('b', 5));
    assert_eq!(buffer.read(), ["a5"]);
    assert_eq!(buffer.read(), NOTHING);
    assert_eq!(buffer.stats().readaheads_failed, 2);
    buffer.commit(chunk(1, 1, 1).middle('c', 5));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(1, 1, 2).end('d', 5));
    assert_eq!(buffer.read(), ["b5+c5+d5"]);
}

#[test]
fn a_sequence_that_waits_holds_up_no_other() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 10));
    buffer.commit(chunk(1, 2, 0).whole('b', 10));
    buffer.scrape(chunk(1, 3, 0).whole('c', 10).whole('-', 10).padded_to(64));
    buffer.commit(chunk(1, 4, 0).whole('d', 10));
    assert_eq!(buffer.read(), ["b10", "c10", "d10"]);
}

#[test]
fn chunks_committed_out_of_order_are_read_in_order() {
    let mut buffer = ring(4096);
    for (id, letter) in [(0, 'a'), (2, 'c'), (1, 'b')] {
        buffer.commit(chunk(1, 1, id).whole(letter, 10));
    }
    assert_eq!(buffer.stats().chunks_committed_out_of_order, 1);
    assert_eq!(buffer.read(), ["a10", "b10", "c10"]);
}

#[test]
fn fragments_committed_out_of_order_are_stitched_in_order() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 10));
    buffer.commit(chunk(1, 1, 2).end('c', 30));
    buffer.commit(chunk(1, 1, 1).middle('b', 20));
    buffer.commit(chunk(1, 1, 3).whole('d', 40));
    assert_eq!(buffer.read(), ["a10+b20+c30", "d40"]);
}

#[test]
fn chunk_ids_wrap_around() {
    const MAX: u32 = u32::MAX;
    for order in [
        [MAX - 1, MAX, 0, 1],
        [MAX - 1, 1, 0, MAX],
        [1, 0, MAX, MAX - 1],
        [0, MAX - 1, 1, MAX],
    ] {
        let mut buffer = ring(4096);
        for id in order {
            buffer.commit(chunk(1, 1, id).whole('x', 10 + id.wrapping_add(2) as usize));
        }
        assert_eq!(buffer.read(), ["x10", "x11", "x12", "x13"], "{order:?}");
    }
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, MAX - 1).begin('a', 10));
    buffer.commit(chunk(1, 1, MAX).middle('b', 10));
    buffer.commit(chunk(1, 1, 0).middle('c', 10));
    buffer.commit(chunk(1, 1, 1).end('d', 10));
    assert_eq!(buffer.read(), ["a10+b10+c10+d10"]);
}

#[test]
fn late_chunks_fit_in_while_their_successors_are_unread() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, u32::MAX - 1).whole('a', 10));
    buffer.commit(chunk(1, 1, 1).whole('d', 40));
    assert_eq!(buffer.read_some(1), ["a10"]);
    buffer.commit(chunk(1, 1, 0).whole('c', 30));
    buffer.commit(chunk(1, 1, u32::MAX).whole('b', 20));
    assert_eq!(buffer.read(), ["b20", "c30", "d40"]);
}

#[test]
fn empty_chunks_before_after_and_within_a_packet_do_not_matter() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0));
    buffer.commit(chunk(1, 1, 1).whole('a', 10).begin('b', 20));
    buffer.commit(chunk(1, 1, 2));
    buffer.commit(chunk(1, 1, 3).middle('c', 30));
    buffer.commit(chunk(1, 1, 4));
    assert_eq!(buffer.read(), ["a10"]);
    buffer.commit(chunk(1, 1, 5).end('d', 40).whole('e', 10));
    buffer.commit(chunk(1, 1, 6));
    assert_eq!(buffer.read(), ["b20+c30+d40", "e10"]);
    assert_eq!(buffer.stats().bytes_in_use(), 0);
}

#[test]
fn the_memory_of_a_large_buffer_is_not_touched_before_it_is_written() {
    let mut buffer = ring(1 << 30);
    assert_eq!(
        (buffer.0.size(), buffer.0.used_size(), buffer.0.has_data()),
        (1 << 30, 0, false)
    );
    buffer.commit(chunk(1, 1, 0).whole('a', 100));
    assert_eq!(buffer.0.used_size(), 128);
    let snapshot = buffer.0.clone_read_only().unwrap();
    assert_eq!(snapshot.used_size(), 128);
}

#[test]
fn sizes_are_rounded_up_to_pages_and_limited() {
    assert_eq!(ring(0).0.size(), 4096);
    assert_eq!(ring(4097).0.size(), 8192);
    assert_eq!(
        TraceBuffer::new(u64::from(u32::MAX), FillPolicy::RingBuffer).unwrap_err(),
        TraceBufferError::TooLarge {
            bytes: u64::from(u32::MAX)
        }
    );
}

#[test]
fn free_space_is_stepped_over_at_once() {
    let mut buffer = ring(64 << 10);
    buffer.commit(chunk(1, 1, 0).whole('a', 100));
    buffer.commit(chunk(1, 2, 0).begin('w', 100));
    for id in 1..=400 {
        buffer.commit(chunk(1, 1, id).whole('a', 100));
    }
    assert_eq!(buffer.read().len(), 401);
    let mut records = 0;
    let mut at = 0;
    while at < buffer.0.ring.used() {
        records += 1;
        at += match buffer.0.ring.record(at) {
            Record::Free(run) => run.bytes,
            Record::Chunk(chunk) => chunk.outer_size(),
        };
    }
    assert_eq!(records, 3, "free, the chunk that waits, free");
}
