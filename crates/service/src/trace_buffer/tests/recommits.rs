//! Chunks that come more than once: scraped while they are written, committed when they are done.

use super::*;

/// Fills the rest of the buffer to the last byte with packets of another producer and reads them.
fn fill_to_the_end(buffer: &mut Fixture) {
    for id in 0.. {
        let room = buffer.room_to_end() as usize;
        if room == 0 {
            break;
        }
        buffer.commit(chunk(99, 1, id).whole('x', room.min(1024) - 16));
    }
    buffer.read();
}

#[test]
fn a_commit_extends_the_scraped_chunk() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 100).whole('b', 100).padded_to(512));
    assert_eq!(buffer.stats().chunks_rewritten, 0);
    buffer.commit(
        chunk(1, 1, 0)
            .whole('a', 100)
            .whole('b', 100)
            .whole('c', 100)
            .padded_to(512),
    );
    assert_eq!(buffer.stats().chunks_rewritten, 1);
    assert_eq!(buffer.read(), ["a100", "b100", "c100"]);
}

#[test]
fn the_last_fragment_of_a_scraped_chunk_is_withheld_with_its_flags() {
    let mut buffer = ring(4096);
    buffer.scrape(
        chunk(1, 1, 0)
            .whole('a', 20)
            .begin('b', 30)
            .needs_patching()
            .padded_to(512),
    );
    assert_eq!(buffer.read(), ["a20"]);
    assert_eq!(buffer.read(), NOTHING);
}

#[test]
fn the_read_part_of_a_scraped_chunk_is_not_read_again() {
    for read_before in [0, 1, 2] {
        let mut buffer = ring(4096);
        buffer.scrape(
            chunk(1, 1, 0)
                .whole('a', 20)
                .whole('b', 30)
                .whole('-', 5)
                .padded_to(512),
        );
        let mut packets = buffer.read_some(read_before);
        buffer.commit(
            chunk(1, 1, 0)
                .whole('a', 20)
                .whole('b', 30)
                .whole('c', 40)
                .whole('d', 50),
        );
        packets.extend(buffer.read());
        assert_eq!(packets, ["a20", "b30", "c40", "d50"], "{read_before} read before");
    }
}

#[test]
fn reading_waits_at_a_scraped_chunk_until_it_is_committed() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).begin('b', 30).padded_to(512));
    assert_eq!(buffer.read(), ["a20"]);
    buffer.commit(chunk(1, 1, 1).end('c', 40).whole('d', 50));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(1, 1, 0).whole('a', 20).begin('b', 30));
    assert_eq!(buffer.read(), ["b30+c40", "d50"]);
}

#[test]
fn a_packet_is_not_stitched_over_a_fragment_that_is_still_being_written() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 20));
    buffer.scrape(chunk(1, 1, 1).middle('b', 20).padded_to(64));
    buffer.commit(chunk(1, 1, 2).end('c', 20));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(1, 1, 1).middle('b', 20));
    assert_eq!(buffer.read(), ["a20+b20+c20"]);
}

#[test]
fn a_commit_out_of_order_completes_a_scraped_chunk() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).whole('b', 30).padded_to(512));
    assert_eq!(buffer.read(), ["a20"]);
    buffer.commit(chunk(1, 1, 1).end('d', 50).whole('e', 60));
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 30).begin('c', 40));
    assert_eq!(buffer.read(), ["b30", "c40+d50", "e60"]);
}

#[test]
fn the_same_commit_twice_is_one() {
    for read_between in [0, 2] {
        let mut buffer = ring(4096);
        let again = chunk(1, 1, 0).whole('a', 20).whole('b', 30);
        buffer.commit(again.clone());
        let mut packets = buffer.read_some(read_between);
        buffer.commit(again.clone());
        buffer.commit(chunk(1, 1, 1).whole('c', 40));
        packets.extend(buffer.read());
        assert_eq!(
            buffer.try_commit(&again),
            CopyOutcome::Discarded(Discard::TooLate)
        );
        packets.extend(buffer.read());
        assert_eq!(packets, ["a20", "b30", "c40"]);
    }
}

#[test]
fn a_patch_survives_the_same_commit_coming_again() {
    let mut buffer = ring(4096);
    let scraped_complete = chunk(1, 1, 0).begin('-', 9).needs_patching();
    buffer.commit(scraped_complete.clone());
    assert!(buffer.patch((1, 1, 0), 1, b"aaaa", MorePatches::Done));
    assert!(buffer.patch((1, 1, 0), 5, b"aaaa", MorePatches::Done));
    buffer.commit(scraped_complete);
    buffer.commit(chunk(1, 1, 1).end('b', 9));
    assert_eq!(buffer.read(), ["a9+b9"]);
}

#[test]
fn scraping_twice_keeps_the_chunk_open() {
    let mut buffer = ring(4096);
    let open = chunk(1, 1, 0)
        .whole('a', 20)
        .whole('b', 30)
        .begin('c', 10)
        .padded_to(512);
    buffer.scrape(open.clone());
    assert_eq!(buffer.read(), ["a20", "b30"]);
    buffer.scrape(open.clone());
    assert_eq!(buffer.read(), NOTHING);
    assert_eq!(buffer.stats().chunks_discarded, 0);
    buffer.commit(open);
    buffer.commit(chunk(1, 1, 1).end('d', 10).whole('e', 20));
    assert_eq!(buffer.read(), ["c10+d10", "e20"]);
}

#[test]
fn a_scraped_chunk_that_was_read_moves_away_from_the_write_cursor_when_committed() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 32).whole('b', 32).padded_to(512));
    assert_eq!(buffer.read(), ["a32"]);
    fill_to_the_end(&mut buffer);
    assert_eq!(buffer.stats().chunks_overwritten, 0);

    buffer.commit(chunk(1, 1, 0).whole('a', 32).whole('b', 32).begin('c', 64));
    let stats = buffer.stats();
    assert_eq!(
        (
            stats.chunks_rewritten,
            stats.chunks_relocated,
            stats.write_wrap_count
        ),
        (0, 1, 1)
    );
    buffer.commit(chunk(2, 2, 0).whole('z', 496));
    buffer.commit(chunk(1, 1, 1).end('d', 32).whole('e', 32));
    assert_eq!(buffer.read(), ["b32", "c64+d32", "z496", "e32"]);
    assert_eq!(buffer.stats().chunks_overwritten, 0);
}

#[test]
fn a_chunk_that_moves_in_a_full_buffer_takes_its_own_place_and_comes_last() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).begin('-', 10).padded_to(1024));
    assert_eq!(buffer.read(), ["a20"]);
    for id in 0..3 {
        buffer.commit(chunk(2, 1, id).whole('x', 1024 - 16));
    }
    assert_eq!(buffer.room_to_end(), 0);
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 10).whole('c', 100));
    assert_eq!(
        buffer.read(),
        ["x1008", "x1008", "x1008", "b10", "c100"],
        "nothing was overwritten for it"
    );
}

#[test]
fn only_the_final_commit_moves_and_only_when_all_was_read() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 32).whole('b', 32).padded_to(512));
    assert_eq!(buffer.read(), ["a32"]);
    buffer.scrape(
        chunk(1, 1, 0)
            .whole('a', 32)
            .whole('b', 32)
            .whole('c', 32)
            .padded_to(512),
    );
    buffer.commit(
        chunk(1, 1, 0)
            .whole('a', 32)
            .whole('b', 32)
            .whole('c', 32)
            .whole('d', 32),
    );
    assert_eq!(
        (buffer.stats().chunks_rewritten, buffer.stats().chunks_relocated),
        (2, 0)
    );
    assert_eq!(buffer.read(), ["b32", "c32", "d32"]);
}

#[test]
fn a_full_buffer_that_discards_still_completes_its_chunks() {
    let mut buffer = discard_at_end(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).begin('b', 10).padded_to(1024));
    assert_eq!(buffer.read(), ["a20"]);
    fill_to_the_end(&mut buffer);
    let refused = chunk(2, 1, 0).whole('x', 10);
    assert_eq!(buffer.try_commit(&refused), CopyOutcome::Discarded(Discard::Full));
    buffer.commit(
        chunk(1, 1, 0)
            .whole('a', 20)
            .whole('b', 10)
            .whole('c', 100)
            .padded_to(1024),
    );
    let stats = buffer.stats();
    assert_eq!(
        (
            stats.chunks_rewritten,
            stats.chunks_relocated,
            stats.write_wrap_count
        ),
        (1, 0, 0)
    );
    assert_eq!(buffer.read(), ["b10", "c100"]);
}

#[test]
fn a_chunk_moves_although_its_successor_is_here_already() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 32).whole('b', 32).padded_to(512));
    assert_eq!(buffer.read(), ["a32"]);
    buffer.commit(chunk(1, 1, 1).end('d', 32).whole('e', 32));
    buffer.commit(chunk(1, 1, 0).whole('a', 32).whole('b', 32).begin('c', 64));
    assert_eq!(buffer.stats().chunks_relocated, 1);
    assert_eq!(buffer.read(), ["b32", "c64+d32", "e32"]);
}

#[test]
fn a_move_does_not_hide_a_gap_before_the_chunk() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 32));
    assert_eq!(buffer.read(), ["a32"]);
    buffer.scrape(chunk(1, 1, 2).whole('c', 32).padded_to(512));
    buffer.commit(chunk(1, 1, 2).whole('c', 32));
    assert_eq!(buffer.stats().chunks_relocated, 1);
    assert_eq!(buffer.read(), [r#"c32 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn an_overwritten_scraped_chunk_is_taken_in_again_without_its_read_part() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).begin('b', 10).padded_to(512));
    assert_eq!(buffer.read(), ["a20"]);
    buffer.commit(chunk(2, 1, 0).whole('x', 4070));
    assert_eq!(buffer.stats().chunks_overwritten, 0, "nothing in it was unread");
    buffer.scrape(
        chunk(1, 1, 0)
            .whole('a', 20)
            .whole('b', 30)
            .begin('c', 10)
            .padded_to(512),
    );
    assert_eq!(buffer.read(), ["b30"]);
    buffer.commit(chunk(2, 1, 1).whole('x', 4070));
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 30).begin('c', 10));
    buffer.commit(chunk(1, 1, 1).end('d', 10).whole('e', 20));
    assert_eq!(buffer.read(), ["c10+d10", "e20"]);
}

#[test]
fn a_complete_chunk_that_was_read_and_overwritten_is_not_taken_in_again() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 30));
    assert_eq!(buffer.read_some(2), ["a20", "b30"]);
    buffer.commit(chunk(2, 1, 0).whole('x', 4070));
    let again = chunk(1, 1, 0).whole('a', 20).whole('b', 30).whole('c', 40);
    assert_eq!(
        buffer.try_commit(&again),
        CopyOutcome::Discarded(Discard::TooLate)
    );
    assert_eq!(buffer.read(), ["x4070"]);
}

#[test]
fn a_chunk_whose_successor_is_being_read_comes_too_late() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 30));
    buffer.commit(chunk(1, 1, 1).whole('c', 40).whole('d', 50));
    assert_eq!(buffer.read_some(3), ["a20", "b30", "c40"]);
    let changed = chunk(1, 1, 0).whole('e', 20).whole('f', 60).whole('g', 70);
    assert_eq!(
        buffer.try_commit(&changed),
        CopyOutcome::Discarded(Discard::TooLate)
    );
    assert_eq!(buffer.read(), ["d50"]);
}

#[test]
fn a_chunk_that_was_never_here_comes_too_late_when_its_successor_is_being_read() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 1).whole('c', 40).whole('d', 50));
    assert_eq!(buffer.read_some(1), ["c40"]);
    let late = chunk(1, 1, 0).whole('a', 20);
    assert_eq!(buffer.try_commit(&late), CopyOutcome::Discarded(Discard::TooLate));
    assert_eq!(buffer.read(), [r#"d50 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn a_complete_chunk_does_not_wait_because_it_is_scraped_again() {
    let mut buffer = ring(4096);
    let begun = chunk(1, 1, 0).whole('a', 20).whole('b', 30).padded_to(512);
    buffer.scrape(begun.clone());
    buffer.commit(begun);
    buffer.scrape(
        chunk(1, 1, 0)
            .whole('a', 20)
            .whole('b', 30)
            .whole('c', 40)
            .whole('-', 5)
            .padded_to(512),
    );
    buffer.commit(chunk(1, 1, 1).whole('d', 50));
    assert_eq!(buffer.read(), ["a20", "b30", "c40", "d50"]);
}

#[test]
fn a_chunk_that_pushes_out_an_empty_successor_is_marked_as_overwritten() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 2));
    buffer.commit(chunk(2, 1, 0).whole('x', 4000));
    let late = chunk(1, 1, 1).whole('b', 1000);
    assert_eq!(
        buffer.try_commit(&late),
        CopyOutcome::Discarded(Discard::Overtaken)
    );
    buffer.commit(chunk(1, 1, 3).whole('d', 1000));
    assert_eq!(buffer.read(), [r#"d1000 !{"PRESENT", "READ_GAP", "OVERWRITE"}"#]);
}

#[test]
fn a_chunk_that_would_push_out_its_own_successor_is_dropped_and_marked() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 2).whole('c', 2000));
    buffer.commit(chunk(2, 1, 0).whole('x', 2000));
    let late = chunk(1, 1, 1).whole('b', 1000);
    assert_eq!(
        buffer.try_commit(&late),
        CopyOutcome::Discarded(Discard::Overtaken)
    );
    buffer.commit(chunk(1, 1, 3).whole('d', 1000));
    assert_eq!(
        buffer.read(),
        ["x2000", r#"d1000 !{"PRESENT", "READ_GAP", "OVERWRITE"}"#]
    );
}

#[test]
fn a_dropped_packet_is_marked_even_if_the_scraped_copy_is_long_gone() {
    let mut buffer = ring(4096);
    let gives_up = chunk(1, 1, 0).whole('a', 20).raw(&DROP_MARKER);
    buffer.scrape(gives_up.clone());
    assert_eq!(buffer.read(), ["a20"]);
    fill_to_the_end(&mut buffer);
    buffer.commit(chunk(98, 1, 0).whole('y', 20));
    assert_eq!(
        buffer.try_commit(&gives_up),
        CopyOutcome::Discarded(Discard::TooLate)
    );
    buffer.commit(chunk(1, 1, 1).whole('b', 20));
    assert_eq!(buffer.read(), ["y20", r#"b20 !{"PRESENT", "WRITER_ABORT"}"#]);
}
