//! The sockets of `traced`: names, permissions, occupied addresses, and sockets that the parent passes.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::daemons::{SIDES, daemon, has_probes, run, sockets};
use crate::support::address::abandoned_socket;
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
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
            // Upstream crashes with some of these.
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
fn sockets_of_root_are_for_everybodys_data_and_for_recordings_of_the_group() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root's sockets have permissions by themselves");
    }
    const GROUP: u32 = 54321;
    const NOBODY: u32 = 65534;
    let programs = Programs::ours();
    for (groups, expected) in [
        (
            format!("root:x:0:\nferretto:x:{GROUP}:\n"),
            [(0, 0o666), (GROUP, 0o660), (0, 0o666)],
        ),
        ("root:x:0:\n".to_owned(), [(0, 0o755); 3]),
    ] {
        let mut system = System::new(&programs);
        std::fs::set_permissions(system.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        let file = system.path("group");
        std::fs::write(&file, groups).unwrap();
        for program in [Program::Traced, Program::Heapprofd] {
            let daemon = system.program(Side::Ours, program);
            // These groups are there for the daemon only.
            let script = format!(
                "umask 022; mount --bind {} /etc/group && exec {}",
                file.display(),
                daemon.display()
            );
            system.start_copy(Path::new("unshare"), program, |command| {
                command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
            });
        }
        let [producers, consumers] = sockets(&system);
        let found = [producers, consumers, system.heap_socket()].map(|socket| {
            let gid = std::fs::metadata(&socket).unwrap().gid();
            (gid, mode(&socket))
        });
        assert_eq!(found, expected);
        let perfetto = system.copy_of(Side::Ours, Program::Perfetto);
        for group in [GROUP, NOBODY] {
            let mut query = system.command(&perfetto, "query.log");
            query.arg("--query").uid(NOBODY).gid(group);
            let may_record = query.status().unwrap().success();
            let (_, mode) = expected[1];
            assert_eq!(
                may_record,
                mode == 0o660 && group == GROUP,
                "{}",
                system.log("query.log")
            );
        }
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
fn links_to_sockets_without_a_listener_are_replaced() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let elsewhere = [system.path("elsewhere"), system.path("nowhere")];
    abandoned_socket(&elsewhere[0]);
    let names = [system.consumer_socket(), system.producer_socket()];
    for (target, link) in elsewhere.iter().zip(&names) {
        std::os::unix::fs::symlink(target, link).unwrap();
    }
    system.start(Side::Ours, Program::Traced);
    system.state();
    assert!(names.iter().all(|name| !name.is_symlink()));
    assert!(elsewhere[0].exists());
}

/// A service that gets its two sockets from this process, under the descriptors 5 and 6 or in systemd's way; and the sockets' paths.
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
fn sockets_that_were_not_handed_over_are_bound() {
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
