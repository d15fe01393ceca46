//! Arbitrary bytes as a program, and packets for it: the machine keeps its invariants and its limits, never panics, and as long as no limit is
//! reached agrees with the naive one. The tests of this folder call this with random bytes, and the target `protovm` in `fuzz/` at the root of the
//! repository with bytes that reach new code; not part of the crate otherwise.

mod programs;

use ferretto_proto::messages::{Message, VmProgram};
use ferretto_wire::Writer;

use super::naive::{End, Naive};
use super::{Outcome, ProtoVm};
use crate::fuzz_input::Input;

/// Counts of the packets of a run, by outcome.
#[derive(Debug, Default)]
pub struct Counts {
    /// Merged.
    pub merged: usize,
    /// The program found nothing to work on.
    pub failed: usize,
    /// Aborted because the program or the packet makes no sense.
    pub aborted: usize,
    /// Aborted because of a limit.
    pub limited: usize,
    /// Bytes of the state in the end.
    pub state: usize,
}

/// Interprets `data`: a program, the memory for its state, and packets.
///
/// # Panics
/// If the machine breaks one of its promises.
pub fn run(data: &[u8]) -> Counts {
    let mut counts = Counts::default();
    let mut input = Input(data);
    let program = match input.byte() % 4 {
        0 => {
            let length = usize::from(input.byte()) << 2;
            VmProgram::decode_from_slice(input.bytes(length)).unwrap_or_default()
        }
        _ => programs::program(&mut input),
    };
    let memory_limit = match input.byte() {
        small @ 0..32 => u64::from(small) * 64,
        _ => 1 << 20,
    };
    let Ok(mut vm) = ProtoVm::new(&program, memory_limit) else {
        return counts;
    };
    let mut naive = Some(Naive::new(&program));
    while !input.0.is_empty() {
        let mut packet = Writer::new();
        match input.byte() % 8 {
            0 => {
                let length = usize::from(input.byte());
                packet.raw(input.bytes(length));
            }
            count => (0..count).for_each(|_| programs::field(&mut input, &mut packet)),
        }
        let outcome = vm.apply(packet.as_slice());
        vm.check_invariants();
        assert!(vm.memory_used() <= memory_limit, "more memory than the limit");
        let mut state = Writer::new();
        vm.write_state(&mut state);
        assert!(
            state.len() as u64 <= vm.memory_used(),
            "the state is larger than what is counted for it"
        );
        counts.state = state.len();
        let (count, expected) = match &outcome {
            Outcome::Merged => (&mut counts.merged, Ok(())),
            Outcome::Failed => (&mut counts.failed, Err(End::Failed)),
            Outcome::Aborted(abort) if abort.is_limit() => {
                naive = None;
                (&mut counts.limited, Ok(()))
            }
            Outcome::Aborted(_) => (&mut counts.aborted, Err(End::Aborted)),
        };
        *count += 1;
        if let Some(model) = &mut naive {
            match model.apply(packet.as_slice()) {
                Err(End::GivenUp) => naive = None,
                end => {
                    assert_eq!(end, expected, "{outcome:?}, {program:?}, {packet:?}");
                    assert_eq!(
                        state.as_slice(),
                        model.encoded_state(),
                        "{outcome:?}, {program:?}, {packet:?}"
                    );
                }
            }
        }
    }
    counts
}
