//! The binary `perfetto` with upstream's daemons, compared with upstream's own `perfetto` as scripts see it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::reference::{Reference, Running, Sockets};
use crate::support::{await_that, inherit};
use ferretto_proto::messages::{Message, TraceConfig, TracingServiceState};
use ferretto_proto::write::TracePacket;
use ferretto_wire::{Field, Reader, Value};

/// The time limit for short actions.
const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = r#"
buffers { size_kb: 4096 }
data_sources {
  config {
    name: "linux.process_stats"
    process_stats_config { scan_all_processes_on_start: true proc_stats_poll_ms: 100 }
  }
}
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 50 stat_period_ms: 50 } } }
"#;

/// Upstream's service and probes on private sockets.
struct System {
    sockets: Sockets,
    traced: Running,
    _probes: Running,
}

impl System {
    fn start() -> Option<System> {
        let sockets = Reference::find()?.sockets();
        let traced = sockets.start_traced();
        let probes = sockets
            .command("traced_probes")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let system = System {
            sockets,
            traced,
            _probes: Running(probes),
        };
        system.await_state(|state| state.data_sources.len() > 10);
        Some(system)
    }

    /// Queries until the service's state is as wanted.
    fn await_state(&self, wanted: impl Fn(&TracingServiceState) -> bool) {
        for _ in 0..2_000 {
            let output = self.ours(&["--query-raw"]).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            if wanted(&TracingServiceState::decode_from_slice(&output.stdout).unwrap()) {
                return;
            }
        }
        panic!("the service did not come to the wanted state");
    }

    fn await_recording(&self) {
        self.await_state(|state| state.num_sessions_started == Some(1));
    }

    fn ours(&self, arguments: &[&str]) -> Command {
        ours(&self.sockets, arguments)
    }

    fn config(&self, more: &str) -> String {
        let path = self.sockets.file("config");
        std::fs::write(&path, format!("{CONFIG}{more}")).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.sockets.file(name).to_str().unwrap().to_owned()
    }
}

fn ours(sockets: &Sockets, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfetto"));
    command
        .env("PERFETTO_PRODUCER_SOCK_NAME", sockets.producer().to_string())
        .env("PERFETTO_CONSUMER_SOCK_NAME", sockets.consumer().to_string())
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the numbers of packets in a trace with each of `fields`. Fails if it is no trace.
fn packets_with<const N: usize>(trace: &[u8], fields: [u32; N]) -> [usize; N] {
    let mut counts = [0; N];
    for packet in Reader::new(trace) {
        let packet = packet.unwrap();
        let Value::Bytes(bytes) = packet.value else {
            panic!("{packet:?} is no packet")
        };
        assert_eq!(packet.number, 1);
        let numbers: Vec<u32> = Reader::new(bytes).map(|field| field.unwrap().number).collect();
        for (count, field) in counts.iter_mut().zip(fields) {
            *count += usize::from(numbers.contains(&field));
        }
    }
    counts
}

/// Whether a trace has all that the config asks for.
fn is_recorded(trace: &[u8]) -> bool {
    let [trees, sys_stats, clocks, stats] = packets_with(
        trace,
        [
            TracePacket::PROCESS_TREE,
            TracePacket::SYS_STATS,
            TracePacket::CLOCK_SNAPSHOT,
            TracePacket::TRACE_STATS,
        ],
    );
    println!("{trees} {sys_stats} {clocks} {stats}");
    trees >= 1 && sys_stats >= 2 && clocks >= 1 && stats >= 1
}

fn assert_recorded(trace: &[u8]) {
    assert!(is_recorded(trace));
}

fn succeeded(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    output
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_recording_ends_up_in_a_file_and_is_summed_up() {
    let Some(system) = System::start() else { return };
    // On a busy machine data come late.
    let (config, trace) = (system.config("duration_ms: 1500"), system.path("trace"));
    let output = succeeded(system.ours(&["--txt", "-c", &config, "-o", &trace]));
    let file = std::fs::read(&trace).unwrap();
    assert_recorded(&file);
    assert_eq!(text(&output.stdout), "");
    let said = text(&output.stderr);
    for words in [
        "Connected to the Perfetto traced service, TTL: 2s",
        &format!("Wrote {} bytes into {trace}", file.len()),
        "recorded 1.5 s",
        "nothing lost",
        "https://ui.perfetto.dev",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert!(!said.contains('\x1b'), "escape codes on a pipe: {said:?}");
}

#[test]
fn the_service_writes_the_file_when_the_config_says_so() {
    let Some(system) = System::start() else { return };
    let config = system.config("duration_ms: 2000 write_into_file: true");
    let trace = system.path("trace");
    let output = succeeded(system.ours(&["--txt", "-c", &config, "-o", &trace]));
    assert_recorded(&std::fs::read(&trace).unwrap());
    let said = text(&output.stderr);
    assert!(
        said.contains("Trace written into the output file") && said.contains("packets"),
        "{said}"
    );

    let by_service = system.path("by-service");
    let config = system.config(&format!(
        "duration_ms: 2000 write_into_file: true output_path: \"{by_service}\""
    ));
    succeeded(system.ours(&["--txt", "-c", &config]));
    assert_recorded(&std::fs::read(&by_service).unwrap());
}

/// As one in the private `/tmp` of a service's unit.
#[test]
fn a_file_of_the_services_that_is_not_there_in_the_end_is_an_error() {
    let Some(system) = System::start() else { return };
    let by_service = system.path("by-service");
    let config = system.config(&format!("write_into_file: true output_path: \"{by_service}\""));
    let mut command = system.ours(&["--txt", "-c", &config]);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    system.await_recording();
    std::fs::remove_file(&by_service).unwrap();
    signal(child.id(), rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot write {by_service}: ")), "{said}");
    assert!(said.contains("PrivateTmp="), "{said}");
    assert!(!said.contains("Trace written"), "{said}");
}

#[test]
fn a_config_from_stdin_and_a_trace_on_stdout() {
    let Some(system) = System::start() else { return };
    let recorded = |milliseconds: u64| {
        let mut command = system.ours(&["--txt", "-c", "-", "-o", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let config = format!("{CONFIG} duration_ms: {milliseconds}");
        child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        is_recorded(&output.stdout)
    };
    // On a busy machine data come late.
    assert!([300, 3_000, 30_000].into_iter().any(recorded));
}

/// Starts a recording without an end and waits until it runs.
fn endless(system: &System, trace: &str) -> Child {
    endless_with(system, trace, "")
}

/// Like [`endless`], with more fields in the config.
fn endless_with(system: &System, trace: &str, more: &str) -> Child {
    let config = system.config(more);
    let mut command = system.ours(&["--txt", "-c", &config, "-o", trace]);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    system.await_recording();
    child
}

#[test]
fn signals_end_a_recording_and_keep_its_data() {
    use rustix::process::Signal;
    let Some(system) = System::start() else { return };
    for number in [Signal::INT, Signal::TERM] {
        let trace = system.path("trace");
        let child = endless(&system, &trace);
        signal(child.id(), number);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{number:?}: {}", text(&output.stderr));
        let [stats] = packets_with(&std::fs::read(&trace).unwrap(), [TracePacket::TRACE_STATS]);
        assert!(stats >= 1, "{number:?}");
    }
}

#[test]
fn a_service_that_dies_is_an_error_and_leaves_no_file() {
    let Some(mut system) = System::start() else { return };
    let trace = system.path("trace");
    let child = endless(&system, &trace);
    system.traced.0.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("the recording broke off"),
        "{}",
        text(&output.stderr)
    );
    assert!(!Path::new(&trace).exists());
}

#[test]
fn a_service_that_dies_leaves_what_it_has_streamed() {
    let Some(mut system) = System::start() else { return };
    let trace = system.path("trace");
    let child = endless_with(
        &system,
        &trace,
        "write_into_file: true file_write_period_ms: 100\n",
    );
    let until = Instant::now() + PATIENCE;
    while std::fs::metadata(&trace).unwrap().len() == 0 {
        assert!(Instant::now() < until, "nothing was streamed");
    }
    system.traced.0.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the recording broke off"), "{said}");
    let [configs] = packets_with(&std::fs::read(&trace).unwrap(), [TracePacket::TRACE_CONFIG]);
    assert_eq!(configs, 1);
}

#[test]
fn a_config_that_the_service_refuses_is_an_error_and_leaves_no_file() {
    let Some(system) = System::start() else { return };
    let path = system.sockets.file("config");
    std::fs::write(&path, "buffers { size_kb: 0 }").unwrap();
    let trace = system.path("trace");
    let config = path.to_str().unwrap();
    let output = system
        .ours(&["--txt", "-c", config, "-o", &trace])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("Service error: "),
        "{}",
        text(&output.stderr)
    );
    assert!(!Path::new(&trace).exists());

    let output = system
        .ours(&["-D", "--txt", "-c", config, "-o", &trace])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "the background process says so too"
    );
    assert!(
        text(&output.stderr).contains("Service error: "),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_full_disk_is_an_error() {
    let Some(system) = System::start() else { return };
    let config = system.config("duration_ms: 100");
    let output = system
        .ours(&["--txt", "-c", &config, "-o", "/dev/full"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("cannot write /dev/full: No space left"),
        "{}",
        text(&output.stderr)
    );
    assert!(Path::new("/dev/full").exists());
}

#[test]
fn a_background_recording_prints_its_pid_and_ends_by_that() {
    let Some(system) = System::start() else { return };
    let (config, trace) = (system.config(""), system.path("trace"));
    // Two processes share this pipe; its end shows that the one in the background is gone.
    let (alive, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut command = system.ours(&["-D", "--txt", "-c", &config, "-o", &trace]);
    inherit(&mut command, &held);
    let output = succeeded(command);
    drop(held);
    let pid: u32 = text(&output.stdout).trim_end().parse().unwrap();
    system.await_recording();
    signal(pid, rustix::process::Signal::TERM);
    std::fs::File::from(alive).read_to_end(&mut Vec::new()).unwrap();
    assert_recorded_at_all(&trace);
}

fn assert_recorded_at_all(trace: &str) {
    let [stats] = packets_with(&std::fs::read(trace).unwrap(), [TracePacket::TRACE_STATS]);
    assert!(stats >= 1);
}

#[test]
fn the_notify_descriptor_gets_a_zero_once_all_has_started() {
    let Some(system) = System::start() else { return };
    let (config, trace) = (system.config("duration_ms: 200"), system.path("trace"));
    let status = |config: &str| {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut command = system.ours(&["--txt", "-c", config, "-o", &trace]);
        let number = inherit(&mut command, &write);
        command.args(["--notify-fd", &number.to_string()]);
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        drop(write);
        let mut status = Vec::new();
        std::fs::File::from(read).read_to_end(&mut status).unwrap();
        child.wait_with_output().unwrap();
        status
    };
    assert_eq!(status(&config), [0]);
    std::fs::write(&config, "buffers { size_kb: 0 }").unwrap();
    assert_eq!(status(&config), [1]);
}

#[test]
fn a_detached_recording_is_found_stopped_and_whole() {
    let Some(system) = System::start() else { return };
    let config = system.config("write_into_file: true");
    let trace = system.path("trace");
    let code = |arguments: &[&str]| system.ours(arguments).output().unwrap().status.code();
    assert_eq!(code(&["--is_detached", "key"]), Some(2));
    assert_eq!(code(&["--attach", "key"]), Some(2));
    let detached = succeeded(system.ours(&["--txt", "-c", &config, "-o", &trace, "--detach", "key"]));
    let said = text(&detached.stderr);
    assert!(
        said.contains("`perfetto --attach key --stop` ends it") && !said.contains("Ctrl-C"),
        "{said}"
    );
    assert_eq!(code(&["--is_detached", "key"]), Some(0));
    assert_eq!(
        code(&["--is_detached", "key"]),
        Some(0),
        "asking leaves it as it is"
    );
    succeeded(system.ours(&["--attach", "key", "--stop"]));
    assert_recorded_at_all(&trace);
    assert_eq!(code(&["--is_detached", "key"]), Some(2));
}

#[test]
fn what_the_service_refuses_costs_no_earlier_trace() {
    let Some(system) = System::start() else { return };
    let trace = system.path("trace");
    std::fs::write(&trace, "an earlier trace").unwrap();
    let refused = system.path("refused");
    std::fs::write(&refused, "buffers { size_kb: 0 }").unwrap();
    let output = system
        .ours(&["--txt", "-c", &refused, "-o", &trace])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(&trace).unwrap(), b"an earlier trace");
}

#[test]
fn a_clone_is_written_while_the_original_goes_on() {
    let Some(system) = System::start() else { return };
    for more in ["", "write_into_file: true"] {
        let config = system.config(&format!("unique_session_name: \"original\" {more}"));
        let (trace, copy) = (system.path("trace"), system.path("copy"));
        let mut original = system.ours(&["--txt", "-c", &config, "-o", &trace]);
        let original = original.stderr(Stdio::null()).spawn().unwrap();
        system.await_recording();
        succeeded(system.ours(&["--clone-by-name", "original", "-o", &copy]));
        assert_recorded_at_all(&copy);
        signal(original.id(), rustix::process::Signal::TERM);
        assert!(original.wait_with_output().unwrap().status.success());
        assert_recorded_at_all(&trace);
    }
    let missing = system.path("missing");
    let output = system
        .ours(&["--clone-by-name", "nobody", "-o", &missing])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("cannot clone the session \"nobody\""),
        "{}",
        text(&output.stderr)
    );
    assert!(!Path::new(&missing).exists());
}

#[test]
fn queries_print_the_same_as_upstreams() {
    let Some(system) = System::start() else { return };
    // The probes may still be registering data sources.
    let state = || succeeded(system.ours(&["--query-raw"])).stdout;
    let mut last = state();
    await_that("the state stays", || {
        std::mem::replace(&mut last, state()) == last
    });
    for arguments in [&["--query"][..], &["--query", "--long"], &["--query-raw"]] {
        let theirs = system
            .sockets
            .command("perfetto")
            .args(arguments)
            .output()
            .unwrap();
        let ours = succeeded(system.ours(arguments));
        // Upstream's prints colours even into a pipe.
        let plain = text(&theirs.stdout)
            .replace("\x1b[31m", "")
            .replace("\x1b[0m", "");
        assert_eq!(text(&ours.stdout), plain, "{arguments:?}");
    }
}

/// Returns the config that the service wrote into a trace, without the random name of the trace.
fn config_in(trace: &str) -> TraceConfig {
    let trace = std::fs::read(trace).unwrap();
    let config = Reader::new(&trace).find_map(|packet| {
        let Value::Bytes(packet) = packet.unwrap().value else {
            panic!("not a packet")
        };
        Reader::new(packet).find_map(|field| match field.unwrap() {
            Field {
                number: TracePacket::TRACE_CONFIG,
                value: Value::Bytes(config),
                ..
            } => Some(config.to_vec()),
            _ => None,
        })
    });
    let mut config = TraceConfig::decode_from_slice(&config.expect("a config in the trace")).unwrap();
    config.trace_uuid_msb = None;
    config.trace_uuid_lsb = None;
    config
}

#[test]
fn light_flags_and_metadata_make_the_config_that_upstream_makes() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let trace = sockets.file("trace").to_str().unwrap().to_owned();
    for line in [
        "-t 1ms sched/sched_switch irq/*",
        "-t1ms -b 2mb -a one -a two gfx disk sched/sched_waking",
        "--time=1ms --size 1gb --buffer=100k hyp power/cpu_idle",
        "-t 1ms hypervisor --alert-id 1 --config-id 2 --config-uid 3 --subscription-id 4",
        "-t 1ms",
    ] {
        let run = |mut command: Command| {
            succeeded({
                command.args(line.split_whitespace()).args(["-o", &trace]);
                command
            });
            config_in(&trace)
        };
        let theirs = run(sockets.command("perfetto"));
        assert_eq!(run(ours(&sockets, &[])), theirs, "{line}");
    }
}

/// Mistakes on the command line are found before a service is needed, so there is none here.
#[test]
fn bad_command_lines_exit_as_upstreams() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let directory = sockets.file("");
    let write = |name: &str, content: &str| std::fs::write(sockets.file(name), content).unwrap();
    write("text.cfg", "duration_ms: 5");
    write("bad.cfg", "bogus: 5");
    write("half-delay.cfg", "cmd_trace_start_delay { min_delay_ms: 5 }");
    write(
        "upload.cfg",
        "android_report_config { reporter_service_package: \"x\" }",
    );
    write("output-path.cfg", "write_into_file: true output_path: \"there\"");
    write("there", "");
    let lines = [
        "",
        "-h",
        "--help",
        "--bogus",
        "--version",
        "--vers",
        "--version --bogus",
        "-t",
        "-t 5s",
        "-t 5x -o new",
        "-t5s -o /nonexistent/new",
        "-b 5 -o new",
        "-s 1ly -o new",
        "-o new",
        "-o new -c nofile",
        "-o new -c /dev/null",
        "-o new -c text.cfg",
        "-o new -c bad.cfg --txt",
        "-o new -c half-delay.cfg --txt",
        "-o new -c upload.cfg --txt",
        "-o new -c output-path.cfg --txt",
        "-c output-path.cfg --txt",
        "-c text.cfg --txt",
        "-o new -c text.cfg --txt -t 5s",
        "-o there --no-clobber -t 1s",
        "--no -o new",
        "--query",
        "--query-raw",
        "--query -o new",
        "--query -t 5s",
        "--query -d",
        "--long",
        "--stop",
        "--attach k",
        "--attach k -o new",
        "--attach k --detach k",
        "--is_detached k",
        "--detach k -t 1s -o new",
        "--detach k -d -s 1mb -o new",
        "--clone 3",
        "--clone 3 -o new",
        "--clone 3 --clone-by-name n -o new",
        "--clone-for-bugreport -o new",
        "--upload",
        "--dropbox perfetto",
        "--reset-guardrails",
        "-t 1s -o new",
        "-D -t 1s -o new",
    ];
    for line in lines {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let run = |mut command: Command| command.current_dir(&directory).output().unwrap();
        let mut theirs = sockets.command("perfetto");
        theirs.args(&arguments);
        let theirs = run(theirs);
        let ours = run(ours(&sockets, &arguments));
        assert_eq!(
            ours.status.code(),
            theirs.status.code(),
            "{line:?}: {}",
            text(&ours.stderr)
        );
        // The version and the process id differ.
        if !line.contains("--vers") && !line.contains("-D") {
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{line:?}");
        }
        assert_eq!(ours.stdout.is_empty(), theirs.stdout.is_empty(), "{line:?}");
        assert!(
            !ours.stderr.is_empty() || ours.status.success(),
            "{line:?} fails without a word"
        );
        let _ = std::fs::remove_file(directory.join("new"));
    }
}

#[test]
fn a_failure_leaves_no_new_file_and_spares_an_old_one() {
    let directory = crate::support::reference::socket_folder("ferretto-test-");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perfetto"));
        let nowhere = directory.path().join("nobody-listens-here");
        command
            .env("PERFETTO_CONSUMER_SOCK_NAME", &nowhere)
            .args(arguments)
            .stdin(Stdio::null());
        let output = command.current_dir(directory.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        text(&output.stderr)
    };
    let trace: PathBuf = directory.path().join("trace");
    assert!(run(&["-t", "1s", "-o", "trace"]).contains("no tracing service listens at"));
    assert!(!trace.exists());
    assert!(run(&["-D", "-t", "1s", "-o", "trace"]).contains("no tracing service listens at"));
    assert!(!trace.exists());
    std::fs::write(&trace, "earlier").unwrap();
    run(&["-t", "1s", "-o", "trace"]);
    assert_eq!(std::fs::read(&trace).unwrap(), b"earlier");
}

#[test]
fn a_signal_before_the_service_answers_ends_it_as_signals_do() {
    use std::os::unix::process::ExitStatusExt;
    let directory = crate::support::reference::socket_folder("ferretto-test-");
    let socket = directory.path().join("socket");
    // A service that accepts and never answers.
    let mute = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfetto"));
    command
        .env("PERFETTO_CONSUMER_SOCK_NAME", &socket)
        .args(["-t", "1s", "-o", "trace"]);
    command
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut connection, _) = mute.accept().unwrap();
    // After the first request, the command line watches signals.
    connection.read_exact(&mut [0; 4]).unwrap();
    signal(child.id(), rustix::process::Signal::INT);
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2), "{said}");
    assert!(said.contains("given up"), "{said}");
    assert!(!directory.path().join("trace").exists());
}
