//! Data sources that cannot start: their reason in the trace, on the terminal and in `ferretto info`, beside others that record, with either service.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, Trace};
use rustix::process::Signal;

use crate::support::trace::{LOSSES, TraceProcessor, numbers};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System, await_that};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

const PERF: &str = "the data source linux.perf: could not be ";
const HEAP: &str = "the data source android.heapprofd: could not be set up: ";

const COUNTERS: &str =
    "data_sources { config { name: 'linux.sys_stats' sys_stats_config { meminfo_period_ms: 20 } } }";

/// A perf source with an event that no kernel has.
const NO_SUCH_EVENT: &str = "data_sources { config { name: 'linux.perf' perf_event_config {
    timebase { period: 1 tracepoint { name: 'sched:no_such_event' } } } } }";

/// Kernel events from buffers that nobody has made.
const NO_SUCH_BUFFERS: &str =
    "data_sources { config { name: 'linux.ftrace' ftrace_config { instance_name: 'no_such_buffers' } } }";

/// A heap profile of no process.
const NO_TARGET: &str = "data_sources { config { name: 'android.heapprofd' heapprofd_config { sampling_interval_bytes: 4096 } } }";

/// Systems with either service and these daemons of ours.
fn systems(daemons: &[Program], test: impl Fn(&System<'_>, Side)) {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in [Side::Ours, Side::Upstream] {
        println!("the service is {side}");
        let mut system = System::new(&programs);
        system.start(side, Program::Traced);
        for daemon in daemons {
            system.start(Side::Ours, *daemon);
        }
        test(&system, side);
    }
}

/// Records these data sources for 2 s, in which those that do not fail have samples on a busy machine, too; the stop of a failed one may take a
/// minute. Returns the exit code, the messages and the trace.
fn recorded(system: &System<'_>, flags: &[&str], sources: &[&str]) -> (Option<i32>, String, PathBuf) {
    recorded_after(2, system, flags, sources)
}

/// The same, where another number than 2, for "not all have started", is told at the start.
fn recorded_after(
    expected: u8,
    system: &System<'_>,
    flags: &[&str],
    sources: &[&str],
) -> (Option<i32>, String, PathBuf) {
    let sources = sources.concat();
    let config =
        format!("buffers {{ size_kb: 4096 }} duration_ms: 2000 data_source_stop_timeout_ms: 60000 {sources}");
    let (mut recording, started) = system.begin(Path::new(FERRETTO), flags, &config);
    assert_eq!(started, expected, "whether all have started");
    let from = std::time::Instant::now();
    let code = recording.wait().expect("it ends").code();
    assert!(
        from.elapsed() < std::time::Duration::from_secs(60),
        "the stop is acknowledged"
    );
    (code, recording.said(), recording.trace().to_owned())
}

/// `ferretto info --strict` of the trace: exit code and text.
fn info(trace: &Path, flag: &str) -> (Option<i32>, String) {
    let mut info = Command::new(FERRETTO);
    let output = info
        .args(["info", flag])
        .arg(trace)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// The failures in the trace: data source and reason.
fn failures(trace: &Path) -> Vec<(String, String)> {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let failures = trace.packet.into_iter().filter_map(|packet| match packet.data {
        Some(Data::DataSourceFailure(failure)) => {
            assert!(packet.timestamp.is_some_and(|time| time > 0));
            Some((failure.data_source_name?, failure.failure?))
        }
        _ => None,
    });
    failures.collect()
}

/// Asserts that the summary, `info` and the trace report the failure of this data source with this reason, and report nothing else.
fn assert_told(said: &str, trace: &Path, sentence: &str, reason: &str) {
    let (code, told) = info(trace, "--strict");
    assert_eq!(code, Some(3), "{told}");
    for text in [said, &told] {
        assert!(text.contains(sentence) && text.contains(reason), "{text}");
        assert!(!text.contains("never said that it had started"), "{text}");
        assert!(!text.contains("in its log"), "the reason is told here:\n{text}");
    }
    let (_, json) = info(trace, "--json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["not_recorded"][0]["cause"], "data_source_failed", "{json}");
    let failures = failures(trace);
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].1.contains(reason), "{failures:?}");
}

/// Asserts that upstream's trace processor finds the counters, and no losses or errors.
fn assert_counters(trace: &Path) {
    if let Some(processor) = TraceProcessor::find() {
        let counters =
            "select count(*) from counter join track on track.id = track_id where name = 'MemFree'";
        let [counters, losses] = processor.query(trace, [counters, LOSSES]);
        assert!(numbers::<1>(&counters)[0] >= 2, "{counters:?}");
        assert!(losses.is_empty(), "{losses:?}");
    }
}

#[test]
fn a_profile_of_an_unknown_event_has_the_reason_in_its_trace() {
    systems(&[Program::TracedProbes, Program::TracedPerf], |system, _| {
        let (code, said, trace) = recorded(system, &["--strict"], &[COUNTERS, NO_SUCH_EVENT]);
        assert_eq!(code, Some(3), "{said}");
        assert_told(&said, &trace, PERF, "sched:no_such_event");
        assert_counters(&trace);
        let (code, said, _) = recorded(system, &[], &[COUNTERS, NO_SUCH_EVENT]);
        assert_eq!(code, Some(0), "the counters are there:\n{said}");
        let (code, said, trace) = recorded(system, &[], &[NO_SUCH_EVENT]);
        assert_eq!(code, Some(1), "nothing is there:\n{said}");
        assert!(said.contains("nothing that was asked for was recorded"), "{said}");
        assert_told(&said, &trace, PERF, "sched:no_such_event");
    });
}

#[test]
fn a_heap_profile_of_nothing_has_the_reason_in_its_trace() {
    systems(&[Program::TracedProbes, Program::Heapprofd], |system, _| {
        let (code, said, trace) = recorded(system, &["--strict"], &[COUNTERS, NO_TARGET]);
        assert_eq!(code, Some(3), "{said}");
        assert_told(
            &said,
            &trace,
            HEAP,
            "no process is chosen: set pid, process_cmdline or all",
        );
        assert_counters(&trace);
        let (code, said, _) = recorded(system, &[], &[NO_TARGET]);
        assert_eq!(code, Some(1), "nothing is there:\n{said}");
    });
}

#[test]
fn one_failed_profile_of_two_is_told_though_the_other_has_samples() {
    if !crate::perf::may_profile() {
        return;
    }
    systems(&[Program::TracedPerf], |system, _| {
        let polled = "data_sources { config { name: 'linux.perf' perf_event_config {
            timebase { poll_period_ms: 10 counter: SW_CPU_CLOCK } } } }";
        let (code, said, trace) = recorded(system, &["--strict"], &[polled, NO_SUCH_EVENT]);
        assert_eq!(code, Some(3), "{said}");
        assert_told(&said, &trace, PERF, "sched:no_such_event");
        let (code, said, _) = recorded(system, &[], &[polled, NO_SUCH_EVENT]);
        assert_eq!(code, Some(0), "{said}");
    });
}

#[test]
fn a_profiler_that_may_not_count_has_the_reason_in_its_trace() {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if !paranoid.is_ok_and(|level| level.trim().parse().is_ok_and(|level: i32| level >= 1)) {
        return println!("skipped: this kernel lets every user count events of all threads, or none at all");
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can start a daemon as another user");
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    std::fs::set_permissions(system.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::TracedProbes);
    std::fs::set_permissions(system.producer_socket(), PermissionsExt::from_mode(0o777)).unwrap();
    let profiler = system.copy_of(Side::Ours, Program::TracedPerf);
    system.start_copy(Path::new("setpriv"), Program::TracedPerf, |command| {
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(profiler);
    });
    let clock = "data_sources { config { name: 'linux.perf' perf_event_config {
        timebase { frequency: 100 counter: SW_CPU_CLOCK } } } }";
    let (code, said, trace) = recorded(&system, &["--strict"], &[COUNTERS, clock]);
    assert_eq!(code, Some(3), "{said}");
    assert_told(&said, &trace, PERF, "started: ");
    assert!(said.contains("perf_event_paranoid"), "what to do:\n{said}");
    assert_counters(&trace);
}

#[test]
fn a_recording_into_a_file_says_while_it_runs_why_a_source_does_not_start() {
    systems(&[Program::TracedProbes, Program::TracedPerf], |system, _| {
        let config = format!(
            "buffers {{ size_kb: 1024 }} write_into_file: true file_write_period_ms: 100 flush_period_ms: 60000 {COUNTERS} {NO_SUCH_EVENT} {NO_SUCH_BUFFERS}"
        );
        std::fs::write(system.path("config"), config).unwrap();
        let mut command = system.command(Path::new(FERRETTO), "live.log");
        command.args(["--txt", "-c"]).arg(system.path("config"));
        let mut running = Running(command.arg("-o").arg(system.path("trace")).spawn().unwrap());
        await_that("the reason is told", || {
            let said = system.log("live.log");
            said.contains("not recorded: linux.perf could not be set up: ")
                && said.contains("sched:no_such_event")
                && said.contains("not recorded: linux.ftrace could not be set up: ")
        });
        assert!(!system.log("live.log").contains("still waiting for linux."));
        running.signal(Signal::INT);
        let status = running.wait(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", system.log("live.log"));
        assert_counters(&system.path("trace"));
    });
}

#[test]
fn a_start_that_failed_is_no_success_and_holds_up_no_stop() {
    systems(&[Program::TracedPerf], |system, _| {
        let config = format!("buffers {{ size_kb: 1024 }} duration_ms: 300 {NO_SUCH_EVENT}");
        std::fs::write(system.path("config"), config).unwrap();
        let mut command = system.command(Path::new(FERRETTO), "background.log");
        command.args(["--txt", "-D", "-c"]).arg(system.path("config"));
        let output = command.arg("-o").arg(system.path("trace")).output().unwrap();
        let said = system.log("background.log");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("sched:no_such_event"), "the reason:\n{said}");
        system.await_state(|state| state.num_sessions == Some(0));
    });
}

/// As with upstream's probes, whose packets then have no counters.
#[test]
fn counters_with_periods_that_do_not_fit_have_started_and_the_trace_says_why_there_are_none() {
    const PERIODS: &str = "data_sources { config { name: 'linux.sys_stats'
        sys_stats_config { meminfo_period_ms: 1000 stat_period_ms: 1500 } } }";
    const REASON: &str = "stat_period_ms: 1500 is not a multiple of meminfo_period_ms: 1000";
    systems(&[Program::TracedProbes], |system, _| {
        let (code, said, trace) = recorded_after(0, system, &["--strict"], &[PERIODS]);
        assert_eq!(code, Some(1), "nothing is there:\n{said}");
        assert_told(
            &said,
            &trace,
            "the data source linux.sys_stats: could not be set up: ",
            REASON,
        );

        let config = format!("buffers {{ size_kb: 1024 }} duration_ms: 300 {PERIODS}");
        std::fs::write(system.path("config"), config).unwrap();
        let mut command = system.command(Path::new(FERRETTO), "background.log");
        command.args(["--txt", "-D", "-c"]).arg(system.path("config"));
        let output = command.arg("-o").arg(system.path("trace")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", system.log("background.log"));
        system.await_state(|state| state.num_sessions == Some(0));
    });
}
