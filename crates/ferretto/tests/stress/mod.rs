//! A crowd of threads that write numbered track events, sessions that come and go meanwhile, and an account of every event.
//!
//! - [`story`]: the events of the threads. The number of a step alone determines its event.
//! - [`crowd`]: the threads. They end in the middle, or panic, and others take their places.
//! - [`journal`]: when each thread began each step, in files that survive the process.
//! - [`recording`]: a random session, from its start to its trace.
//! - [`leaks`]: the resources that remain in processes.
//! - [`account`]: a trace against the journals: each event that must be there is, or lies in a gap that the trace marks.
//!
//! Used by the test of this crate in one process, and by that of `ferretto-cli` with real services.

#![allow(dead_code, clippy::unwrap_used)] // Each program that includes this file uses a part of it.

pub(crate) mod account;
pub(crate) mod crowd;
pub(crate) mod journal;
pub(crate) mod leaks;
pub(crate) mod recording;
pub(crate) mod story;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long anything may take: long, for the threads leave the service little of the processors.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Boot time in nanoseconds, by which journals and sessions are compared.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How long to go on, and from which seed: `FERRETTO_SDK_STRESS_SECONDS` and `FERRETTO_SDK_STRESS_SEED`, which is printed.
pub(crate) fn seconds_and_seed(seconds: u64) -> (Duration, u64) {
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let seconds = variable("FERRETTO_SDK_STRESS_SECONDS").unwrap_or(seconds);
    let seed = variable("FERRETTO_SDK_STRESS_SEED").unwrap_or_else(now);
    println!("FERRETTO_SDK_STRESS_SEED={seed} FERRETTO_SDK_STRESS_SECONDS={seconds}");
    (Duration::from_secs(seconds), seed)
}

/// Chance, from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of `count` cases.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
