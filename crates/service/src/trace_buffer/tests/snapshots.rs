//! Read-only clones.

use super::*;

fn snapshot(buffer: &mut Fixture) -> Fixture {
    Fixture(buffer.0.clone_read_only().unwrap())
}

#[test]
fn a_clone_has_the_unread_packets_and_leaves_the_original_alone() {
    let mut buffer = ring(4096);
    for (writer, letter) in [(1, 'a'), (2, 'b'), (3, 'c')] {
        buffer.commit(chunk(1, writer, 0).whole(letter, 16).whole(letter, 17));
    }
    assert_eq!(buffer.read_some(1), ["a16"]);
    let mut one = snapshot(&mut buffer);
    assert_eq!(one.0.used_size(), 3 * 64);
    let rest = ["a17", "b16", "b17", "c16", "c17"];
    assert_eq!(one.read(), rest);
    assert_eq!(one.read(), NOTHING);
    assert_eq!(buffer.read(), rest);
    assert_eq!(buffer.read(), NOTHING);
}

#[test]
fn a_trace_that_begins_with_a_clone_is_marked_where_something_was_read_before() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 16));
    buffer.commit(chunk(1, 2, 0).whole('b', 16).whole('c', 16));
    assert_eq!(buffer.read_some(2), ["a16", "b16"]);
    buffer.commit(chunk(1, 1, 1).whole('d', 16).whole('e', 16));
    buffer.commit(chunk(1, 3, 0).whole('f', 16));
    let mut clone = snapshot(&mut buffer);
    clone.0.begin_trace();
    const MARKED: &str = r#" !{"PRESENT"}"#;
    let marked = [format!("c16{MARKED}"), format!("d16{MARKED}")];
    assert_eq!(
        clone.read(),
        [&marked[..], &["e16".into(), "f16".into()]].concat()
    );
    assert_eq!(buffer.read(), ["c16", "d16", "e16", "f16"]);
}

#[test]
fn a_clone_refuses_writes() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 16).needs_patching());
    let mut copy = snapshot(&mut buffer);
    let more = chunk(1, 1, 1).end('b', 16);
    assert_eq!(copy.try_commit(&more), CopyOutcome::Discarded(Discard::ReadOnly));
    assert!(!copy.patch((1, 1, 0), 1, b"aaaa", MorePatches::Done));
    buffer.0.set_read_only();
    assert_eq!(
        buffer.try_commit(&more),
        CopyOutcome::Discarded(Discard::ReadOnly)
    );
}

#[test]
fn counters_of_a_clone_go_on_except_those_of_reading() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 16));
    buffer.commit(chunk(1, 1, 1).begin('b', 16));
    assert_eq!(buffer.read(), ["a16"]);
    let stats = snapshot(&mut buffer).stats();
    let expected = BufferStats {
        bytes_read: 0,
        chunks_read: 0,
        readaheads_failed: 0,
        ..buffer.stats()
    };
    assert_eq!(stats, expected);
    assert_eq!(snapshot(&mut buffer).0.writer_stats().count(), 1);
}

#[test]
fn clones_before_and_after_a_late_commit() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 10).whole('-', 10).padded_to(64));
    buffer.commit(chunk(1, 1, 2).whole('d', 30));
    assert_eq!(snapshot(&mut buffer).read(), ["a10"]);
    buffer.commit(chunk(1, 1, 1).whole('c', 20));
    buffer.commit(chunk(1, 1, 0).whole('a', 10).whole('b', 10));
    assert_eq!(snapshot(&mut buffer).read(), ["a10", "b10", "c20", "d30"]);
}

#[test]
fn patches_are_in_the_clone() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 5));
    assert!(buffer.patch((1, 1, 0), 1, b"bbbb", MorePatches::Done));
    assert_eq!(snapshot(&mut buffer).read(), ["b5"]);
}

#[test]
fn a_clone_of_a_wrapped_buffer_starts_at_the_oldest() {
    let mut buffer = ring(4096);
    for writer in 1..=6 {
        buffer.commit(chunk(1, writer, 0).whole('x', 1000 + usize::from(writer)));
    }
    assert_eq!(snapshot(&mut buffer).read(), ["x1003", "x1004", "x1005", "x1006"]);

    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2048));
    buffer.commit(chunk(1, 2, 0).whole('b', 3192));
    assert_eq!(snapshot(&mut buffer).0.used_size(), 3216);
    assert_eq!(snapshot(&mut buffer).read(), ["b3192"]);
}

/// How many pieces of memory two buffers share.
fn in_common(one: &Fixture, two: &Fixture) -> usize {
    let addresses = |buffer: &Fixture| -> Vec<usize> {
        buffer
            .0
            .ring
            .pieces()
            .filter_map(|(address, _)| address)
            .collect()
    };
    let two = addresses(two);
    addresses(one)
        .iter()
        .filter(|address| two.contains(address))
        .count()
}

fn in_pieces(size: u64) -> Fixture {
    Fixture(TraceBuffer::with_pieces_of(4096, size, FillPolicy::RingBuffer).unwrap())
}

#[test]
fn a_clone_shares_each_piece_until_the_buffer_writes_there() {
    let mut buffer = in_pieces(4 * 4096);
    for id in 0..8 {
        buffer.commit(chunk(1, 1, id).whole('a', 2000));
    }
    let mut clone = snapshot(&mut buffer);
    assert_eq!(in_common(&buffer, &clone), 4);
    // The first piece is overwritten.
    buffer.commit(chunk(1, 1, 8).whole('b', 2000));
    assert_eq!(in_common(&buffer, &clone), 3);
    let expected = ["a2000"; 8];
    assert_eq!(clone.read(), expected);
    assert_eq!(in_common(&buffer, &clone), 3, "reading a clone copies nothing");
    let mut second = snapshot(&mut buffer);
    assert_eq!(in_common(&clone, &second), 3);
    assert_eq!(in_common(&buffer, &second), 4);
    drop(buffer);
    assert_eq!(second.read()[0], "a2000 !{\"PRESENT\", \"OVERWRITE\"}");
}

#[test]
fn memory_comes_back_when_clones_are_gone() {
    let mut buffer = in_pieces(2 * 4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2000));
    drop(snapshot(&mut buffer));
    let address = |buffer: &Fixture| buffer.0.ring.bytes_from(0).as_ptr();
    let before = address(&buffer);
    buffer.commit(chunk(1, 1, 1).whole('b', 200));
    assert_eq!(address(&buffer), before, "copied although nobody else has it");
    assert_eq!(in_common(&buffer, &buffer), 0);
    assert_eq!(buffer.read(), ["a2000", "b200"]);
}

#[test]
fn what_clones_share_counts_once() {
    let mut buffer = in_pieces(4 * 4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 3000));
    let mut all = Footprint::default();
    let mut clones: Vec<Fixture> = (0..60).map(|_| snapshot(&mut buffer)).collect();
    for clone in &clones {
        all.add(&clone.0);
    }
    // Each has for itself only the list of chunks and the state of the sequence.
    assert!((3016..3016 + 60 * 400).contains(&all.bytes()), "{}", all.bytes());
    buffer.commit(chunk(1, 1, 1).whole('b', 100));
    clones.push(snapshot(&mut buffer));
    let before = all.bytes();
    all.add(&clones[60].0);
    assert!(all.bytes() > before + 3000);
}

#[test]
fn chunks_do_not_cross_borders_between_pieces() {
    let buffer = TraceBuffer::with_pieces_of(8192, 8192 + 4096, FillPolicy::RingBuffer);
    let mut buffer = Fixture(buffer.unwrap());
    for id in 0..3 {
        buffer.commit(chunk(1, 1, id).whole('a', 3000));
    }
    // So much of the first piece is left behind two chunks.
    let padding = 8192 - 2 * 3024;
    assert_eq!(buffer.stats().padding_bytes_written, padding);
    assert_eq!(buffer.0.used_size(), 8192 + 3024);
    assert_eq!(buffer.stats().write_wrap_count, 0);
    buffer.commit(chunk(1, 1, 3).whole('b', 3000));
    assert_eq!(buffer.stats().write_wrap_count, 1);
    let packets = ["a3000 !{\"PRESENT\", \"OVERWRITE\"}", "a3000", "b3000"];
    assert_eq!(buffer.read(), packets);
    for id in 4..6 {
        buffer.commit(chunk(1, 1, id).whole('c', 3000));
    }
    assert_eq!(buffer.stats().padding_bytes_cleared, padding);
    assert_eq!(buffer.stats().padding_bytes_written, 2 * padding);
    assert_eq!(buffer.read(), ["c3000", "c3000"]);
    let large = chunk(1, 1, 6).whole('d', 8192);
    assert_eq!(
        buffer.try_commit(&large),
        CopyOutcome::Violation(AbiViolation::TooLarge)
    );
}

#[test]
fn empty_chunks_may_end_where_memory_ends() {
    for (piece, size) in [(4096, 4096), (4096, 8192), (8192, 12288)] {
        let buffer = TraceBuffer::with_pieces_of(piece, size, FillPolicy::RingBuffer);
        let mut buffer = Fixture(buffer.unwrap());
        let chunks = size as u32 / 16;
        for id in 0..chunks / 2 {
            buffer.commit(chunk(1, 1, id));
        }
        let mut half = snapshot(&mut buffer);
        assert_eq!(half.read(), NOTHING);
        for id in chunks / 2..chunks {
            buffer.commit(chunk(1, 1, id));
        }
        let mut full = snapshot(&mut buffer);
        for id in chunks..chunks * 2 {
            buffer.commit(chunk(1, 1, id));
        }
        assert_eq!(full.read(), NOTHING);
        assert_eq!(buffer.read(), NOTHING);
        buffer.commit(chunk(1, 1, chunks * 2).whole('a', 16));
        assert_eq!(buffer.read().len(), 1);
    }
}

#[test]
fn the_list_of_chunks_gives_memory_back_as_they_are_read() {
    let mut buffer = ring(1 << 20);
    buffer.commit(chunk(1, 1, 0).whole('a', 16));
    for id in 1..10_000 {
        let _ = buffer.0.copy_chunk(&chunk(1, 1, id).info, &[]);
    }
    buffer.commit(chunk(1, 1, 10_000).begin('b', 16));
    let mut clone = snapshot(&mut buffer);
    let footprint = |buffer: &Fixture| {
        let mut footprint = Footprint::default();
        footprint.add(&buffer.0);
        footprint.bytes() - buffer.0.used_size()
    };
    assert!(footprint(&clone) > 80_000);
    assert_eq!(clone.read(), ["a16"]);
    assert!(footprint(&clone) < 10_000, "{}", footprint(&clone));
}
