//! The daemon `traced_probes` when the service is in trouble, as seen by a user who runs both.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::await_that;

/// Fills the shared memory within a second, without tracefs.
const CONFIG: &str = r#"
buffers { size_kb: 65536 }
write_into_file: true
file_write_period_ms: 100
producers { producer_name: "perfetto.traced_probes" shm_size_kb: 16 page_size_kb: 4 }
data_sources { config { name: "linux.sys_stats" sys_stats_config { vmstat_period_ms: 10 meminfo_period_ms: 10 } } }
data_sources {
  config {
    name: "linux.process_stats"
    process_stats_config { scan_all_processes_on_start: true proc_stats_poll_ms: 100 proc_stats_cache_ttl_ms: 100 }
  }
}
"#;

/// A process that does not outlive the test, in whatever state it is.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns the system call in which it waits, if it waits and this user may know.
    fn system_call(&self) -> Option<libc::c_long> {
        let text = std::fs::read_to_string(format!("/proc/{}/syscall", self.0.id())).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Service and probes on sockets of their own.
struct System {
    dir: tempfile::TempDir,
    traced: Process,
    probes: Process,
}

impl System {
    /// Starts both, and a recording, and stops the service until the probes wait for it.
    fn with_stalled_probes() -> Option<(System, Process)> {
        let dir = crate::support::socket_folder::socket_folder("ferretto-test-");
        let traced = start(dir.path(), env!("CARGO_BIN_EXE_traced"), &[]);
        let probes = start(dir.path(), env!("CARGO_BIN_EXE_traced_probes"), &[]);
        let system = System { dir, traced, probes };
        system.await_probes();
        let config = system.dir.path().join("config");
        std::fs::write(&config, CONFIG).unwrap();
        let perfetto = env!("CARGO_BIN_EXE_perfetto");
        let trace = system.dir.path().join("trace");
        let arguments = [
            "--txt",
            "-c",
            config.to_str().unwrap(),
            "-o",
            trace.to_str().unwrap(),
        ];
        let recording = start(system.dir.path(), perfetto, &arguments);
        await_that("data arrives", || {
            std::fs::metadata(&trace).is_ok_and(|trace| trace.len() > 50_000)
        });
        system.traced.signal(Signal::STOP);
        if std::fs::read(format!("/proc/{}/syscall", system.probes.0.id())).is_err() {
            println!("skipped: /proc/PID/syscall cannot be read");
            return None;
        }
        // In its loop the daemon waits in epoll; it sleeps only for this.
        await_that("the probes wait for shared memory", || {
            system.probes.system_call() == Some(libc::SYS_clock_nanosleep)
        });
        Some((system, recording))
    }

    fn await_probes(&self) {
        await_that("the probes are registered", || {
            self.query().contains("linux.sys_stats")
        });
    }

    /// Returns the output of `perfetto --query`, which is empty while there is no service.
    fn query(&self) -> String {
        let output = command(self.dir.path(), env!("CARGO_BIN_EXE_perfetto"), &["--query"]).output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    }
}

fn command(dir: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .env("PERFETTO_PRODUCER_SOCK_NAME", dir.join("producer"))
        .env("PERFETTO_CONSUMER_SOCK_NAME", dir.join("consumer"))
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn start(dir: &Path, program: &str, arguments: &[&str]) -> Process {
    Process(
        command(dir, program, arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

#[test]
fn a_signal_ends_the_probes_while_they_wait_for_a_service_that_is_stuck() {
    let Some((mut system, _recording)) = System::with_stalled_probes() else {
        return;
    };
    system.probes.signal(Signal::TERM);
    let mut status = None;
    await_that("the probes end", || {
        status = system.probes.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "in order");
}

#[test]
fn probes_that_wait_for_a_service_that_dies_find_its_successor() {
    let Some((mut system, _recording)) = System::with_stalled_probes() else {
        return;
    };
    // A stopped service still listens, so its successor could not take its place.
    system.traced.0.kill().unwrap();
    system.traced.0.wait().unwrap();
    system.traced = start(system.dir.path(), env!("CARGO_BIN_EXE_traced"), &[]);
    system.await_probes();
}

/// Returns the scheduling policy, real-time priority and nice value of a process.
fn scheduling(process: &Process) -> [i32; 3] {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap();
    // The second field is the name, which may have any characters.
    let (_, behind) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = behind.split(' ').collect();
    [41, 40, 19].map(|number: usize| fields[number - 3].parse().unwrap())
}

#[test]
fn the_highest_priority_that_a_data_source_asks_for_counts() {
    let dir = crate::support::socket_folder::socket_folder("ferretto-test-");
    let traced = start(dir.path(), env!("CARGO_BIN_EXE_traced"), &[]);
    let probes = start(dir.path(), env!("CARGO_BIN_EXE_traced_probes"), &[]);
    let system = System { dir, traced, probes };
    system.await_probes();
    let usual = scheduling(&system.probes);
    let may = Command::new("chrt").args(["-f", "1", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not raise priorities, or there is no chrt");
        return;
    }
    let record = |boost: &str| {
        let config = system.dir.path().join(boost.replace([' ', ':'], "-"));
        let text = format!(
            "buffers {{ size_kb: 64 }} data_sources {{ config {{ name: \"linux.system_info\" priority_boost {{ {boost} }} }} }}"
        );
        std::fs::write(&config, text).unwrap();
        let trace = config.with_extension("trace");
        let words = [
            "--txt",
            "-c",
            config.to_str().unwrap(),
            "-o",
            trace.to_str().unwrap(),
        ];
        start(system.dir.path(), env!("CARGO_BIN_EXE_perfetto"), &words)
    };
    let await_scheduling = |expected: [i32; 3]| {
        await_that(&format!("{expected:?}"), || {
            scheduling(&system.probes) == expected
        });
    };
    let realtime = record("policy: POLICY_SCHED_FIFO priority: 42");
    // The nice value is kept for later.
    let boosted = [libc::SCHED_FIFO, 42, usual[2]];
    await_scheduling(boosted);
    let nice = record("policy: POLICY_SCHED_OTHER priority: 7");
    let nonsense = record("policy: POLICY_SCHED_FIFO priority: 100");
    // The word is also in the head of the table.
    await_that("all record", || {
        system.query().matches("STARTED").count() == 1 + 3
    });
    assert_eq!(scheduling(&system.probes), boosted);
    realtime.signal(Signal::INT);
    await_scheduling([libc::SCHED_OTHER, 0, -7]);
    nice.signal(Signal::INT);
    await_scheduling(usual);
    nonsense.signal(Signal::INT);
}
