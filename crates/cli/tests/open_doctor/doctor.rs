//! `ferretto doctor` on this machine, as root and as another user.

use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ferretto;
use crate::support::address::abandoned_socket;
use crate::support::{Program, Programs, Side, System, socket_folder};

/// The user who owns nothing, on every Linux.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can become another user");
    }
    root
}

/// Returns the exit code and the report.
fn examined(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// The doctor, with the sockets of the service in this folder.
fn doctor(folder: &Path) -> Command {
    doctor_of(Path::new(env!("CARGO_BIN_EXE_ferretto")), folder)
}

fn doctor_of(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("doctor")
        .env("PERFETTO_CONSUMER_SOCK_NAME", folder.join("consumer"))
        .env("PERFETTO_PRODUCER_SOCK_NAME", folder.join("producer"))
        .env_remove("TMPDIR")
        .current_dir("/tmp");
    command
}

/// Returns the mark of a topic's first line.
fn mark<'a>(report: &'a str, topic: &str) -> &'a str {
    report
        .lines()
        .find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let mark = words.next()?;
            (!line.starts_with(' ') && words.next()? == topic).then_some(mark)
        })
        .unwrap_or_else(|| panic!("nothing on {topic}:\n{report}"))
}

/// Returns the words of a report. Lines are broken at different places, depending on the lengths of names and process ids.
fn words(report: &str) -> String {
    report.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// A folder that everybody may use, with a copy of the program that everybody may run.
fn public_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = socket_folder("ferretto-test-");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("ferretto");
    crate::support::copy_program(Path::new(env!("CARGO_BIN_EXE_ferretto")), &program);
    (folder, program)
}

#[test]
fn a_service_and_its_probes_are_introduced() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let traced = system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    let (code, report) = examined(doctor(system.path("").as_path()));
    assert_eq!(code, 0, "{report}");
    let words = words(&report);
    let user = if rustix::process::geteuid().is_root() {
        " of root"
    } else {
        ""
    };
    let service = format!("traced (pid {traced}){user}");
    assert!(words.contains(&service), "{report}");
    assert!(words.contains("Perfetto v58.2 (Ferretto"), "{report}");
    assert!(
        words.contains("1 producer with ") && words.contains("linux.process_stats"),
        "{report}"
    );
    assert_eq!(mark(&report, "service"), "ok");
    assert_eq!(mark(&report, "sources"), "ok");
    assert!(
        words.ends_with("missing.") || words.ends_with("Recording works."),
        "{report}"
    );

    system.end(probes);
    system.await_state(|state| state.producers.is_empty());
    let (code, report) = examined(doctor(system.path("").as_path()));
    assert_eq!((code, mark(&report, "sources")), (0, "note"), "{report}");
    assert!(report.contains("traced_probes --background\n"), "{report}");
}

#[test]
fn upstreams_service_is_introduced_as_well() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::with_daemons(&programs, Side::Upstream, Side::Upstream);
    let (code, report) = examined(doctor(system.path("").as_path()));
    assert_eq!((code, mark(&report, "service")), (0, "ok"), "{report}");
    let words = words(&report);
    assert!(
        words.contains("Perfetto v") && words.contains("linux.ftrace"),
        "{report}"
    );
}

#[test]
fn without_a_service_recording_works_and_a_stale_socket_is_reported() {
    let folder = socket_folder("ferretto-test-");
    let (code, report) = examined(doctor(folder.path()));
    assert_eq!((code, mark(&report, "service")), (0, "note"), "{report}");
    assert!(report.contains("traced --background\n"), "{report}");
    assert!(!words(&report).contains("has ended"), "{report}");
    abandoned_socket(&folder.path().join("consumer"));
    let (code, report) = examined(doctor(folder.path()));
    assert_eq!((code, mark(&report, "service")), (0, "note"), "{report}");
    assert!(words(&report).contains("one that has ended"), "{report}");
}

#[test]
fn a_listener_that_is_no_service_is_a_problem() {
    let folder = socket_folder("ferretto-test-");
    let listener = UnixListener::bind(folder.path().join("consumer")).unwrap();
    let (code, report) = std::thread::scope(|threads| {
        // This listener accepts the connection and hangs up.
        threads.spawn(|| drop(listener.accept().unwrap()));
        examined(doctor(folder.path()))
    });
    assert_eq!((code, mark(&report, "service")), (1, "problem"), "{report}");
    let kill = format!("kill {}  # ", std::process::id());
    assert!(report.contains(&kill), "{report}");
    assert!(
        report.ends_with("Recording does not work until each problem is mended.\n"),
        "{report}"
    );
}

#[test]
fn a_name_that_is_no_address_is_a_problem() {
    let mut command = doctor(Path::new("/nowhere"));
    command.env("PERFETTO_CONSUMER_SOCK_NAME", "vsock://x");
    let (code, report) = examined(command);
    assert_eq!((code, mark(&report, "service")), (1, "problem"), "{report}");
    assert!(
        report.contains("mend:  unset PERFETTO_CONSUMER_SOCK_NAME\n"),
        "{report}"
    );
}

#[test]
fn a_user_without_tracefs_is_told_and_can_record_the_rest() {
    if !is_root() {
        return;
    }
    let (folder, program) = public_folder();
    let mut command = doctor_of(&program, folder.path());
    command.uid(NOBODY).gid(NOBODY);
    let (code, report) = examined(command);
    assert_eq!(code, 0, "{report}");
    assert!(words(&report).contains("without privileges"), "{report}");
    let tracefs = Path::new("/sys/kernel/tracing");
    let open = std::fs::metadata(tracefs).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0);
    // Without a tracefs, the user lacks it in any case.
    let usable = open && tracefs.join("tracing_on").exists();
    assert_eq!(mark(&report, "tracefs") != "note", usable, "{report}");
    if !usable {
        assert!(words(&report).contains("costs: no kernel events"), "{report}");
        assert!(report.contains("mend:  sudo "), "{report}");
    }
}

#[test]
fn capabilities_of_the_programs_file_give_access_to_tracefs() {
    const CAPABILITIES: &str = "cap_dac_read_search,cap_dac_override,cap_sys_admin+ep";
    if !is_root() {
        return;
    }
    if !Path::new("/sys/kernel/tracing/tracing_on").exists() {
        println!("skipped: tracefs is not mounted at /sys/kernel/tracing");
        return;
    }
    let (folder, program) = public_folder();
    let given = Command::new("setcap").arg(CAPABILITIES).arg(&program).status();
    if !given.is_ok_and(|status| status.success()) {
        println!("skipped: setcap is not there, or the file system keeps no capabilities");
        return;
    }
    let mut command = doctor_of(&program, folder.path());
    command.uid(NOBODY).gid(NOBODY);
    let (code, report) = examined(command);
    assert_eq!((code, mark(&report, "tracefs")), (0, "ok"), "{report}");
    assert!(report.contains("with CAP_SYS_ADMIN"), "{report}");
    assert!(report.contains("for this user to read and write"), "{report}");
}

#[test]
fn a_socket_that_this_user_may_not_use_is_a_problem() {
    if !is_root() {
        return;
    }
    let (folder, program) = public_folder();
    let socket = folder.path().join("consumer");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).unwrap();
    let mut command = doctor_of(&program, folder.path());
    command.uid(NOBODY).gid(NOBODY);
    let (code, report) = examined(command);
    assert_eq!((code, mark(&report, "service")), (1, "problem"), "{report}");
    let mend = format!("sudo chgrp ferretto {}\n", socket.display());
    assert!(report.contains(&mend), "{report}");
    assert!(!report.contains("chmod o+"), "{report}");
}

#[test]
fn it_leaves_everything_as_it_was() {
    let folder = socket_folder("ferretto-test-");
    let files = [
        "/sys/kernel/tracing/tracing_on",
        "/sys/kernel/tracing/trace_clock",
        "/proc/sys/kernel/kptr_restrict",
        "/proc/self/mounts",
    ];
    let state = || files.map(|file| std::fs::read_to_string(file).ok());
    let Some(_alone) = crate::support::tracefs::Tracefs::lock() else {
        return;
    };
    let before = state();
    let (code, report) = examined(doctor(folder.path()));
    assert_eq!(code, 0, "{report}");
    assert_eq!(state(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_report_fits_a_terminal_and_colours_are_left_out_on_request() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let folder = socket_folder("ferretto-test-");
    let shown = |variables: &[(&str, &str)]| {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = rustix::termios::Winsize {
            ws_col: 90,
            ws_row: 50,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let screen = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(name)
            .unwrap();
        let mut command = doctor(folder.path());
        command
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied());
        let mut child = command.stdout(screen).spawn().unwrap();
        drop(command);
        let mut shown = Vec::new();
        // EIO, once nobody has the other side open.
        let _ = std::fs::File::from(terminal).read_to_end(&mut shown);
        assert!(child.wait().unwrap().success());
        String::from_utf8(shown).unwrap()
    };
    let coloured = shown(&[]);
    assert!(
        coloured.starts_with("\x1b[32mok\x1b[0m      kernel     Linux "),
        "{coloured:?}"
    );
    for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = shown(&[variables]);
        assert!(
            plain.starts_with("ok      kernel     Linux ") && !plain.contains('\x1b'),
            "{plain:?}"
        );
        let rows = plain.lines().filter(|line| !line.contains("mend:"));
        assert!(rows.clone().all(|row| row.chars().count() <= 90), "{plain}");
    }
}

#[test]
fn it_takes_no_arguments() {
    let output = ferretto("doctor").arg("x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = ferretto("doctor").arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && words(&help).contains("It changes nothing"),
        "{help}"
    );
}
