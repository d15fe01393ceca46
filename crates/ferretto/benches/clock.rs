//! What a timestamp costs: `cargo bench -p ferretto --bench clock`, best pinned (`taskset -c 1`).
//!
//! Prints nanoseconds per call, the least of several rounds. Valgrind hides that the counter is constant, so instructions are to be
//! counted in the disassembly of `stamps`.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "the SDK's module, compiled for its insides"
)]

use std::hint::black_box;
use std::time::Instant;

#[path = "../src/clock/mod.rs"]
mod clock;

const CALLS: u64 = 1_000_000;
const ROUNDS: usize = 20;

/// As sequences do it.
#[inline(never)]
fn stamps(anchor: &mut clock::Anchor) -> u64 {
    let mut last = 0;
    for _ in 0..CALLS {
        last = match black_box(&*anchor).now() {
            Some(ns) => ns,
            None => anchor.renew(last),
        };
        black_box(last);
    }
    last
}

fn least_ns(mut round: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        round();
        began.elapsed().as_nanos() as f64 / CALLS as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn each(mut call: impl FnMut() -> u64) -> f64 {
    least_ns(|| {
        for _ in 0..CALLS {
            black_box(call());
        }
    })
}

fn main() {
    let mut anchor = clock::Anchor::EXPIRED;
    let stamp = least_ns(|| {
        black_box(stamps(&mut anchor));
    });
    println!("a timestamp of an anchor    {stamp:5.1} ns");
    println!("a copy of the current piece {:5.1} ns", each(|| anchor.renew(0)));
    println!("the kernel's clock          {:5.1} ns", each(clock::now));
    println!(
        "the thread's own time       {:5.1} ns",
        each(clock::thread_time_ns)
    );
}
