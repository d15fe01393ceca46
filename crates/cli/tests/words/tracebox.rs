//! `tracebox`, under its own name.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferretto_proto::messages::{Message, Trace};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{outcome, outcome_as_another_user, program, text};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System, copy_program, is_readable};

/// A config that needs no privileges.
const CONFIG: &str = "buffers { size_kb: 1024 } data_sources { config { name: \"linux.system_info\" } }";

/// Makes a `tracebox` with these arguments and this system's sockets.
fn command(system: &System<'_>, words: &[&str]) -> Command {
    let mut command = system.command(Path::new(env!("CARGO_BIN_EXE_tracebox")), "tracebox.log");
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn tracebox(system: &System<'_>, words: &[&str]) -> Output {
    command(system, words).output().unwrap()
}

/// Writes a config that records for so many ms, or until it is stopped; returns its path.
fn config(system: &System<'_>, duration_ms: u32) -> String {
    let path = system.path("tracebox.cfg");
    fs::write(&path, format!("{CONFIG} duration_ms: {duration_ms}")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Whether a trace has the probes' packets about the machine.
fn has_system_info(trace: &Path) -> bool {
    let trace = Trace::decode_from_slice(&fs::read(trace).unwrap()).unwrap();
    trace.packet.iter().any(|packet| {
        use ferretto_proto::messages::trace_packet::Data;
        matches!(packet.data, Some(Data::CpuInfo(_) | Data::SystemInfo(_)))
    })
}

/// Waits for the end of a process that is no child.
fn await_end(pid: i32) {
    if let Ok(process) = rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
        assert!(is_readable(&process, PATIENCE), "{pid} runs");
    }
}

#[test]
fn without_a_word_it_explains_itself_and_fails_as_upstreams() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let (printed, said, code) = outcome(&tracebox(&system, &[]));
    assert_eq!((said.as_str(), code), ("", Some(1)));
    for part in [
        "Usage: tracebox [OPTIONS] -o FILE EVENT...",
        "  traced_probes\n",
        "--system-sockets",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    let (printed, said, code) = outcome(&tracebox(&system, &["--help"]));
    assert_eq!((printed.as_str(), code), ("", Some(1)));
    assert!(said.contains("--autodaemonize"), "{said}");
    let (_, said, code) = outcome(&tracebox(
        &system,
        &["--system-sockets", "--query", "--system-sockets"],
    ));
    assert_eq!(
        (said.as_str(), code),
        (
            "tracebox: Cannot specify --system-sockets multiple times\n",
            Some(1)
        )
    );
    // An unknown flag is reported as by `perfetto`.
    let (_, said, code) = outcome(&tracebox(&system, &["--gibberish"]));
    assert!(said.contains("--gibberish"), "{said}");
    assert_eq!(code, Some(1));
}

#[test]
fn applets_are_programs_by_their_first_word_and_by_the_name_of_a_link() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for applet in [
        "traced",
        "traced_probes",
        "traced_perf",
        "heapprofd",
        "traced_relay",
        "perfetto",
    ] {
        let (printed, _, code) = outcome(&tracebox(&system, &[applet, "--version"]));
        assert!(printed.starts_with("Perfetto v"), "{applet}: {printed}");
        assert_eq!(code, Some(0));
        let link = system.path(applet);
        symlink(env!("CARGO_BIN_EXE_tracebox"), &link).unwrap();
        let by_link = system
            .command(&link, "link.log")
            .arg("--version")
            .stdout(Stdio::piped())
            .output();
        assert_eq!(text(&by_link.unwrap().stdout), printed);
    }
    // A link `tracebox` to `ferretto` works too.
    let link = system.path("tracebox");
    symlink(env!("CARGO_BIN_EXE_ferretto"), &link).unwrap();
    let by_link = system
        .command(&link, "link.log")
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(text(&by_link.stdout).contains("Usage: tracebox "));

    let (_, said, code) = outcome(&tracebox(&system, &["trigger_perfetto"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("trigger_perfetto"), "{said}");
}

#[test]
fn a_recording_has_a_private_service() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let (config, trace) = (config(&system, 10), system.path("trace"));
    let temporary = system.path("temporary");
    fs::create_dir(&temporary).unwrap();
    let output = command(&system, &["--txt", "-c", &config, "-o", trace.to_str().unwrap()])
        .env_remove("PERFETTO_PRODUCER_SOCK_NAME")
        .env_remove("PERFETTO_CONSUMER_SOCK_NAME")
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    let (printed, said, code) = outcome(&output);
    assert_eq!((printed.as_str(), code), ("", Some(0)), "{said}");
    // Scripts look for this.
    assert!(
        said.contains("Connected to the Perfetto traced service, TTL: 1s\n"),
        "{said}"
    );
    assert!(has_system_info(&trace));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "sockets are left");
}

#[test]
fn sockets_that_variables_name_are_found_by_programs() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for flags in [&[][..], &["--system-sockets"], &["--autodaemonize"]] {
        let config = config(&system, 0);
        let trace = system.path("trace");
        let words = [
            &["-D", "--txt", "-c", &config, "-o", trace.to_str().unwrap()],
            flags,
        ]
        .concat();
        let (printed, said, code) = outcome(&tracebox(&system, &words));
        assert_eq!(code, Some(0), "{said}");
        let recorder: i32 = printed.trim().parse().unwrap();
        // A program connects, and the service with this consumer socket lists it.
        let _program = program(&system, "com.example.game", &[]);
        system.await_state(|state| {
            let mut producers = state.producers.iter();
            producers.any(|producer| producer.name.as_deref() == Some("com.example.game"))
        });
        rustix::process::kill_process(Pid::from_raw(recorder).unwrap(), Signal::TERM).unwrap();
        await_end(recorder);
        assert!(has_system_info(&trace), "{flags:?}");
        assert!(!system.consumer_socket().exists(), "{flags:?}");
    }
}

#[test]
fn a_service_that_listens_there_records() {
    let programs = Programs::ours();
    let mut system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let (config, trace) = (config(&system, 10), system.path("trace"));
    let words = [
        "--system-sockets",
        "--txt",
        "-c",
        &config,
        "-o",
        trace.to_str().unwrap(),
    ];
    let (_, said, code) = outcome(&tracebox(&system, &words));
    assert_eq!(code, Some(0), "{said}");
    let notice = format!(
        "tracebox: the tracing service that listens at {} records\n",
        system.consumer_socket().display()
    );
    assert!(said.starts_with(&notice), "{said}");
    assert!(has_system_info(&trace));
    let (_, said, code) = outcome(&tracebox(&system, &[&words[..], &["-q"]].concat()));
    assert_eq!((said.as_str(), code), ("", Some(0)));
    system.assert_running();
}

/// The daemons of `tracebox ctl`, which outlive it, and end when this is dropped.
struct Ctl<'a>(&'a System<'a>);

impl Ctl<'_> {
    fn run(&self, word: &str) -> (String, String, Option<i32>) {
        outcome(&tracebox(self.0, &["ctl", word]))
    }

    /// Runs `start`; returns the process ids in its output.
    fn start(&self) -> [i32; 2] {
        // The daemons' messages until they are ready depend on the state of tracefs.
        let (printed, said, code) = self.run("start");
        assert_eq!(code, Some(0), "{printed}{said}");
        let pid = |name: &str| {
            let start = format!("{name} started (PID: ");
            let line = printed
                .lines()
                .find_map(|line| line.strip_prefix(&start))
                .unwrap();
            line.trim_end_matches(')').parse().unwrap()
        };
        [pid("traced"), pid("traced_probes")]
    }

    /// Returns the file with the process ids.
    fn file(&self) -> PathBuf {
        let socket = self.0.consumer_socket().display().to_string();
        let name = format!("ctl-{}", socket.replace('/', "%"));
        let uid = rustix::process::geteuid().as_raw();
        let places = ferretto_probes::ftrace::restore::JournalDir::places(uid);
        places
            .iter()
            .map(|place| place.join(&name))
            .find(|file| file.exists())
            .unwrap()
    }
}

impl Drop for Ctl<'_> {
    fn drop(&mut self) {
        self.run("stop");
    }
}

#[test]
fn ctl_keeps_a_service_for_as_many_recordings_as_come() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let ctl = Ctl(&system);
    let (printed, _, code) = ctl.run("status");
    assert!(
        printed.starts_with("No daemons are running: nobody listens at "),
        "{printed}"
    );
    assert_eq!(code, Some(3));
    let (printed, _, code) = ctl.run("stop");
    assert_eq!((printed.as_str(), code), ("No daemons are running\n", Some(0)));

    let [traced, probes] = ctl.start();
    // A user who can write to the file decides which processes `stop` ends.
    let mode = std::fs::metadata(ctl.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (printed, _, code) = ctl.run("start");
    assert!(
        printed.starts_with(&format!("Daemons are already running: traced (pid {traced}) ")),
        "{printed}"
    );
    assert_eq!(code, Some(0));
    let (printed, _, code) = ctl.run("status");
    assert!(
        printed.ends_with(&format!(
            "traced: running (PID: {traced})\ntraced_probes: running (PID: {probes})\n"
        )),
        "{printed}"
    );
    assert_eq!(code, Some(0));
    // After `start` the daemons are ready.
    let sources: Vec<_> = system.state().data_sources;
    assert!(!sources.is_empty());

    let (config, trace) = (config(&system, 10), system.path("trace"));
    let (_, said, code) = outcome(&tracebox(
        &system,
        &["--txt", "-c", &config, "-o", trace.to_str().unwrap()],
    ));
    assert!(
        said.starts_with("tracebox: the tracing service that listens at "),
        "{said}"
    );
    assert_eq!(code, Some(0));
    assert!(has_system_info(&trace));

    let (printed, said, code) = ctl.run("stop");
    assert_eq!(
        (printed.as_str(), said.as_str(), code),
        (
            &*format!("traced_probes terminated (PID: {probes})\ntraced terminated (PID: {traced})\n"),
            "",
            Some(0)
        )
    );
    assert!(!system.consumer_socket().exists());
}

#[test]
fn ctl_ends_nothing_that_it_did_not_start() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = system.start(Side::Ours, Program::Traced);
    let (_, said, code) = outcome(&tracebox(&system, &["ctl", "stop"]));
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with(&format!("tracebox ctl: traced (pid {service}) listens at "))
            && said.ends_with(", but `tracebox ctl start` did not start it: end it where it was started\n"),
        "{said}"
    );
    system.assert_running();
    system.end_all();

    // Process ids that other processes have by now.
    let ctl = Ctl(&system);
    let [traced, probes] = ctl.start();
    let file = ctl.file();
    let kept = fs::read_to_string(&file).unwrap();
    assert_eq!(kept, format!("traced {traced}\ntraced_probes {probes}\n"));
    let mut other = Running(Command::new("sleep").arg("1000").spawn().unwrap());
    fs::write(&file, format!("traced {0}\ntraced_probes {0}\n", other.pid())).unwrap();
    let (_, said, code) = ctl.run("stop");
    assert_eq!(code, Some(1), "{said}");
    assert!(other.0.try_wait().unwrap().is_none(), "it was ended");
    fs::write(&file, kept).unwrap();

    // A daemon that was killed is reported, and the other one is ended.
    rustix::process::kill_process(Pid::from_raw(probes).unwrap(), Signal::KILL).unwrap();
    await_end(probes);
    let (printed, _, code) = ctl.run("stop");
    assert_eq!(code, Some(0));
    assert!(
        printed.contains(&format!("traced terminated (PID: {traced})\n")),
        "{printed}"
    );
}

#[test]
fn ctl_start_ends_the_probes_of_a_service_that_crashed() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let ctl = Ctl(&system);
    let [traced, probes] = ctl.start();
    rustix::process::kill_process(Pid::from_raw(traced).unwrap(), Signal::KILL).unwrap();
    await_end(traced);
    let (printed, said, code) = ctl.run("start");
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(
        printed.starts_with(&format!(
            "traced_probes terminated (PID: {probes})\ntraced started (PID: "
        )),
        "{printed}"
    );
    let offers = system.state().data_sources.into_iter();
    let ftrace = offers.filter(|offer| offer.ds_descriptor.name.as_deref() == Some("linux.ftrace"));
    assert_eq!(ftrace.count(), 1);
}

#[test]
fn a_ctl_start_that_fails_keeps_the_process_ids_of_another() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let ctl = Ctl(&system);
    ctl.start();
    let file = ctl.file();
    let (_, _, code) = ctl.run("stop");
    assert_eq!(code, Some(0));
    // As if another `start` had been quicker: nobody listens for consumers yet, and this one's service cannot listen for producers.
    fs::write(&file, "traced 2147483647\n").unwrap();
    fs::create_dir(system.producer_socket()).unwrap();
    let (_, said, code) = ctl.run("start");
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "traced 2147483647\n");
}

#[test]
fn ctl_counts_a_listener_that_does_not_answer_as_present() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = std::os::unix::net::UnixListener::bind(system.consumer_socket()).unwrap();
    // Hangs up on each client; the thread ends with the test.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    for (word, expected) in [("status", 4), ("start", 1), ("stop", 1)] {
        let (printed, said, code) = outcome(&tracebox(&system, &["ctl", word]));
        assert_eq!(code, Some(expected), "{word}: {printed}{said}");
        assert!(
            format!("{printed}{said}").contains("but gave no answer that could be used: "),
            "{word}: {printed}{said}"
        );
    }
    assert!(!system.producer_socket().exists());
}

/// An unused user id, so only this test makes folders for it.
const STRANGER: &str = "3000000017";

#[test]
fn ctl_only_looks_where_it_may_not_connect() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = open.path().join("tracebox");
    copy_program(Path::new(env!("CARGO_BIN_EXE_tracebox")), &copy);
    let mut command = system.command(Path::new("setpriv"), "setpriv.log");
    command
        .args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups"])
        .arg(&copy)
        .args(["ctl", "status"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Some((printed, said, code)) = outcome_as_another_user(&mut command) else {
        return;
    };
    assert_eq!(code, Some(4), "{printed}{said}");
    assert!(
        printed.starts_with("this user may not connect to the tracing service at "),
        "{printed}"
    );
    assert!(!Path::new("/tmp").join(format!("ferretto-{STRANGER}")).exists());
}

#[test]
fn ctl_leaves_nothing_behind_if_a_daemon_does_not_come_up() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    // The service cannot listen there.
    fs::create_dir(system.producer_socket()).unwrap();
    let (printed, said, code) = outcome(&tracebox(&system, &["ctl", "start"]));
    assert_eq!((printed.as_str(), code), ("", Some(1)));
    assert!(said.contains("tracebox ctl: traced did not start: "), "{said}");
    let (_, said, code) = outcome(&tracebox(&system, &["ctl", "status", "--gibberish"]));
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("tracebox ctl: unrecognized option '--gibberish': "),
        "{said}"
    );
    let (_, said, code) = outcome(&tracebox(&system, &["ctl", "restart"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("'restart'") && said.contains("'start'"), "{said}");
}
