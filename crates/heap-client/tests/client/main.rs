//! The global allocator of a Rust program: this binary has it, and runs itself as a program that finds the test's daemon.

#[allow(dead_code, reason = "the tests of the preloaded library use more of it")]
mod daemon;

use std::hint::black_box;
use std::process::{Command, Stdio};

use ferretto_heap_client::handshake::{HEAP_SOCK_NAME, Reason, Welcome, WhenFull};
use ferretto_heap_client::{GLOBAL_ALLOC, HeapProfiled, MALLOC};

use crate::daemon::{Daemon, Record, alive, samples};

#[global_allocator]
static ALLOCATOR: HeapProfiled = HeapProfiled::system();

const RING_WORDS: usize = 1 << 20;

/// The program. It does something only in the process that the tests run.
#[test]
fn program() {
    if std::env::var_os("FERRETTO_HEAP_PROGRAM").is_none() {
        return;
    }
    let mut total = 0;
    for _ in 0..2000 {
        let mut numbers = black_box(vec![0_u8; 30_001]);
        numbers.reserve_exact(60_002 - numbers.len());
        total += black_box(numbers).capacity();
        total += black_box(Box::new([1_u8; 100])).len();
    }
    std::mem::forget(black_box(vec![1_u8; 90_003]));
    assert_eq!(total, 2000 * (60_002 + 100));
}

fn run(welcome: &Welcome) -> Vec<Record> {
    let daemon = Daemon::new();
    let child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "program", "--test-threads=1"])
        .env("FERRETTO_HEAP_PROGRAM", "1")
        .env(HEAP_SOCK_NAME, daemon.path())
        .stdout(Stdio::null())
        .spawn();
    let mut child = child.expect("a program");
    let mut client = daemon.accept(welcome, RING_WORDS);
    assert_eq!((client.pid, client.reason), (child.id(), Reason::Startup));
    let records = client.until_exit();
    assert!(child.wait().expect("an end").success());
    assert_eq!(client.lost(), [0; 4]);
    records
}

#[test]
fn a_rust_program_is_profiled_by_its_global_allocator() {
    let mut welcome = Welcome::new(0, WhenFull::Wait { at_most_us: 0 });
    assert!(welcome.set_interval(GLOBAL_ALLOC.as_bytes(), 30_000));
    let records = run(&welcome);
    assert!(matches!(
        &records[0],
        Record::Heap { heap: 1, name, interval: 30_000 } if name == GLOBAL_ALLOC
    ));
    let count = |size| samples(&records).filter(|sample| sample.size == size).count();
    assert_eq!([30_001, 60_002, 90_003].map(count), [2000, 2000, 1]);
    let left: Vec<u64> = alive(&records).into_values().map(|sample| sample.size).collect();
    assert!(left.contains(&90_003) && !left.contains(&30_001) && !left.contains(&60_002));
}

#[test]
fn a_session_of_malloc_alone_has_the_global_allocator_too() {
    let mut welcome = Welcome::new(0, WhenFull::Wait { at_most_us: 0 });
    assert!(welcome.set_interval(MALLOC.as_bytes(), 50_000));
    assert!(samples(&run(&welcome)).any(|sample| sample.size == 90_003));
    assert!(welcome.set_interval(GLOBAL_ALLOC.as_bytes(), 0));
    assert_eq!(run(&welcome).len(), 0);
}
