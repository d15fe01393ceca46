//! The eight mixtures of our and upstream's `traced`, `traced_probes` and `perfetto`. Each records the kernel and the processes of this machine, and
//! upstream's trace processor reads the same from all traces. That also holds for recordings that are streamed, flushed, filtered, compressed,
//! detached and cloned, all at once.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::filter_bytecode::{Rule, bytecode, escaped};
use crate::support::trace::{LOSSES, Rows, TraceProcessor};
use crate::support::tracefs::Tracefs;
use crate::support::{Program, Programs, Side, System, await_that};
use ferretto_service::compression::expand;
use ferretto_wire::Reader;
use rustix::thread::CpuSet;

const SOURCES: &str = r#"
buffers { size_kb: 32768 fill_policy: RING_BUFFER }
data_sources { config {
  name: "linux.ftrace"
  ftrace_config {
    ftrace_events: "sched/sched_switch"
    ftrace_events: "sched/sched_waking"
    compact_sched { enabled: true }
    buffer_size_kb: 8192
    drain_period_ms: 250
  }
} }
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true proc_stats_poll_ms: 500 }
} }
data_sources { config {
  name: "linux.sys_stats"
  sys_stats_config { meminfo_period_ms: 250 vmstat_period_ms: 250 stat_period_ms: 250 }
} }
data_sources { config { name: "linux.system_info" system_info_config { irq_names: true } } }
"#;

/// The length of each recording, during which threads switch.
const DURATION: Duration = Duration::from_secs(2);

/// The time that a switching thread sleeps between two runs.
const PERIOD: Duration = Duration::from_millis(1);
/// The least number of such runs that a recording of 2 s shows, even on a busy machine.
const RUNS: i64 = 20;

fn thread_name(cpu: usize) -> String {
    format!("mixture-cpu{cpu}")
}

/// Returns the CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Makes a thread of this process switch on each of `cpus` for [`DURATION`]. The traces are compared by these threads.
///
/// On each CPU another thread spins at a lower priority, so that no CPU is ever idle. On some virtual machines, after some hours, the kernel reports
/// no switch from a CPU's idle thread, neither to tracefs nor to perf.
fn switch(cpus: &[usize]) {
    let end = Instant::now() + DURATION;
    std::thread::scope(|scope| {
        for &cpu in cpus {
            let stay = move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                rustix::thread::sched_setaffinity(None, &one).unwrap();
            };
            let switch = move || {
                stay();
                while Instant::now() < end {
                    std::thread::sleep(PERIOD);
                }
            };
            let spin = move || {
                stay();
                let this_thread = rustix::thread::gettid().as_raw_nonzero().to_string();
                let idle = Command::new("chrt")
                    .args(["--idle", "--pid", "0", &this_thread])
                    .status();
                assert!(idle.unwrap().success(), "chrt");
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            };
            let thread = |name: String| std::thread::Builder::new().name(name);
            thread(thread_name(cpu)).spawn_scoped(scope, switch).unwrap();
            thread(format!("mixture-spin{cpu}"))
                .spawn_scoped(scope, spin)
                .unwrap();
        }
    });
}

/// The trace processor's results that are the same for all recordings of this machine.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    /// Statistics of errors and losses.
    losses: Rows,
    /// CPU, thread and process of each switching thread that ran often enough, and whether its wakeups were seen.
    switching: Rows,
    /// Threads that ran without a name.
    nameless: Rows,
    /// Counters of the system.
    counters: Rows,
    /// Counters with at most one value.
    silent_counters: Rows,
    /// The facts about this process.
    process: Rows,
    /// The CPUs, as `linux.system_info` describes them.
    cpus: Rows,
}

impl Reading {
    fn of(processor: &TraceProcessor, trace: &Path) -> Reading {
        let pid = std::process::id();
        let counters = "from counter_track t where t.id not in (select id from process_counter_track)";
        let [losses, switching, nameless, counters, silent_counters, process, described_cpus] = processor.query(
            trace,
            [
                LOSSES,
                &format!(
                    "select s.cpu, t.name, p.pid = {pid}, t.tid != p.pid,
                        (select count(*) from thread_state w where w.utid = t.utid and w.state = 'R') >= {RUNS}
                    from sched s join thread t using (utid) join process p using (upid)
                    where t.name glob 'mixture-cpu*'
                    group by s.cpu, t.utid having count(*) >= {RUNS} order by s.cpu"
                ),
                "select distinct t.tid from sched s join thread t using (utid) where t.name is null order by t.tid",
                &format!("select distinct t.name {counters} order by t.name"),
                &format!(
                    "select distinct t.name {counters}
                    and (select count(*) from counter c where c.track_id = t.id) < 2 order by t.name"
                ),
                &format!("select pid, name, cmdline, uid from process where pid = {pid}"),
                // A CPU that only other packets mention has no processor.
                "select cpu, processor, capacity, cluster_id from cpu where processor is not null order by cpu",
            ],
        );
        Reading {
            losses,
            switching,
            nameless,
            counters,
            silent_counters,
            process,
            cpus: described_cpus,
        }
    }

    /// Fails if something is missing that every recording of this machine shows.
    fn assert_complete(&self, cpus: &[usize], mixture: &str) {
        assert_eq!(self.losses, Rows::new(), "{mixture}");
        let switching: Rows = cpus
            .iter()
            .map(|&cpu| {
                vec![
                    cpu.to_string(),
                    thread_name(cpu),
                    "1".into(),
                    "1".into(),
                    "1".into(),
                ]
            })
            .collect();
        assert_eq!(self.switching, switching, "{mixture}");
        assert_eq!(self.nameless, Rows::new(), "{mixture}");
        for counter in ["MemFree", "cpu.times.user_ns", "pgfault"] {
            assert!(
                self.counters.contains(&vec![counter.to_owned()]),
                "{mixture}: {:?}",
                self.counters
            );
        }
        assert_eq!(self.silent_counters, Rows::new(), "{mixture}");
        assert_eq!(self.process.len(), 1, "{mixture}: {:?}", self.process);
        assert!(self.cpus.len() >= cpus.len(), "{mixture}: {:?}", self.cpus);
    }
}

#[test]
fn all_mixtures_record_the_same() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let Some(_tracefs) = Tracefs::lock() else { return };
    let cpus = cpus();
    let mut expected = None;
    for traced in [Side::Upstream, Side::Ours] {
        for probes in [Side::Upstream, Side::Ours] {
            for perfetto in [Side::Upstream, Side::Ours] {
                let mixture = format!("traced: {traced}, traced_probes: {probes}, perfetto: {perfetto}");
                println!("{mixture}");
                let mut system = System::with_daemons(&programs, traced, probes);
                let recording = system.record(perfetto, SOURCES);
                await_sched_switch();
                switch(&cpus);
                let trace = recording.interrupt();
                system.assert_running();
                let reading = Reading::of(&processor, &trace);
                reading.assert_complete(&cpus, &mixture);
                // The mixture of only upstream's programs comes first, and the others are compared with it.
                match &expected {
                    None => expected = Some(reading),
                    Some(expected) => assert_eq!(&reading, expected, "{mixture}"),
                }
            }
        }
    }
}

/// Mixtures in which each side of a program meets each side of every other program.
const PAIRWISE: [[Side; 3]; 4] = [
    [Side::Upstream, Side::Upstream, Side::Upstream],
    [Side::Upstream, Side::Ours, Side::Ours],
    [Side::Ours, Side::Upstream, Side::Ours],
    [Side::Ours, Side::Ours, Side::Upstream],
];

/// Fields of `TracePacket`.
const COMPRESSED_PACKETS: u32 = 50;
const SERVICE_EVENT: u32 = 69;

/// A config like that of a recording over days: its trace is streamed into a file, compressed and without the service's events. (`triggers.rs` has
/// recordings that triggers start or stop.)
fn with_everything() -> String {
    let filter = bytecode(&[
        &[Rule::Nested(1, 1)],
        &[
            Rule::KeepRange(1, SERVICE_EVENT - 1),
            Rule::KeepRange(SERVICE_EVENT + 1, 1000),
        ],
    ]);
    format!(
        "{SOURCES}
        unique_session_name: \"everything\"
        write_into_file: true file_write_period_ms: 200
        flush_period_ms: 300 flush_timeout_ms: 30000
        incremental_state_config {{ clear_period_ms: 400 }}
        compression_type: COMPRESSION_TYPE_DEFLATE
        trace_filter {{ bytecode: \"{}\" }}",
        escaped(&filter)
    )
}

/// Waits until the kernel traces the switches. While other threads kept all CPUs busy, upstream's probes needed ten seconds to set that up, so these
/// threads begin only afterwards. Nobody else uses tracefs meanwhile.
fn await_sched_switch() {
    let is_on = |file: &str| {
        let setting = std::fs::read_to_string(Path::new("/sys/kernel/tracing").join(file));
        setting.is_ok_and(|setting| setting.trim() == "1")
    };
    await_that("probes trace the kernel", || {
        is_on("events/sched/sched_switch/enable") && is_on("tracing_on")
    });
}

/// Runs a `perfetto` to its end.
fn perfetto(system: &System<'_>, side: Side, config: &str, arguments: &[&str]) {
    let file = system.path("config");
    std::fs::write(&file, config).unwrap();
    let mut command = system.command(&system.program(side, Program::Perfetto), "perfetto.log");
    if !config.is_empty() {
        command.arg("--txt").arg("-c").arg(file);
    }
    let status = command.args(arguments).status().unwrap();
    assert!(
        status.success(),
        "{side} {arguments:?}: {status}\n{}",
        system.log("perfetto.log")
    );
}

/// Returns the fields of all packets of a trace, each of which must be compressed.
fn fields_inside(trace: &Path) -> Vec<u32> {
    let fields = |packets: &[u8]| -> Vec<(u32, Vec<u8>)> {
        let fields = Reader::new(packets).map(Result::unwrap);
        let owned = fields.map(|field| (field.number, field.value.as_bytes().unwrap_or_default().to_vec()));
        owned.collect()
    };
    let mut inside = Vec::new();
    for (_, packet) in fields(&std::fs::read(trace).unwrap()) {
        let numbers: Vec<u32> = fields(&packet).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [COMPRESSED_PACKETS], "{}", trace.display());
        let packets = expand(&packet, 1 << 30).unwrap().unwrap();
        for (_, packet) in fields(&packets) {
            inside.extend(fields(&packet).into_iter().map(|(number, _)| number));
        }
    }
    inside
}

#[test]
fn mixtures_stream_filter_compress_detach_and_clone_alike() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let Some(_tracefs) = Tracefs::lock() else { return };
    let cpus = cpus();
    let mut expected = None;
    for [traced, probes, command_line] in PAIRWISE {
        let mixture = format!("traced: {traced}, traced_probes: {probes}, perfetto: {command_line}");
        println!("{mixture}");
        let mut system = System::with_daemons(&programs, traced, probes);
        let (trace, clone) = (system.path("trace"), system.path("clone"));
        let output = ["-o", trace.to_str().unwrap(), "--detach", "key"];
        perfetto(&system, command_line, &with_everything(), &output);
        await_sched_switch();
        switch(&cpus);
        let output = ["-o", clone.to_str().unwrap(), "--clone-by-name", "everything"];
        perfetto(&system, command_line, "", &output);
        perfetto(&system, command_line, "", &["--attach", "key", "--stop"]);
        system.await_state(|state| state.num_sessions == Some(0));
        system.assert_running();
        let reading = Reading::of(&processor, &trace);
        reading.assert_complete(&cpus, &mixture);
        match &expected {
            None => expected = Some(reading),
            Some(expected) => assert_eq!(&reading, expected, "{mixture}"),
        }
        let fields = fields_inside(&trace);
        assert!(!fields.contains(&SERVICE_EVENT), "{mixture}");
        let cloned = Reading::of(&processor, &clone);
        // Upstream copies the file before it flushes. Data that move from the buffers into the file in between are in neither.
        if traced == Side::Ours {
            assert_eq!(cloned.losses, Rows::new(), "{mixture}");
        }
        assert_eq!(cloned.process, expected.as_ref().unwrap().process, "{mixture}");
    }
}
