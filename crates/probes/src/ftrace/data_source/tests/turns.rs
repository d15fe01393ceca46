//! Draining many CPUs, a turn at a time.
//!
//! The CPUs are files of recorded pages: a file is read as a buffer is, page after page until nothing is left.

use super::*;
use crate::ftrace::reader::{BATCH_PAGES, BatchEnd, PagePool};
use crate::ftrace::test_instance::TestDir;
use std::fs;

/// The number of CPUs of the largest machines that people record.
const CPUS: u32 = 256;
/// The number of pages that each CPU has recorded.
const PAGES: usize = 2 * BATCH_PAGES;
const SECOND_NS: u64 = 1_000_000_000;

/// A machine of [`CPUS`] CPUs.
struct Machine {
    recorder: Recorder,
    _files: TestDir,
}

impl Machine {
    fn new() -> Option<Machine> {
        let mut recorder = Recorder::new()?;
        let config = recorder.config(&["ftrace/print"]);
        recorder.start(FIRST, &config);
        let mut marker = recorder.marker();
        for _ in 0..PAGES * 10 * recorder.instance.tracefs.cpus().unwrap().len() {
            marker.write_all(&[b'x'; 500]).unwrap();
        }
        let files = TestDir::new();
        let pages = files.path().join("pages");
        let instance = recorder
            .controller
            .instances
            .get_mut(&recorder.instance.name)
            .unwrap();
        fs::write(&pages, recorded(&instance.buffers)).unwrap();
        for cpu in 0..CPUS {
            let of_cpu = files.path().join(format!("per_cpu/cpu{cpu}"));
            fs::create_dir_all(&of_cpu).unwrap();
            std::os::unix::fs::symlink(&pages, of_cpu.join("trace_pipe_raw")).unwrap();
        }
        fs::write(files.path().join("tracing_on"), "1").unwrap();
        let tracefs = Tracefs::at(files.path()).unwrap();
        instance.buffers = (0..CPUS)
            .map(|cpu| CpuBuffer::open(&tracefs, cpu).unwrap())
            .collect();
        // The kernel's counts say nothing of the files, so they are not looked at, however long all this has taken.
        instance.next_look = BootTime::MAX;
        // The turn is so short that it takes one batch.
        recorder.controller.turn = 0;
        Some(Machine {
            recorder,
            _files: files,
        })
    }

    /// Returns how many batches came from each CPU.
    fn batches(&self) -> BTreeMap<u32, usize> {
        let mut batches = BTreeMap::new();
        for bundle in self.recorder.bundles(FIRST) {
            *batches.entry(bundle.cpu.unwrap()).or_default() += 1;
        }
        batches
    }

    fn is_flushed(&mut self, flush: FlushId) -> bool {
        self.recorder.controller.take_flushed().contains(&flush)
    }
}

/// [`PAGES`] full pages out of the first buffer that has them.
fn recorded(buffers: &[CpuBuffer]) -> Vec<u8> {
    let mut pool = PagePool::new(4096);
    for buffer in buffers {
        let mut pages = Vec::new();
        while pages.len() < PAGES * 4096 {
            let batch = buffer.read(&mut pool, BATCH_PAGES);
            if batch.end != BatchEnd::Limit {
                break;
            }
            pages.extend_from_slice(batch.pages);
        }
        if pages.len() == PAGES * 4096 {
            return pages;
        }
    }
    panic!("no CPU recorded so much");
}

#[test]
fn turns_take_the_cpus_one_after_the_other() {
    let Some(mut machine) = Machine::new() else { return };
    for _ in 0..CPUS {
        machine.recorder.drain();
        assert!(machine.recorder.controller.next_deadline() <= Some(boot_time()));
    }
    let once: BTreeMap<u32, usize> = (0..CPUS).map(|cpu| (cpu, 1)).collect();
    assert_eq!(machine.batches(), once);
    // Once more for the rest, and once to see that nothing is left.
    for _ in 0..2 * CPUS {
        machine.recorder.drain();
    }
    assert!(
        machine.recorder.controller.next_deadline() > Some(boot_time()),
        "nothing is left"
    );
    let twice: BTreeMap<u32, usize> = (0..CPUS).map(|cpu| (cpu, 2)).collect();
    assert_eq!(machine.batches(), twice, "nothing is left");
}

#[test]
fn a_flush_of_many_cpus_takes_many_turns_and_all_there_is() {
    let Some(mut machine) = Machine::new() else { return };
    let now = boot_time();
    let flush = machine
        .recorder
        .controller
        .flush(FIRST, now, &mut machine.recorder.sinks);
    let mut turns = 1;
    while !machine.is_flushed(flush) {
        let next = machine.recorder.controller.next_deadline();
        assert!(next <= Some(boot_time()), "it goes on at once");
        // No time passes during this, however long it takes.
        machine
            .recorder
            .controller
            .drain(now, &mut machine.recorder.sinks);
        turns += 1;
        assert!(turns < 10 * CPUS, "it does not end");
    }
    assert!(turns > CPUS, "{turns} turns");
    let all: BTreeMap<u32, usize> = (0..CPUS).map(|cpu| (cpu, 2)).collect();
    assert_eq!(machine.batches(), all);
    assert_eq!(machine.recorder.stats(FIRST).len(), 2, "one for each phase");
}

#[test]
fn a_flush_that_takes_too_long_ends_and_says_so() {
    let Some(mut machine) = Machine::new() else { return };
    let now = boot_time();
    let controller = &mut machine.recorder.controller;
    let flush = controller.flush(FIRST, now, &mut machine.recorder.sinks);
    assert_eq!(controller.take_flushed(), []);
    controller.drain(now + 4 * SECOND_NS, &mut machine.recorder.sinks);
    assert_eq!(controller.take_flushed(), [flush]);
    let incidents = controller.take_incidents();
    let told = |incident: &Incident| incident.text.contains("took too long");
    assert!(incidents.iter().any(told), "{incidents:?}");
    let stats = machine.recorder.stats(FIRST);
    assert!(
        stats[0]
            .atrace_errors
            .as_deref()
            .is_some_and(|told| told.contains("took too long"))
    );
}

#[test]
fn the_end_of_a_session_ends_its_flushes() {
    let Some(mut machine) = Machine::new() else { return };
    let controller = &mut machine.recorder.controller;
    let flush = controller.flush(FIRST, boot_time(), &mut machine.recorder.sinks);
    assert_eq!(controller.take_flushed(), []);
    controller.stop_session(FIRST, boot_time());
    assert_eq!(controller.take_flushed(), [flush]);
    assert_eq!(controller.next_deadline(), None);
}

#[test]
fn settings_are_looked_at_when_a_drain_begins_and_not_in_each_of_its_turns() {
    let Some(mut machine) = Machine::new() else { return };
    let now = boot_time();
    let drain = |recorder: &mut Recorder| {
        recorder.controller.drain(now, &mut recorder.sinks);
        recorder.controller.take_incidents().len()
    };
    assert_eq!(drain(&mut machine.recorder), 0);
    machine.recorder.change("tracing_on", "0");
    let mut turns = 0;
    while machine.recorder.controller.next_deadline() <= Some(now) {
        assert_eq!(drain(&mut machine.recorder), 0, "in turn {turns}");
        turns += 1;
        assert!(turns < 10 * CPUS, "it does not end");
    }
    assert!(turns > CPUS, "{turns} turns");
    assert_eq!(drain(&mut machine.recorder), 1, "in the next drain");
}
