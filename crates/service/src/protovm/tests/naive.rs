//! Random programs over random packets, against a naive machine.
//!
//! `FERRETTO_PROTOVM_SEEDS=n` runs `n` rounds, `FERRETTO_PROTOVM_SEED` chooses the first. The target `protovm` in `fuzz/`
//! runs the same guided by coverage.

use super::*;

const ROUNDS: u64 = 4000;

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}

#[test]
fn any_program_agrees_with_the_naive_machine_on_any_packets() {
    let first = number_from_env("FERRETTO_PROTOVM_SEED").unwrap_or(1);
    let rounds = number_from_env("FERRETTO_PROTOVM_SEEDS").unwrap_or(ROUNDS);
    let mut all = fuzz::Counts::default();
    let mut with_state = 0;
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let length = random.next() % 1500;
        let data: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        match std::panic::catch_unwind(|| fuzz::run(&data)) {
            Ok(counts) => {
                all.merged += counts.merged;
                all.failed += counts.failed;
                all.aborted += counts.aborted;
                all.limited += counts.limited;
                with_state += usize::from(counts.state > 0);
            }
            Err(panic) => {
                println!("reproduce with FERRETTO_PROTOVM_SEED={seed} FERRETTO_PROTOVM_SEEDS=1");
                std::panic::resume_unwind(panic);
            }
        }
    }
    if rounds >= ROUNDS {
        let rounds = rounds as usize;
        let enough = all.merged > rounds
            && all.failed > rounds / 4
            && all.aborted > rounds
            && all.limited > rounds / 100;
        assert!(
            enough && with_state > rounds / 10,
            "random programs do too little to prove anything: {all:?}, {with_state} states"
        );
    }
}
