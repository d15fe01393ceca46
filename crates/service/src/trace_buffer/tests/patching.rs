//! Patches: the places that they may change, and the behaviour of a chunk that waits for them.

use super::*;

const DONE: MorePatches = MorePatches::Done;

fn first_fragments(buffer: &mut Fixture) -> Vec<Vec<u8>> {
    buffer.0.begin_read();
    let mut packets = Vec::new();
    while let Some(packet) = buffer.0.read_next_packet() {
        packets.push(packet.fragments().collect::<Vec<_>>().concat());
    }
    packets
}

#[test]
fn a_patch_replaces_four_bytes_of_its_chunk_only() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 9));
    buffer.commit(chunk(2, 1, 0).whole('b', 9));
    buffer.commit(chunk(3, 1, 0).whole('c', 9));
    assert!(buffer.patch((2, 1, 0), 5, b"YMCA", DONE));
    assert_eq!(
        first_fragments(&mut buffer),
        [b"aaaaaaaa", b"bbbbYMCA", b"cccccccc"]
    );
    assert_eq!(
        (buffer.stats().patches_succeeded, buffer.stats().patches_failed),
        (1, 0)
    );
}

#[test]
fn patches_reach_the_first_and_the_last_byte_of_a_fragment() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 5));
    buffer.commit(chunk(1, 1, 1).middle('b', 16));
    buffer.commit(chunk(1, 1, 2).end('c', 5));
    let patches = [
        Patch {
            offset: 1,
            data: *b"HEAD",
        },
        Patch {
            offset: 12,
            data: *b"TAIL",
        },
    ];
    assert!(
        buffer
            .0
            .apply_patches(ProducerId(1), WriterId(1), ChunkId(1), &patches, DONE)
    );
    assert_eq!(first_fragments(&mut buffer), [b"aaaaHEADbbbbbbbTAILcccc"]);
    assert_eq!(buffer.stats().patches_succeeded, 2);
}

#[test]
fn patches_for_chunks_that_are_not_there_fail() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 100));
    for missing in [(1, 2, 0), (2, 1, 0), (1, 1, 1), (1, 1, u32::MAX)] {
        assert!(!buffer.patch(missing, 0, b"XXXX", DONE));
    }
    assert_eq!(buffer.stats().patches_failed, 4);
    assert_eq!(buffer.read(), ["a100"]);
}

#[test]
fn patches_outside_of_the_payload_fail_and_change_nothing() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 2048));
    buffer.commit(chunk(1, 1, 1).whole('b', 16));
    for offset in [
        13,
        16,
        u32::MAX,
        0u32.wrapping_sub(4),
        0u32.wrapping_sub(16),
        0u32.wrapping_sub(1024),
    ] {
        let patches = [
            Patch {
                offset: 4,
                data: *b"good",
            },
            Patch {
                offset,
                data: *b"0day",
            },
        ];
        assert!(
            !buffer
                .0
                .apply_patches(ProducerId(1), WriterId(1), ChunkId(1), &patches, DONE),
            "{offset}"
        );
    }
    assert_eq!(buffer.read(), ["a2048", "b16"]);
}

#[test]
fn consumed_bytes_cannot_be_patched() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 16).whole('b', 16));
    assert_eq!(buffer.read_some(1), ["a16"]);
    // Nor a patch that only ends behind it.
    for offset in [4, 13, 15] {
        assert!(!buffer.patch((1, 1, 0), offset, b"late", DONE), "{offset}");
    }
    assert!(buffer.patch((1, 1, 0), 17, b"bbbb", DONE));
    assert_eq!(buffer.read(), ["b16"]);
}

#[test]
fn a_chunk_that_needs_patches_waits_for_the_last_of_them() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 16).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('b', 16));
    buffer.commit(chunk(2, 1, 0).whole('c', 16));
    buffer.commit(chunk(2, 1, 1).begin('d', 16).needs_patching());
    buffer.commit(chunk(2, 1, 2).end('e', 16).whole('f', 16));
    assert_eq!(buffer.read(), ["c16"]);

    assert!(buffer.patch((2, 1, 1), 1, b"dddd", DONE));
    assert_eq!(buffer.read(), ["d16+e16", "f16"]);

    assert!(buffer.patch((1, 1, 0), 1, b"aaaa", MorePatches::Pending));
    assert_eq!(buffer.read(), NOTHING);
    assert!(buffer.patch((1, 1, 0), 5, b"aaaa", DONE));
    assert_eq!(buffer.read(), ["a16+b16"]);
}

#[test]
fn patches_may_come_in_any_order() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 100).needs_patching());
    buffer.commit(chunk(1, 1, 2).end('c', 100));
    buffer.commit(chunk(1, 1, 1).middle('b', 100).needs_patching());
    assert!(buffer.patch((1, 1, 1), 50, b"bbbb", DONE));
    assert_eq!(buffer.read(), NOTHING);
    assert!(buffer.patch((1, 1, 0), 50, b"aaaa", DONE));
    assert_eq!(buffer.read(), ["a100+b100+c100"]);
}

#[test]
fn a_packet_that_ends_in_a_chunk_does_not_wait_for_the_next_one_in_it() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 10));
    buffer.commit(
        chunk(1, 1, 1)
            .end('b', 10)
            .whole('c', 10)
            .begin('d', 10)
            .needs_patching(),
    );
    buffer.commit(chunk(1, 1, 2).end('e', 10));
    assert_eq!(buffer.read(), ["a10+b10", "c10"]);
    assert!(buffer.patch((1, 1, 1), 21, b"dddd", DONE));
    assert_eq!(buffer.read(), ["d10+e10"]);
}

#[test]
fn a_chunk_overwritten_while_it_waits_is_a_loss_and_ends_the_wait() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).begin('a', 1024).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('b', 1024));
    assert_eq!(buffer.read(), NOTHING);
    buffer.commit(chunk(1, 1, 2).whole('c', 2000));
    buffer.commit(chunk(1, 1, 3).whole('d', 2000));
    assert!(!buffer.patch((1, 1, 0), 1, b"aaaa", DONE));
    assert_eq!(
        buffer.read(),
        [
            r#"c2000 !{"PRESENT", "ORPHAN_CONTINUATION", "OVERWRITE"}"#,
            "d2000"
        ]
    );
}

#[test]
fn a_full_buffer_that_discards_still_takes_patches() {
    let mut buffer = discard(4096);
    buffer.commit(chunk(1, 1, 0).begin('-', 5).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('b', 5));
    let full = buffer.try_commit(&chunk(2, 1, 0).whole('x', 4070));
    assert_eq!(full, CopyOutcome::Discarded(Discard::Full));
    assert!(buffer.patch((1, 1, 0), 1, b"aaaa", DONE));
    assert_eq!(buffer.read(), ["a5+b5"]);
}

#[test]
fn unpatched_packets_of_a_lost_producer_are_lost_and_hold_up_nothing() {
    let mut buffer = ring(4096);
    buffer.commit(chunk(1, 1, 0).whole('a', 9).begin('b', 9).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('c', 9).whole('d', 9).begin('e', 9));
    buffer.commit(chunk(1, 1, 2).middle('f', 9).needs_patching());
    buffer.commit(chunk(1, 1, 3).end('g', 9).whole('h', 9));
    buffer.commit(chunk(2, 1, 0).begin('i', 9).needs_patching());
    buffer.commit(chunk(2, 1, 1).end('j', 9).whole('k', 9));
    assert_eq!(buffer.read(), ["a9"]);
    buffer.0.producer_gone(ProducerId(1));
    buffer.0.begin_read();
    for text in ["dddddddd", "hhhhhhhh"] {
        let packet = buffer.0.read_next_packet().expect("it waits for nothing");
        assert_eq!(packet.fragments().collect::<Vec<_>>().concat(), text.as_bytes());
        assert!(
            packet.losses.contains(LossReasons::WRITER_ABORT),
            "{:?}",
            packet.losses
        );
    }
    assert!(
        buffer.0.read_next_packet().is_none(),
        "another writer's may still be patched"
    );
    assert!(buffer.patch((2, 1, 0), 1, b"ii--", DONE));
    assert_eq!(first_fragments(&mut buffer).len(), 2);
}

#[test]
fn the_end_of_a_producer_that_wrote_nothing_changes_nothing() {
    let mut buffer = ring(4096);
    buffer.0.producer_gone(ProducerId(1));
    buffer.commit(chunk(1, 1, 0).begin('a', 9).needs_patching());
    buffer.commit(chunk(1, 1, 1).end('b', 9));
    assert!(buffer.read().is_empty());
    assert!(buffer.patch((1, 1, 0), 1, b"aaaa", DONE));
    assert_eq!(first_fragments(&mut buffer).len(), 1);
}
