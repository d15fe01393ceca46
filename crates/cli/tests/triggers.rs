//! Triggers with real processes: recordings that start and stop with a trigger, on our and upstream's service, by our and upstream's `perfetto`. The
//! triggers are activated by our `trigger_perfetto` and by either `perfetto` with `activate_triggers`. The traces have the same notes.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::trace::{LOSSES, Rows, TraceProcessor};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use ferretto_client::producer::{ProducerEndpoint, ProducerOptions};
use ferretto_ipc::Address;
use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;
use ferretto_proto::messages::{Message, Trace, TracingServiceState, trace_packet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

const SIDES: [Side; 2] = [Side::Upstream, Side::Ours];

/// The program that activates a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    TriggerPerfetto,
    Perfetto(Side),
}

const SENDERS: [Sender; 3] = [
    Sender::Perfetto(Side::Upstream),
    Sender::TriggerPerfetto,
    Sender::Perfetto(Side::Ours),
];

fn config(mode: &str, timeout_ms: u32, triggers: &str) -> String {
    format!(
        r#"
buffers {{ size_kb: 1024 }}
data_sources {{ config {{ name: "linux.sys_stats" sys_stats_config {{ meminfo_period_ms: 10 }} }} }}
trigger_config {{ trigger_mode: {mode} trigger_timeout_ms: {timeout_ms} {triggers} }}
"#
    )
}

/// A trigger that ends the recording at once.
fn ends_by(name: &str) -> String {
    format!("triggers {{ name: \"{name}\" stop_delay_ms: 1 }}")
}

fn trigger_perfetto(system: &System<'_>, words: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_trigger_perfetto"));
    let mut command = system.command(program, "trigger_perfetto.log");
    command.args(words).stderr(Stdio::piped()).output().unwrap()
}

fn perfetto(programs: &Programs, system: &System<'_>, side: Side, config: &str, more: &[&str]) -> Command {
    let file = system.path("config");
    std::fs::write(&file, config).unwrap();
    let mut command = system.command(&programs.path(side, Program::Perfetto), "perfetto.log");
    command.arg("--txt").arg("-c").arg(file).args(more);
    command
}

fn activate(programs: &Programs, system: &System<'_>, sender: Sender, names: &[&str]) {
    let status = match sender {
        Sender::TriggerPerfetto => trigger_perfetto(system, names).status,
        Sender::Perfetto(side) => {
            let lines: Vec<String> = names
                .iter()
                .map(|name| format!("activate_triggers: \"{name}\"\n"))
                .collect();
            let mut command = perfetto(programs, system, side, &lines.concat(), &[]);
            command.status().unwrap()
        }
    };
    assert!(status.success(), "{sender:?}: {status}");
}

/// A `perfetto` that records, and its trace.
struct Recording {
    process: Running,
    trace: PathBuf,
}

impl Recording {
    /// Starts a recording, and waits until it is in this state.
    fn begin(
        programs: &Programs,
        system: &System<'_>,
        side: Side,
        config: &str,
        reached: impl Fn(&TracingServiceState) -> bool,
    ) -> Recording {
        let trace = system.path("trace");
        let mut command = perfetto(programs, system, side, config, &["-o", trace.to_str().unwrap()]);
        let process = Running(command.spawn().unwrap());
        system.await_state(reached);
        Recording { process, trace }
    }

    fn finish(mut self, system: &System<'_>) -> Trace {
        let status = self.process.wait(PATIENCE);
        assert!(
            status.is_some_and(|status| status.success()),
            "{status:?}\n{}",
            system.log("perfetto.log")
        );
        system.await_state(|state| state.num_sessions == Some(0));
        Trace::decode_from_slice(&std::fs::read(self.trace).unwrap()).unwrap()
    }
}

fn is_configured(state: &TracingServiceState) -> bool {
    state.num_sessions == Some(1)
}

fn is_started(state: &TracingServiceState) -> bool {
    state.num_sessions_started == Some(1)
}

/// The notes about triggers in a trace.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    /// Trigger, producer, its user, and the delay.
    triggers: Vec<(String, String, i32, u64)>,
    mode: Option<TriggerMode>,
    duration_ms: Option<u32>,
}

impl Said {
    fn of(trace: &Trace) -> Said {
        let mut said = Said {
            triggers: Vec::new(),
            mode: None,
            duration_ms: None,
        };
        for packet in &trace.packet {
            match &packet.data {
                Some(trace_packet::Data::Trigger(trigger)) => {
                    assert!(packet.timestamp.is_some_and(|at| at > 0));
                    said.triggers.push((
                        trigger.trigger_name.clone().unwrap(),
                        trigger.producer_name.clone().unwrap(),
                        trigger.trusted_producer_uid.unwrap(),
                        trigger.stop_delay_ms.unwrap(),
                    ));
                }
                Some(trace_packet::Data::TraceConfig(config)) => {
                    said.mode = config.trigger_config.trigger_mode;
                    said.duration_ms = config.duration_ms;
                }
                _ => {}
            }
        }
        said
    }
}

/// Triggers of which the first ends the recording after this delay.
fn named(delay_ms: u32) -> String {
    format!(
        r#"
triggers {{ name: "slow_frame" stop_delay_ms: {delay_ms} producer_name_regex: "perfetto_cmd_.*" }}
triggers {{ name: "crash" stop_delay_ms: 60000 }}
triggers {{ name: "not_for_us" producer_name_regex: "perfetto_cmd" }}
"#
    )
}

#[test]
fn the_trace_is_the_same_with_any_service_command_line_and_sender() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let uid = rustix::process::getuid().as_raw() as i32;
    let hit = |name: &str, delay| (name.to_owned(), "perfetto_cmd_producer".to_owned(), uid, delay);
    for traced in SIDES {
        let mut system = System::with_daemons(&programs, traced, Side::Ours);
        for perfetto in SIDES {
            for sender in SENDERS {
                let mixture = format!("traced: {traced}, perfetto: {perfetto}, sender: {sender:?}");
                // The trace processor takes long, and the other traces have the same notes.
                let is_queried = (perfetto, sender) == (Side::Ours, Sender::TriggerPerfetto);
                // On a busy machine data come late.
                let delay = if is_queried { 3_000 } else { 100 };
                for (mode, number, reached, duration_ms) in [
                    (
                        "START_TRACING",
                        TriggerMode::START_TRACING,
                        is_configured as fn(&_) -> _,
                        delay,
                    ),
                    ("STOP_TRACING", TriggerMode::STOP_TRACING, is_started, 60_000),
                ] {
                    let config = config(mode, 60_000, &named(delay));
                    let recording = Recording::begin(&programs, &system, perfetto, &config, reached);
                    let names = ["unknown", "not_for_us", "slow_frame", "crash"];
                    activate(&programs, &system, sender, &names);
                    let path = recording.trace.clone();
                    let trace = recording.finish(&system);
                    let expected = Said {
                        triggers: vec![hit("slow_frame", delay.into()), hit("crash", 60_000)],
                        mode: Some(number),
                        duration_ms: Some(duration_ms),
                    };
                    assert_eq!(Said::of(&trace), expected, "{mixture}, {mode}");
                    if !is_queried {
                        continue;
                    }
                    let [losses, shown, counters] = processor.query(
                        &path,
                        [
                            LOSSES,
                            "select s.name from slice s join track t on s.track_id = t.id
                             where t.name = 'Trace Triggers' order by s.ts, s.id",
                            "select count(*) > 1 from counter",
                        ],
                    );
                    // Upstream's service writes the clocks of the trigger after those of the start that it caused.
                    if traced == Side::Ours || mode == "STOP_TRACING" {
                        assert_eq!(losses, Rows::new(), "{mixture}, {mode}");
                    }
                    assert_eq!(shown, [["slow_frame"], ["crash"]], "{mixture}, {mode}");
                    assert_eq!(counters, [["1"]], "{mixture}, {mode}: data were recorded");
                }
            }
        }
        system.assert_running();
    }
}

#[test]
fn without_its_trigger_a_recording_ends_well_and_leaves_an_empty_file() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for traced in SIDES {
        let mut system = System::with_daemons(&programs, traced, Side::Ours);
        for perfetto in SIDES {
            for mode in ["START_TRACING", "STOP_TRACING"] {
                let config = config(mode, 300, "triggers { name: \"never\" stop_delay_ms: 60000 }");
                let recording = Recording::begin(&programs, &system, perfetto, &config, |_| true);
                let trace = recording.trace.clone();
                recording.finish(&system);
                let size = std::fs::metadata(trace).unwrap().len();
                assert_eq!(size, 0, "traced: {traced}, perfetto: {perfetto}, {mode}");
                let said = system.log("perfetto.log");
                assert!(said.contains("Wrote 0 bytes into"), "{said}");
                if perfetto == Side::Ours {
                    assert!(said.contains("no trigger came"), "{said}");
                }
            }
        }
        system.assert_running();
    }
}

#[test]
fn a_limit_of_one_a_day_holds_for_the_next_recording_too() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for traced in SIDES {
        let system = System::with_daemons(&programs, traced, Side::Ours);
        let triggers = "triggers { name: \"once\" max_per_24_h: 1 stop_delay_ms: 60000 } \
                        triggers { name: \"always\" stop_delay_ms: 10 }";
        let config = config("STOP_TRACING", 60_000, triggers);
        // The trigger that ends the second recording is the one that the limit still allows.
        for (activated, told) in [(&["once"][..], "once"), (&["once", "always"], "always")] {
            let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_started);
            activate(&programs, &system, Sender::TriggerPerfetto, activated);
            if told == "once" {
                recording.process.signal(Signal::INT);
            }
            let said = Said::of(&recording.finish(&system)).triggers;
            let names: Vec<_> = said.iter().map(|(name, ..)| name.as_str()).collect();
            assert_eq!(names, [told], "traced: {traced}");
        }
    }
}

#[test]
fn a_service_refuses_an_expression_that_does_not_compile_and_lives() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config(
        "STOP_TRACING",
        1000,
        "triggers { name: \"t\" producer_name_regex: \"(\" }",
    );
    let trace = system.path("trace");
    let status = perfetto(
        &programs,
        &system,
        Side::Ours,
        &config,
        &["-o", trace.to_str().unwrap()],
    )
    .status()
    .unwrap();
    assert!(!status.success());
    let said = system.log("perfetto.log");
    assert!(said.contains("producer_name_regex"), "{said}");
    assert!(!trace.exists());
    system.assert_running();
    assert_eq!(system.state().num_sessions, Some(0));
}

#[test]
fn a_flood_of_triggers_holds_up_nobody_and_is_one_line_in_the_log() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("STOP_TRACING", 60_000, &ends_by("slow_frame"));
    let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_started);
    let options = ProducerOptions {
        name: "flood".into(),
        ..Default::default()
    };
    let socket = Address::Unix(system.producer_socket());
    let mut flood = ProducerEndpoint::connect(&socket, options).unwrap();
    // As many as fit into a frame.
    let names = vec!["x"; 40_000];
    let over = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                while flood.activate_triggers(&names).is_ok() {
                    sent += 1;
                }
                flood.flush();
                flood.on_readable();
                while flood.next_event().is_some() {}
                let mut socket = [PollFd::from_borrowed_fd(flood.as_fd(), PollFlags::OUT)];
                let at_most = Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                rustix::event::poll(&mut socket, Some(&at_most)).unwrap();
            }
            sent
        });
        // The flood has reached the service.
        let until = Instant::now() + PATIENCE;
        while !system.log("traced.log").contains("at once") && Instant::now() < until {
            std::thread::yield_now();
        }
        activate(&programs, &system, Sender::TriggerPerfetto, &["slow_frame"]);
        let said = Said::of(&recording.finish(&system));
        over.store(true, Ordering::Relaxed);
        assert!(sent.join().unwrap() > 0);
        said
    });
    assert_eq!(said.triggers.len(), 1);
    let log = system.log("traced.log");
    assert_eq!(log.matches("at once").count(), 1, "{log}");
    system.assert_running();
}

#[test]
fn a_recording_that_waits_says_for_what() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("START_TRACING", 60_000, &ends_by("slow_frame"));
    let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_configured);
    activate(&programs, &system, Sender::TriggerPerfetto, &["slow_frame"]);
    recording.finish(&system);
    let said = system.log("perfetto.log");
    assert!(
        said.contains("recording starts when a trigger is activated (slow_frame)"),
        "{said}"
    );
}

#[test]
fn a_recording_that_is_ended_before_its_trigger_blames_no_producer() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("START_TRACING", 60_000, "triggers { name: \"t\" }");
    let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_configured);
    recording.process.signal(Signal::INT);
    recording.finish(&system);
    let said = system.log("perfetto.log");
    assert!(said.contains("no trigger came"), "{said}");
    assert!(!said.contains("some producers"), "{said}");
}

#[test]
fn a_recording_that_takes_snapshots_tells_whether_it_did() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("CLONE_SNAPSHOT", 60_000, "triggers { name: \"t\" }");
    for (names, expected) in [
        (&[] as &[&str], "no snapshot was taken: there is no trace"),
        (&["t"], "trace stays empty"),
    ] {
        let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_started);
        if !names.is_empty() {
            activate(&programs, &system, Sender::TriggerPerfetto, names);
            system.await_state(|_| system.log("perfetto.log").contains("trace.0"));
        }
        recording.process.signal(Signal::INT);
        recording.finish(&system);
        let said = system.log("perfetto.log");
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("no trigger came"), "{said}");
    }
}

#[test]
fn a_recording_by_a_service_of_its_own_says_how_to_reach_that() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let config = config("STOP_TRACING", 60_000, &ends_by("t"));
    let file = system.path("config");
    std::fs::write(&file, config).unwrap();
    let trace = system.path("trace");
    let ferretto = Path::new(env!("CARGO_BIN_EXE_ferretto"));
    let mut command = system.command(ferretto, "ferretto.log");
    command.arg("--txt").arg("-c").arg(file).arg("-o").arg(&trace);
    let mut process = Running(command.env("TMPDIR", system.path("")).spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    let socket = loop {
        let said = system.log("ferretto.log");
        let line = said
            .lines()
            .find_map(|line| line.split_once("PERFETTO_PRODUCER_SOCK_NAME="));
        if let Some((socket, command)) = line.and_then(|(_, rest)| rest.split_once(' ')) {
            assert_eq!(command, "ferretto trigger_perfetto NAME");
            break socket.to_owned();
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::yield_now();
    };
    // When this is printed, the session may not have reached the service, so the trigger is activated repeatedly.
    while process.wait(Duration::from_millis(100)).is_none() {
        assert!(Instant::now() < until, "{}", system.log("ferretto.log"));
        let mut command = system.command(ferretto, "activation.log");
        command.args(["trigger_perfetto", "t"]);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", &socket)
            .status()
            .unwrap();
    }
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(!Said::of(&trace).triggers.is_empty());
}

#[test]
fn a_name_that_fits_no_request_holds_up_no_other() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("STOP_TRACING", 60_000, &ends_by("t"));
    let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_started);
    let long = "x".repeat(200_000);
    let activation = system.path("activation");
    let lines = format!("activate_triggers: \"{long}\"\nactivate_triggers: \"t\"\n");
    std::fs::write(&activation, lines).unwrap();
    let program = programs.path(Side::Ours, Program::Perfetto);
    let mut command = system.command(&program, "activation.log");
    let status = command.arg("--txt").arg("-c").arg(activation).status().unwrap();
    assert_eq!(status.code(), Some(1), "one of them did not get there");
    let said = system.log("activation.log");
    assert!(said.contains("the others are activated"), "{said}");
    assert_eq!(Said::of(&recording.finish(&system)).triggers.len(), 1);
}

#[test]
fn in_the_background_triggers_are_activated_too() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let config = config("START_TRACING", 60_000, &ends_by("slow_frame"));
    let recording = Recording::begin(&programs, &system, Side::Ours, &config, is_configured);
    let activation = "activate_triggers: \"slow_frame\"";
    let output = perfetto(&programs, &system, Side::Ours, activation, &["-D"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success());
    let pid = String::from_utf8(output.stdout).unwrap();
    assert!(pid.trim().parse::<u32>().is_ok(), "{pid:?}");
    let said = Said::of(&recording.finish(&system));
    assert_eq!(said.triggers.len(), 1);
}

#[test]
fn exit_codes_and_messages_are_those_that_apps_know() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let without_service = trigger_perfetto(&system, &["t"]);
    assert_eq!(without_service.status.code(), Some(1));
    let said = String::from_utf8(without_service.stderr).unwrap();
    assert!(said.contains("no tracing service listens"), "{said}");

    system.start(Side::Ours, Program::Traced);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["t"], 0, ""),
        (
            &["--from-the-future", "t"],
            0,
            "Ignoring unknown arguments. See --help for usage.",
        ),
        (&[], 1, "At least one trigger must be specified."),
        (&["--help"], 1, "Usage: trigger_perfetto TRIGGER..."),
        (&["t", "-h"], 1, "Usage: trigger_perfetto TRIGGER..."),
    ];
    for (words, code, message) in cases {
        let output = trigger_perfetto(&system, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert_eq!(output.stdout, b"");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(message), "{words:?}: {said}");
        assert_eq!(said.is_empty(), message.is_empty(), "{words:?}: {said}");
    }
    let as_applet = system
        .command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "ferretto.log")
        .args(["trigger_perfetto", "t"])
        .status()
        .unwrap();
    assert!(as_applet.success());
}
