//! How scripts and systemd learn that a daemon is ready.

use std::io::{ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::daemons::{SIDES, daemon, has_probes, is_readable, run, sockets};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

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
        // The pipe ends although the daemon goes on.
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
    // Upstream's daemon crashes.
    let system = System::new(&programs);
    let mut command = daemon(&system, Side::Upstream, Program::Traced, &[]);
    command.env("TRACED_NOTIFY_FD", "777");
    assert!(!run(&system, command).status.success());
}

/// Receives one message as systemd would.
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

    // A second service gets the data sources, and systemd is not notified again.
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
            .replace("/usr/bin/traced_perf", env!("CARGO_BIN_EXE_traced_perf"))
            .replace("/usr/bin/heapprofd", env!("CARGO_BIN_EXE_heapprofd"))
            .replace("/usr/bin/traced_relay", env!("CARGO_BIN_EXE_traced_relay"))
            // Of other workspaces.
            .replace("/usr/bin/ferretto-upload", env!("CARGO_BIN_EXE_ferretto"))
            .replace("/usr/bin/ferretto-tunnel", env!("CARGO_BIN_EXE_ferretto"))
            .replace("/usr/bin/ferretto", env!("CARGO_BIN_EXE_ferretto"))
            .replace("/usr/bin/traced\n", concat!(env!("CARGO_BIN_EXE_traced"), "\n"));
        assert!(!text.contains("/usr/bin"), "{}", unit.display());
        let copy = system.path(unit.file_name().unwrap().to_str().unwrap());
        std::fs::write(&copy, text).unwrap();
        verify.arg(copy);
        count += 1;
    }
    assert_eq!(count, 11);
    match verify.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: systemd-analyze is not installed")
        }
        output => {
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            // The command also complains about other units on this machine.
            let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("traced")).collect();
            assert!(about_ours.is_empty(), "{said}");
        }
    }
}

#[test]
fn the_units_leave_the_daemons_little() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    // As `systemd-analyze security` counts: 0 is nothing, 10 everything. Producers are root's.
    for (unit, most) in [
        ("traced.service", "1.0"),
        ("traced-probes.service", "3.0"),
        ("traced-perf.service", "3.0"),
        ("heapprofd.service", "3.0"),
        ("ferretto-recorder.service", "2.0"),
        ("ferretto-upload.service", "1.5"),
        ("ferretto-tunnel-guest.service", "1.5"),
        ("ferretto-tunnel-host.service", "1.5"),
    ] {
        let mut analyze = Command::new("systemd-analyze");
        analyze
            .args(["security", "--offline=true", "--no-pager"])
            // In tenths.
            .arg(format!("--threshold={}", most.replace('.', "")))
            .arg(units.join(unit));
        let output = match analyze.output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return println!("skipped: systemd-analyze is not installed");
            }
            output => output.unwrap(),
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("Overall exposure level"), "{unit}: {said}");
        assert!(output.status.success(), "{unit} is above {most}: {said}");
    }
}

/// The settings of a unit of ours, line by line.
fn settings_of(unit: &str) -> Vec<String> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let text = std::fs::read_to_string(units.join(unit)).unwrap();
    let settings = text.lines().filter(|line| !line.starts_with(['#', '[']));
    settings.map(str::to_owned).collect()
}

#[test]
fn the_units_leave_the_daemons_what_they_need() {
    // Without the limit, a session with `priority_boost` ends at once, or its data sources are not boosted.
    for unit in [
        "traced.service",
        "traced-probes.service",
        "traced-perf.service",
        "heapprofd.service",
    ] {
        assert!(settings_of(unit).contains(&"LimitNICE=-20".to_owned()), "{unit}");
    }
    // These read files wherever programs have them: to name inodes, and to unwind.
    for unit in [
        "traced-probes.service",
        "traced-perf.service",
        "heapprofd.service",
    ] {
        for setting in settings_of(unit) {
            let hides = match setting.split_once('=') {
                Some(("ProtectHome", how)) => how != "read-only" && how != "no",
                Some(("PrivateTmp", how)) => how != "no",
                // It implies both.
                Some(("DynamicUser", how)) => how != "no",
                Some(("InaccessiblePaths" | "TemporaryFileSystem" | "RootDirectory", _)) => true,
                _ => false,
            };
            assert!(!hides, "{unit} hides files: {setting}");
        }
    }
    // A tracefs of another user takes the right to write others' files. `policy.rs` says when the daemon keeps it.
    let bound = settings_of("traced-probes.service");
    let bound = bound
        .iter()
        .find_map(|setting| setting.strip_prefix("CapabilityBoundingSet="));
    assert!(bound.unwrap().split(' ').any(|name| name == "CAP_DAC_OVERRIDE"));
    // Nobody else sees a file in the unit's own folders for temporary files, so there shall be none.
    assert!(settings_of("traced.service").contains(&"ReadOnlyPaths=/tmp /var/tmp".to_owned()));
}
