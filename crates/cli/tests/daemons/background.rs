//! `--background`: the sockets that are ready, and the output, when the command returns.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::daemons::{Ended, SIDES, daemon, has_probes, is_readable, run, sockets};
use crate::support::address::free_address;
use crate::support::{Program, Programs, Side, System};

/// A process that is not our child. Dropping this ends it.
struct Background {
    pid: i32,
    process: OwnedFd,
}

impl Background {
    /// Finds the process whose id `--background` has printed.
    fn of(ended: &Ended) -> Background {
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        let pid: i32 = ended.stdout.strip_suffix('\n').unwrap().parse().unwrap();
        let process = rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        Background { pid, process }
    }

    fn signal(&self, signal: Signal) {
        // It fails only if the process has already ended.
        let _ = rustix::process::pidfd_send_signal(&self.process, signal);
    }

    fn await_end(&self) -> bool {
        is_readable(&self.process)
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.await_end();
    }
}

#[test]
fn in_the_background_the_sockets_listen_when_the_command_returns() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        let system = System::new(&programs);
        let ended = run(&system, daemon(&system, side, Program::Traced, &["--back"]));
        let traced = Background::of(&ended);
        assert_eq!(ended.stderr, "", "{side}");
        if side == Side::Ours {
            for socket in sockets(&system) {
                UnixStream::connect(socket).unwrap();
            }
        }
        for fd in ["fd/0", "fd/1", "fd/2"] {
            let leads_to = std::fs::read_link(traced.proc(fd)).unwrap();
            assert_eq!(leads_to, Path::new("/dev/null"), "{side} {fd}");
        }
        assert_eq!(
            std::fs::read_link(traced.proc("cwd")).unwrap(),
            Path::new("/"),
            "{side}"
        );
        let session = rustix::process::getsid(Pid::from_raw(traced.pid)).unwrap();
        assert_eq!(
            session.as_raw_nonzero().get(),
            traced.pid,
            "{side}: a session of its own"
        );
        traced.signal(Signal::TERM);
        assert!(traced.await_end(), "{side}");
    }
}

#[test]
fn a_daemon_that_fails_in_the_background_says_why_where_it_was_started() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let ended = run(
        &system,
        daemon(&system, Side::Ours, Program::Traced, &["--background"]),
    );
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.contains("another service"), "{ended:?}");
}

#[test]
fn probes_in_the_background_need_no_service_yet() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        let mut system = System::new(&programs);
        let probes = Background::of(&run(
            &system,
            daemon(&system, side, Program::TracedProbes, &["--background"]),
        ));
        system.start(Side::Ours, Program::Traced);
        system.await_state(has_probes);
        probes.signal(Signal::TERM);
        assert!(probes.await_end(), "{side}");
    }
}

#[test]
fn a_relay_in_the_background_takes_producers_to_the_service() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let address = free_address();
    let sockets = format!("{},{address}", system.producer_socket().display());
    system.start_with(Side::Ours, Program::Traced, |command| {
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", sockets)
            .arg("--enable-relay-endpoint");
    });
    let socket = system.path("guest");
    let mut command = daemon(&system, Side::Ours, Program::TracedRelay, &["--background"]);
    command
        .env("PERFETTO_RELAY_SOCK_NAME", &address)
        .env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
    let relay = Background::of(&run(&system, command));
    assert_eq!(std::fs::read_link(relay.proc("cwd")).unwrap(), Path::new("/"));
    system.start_at(Side::Ours, Program::TracedProbes, &socket.display().to_string());
    system.await_state(has_probes);
    relay.signal(Signal::TERM);
    assert!(relay.await_end());
}

#[test]
fn relative_socket_names_hold_in_the_background() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let start = |program| {
        let mut command = daemon(&system, Side::Ours, program, &["--background"]);
        command
            .current_dir(system.path(""))
            .env("PERFETTO_PRODUCER_SOCK_NAME", "producer")
            .env("PERFETTO_CONSUMER_SOCK_NAME", "consumer");
        Background::of(&run(&system, command))
    };
    let traced = start(Program::Traced);
    let probes = start(Program::TracedProbes);
    system.await_state(has_probes);
    for daemon in [probes, traced] {
        daemon.signal(Signal::TERM);
        assert!(daemon.await_end());
    }
    assert!(sockets(&system).iter().all(|socket| !socket.exists()));
}
