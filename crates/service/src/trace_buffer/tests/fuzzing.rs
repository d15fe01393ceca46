//! The interpreter of arbitrary bytes, run with random ones.
//!
//! `FERRETTO_TRACE_BUFFER_FUZZ=n` runs `n` rounds, `FERRETTO_TRACE_BUFFER_SEED` chooses the first. The target
//! `trace_buffer` in `fuzz/` runs the same interpreter guided by coverage.

use super::*;

const ROUNDS: u64 = 400;

#[test]
fn arbitrary_operations_keep_the_invariants() {
    let first = number_from_env("FERRETTO_TRACE_BUFFER_SEED").unwrap_or(1);
    let rounds = number_from_env("FERRETTO_TRACE_BUFFER_FUZZ").unwrap_or(ROUNDS);
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let data: Vec<u8> = (0..random.below(6000)).map(|_| random.next() as u8).collect();
        if let Err(panic) = std::panic::catch_unwind(|| fuzz::run(&data)) {
            println!("reproduce with FERRETTO_TRACE_BUFFER_SEED={seed} FERRETTO_TRACE_BUFFER_FUZZ=1");
            std::panic::resume_unwind(panic);
        }
    }
}
