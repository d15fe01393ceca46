//! Every loss is marked on the next packet of its sequence, with its reasons, and once.

use super::*;

#[test]
fn a_missing_chunk_is_a_gap() {
    let mut buffer = ring(4096);
    for (id, letter) in [(1, 'a'), (3, 'c'), (4, 'd'), (6, 'f')] {
        buffer.commit(chunk(1, 1, id).whole(letter, 16));
    }
    const GAP: &str = r#" !{"PRESENT", "READ_GAP"}"#;
    assert_eq!(
        buffer.read(),
        [
            "a16".into(),
            format!("c16{GAP}"),
            "d16".into(),
            format!("f16{GAP}")
        ]
    );
    buffer.commit(chunk(1, 1, 7).whole('g', 16));
    assert_eq!(buffer.read(), ["g16"]);
    buffer.commit(chunk(1, 1, 9).whole('i', 16).whole('j', 16));
    assert_eq!(buffer.read_some(1), [format!("i16{GAP}")]);
    assert_eq!(
        buffer.read(),
        ["j16"],
        "the gap is marked once, even by another read cycle"
    );
}

#[test]
fn a_gap_is_noticed_when_the_chunks_after_it_came_out_of_order() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 3).whole('c', 16));
    buffer.commit(chunk(1, 1, 1).whole('a', 16));
    assert_eq!(buffer.read(), ["a16", r#"c16 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn gaps_are_noticed_across_the_wrap_around_of_ids() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, u32::MAX - 1).whole('a', 32));
    assert_eq!(buffer.read(), ["a32"]);
    buffer.commit(chunk(1, 1, u32::MAX).whole('b', 32));
    buffer.commit(chunk(1, 1, 0).whole('c', 32));
    assert_eq!(buffer.read(), ["b32", "c32"]);
    buffer.commit(chunk(1, 1, 3).whole('d', 32));
    assert_eq!(buffer.read(), [r#"d32 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn a_sequence_without_chunks_is_remembered() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 1).whole('a', 16));
    assert_eq!(buffer.read(), ["a16"]);
    buffer.commit(chunk(42, 1, 1).whole('-', 4080));
    buffer.commit(chunk(42, 1, 2).whole('-', 4080));
    buffer.commit(chunk(1, 1, 2).whole('b', 16));
    assert_eq!(buffer.read(), ["b16"]);
    buffer.commit(chunk(42, 1, 3).whole('-', 4080));
    buffer.commit(chunk(42, 1, 4).whole('-', 4080));
    buffer.commit(chunk(1, 1, 4).whole('d', 16));
    assert_eq!(buffer.read(), [r#"d16 !{"PRESENT", "READ_GAP"}"#]);
}

#[test]
fn a_loss_is_marked_however_many_other_sequences_have_been_idle_since() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 16));
    buffer.commit(chunk(1, 2, 0).whole('b', 16));
    assert_eq!(
        buffer.read_some(1),
        ["a16"],
        "the other one is overwritten unread"
    );
    for writer in 3..3 + 2 * sequence::MAX_IDLE as u16 {
        buffer.commit(chunk(1, writer, 0).whole('x', 400));
    }
    buffer.read();
    buffer.commit(chunk(1, 1, 1).whole('a', 16));
    buffer.commit(chunk(1, 2, 1).whole('b', 16));
    assert_eq!(buffer.read(), ["a16", r#"b16 !{"PRESENT", "OVERWRITE"}"#]);
    buffer.commit(chunk(1, 2, 2).whole('b', 16));
    assert_eq!(buffer.read(), ["b16"], "it is marked once");
}

#[test]
fn overwriting_many_chunks_is_one_loss() {
    let mut buffer = ring(4096);
    for id in 0..16 {
        buffer.commit(chunk(1, 1, id).whole('x', 400));
    }
    assert!(buffer.stats().chunks_overwritten > 2);
    let packets = buffer.read();
    assert_eq!(packets[0], r#"x400 !{"PRESENT", "OVERWRITE"}"#);
    assert!(packets.len() > 5 && packets[1..].iter().all(|packet| packet == "x400"));
}

#[test]
fn an_end_without_a_beginning_is_passed_over() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).end('a', 10));
    buffer.commit(chunk(1, 1, 1).begin('b', 10));
    buffer.commit(chunk(1, 1, 2).end('c', 10));
    assert_eq!(buffer.read(), [r#"b10+c10 !{"PRESENT", "ORPHAN_CONTINUATION"}"#]);
}

#[test]
fn a_packet_that_is_not_continued_is_lost_and_the_next_one_is_not() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 32));
    buffer.commit(chunk(1, 1, 1).whole('b', 32));
    assert_eq!(buffer.read(), [r#"b32 !{"PRESENT", "REASSEMBLY_BROKEN_CHAIN"}"#]);
}

#[test]
fn a_gap_within_a_packet_has_all_its_reasons() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 32));
    buffer.commit(chunk(1, 1, 2).end('b', 32));
    buffer.commit(chunk(1, 1, 3).whole('c', 32));
    let expected = r#"c32 !{"PRESENT", "READ_GAP", "ORPHAN_CONTINUATION", "REASSEMBLY_GAP"}"#;
    assert_eq!(buffer.read(), [expected]);
}

#[test]
fn the_bits_are_those_of_the_protocol() {
    let all = [
        (LossReasons::PRESENT, 1),
        (LossReasons::READ_GAP, 2),
        (LossReasons::CHUNK_CORRUPTED, 4),
        (LossReasons::ORPHAN_CONTINUATION, 8),
        (LossReasons::REASSEMBLY_GAP, 16),
        (LossReasons::REASSEMBLY_BROKEN_CHAIN, 32),
        (LossReasons::OVERWRITE, 64),
        (LossReasons::WRITER_ABORT, 128),
    ];
    assert!(all.iter().all(|(reason, bits)| reason.bits() == *bits));
    assert!(!LossReasons::NONE.any());
    assert!((LossReasons::PRESENT | LossReasons::OVERWRITE).contains(LossReasons::OVERWRITE));
}

#[test]
fn a_writer_that_gave_up_is_marked_where_it_did() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).raw(&DROP_MARKER));
    buffer.commit(chunk(1, 1, 1).whole('b', 10));
    assert_eq!(buffer.read(), ["a10", r#"b10 !{"PRESENT", "WRITER_ABORT"}"#]);
    assert_eq!(
        (
            buffer.stats().abi_violations,
            buffer.stats().trace_writer_packet_loss
        ),
        (0, 1)
    );
}

#[test]
fn a_packet_given_up_in_the_middle_is_dropped() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).begin('b', 10));
    buffer.commit(chunk(1, 1, 1).raw(&DROP_MARKER).flag(1));
    buffer.commit(chunk(1, 1, 2).whole('d', 10));
    let expected = r#"d10 !{"PRESENT", "REASSEMBLY_BROKEN_CHAIN", "WRITER_ABORT"}"#;
    assert_eq!(buffer.read(), ["a10", expected]);
}

#[test]
fn a_packet_given_up_in_the_middle_does_not_go_on_behind() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 10).begin('b', 10));
    buffer.commit(chunk(1, 1, 1).raw(&DROP_MARKER).flag(1));
    buffer.commit(chunk(1, 1, 2).end('c', 10).whole('d', 10));
    let expected = r#"d10 !{"PRESENT", "ORPHAN_CONTINUATION", "REASSEMBLY_BROKEN_CHAIN", "WRITER_ABORT"}"#;
    assert_eq!(buffer.read(), ["a10", expected]);
}

#[test]
fn a_packet_is_not_continued_by_one_that_begins() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 10));
    buffer.commit(chunk(1, 1, 1).begin('b', 20));
    buffer.commit(chunk(1, 1, 2).end('b', 30));
    assert_eq!(
        buffer.read(),
        [r#"b20+b30 !{"PRESENT", "REASSEMBLY_BROKEN_CHAIN"}"#]
    );
}

#[test]
fn giving_up_does_not_turn_the_packet_before_into_a_fragment() {
    let mut buffer = ring(4096);
    buffer.commit(
        chunk(1, 1, 0)
            .whole('a', 10)
            .whole('b', 10)
            .raw(&DROP_MARKER)
            .flag(2),
    );
    buffer.commit(chunk(1, 1, 1).whole('c', 10));
    assert_eq!(
        buffer.read(),
        ["a10", "b10", r#"c10 !{"PRESENT", "WRITER_ABORT"}"#]
    );
}

#[test]
fn the_rest_of_an_overwritten_packet_is_no_second_loss() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 2000));
    buffer.commit(chunk(1, 1, 1).middle('b', 100));
    buffer.commit(chunk(1, 1, 2).end('c', 100).whole('d', 100));
    buffer.commit(chunk(1, 2, 0).whole('x', 3500 - 1800));
    buffer.commit(chunk(1, 2, 1).whole('y', 1900));
    assert_eq!(buffer.read()[0], r#"d100 !{"PRESENT", "OVERWRITE"}"#);
}

#[test]
fn the_end_of_a_scraped_chunk_that_never_came_is_a_loss() {
    let mut buffer = ring(4096);
    buffer.scrape(chunk(1, 1, 0).whole('a', 20).whole('b', 20).padded_to(512));
    assert_eq!(buffer.read(), ["a20"]);
    buffer.commit(chunk(2, 1, 0).whole('x', 4000));
    assert_eq!(buffer.read(), ["x4000"]);
    buffer.commit(chunk(1, 1, 1).whole('c', 20));
    assert_eq!(buffer.read(), [r#"c20 !{"PRESENT", "OVERWRITE"}"#]);
}

#[test]
fn a_chunk_older_than_anything_seen_that_comes_too_late_is_a_loss() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 5).whole('b', 20));
    assert_eq!(buffer.read(), ["b20"]);
    let late = chunk(1, 1, 4).whole('a', 20);
    assert_eq!(buffer.try_commit(&late), CopyOutcome::Discarded(Discard::TooLate));
    buffer.commit(chunk(1, 1, 6).whole('c', 20));
    assert_eq!(buffer.read(), [r#"c20 !{"PRESENT", "READ_GAP"}"#]);
    // If it comes again, it does not count twice.
    assert_eq!(buffer.try_commit(&late), CopyOutcome::Discarded(Discard::TooLate));
    buffer.commit(chunk(1, 1, 7).whole('d', 20));
    assert_eq!(buffer.read(), ["d20"]);
}

#[test]
fn a_full_buffer_marks_refused_chunks_before_all_its_own() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 1).whole('b', 2000));
    buffer.commit(chunk(2, 1, 0).whole('x', 2000));
    let first = chunk(1, 1, 0).whole('a', 100);
    assert_eq!(buffer.try_commit(&first), CopyOutcome::Discarded(Discard::Full));
    assert_eq!(buffer.read(), [r#"b2000 !{"PRESENT", "READ_GAP"}"#, "x2000"]);
}

#[test]
fn a_scraped_chunk_with_a_malformed_rest_is_marked() {
    for overwritten_before in [false, true] {
        let mut buffer = ring(4096);
        buffer.scrape(chunk(1, 1, 0).whole('a', 20).whole('b', 20).padded_to(512));
        assert_eq!(buffer.read(), ["a20"]);
        if overwritten_before {
            buffer.commit(chunk(2, 1, 0).whole('x', 4000));
            assert_eq!(buffer.read(), ["x4000"]);
        }
        let _ = buffer.try_commit(&chunk(1, 1, 0).whole('a', 20).raw(&[0xff, 0xff]));
        assert_eq!(buffer.stats().abi_violations, 1);
        buffer.commit(chunk(1, 1, 1).whole('c', 20));
        assert_eq!(
            buffer.read(),
            [r#"c20 !{"PRESENT", "CHUNK_CORRUPTED"}"#],
            "overwritten before: {overwritten_before}"
        );
    }
}

#[test]
fn errors_of_a_scraped_copy_are_forgotten_when_the_chunk_is_whole() {
    let mut buffer = ring(4096);
    let mut torn = chunk(1, 1, 0)
        .whole('a', 20)
        .raw(&[0xff, 0xff])
        .raw(&[])
        .padded_to(512);
    torn.info.state = ChunkState::Incomplete;
    let outcome = buffer.try_commit(&torn);
    assert_eq!(outcome, CopyOutcome::Violation(AbiViolation::MalformedFragments));
    buffer.commit(chunk(1, 1, 0).whole('a', 20).whole('b', 20).whole('c', 20));
    buffer.commit(chunk(1, 1, 1).whole('d', 20));
    assert_eq!(buffer.read(), ["a20", "b20", "c20", "d20"]);
}

#[test]
fn the_end_of_a_packet_that_arrives_when_its_start_is_overwritten_is_an_orphan() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 1000));
    buffer.commit(chunk(2, 1, 0).whole('x', 3000));
    buffer.commit(chunk(2, 1, 1).whole('y', 500));
    assert_eq!(buffer.read(), ["x3000", "y500"]);
    buffer.commit(chunk(1, 1, 1).end('b', 20).whole('c', 20));
    assert_eq!(
        buffer.read(),
        [r#"c20 !{"PRESENT", "ORPHAN_CONTINUATION", "OVERWRITE"}"#]
    );
}

#[test]
fn overwriting_loses_packets_for_the_reasons_that_reading_would_find() {
    for (overwritten, reasons) in [
        (chunk(1, 1, 0).whole('a', 500), r#""OVERWRITE""#),
        (chunk(1, 1, 0).end('a', 500), r#""ORPHAN_CONTINUATION""#),
        (chunk(1, 1, 0).middle('a', 500), r#""ORPHAN_CONTINUATION""#),
        (chunk(1, 1, 0).begin('a', 500), r#""REASSEMBLY_BROKEN_CHAIN""#),
        (
            chunk(1, 1, 0).end('a', 200).begin('a', 300),
            r#""ORPHAN_CONTINUATION", "REASSEMBLY_BROKEN_CHAIN""#,
        ),
        (
            chunk(1, 1, 0).whole('a', 200).begin('a', 300),
            r#""REASSEMBLY_BROKEN_CHAIN", "OVERWRITE""#,
        ),
    ] {
        let mut buffer = ring(4096);
        buffer.commit(overwritten);
        buffer.commit(chunk(1, 1, 1).whole('b', 20));
        buffer.commit(chunk(2, 1, 0).whole('x', 3400));
        buffer.commit(chunk(2, 1, 1).whole('y', 500));
        let read = buffer.read();
        assert_eq!(read[0], format!(r#"b20 !{{"PRESENT", {reasons}}}"#));
        assert_eq!(buffer.stats().chunks_overwritten, 1);
    }
}

#[test]
fn an_empty_packet_that_is_overwritten_is_no_loss() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('-', 1));
    buffer.commit(chunk(2, 1, 0).whole('x', 4048));
    assert_eq!(buffer.room_to_end(), 0);
    buffer.commit(chunk(1, 1, 1).whole('b', 10));
    assert_eq!(buffer.read(), ["x4048", "b10"]);
}

#[test]
fn the_rest_of_a_packet_goes_with_its_overwritten_start() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 500));
    buffer.commit(chunk(1, 1, 1).end('a', 20));
    buffer.commit(chunk(1, 1, 2).whole('b', 20));
    buffer.commit(chunk(2, 1, 0).whole('x', 3400));
    buffer.commit(chunk(2, 1, 1).whole('y', 500));
    let stats = buffer.stats();
    assert_eq!((stats.readaheads_succeeded, stats.chunks_overwritten), (1, 2));
    assert_eq!(buffer.read()[0], r#"b20 !{"PRESENT", "OVERWRITE"}"#);
}
