//! `traced` and `traced_probes` as programs: flags, environment, sockets, signals, logs, and how scripts and systemd learn that they are ready. Where
//! upstream's daemons have the same feature, both are tested.

mod background;
mod logs;
mod readiness;
mod sockets;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};

const SIDES: [Side; 2] = [Side::Upstream, Side::Ours];
const DAEMONS: [Program; 2] = [Program::Traced, Program::TracedProbes];

/// The output of a process that has ended.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs a command that is expected to end by itself.
fn run(system: &System<'_>, mut command: Command) -> Ended {
    let (stdout, stderr) = (system.path("run.out"), system.path("run.err"));
    command
        .stdout(File::create(&stdout).unwrap())
        .stderr(File::create(&stderr).unwrap());
    let mut running = Running(command.spawn().unwrap());
    let status = running.wait(PATIENCE);
    let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    Ended {
        status: status.unwrap_or_else(|| panic!("{command:?} goes on: {stdout}{stderr}")),
        stdout,
        stderr,
    }
}

fn daemon(system: &System<'_>, side: Side, program: Program, words: &[&str]) -> Command {
    let mut command = system.command(&system.program(side, program), "daemon.log");
    command.args(words);
    command
}

fn is_readable(fd: &impl AsFd) -> bool {
    let patience = PATIENCE.try_into().unwrap();
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&patience))).unwrap() > 0
}

/// A pipe without a reader. Processes that other tests are starting may hold the reading end for a moment, so this waits for them.
fn unread_pipe() -> OwnedFd {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(read);
    let patience = PATIENCE.try_into().unwrap();
    let mut polled = [PollFd::new(&write, PollFlags::empty())];
    assert!(rustix::event::poll(&mut polled, Some(&patience)).unwrap() > 0);
    write
}

fn sockets(system: &System<'_>) -> [PathBuf; 2] {
    [system.producer_socket(), system.consumer_socket()]
}

fn has_probes(state: &ferretto_proto::messages::TracingServiceState) -> bool {
    !state.data_sources.is_empty()
}

#[test]
fn flags_are_read_as_upstream_reads_them() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::new(&programs);
    let version: [&[&str]; 5] = [
        &["--version"],
        &["--vers"],
        &["--version", "--no-such-flag"],
        &["word", "-", "--version"],
        &["--background", "--version"],
    ];
    let wrong: [&[&str]; 6] = [
        &["--no-such-flag"],
        &["--no-such-flag", "--version"],
        &["--background=yes"],
        &["-x"],
        &["-", "-x"],
        &["--version=1"],
    ];
    for side in SIDES {
        for program in DAEMONS {
            for words in version {
                let ended = run(&system, daemon(&system, side, program, words));
                assert_eq!(ended.code(), Some(0), "{side} {program:?} {words:?}: {ended:?}");
                assert!(
                    ended.stdout.starts_with("Perfetto v"),
                    "{side} {words:?}: {ended:?}"
                );
                assert_eq!(ended.stdout.lines().count(), 1, "{side} {words:?}: {ended:?}");
            }
            for words in wrong {
                let ended = run(&system, daemon(&system, side, program, words));
                assert_eq!(ended.code(), Some(1), "{side} {program:?} {words:?}: {ended:?}");
                assert_eq!(ended.stdout, "", "{side} {words:?}");
                assert!(ended.stderr.contains("Usage: "), "{side} {words:?}: {ended:?}");
                assert!(!ended.stderr.contains("tip:"), "{side} {words:?}: {ended:?}");
            }
        }
        let missing = run(
            &system,
            daemon(&system, side, Program::Traced, &["--set-socket-permissions"]),
        );
        assert_eq!(missing.code(), Some(1), "{side}: {missing:?}");
    }
}

#[test]
fn help_is_no_error() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for program in DAEMONS {
        let ended = run(&system, daemon(&system, Side::Ours, program, &["--help"]));
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        for word in [
            "--background",
            "--quiet",
            "PERFETTO_PRODUCER_SOCK_NAME",
            "FERRETTO_LOG",
            "NOTIFY_FD",
        ] {
            assert!(
                ended.stdout.contains(word),
                "{program:?} {word}: {}",
                ended.stdout
            );
        }
        assert!(!ended.stdout.contains("getopt"), "{}", ended.stdout);
    }
}

#[test]
fn a_version_that_nobody_reads_is_no_failure() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::new(&programs);
    for side in SIDES {
        for program in DAEMONS {
            let write = unread_pipe();
            let mut command = daemon(&system, side, program, &["--version"]);
            let status = command.stdout(write).status().unwrap();
            let expected = match side {
                Side::Ours => (Some(0), None),
                Side::Upstream => (None, Some(Signal::PIPE.as_raw())),
            };
            assert_eq!((status.code(), status.signal()), expected, "{side} {program:?}");
        }
    }
}

#[test]
fn words_that_are_no_flags_do_not_matter() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        for program in DAEMONS {
            let mut system = System::new(&programs);
            if program == Program::TracedProbes {
                system.start(side, Program::Traced);
            }
            system.start_with(side, program, |command| {
                command.args(["word", "-", "--", "--version"]);
            });
            system.assert_running();
        }
    }
}

#[test]
fn a_signal_ends_a_daemon_in_good_order() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            for program in DAEMONS {
                let mut system = System::new(&programs);
                let pid = match program {
                    Program::Traced => system.start(side, Program::Traced),
                    _ => {
                        system.start(Side::Ours, Program::Traced);
                        system.start(side, Program::TracedProbes)
                    }
                };
                let status = system.end_with(pid, signal).expect("it ends");
                let expected = match side {
                    Side::Ours => (Some(0), None),
                    // Upstream's daemon does not handle these signals.
                    Side::Upstream => (None, Some(signal.as_raw())),
                };
                assert_eq!(
                    (status.code(), status.signal()),
                    expected,
                    "{side} {program:?} {signal:?}"
                );
                if program == Program::Traced {
                    let left = sockets(&system).iter().filter(|socket| socket.exists()).count();
                    assert_eq!(left, if side == Side::Ours { 0 } else { 2 }, "{side} {signal:?}");
                }
            }
        }
    }
}

#[test]
fn signals_that_were_ignored_from_the_start_stay_ignored() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        for program in DAEMONS {
            let mut system = System::new(&programs);
            if program == Program::TracedProbes {
                system.start(Side::Ours, Program::Traced);
            }
            let file = system.program(side, program);
            let pid = system.start_copy(Path::new("sh"), program, |command| {
                command
                    .arg("-c")
                    .arg(format!("trap '' HUP INT; exec {}", file.display()));
            });
            let pid = Pid::from_raw(pid as i32).unwrap();
            for signal in [Signal::HUP, Signal::INT] {
                rustix::process::kill_process(pid, signal).unwrap();
            }
            // A daemon that answers after a signal has survived it.
            system.state();
            system.assert_running();
        }
    }
}

#[test]
fn without_ftrace_cleaning_up_fails_and_a_daemon_goes_on() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: running a daemon as another user needs root");
    }
    let Some(programs) = Programs::of_both() else {
        return;
    };
    const NOBODY: u32 = 65534;
    let mut system = System::new(&programs);
    std::fs::set_permissions(system.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.args(["--set-socket-permissions", "-1:0666:-1:0666"]);
    });
    let copy = system.copy_of(Side::Ours, Program::TracedProbes);
    let mut cleanup = system.command(&copy, "cleanup.log");
    cleanup.arg("--cleanup-after-crash").uid(NOBODY).gid(NOBODY);
    let ended = run(&system, cleanup);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    system.start_copy(&copy, Program::TracedProbes, |command| {
        command.arg("--reset-ftrace").uid(NOBODY).gid(NOBODY);
    });
    assert!(has_probes(&system.state()));
    let log = system.log("traced_probes.log");
    assert!(log.contains("E cannot reset ftrace"), "{log}");
}
