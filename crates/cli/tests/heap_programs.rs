//! Heap profiles of real programs by the real daemon: sessions that begin after the program, many programs, many threads, guardrails, and what the daemon
//! needs in the long run.
//!
//! The allocations of the programs are known. Blocks of [`BLOCK`] bytes are larger than the interval, so each of them is a sample and counts exactly.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::c_program::compile;
use crate::support::heap_client::library;
use crate::support::heap_trace::{HeapTrace, ProcessHeap};
use crate::support::process::{anonymous_kb, resident_kb};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System, await_that};

/// Bytes of a block that each program allocates.
const BLOCK: u64 = 5000;

/// Bytes between two samples.
const INTERVAL: u64 = 4096;

/// For each line that it reads, the program works once and prints a line. It ends when its input ends.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEEP(p) __asm__ volatile("" :: "r"(p) : "memory")
static void say(const char *line) { if (write(1, line, strlen(line)) < 0) _exit(9); }
static int hear(void) { char c = 0; while (read(0, &c, 1) == 1) if (c == '\n') return 1; return 0; }

__attribute__((noinline)) void *block(void) { char *p = malloc(5000); KEEP(p); return p; }
__attribute__((noinline)) void *small(void) { char *p = malloc(100); KEEP(p); return p; }

static void thread_work(void) { for (int i = 0; i < 10; i++) block(); for (int i = 0; i < 100; i++) small(); }
static void visit(void) { char *p = block(); free(p); KEEP(p); }

/* Of each path there is a call stack of its own. */
__attribute__((noinline)) void left(unsigned path, int depth, void (*work)(void));
__attribute__((noinline)) void right(unsigned path, int depth, void (*work)(void));
static inline __attribute__((always_inline)) void walk(unsigned path, int depth, void (*work)(void)) {
    if (!depth) work(); else if (path & 1) left(path >> 1, depth - 1, work); else right(path >> 1, depth - 1, work);
    KEEP(0);
}
void left(unsigned path, int depth, void (*work)(void)) { walk(path, depth, work); }
void right(unsigned path, int depth, void (*work)(void)) { walk(path, depth, work); }

static pthread_barrier_t barrier;
static void *thread(void *number) {
    pthread_barrier_wait(&barrier);
    walk((unsigned)(size_t)number, 11, thread_work);
    return 0;
}
static void threads(int count) {
    pthread_t *all = calloc(count, sizeof *all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&barrier, 0, count);
    for (size_t i = 0; i < count; i++) if (pthread_create(&all[i], &attributes, thread, (void *)i)) _exit(8);
    for (int i = 0; i < count; i++) pthread_join(all[i], 0);
}

int main(int argc, char **argv) {
    int count = atoi(argv[2]);
    unsigned path = argc > 3 ? atoi(argv[3]) : 0;
    say("ready\n");
    while (hear()) {
        if (!strcmp(argv[1], "blocks")) for (int i = 0; i < count; i++) block();
        if (!strcmp(argv[1], "threads")) threads(count);
        if (!strcmp(argv[1], "paths")) for (int i = 0; i < count; i++) walk(path++, 20, visit);
        if (!strcmp(argv[1], "children")) for (int i = 0; i < count; i++) {
            pid_t child = fork();
            if (!child) { small(); for (int j = 0; j < 20; j++) walk(path + j, 20, visit); _exit(0); }
            path += 20;
            if (child < 0 || waitpid(child, 0, 0) != child) _exit(7);
        }
        if (!strcmp(argv[1], "ever")) for (;;) { char *p = small(); free(p); KEEP(p); }
        say("done\n");
    }
    return 0;
}
"#;

/// A system with a service, a heap profiler, and the program.
struct Workshop<'a> {
    system: System<'a>,
    service: u32,
    daemon: u32,
    program: PathBuf,
}

/// The running program, with the pipes to it.
struct Profiled {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Profiled {
    fn start(command: &mut Command) -> Profiled {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child: Child = started.unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut profiled = Profiled {
            running: Running(child),
            input,
            output: BufReader::new(output),
        };
        profiled.await_line("ready");
        profiled
    }

    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn await_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    fn begin(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn work(&mut self) {
        self.begin();
        self.await_line("done");
    }

    /// Waits until it shares memory with the profiler.
    fn await_ring(&self) {
        let maps = format!("/proc/{}/maps", self.pid());
        await_that("the program is profiled", || {
            std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("heapprofd_ringbuf"))
        });
    }

    /// Ends its input, and asserts that it exits successfully.
    fn finish(self) {
        let Profiled {
            mut running, input, ..
        } = self;
        drop(input);
        let status = running.wait(PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}

impl<'a> Workshop<'a> {
    /// Prints that the test is skipped if there is no compiler.
    fn open(programs: &'a Programs) -> Option<Workshop<'a>> {
        let mut system = System::new(programs);
        let flags = ["-g", "-O1", "-fno-optimize-sibling-calls", "-pthread"];
        let folder = system.path("");
        let program = compile(&folder, "program", PROGRAM, &flags)?;
        let service = system.start(Side::Ours, Program::Traced);
        let daemon = system.start(Side::Ours, Program::Heapprofd);
        Some(Workshop {
            system,
            service,
            daemon,
            program,
        })
    }

    fn start(&self, words: &[&str]) -> Profiled {
        let mut command = self.system.command(&self.program, "program.log");
        Profiled::start(command.args(words).env("LD_PRELOAD", library()))
    }

    fn record(&self, heap: &str) -> crate::support::Recording {
        self.system.record(Side::Ours, &config(heap))
    }
}

fn config(heap: &str) -> String {
    format!(
        "buffers {{ size_kb: 131072 }} data_sources {{ config {{ name: 'android.heapprofd' heapprofd_config {{
           sampling_interval_bytes: {INTERVAL} {heap} }} }} }} data_source_stop_timeout_ms: 60000"
    )
}

fn assert_nothing_is_missing(process: &ProcessHeap) {
    assert!(
        !process.buffer_overran && !process.hit_guardrail && !process.rejected,
        "{process:?}"
    );
    assert_eq!(process.losses, Default::default());
}

/// Whether `bytes` is a possible measurement of `expected` bytes: the difference is at most six standard deviations.
fn could_be(bytes: u64, expected: u64) -> bool {
    bytes.abs_diff(expected) as f64 <= 6.0 * ((expected * INTERVAL) as f64).sqrt()
}

#[test]
fn a_program_that_runs_already_is_profiled_while_a_session_lasts_and_again_in_the_next() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    let mut program = workshop.start(&["blocks", "100"]);
    let mut other = workshop.start(&["blocks", "100"]);
    program.work();
    for _ in 0..2 {
        let recording = workshop.record(&format!("pid: {}", program.pid()));
        program.await_ring();
        program.work();
        other.work();
        let heaps = HeapTrace::read(&recording.interrupt());
        assert_eq!(heaps.processes.len(), 1, "{:?}", heaps.processes.keys());
        let process = heaps.of(program.pid());
        assert_eq!(process.allocated_under("block"), 100 * BLOCK);
        assert!(!process.from_startup);
        assert_nothing_is_missing(process);
        // Nobody profiles it, and it does not wait for anybody.
        program.work();
    }
    program.finish();
    other.finish();
}

#[test]
fn sixty_four_programs_at_once_are_profiled_each_with_its_own_bytes() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    // Half of the programs run before the session starts, and the others start during the session.
    let count = |number: usize| 20 + number;
    let start = |number: usize| workshop.start(&["blocks", &count(number).to_string()]);
    let mut started: Vec<Profiled> = (0..32).map(start).collect();
    let recording = workshop.record("all: true shmem_size_bytes: 1048576");
    started.extend((32..64).map(start));
    started.iter().for_each(Profiled::await_ring);
    started.iter_mut().for_each(Profiled::begin);
    for program in &mut started {
        program.await_line("done");
    }
    let heaps = HeapTrace::read(&recording.interrupt());
    assert_eq!(heaps.processes.len(), 64);
    for (number, program) in started.iter().enumerate() {
        let process = heaps.of(program.pid());
        assert_eq!(process.allocated_under("block"), count(number) as u64 * BLOCK);
        assert_eq!(process.from_startup, number >= 32);
        assert_nothing_is_missing(process);
    }
    started.into_iter().for_each(Profiled::finish);
}

const THREADS: u64 = 2000;

/// Profiles a program with [`THREADS`] threads. With this heap config they wait for room in the ring, or lose samples.
fn of_threads(heap: &str) -> Option<ProcessHeap> {
    let programs = Programs::ours();
    let workshop = Workshop::open(&programs)?;
    let recording = workshop.record(&format!("all: true {heap}"));
    let mut program = workshop.start(&["threads", &THREADS.to_string()]);
    program.work();
    let mut heaps = HeapTrace::read(&recording.interrupt());
    let process = heaps.processes.remove(&program.pid());
    program.finish();
    Some(process.expect("it is profiled"))
}

#[test]
fn each_of_two_thousand_threads_has_its_bytes() {
    let Some(process) = of_threads("block_client: true shmem_size_bytes: 1048576") else {
        return;
    };
    assert_nothing_is_missing(&process);
    // Each thread has a call stack of its own down to `thread_work`. Blocks count exactly.
    let threads: Vec<u64> = process.under("block").map(|account| account.allocated).collect();
    assert_eq!(threads.len() as u64, THREADS);
    assert!(threads.iter().all(|bytes| *bytes == 10 * BLOCK), "{threads:?}");
    let small = process.allocated_under("small");
    assert!(could_be(small, THREADS * 100 * 100), "{small}");
}

#[test]
fn of_two_thousand_threads_what_found_no_room_is_counted() {
    let Some(process) = of_threads("shmem_size_bytes: 65536") else {
        return;
    };
    let missing = process.losses;
    assert!(missing.samples.is_some_and(|samples| samples > 0) && process.buffer_overran);
    assert_eq!((missing.merged, missing.untracked), (Some(0), Some(0)));
    let recorded: u64 = process.accounts.values().map(|account| account.allocated).sum();
    let expected = THREADS * 10 * BLOCK + THREADS * 100 * 100;
    let found = recorded + missing.bytes.unwrap();
    // Starting a thread allocates about 300 bytes for the table of its thread-local variables.
    assert!(
        found >= expected - expected / 100 && found <= expected + expected / 25,
        "{recorded} recorded, {missing:?}, {expected} expected"
    );
}

#[test]
fn a_profile_ends_when_the_daemon_needs_more_memory_than_it_may() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    let most = anonymous_kb(workshop.daemon) + 4096;
    let recording = workshop.record(&format!(
        "all: true block_client: true max_heapprofd_memory_kb: {most}"
    ));
    let mut program = workshop.start(&["paths", "500"]);
    // Each call stack takes some memory of the daemon.
    await_that("the log says it", || {
        program.work();
        let log = workshop.system.log("heapprofd.log");
        log.contains("more than max_heapprofd_memory_kb")
    });
    // The guardrail has ended the profile for programs that run and for programs that start.
    program.work();
    let mut late = workshop.start(&["paths", "500"]);
    late.work();
    let heaps = HeapTrace::read(&recording.interrupt());
    let process = heaps.of(program.pid());
    assert!(process.hit_guardrail);
    let bytes = process.allocated_under("block");
    assert!(bytes > 0 && bytes.is_multiple_of(BLOCK), "{bytes}");
    assert!(!heaps.processes.contains_key(&late.pid()));
    program.finish();
    late.finish();
}

#[test]
fn a_profile_ends_when_the_daemon_has_worked_longer_than_it_may() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    let spared = workshop.record("process_cmdline: 'spared'");
    let recording = workshop
        .record("all: true heap_sampling_intervals: 1 heaps: 'libc.malloc' max_heapprofd_cpu_secs: 1");
    let mut program = workshop.start(&["ever", "0"]);
    program.begin();
    await_that("the log says it", || {
        let log = workshop.system.log("heapprofd.log");
        log.contains("more than max_heapprofd_cpu_secs")
    });
    let heaps = HeapTrace::read(&recording.interrupt());
    let process = heaps.of(program.pid());
    assert!(process.hit_guardrail && process.allocated_under("small") > 0);
    drop(program);
    // Another session, which has no such limit, goes on.
    let link = workshop.system.path("spared");
    std::os::unix::fs::symlink(&workshop.program, &link).unwrap();
    let mut command = workshop.system.command(&link, "spared.log");
    let mut program = Profiled::start(command.args(["blocks", "10"]).env("LD_PRELOAD", library()));
    program.work();
    let heaps = HeapTrace::read(&spared.interrupt());
    assert_eq!(heaps.of(program.pid()).allocated_under("block"), 10 * BLOCK);
    assert!(!heaps.of(program.pid()).hit_guardrail);
    program.finish();
}

/// Environment variable: the number of rounds in the test of growth.
const ROUNDS: &str = "FERRETTO_HEAP_ROUNDS";

/// Environment variable: the length of the test of growth in minutes, instead of a number of rounds. The test then prints the daemon's memory every minute.
const MINUTES: &str = "FERRETTO_HEAP_MINUTES";

/// The additional memory in KiB that the daemon may use after some rounds. It remembers thousands of processes that have ended, and heaps have holes.
const SLACK_KB: u64 = 12_288;

/// The resources that could grow.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// The daemon's resident memory in KiB. The books are in its anonymous memory.
    resident: u64,
    anonymous: u64,
    descriptors: usize,
    /// Rings of clients that it has mapped.
    rings: usize,
    /// The service's resident memory in KiB.
    service_resident: u64,
}

impl std::fmt::Display for Needs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} KiB, resident {} KiB, {} descriptors, {} rings; the service: resident {} KiB",
            self.anonymous, self.resident, self.descriptors, self.rings, self.service_resident
        )
    }
}

impl Needs {
    fn of(daemon: u32, service: u32) -> Needs {
        let maps = std::fs::read_to_string(format!("/proc/{daemon}/maps")).unwrap();
        Needs {
            resident: resident_kb(daemon),
            anonymous: anonymous_kb(daemon),
            descriptors: std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count(),
            rings: maps.matches("heapprofd_ringbuf").count(),
            service_resident: resident_kb(service),
        }
    }
}

/// The condition that ends the test of growth.
enum Enough {
    Rounds(usize),
    Time(Duration),
}

impl Enough {
    fn of_environment() -> Enough {
        let number = |name| {
            std::env::var(name)
                .ok()
                .map(|number| number.parse::<u64>().expect(name))
        };
        match number(MINUTES) {
            Some(minutes) => Enough::Time(Duration::from_secs(60 * minutes)),
            None => Enough::Rounds(number(ROUNDS).unwrap_or(3) as usize),
        }
    }
}

#[test]
fn the_daemon_does_not_grow_with_new_stacks_and_processes_that_come_and_go() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    let enough = Enough::of_environment();
    // The recording goes into a ring buffer, like recordings without an end.
    let heap = "all: true shmem_size_bytes: 65536 block_client: true continuous_dump_config { dump_phase_ms: 100 dump_interval_ms: 100 }";
    let config = config(heap).replace("size_kb: 131072", "size_kb: 4096 fill_policy: RING_BUFFER");
    let recording = workshop.system.record(Side::Ours, &config);
    let mut children = workshop.start(&["children", "250"]);
    let needs_now = || Needs::of(workshop.daemon, workshop.service);
    let mut needed = Vec::new();
    let (began, mut minute) = (Instant::now(), 0);
    loop {
        let round = needed.len();
        // The daemon uses the most memory in the second round, because it still remembers the first.
        let is_enough = round > 2
            && match enough {
                Enough::Rounds(rounds) => round >= 2 + rounds,
                Enough::Time(time) => began.elapsed() >= time,
            };
        if is_enough {
            break;
        }
        // The daemon keeps fewer stacks than these of programs that have ended.
        let path = (round * 20_000 % (1 << 20)).to_string();
        let mut paths = workshop.start(&["paths", "17000", &path]);
        paths.work();
        paths.finish();
        children.work();
        let now = needs_now();
        match enough {
            Enough::Rounds(_) => println!("round {round}: {now}"),
            Enough::Time(_) if began.elapsed().as_secs() / 60 >= minute => {
                minute = began.elapsed().as_secs() / 60 + 1;
                println!("minute {}, round {round}: {now}", minute - 1);
            }
            Enough::Time(_) => {}
        }
        needed.push(now);
    }
    // Whenever the daemon falls behind, its memory may rise by a step. So the first half of a long run counts as warm-up.
    let warm_up = match enough {
        Enough::Rounds(_) => 2,
        Enough::Time(_) => needed.len() / 2,
    };
    let most = needed[..warm_up]
        .iter()
        .map(|needed| needed.anonymous)
        .max()
        .unwrap_or(0);
    // A single measurement depends on the daemon's progress at that moment. A leak shows in both of the last rounds.
    let [.., last_but_one, last] = needed[..] else {
        panic!("{ROUNDS}: there must be some")
    };
    assert!(
        last.anonymous.min(last_but_one.anonymous) <= most + SLACK_KB,
        "in each round: {needed:?}"
    );
    children.finish();
    await_that("nothing is kept of processes that have ended", || {
        needs_now().rings == 0
    });
    recording.interrupt();
}

/// A statically linked program in Rust whose allocator is the client. It behaves like the program in C with the argument `blocks`.
const STATIC: &str = r#"
use std::hint::black_box;
use std::io::{BufRead, Write};
#[global_allocator]
static ALLOCATOR: ferretto_heap_client::HeapProfiled = ferretto_heap_client::HeapProfiled::system();
#[inline(never)]
fn block() { std::mem::forget(black_box(vec![1_u8; 5000])); }
fn main() {
    let say = |line: &str| std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    say("ready\n");
    for _ in std::io::stdin().lock().lines() {
        for _ in 0..100 { block(); }
        say("done\n");
    }
}
"#;

/// Builds it; or prints that the test is skipped.
fn static_program() -> Option<PathBuf> {
    let library = Command::new("cc").arg("-print-file-name=libc.a").output();
    if !library.is_ok_and(|printed| printed.stdout.starts_with(b"/")) {
        println!("skipped: there is no static C library");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static-profiled");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("src/main.rs"), STATIC).unwrap();
    let client = workspace.join("crates/heap-client");
    let manifest = format!(
        "[package]\nname = 'static-profiled'\nversion = '0.0.0'\nedition = '2024'\n[dependencies]\nferretto-heap-client = {{ path = '{}' }}\n[workspace]\n",
        client.display()
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    let built = cargo
        .args(["build", "-q", "--offline", "--target-dir", "target"])
        .current_dir(&folder)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Cdebuginfo=1")
        .output();
    match built {
        Ok(built) => assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        ),
        Err(error) => {
            println!("skipped: cannot run {}: {error}", env!("CARGO"));
            return None;
        }
    }
    Some(folder.join("target/debug/static-profiled"))
}

#[test]
fn ferretto_heap_attaches_to_programs_that_carry_the_client() {
    let programs = Programs::ours();
    let Some(workshop) = Workshop::open(&programs) else {
        return;
    };
    let mut preloaded = workshop.start(&["blocks", "100"]);
    let mut attached = vec![("libc.malloc", attached_to(&mut preloaded, &workshop))];
    if let Some(program) = static_program() {
        let mut program = Profiled::start(&mut workshop.system.command(&program, "static.log"));
        attached.push(("rust.global_alloc", attached_to(&mut program, &workshop)));
        program.finish();
    }
    for (heap, process) in attached {
        assert_eq!(process.heap_name, heap);
        let under = |account: &&crate::support::heap_trace::Account| {
            account.functions.iter().any(|name| name.contains("block"))
        };
        let bytes: u64 = process
            .accounts
            .values()
            .filter(under)
            .map(|account| account.allocated)
            .sum();
        assert_eq!(bytes, 100 * BLOCK, "{heap}");
        assert_nothing_is_missing(&process);
    }
    preloaded.finish();
}

/// Has `ferretto heap` profile a program while it works once.
fn attached_to(program: &mut Profiled, workshop: &Workshop<'_>) -> ProcessHeap {
    let trace = workshop.system.path("attached.pftrace");
    let mut command = workshop
        .system
        .command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "ferretto.log");
    command
        .args(["heap", "-p", &program.pid().to_string(), "-o"])
        .arg(&trace);
    let mut running = Running(command.spawn().unwrap());
    program.await_ring();
    program.work();
    running.signal(Signal::INT);
    // The daemon signals programs before it reports the start of its data source, so this Ctrl-C may come first. The command succeeds all the same.
    let status = running.wait(PATIENCE);
    let log = || workshop.system.log("ferretto.log");
    assert!(
        status.is_some_and(|status| status.success()),
        "{status:?}: {}",
        log()
    );
    HeapTrace::read(&trace)
        .processes
        .remove(&program.pid())
        .expect("it is profiled")
}
