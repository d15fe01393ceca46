//! Samples stand for as many bytes as there are, and releases are of just these allocations.

use std::collections::{HashMap, HashSet};

use ferretto_heap_client::handshake::WhenFull;
use ferretto_heap_client::layout::REGISTERS;

use crate::daemon::{Daemon, Record, Sample, alive, samples};
use crate::{RING_WORDS, lossless, of_malloc, output, program};

const SIZES: [u64; 5] = [16, 100, 1000, 3000, 10000];

fn bytes_by_size<'a>(samples: impl Iterator<Item = &'a Sample>) -> HashMap<u64, u64> {
    let mut bytes = HashMap::new();
    for sample in samples {
        *bytes.entry(sample.size).or_default() += sample.stands_for;
    }
    bytes
}

#[test]
fn samples_stand_for_the_bytes_of_each_size_and_all_their_releases_are_told() {
    let daemon = Daemon::new();
    for (seed, interval) in [("1", 4096), ("2", 512), ("3", 50_000), ("4", 1)] {
        let Some(mut program) = program(&["classes", seed], &daemon) else {
            return;
        };
        let child = program.spawn().expect("a program");
        let mut client = daemon.accept(&lossless(interval), RING_WORDS);
        let records = client.until_exit();
        let output = output(child);
        assert_eq!(client.lost(), [0; 4], "seed {seed}");
        assert!(matches!(
            &records[0],
            Record::Heap { heap: 1, name, interval: told } if name == "libc.malloc" && *told == interval
        ));
        let line = output.lines().find_map(|line| line.strip_prefix("bytes "));
        let truth = line
            .expect("bytes")
            .split(' ')
            .map(|bytes| bytes.parse::<u64>().expect("a number"));
        let estimates = bytes_by_size(samples(&records));
        for (size, bytes) in SIZES.into_iter().zip(truth) {
            let estimate = estimates.get(&size).copied().unwrap_or(0);
            let difference = estimate.abs_diff(bytes) as f64;
            // Allocations as large as the interval are counted exactly (libc may allocate as much itself). Otherwise hits have a Poisson distribution:
            // five of its standard deviations.
            let bound = if size >= interval {
                5.0 * size as f64
            } else {
                5.0 * (interval as f64 * bytes as f64).sqrt()
            };
            assert!(
                difference <= bound,
                "seed {seed}, interval {interval}, size {size}: {estimate} for {bytes}, {difference} off, {bound} allowed"
            );
        }
        // The records keep just the sampled ones of the allocations that live on.
        let kept: HashSet<u64> = output
            .lines()
            .filter_map(|line| u64::from_str_radix(line.strip_prefix("kept ")?, 16).ok())
            .collect();
        assert_eq!(kept.len(), 16);
        let alive = alive(&records);
        let ours = alive.values().filter(|sample| SIZES.contains(&sample.size));
        for sample in ours {
            assert!(kept.contains(&sample.id), "seed {seed}: {sample:?} was released");
        }
        if interval == 1 {
            assert!(kept.iter().all(|id| alive.contains_key(&(1, *id))), "seed {seed}");
        }
    }
}

#[test]
fn eight_threads_are_sampled_alike() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["threads"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(200_000), RING_WORDS);
    let records = client.until_exit();
    output(child);
    assert_eq!(client.lost(), [0; 4]);
    alive(&records);
    let estimates = bytes_by_size(samples(&records));
    // 8 threads allocate 400,000 times each, a fifth of it in each size; that the number is random adds little.
    for size in SIZES {
        let bytes = (8 * 400_000 / 5 * size) as f64;
        let difference = (estimates.get(&size).copied().unwrap_or(0) as f64 - bytes).abs();
        let bound = 5.0 * (200_000.0 * bytes).sqrt() + 0.01 * bytes;
        assert!(
            difference <= bound,
            "size {size}: {difference} off, {bound} allowed"
        );
    }
    let threads: HashSet<u32> = samples(&records)
        .filter(|sample| SIZES.contains(&sample.size))
        .map(|sample| sample.thread)
        .collect();
    assert_eq!(threads.len(), 8);
}

#[test]
fn memory_that_another_thread_releases_is_released_once_and_never_owned_twice() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["handing"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(4096), RING_WORDS);
    let records = client.until_exit();
    output(child);
    assert_eq!(client.lost(), [0; 4]);
    assert!(samples(&records).filter(|sample| sample.size == 512).count() > 10_000);
    assert!(alive(&records).values().all(|sample| sample.size != 512));
}

#[test]
fn each_function_reports_what_it_allocates() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["functions"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(30_000), RING_WORDS);
    let records = client.until_exit();
    output(child);
    let sizes: Vec<u64> = samples(&records)
        .map(|sample| sample.size)
        .filter(|size| (30_000..100_000).contains(size))
        .collect();
    let pages = 30_009_u64.next_multiple_of(4096);
    assert_eq!(
        sizes,
        [
            30001, 90006, 30003, 60008, 30005, 30080, 30007, 30008, pages, 30010
        ]
    );
    assert_eq!(
        alive(&records)
            .into_values()
            .filter(|sample| sample.size >= 30_000)
            .count(),
        0
    );
}

#[test]
fn a_sample_has_registers_and_the_stack_from_its_stack_pointer_on() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["coroutines"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(50_000), RING_WORDS);
    let records = client.until_exit();
    let output = output(child);
    let sample = samples(&records)
        .find(|sample| sample.size == 80_001)
        .expect("a sample");
    assert_eq!(sample.registers.len(), REGISTERS);
    // The coroutine's stack ends before a page that cannot be read.
    let bounds: Vec<u64> = output
        .trim()
        .split(' ')
        .skip(1)
        .map(|number| u64::from_str_radix(number, 16).expect("a number"))
        .collect();
    let pointer = sample.registers[if cfg!(target_arch = "x86_64") { 7 } else { 31 }];
    assert!(
        bounds[0] < pointer && pointer < bounds[1],
        "{pointer:x} in {bounds:x?}"
    );
    assert_eq!(sample.stack.len() as u64 * 8, bounds[1] - pointer);
    assert!(!sample.is_cut);
    assert!(sample.stack.iter().any(|word| *word != 0));
}

#[test]
fn the_interval_is_doubled_when_the_ring_runs_full() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "400"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut welcome = of_malloc(1024, WhenFull::Lose);
    welcome.adaptive_threshold = 4 << 20;
    welcome.adaptive_most = 8192;
    let mut client = daemon.accept(&welcome, 1 << 17);
    let records = client.until_exit();
    output(child);
    let intervals: Vec<u64> = records
        .iter()
        .filter_map(|record| match record {
            Record::Heap {
                heap: 1, interval, ..
            } => Some(*interval),
            _ => None,
        })
        .collect();
    assert_eq!(intervals, [1024, 2048, 4096, 8192]);
}
