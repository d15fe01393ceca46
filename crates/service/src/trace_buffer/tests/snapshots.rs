//! Read-only clones.

use super::*;

fn snapshot(buffer: &Fixture) -> Fixture {
    Fixture(buffer.0.clone_read_only().unwrap())
}

#[test]
fn a_clone_has_the_unread_packets_and_leaves_the_original_alone() {
    let mut buffer = ring(4096);
    for (writer, letter) in [(1, 'a'), (2, 'b'), (3, 'c')] {
        buffer.commit(chunk(1, writer, 0).whole(letter, 16).whole(letter, 17));
    }
    assert_eq!(buffer.read_some(1), ["a16"]);
    let mut one = snapshot(&buffer);
    assert_eq!(one.0.used_size(), 3 * 64);
    let rest = ["a17", "b16", "b17", "c16", "c17"];
    assert_eq!(one.read(), rest);
    assert_eq!(one.read(), NOTHING);
    assert_eq!(buffer.read(), rest);
    assert_eq!(buffer.read(), NOTHING);
}

#[test]
fn a_clone_refuses_writes() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 16).needs_patching());
    let mut copy = snapshot(&buffer);
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
    let stats = snapshot(&buffer).stats();
    let expected = BufferStats {
        bytes_read: 0,
        chunks_read: 0,
        readaheads_failed: 0,
        ..buffer.stats()
    };
    assert_eq!(stats, expected);
    assert_eq!(snapshot(&buffer).0.writer_stats().count(), 1);
}

#[test]
fn clones_before_and_after_a_late_commit() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 10).whole('-', 10).padded_to(64));
    buffer.commit(chunk(1, 1, 2).whole('d', 30));
    assert_eq!(snapshot(&buffer).read(), ["a10"]);
    buffer.commit(chunk(1, 1, 1).whole('c', 20));
    buffer.commit(chunk(1, 1, 0).whole('a', 10).whole('b', 10));
    assert_eq!(snapshot(&buffer).read(), ["a10", "b10", "c20", "d30"]);
}

#[test]
fn patches_are_in_the_clone() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 5));
    assert!(buffer.patch((1, 1, 0), 1, b"bbbb", MorePatches::Done));
    assert_eq!(snapshot(&buffer).read(), ["b5"]);
}

#[test]
fn a_clone_of_a_wrapped_buffer_starts_at_the_oldest() {
    let mut buffer = ring(4096);
    for writer in 1..=6 {
        buffer.commit(chunk(1, writer, 0).whole('x', 1000 + usize::from(writer)));
    }
    assert_eq!(snapshot(&buffer).read(), ["x1003", "x1004", "x1005", "x1006"]);

    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2048));
    buffer.commit(chunk(1, 2, 0).whole('b', 3192));
    assert_eq!(snapshot(&buffer).0.used_size(), 3216);
    assert_eq!(snapshot(&buffer).read(), ["b3192"]);
}
