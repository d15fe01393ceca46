//! `ferretto … -- COMMAND`: when the command starts, how command and recording end each other, and what the command inherits.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::peers::{Producer, introduction};
use crate::support::terminal::{Size, Terminal};
use crate::support::trace::{TraceProcessor, numbers};
use crate::support::tracefs::Tracefs;
use crate::support::wire::registration_of;
use crate::support::{Program, Programs, Side, System, copy_program, inherit};
use ferretto_proto::messages::get_async_command_response::Cmd;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    DataSourceDescriptor, Message, NotifyDataSourceStartedRequest, Trace, TraceConfig,
};
use rustix::process::{Pid, Signal, kill_process};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");
/// A config without data sources, because nobody offers any here.
const CONFIG: &str = "buffers { size_kb: 256 }";

/// A system with a service, in which `ferretto` records into `trace`.
struct Place<'a> {
    system: System<'a>,
    /// The process id of the service.
    traced: u32,
}

impl<'a> Place<'a> {
    fn new(programs: &'a Programs) -> Place<'a> {
        let mut system = System::new(programs);
        let traced = system.start(Side::Ours, Program::Traced);
        std::fs::write(system.path("trace.cfg"), CONFIG).unwrap();
        Place { system, traced }
    }

    /// Makes a `ferretto` with a config and a command.
    fn ferretto(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut line = self.system.command(Path::new(FERRETTO), "unused.log");
        line.args(["--txt", "-c", "trace.cfg", "-o", "trace"])
            .args(flags)
            .arg("--")
            .args(command)
            .current_dir(self.system.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        line
    }

    fn trace(&self) -> PathBuf {
        self.system.path("trace")
    }

    /// Asserts that there is a complete trace.
    fn assert_recorded(&self) {
        assert!(config_in(&self.trace()).is_some());
    }
}

/// Returns the config in a trace; `None` if there is no trace.
fn config_in(trace: &Path) -> Option<TraceConfig> {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).ok()?).unwrap();
    trace.packet.into_iter().find_map(|packet| match packet.data {
        Some(Data::TraceConfig(config)) => Some((*config).clone()),
        _ => None,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(mut command: Command) -> (Option<i32>, String, String) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    (status.code(), text(&stdout), text(&stderr))
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn it_ends_with_the_commands_status() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 128 + 9),
        ("kill -TERM $$", 128 + 15),
    ] {
        let (code, _, said) = run(place.ferretto(&[], &["sh", "-c", script]));
        assert_eq!(code, Some(status), "{script}: {said}");
        assert!(
            said.contains("recording while sh runs") && said.contains("to see it: ferretto open trace"),
            "{said}"
        );
        place.assert_recorded();
        std::fs::remove_file(place.trace()).unwrap();
    }
    // The words after `--` are the command's own.
    let (code, printed, said) = run(place.ferretto(&["-q"], &["echo", "-t", "--help", "a b"]));
    assert_eq!(
        (code, printed.as_str(), said.as_str()),
        (Some(0), "-t --help a b\n", "")
    );
}

#[test]
fn a_failed_recording_takes_precedence_over_the_commands_status() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    std::fs::write(place.system.path("trace.cfg"), "buffers { size_kb: 0 }").unwrap();
    let (code, printed, said) = run(place.ferretto(&[], &["echo", "ran"]));
    assert_eq!((code, printed.as_str()), (Some(1), ""), "{said}");
    assert!(!place.trace().exists());
}

#[test]
fn a_recording_that_breaks_off_is_reported_after_the_command_has_ended() {
    let programs = Programs::ours();
    let mut place = Place::new(&programs);
    let mut line = place.ferretto(
        &[],
        &["sh", "-c", "echo ready; read -r answer; echo \"$answer\"; exit 5"],
    );
    let mut child = line.stdin(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(printed.next().unwrap().unwrap(), "ready");
    let traced = place.traced;
    place.system.end_with(traced, Signal::KILL);
    let mut said = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(said.by_ref().any(|line| line.contains("the recording broke off")));
    assert!(said.by_ref().any(|line| line.contains("sh goes on as process")));
    child.stdin.take().unwrap().write_all(b"done\n").unwrap();
    assert_eq!(printed.next().unwrap().unwrap(), "done");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn the_status_is_known_even_if_sigchld_is_ignored() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let mut shell = place.system.command(Path::new("bash"), "unused.log");
    let script = "trap '' CHLD; exec \"$0\" --txt -c trace.cfg -o trace -- sh -c 'exit 7'";
    shell
        .args(["-c", script, FERRETTO])
        .current_dir(place.system.path(""))
        .stderr(Stdio::piped());
    let (code, _, said) = run(shell);
    assert_eq!(code, Some(7), "{said}");
}

#[test]
fn a_command_that_cannot_be_run_leaves_nothing() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    std::fs::write(place.system.path("no-program"), "").unwrap();
    let nobody_runs = place.system.path("no-program");
    // PATH looks like this after `su`.
    let closed = place.system.path("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    let path = format!("{}:{}", closed.display(), std::env::var("PATH").unwrap());
    for (command, status, reason) in [
        ("no-such-command", 127, "there is no such command"),
        ("./missing", 127, "there is no such command"),
        (nobody_runs.to_str().unwrap(), 126, "ermission denied"),
        ("/", 126, "is a directory"),
    ] {
        let mut line = place.ferretto(&[], &[command]);
        line.env("PATH", &path);
        let (code, _, said) = run(line);
        assert_eq!(code, Some(status), "{command}: {said}");
        assert!(said.contains("cannot run") && said.contains(reason), "{said}");
        assert!(!place.trace().exists(), "{command}");
    }
    std::fs::remove_dir(&closed).unwrap();
    // A script without an interpreter is only noticed at the start.
    let script = place.system.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    assert!(
        Command::new("chmod")
            .arg("+x")
            .arg(&script)
            .status()
            .unwrap()
            .success()
    );
    let (code, _, said) = run(place.ferretto(&[], &[script.to_str().unwrap()]));
    assert_eq!(code, Some(126), "{said}");
    assert!(said.contains("cannot run"), "{said}");
    assert!(!place.trace().exists());
}

#[test]
fn flags_that_conflict_with_a_command_are_refused() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    for flags in [
        &["-d"][..],
        &["--detach", "k"],
        &["--clone", "1"],
        &["-o", "-"],
        &["--attach", "k"],
        &["--query"],
    ] {
        let (code, printed, said) = run(place.ferretto(flags, &["echo", "ran"]));
        assert_eq!((code, printed.as_str()), (Some(1), ""), "{flags:?}: {said}");
        assert!(said.contains("-- COMMAND cannot be combined with -"), "{said}");
    }
}

/// A script that prints when it is ready, and the signal that ends it.
const WAITS: &str = "trap 'echo got INT; exit 3' INT; trap 'echo got TERM; exit 4' TERM; echo ready; while :; do sleep 0.02; done";

#[test]
fn a_signal_is_for_the_command_whose_end_ends_the_recording() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    for (sent, got, status) in [(Signal::INT, "got INT", 3), (Signal::TERM, "got TERM", 4)] {
        let mut child = place.ferretto(&[], &["sh", "-c", WAITS]).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(printed.next().unwrap().unwrap(), "ready");
        signal(&child, sent);
        assert_eq!(printed.next().unwrap().unwrap(), got);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        place.assert_recorded();
    }
}

/// Runs a command on a terminal that sends it its keys. `interrupt` gets the process id of the recorder.
fn interrupted_on_a_terminal(interrupt: impl FnOnce(&mut Terminal, i32)) {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let script =
        "n=0; trap 'n=$((n+1)); echo INT $n; exit 3' INT; echo $PPID ready; while :; do sleep 0.02; done";
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "prompt> ");
    shell
        .env("PERFETTO_CONSUMER_SOCK_NAME", place.system.consumer_socket())
        .env("PERFETTO_PRODUCER_SOCK_NAME", place.system.producer_socket())
        .current_dir(place.system.path(""))
        .env_remove("HISTFILE");
    let mut terminal = Terminal::open(Size(40, 120), &shell);
    // bash prints a complaint before the prompt if the locale is not installed.
    terminal.await_screen("a prompt", |rows| rows.last().is_some_and(|row| row == "prompt>"));
    std::fs::write(place.system.path("waits"), script).unwrap();
    terminal.press(&format!(
        "{FERRETTO} --txt -c trace.cfg -o trace -- sh waits; echo \"code $?\"\r"
    ));
    let is_ready = |row: &str| row.strip_suffix(" ready")?.parse::<i32>().ok();
    let screen = terminal.await_screen("the command", |rows| {
        rows.iter().any(|row| is_ready(row).is_some())
    });
    interrupt(&mut terminal, screen.lines().find_map(is_ready).unwrap());
    let screen = terminal.await_screen("its end", |rows| {
        // The typed line also contains this text, but at another place in the row.
        let code = |row: &String| row.strip_prefix("code ")?.parse::<i32>().ok();
        rows.iter().any(|row| code(row).is_some())
    });
    assert!(screen.contains("INT 1") && !screen.contains("INT 2"), "{screen}");
    assert!(screen.contains("code 3"), "{screen}");
    place.assert_recorded();
}

#[test]
fn ctrl_c_on_a_terminal_reaches_the_command_once() {
    interrupted_on_a_terminal(|terminal, _| terminal.press("\x03"));
}

#[test]
fn a_signal_of_another_process_reaches_the_command_on_a_terminal_too() {
    interrupted_on_a_terminal(|_, recorder| {
        kill_process(Pid::from_raw(recorder).unwrap(), Signal::INT).unwrap();
    });
}

#[test]
fn the_second_signal_ends_the_recording_of_a_command_that_goes_on() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let script = "trap '' INT; trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut child = place.ferretto(&[], &["sh", "-c", script]).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let (tell, said) = mpsc::channel();
    let reader = std::thread::spawn(move || lines.for_each(|line| tell.send(line).unwrap()));
    assert_eq!(printed.next().unwrap().unwrap(), "ready");
    let mut told = Vec::new();
    // Signals in quick succession count as one.
    while !told
        .iter()
        .any(|line: &String| line.contains("ending the recording"))
    {
        signal(&child, Signal::INT);
        told.extend(said.recv_timeout(Duration::from_millis(10)));
    }
    assert!(
        told.iter()
            .any(|line| line.contains("recording until sh has ended")),
        "{told:?}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(9), "{told:?}");
    reader.join().unwrap_or_default();
    place.assert_recorded();
}

#[test]
fn when_the_time_is_up_the_trace_is_written_and_the_command_goes_on() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let mut line = place.ferretto(&[], &["sh", "-c", "read -r answer; echo \"$answer\"; exit 5"]);
    let config = format!("{CONFIG} duration_ms: 50");
    std::fs::write(place.system.path("trace.cfg"), config).unwrap();
    let mut child = line.stdin(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(said.by_ref().any(|line| line.contains("sh goes on as process")));
    place.assert_recorded();
    child.stdin.take().unwrap().write_all(b"done\n").unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(
        (child.wait().unwrap().code(), printed.as_str()),
        (Some(5), "done\n")
    );
}

#[test]
fn the_command_has_the_same_environment_as_without_ferretto() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let script = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; cut -d' ' -f5 /proc/$$/stat >pgid; echo $PPID >parent";
    let mut alone = place.system.command(Path::new("sh"), "unused.log");
    alone
        .args(["-c", script])
        .current_dir(place.system.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let number = |name: &str| -> i32 {
        let text = std::fs::read_to_string(place.system.path(name)).unwrap();
        text.trim().parse().unwrap()
    };
    let (_, expected, _) = run(alone);
    // In a container, it is 0 if the group's leader is outside.
    let group = number("pgid");
    let (code, printed, said) = run(place.ferretto(&[], &["sh", "-c", script]));
    assert_eq!((code, printed), (Some(0), expected), "{said}");
    // Job control stops both, and the terminal's signals reach both.
    assert_eq!(number("pgid"), group);
    // No process is left.
    assert!(!Path::new(&format!("/proc/{}", number("parent"))).exists());
}

/// A producer with a data source in this recording, which will acknowledge its start.
fn slow_producer(place: &Place<'_>) -> Producer {
    let mut producer = Producer::new(&place.system, &introduction("slow"), None);
    let source = registration_of(DataSourceDescriptor {
        name: Some("slow".to_owned()),
        will_notify_on_start: Some(true),
        ..Default::default()
    });
    producer.client.call("RegisterDataSource", &source);
    producer.sync();
    let config = "buffers { size_kb: 256 } data_sources { config { name: \"slow\" } }";
    std::fs::write(place.system.path("trace.cfg"), config).unwrap();
    producer
}

/// Waits for the start command; returns the id of the instance.
fn asked_to_start(producer: &mut Producer) -> u64 {
    loop {
        if let (Cmd::StartDataSource(start), _) = producer.next_command() {
            return start.new_instance_id.unwrap();
        }
    }
}

#[test]
fn a_command_is_looked_for_where_execvp_looks() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let mut command = place.ferretto(&[], &["true"]);
    command.env_remove("PATH");
    let (code, _, said) = run(command);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_command_starts_once_all_data_sources_have() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let mut producer = slow_producer(&place);
    // A command that starts too early does not find the file.
    let child = place.ferretto(&[], &["test", "-e", "started"]).spawn().unwrap();
    let instance = asked_to_start(&mut producer);
    std::fs::write(place.system.path("started"), "").unwrap();
    let started = NotifyDataSourceStartedRequest {
        data_source_id: Some(instance),
        ..Default::default()
    };
    producer
        .client
        .call("NotifyDataSourceStarted", &started.encode_to_vec());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        !text(&output.stderr).contains("not all data sources"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_command_starts_if_a_data_source_does_not() {
    let programs = Programs::ours();
    let place = Place::new(&programs);
    let mut producer = slow_producer(&place);
    let child = place.ferretto(&[], &["touch", "ran"]).spawn().unwrap();
    asked_to_start(&mut producer);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    // Nothing requested was recorded.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("not all data sources have started; touch starts nonetheless"),
        "{said}"
    );
    assert!(place.system.path("ran").exists());
}

#[test]
fn programs_of_a_command_find_the_service_that_was_started_for_it() {
    let home = crate::support::socket_folder("home-");
    let mut line = Command::new(FERRETTO);
    line.args([
        "-o",
        "trace",
        "-t",
        "60s",
        "sched",
        "--",
        "sh",
        "-c",
        "echo $PERFETTO_PRODUCER_SOCK_NAME; test -S $PERFETTO_PRODUCER_SOCK_NAME",
    ])
    .current_dir(home.path())
    .env("TMPDIR", home.path())
    .env("PERFETTO_CONSUMER_SOCK_NAME", home.path().join("no-consumers"))
    .env("PERFETTO_PRODUCER_SOCK_NAME", home.path().join("no-producers"))
    .stdin(Stdio::null());
    let Some(_tracefs) = Tracefs::lock() else { return };
    let (code, printed, said) = run(line);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        printed.contains("/ferretto-") && printed.ends_with("/producer\n"),
        "{printed}"
    );
}

#[test]
fn the_kernel_events_of_a_command_are_recorded_from_its_first_to_its_last() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let mut place = Place::new(&programs);
    place.system.start(Side::Ours, Program::TracedProbes);
    let ferretto = |words: &[&str]| {
        let mut line = place.system.command(Path::new(FERRETTO), "unused.log");
        line.args(words)
            .current_dir(place.system.path(""))
            .stderr(Stdio::piped());
        let (code, _, said) = run(line);
        assert_eq!(code, Some(0), "{words:?}: {said}");
    };
    // Other tests may run a `cat`, so this one has a name of its own.
    let name = format!("cat-{}", std::process::id());
    let cat = place.system.path(&name);
    copy_program(Path::new("/bin/cat"), &cat);
    // Without event words: the default events for commands.
    ferretto(&["-o", "trace", "--", cat.to_str().unwrap(), "/dev/null"]);
    let config = config_in(&place.trace()).unwrap();
    assert_eq!(config.duration_ms, Some(0));
    assert_eq!(config.write_into_file, Some(true), "all of it, however long");
    let ftrace = &config.data_sources[0].config.ftrace_config;
    assert!(
        ftrace
            .ftrace_events
            .iter()
            .any(|event| event == "sched/sched_process_exec")
    );
    ferretto(&[
        "-o",
        "calls",
        "syscalls:sys_enter_openat",
        "-e",
        "trace=openat",
        "--",
        "cat",
        "/dev/null",
    ]);
    let Some(reader) = TraceProcessor::find() else {
        return;
    };
    let [execs, exits] = reader.query(
        &place.trace(),
        [
            &format!(
                "select count(*) from ftrace_event join args using (arg_set_id) where name = 'sched_process_exec' and string_value like '%/{name}'"
            ),
            &format!(
                "select count(*) from ftrace_event join args using (arg_set_id) where name = 'sched_process_exit' and key = 'comm' and string_value = '{name}'"
            ),
        ],
    );
    assert_eq!((numbers::<1>(&execs), numbers::<1>(&exits)), ([1], [1]));
    let [tracepoints, calls] = reader.query(
        &place.system.path("calls"),
        [
            "select count(*) > 0 from ftrace_event join args using (arg_set_id) where name = 'sys_enter_openat'",
            "select count(*) > 0 from slice where name = 'sys_openat'",
        ],
    );
    assert_eq!((numbers::<1>(&tracepoints), numbers::<1>(&calls)), ([1], [1]));
}

/// A profile needs the process of its command before anything is recorded, so `ferretto` waits in that process.
#[test]
fn a_held_command_runs_if_it_is_released_and_not_if_its_recorder_has_gone() {
    let held = |release: bool| {
        let mut command = Command::new(FERRETTO);
        let (wait, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let number = inherit(&mut command, &wait);
        let number = number.to_string();
        // The command inherits neither the variable nor the descriptor.
        command.env("FERRETTO_HELD_COMMAND", &number).arg0("sh");
        let script = "[ -e /proc/$$/fd/$2 ] || exit ${FERRETTO_HELD_COMMAND-$1}";
        command.args(["-c", script, "sh", "7", &number]);
        let mut child = command.spawn().unwrap();
        if release {
            rustix::io::write(&end, &[1]).unwrap();
        }
        drop(end);
        child.wait().unwrap().code()
    };
    assert_eq!(held(true), Some(7));
    assert_eq!(held(false), Some(0));
}
