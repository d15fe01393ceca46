//! The end of the buffer: wrapping around, padding, discarding, and their counters.

use super::*;

#[test]
fn a_buffer_can_be_filled_to_the_last_byte_again_and_again() {
    let mut buffer = ring(4096);
    for round in 0..3 {
        for (index, size) in [512, 512, 1024, 2048].into_iter().enumerate() {
            buffer.commit(chunk(1, 1, round * 4 + index as u32).whole('x', size - 16));
        }
        assert_eq!(buffer.room_to_end(), 0);
        assert_eq!(buffer.read(), ["x496", "x496", "x1008", "x2032"]);
    }
    assert_eq!(buffer.stats().write_wrap_count, 2);
}

#[test]
fn a_ring_of_which_everything_was_read_starts_over() {
    let mut buffer = streamed_ring(4096);
    for round in 0..9 {
        buffer.commit(chunk(1, 1, 2 * round).whole('a', 1000));
        buffer.commit(chunk(1, 2, round).whole('b', 500));
        buffer.commit(chunk(1, 1, 2 * round + 1).whole('c', 1000));
        assert_eq!(buffer.read(), ["a1000", "b500", "c1000"]);
    }
    assert_eq!(buffer.0.used_size(), 2 * 1024 + 528, "one round's");
    assert_eq!(buffer.stats().write_wrap_count, 0);
}

#[test]
fn a_ring_goes_on_while_a_chunk_in_it_may_be_needed() {
    let unpatched = || chunk(1, 1, 0).begin('a', 496).needs_patching();
    for waiting in [unpatched(), chunk(1, 1, 0).begin('a', 496)] {
        let mut buffer = streamed_ring(4096);
        buffer.commit(waiting);
        for id in 0..3 {
            buffer.commit(chunk(1, 2, id).whole('b', 496));
            assert_eq!(buffer.read(), ["b496"]);
        }
        assert_eq!(buffer.0.used_size(), 4 * 512);
    }
}

#[test]
fn a_ring_starts_over_though_little_waits_and_does_not_overwrite_that() {
    let mut buffer = streamed_ring(8192);
    let written = |buffer: &mut Fixture, ids: std::ops::Range<u32>| {
        ids.for_each(|id| buffer.commit(chunk(1, 1, id).whole('a', 496)));
    };
    written(&mut buffer, 0..7);
    buffer.commit(chunk(1, 2, 0).begin('b', 48));
    assert_eq!(buffer.read(), ["a496"; 7]);
    written(&mut buffer, 7..14);
    assert_eq!(buffer.0.used_size(), 7 * 512 + 64, "from the beginning again");
    written(&mut buffer, 14..15);
    assert_eq!(buffer.0.used_size(), 8 * 512 + 64, "behind the chunk that waits");
    buffer.commit(chunk(1, 2, 1).end('c', 48));
    let mut expected = ["a496"; 9];
    expected[7] = "b48+c48";
    assert_eq!(buffer.read(), expected);
    assert_eq!(buffer.stats().chunks_overwritten, 0);
}

#[test]
fn no_other_buffer_starts_over() {
    for policy in [
        FillPolicy::RingBuffer,
        FillPolicy::Discard,
        FillPolicy::DiscardAtEnd,
    ] {
        let mut buffer = Fixture(TraceBuffer::new(4096, policy).unwrap());
        for id in 0..3 {
            buffer.commit(chunk(1, 1, id).whole('a', 496));
            assert_eq!(buffer.read(), ["a496"]);
        }
        assert_eq!(buffer.0.used_size(), 3 * 512);
    }
}

#[test]
fn a_chunk_that_does_not_fit_at_the_end_goes_to_the_start_and_pads_the_cut_record() {
    let mut buffer = ring(4096);
    for (id, size) in [128, 256, 512, 1024, 2048].into_iter().enumerate() {
        buffer.commit(chunk(1, 1, id as u32).whole('x', size - 16));
    }
    assert_eq!(buffer.room_to_end(), 128);
    buffer.commit(chunk(1, 1, 5).whole('f', 512 - 16));
    assert_eq!(buffer.room_to_end(), 4096 - 512);
    let expected = [r#"x1008 !{"PRESENT", "OVERWRITE"}"#, "x2032", "f496"];
    assert_eq!(buffer.read(), expected);
    let stats = buffer.stats();
    assert_eq!(
        (stats.chunks_written, stats.chunks_overwritten, stats.chunks_read),
        (6, 3, 3)
    );
    assert_eq!(
        (stats.bytes_written, stats.bytes_overwritten, stats.bytes_read),
        (4480, 896, 3584)
    );
    assert_eq!(
        (stats.padding_bytes_written, stats.padding_bytes_cleared),
        (384, 0)
    );
    assert_eq!(stats.bytes_in_use(), 384);
    buffer.commit(chunk(1, 1, 6).whole('g', 128 - 16));
    assert_eq!(buffer.stats().padding_bytes_cleared, 384);
    assert_eq!(buffer.stats().bytes_in_use(), 128);
}

#[test]
fn a_header_is_room_enough_for_padding() {
    let mut buffer = ring(4096);
    for (id, size) in [2048, 1024, 1008].into_iter().enumerate() {
        buffer.commit(chunk(1, 1, id as u32).whole('x', size - 16));
    }
    buffer.commit(chunk(1, 1, 3));
    assert_eq!(buffer.room_to_end(), 0);
    buffer.commit(chunk(1, 1, 4).whole('d', 2032 - 16));
    buffer.commit(chunk(1, 1, 5).whole('e', 1040 - 16));
    buffer.commit(chunk(1, 1, 6));
    buffer.commit(chunk(1, 1, 7).whole('f', 1008 - 16));
    assert_eq!(buffer.room_to_end(), 0);
    assert_eq!(
        buffer.read(),
        [r#"d2016 !{"PRESENT", "OVERWRITE"}"#, "e1024", "f992"]
    );
}

#[test]
fn a_chunk_without_fragments_fits_into_the_last_bytes() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 4080 - 16));
    assert_eq!(buffer.read(), ["a4064"]);
    buffer.commit(chunk(1, 1, 1));
    assert_eq!(buffer.room_to_end(), 0);
    buffer.commit(chunk(1, 1, 2).whole('b', 2048 - 16));
    buffer.commit(chunk(1, 1, 3).whole('c', 2048 - 16));
    assert_eq!(buffer.read(), ["b2032", "c2032"]);
}

#[test]
fn the_rest_of_an_overwritten_chunk_may_be_a_header_alone() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 36 - 16));
    buffer.commit(chunk(1, 2, 1).whole('b', 4096 - 48 - 16));
    assert_eq!(buffer.room_to_end(), 0);
    buffer.commit(chunk(1, 1, 1).whole('c', 16));
    assert_eq!(buffer.stats().padding_bytes_written, 16);
    assert_eq!(buffer.read(), ["b4032", r#"c16 !{"PRESENT", "OVERWRITE"}"#]);
}

#[test]
fn an_unused_tail_can_be_used_in_a_later_round() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 3000));
    buffer.commit(chunk(1, 1, 1).whole('b', 2000));
    assert_eq!(buffer.0.used_size(), 3024);
    buffer.commit(chunk(1, 1, 2).whole('c', 1900));
    assert_eq!(
        buffer.0.used_size(),
        3936,
        "written across the old high-water mark"
    );
    assert_eq!(buffer.read(), [r#"b2000 !{"PRESENT", "OVERWRITE"}"#, "c1900"]);
}

#[test]
fn wraps_are_counted_when_they_happen() {
    let mut buffer = ring(4096);
    for (id, size, wraps) in [(0, 2030, 0), (1, 2030, 0), (2, 3054, 1), (3, 2030, 2)] {
        buffer.commit(chunk(1, 1, id).whole('x', size));
        assert_eq!(buffer.stats().write_wrap_count, wraps);
    }
}

#[test]
fn a_reader_that_keeps_up_loses_nothing() {
    let mut buffer = ring(4096);
    for writer in 1..4 {
        buffer.commit(chunk(1, writer, 0).whole('a', 2000));
        buffer.commit(chunk(1, writer, 1).whole('b', 1000));
        assert_eq!(buffer.read_some(1), ["a2000"]);
        buffer.commit(chunk(1, writer, 2).whole('c', 2000));
        assert_eq!(buffer.read_some(1), ["b1000"]);
        buffer.commit(chunk(1, writer, 3).whole('d', 2000));
        assert_eq!(buffer.read(), ["c2000", "d2000"]);
    }
    assert_eq!(
        (
            buffer.stats().chunks_overwritten,
            buffer.stats().bytes_overwritten
        ),
        (0, 0)
    );
}

#[test]
fn chunks_read_to_their_end_do_not_count_as_overwritten() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 496));
    buffer.commit(chunk(1, 1, 1).middle('b', 496));
    buffer.commit(chunk(1, 1, 2).end('c', 496));
    assert_eq!(buffer.read_some(1), ["a496+b496+c496"]);
    assert_eq!(buffer.stats().bytes_read, 3 * 512);
    buffer.0.begin_read();
    buffer.commit(chunk(1, 2, 0).whole('d', 2032));
    buffer.commit(chunk(1, 3, 0).whole('e', 1520));
    assert_eq!(buffer.stats().write_wrap_count, 1);
    assert_eq!(
        (
            buffer.stats().chunks_overwritten,
            buffer.stats().bytes_overwritten
        ),
        (0, 0)
    );
}

#[test]
fn unread_chunks_count_as_overwritten_whether_or_not_they_could_be_read() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 1008).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('b', 1008));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(2, 1, 0).whole('c', 2032));
    buffer.commit(chunk(3, 1, 0).whole('d', 2032));
    assert_eq!(
        (
            buffer.stats().chunks_overwritten,
            buffer.stats().bytes_overwritten
        ),
        (2, 2048)
    );
}

#[test]
fn an_incomplete_chunk_is_overwritten_like_any_other() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 1).whole('1', 1008));
    buffer.scrape(chunk(1, 1, 2).whole('2', 1008));
    for id in 3..=6 {
        buffer.commit(chunk(1, 1, id).whole('x', 1008));
    }
    assert_eq!(
        buffer.read(),
        [r#"x1008 !{"PRESENT", "OVERWRITE"}"#, "x1008", "x1008", "x1008"]
    );
}

#[test]
fn a_buffer_that_discards_keeps_the_oldest() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 16));
    buffer.commit(chunk(1, 1, 1).whole('b', 3984));
    assert_eq!(buffer.read_some(1), ["a16"]);
    buffer.commit(chunk(1, 1, 2).whole('c', 4));
    for id in [3, 4] {
        let full = chunk(1, 1, id).whole('x', 48);
        assert_eq!(buffer.try_commit(&full), CopyOutcome::Discarded(Discard::Full));
    }
    assert_eq!(buffer.read(), ["b3984", "c4"]);
    let small = chunk(1, 9, 0).whole('x', 4);
    assert_eq!(
        buffer.try_commit(&small),
        CopyOutcome::Discarded(Discard::Full),
        "once full, always full"
    );
    assert_eq!(buffer.read(), NOTHING);
    assert_eq!(buffer.stats().chunks_discarded, 3);
}

#[test]
fn read_chunks_make_room_in_a_buffer_that_discards() {
    let mut buffer = discard(4096);
    for id in 0..100 {
        buffer.commit(chunk(1, 1, id).whole('a', 1000));
        buffer.commit(chunk(2, 1, id).whole('b', 1000));
        assert_eq!(buffer.read(), ["a1000", "b1000"]);
    }
    let stats = buffer.stats();
    assert_eq!((stats.chunks_overwritten, stats.chunks_discarded), (0, 0));
    assert_eq!((stats.chunks_written, stats.chunks_read), (200, 200));
    assert!(stats.write_wrap_count > 40);
}

#[test]
fn unread_chunks_make_no_room_wherever_they_are() {
    // The last one is behind the end, or the one that is in the way is: at the end, at the beginning, or further on.
    for (sizes, read) in [
        (&[1000, 1000, 2000][..], 0),
        (&[2000, 1000, 1000], 0),
        (&[100, 3000, 900], 1),
    ] {
        let mut buffer = discard(4096);
        for (id, size) in (0..).zip(sizes) {
            buffer.commit(chunk(1, 1, id).whole('a', *size));
        }
        assert_eq!(buffer.read_some(read).len(), read);
        let refused = chunk(2, 1, 0).whole('x', 200);
        assert_eq!(buffer.try_commit(&refused), CopyOutcome::Discarded(Discard::Full));
        assert_eq!(buffer.read().len(), sizes.len() - read);
        assert_eq!(
            buffer.try_commit(&refused),
            CopyOutcome::Discarded(Discard::Full),
            "it stays as it is, whatever was read since"
        );
    }
}

#[test]
fn a_chunk_without_packets_makes_no_room_of_earlier_chunks() {
    let mut buffer = discard(4096);
    // It comes too early, so that it is the first that the next lap meets.
    buffer.commit(chunk(1, 1, 1));
    buffer.commit(chunk(1, 1, 0).whole('a', 2000));
    buffer.commit(chunk(2, 1, 0).whole('b', 2000));
    let refused = chunk(3, 1, 0).whole('x', 1);
    for _ in 0..4 {
        let _ = buffer.try_commit(&refused);
    }
    assert_eq!(buffer.read()[..2], ["a2000", "b2000"]);
}

#[test]
fn a_chunk_that_waits_for_a_patch_makes_no_room() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 1000).needs_patching());
    buffer.commit(chunk(2, 1, 0).whole('b', 2000));
    assert_eq!(buffer.read(), ["b2000"]);
    buffer.commit(chunk(2, 1, 1).whole('c', 900));
    let refused = chunk(2, 1, 2).whole('d', 900);
    assert_eq!(buffer.try_commit(&refused), CopyOutcome::Discarded(Discard::Full));
    assert_eq!(buffer.read(), ["c900"]);
}

#[test]
fn the_rest_of_a_scraped_chunk_does_not_end_a_buffer_that_discards() {
    // Its scraped copy was read, and made room, or stands right in front of the cursor.
    for gone in [false, true] {
        let mut buffer = discard(4096);
        buffer.scrape(chunk(1, 1, 0).whole('a', 20).begin('b', 10).padded_to(1000));
        buffer.commit(chunk(2, 1, 0).whole('x', 3000));
        assert_eq!(buffer.read(), ["a20", "x3000"]);
        if gone {
            buffer.commit(chunk(2, 1, 1).whole('y', 500));
        }
        buffer.commit(
            chunk(1, 1, 0)
                .whole('a', 20)
                .whole('b', 10)
                .whole('c', 100)
                .padded_to(1000),
        );
        buffer.commit(chunk(2, 1, 2).whole('z', 500));
        let read = buffer.read();
        assert!(
            ["b10", "c100"]
                .iter()
                .all(|text| read.contains(&(*text).to_owned())),
            "{read:?}"
        );
        assert!(read.iter().any(|text| text.starts_with("z500")), "{read:?}");
        assert_eq!(buffer.stats().chunks_discarded, 0);
    }
}

#[test]
fn a_buffer_of_upstreams_second_kind_that_discards_is_filled_once() {
    let mut buffer = discard_at_end(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2000));
    buffer.commit(chunk(1, 1, 1).whole('b', 2000));
    assert_eq!(buffer.read(), ["a2000", "b2000"]);
    for id in [2, 3] {
        let refused = chunk(1, 1, id).whole('x', 100);
        assert_eq!(buffer.try_commit(&refused), CopyOutcome::Discarded(Discard::Full));
    }
    assert_eq!(buffer.stats().write_wrap_count, 0);
}

#[test]
fn a_buffer_that_discards_may_be_filled_to_the_last_byte() {
    let mut buffer = discard(4096);
    for (id, outcome) in [
        (0, CopyOutcome::Stored),
        (1, CopyOutcome::Stored),
        (2, CopyOutcome::Discarded(Discard::Full)),
    ] {
        assert_eq!(buffer.try_commit(&chunk(1, 1, id).whole('x', 2030)), outcome);
    }
    assert_eq!(buffer.read(), ["x2030", "x2030"]);
}

#[test]
fn a_packet_cut_off_by_a_full_buffer_does_not_come_out() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2000));
    buffer.commit(chunk(1, 1, 1).whole('b', 1500).begin('c', 100));
    let rest = chunk(1, 1, 2).end('d', 1000);
    assert_eq!(buffer.try_commit(&rest), CopyOutcome::Discarded(Discard::Full));
    assert_eq!(buffer.read(), ["a2000", "b1500"]);
}

#[test]
fn histograms_have_the_chunk_sizes_of_each_writer() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 8).whole('a', 20));
    buffer.commit(chunk(1, 1, 1).whole('a', 28));
    buffer.commit(chunk(1, 2, 0).whole('b', 600));
    let stats: Vec<_> = buffer
        .0
        .writer_stats()
        .map(|(p, w, h)| (p.0, w.0, h.counts().to_vec(), h.sums().to_vec()))
        .collect();
    assert_eq!(
        stats[0],
        (
            1,
            1,
            vec![0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            vec![0, 56, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        )
    );
    assert_eq!(
        stats[1],
        (
            1,
            2,
            vec![0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            vec![0, 0, 0, 0, 600, 0, 0, 0, 0, 0, 0]
        )
    );
}

#[test]
fn histograms_count_every_commit_that_a_buffer_looks_at() {
    let counted = |buffer: &Fixture| -> u64 {
        let histograms = buffer.0.writer_stats();
        histograms.map(|(_, _, h)| h.counts().iter().sum::<u64>()).sum()
    };
    let mut buffer = discard_at_end(4096);
    let scraped = chunk(1, 1, 0).whole('a', 20).whole('b', 20);
    buffer.scrape(scraped.clone());
    buffer.commit(scraped.clone());
    assert_eq!(counted(&buffer), 2, "the same chunk again");
    buffer.commit(chunk(1, 1, 1).whole('c', 20));
    assert_eq!(buffer.read(), ["a20", "b20", "c20"]);
    let late = buffer.try_commit(&scraped);
    assert_eq!(late, CopyOutcome::Discarded(Discard::TooLate));
    assert_eq!(counted(&buffer), 4, "one that comes too late");
    let large = chunk(1, 1, 2).whole('x', 4070);
    for _ in 0..3 {
        assert_eq!(buffer.try_commit(&large), CopyOutcome::Discarded(Discard::Full));
    }
    assert_eq!(counted(&buffer), 5, "the one that fills it, and none after");
    let mut buffer = ring(4096);
    let impossible = chunk(1, 1, 0).whole('x', 4096);
    assert_eq!(
        buffer.try_commit(&impossible),
        CopyOutcome::Violation(AbiViolation::TooLarge)
    );
    assert_eq!(counted(&buffer), 0);
}

#[test]
fn the_used_memory_is_the_unread_chunks_and_the_padding() {
    let mut buffer = ring(4096);
    for id in 0..8 {
        buffer.commit(chunk(1, 1, id).whole('x', 496));
    }
    assert_eq!(buffer.stats().bytes_in_use(), 4096);
    buffer.commit(chunk(1, 2, 0).whole('y', 736));
    assert_eq!(buffer.stats().padding_bytes_written, 272, "of two unread chunks");
    assert_eq!(buffer.stats().bytes_in_use(), 4096);
    assert_eq!(buffer.read_some(3).len(), 3);
    assert_eq!(buffer.stats().bytes_in_use(), 4096 - 3 * 512);
    buffer.read();
    assert_eq!(buffer.stats().bytes_in_use(), 272);
    buffer.commit(chunk(1, 2, 1).whole('z', 240));
    assert_eq!(buffer.stats().bytes_in_use(), 256);
}

#[test]
fn free_space_behind_an_overwritten_chunk_is_no_padding() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 1008).needs_patching());
    buffer.commit(chunk(2, 1, 0).whole('x', 3072 - 16));
    assert_eq!(buffer.read(), ["x3056"]);
    buffer.commit(chunk(3, 1, 0).whole('b', 2048 - 16));
    assert_eq!(buffer.room_to_end(), 2048, "it cut through what was free");
    let stats = buffer.stats();
    assert_eq!((stats.chunks_overwritten, stats.padding_bytes_written), (1, 0));
    assert_eq!(stats.bytes_in_use(), 2048);
}

#[test]
fn padding_at_the_end_that_a_chunk_does_not_fit_into_is_cleared_once() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2032));
    buffer.commit(chunk(1, 1, 1).whole('b', 2032));
    buffer.commit(chunk(1, 1, 2).whole('c', 2032));
    buffer.commit(chunk(1, 1, 3).whole('d', 1008));
    for (id, cleared) in [(4, 1024), (5, 1536), (6, 1536), (7, 1536)] {
        buffer.commit(chunk(1, 1, id).whole('e', 2544));
        let stats = buffer.stats();
        assert_eq!(
            (stats.padding_bytes_written, stats.padding_bytes_cleared),
            (1024 + 512, cleared),
            "chunk {id}"
        );
    }
}
