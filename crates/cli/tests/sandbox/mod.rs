//! The daemons give up capabilities, system calls and files by themselves. The daemons are the binaries that are shipped; calls that they never make
//! are injected into them.
#![allow(unsafe_code)]

mod calls;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use libc::{EACCES, EPERM};
use rustix::process::Signal;

use crate::support::injection::Argument::{Number, Text};
use crate::support::injection::{Outcome, inject};
use crate::support::{Program, Programs, Side, System, await_that};

const DAEMONS: [Program; 5] = [
    Program::Traced,
    Program::TracedProbes,
    Program::TracedPerf,
    Program::Heapprofd,
    Program::TracedRelay,
];

/// Whether the tests can inject calls. If not, prints that the test is skipped.
fn can_inject() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root's daemons have capabilities to give up");
        return false;
    }
    let has_filters = status_of("/proc/self/status", "Seccomp_filters").is_some();
    if !has_filters {
        println!("skipped: this kernel has no seccomp filters");
    }
    has_filters
}

/// A line of a `status` file.
fn status_of(file: impl AsRef<Path>, name: &str) -> Option<String> {
    line_of(&std::fs::read_to_string(file).ok()?, name)
}

fn line_of(status: &str, name: &str) -> Option<String> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Starts a service, and this daemon.
fn started<'a>(programs: &'a Programs, daemon: Program, flags: &[&str]) -> (System<'a>, u32) {
    let mut system = System::new(programs);
    if daemon != Program::Traced {
        system.start(Side::Ours, Program::Traced);
    }
    let pid = start(&mut system, daemon, flags);
    (system, pid)
}

/// Starts this daemon.
fn start(system: &mut System<'_>, daemon: Program, flags: &[&str]) -> u32 {
    let folder = system.path("");
    system.start_with(Side::Ours, daemon, |command| {
        prepare(daemon, &folder, command);
        command.args(flags);
    })
}

/// Gives a relay its sockets in this folder.
fn prepare(daemon: Program, folder: &Path, command: &mut Command) {
    if daemon == Program::TracedRelay {
        command
            .env("PERFETTO_RELAY_SOCK_NAME", folder.join("tunnel"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", folder.join("guest"));
    }
}

/// Makes a daemon open a file.
fn open(pid: u32, path: &'static str, flags: i32) -> Outcome {
    let arguments = [
        Number(libc::AT_FDCWD.into()),
        Text(path),
        Number(flags.into()),
        Number(0o600),
    ];
    inject(pid, libc::SYS_openat, &arguments)
}

fn denied(outcome: Outcome) -> bool {
    [-EACCES, -EPERM]
        .map(|error| Outcome::Returned(error.into()))
        .contains(&outcome)
}

#[test]
fn a_relay_reaches_no_file_unless_its_service_has_a_name_and_removes_its_socket() {
    if !can_inject() {
        return;
    }
    if !has_landlock() {
        return println!("skipped: this kernel has no Landlock");
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let socket = system.path("guest");
    for (service, is_confined) in [
        ("@ferretto-nobody", true),
        ("127.0.0.1:1", true),
        ("[::1]:1", true),
        ("vsock://2:1", true),
        ("localhost:1", false),
    ] {
        let pid = system.start_with(Side::Ours, Program::TracedRelay, |command| {
            command
                .env("PERFETTO_RELAY_SOCK_NAME", service)
                .env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
        });
        for path in ["/etc/hostname", "/proc/self/status", "/etc/shadow"] {
            let outcome = open(pid, path, libc::O_RDONLY);
            assert_eq!(denied(outcome), is_confined, "{service} {path}: {outcome:?}");
        }
        assert!(system.end_with(pid, Signal::TERM).unwrap().success());
        assert!(!socket.exists(), "{service}");
    }
}

#[test]
fn traced_reaches_no_file_but_its_own() {
    if !can_inject() {
        return;
    }
    if !has_landlock() {
        return println!("skipped: this kernel has no Landlock");
    }
    let programs = Programs::ours();
    let (mut system, pid) = started(&programs, Program::Traced, &[]);
    for (path, flags) in [
        ("/etc/shadow", libc::O_RDONLY),
        ("/etc/passwd", libc::O_RDWR),
        ("/etc/ferretto-test", libc::O_WRONLY | libc::O_CREAT),
        ("/root", libc::O_RDONLY | libc::O_DIRECTORY),
        ("/dev/null", libc::O_WRONLY),
        ("/proc/1/environ", libc::O_RDONLY),
        ("/proc/1/mem", libc::O_RDWR),
        ("/proc/sys/kernel/core_pattern", libc::O_WRONLY),
        ("/sys/kernel/tracing/tracing_on", libc::O_RDONLY),
    ] {
        let outcome = open(pid, path, flags);
        assert!(denied(outcome), "{path}: {outcome:?}");
    }
    let remove = [Number(libc::AT_FDCWD.into()), Text("/etc/hostname"), Number(0)];
    assert!(denied(inject(pid, libc::SYS_unlinkat, &remove)));
    for path in [
        "/etc/localtime",
        "/proc/self/status",
        "/sys/devices/system/cpu/online",
    ] {
        if !Path::new(path).exists() {
            continue;
        }
        let outcome = open(pid, path, libc::O_RDONLY);
        assert!(matches!(outcome, Outcome::Returned(0..)), "{path}: {outcome:?}");
    }
    system.assert_running();
    system.state();
}

#[test]
fn traced_makes_files_in_its_folders_only() {
    if !has_landlock() {
        return println!("skipped: this kernel has no Landlock");
    }
    let programs = Programs::ours();
    // Everybody's folders for temporary files are always there.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let is_temporary = ["/tmp", "/var/tmp"]
        .iter()
        .any(|usual| folder.path().starts_with(usual));
    if is_temporary {
        return println!("skipped: this kernel's tests are built in a folder for temporary files");
    }
    let other = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (number, (started_in, listed, is_made)) in [
        (Path::new("/"), None, false),
        (folder.path(), None, true),
        (folder.path(), Some(other.path()), false),
        (other.path(), Some(folder.path()), true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut system = System::new(&programs);
        system.start_with(Side::Ours, Program::Traced, |command| {
            command.current_dir(started_in).env_remove("TMPDIR");
            if let Some(listed) = listed {
                command.env("FERRETTO_OUTPUT_FOLDERS", listed);
            }
        });
        let file = folder.path().join(format!("{number}.pftrace"));
        let config = system.path("config");
        std::fs::write(
            &config,
            format!(
                "buffers {{ size_kb: 64 }} duration_ms: 1 write_into_file: true output_path: \"{}\"",
                file.display()
            ),
        )
        .unwrap();
        let mut perfetto = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
        let status = perfetto.arg("--txt").arg("-c").arg(&config).status().unwrap();
        let said = format!("{}{}", system.log("perfetto.log"), system.log("traced.log"));
        assert_eq!(
            (status.success(), file.exists()),
            (is_made, is_made),
            "{number}: {said}"
        );
        assert!(
            is_made || said.contains("FERRETTO_OUTPUT_FOLDERS"),
            "{number}: {said}"
        );
    }
}

fn has_landlock() -> bool {
    landlock_version() >= 1
}

/// The version of Landlock; an error is a negative number.
fn landlock_version() -> i64 {
    // SAFETY: with this flag, the call takes no pointer.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) }
}

/// Capabilities as the kernel numbers them.
const KILL: u32 = 5;
const DAC_READ_SEARCH: u32 = 2;
const IPC_LOCK: u32 = 14;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const SYSLOG: u32 = 34;
const PERFMON: u32 = 38;
const CHECKPOINT_RESTORE: u32 = 40;

fn kept(daemon: Program) -> &'static [u32] {
    match daemon {
        Program::Traced | Program::TracedRelay | Program::Perfetto => &[],
        Program::TracedProbes => &[SYS_PTRACE, DAC_READ_SEARCH, SYSLOG],
        Program::TracedPerf => &[
            PERFMON,
            SYS_PTRACE,
            CHECKPOINT_RESTORE,
            DAC_READ_SEARCH,
            IPC_LOCK,
            SYSLOG,
        ],
        Program::Heapprofd => &[SYS_PTRACE, CHECKPOINT_RESTORE, DAC_READ_SEARCH, KILL],
    }
}

#[test]
fn daemons_of_root_keep_the_capabilities_that_they_use_in_all_threads() {
    if !can_inject() {
        return;
    }
    let own = status_of("/proc/self/status", "CapPrm").unwrap();
    let own = u64::from_str_radix(&own, 16).unwrap();
    if own >> CHECKPOINT_RESTORE & 1 == 0 {
        return println!("skipped: this kernel or container has no CAP_CHECKPOINT_RESTORE");
    }
    // Where limits of priorities cannot be raised, the capability that stands for them is kept.
    let for_boosts = match own >> SYS_RESOURCE & 1 {
        0 => 1 << SYS_NICE & own,
        _ => 0,
    };
    let programs = Programs::ours();
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let for_paranoia: u64 = match paranoid.trim().parse::<i32>() {
        Ok(3..) => 1 << SYS_ADMIN,
        _ => 0,
    };
    for daemon in DAEMONS {
        let mut exactly: u64 = kept(daemon).iter().map(|number| 1 << number).sum();
        if daemon == Program::TracedPerf {
            exactly |= for_paranoia;
        }
        let exactly = exactly & own;
        let (system, pid) = started(&programs, daemon, &[]);
        assert_kept(daemon, &system, pid, exactly | for_boosts);

        // These limits simulate a machine on which nobody may raise priorities.
        let mut system = System::new(&programs);
        if daemon != Program::Traced {
            system.start(Side::Ours, Program::Traced);
        }
        let program = system.program(Side::Ours, daemon);
        let folder = system.path("");
        let pid = system.start_copy(Path::new("setpriv"), daemon, |command| {
            prepare(daemon, &folder, command);
            let without = "-sys_nice,-sys_resource";
            command.args([
                format!("--bounding-set={without}"),
                format!("--inh-caps={without}"),
            ]);
            command.arg(&program);
        });
        assert_kept(daemon, &system, pid, exactly);
    }
}

/// Asserts that, during a recording, every thread of the daemon has exactly these capabilities.
fn assert_kept(daemon: Program, system: &System<'_>, pid: u32, capabilities: u64) {
    // The recording makes the daemon start more threads.
    let config = "buffers { size_kb: 64 } write_into_file: true duration_ms: 600000 data_sources { config { name: \"linux.perf\" \
                  perf_event_config { timebase { frequency: 10 counter: SW_CPU_CLOCK } } } }";
    let recording = system.record(Side::Ours, config);
    let expected = format!("{capabilities:016x}");
    let tasks = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.map(|task| task.unwrap().path().join("status"))
    };
    let of_later = match daemon {
        Program::Traced => Some("trace-file"),
        Program::TracedPerf => Some("perf_reader"),
        _ => None,
    };
    await_that("the recording has its thread", || {
        let mut names = tasks().filter_map(|file| status_of(file, "Name"));
        of_later.is_none_or(|wanted| names.any(|name| name == wanted))
    });
    let mut names = BTreeSet::new();
    for file in tasks() {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(file) else {
            continue;
        };
        let line = |name| line_of(&status, name).unwrap();
        names.insert(line("Name"));
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(line(set), expected, "{daemon:?} {set} {names:?}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(line(set), format!("{:016x}", 0), "{daemon:?} {set}");
        }
        assert_eq!(line("NoNewPrivs"), "1", "{daemon:?}");
        assert_eq!(
            [line("Seccomp"), line("Seccomp_filters")],
            ["2", "2"],
            "{daemon:?}"
        );
    }
    drop(recording);
}

#[test]
fn a_flag_keeps_all_rights() {
    let programs = Programs::ours();
    for daemon in DAEMONS {
        let (_system, pid) = started(&programs, daemon, &["--no-sandbox"]);
        let line = |name| status_of(format!("/proc/{pid}/status"), name);
        let own = |name| status_of("/proc/self/status", name);
        for name in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
            assert_eq!(line(name), own(name), "{daemon:?} {name}");
        }
    }
}
