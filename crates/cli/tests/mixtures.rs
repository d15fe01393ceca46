//! The eight mixtures of our and upstream's `traced`, `traced_probes` and `perfetto`: each records the kernel and the processes of
//! this machine, and upstream's trace processor reads the same from all.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::CpuSet;
use support::trace::{LOSSES, Rows, TraceProcessor};
use support::tracefs::Tracefs;
use support::{Programs, Side, System};

const CONFIG: &str = r#"
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
duration_ms: 2000
"#;

/// How long a thread that switches sleeps between two runs.
const PERIOD: Duration = Duration::from_millis(1);
/// Runs of such a thread that a recording of 2 s shows at least, on a machine however busy with other things.
const RUNS: i64 = 20;

/// A nice value.
const LOWEST_PRIORITY: i32 = 19;

fn thread_name(cpu: usize) -> String {
    format!("mixture-cpu{cpu}")
}

/// The CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Runs `record` while a thread of this process switches on each of `cpus`; by these threads the traces are compared.
///
/// Below each of them another one spins, so that no CPU is ever idle: there are virtual machines whose kernels, after some
/// hours, report no switch that comes from a CPU's idle thread, neither to tracefs nor to perf.
fn while_switching<R>(cpus: &[usize], record: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for &cpu in cpus {
            let stop = &stop;
            let stay = move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                rustix::thread::sched_setaffinity(None, &one).unwrap();
            };
            let switch = move || {
                stay();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(PERIOD);
                }
            };
            let spin = move || {
                stay();
                let this_thread = rustix::thread::gettid();
                rustix::process::setpriority_process(Some(this_thread), LOWEST_PRIORITY).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let thread = |name: String| std::thread::Builder::new().name(name);
            thread(thread_name(cpu)).spawn_scoped(scope, switch).unwrap();
            thread(format!("mixture-spin{cpu}"))
                .spawn_scoped(scope, spin)
                .unwrap();
        }
        let stop_at_end = StopAtEnd(&stop);
        let result = record();
        drop(stop_at_end);
        result
    })
}

/// Stops the threads even if the recording panics, for the scope waits for them.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the trace processor reads from a trace: the part that is the same whenever this machine is recorded.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    /// Statistics of errors and losses.
    losses: Rows,
    /// CPU, thread and process of the threads that switch, wherever they ran often enough, and whether they were seen waking.
    switching: Rows,
    /// Threads that ran without a name.
    nameless: Rows,
    /// Counters of the system.
    counters: Rows,
    /// Counters that have no more than one value.
    silent_counters: Rows,
    /// What is known of this process.
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
                // Of a CPU that is only seen in other packets there is no processor.
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
                let trace = while_switching(&cpus, || system.record(perfetto, CONFIG).finish());
                system.assert_running();
                let reading = Reading::of(&processor, &trace);
                reading.assert_complete(&cpus, &mixture);
                // Upstream's alone come first, and the others are held against them.
                match &expected {
                    None => expected = Some(reading),
                    Some(expected) => assert_eq!(&reading, expected, "{mixture}"),
                }
            }
        }
    }
}
