//! The cost of a `malloc` and its `free` to a program: bare, and with the library preloaded while nobody profiles, while the heap is profiled and the allocation
//! is no sample, and when each allocation is one. Prints the least and the median of many batches, in nanoseconds for both calls.
//!
//! The program is this binary, which runs itself. `cargo bench -p ferretto-heap-preload`; with `FERRETTO_HEAP_BENCH=LOOPS` it runs so many loops and nothing
//! else, to have its instructions counted: `valgrind --tool=callgrind`.

#[path = "../../heap-client/tests/client/daemon.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod daemon;

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferretto_heap_client::handshake::{HEAP_SOCK_NAME, Welcome, WhenFull};

use crate::daemon::Daemon;

const SIZES: [usize; 3] = [24, 64, 400];

/// 256 MiB, so that a batch of samples fits.
const RING_WORDS: usize = 32 << 20;

fn pair(size: usize) {
    // SAFETY: released once, and not used.
    unsafe { libc::free(black_box(libc::malloc(black_box(size)))) };
}

/// The program: prints the least and the median for each size.
fn measure(pairs: u32, pause: Duration) {
    for size in SIZES {
        let mut batches: Vec<f64> = (0..200)
            .map(|_| {
                std::thread::sleep(pause);
                pair(size);
                let began = Instant::now();
                for _ in 0..pairs {
                    pair(size);
                }
                began.elapsed().as_nanos() as f64 / f64::from(pairs)
            })
            .collect();
        batches.sort_by(f64::total_cmp);
        println!(
            "{size:>5} bytes: least {:8.2} ns, median {:8.2} ns",
            batches[0], batches[100]
        );
    }
}

fn main() {
    if let Ok(loops) = std::env::var("FERRETTO_HEAP_BENCH") {
        for _ in 0..loops.parse().expect("a number") {
            pair(64);
        }
        return;
    }
    match std::env::args().nth(1).as_deref() {
        Some("pairs") => return measure(100_000, Duration::ZERO),
        Some("samples") => return measure(1000, Duration::from_millis(5)),
        _ => {}
    }
    let itself = std::env::current_exe().expect("a path");
    let library = itself.with_file_name("libferretto_heap.so");
    let run = |title: &str, argument: &str, preload: bool, interval: Option<u64>| {
        println!("{title}");
        let daemon = Daemon::new();
        let mut command = Command::new(&itself);
        command.arg(argument).stdout(Stdio::inherit());
        if preload {
            command
                .env("LD_PRELOAD", &library)
                .env(HEAP_SOCK_NAME, daemon.path());
        }
        let Some(interval) = interval else {
            drop(daemon);
            assert!(command.status().expect("runs").success());
            return;
        };
        let mut child = command.spawn().expect("runs");
        let mut client = daemon.accept(&Welcome::new(interval, WhenFull::Lose), RING_WORDS);
        let mut records = 0_u64;
        while child.try_wait().expect("a child").is_none() {
            while client.next().is_some() {
                records += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("      {records} records, {:?} lost", client.lost());
    };
    run("bare", "pairs", false, None);
    run("preloaded, nobody listens", "pairs", true, None);
    run("profiled, not sampled", "pairs", true, Some(1 << 40));
    run("profiled, each allocation a sample", "samples", true, Some(1));
    run("bare again", "pairs", false, None);
}
