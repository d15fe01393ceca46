//! Arbitrary bytes as operations: whatever producers send, the buffer keeps its invariants and never panics.
//!
//! `FERRETTO_TRACE_BUFFER_FUZZ=n` runs `n` rounds from random bytes, `FERRETTO_TRACE_BUFFER_SEED` chooses the
//! first. [`fuzz_step`] is what a fuzzer would call with bytes of its own.

use super::*;

const ROUNDS: u64 = 400;

/// Takes bytes from the front of the input; zeroes when there are no more.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        self.0.split_off(..count.min(self.0.len())).unwrap_or_default()
    }
}

/// Interprets `data` as operations on a small buffer.
fn fuzz_step(data: &[u8]) {
    let mut input = Input(data);
    let policy = if input.byte() % 4 == 0 {
        FillPolicy::Discard
    } else {
        FillPolicy::RingBuffer
    };
    let mut buffer = TraceBuffer::new(u64::from(input.byte() % 3) * 4096, policy).unwrap();
    let mut delivered = 0;
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
                let mut info = chunk(1 + u16::from(writer >> 7), u16::from(writer & 3), id).info;
                info.flags = input.byte();
                if input.byte() % 3 == 0 {
                    info.state = ChunkState::Incomplete;
                }
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
                let (producer, writer) = (
                    ProducerId(1 + u16::from(writer >> 7)),
                    WriterId(u16::from(writer & 3)),
                );
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
                }
            }
            _ => {
                buffer = if input.byte() == 0 {
                    buffer.clone_read_only().unwrap()
                } else {
                    buffer
                }
            }
        }
        buffer.check_invariants();
    }
    assert!(
        delivered <= data.len() + 128 * data.len(),
        "more came out than went in"
    );
    // Once everything has been read, only what waits is left.
    buffer.begin_read();
    while buffer.read_next_packet().is_some() {}
    buffer.check_invariants();
    buffer.begin_read();
    assert!(
        buffer.read_next_packet().is_none(),
        "a second cycle found what the first had not"
    );
}

#[test]
fn arbitrary_operations_keep_the_invariants() {
    let first = number_from_env("FERRETTO_TRACE_BUFFER_SEED").unwrap_or(1);
    let rounds = number_from_env("FERRETTO_TRACE_BUFFER_FUZZ").unwrap_or(ROUNDS);
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let data: Vec<u8> = (0..random.below(6000)).map(|_| random.next() as u8).collect();
        if let Err(panic) = std::panic::catch_unwind(|| fuzz_step(&data)) {
            eprintln!("reproduce with FERRETTO_TRACE_BUFFER_SEED={seed} FERRETTO_TRACE_BUFFER_FUZZ=1");
            std::panic::resume_unwind(panic);
        }
    }
}
