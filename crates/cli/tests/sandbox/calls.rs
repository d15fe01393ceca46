//! System calls that a daemon never makes.

use libc::{ENOSYS, SIGSYS};

use super::{DAEMONS, can_inject, start, started};
use crate::support::injection::Argument::{self, Number, Text};
use crate::support::injection::{Outcome, inject};
use crate::support::{Program, Programs, Side, System};

/// Numbers of calls whose names the C library may lack.
const FCHMODAT2: i64 = 452;
const MSEAL: i64 = 462;

/// The calls that no daemon makes. There is one of each family that an attacker in a daemon could use.
fn calls_of_others() -> Vec<(&'static str, i64, Vec<Argument>)> {
    let shell = || vec![Text("/bin/true"), Number(0), Number(0)];
    let path = || vec![Text("/tmp"), Text("/tmp"), Number(0), Number(0), Number(0)];
    vec![
        ("execve", libc::SYS_execve, shell()),
        (
            "execveat",
            libc::SYS_execveat,
            vec![Number(libc::AT_FDCWD.into()), Text("/bin/true")],
        ),
        ("fork", libc::SYS_fork, vec![]),
        ("vfork", libc::SYS_vfork, vec![]),
        (
            "clone of a process",
            libc::SYS_clone,
            vec![Number(libc::SIGCHLD.into())],
        ),
        ("ptrace", libc::SYS_ptrace, vec![Number(0)]),
        ("process_vm_readv", libc::SYS_process_vm_readv, vec![Number(1)]),
        ("process_vm_writev", libc::SYS_process_vm_writev, vec![Number(1)]),
        ("kill", libc::SYS_kill, vec![Number(1), Number(0)]),
        (
            "tgkill of another",
            libc::SYS_tgkill,
            vec![Number(1), Number(1), Number(0)],
        ),
        (
            "pidfd_getfd",
            libc::SYS_pidfd_getfd,
            vec![Number(0), Number(0), Number(0)],
        ),
        (
            "socket of TCP",
            libc::SYS_socket,
            vec![Number(libc::AF_INET.into()), Number(1), Number(0)],
        ),
        (
            "socket of packets",
            libc::SYS_socket,
            vec![Number(libc::AF_PACKET.into()), Number(3), Number(0)],
        ),
        (
            "socket of netlink",
            libc::SYS_socket,
            vec![Number(libc::AF_NETLINK.into()), Number(3), Number(0)],
        ),
        ("umount2", libc::SYS_umount2, path()),
        ("pivot_root", libc::SYS_pivot_root, path()),
        ("chroot", libc::SYS_chroot, path()),
        (
            "open_tree",
            libc::SYS_open_tree,
            vec![Number(libc::AT_FDCWD.into()), Text("/")],
        ),
        (
            "unshare",
            libc::SYS_unshare,
            vec![Number(libc::CLONE_NEWUSER.into())],
        ),
        ("setns", libc::SYS_setns, vec![Number(0), Number(0)]),
        ("setuid", libc::SYS_setuid, vec![Number(0)]),
        (
            "setresuid",
            libc::SYS_setresuid,
            vec![Number(0), Number(0), Number(0)],
        ),
        ("setgroups", libc::SYS_setgroups, vec![Number(0), Number(0)]),
        ("capset", libc::SYS_capset, vec![Number(0), Number(0)]),
        ("bpf", libc::SYS_bpf, vec![Number(0), Number(0), Number(0)]),
        (
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            vec![Number(1), Number(0)],
        ),
        ("userfaultfd", libc::SYS_userfaultfd, vec![Number(0)]),
        ("keyctl", libc::SYS_keyctl, vec![Number(0), Number(0)]),
        (
            "add_key",
            libc::SYS_add_key,
            vec![Text("user"), Text("x"), Text("x"), Number(1), Number(-3)],
        ),
        (
            "kexec_load",
            libc::SYS_kexec_load,
            vec![Number(0), Number(0), Number(0), Number(0)],
        ),
        (
            "init_module",
            libc::SYS_init_module,
            vec![Number(0), Number(0), Text("")],
        ),
        (
            "finit_module",
            libc::SYS_finit_module,
            vec![Number(-1), Text(""), Number(0)],
        ),
        ("reboot", libc::SYS_reboot, vec![Number(0), Number(0), Number(0)]),
        ("swapon", libc::SYS_swapon, vec![Text("/nowhere"), Number(0)]),
        ("settimeofday", libc::SYS_settimeofday, vec![Number(0), Number(0)]),
        (
            "clock_settime",
            libc::SYS_clock_settime,
            vec![Number(-1), Number(0)],
        ),
        ("sethostname", libc::SYS_sethostname, vec![Text("x"), Number(-1)]),
        ("syslog", libc::SYS_syslog, vec![Number(-1), Number(0), Number(0)]),
        ("iopl", libc::SYS_iopl, vec![Number(0)]),
        ("personality", libc::SYS_personality, vec![Number(0xffff_ffff)]),
        (
            "mknodat",
            libc::SYS_mknodat,
            vec![
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/x"),
                Number(0),
                Number(0),
            ],
        ),
        (
            "linkat",
            libc::SYS_linkat,
            vec![
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/x"),
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/y"),
            ],
        ),
        (
            "symlinkat",
            libc::SYS_symlinkat,
            vec![Text("/"), Number(libc::AT_FDCWD.into()), Text("/nowhere/y")],
        ),
        (
            "renameat2",
            libc::SYS_renameat2,
            vec![
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/x"),
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/y"),
            ],
        ),
        (
            "fchownat",
            libc::SYS_fchownat,
            vec![
                Number(libc::AT_FDCWD.into()),
                Text("/nowhere/x"),
                Number(0),
                Number(0),
                Number(0),
            ],
        ),
        (
            "fchmodat",
            libc::SYS_fchmodat,
            vec![Number(libc::AT_FDCWD.into()), Text("/nowhere/x"), Number(0)],
        ),
        (
            "setxattr",
            libc::SYS_setxattr,
            vec![
                Text("/nowhere/x"),
                Text("user.x"),
                Text("x"),
                Number(1),
                Number(0),
            ],
        ),
        (
            "open_by_handle_at",
            libc::SYS_open_by_handle_at,
            vec![Number(-1), Number(0), Number(0)],
        ),
        (
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            vec![Number(-1), Number(0), Number(0)],
        ),
        (
            "ioctl that types into a terminal",
            libc::SYS_ioctl,
            vec![Number(-1), Number(libc::TIOCSTI as i64), Text("x")],
        ),
        (
            "prctl of a filter",
            libc::SYS_prctl,
            vec![Number(libc::PR_SET_SECCOMP.into()), Number(0)],
        ),
        (
            "seccomp",
            libc::SYS_seccomp,
            vec![Number(1), Number(0), Number(0)],
        ),
        (
            "prlimit64 of another",
            libc::SYS_prlimit64,
            vec![Number(1), Number(0), Number(0), Number(0)],
        ),
        // An interface of x86-64 with numbers of its own.
        ("getpid of x32", 0x4000_0000 | libc::SYS_getpid, vec![]),
    ]
}

/// The calls that other daemons make, but not this one.
fn calls_of_other_daemons(daemon: Program) -> Vec<(&'static str, i64, Vec<Argument>)> {
    let mut calls = Vec::new();
    let is = |programs: &[Program]| programs.contains(&daemon);
    if !is(&[Program::TracedPerf]) {
        calls.push(("perf_event_open", libc::SYS_perf_event_open, vec![Number(0)]));
    }
    if !is(&[Program::Heapprofd]) {
        calls.push((
            "pidfd_send_signal",
            libc::SYS_pidfd_send_signal,
            vec![Number(-1), Number(libc::SIGURG.into())],
        ));
    } else {
        // The daemon may send no other signal.
        calls.push((
            "pidfd_send_signal",
            libc::SYS_pidfd_send_signal,
            vec![Number(-1), Number(libc::SIGKILL.into())],
        ));
    }
    if !is(&[Program::TracedProbes]) {
        calls.push((
            "fanotify_init",
            libc::SYS_fanotify_init,
            vec![Number(0), Number(0)],
        ));
        calls.push(("mkdir", libc::SYS_mkdir, vec![Text("/nowhere/x"), Number(0)]));
        let code = (libc::PROT_READ | libc::PROT_EXEC).into();
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into();
        calls.push((
            "mmap of code",
            libc::SYS_mmap,
            vec![Number(0), Number(4096), Number(code), Number(private), Number(-1)],
        ));
        calls.push((
            "mprotect to code",
            libc::SYS_mprotect,
            vec![Number(0), Number(4096), Number(code)],
        ));
    }
    if is(&[Program::Traced]) {
        calls.push((
            "socket of files",
            libc::SYS_socket,
            vec![Number(libc::AF_UNIX.into()), Number(1), Number(0)],
        ));
        calls.push((
            "connect",
            libc::SYS_connect,
            vec![Number(-1), Text("x"), Number(2)],
        ));
        calls.push((
            "sendto an address",
            libc::SYS_sendto,
            vec![Number(-1), Text("x"), Number(1), Number(0), Text("x"), Number(2)],
        ));
    }
    // Only daemons that `ferretto` starts for itself may mount.
    calls.push((
        "mount",
        libc::SYS_mount,
        vec![Text("x"), Text("/tmp"), Text("tmpfs"), Number(0), Number(0)],
    ));
    calls
}

/// Asserts that each forbidden call kills the daemon.
fn assert_killed_by_each(daemon: Program) {
    if !can_inject() {
        return;
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    if daemon != Program::Traced {
        system.start(Side::Ours, Program::Traced);
    }
    let mut survived = Vec::new();
    for (name, number, arguments) in calls_of_others()
        .into_iter()
        .chain(calls_of_other_daemons(daemon))
    {
        let pid = start(&mut system, daemon, &[]);
        let outcome = inject(pid, number, &arguments);
        if outcome != Outcome::Killed(SIGSYS) {
            survived.push((name, outcome));
        }
        system.end(pid);
    }
    assert_eq!(survived, []);
}

#[test]
fn a_call_that_traced_never_makes_ends_it() {
    assert_killed_by_each(Program::Traced);
}

#[test]
fn a_call_that_traced_probes_never_makes_ends_it() {
    assert_killed_by_each(Program::TracedProbes);
}

#[test]
fn a_call_that_traced_perf_never_makes_ends_it() {
    assert_killed_by_each(Program::TracedPerf);
}

#[test]
fn a_call_that_heapprofd_never_makes_ends_it() {
    assert_killed_by_each(Program::Heapprofd);
}

#[test]
fn a_call_that_traced_relay_never_makes_ends_it() {
    assert_killed_by_each(Program::TracedRelay);
}

#[test]
fn calls_that_libraries_try_and_calls_to_come_fail_as_on_an_older_kernel() {
    if !can_inject() {
        return;
    }
    let programs = Programs::ours();
    for daemon in DAEMONS {
        let (mut system, pid) = started(&programs, daemon, &[]);
        for number in [
            libc::SYS_clone3,
            libc::SYS_futex_waitv,
            libc::SYS_mbind,
            FCHMODAT2,
            MSEAL,
            500,
        ] {
            let outcome = inject(pid, number, &[]);
            assert_eq!(
                outcome,
                Outcome::Returned((-ENOSYS).into()),
                "{daemon:?} {number}"
            );
        }
        let outcome = inject(pid, libc::SYS_getpid, &[]);
        assert_eq!(outcome, Outcome::Returned(pid.into()), "{daemon:?}");
        // The daemon goes on.
        system.assert_running();
        system.state();
    }
}
