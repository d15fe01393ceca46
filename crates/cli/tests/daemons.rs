//! `traced` and `traced_probes` as programs: flags, environment, sockets, signals, logs, and how scripts and systemd learn that they are
//! ready. Where upstream's have it too, both are asked for the same.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use support::{PATIENCE, Program, Programs, Running, Side, System};

const SIDES: [Side; 2] = [Side::Upstream, Side::Ours];
const DAEMONS: [Program; 2] = [Program::Traced, Program::TracedProbes];

/// What a process that has ended said.
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

/// A process that is not our child, and ends with this.
struct Background {
    pid: i32,
    process: OwnedFd,
}

impl Background {
    /// The one with the process id that `--background` has printed.
    fn of(ended: &Ended) -> Background {
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        let pid: i32 = ended.stdout.strip_suffix('\n').unwrap().parse().unwrap();
        let process = rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        Background { pid, process }
    }

    fn signal(&self, signal: Signal) {
        // Fails only when the process has ended already.
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

fn is_readable(fd: &impl AsFd) -> bool {
    let patience = PATIENCE.try_into().unwrap();
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&patience))).unwrap() > 0
}

/// A pipe that nobody reads, not even for a moment what another test is about to start.
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

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
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
fn sockets_have_the_permissions_that_were_asked_for() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let group = rustix::process::getegid().as_raw();
    let good: [(&[&str], [u32; 2]); 4] = [
        (
            &["--set-socket-permissions", "GROUP:0640:-1:0666"],
            [0o640, 0o666],
        ),
        (&["--set-s=GROUP:0600:GROUP:0660"], [0o600, 0o660]),
        (
            &["--set-s", "-1:0777:-1:0777", "--set-s", "-1:0640:-1:0600"],
            [0o640, 0o600],
        ),
        (&["--set-s", ":GROUP::0640:-1:0666:"], [0o640, 0o666]),
    ];
    for side in SIDES {
        for (words, modes) in good {
            let mut system = System::new(&programs);
            system.start_with(side, Program::Traced, |command| {
                command.args(words.iter().map(|word| word.replace("GROUP", &group.to_string())));
            });
            assert_eq!(
                sockets(&system).map(|socket| mode(&socket)),
                modes,
                "{side} {words:?}"
            );
            let groups = sockets(&system).map(|socket| std::fs::metadata(socket).unwrap().gid());
            assert_eq!(groups, [group; 2], "{side} {words:?}");
        }
    }
}

#[test]
fn permissions_that_cannot_be_are_explained() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let cases = [
        ("", "there are 0 parts where four are expected"),
        ("root:0660", "there are 2 parts where four are expected"),
        ("root::root:0660", "there are 3 parts where four are expected"),
        ("-1:0660:-1:0660:x", "there are 5 parts where four are expected"),
        ("-1:660:-1:0660", "\"660\" is no mode: write four octal digits"),
        ("-1:0680:-1:0660", "\"0680\" is no mode"),
        (
            "no_such_group:0660:-1:0660",
            "there is no group \"no_such_group\"",
        ),
        (
            "-1:0660:no_such_group:0660",
            "there is no group \"no_such_group\"",
        ),
    ];
    for side in SIDES {
        for (permissions, message) in cases {
            let system = System::new(&programs);
            let words = ["--set-socket-permissions", permissions];
            let ended = run(&system, daemon(&system, side, Program::Traced, &words));
            // Upstream crashes for some of these.
            assert!(!ended.status.success(), "{side} {permissions:?}: {ended:?}");
            if side == Side::Ours {
                assert_eq!(ended.code(), Some(1), "{permissions:?}: {ended:?}");
                assert!(ended.stderr.contains(message), "{permissions:?}: {ended:?}");
                assert!(
                    sockets(&system).iter().all(|socket| !socket.exists()),
                    "{permissions:?}"
                );
            }
        }
        let system = System::new(&programs);
        let mut abstract_socket = daemon(
            &system,
            side,
            Program::Traced,
            &["--set-socket-permissions", "-1:0660:-1:0660"],
        );
        abstract_socket.env(
            "PERFETTO_PRODUCER_SOCK_NAME",
            format!("@{}", system.producer_socket().display()),
        );
        let ended = run(&system, abstract_socket);
        assert_eq!(ended.code(), Some(1), "{side}: {ended:?}");
    }
}

#[test]
fn the_umask_decides_about_sockets_otherwise() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for umask in ["077", "022", "000"] {
        let modes = SIDES.map(|side| {
            let mut system = System::new(&programs);
            let program = system.program(side, Program::Traced);
            system.start_copy(Path::new("sh"), Program::Traced, |command| {
                command
                    .arg("-c")
                    .arg(format!("umask {umask} && exec {}", program.display()));
            });
            sockets(&system).map(|socket| mode(&socket))
        });
        assert_eq!(modes[0], modes[1], "umask {umask}");
    }
}

#[test]
fn socket_names_that_cannot_be_end_the_daemon() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let cases: [(&str, &str, &str); 6] = [
        ("PERFETTO_PRODUCER_SOCK_NAME", "", "PERFETTO_PRODUCER_SOCK_NAME"),
        ("PERFETTO_CONSUMER_SOCK_NAME", "", "PERFETTO_CONSUMER_SOCK_NAME"),
        (
            "PERFETTO_CONSUMER_SOCK_NAME",
            "DIR/none/socket",
            "its directory does not exist",
        ),
        (
            "PERFETTO_PRODUCER_SOCK_NAME",
            "DIR/none/socket",
            "its directory does not exist",
        ),
        (
            "PERFETTO_PRODUCER_SOCK_NAME",
            "DIR/a,DIR/a",
            "two sockets would have the name",
        ),
        (
            "PERFETTO_PRODUCER_SOCK_NAME",
            "DIR/full",
            "not a socket is in the way",
        ),
    ];
    for side in SIDES {
        for (variable, value, message) in cases {
            let system = System::new(&programs);
            std::fs::create_dir_all(system.path("full/folder")).unwrap();
            let value = value.replace("DIR", system.path("").to_str().unwrap().trim_end_matches('/'));
            let mut command = daemon(&system, side, Program::Traced, &[]);
            command.env(variable, &value);
            let ended = run(&system, command);
            assert_eq!(ended.code(), Some(1), "{side} {variable}={value}: {ended:?}");
            if side == Side::Ours {
                assert!(ended.stderr.contains(message), "{variable}={value}: {ended:?}");
                assert!(
                    sockets(&system).iter().all(|socket| !socket.exists()),
                    "{variable}={value}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    std::fs::write(system.consumer_socket(), "of value").unwrap();
    let ended = run(&system, daemon(&system, Side::Ours, Program::Traced, &[]));
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("a file that is not a socket is in the way"),
        "{ended:?}"
    );
    assert_eq!(std::fs::read(system.consumer_socket()).unwrap(), b"of value");
    assert!(
        !system.producer_socket().exists(),
        "what was bound before is removed again"
    );
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

#[test]
fn a_service_is_not_pushed_aside_by_another() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        let mut system = System::new(&programs);
        let pid = system.start(side, Program::Traced);
        let second = run(&system, daemon(&system, Side::Ours, Program::Traced, &[]));
        assert_eq!(second.code(), Some(1), "{side}: {second:?}");
        let message = format!("another service, process {pid}, listens there");
        assert!(second.stderr.contains(&message), "{side}: {second:?}");
        assert!(!has_probes(&system.state()), "{side}: the first still answers");
        system.assert_running();
    }
}

#[test]
fn sockets_of_the_dead_are_replaced() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for (dead, next) in SIDES.into_iter().flat_map(|dead| SIDES.map(|next| (dead, next))) {
        let mut system = System::new(&programs);
        let pid = system.start(dead, Program::Traced);
        rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        system.end(pid);
        assert!(system.consumer_socket().exists(), "{dead}");
        system.start(next, Program::Traced);
        system.state();
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
                    // It does not look at signals.
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
            // Whoever answers after a signal has outlived it.
            system.state();
            system.assert_running();
        }
    }
}

#[test]
fn nobody_needs_to_listen_to_what_a_daemon_says() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.stderr(unread_pipe());
    });
    system.state();
    system.assert_running();
}

#[test]
fn readiness_can_be_waited_for_in_a_pipeline() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in SIDES {
        let system = System::new(&programs);
        let mut command = daemon(&system, side, Program::Traced, &[]);
        command.env("TRACED_NOTIFY_FD", "1").stdout(Stdio::piped());
        let mut traced = Running(command.spawn().unwrap());
        let mut said = String::new();
        // It ends though the daemon goes on.
        traced.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "1", "{side}");
        for socket in sockets(&system) {
            UnixStream::connect(socket).unwrap();
        }
        assert!(traced.0.try_wait().unwrap().is_none(), "{side}");
    }
}

#[test]
fn a_descriptor_that_is_none_ends_the_daemon() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for (program, variable) in [
        (Program::Traced, "TRACED_NOTIFY_FD"),
        (Program::TracedProbes, "TRACED_PROBES_NOTIFY_FD"),
    ] {
        for value in ["777", "x", ""] {
            let mut system = System::new(&programs);
            system.start(Side::Ours, Program::Traced);
            let mut command = daemon(&system, Side::Ours, program, &[]);
            command.env(variable, value);
            let ended = run(&system, command);
            assert_eq!(ended.code(), Some(1), "{variable}={value}: {ended:?}");
            assert!(
                ended.stderr.contains(&format!("{variable}={value} ")),
                "{ended:?}"
            );
        }
    }
    // Upstream's crashes.
    let system = System::new(&programs);
    let mut command = daemon(&system, Side::Upstream, Program::Traced, &[]);
    command.env("TRACED_NOTIFY_FD", "777");
    assert!(!run(&system, command).status.success());
}

/// What systemd would read.
fn next_datagram(socket: &UnixDatagram) -> String {
    assert!(is_readable(socket), "no word for systemd");
    let mut text = vec![0; 4096];
    let length = socket.recv(&mut text).unwrap();
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

#[test]
fn systemd_is_told_that_the_service_listens() {
    let programs = Programs::ours();
    for kind in ["path", "abstract"] {
        let mut system = System::new(&programs);
        let path = system.path("notify");
        let (name, address) = match kind {
            "path" => (
                path.display().to_string(),
                SocketAddr::from_pathname(&path).unwrap(),
            ),
            _ => (
                format!("@{}", path.display()),
                SocketAddr::from_abstract_name(path.to_str().unwrap()).unwrap(),
            ),
        };
        let notify = UnixDatagram::bind_addr(&address).unwrap();
        system.start_with(Side::Ours, Program::Traced, |command| {
            command.env("NOTIFY_SOCKET", name);
        });
        let said = next_datagram(&notify);
        assert!(
            said.starts_with("READY=1\nSTATUS=listening on "),
            "{kind}: {said}"
        );
        UnixStream::connect(system.consumer_socket()).unwrap();
    }
}

#[test]
fn systemd_is_told_that_the_data_sources_are_known_once() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let notify = UnixDatagram::bind(system.path("notify")).unwrap();
    let mut command = daemon(&system, Side::Ours, Program::TracedProbes, &[]);
    command.env("NOTIFY_SOCKET", system.path("notify"));
    let mut probes = Running(command.spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    while !system.log("daemon.log").contains("waiting for the service") {
        assert!(Instant::now() < until, "it does not wait");
        std::thread::yield_now();
    }
    notify.set_nonblocking(true).unwrap();
    let nothing = notify.recv(&mut [0]).unwrap_err();
    assert_eq!(
        nothing.kind(),
        ErrorKind::WouldBlock,
        "it is not ready without a service"
    );

    let traced = system.start(Side::Ours, Program::Traced);
    assert!(next_datagram(&notify).starts_with("READY=1\n"));
    assert!(has_probes(&system.state()));

    // A second service gets the data sources, and nobody is told again.
    system.end(traced);
    system.start(Side::Ours, Program::Traced);
    system.await_state(has_probes);
    let nothing = notify.recv(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    assert!(probes.0.try_wait().unwrap().is_none());
}

#[test]
fn probes_that_had_somebody_to_tell_outlive_their_service() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let traced = system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::TracedProbes);
    system.end(traced);
    system.start(Side::Ours, Program::Traced);
    system.await_state(has_probes);
    system.assert_running();
}

/// A service that gets its two sockets from us, under the descriptors 5 and 6 or as systemd hands them over, and the names of the files.
fn handed_over(system: &System<'_>, side: Side, environment: &str) -> (Command, [PathBuf; 2]) {
    let files = [system.path("handed-producer"), system.path("handed-consumer")];
    let [producer, consumer] = files.each_ref().map(|file| {
        let _ = std::fs::remove_file(file);
        OwnedFd::from(UnixListener::bind(file).unwrap())
    });
    let mut command = system.command(Path::new("sh"), "traced.log");
    command.stdin(producer).stdout(consumer).arg("-c").arg(format!(
        "exec 3<&0 4<&1 5<&0 6<&1 </dev/null >/dev/null; {environment} exec {}",
        system.program(side, Program::Traced).display()
    ));
    (command, files)
}

#[test]
fn sockets_that_were_handed_over_are_served_and_left() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    const SYSTEMD: &str = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=producer:consumer";
    const INIT: &str = "ANDROID_SOCKET_traced_producer=5 ANDROID_SOCKET_traced_consumer=6";
    for (side, environment) in [(Side::Ours, SYSTEMD), (Side::Ours, INIT), (Side::Upstream, INIT)] {
        let system = System::new(&programs);
        let (mut command, files) = handed_over(&system, side, environment);
        let mut traced = Running(command.spawn().unwrap());
        let mut query = system.command(&system.program(Side::Ours, Program::Perfetto), "query.log");
        query.arg("--query").env("PERFETTO_CONSUMER_SOCK_NAME", &files[1]);
        let ended = run(&system, query);
        assert_eq!(
            ended.code(),
            Some(0),
            "{side} {environment}: {ended:?}\n{}",
            system.log("traced.log")
        );
        let mut probes = daemon(&system, Side::Ours, Program::TracedProbes, &[]);
        probes
            .env("PERFETTO_PRODUCER_SOCK_NAME", &files[0])
            .env("TRACED_PROBES_NOTIFY_FD", "1");
        let mut probes = Running(probes.stdout(Stdio::piped()).spawn().unwrap());
        probes.0.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        assert!(
            sockets(&system).iter().all(|socket| !socket.exists()),
            "{side}: no others are made"
        );
        traced.signal(Signal::TERM);
        assert!(traced.wait(PATIENCE).is_some());
        assert!(
            files.iter().all(|file| file.exists()),
            "{side}: they are not its own"
        );
    }
}

#[test]
fn what_is_not_handed_over_is_bound() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let environment = "TRACED_NOTIFY_FD=2 LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=producer";
    let (mut command, files) = handed_over(&system, Side::Ours, environment);
    let mut traced = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    traced
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut String::new())
        .unwrap();
    UnixStream::connect(&files[0]).unwrap();
    UnixStream::connect(system.consumer_socket()).unwrap();
    assert!(!system.producer_socket().exists());
}

#[test]
fn sockets_that_cannot_be_told_apart_are_refused() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::new(&programs);
    let cases = [
        ("LISTEN_PID=$$ LISTEN_FDS=2", "FileDescriptorName=producer"),
        (
            "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=producer:x",
            "is called \"x\"",
        ),
        (
            "LISTEN_PID=$$ LISTEN_FDS=two LISTEN_FDNAMES=producer:consumer",
            "LISTEN_FDS=two",
        ),
        (
            "ANDROID_SOCKET_traced_producer=5",
            "ANDROID_SOCKET_traced_consumer is not",
        ),
        (
            "ANDROID_SOCKET_traced_producer=5 ANDROID_SOCKET_traced_consumer=777",
            "777",
        ),
    ];
    for (environment, message) in cases {
        let (mut command, _) = handed_over(&system, Side::Ours, environment);
        let status = Running(command.spawn().unwrap()).wait(PATIENCE);
        assert_eq!(status.and_then(|status| status.code()), Some(1), "{environment}");
        let said = system.log("traced.log");
        assert!(said.contains(message), "{environment}: {said}");
    }
}

#[test]
fn each_line_of_a_log_has_a_time_and_a_level() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.arg("word");
    });
    let second = run(&system, daemon(&system, Side::Ours, Program::Traced, &[]));
    let log = system.log("traced.log");
    let levels = |text: &str| -> Vec<char> {
        let level = |line: &str| {
            let (time, rest) = line
                .strip_prefix('[')
                .and_then(|line| line.split_once("] "))
                .unwrap();
            let (seconds, milliseconds) = time.split_once('.').unwrap();
            assert!(seconds.len() >= 5 && milliseconds.len() == 3, "{line}");
            assert!(
                time.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()),
                "{line}"
            );
            assert_eq!(rest.as_bytes()[1], b' ', "{line}");
            rest.chars().next().unwrap()
        };
        text.lines().map(level).collect()
    };
    assert_eq!(levels(&log), ['W', 'I'], "{log}");
    assert_eq!(levels(&second.stderr), ['E'], "{second:?}");
    assert!(
        second.stderr.contains("] E traced: cannot listen on"),
        "{second:?}"
    );
}

#[test]
fn a_quiet_daemon_says_what_somebody_has_to_know() {
    let programs = Programs::ours();
    let cases: [(&[&str], Option<&str>, &[&str]); 6] = [
        (&[], None, &["W", "I"]),
        (&["--quiet"], None, &["W"]),
        (&["--q"], Some("info"), &["W"]),
        (&[], Some("warning"), &["W"]),
        (&[], Some("error"), &[]),
        (&[], Some("loud"), &["W", "W", "I"]),
    ];
    for (words, variable, expected) in cases {
        let mut system = System::new(&programs);
        system.start_with(Side::Ours, Program::Traced, |command| {
            command.arg("word").args(words);
            if let Some(level) = variable {
                command.env("FERRETTO_LOG", level);
            }
        });
        let log = system.log("traced.log");
        let levels: Vec<&str> = log.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(levels, expected, "{words:?} {variable:?}: {log}");
    }
}

#[test]
fn the_journal_gets_levels_and_no_times() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let log = File::create(system.path("journal")).unwrap();
    let identity = log.metadata().unwrap();
    system.start_with(Side::Ours, Program::Traced, |command| {
        command
            .arg("word")
            .env("JOURNAL_STREAM", format!("{}:{}", identity.dev(), identity.ino()))
            .stderr(log);
    });
    let said = system.log("journal");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("<4>traced: "), "{said}");
    assert!(lines[1].starts_with("<6>traced is listening on "), "{said}");
}

#[test]
fn without_the_right_to_a_socket_the_daemon_says_so() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: running a daemon as another user needs root");
    }
    const NOBODY: u32 = 65534;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let copy = system.copy_of(Side::Ours, Program::Traced);
    let as_nobody = |system: &System<'_>| {
        let mut command = system.command(&copy, "nobody.log");
        command.uid(NOBODY).gid(NOBODY);
        run(system, command)
    };
    std::fs::set_permissions(system.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = as_nobody(&system);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("you may not create it there"), "{ended:?}");

    system.start_with(Side::Ours, Program::Traced, |command| {
        command.args(["--set-socket-permissions", "-1:0600:-1:0600"]);
    });
    let ended = as_nobody(&system);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("whether somebody listens on it cannot be told"),
        "{ended:?}"
    );
    assert!(
        std::fs::metadata(system.producer_socket())
            .unwrap()
            .file_type()
            .is_socket()
    );
}

#[test]
fn resetting_ftrace_without_ftrace_ends_nobody_but_who_came_for_that() {
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

#[test]
fn systemd_accepts_the_units() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let mut verify = Command::new("systemd-analyze");
    verify
        .arg("verify")
        .arg("--man=no")
        .env("SYSTEMD_UNIT_PATH", format!("{}:", system.path("").display()));
    let mut count = 0;
    for unit in std::fs::read_dir(units).unwrap() {
        let unit = unit.unwrap().path();
        if !matches!(
            unit.extension().and_then(|kind| kind.to_str()),
            Some("service" | "socket")
        ) {
            continue;
        }
        let text = std::fs::read_to_string(&unit).unwrap();
        let text = text
            .replace("/usr/bin/traced_probes", env!("CARGO_BIN_EXE_traced_probes"))
            .replace("/usr/bin/traced\n", concat!(env!("CARGO_BIN_EXE_traced"), "\n"));
        assert!(!text.contains("/usr/bin"), "{}", unit.display());
        let copy = system.path(unit.file_name().unwrap().to_str().unwrap());
        std::fs::write(&copy, text).unwrap();
        verify.arg(copy);
        count += 1;
    }
    assert_eq!(count, 4);
    match verify.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: systemd-analyze is not installed")
        }
        output => {
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            // Of what else is installed here it complains as well.
            let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("traced")).collect();
            assert!(about_ours.is_empty(), "{said}");
        }
    }
}
