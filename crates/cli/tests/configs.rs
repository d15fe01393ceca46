//! Fields of the trace config that affect whole processes: which sessions may coexist, at which priority the service runs, which clocks and machines
//! are recorded. Where upstream's service knows a field, both services must do the same.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Program, Programs, Recording, Running, Side, System};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, Trace, TracePacket};

const BUFFER: &str = "buffers { size_kb: 64 }";

/// Runs a test with our service, and with upstream's if it is installed.
fn each_service(test: impl Fn(&Programs, Side)) {
    test(&Programs::ours(), Side::Ours);
    if let Some(programs) = Programs::of_both() {
        test(&programs, Side::Upstream);
    }
}

/// A system with this service and nothing else.
fn service(programs: &Programs, side: Side) -> System<'_> {
    let mut system = System::new(programs);
    system.start(side, Program::Traced);
    system
}

fn record(system: &System<'_>, config: &str) -> Recording {
    system.record(Side::Ours, &format!("{BUFFER} {config}"))
}

/// Returns the command line's message about a config that the service refuses.
fn refused(system: &System<'_>, config: &str) -> String {
    let path = system.path("refused.cfg");
    std::fs::write(&path, format!("{BUFFER} {config}")).unwrap();
    let log = "refused.log";
    let child = system
        .command(Path::new(env!("CARGO_BIN_EXE_perfetto")), log)
        .args(["--txt", "-c"])
        .arg(path)
        .arg("-o")
        .arg(system.path("refused.pftrace"))
        .spawn()
        .unwrap();
    let status = Running(child).wait(PATIENCE);
    let said = system.log(log);
    assert!(
        status.is_some_and(|status| !status.success()),
        "{config}: {status:?}: {said}"
    );
    assert!(said.contains("Service error"), "{said}");
    said
}

fn packets(trace: &Path) -> Vec<TracePacket> {
    let bytes = std::fs::read(trace).unwrap();
    Trace::decode_from_slice(&bytes).unwrap().packet
}

/// Whether this user may raise priorities. Otherwise prints that the test is skipped.
fn may_raise_priorities() -> bool {
    let raised = Command::new("chrt").args(["-f", "1", "true"]).status();
    let may = raised.is_ok_and(|status| status.success());
    if !may {
        println!("skipped: this user may not raise priorities, or there is no chrt");
    }
    may
}

/// Returns the scheduling policy, real-time priority and nice value of a process's first thread.
fn scheduling(pid: u32) -> (i64, i64, i64) {
    scheduling_of(Path::new(&format!("/proc/{pid}")))
}

/// The same for the process or thread with this folder in `/proc`.
fn scheduling_of(folder: &Path) -> (i64, i64, i64) {
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // proc(5) numbers the fields from 1. The first two come before the closing bracket, and are missing here.
    let field = |number: usize| fields[number - 3].parse().unwrap();
    (field(41), field(40), field(19))
}

#[test]
fn the_service_runs_at_the_priority_that_a_session_asks_for_while_it_is_there() {
    const FIFO: i64 = 1;
    if !may_raise_priorities() {
        return;
    }
    each_service(|programs, side| {
        let mut system = System::new(programs);
        let pid = system.start(side, Program::Traced);
        let usual = scheduling(pid);
        let nicer = record(
            &system,
            "priority_boost { policy: POLICY_SCHED_OTHER priority: 5 }",
        );
        assert_eq!(scheduling(pid), (0, 0, -5), "{side}");
        let fifo = record(
            &system,
            "priority_boost { policy: POLICY_SCHED_FIFO priority: 2 }",
        );
        let (policy, priority, _) = scheduling(pid);
        assert_eq!((policy, priority), (FIFO, 2), "{side}");
        fifo.interrupt();
        system.await_state(|state| state.num_sessions == Some(1));
        assert_eq!(scheduling(pid), (0, 0, -5), "{side}");
        nicer.interrupt();
        system.await_state(|state| state.num_sessions == Some(0));
        assert_eq!(scheduling(pid), usual, "{side}");
        system.assert_running();
    });
}

#[test]
fn a_boost_is_not_passed_on_to_the_threads_of_files_begun_meanwhile() {
    const KERNELS_DEFAULT: (i64, i64, i64) = (0, 0, 0);
    if !may_raise_priorities() {
        return;
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let boosted = record(
        &system,
        "priority_boost { policy: POLICY_SCHED_FIFO priority: 2 }",
    );
    let streaming = record(&system, "write_into_file: true");
    let until = Instant::now() + PATIENCE;
    let of_file = |thread: &Path| {
        let name = std::fs::read_to_string(thread.join("comm")).unwrap();
        name.trim() == "trace-file" && scheduling_of(thread) == KERNELS_DEFAULT
    };
    // The thread has its name when it begins to run.
    while !std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .any(|thread| of_file(&thread.unwrap().path()))
    {
        assert!(
            Instant::now() < until,
            "no thread of a file runs at the default priority"
        );
        std::thread::yield_now();
    }
    streaming.interrupt();
    boosted.interrupt();
}

#[test]
fn a_service_that_may_not_raise_its_priority_says_so() {
    const NOBODY: u32 = 65534;
    each_service(|programs, side| {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root starts a service as another user");
            return;
        }
        let mut system = System::new(programs);
        let folder = system.path("");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        // The test runs a copy, because `nobody` may not enter other users' folders.
        let copy = system.copy_of(side, Program::Traced);
        let as_nobody = |command: &mut Command| {
            command.uid(NOBODY).gid(NOBODY);
        };
        let mut version = Command::new(&copy);
        as_nobody(
            version
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        if !version.status().is_ok_and(|status| status.success()) {
            // Only root may be able to enter the folder of upstream's programs and their libraries.
            assert_eq!(side, Side::Upstream);
            println!("not compared: another user cannot run upstream's service here");
            return;
        }
        system.start_copy(&copy, Program::Traced, as_nobody);
        let said = refused(
            &system,
            "priority_boost { policy: POLICY_SCHED_FIFO priority: 1 }",
        );
        assert!(said.contains("sched_setscheduler"), "{side}: {said}");
        assert_eq!(system.state().num_sessions, Some(0), "{side}");
        refused(
            &system,
            "priority_boost { policy: POLICY_SCHED_FIFO priority: 100 }",
        );
        record(&system, "").interrupt();
        system.assert_running();
    });
}

#[test]
fn an_exclusive_session_ends_those_that_are_there_and_turns_others_away() {
    each_service(|programs, side| {
        let system = service(programs, side);
        let mut first = record(&system, "");
        let exclusive = record(&system, "exclusive_prio: 2");
        let status = first.wait().expect("ended");
        assert!(!status.success(), "{side}: its trace is not what was wanted");
        assert!(first.said().contains("xclusive"), "{side}: {}", first.said());
        for config in ["", "exclusive_prio: 1", "exclusive_prio: 2"] {
            let said = refused(&system, config);
            assert!(said.contains("xclusive session"), "{side}: {said}");
        }
        exclusive.interrupt();
        system.await_state(|state| state.num_sessions == Some(0));
        record(&system, "").interrupt();
    });
}

#[test]
fn semaphores_and_names_keep_sessions_apart() {
    each_service(|programs, side| {
        let system = service(programs, side);
        let mutex = "session_semaphores { name: \"mutex\" max_other_session_count: 0 }";
        let named = "unique_session_name: \"mine\"";
        let first = record(&system, &format!("{mutex} {named}"));
        let said = refused(&system, mutex);
        assert!(
            said.contains("emaphore \"mutex\" exceeds maximum allowed other session count (1 > min(0, 0))"),
            "{side}: {said}"
        );
        let said = refused(&system, named);
        assert!(
            said.contains("A trace with this unique session name (mine) already exists")
                || said.contains("a trace with this unique session name (mine) already exists"),
            "{side}: {said}"
        );
        first.interrupt();
        system.await_state(|state| state.num_sessions == Some(0));
        record(&system, &format!("{mutex} {named}")).interrupt();
    });
}

#[test]
fn a_duration_on_the_boot_clock_ends_the_recording() {
    each_service(|programs, side| {
        let system = service(programs, side);
        // A service keeps the interval if it gets a processor. On a busy machine it may take longer.
        let keeps_the_interval = |ms: u64| {
            let start = Instant::now();
            let boot = record(
                &system,
                &format!(
                    "duration_ms: {ms} prefer_suspend_clock_for_duration: true
                     builtin_data_sources {{ snapshot_interval_ms: 100 prefer_suspend_clock_for_snapshot: true }}
                     write_into_file: true file_write_period_ms: 100"
                ),
            );
            let trace = boot.finish();
            assert!(start.elapsed() >= Duration::from_millis(ms), "{side}");
            let markers = packets(&trace)
                .iter()
                .filter(|packet| matches!(packet.data, Some(Data::SynchronizationMarker(_))))
                .count() as u64;
            println!("{side}: {markers} in {ms} ms");
            (3..=ms / 100 + 2).contains(&markers)
        };
        assert!([700, 3_000, 10_000].into_iter().any(keeps_the_interval), "{side}");
    });
}

#[test]
fn probes_are_filtered_by_the_name_of_their_machine() {
    let source = |machine: &str| {
        format!(
            "data_sources {{ config {{ name: \"linux.system_info\" }} machine_name_filter: \"{machine}\" }}
             duration_ms: 100"
        )
    };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.env("PERFETTO_MACHINE_NAME", "here");
    });
    system.start(Side::Ours, Program::TracedProbes);
    for (machine, expected) in [("here", true), ("host", true), ("there", false)] {
        let trace = record(&system, &source(machine)).finish();
        let found = packets(&trace)
            .iter()
            .any(|packet| matches!(packet.data, Some(Data::CpuInfo(_))));
        assert_eq!(found, expected, "{machine}");
    }
}

#[test]
fn extension_descriptors_are_read_from_files_and_go_into_every_trace() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let file = system.path("vendor.gz");
    std::fs::write(&file, b"\x1f\x8b\x08 anything").unwrap();
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.env("FERRETTO_EXTENSION_DESCRIPTORS", &file);
    });
    let names = |trace: &Path| -> Vec<String> {
        let packets = packets(trace);
        let descriptors = packets.iter().filter_map(|packet| match &packet.data {
            Some(Data::ExtensionDescriptor(descriptor)) => descriptor.file_name.clone(),
            _ => None,
        });
        descriptors.collect()
    };
    for _ in 0..2 {
        let trace = record(&system, "duration_ms: 10").finish();
        assert_eq!(names(&trace), [file.to_string_lossy()]);
    }
    let without = "duration_ms: 10 builtin_data_sources { disable_extension_descriptors: true }";
    assert!(names(&record(&system, without).finish()).is_empty());
}

#[test]
fn a_recording_tells_of_others_beside_it() {
    let programs = Programs::ours();
    let system = service(&programs, Side::Ours);
    let watching = record(
        &system,
        "unique_session_name: \"watching\" builtin_data_sources { enable_concurrent_session_events: true }",
    );
    record(&system, "unique_session_name: \"beside\" duration_ms: 10").finish();
    let trace = watching.interrupt();
    let packets = packets(&trace);
    let states: Vec<i32> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ConcurrentSessionEvent(event)) => {
                assert_eq!(event.session_name.as_deref(), Some("beside"));
                Some(event.state.unwrap() as i32)
            }
            _ => None,
        })
        .collect();
    // Configured, started, disabled.
    assert_eq!(states, [2, 3, 1]);
}
