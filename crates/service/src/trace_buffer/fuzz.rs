//! Arbitrary bytes as operations on a trace buffer: whatever producers send, the buffer keeps its invariants and never panics. The tests of this
//! folder call this with random bytes, and the target `trace_buffer` in `fuzz/` at the root of the repository with bytes that reach new code. It is
//! not part of the crate otherwise.

use super::*;

use crate::fuzz_input::Input;

/// Interprets `data` as operations on a small buffer.
///
/// # Panics
/// If the buffer breaks one of its promises.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let policy = match input.byte() % 8 {
        0 => FillPolicy::Discard,
        4 => FillPolicy::DiscardAtEnd,
        5 => FillPolicy::StreamedRing,
        _ => FillPolicy::RingBuffer,
    };
    let shape = input.byte();
    let piece = [4096, 8192, 256, memory::PIECE][usize::from(shape >> 6)];
    let size = u64::from(shape & 3) * 4096;
    let mut buffer = TraceBuffer::with_pieces_of(piece, size, policy).expect("a few KiB");
    let mut delivered = 0;
    let mut kept: Option<TraceBuffer> = None;
    let mut kept_packets = Vec::new();
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0..5 => {
                let writer = input.byte();
                let near = input.byte();
                let id = if near > 250 {
                    input.number()
                } else {
                    0u32.wrapping_sub(100).wrapping_add(near.into())
                };
                let (producer, writer) = sequence(writer);
                let mut info = ChunkInfo {
                    producer,
                    identity: ProducerIdentity::default(),
                    writer,
                    chunk_id: ChunkId(id),
                    num_fragments: 0,
                    flags: input.byte(),
                    state: if input.byte() % 3 == 0 {
                        ChunkState::Incomplete
                    } else {
                        ChunkState::Complete
                    },
                };
                let mut payload = Vec::new();
                let shape = input.byte();
                if shape & 0x80 == 0 {
                    info.num_fragments = (shape & 7).into();
                    for _ in 0..shape & 7 {
                        let size = input.byte() & 0x7f;
                        payload.push(size);
                        payload.extend_from_slice(input.bytes(size.into()));
                    }
                } else {
                    info.num_fragments = u16::from(input.byte()) << (shape & 8);
                    let size = usize::from(input.byte()) << (shape & 7);
                    payload.extend_from_slice(input.bytes(size));
                }
                payload.resize(payload.len() + usize::from(shape >> 4 & 7) * 16, 0);
                let _ = buffer.copy_chunk(&info, &payload);
            }
            5 => {
                let writer = input.byte();
                let id = ChunkId(0u32.wrapping_sub(100).wrapping_add(input.byte().into()));
                let offset = if input.byte() > 250 {
                    input.number()
                } else {
                    input.byte().into()
                };
                let patch = Patch {
                    offset,
                    data: input.number().to_le_bytes(),
                };
                let more = if input.byte() % 2 == 0 {
                    MorePatches::Done
                } else {
                    MorePatches::Pending
                };
                let (producer, writer) = sequence(writer);
                buffer.apply_patches(producer, writer, id, &[patch], more);
            }
            6 => {
                let limit = input.byte();
                buffer.begin_read();
                for _ in 0..limit {
                    let Some(packet) = buffer.read_next_packet() else {
                        break;
                    };
                    assert!(packet.size() > 0);
                    assert!(packet.fragments().all(|fragment| !fragment.is_empty()));
                    assert!(!packet.losses.any() || packet.losses.contains(LossReasons::PRESENT));
                    delivered += packet.size();
                    if limit & 1 == 1 {
                        let bytes = packet.fragments().collect::<Vec<_>>().concat();
                        kept_packets.push((buffer.keep_packet().expect("a few KiB"), bytes));
                    }
                }
            }
            _ => {
                let clone = buffer.clone_read_only().expect("a few KiB");
                if input.byte() == 0 {
                    buffer = clone;
                } else {
                    kept = Some(clone);
                }
            }
        }
        buffer.check_invariants();
        if let Some(kept) = &kept {
            kept.check_invariants();
        }
    }
    assert!(
        delivered <= data.len() + 128 * data.len(),
        "more came out than went in"
    );
    for (packet, was) in kept_packets {
        assert!(packet.fragments(0).collect::<Vec<_>>().concat() == was);
    }
    if let Some(mut kept) = kept {
        kept.begin_read();
        while kept.read_next_packet().is_some() {}
        kept.check_invariants();
    }
    // Once everything has been read, only waiting chunks are left.
    buffer.begin_read();
    while buffer.read_next_packet().is_some() {}
    buffer.check_invariants();
    buffer.begin_read();
    assert!(
        buffer.read_next_packet().is_none(),
        "a second cycle found what the first had not"
    );
}

/// One of eight sequences.
fn sequence(byte: u8) -> (ProducerId, WriterId) {
    (
        ProducerId(1 + u32::from(byte >> 7)),
        WriterId(u16::from(byte & 3)),
    )
}
