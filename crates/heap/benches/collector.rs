//! The daemon's cost of a sample, of a dump, and of live allocations.
//!
//!     cargo bench -p ferretto-heap --bench collector
//!
//! Each line has the least and the median of some runs. Samples are of this process's own stack, and are unwound by its tables, which are read before.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ferretto_client::runtime::probe::PacketSink;
use ferretto_heap::books::Books;
use ferretto_heap::client::{About, Arrived};
use ferretto_heap::collector::{Collector, Entered, Who};
use ferretto_heap::config::{HeapConfig, Recorded};
use ferretto_heap::dump::{Dump, Output};
use ferretto_heap::feed::Feed;
use ferretto_heap::memory::RingMemory;
use ferretto_heap::profile::Heap;
use ferretto_heap_client::layout::{Kind, REGISTERS, header};
use ferretto_profile::guardrails::daemon_memory_kb;
use ferretto_profile::interning::{Edition, Interning, Limits, Mapping};
use ferretto_proto::messages::HeapprofdConfig;

const RUNS: usize = 11;
const SAMPLES: u64 = 2000;
const STACKS: u64 = 100_000;
const DEPTH: usize = 20;

/// Counts.
#[derive(Default)]
struct Sink {
    packets: usize,
    bytes: usize,
}

impl PacketSink for Sink {
    fn write_packet(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len();
    }

    fn losses(&self) -> u64 {
        0
    }
}

/// Registers and the stack from the stack pointer on.
struct Captured {
    registers: [u64; REGISTERS],
    stack: Vec<u64>,
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn capture(depth: usize, end: usize) -> Captured {
    if depth > 0 {
        return std::hint::black_box(capture(depth - 1, end));
    }
    let mut registers = [0; REGISTERS];
    // SAFETY: stores registers into an array that is large enough, and changes nothing else.
    unsafe {
        std::arch::asm!(
            "mov [{to} + 8], rbx",
            "mov [{to} + 48], rbp",
            "mov [{to} + 56], rsp",
            "lea rax, [rip]",
            "mov [{to} + 64], rax",
            "mov [{to} + 128], r12",
            "mov [{to} + 136], r13",
            "mov [{to} + 144], r14",
            "mov [{to} + 152], r15",
            to = in(reg) registers.as_mut_ptr(),
            out("rax") _,
        );
    }
    let start = registers[7] as usize;
    // SAFETY: this thread's own stack, from the stack pointer to a local variable of a function that has not returned.
    let stack = unsafe { std::slice::from_raw_parts(start as *const u64, (end - start) / 8) };
    Captured {
        registers,
        stack: stack.to_vec(),
    }
}

fn report(what: &str, unit: &str, mut values: Vec<f64>) {
    values.sort_unstable_by(f64::total_cmp);
    println!(
        "{what}: {:.0} {unit}, median {:.0}",
        values[0],
        values[values.len() / 2]
    );
}

#[cfg(target_arch = "x86_64")]
fn samples() {
    let local = 0u64;
    let captured = capture(DEPTH, &raw const local as usize);
    let config = HeapprofdConfig {
        sampling_interval_bytes: Some(1),
        all: Some(true),
        ..Default::default()
    };
    let config = HeapConfig::of(&config).expect("it is good");
    let mut collector = Collector::new(&config);
    let (memory, file) = RingMemory::new(1 << 22).expect("there is memory");
    let client = RingMemory::of(&file, 1 << 22).expect("it can be mapped");
    let ring = client.ring().expect("it is one");
    let mut feed = Feed::new(memory);
    let who = Who {
        pid: std::process::id().cast_signed(),
        edition: Edition::default(),
    };
    let mut sink = Sink::default();
    let mut times = Vec::new();
    for run in 0..=RUNS as u64 {
        for number in 0..SAMPLES {
            let address = 64 * (run * SAMPLES + number);
            let mut words = vec![1, address, 100, 4096, 1, 8 * captured.stack.len() as u64];
            words.extend(captured.registers);
            words.extend(&captured.stack);
            let space = ring.take(Kind::Allocation, words.len()).expect("there is space");
            for (index, word) in words.iter().enumerate() {
                space.write(index, *word);
            }
            space.complete();
        }
        let began = Instant::now();
        while collector.enter(who, &mut feed, &mut sink) == Entered::Record {}
        // The first run reads files.
        if run > 0 {
            times.push(began.elapsed().as_nanos() as f64 / SAMPLES as f64);
        }
    }
    assert_eq!(
        ring.header(header::READ).load(Relaxed),
        ring.header(header::WRITE).load(Relaxed)
    );
    let about = About {
        pid: who.pid,
        arrived: Arrived(1),
        from_startup: true,
        ending: None,
    };
    let mut dumps = collector.dumps(&mut feed, |told, heap, until| about.header(told, heap, until));
    assert_eq!(dumps[0].accounts.len(), 1, "all are of one stack");
    while collector.write(&mut dumps[0], &mut sink) == ferretto_heap::dump::Step::More {}
    let bytes = 8 * captured.stack.len();
    report(
        &format!("a sample of {DEPTH} calls with {bytes} bytes of stack, from the ring to the books"),
        "ns",
        times,
    );
}

#[cfg(not(target_arch = "x86_64"))]
fn samples() {
    println!("skipped: samples are made for x86-64 only");
}

fn interned() -> (Interning, Vec<ferretto_profile::interning::CallstackId>) {
    let mut interning = Interning::with_overflow(Limits::HEAP_PROFILE, "too many");
    let file = interning.mapping(&Mapping {
        path: b"/usr/bin/program",
        ..Mapping::default()
    });
    let frames: Vec<_> = (0..5000u64)
        .map(|pc| interning.frame(file, format!("function_with_a_usual_name_{pc}").as_bytes(), pc))
        .collect();
    let stacks = (0..STACKS as usize).map(|number| {
        let frames: Vec<_> = (0..DEPTH)
            .map(|depth| frames[(number * 31 + depth * 7 + number / 97 * depth) % frames.len()])
            .collect();
        interning.callstack(&frames)
    });
    let stacks = stacks.collect();
    (interning, stacks)
}

fn dumps() {
    let (mut first, mut later) = (Vec::new(), Vec::new());
    let mut sizes = (0, 0);
    for _ in 0..RUNS {
        let (mut interning, stacks) = interned();
        let mut books = Books::default();
        for (address, stack) in stacks.iter().enumerate() {
            books.allocate(address as u64, 4096, *stack, 1);
        }
        let about = About {
            pid: 1,
            arrived: Arrived(1),
            from_startup: true,
            ending: None,
        };
        let (memory, _) = RingMemory::new(1 << 10).expect("there is memory");
        let told = Feed::new(memory).told();
        let mut output = Output::new(Recorded::Totals);
        let mut dump = |sink: &mut Sink| -> Duration {
            let began = Instant::now();
            let header = about.header(&told, &Heap::default(), 1);
            output.write(
                &mut Dump::new(header, books.tell(Recorded::Totals)),
                &mut interning,
                sink,
            );
            began.elapsed()
        };
        let (mut one, mut other) = (Sink::default(), Sink::default());
        first.push(dump(&mut one).as_micros() as f64);
        later.push(dump(&mut other).as_micros() as f64);
        sizes = (one.bytes, other.bytes);
    }
    report(
        &format!("the first dump of {STACKS} call stacks, {} bytes", sizes.0),
        "us",
        first,
    );
    report(&format!("a later one, {} bytes", sizes.1), "us", later);
}

fn memory() {
    let kb = || daemon_memory_kb().unwrap_or(0);
    let before = kb();
    let (interning, stacks) = interned();
    let with_stacks = kb();
    let mut books = Books::default();
    for address in 0..STACKS {
        books.allocate(64 * address, 4096, stacks[address as usize % 1000], 1);
    }
    let with_books = kb();
    println!(
        "{STACKS} live samples of 1000 call stacks: {} KiB; {STACKS} call stacks of {DEPTH} frames: {} KiB",
        with_books - with_stacks,
        with_stacks - before
    );
    drop((interning, books));
}

fn main() {
    memory();
    samples();
    dumps();
}
