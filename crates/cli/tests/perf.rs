//! `linux.perf` in whole systems: our profiler with our service and with upstream's. Upstream's trace processor reads the traces.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferretto_proto::messages::perf_sample::producer_event::CpuEvent;
use ferretto_proto::write::TracePacket;
use ferretto_wire::Writer;

use crate::support::c_program::compile;
use crate::support::process::{processor_time, status_kb, turns};
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{Program, Programs, Running, Side, System, await_that};

/// Works until it is killed, or for some milliseconds of processor time. `main` calls `middle`, which calls itself ten times, and then `leaf`.
const BURNER: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
volatile uint64_t sink;
__attribute__((noinline)) void leaf(int n) { for (int i = 0; i < n; i++) sink += i * i; }
__attribute__((noinline)) void middle(int depth) { if (depth) middle(depth - 1); else leaf(100000); sink++; }
int main(int argc, char **argv) {
  clock_t end = argc > 1 ? atoi(argv[1]) * (CLOCKS_PER_SEC / 1000) : 0;
  do middle(9); while (!end || clock() < end);
  return 0;
}
"#;

/// Whether this kernel lets this user count the events of all threads. If not, prints that the test is skipped.
pub(crate) fn may_profile() -> bool {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let may = match paranoid.as_deref().map(str::trim) {
        Ok(level) => rustix::process::geteuid().is_root() || level.parse().is_ok_and(|level: i32| level < 1),
        Err(_) => false,
    };
    if !may {
        println!("skipped: this user may not count events of all threads");
    }
    may
}

/// Compiles the program without frame pointers. If that is impossible, prints that the test is skipped.
fn burner(folder: &Path) -> Option<PathBuf> {
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    compile(folder, "burner", BURNER, &flags)
}

/// A service and our profiler, which has connected to it.
fn system(programs: &Programs, service: Side) -> System<'_> {
    let mut system = System::new(programs);
    system.start(service, Program::Traced);
    system.start(Side::Ours, Program::TracedPerf);
    system
}

fn config(perf: &str) -> String {
    format!(
        "buffers {{ size_kb: 16384 }} data_sources {{ config {{ name: 'linux.perf' perf_event_config {{ {perf} }} }} }}"
    )
}

/// Records until the process has had half a second of processor time, however long that takes on a busy machine. Returns the trace.
fn record_while(system: &System<'_>, perf: &str, working: &Running) -> PathBuf {
    // It is no longer being loaded.
    await_that("the program has begun", || {
        processor_time(working.pid()) >= Duration::from_millis(100)
    });
    let recording = system.record(Side::Ours, &config(perf));
    let from = processor_time(working.pid());
    await_that("the program works", || {
        processor_time(working.pid()) >= from + Duration::from_millis(500)
    });
    recording.interrupt()
}

/// The number of samples with a stack, the number of incomplete stacks, and the fewest frames of a complete one.
const STACKS: &str =
    "select count(*), sum(s.unwind_error is not null), min(iif(s.unwind_error is null, c.depth + 1, null))
    from perf_sample s join stack_profile_callsite c on c.id = s.callsite_id";

#[test]
fn stacks_without_frame_pointers_are_whole_with_either_service() {
    let (Some(programs), Some(processor), true) =
        (Programs::of_both(), TraceProcessor::find(), may_profile())
    else {
        return;
    };
    for service in [Side::Ours, Side::Upstream] {
        let system = system(&programs, service);
        let Some(burner) = burner(&system.path("")) else {
            return;
        };
        let running = Running::start(&burner, &[]);
        let pid = running.pid();
        let scope =
            format!("timebase {{ frequency: 200 }} callstack_sampling {{ scope {{ target_pid: {pid} }} }}");
        let trace = record_while(&system, &scope, &running);
        let of_burner = "select count(distinct f.rel_pc), count(distinct m.build_id), min(length(m.build_id))
            from stack_profile_frame f join stack_profile_mapping m on m.id = f.mapping where m.name like '%/burner'";
        // Not even as samples that were left out: the kernel takes none.
        let others = format!("select count(*) from perf_sample join thread using (utid) where tid != {pid}");
        let [stacks, frames, others] = processor.query(&trace, [STACKS, of_burner, &others]);
        let [samples, broken, fewest] = numbers(&stacks);
        assert!(samples > 20, "{service}: {samples} samples");
        assert!(
            broken * 100 <= samples,
            "{service}: {broken} of {samples} are not whole"
        );
        // A stack has leaf, ten times middle, main and two functions of the C library. A sample may also be taken between two of them.
        assert!(fewest >= 4, "{service}: {fewest}");
        let [addresses, ids, shortest_id] = numbers(&frames);
        assert!(
            addresses >= 3 && ids == 1 && shortest_id >= 16,
            "{service}: {frames:?}"
        );
        assert_eq!(numbers(&others), [0], "{service}");
    }
}

#[test]
fn processes_that_are_gone_have_stacks_as_well() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(burner) = burner(&system.path("")) else {
        return;
    };
    let perf = "timebase { frequency: 1000 } ring_buffer_pages: 4096 ring_buffer_read_period_ms: 1000
        callstack_sampling { scope { target_cmdline: 'burner' } }";
    let recording = system.record(Side::Ours, &config(perf));
    for _ in 0..10 {
        let status = Command::new(&burner).arg("50").status().unwrap();
        assert!(status.success());
    }
    let trace = recording.interrupt();
    let whole = "select count(*), sum(callsite_id is not null and unwind_error is null) from perf_sample join thread using (utid)
        where callsite_id is not null";
    let [stacks] = processor.query(&trace, [whole]);
    let [samples, whole] = numbers(&stacks);
    assert!(samples > 100, "{samples} samples of half a second");
    assert!(whole * 100 >= samples * 90, "{whole} of {samples} are whole");
}

/// Records the program, and returns the number of frames of its shortest stack. Nine of ten stacks must be whole.
fn fewest_frames(system: &System<'_>, processor: &TraceProcessor, program: &Path) -> i64 {
    let running = Running::start(program, &[]);
    let pid = running.pid();
    let perf =
        format!("timebase {{ frequency: 200 }} callstack_sampling {{ scope {{ target_pid: {pid} }} }}");
    let trace = record_while(system, &perf, &running);
    let [stacks] = processor.query(&trace, [STACKS]);
    let [samples, broken, fewest] = numbers(&stacks);
    assert!(samples > 20 && broken * 10 <= samples, "{broken} of {samples}");
    fewest
}

/// Works for ever, below 100 frames of 4 KiB each.
const DEEP: &str = r#"
#include <stdint.h>
volatile uint64_t sink;
__attribute__((noinline)) void deep(int n) {
  volatile char room[4096];
  room[0] = n;
  if (n) deep(n - 1);
  else for (;;) sink += sink * 3;
  sink += room[0];
}
int main(void) { deep(100); return 0; }
"#;

#[test]
fn stacks_that_are_longer_than_the_kernels_copy_are_whole() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(program) = compile(&system.path(""), "deep", DEEP, &["-O1", "-fomit-frame-pointer"]) else {
        return;
    };
    let fewest = fewest_frames(&system, &processor, &program);
    assert!(fewest > 100, "{fewest}");
}

/// Works for ever below frames of which most pages were never written: the kernel's copy of the stack ends at the first of them.
const SPARSE: &str = r#"
#include <stdint.h>
volatile uint64_t sink;
__attribute__((noinline)) void work(void) { for (;;) sink += sink * 3; }
__attribute__((noinline)) void sparse(int n) {
  volatile char room[16 << 10];
  room[sizeof(room) - 1] = n;
  if (n) sparse(n - 1);
  else work();
  sink += room[sizeof(room) - 1];
}
int main(void) { sparse(20); return 0; }
"#;

#[test]
fn stacks_with_pages_that_were_never_written_are_whole() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let flags = [
        "-O1",
        "-fomit-frame-pointer",
        "-fno-stack-protector",
        "-fno-stack-clash-protection",
    ];
    let Some(program) = compile(&system.path(""), "sparse", SPARSE, &flags) else {
        return;
    };
    let fewest = fewest_frames(&system, &processor, &program);
    assert!(fewest > 20, "{fewest}");
}

#[test]
fn processes_that_come_and_go_leave_nothing_behind() {
    /// The profiler remembers 4,096 processes.
    const SOME: u32 = 5000;
    if !may_profile() {
        return;
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let profiler = system.start(Side::Ours, Program::TracedPerf);
    let recording = system.record(
        Side::Ours,
        &config(
            "timebase { frequency: 1000 } max_enqueued_footprint_kb: 2048
            callstack_sampling { kernel_frames: true scope { target_cmdline: 'true' } }",
        ),
    );
    let begin_and_end_some = || {
        let script = format!("i=0; while [ $i -lt {SOME} ]; do /bin/true; i=$((i + 1)); done");
        let status = Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(status.success());
        status_kb(profiler, "RssAnon:")
    };
    let first = begin_and_end_some();
    let second = begin_and_end_some();
    drop(recording.interrupt());
    // The state of a process takes some ten KB, and samples that wait take at most 2 MB. No other program is sampled, because the state of its files is
    // kept for longer.
    assert!(second < first + 16 * 1024, "{first} KB became {second} KB");
}

/// `main` writes code into memory and calls it. The code calls `work` for ever: `push rbp; mov rbp, rsp; call rdi; jmp` back to the call.
#[cfg(target_arch = "x86_64")]
const COMPILER: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
volatile uint64_t sink;
__attribute__((noinline)) static void work(void) { for (int i = 0; i < 100000; i++) sink += i * i; }
int main(void) {
  static const unsigned char bytes[] = {0x55, 0x48, 0x89, 0xe5, 0x57, 0x57, 0x48, 0x8b, 0x3c, 0x24, 0xff, 0xd7, 0xeb, 0xf8};
  unsigned char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(page + 64, bytes, sizeof bytes);
  char name[64];
  snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
  FILE *map = fopen(name, "w");
  fprintf(map, "%lx %lx compiled function\n", (long)page + 64, (long)sizeof bytes);
  fclose(map);
  ((void (*)(void (*)(void)))(page + 64))(work);
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn code_of_compilers_has_the_names_that_they_list() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(compiler) = compile(&system.path(""), "compiler", COMPILER, &["-O2"]) else {
        return;
    };
    let running = Running::start(&compiler, &[]);
    let pid = running.pid();
    let perf =
        format!("timebase {{ frequency: 200 }} callstack_sampling {{ scope {{ target_pid: {pid} }} }}");
    let trace = record_while(&system, &perf, &running);
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    // Each stack is `work`, the compiled function, `main` and the C library's start.
    let [named]: [Rows; 1] = processor.query(
        &trace,
        ["select count(*) > 20, sum(f.name = 'compiled function') >= count(*) * 0.9, sum(s.unwind_error is not null)
            from perf_sample s join stack_profile_callsite c on c.id = s.callsite_id
            left join stack_profile_callsite parent on parent.id = c.parent_id
            left join stack_profile_frame f on f.id = parent.frame_id"],
    );
    assert_eq!(numbers(&named), [1, 1, 0], "{}", system.log("traced_perf.log"));
}

#[test]
fn counters_are_sampled_and_polled_with_their_followers() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(burner) = burner(&system.path("")) else {
        return;
    };
    let running = Running::start(&burner, &[]);
    let followers =
        "followers { counter: SW_CONTEXT_SWITCHES name: 'switches' } followers { counter: SW_PAGE_FAULTS }";
    for timebase in ["frequency: 100", "poll_period_ms: 20"] {
        let perf = format!("timebase {{ {timebase} counter: SW_CPU_CLOCK name: 'ticks' }} {followers}");
        let trace = record_while(&system, &perf, &running);
        let tracks = "select t.name, count(*), max(c.value) > min(c.value) from counter c
            join perf_counter_track t on t.id = c.track_id group by t.name order by t.name";
        let [tracks] = processor.query(&trace, [tracks]);
        let names: Vec<&str> = tracks.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(
            names,
            ["page-faults", "switches", "ticks"],
            "{timebase}: {tracks:?}"
        );
        let ticks = tracks.iter().find(|row| row[0] == "ticks").unwrap();
        assert!(ticks[1].parse::<u32>().unwrap() > 5, "{timebase}: {tracks:?}");
        assert_eq!(ticks[2], "1", "{timebase}: {tracks:?}");
    }
}

#[test]
fn a_tracepoint_is_sampled_where_its_filter_holds() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    if !crate::support::tracefs::Tracefs::is_usable() {
        return;
    }
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(burner) = burner(&system.path("")) else {
        return;
    };
    let running = Running::start(&burner, &[]);
    let pid = running.pid();
    let perf = format!(
        "timebase {{ period: 1 tracepoint {{ name: 'sched:sched_switch' filter: 'prev_pid == {pid}' }} }}
         callstack_sampling {{ kernel_frames: true }}"
    );
    let recording = system.record(Side::Ours, &config(&perf));
    let from = turns(pid);
    await_that("others run in its place", || turns(pid) >= from + 5);
    let trace = recording.interrupt();
    let samples = format!(
        "select count(*), sum(tid = {pid}), sum(callsite_id is not null) from perf_sample join thread using (utid)"
    );
    let kernel = "select count(distinct f.name) from stack_profile_frame f join stack_profile_mapping m on m.id = f.mapping
        where m.name = '/kernel' and f.name is not null";
    let [samples, kernel] = processor.query(&trace, [&samples, kernel]);
    let [all, of_burner, stacks] = numbers(&samples);
    assert!(all > 0 && all == of_burner && all == stacks, "{samples:?}");
    let [names] = numbers(&kernel);
    assert!(
        names >= 1 || !rustix::process::geteuid().is_root(),
        "frames of the kernel have names"
    );
}

#[test]
fn processors_that_do_not_count_cycles_leave_it_to_the_clock() {
    let (Some(processor), true) = (TraceProcessor::find(), may_profile()) else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let Some(burner) = burner(&system.path("")) else {
        return;
    };
    let running = Running::start(&burner, &[]);
    let perf = "timebase { frequency: 100 counter: HW_CPU_CYCLES } followers { counter: HW_INSTRUCTIONS }";
    let trace = record_while(&system, perf, &running);
    let [tracks]: [Rows; 1] = processor.query(
        &trace,
        ["select distinct name from perf_counter_track order by name"],
    );
    let names: Vec<&str> = tracks.iter().map(|row| row[0].as_str()).collect();
    match system.log("traced_perf.log").contains("do not count") {
        true => assert_eq!(names, ["cpu-clock"]),
        false => assert_eq!(names, ["cpu-cycles", "instructions"]),
    }
}

#[test]
fn what_cannot_be_counted_is_refused_with_the_reason() {
    if !may_profile() {
        return;
    }
    let programs = Programs::ours();
    let system = system(&programs, Side::Ours);
    let cases = [
        (
            "timebase { tracepoint { name: 'sched:sched_swotch' } }",
            "no such event",
        ),
        ("ring_buffer_pages: 3", "not a power of two"),
        ("timebase { raw_event { pmu_name: 'none' } }", "pmu_name"),
        ("target_cpu: 4000", "target_cpu names no CPU"),
    ];
    for (perf, reason) in cases {
        // The service waits for a data source that cannot start until the recording ends.
        let config = format!("duration_ms: 500 {}", config(perf));
        let (mut recording, _) = system.begin(&programs.path(Side::Ours, Program::Perfetto), &[], &config);
        recording.wait();
        await_that(perf, || system.log("traced_perf.log").contains(reason));
    }
}

#[test]
fn what_happened_to_cpus_is_reported_and_passed_over_by_upstreams_reader() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let folder = crate::support::socket_folder("perf-");
    let trace = folder.path().join("cpus.pftrace");
    let mut packets = Writer::new();
    for event in [
        CpuEvent::CPU_THROTTLED,
        CpuEvent::CPU_GONE,
        CpuEvent::CPU_SAMPLED,
        CpuEvent::CPU_UNAVAILABLE,
        CpuEvent::CPU_UNREADABLE,
    ] {
        let mut packet = Writer::new();
        TracePacket::new(&mut packet)
            .trusted_packet_sequence_id(2)
            .timestamp(5)
            .perf_sample(|sample| {
                sample.cpu(1).producer_event(|out| {
                    out.cpu_event(event);
                });
            });
        // `Trace.packet`.
        packets.bytes_field(1, packet.as_slice());
    }
    std::fs::write(&trace, packets.as_slice()).unwrap();
    let info = Command::new(env!("CARGO_BIN_EXE_ferretto"))
        .args(["info", "--json"])
        .arg(&trace)
        .output()
        .unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    for cause in [
        "perf_throttled",
        "perf_cpu_gone",
        "perf_cpu_unavailable",
        "perf_counters_unreadable",
    ] {
        assert!(info.contains(cause), "{cause}: {info}");
    }
    let [samples, losses] = processor.query(&trace, ["select count(*) from perf_sample", LOSSES]);
    assert_eq!(numbers(&samples), [0]);
    assert_eq!(losses, Rows::new());
}
