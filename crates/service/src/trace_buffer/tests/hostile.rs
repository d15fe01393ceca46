//! Producers that break the rules. They lose their own data, and the service counts that. Nobody else loses anything.

use super::*;
use crate::limits;

fn violation(violation: AbiViolation) -> CopyOutcome {
    CopyOutcome::Violation(violation)
}

const MALFORMED: AbiViolation = AbiViolation::MalformedFragments;

#[test]
fn missing_fragments_are_a_violation_and_existing_ones_are_kept() {
    let cases: [(TestChunk, &[&str]); 5] = [
        (chunk(1, 1, 0).whole('a', 64).raw(&[]).raw(&[]), &["a64"]),
        (chunk(1, 1, 0).raw(&[]), &[]),
        (chunk(1, 1, 0).whole('a', 64).raw(&[0x82]), &["a64"]),
        (chunk(1, 1, 0).raw(b"\x16123456789abcdef"), &[]),
        (chunk(1, 1, 0).whole('a', 10).raw(&[0xff; 112]), &["a10"]),
    ];
    for (bad, kept) in cases {
        let mut buffer = ring(4096);
        assert_eq!(buffer.try_commit(&bad), violation(MALFORMED));
        assert_eq!(buffer.stats().abi_violations, 1);
        buffer.commit(chunk(1, 2, 0).whole('b', 32));
        assert_eq!(buffer.read(), [kept, &["b32"]].concat());
        buffer.commit(chunk(1, 1, 1).whole('c', 32));
        assert_eq!(
            buffer.read(),
            [r#"c32 !{"PRESENT", "CHUNK_CORRUPTED"}"#],
            "the loss is marked"
        );
    }
}

#[test]
fn a_chunk_of_one_long_varint_is_harmless() {
    let mut buffer = ring(64 << 10);
    let mut payload = vec![0xff; (64 << 10) - 32];
    *payload.last_mut().unwrap() = 0x7f;
    for _ in 0..3 {
        assert_eq!(
            buffer.try_commit(&chunk(1, 1, 1).raw(&payload)),
            violation(MALFORMED)
        );
    }
    assert_eq!(buffer.read(), NOTHING);
}

#[test]
fn chunks_larger_than_the_buffer_or_than_any_chunk_are_refused() {
    let mut buffer = ring(4096);
    let large = chunk(1, 1, 0).whole('a', 4096).whole('b', 2048);
    assert_eq!(buffer.try_commit(&large), violation(AbiViolation::TooLarge));
    let mut buffer = ring(1 << 20);
    let mut scraped = chunk(1, 1, 0).whole('a', 10);
    scraped.payload.resize(65_536, 0);
    assert_eq!(
        buffer.try_commit(&scraped),
        CopyOutcome::Stored,
        "the fragments are few"
    );
    scraped.info.chunk_id = ChunkId(1);
    scraped.info.state = ChunkState::Incomplete;
    assert_eq!(buffer.try_commit(&scraped), violation(AbiViolation::TooLarge));
    let mut buffer = ring(1 << 20);
    let many: Vec<u8> = std::iter::repeat_n([0], 70_000).flatten().collect();
    let mut flood = chunk(1, 1, 0).raw(&many);
    flood.info.num_fragments = u16::MAX;
    assert_eq!(buffer.try_commit(&flood), CopyOutcome::Stored);
    assert_eq!(buffer.read(), NOTHING, "65535 empty packets are none");
}

#[test]
fn an_empty_fragment_within_a_packet_is_left_out() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 4));
    buffer.commit(chunk(1, 1, 1).middle('-', 1));
    buffer.commit(chunk(1, 1, 2).end('c', 4).whole('d', 4));
    assert_eq!(buffer.read(), ["a4+c4", "d4"]);
    buffer.commit(chunk(1, 1, 3).begin('-', 1));
    buffer.commit(chunk(1, 1, 4).end('-', 1).whole('e', 4));
    assert_eq!(buffer.read(), ["e4"], "a packet of empty fragments is no packet");
    buffer.commit(chunk(1, 1, 5).whole('f', 4).begin('-', 1));
    buffer.commit(chunk(1, 1, 6).end('g', 4).whole('h', 4));
    assert_eq!(buffer.read(), ["f4", "g4", "h4"], "one that begins with one is");
}

#[test]
fn a_recommit_must_not_shrink_outgrow_its_room_or_drop_flags() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 2048));
    for bad in [
        chunk(1, 1, 0).begin('b', 1024),
        chunk(1, 1, 0).begin('b', 2049),
        chunk(1, 1, 0).whole('b', 2048),
    ] {
        assert_eq!(buffer.try_commit(&bad), violation(AbiViolation::BadRecommit));
    }
    assert_eq!(buffer.stats().abi_violations, 3);
    buffer.commit(chunk(1, 1, 1).end('c', 10));
    assert_eq!(buffer.read(), ["a2048+c10"]);
}

#[test]
fn flags_of_a_fragment_that_was_cut_off_bind_no_recommit() {
    let mut buffer = ring(4096);
    let cut_off = chunk(1, 1, 0).whole('a', 20).raw(&[0x7f]);
    for flagged in [cut_off.clone().flag(2).needs_patching(), cut_off] {
        assert_eq!(buffer.try_commit(&flagged), violation(MALFORMED));
    }
    assert_eq!(buffer.read(), ["a20"]);
}

#[test]
fn a_recommit_smaller_than_the_read_part_changes_nothing() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 30).whole('b', 40));
    assert_eq!(buffer.read_some(2), ["a30", "b40"]);
    let shorter = chunk(1, 1, 0).whole('a', 10).whole('b', 10).whole('c', 10);
    assert_eq!(buffer.try_commit(&shorter), violation(AbiViolation::BadRecommit));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(1, 1, 1).whole('d', 10).whole('e', 10));
    assert_eq!(buffer.read(), ["d10", "e10"]);
}

#[test]
fn a_recommit_that_moves_fragments_under_the_reader_is_cut_off() {
    let mut buffer = ring(4096);
    buffer.scrape(
        chunk(1, 1, 0)
            .whole('a', 30)
            .whole('b', 40)
            .whole('-', 10)
            .padded_to(512),
    );
    assert_eq!(buffer.read_some(1), ["a30"]);
    // Two well-formed fragments; where the reader stands, in the second, is a length that is not.
    let mut changed = chunk(1, 1, 0).whole('A', 29).whole('B', 60);
    changed.payload[30] = 0xff;
    assert_eq!(buffer.try_commit(&changed), CopyOutcome::Stored);
    assert_eq!(buffer.read(), NOTHING);
    assert_eq!(buffer.stats().abi_violations, 1);
    buffer.commit(chunk(1, 1, 1).whole('d', 10));
    assert_eq!(buffer.read(), [r#"d10 !{"PRESENT", "CHUNK_CORRUPTED"}"#]);
}

#[test]
fn a_patch_that_breaks_a_fragment_is_noticed_when_it_is_read() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).whole('b', 10));
    assert!(buffer.patch((1, 1, 0), 10, &[0x7f, 0, 0, 0], MorePatches::Done));
    buffer.commit(chunk(1, 1, 1).whole('c', 10));
    assert_eq!(buffer.read(), ["a10", r#"c10 !{"PRESENT", "CHUNK_CORRUPTED"}"#]);
    assert_eq!(buffer.stats().bytes_in_use(), 0);
}

#[test]
fn chunk_ids_half_the_number_space_apart_are_refused() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10));
    buffer.commit(chunk(1, 1, 1 << 30).whole('b', 10));
    for id in [(1 << 31) + 5, 1 << 31, 3 << 30] {
        let far = chunk(1, 1, id).whole('x', 10);
        assert_eq!(
            buffer.try_commit(&far),
            violation(AbiViolation::ChunkIdOutOfRange),
            "{id:#x}"
        );
    }
    assert_eq!(buffer.read(), ["a10", r#"b10 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn many_writers_are_remembered_up_to_a_limit_and_cost_only_their_chunks() {
    let mut buffer = TraceBuffer::new(4096, FillPolicy::RingBuffer).unwrap();
    for round in 0..3 {
        for writer in 1..=20_000 {
            let empty = chunk(1, writer, round);
            assert_eq!(buffer.copy_chunk(&empty.info, &[]), CopyOutcome::Stored);
        }
        assert!(buffer.sequences.idle_count() <= sequence::MAX_IDLE + 1);
        let sequences = buffer.sequences.iter().count();
        assert!(
            sequences <= sequence::MAX_IDLE as usize + 1 + 4096 / 16,
            "{sequences} sequences"
        );
    }
    buffer.check_invariants();
}

#[test]
fn of_idle_sequences_as_many_are_remembered_as_upstream_does() {
    let mut buffer = ring(1 << 20);
    for writer in 1..=2000 {
        buffer.commit(chunk(1, writer, 0).whole('a', 10));
    }
    buffer.read();
    buffer.commit(chunk(2, 1, 0).whole('b', 10));
    let key = |writer| sequence::SequenceKey {
        producer: ProducerId(1),
        writer: WriterId(writer),
    };
    let idle = (1..=2000u16).filter(|writer| buffer.0.sequences.find(key(*writer)).is_some());
    assert!(
        idle.eq(2000 - 1023 + 1..=2000),
        "the latest 1023, and the new one"
    );
}

#[test]
fn a_sequence_that_had_many_chunks_does_not_keep_the_memory_of_their_list() {
    let mut buffer = ring(1 << 20);
    for id in 0..300 {
        buffer.commit(chunk(1, 1, id).whole('a', 10));
    }
    buffer.read();
    let kept = buffer
        .0
        .sequences
        .iter()
        .map(|sequence| sequence.chunks.capacity());
    assert!(kept.max().is_some_and(|most| most <= 256));
}

#[test]
fn refused_chunks_leave_no_sequence_behind_that_is_not_idle() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 4000));
    for writer in 2..5_000 {
        let refused = chunk(1, writer, 0).whole('x', 200);
        assert_eq!(
            buffer.0.copy_chunk(&refused.info, &refused.payload),
            CopyOutcome::Discarded(Discard::Full)
        );
    }
    assert!(buffer.0.sequences.iter().count() <= 2);
}

#[test]
fn commits_in_the_worst_order_stay_cheap() {
    // Every second id first, backwards: then each of the others goes into the middle of a long list.
    let mut buffer = TraceBuffer::new(8 << 20, FillPolicy::RingBuffer).unwrap();
    let count = 200_000u32;
    for id in (0..count).rev().map(|id| id * 2) {
        assert_eq!(buffer.copy_chunk(&chunk(1, 1, id).info, &[]), CopyOutcome::Stored);
    }
    let middle = buffer.copy_chunk(&chunk(1, 1, count + 1).info, &[]);
    assert_eq!(middle, violation(AbiViolation::ChunkIdOutOfRange));
    assert_eq!(
        buffer.copy_chunk(&chunk(1, 1, 2 * count - 3).info, &[]),
        CopyOutcome::Stored
    );
}

#[test]
fn a_sequence_of_fragments_without_bytes_ends_like_any_other() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 32));
    buffer.commit(chunk(1, 1, 1).raw(&[0]));
    buffer.commit(chunk(1, 1, 2).whole('b', 32));
    assert_eq!(buffer.read(), ["a32", "b32"]);
    assert_eq!(buffer.stats().bytes_in_use(), 0);
}

#[test]
fn a_packet_of_more_fragments_than_any_honest_one_has_is_lost_and_marked() {
    let most = limits::MAX_FRAGMENTS_PER_PACKET as u32;
    let mut buffer = ring(32 << 20);
    // Checking everything would take too long with so many chunks.
    let mut put = |chunk: TestChunk| {
        let outcome = buffer.0.copy_chunk(&chunk.info, &chunk.payload);
        assert_eq!(outcome, CopyOutcome::Stored);
    };
    for (first, fragments) in [(0, most), (most, most + 1)] {
        put(chunk(1, 1, first).begin('a', 2));
        for id in first + 1..first + fragments - 1 {
            put(chunk(1, 1, id).middle('a', 2));
        }
        put(chunk(1, 1, first + fragments - 1).end('a', 2));
    }
    put(chunk(1, 1, 2 * most + 1).whole('z', 10));
    buffer.0.begin_read();
    let read = buffer.0.read_next_packet().unwrap();
    assert_eq!((read.size(), read.losses), (most as usize, LossReasons::NONE));
    let read = buffer.0.read_next_packet().unwrap();
    assert_eq!(read.size(), 9);
    assert!(
        read.losses.contains(LossReasons::CHUNK_CORRUPTED),
        "{:?}",
        read.losses
    );
    assert!(buffer.0.read_next_packet().is_none());
}

#[test]
fn a_missing_fragment_is_found_however_it_comes() {
    let begun = || chunk(1, 1, 0).begin('a', 10);
    let missing = |buffer: &mut Fixture| {
        for attempts in 1..4 {
            let before = buffer.stats().readaheads_failed;
            buffer.0.lookahead.clear();
            assert_eq!(buffer.read(), [""; 0]);
            assert_eq!(buffer.stats().readaheads_failed, before + 1, "attempt {attempts}");
            // The buffer does not even look for the missing fragment until something arrives.
            assert_eq!(buffer.0.lookahead.is_empty(), attempts > 1, "attempt {attempts}");
        }
    };
    // The end was there already, and the missing part came in between.
    let mut buffer = ring(4096);
    buffer.commit(begun());
    buffer.commit(chunk(1, 1, 1).middle('b', 10).needs_patching());
    buffer.commit(chunk(1, 1, 2).end('c', 10));
    missing(&mut buffer);
    buffer
        .0
        .apply_patches(ProducerId(1), WriterId(1), ChunkId(1), &[], MorePatches::Done);
    assert_eq!(buffer.read(), ["a10+b10+c10"]);
    // A scraped copy grew.
    let mut buffer = ring(4096);
    buffer.commit(begun());
    buffer.scrape(chunk(1, 1, 1).end('-', 10).padded_to(64));
    missing(&mut buffer);
    buffer.commit(chunk(1, 1, 1).end('b', 10));
    assert_eq!(buffer.read(), ["a10+b10"]);
}
