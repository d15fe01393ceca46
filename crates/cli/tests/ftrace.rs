//! A recording's notes about ftrace that could not be set up, or that other programs changed: real programs, on a tracefs instance that only this
//! test uses.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use crate::support::process::Stopped;
use crate::support::trace::TraceProcessor;
use crate::support::tracefs::{Instance, Tracefs};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_probes::ftrace::restore::JournalDir;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{FtraceStats, Message, Trace, TracePacket};
use rustix::process::Signal;

/// A config that records from the instance.
fn config_of(instance: &Instance, ftrace_config: &str) -> String {
    format!(
        "buffers {{ size_kb: 16384 }}
            data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{
                instance_name: \"{}\" buffer_size_kb: 1024 {ftrace_config}
            }} }} }}",
        instance.name()
    )
}

/// A tracer in the top directory, while this lives.
struct Tracer;

impl Tracer {
    const FILE: &str = "/sys/kernel/tracing/current_tracer";

    fn set(name: &str) -> std::io::Result<Tracer> {
        std::fs::write(Tracer::FILE, name).map(|()| Tracer)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = std::fs::write(Tracer::FILE, "nop");
    }
}

fn packets(trace: &Path) -> Vec<TracePacket> {
    Trace::decode_from_slice(&std::fs::read(trace).unwrap())
        .unwrap()
        .packet
}

fn ftrace_stats(trace: &Path) -> Vec<(Option<u64>, FtraceStats)> {
    let stats = packets(trace).into_iter().filter_map(|packet| match packet.data {
        Some(Data::FtraceStats(stats)) => Some((packet.timestamp, *stats)),
        _ => None,
    });
    stats.collect()
}

/// Returns all notes in a trace about troubles with ftrace, each once.
fn troubles(trace: &Path) -> Vec<String> {
    let mut troubles: Vec<String> = Vec::new();
    for (_, stats) in ftrace_stats(trace) {
        for line in stats.atrace_errors.iter().flat_map(|lines| lines.lines()) {
            if !troubles.iter().any(|trouble| trouble == line) {
                troubles.push(line.to_owned());
            }
        }
    }
    troubles
}

fn perfetto(system: &System<'_>, config: &str, words: &[&str]) -> (Output, PathBuf) {
    let (file, trace) = (system.path("config"), system.path("trace"));
    std::fs::write(&file, config).unwrap();
    let mut command = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
    command.arg("--txt").arg("-c").arg(file).arg("-o").arg(&trace);
    command.args(words).stdout(std::process::Stdio::piped());
    (command.output().unwrap(), trace)
}

#[test]
fn a_recording_that_cannot_have_ftrace_has_the_reason_in_its_trace() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let missing = config_of(&instance, "").replace(instance.name(), "no-such-instance");
    let option = r#"tracefs_options { name: "../set_event" state: STATE_ENABLED }"#;
    let mut cases = vec![
        (missing, "there is no tracefs instance at"),
        (config_of(&instance, option), "no name of an option"),
        (
            config_of(
                &instance,
                r#"tracefs_options { name: "nonsense" state: STATE_ENABLED }"#,
            ),
            "options/nonsense",
        ),
    ];
    let Some(_lock) = Tracefs::lock() else { return };
    // An instance has no tracer that works on all machines, so this case uses the top directory.
    match Tracer::set("blk") {
        Ok(_) => cases.push((
            config_of(&instance, "").replace(&format!("instance_name: \"{}\"", instance.name()), ""),
            "current_tracer is `blk`",
        )),
        Err(error) => println!("in part skipped: current_tracer: {error}"),
    }
    for (config, reason) in cases {
        let _tracer = Tracer::set("blk");
        let (output, trace) = perfetto(&system, &format!("duration_ms: 100 {config}"), &[]);
        assert!(output.status.success(), "{reason}: {output:?}");
        let troubles = troubles(&trace);
        assert_eq!(troubles.len(), 1, "{reason}: {troubles:?}");
        assert!(
            troubles[0].starts_with("linux.ftrace could not be set up: ") && troubles[0].contains(reason),
            "{troubles:?}"
        );
        assert!(ftrace_stats(&trace)[0].0.is_some_and(|time| time > 0));
        if let Some(processor) = TraceProcessor::find() {
            let [errors] = processor.query(
                &trace,
                ["select value from stats where name = 'ftrace_setup_errors'"],
            );
            assert_eq!(errors, [["1"]], "{reason}");
        }
        assert!(system.log("traced_probes.log").contains(reason), "{reason}");
    }
}

#[test]
fn a_failed_start_is_not_reported_as_a_success() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let missing = config_of(&instance, "").replace(instance.name(), "no-such-instance");
    let (output, _) = perfetto(&system, &missing, &["-D"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let pid = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    // The stop is acknowledged, so nobody waits for it.
    system.await_state(|state| state.num_sessions == Some(0));
}

#[test]
fn a_start_that_failed_leaves_the_probes_no_raised_priority() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    system.await_state(|state| !state.data_sources.is_empty());
    let nice =
        || rustix::process::getpriority_process(rustix::process::Pid::from_raw(probes as i32)).unwrap();
    let usual = nice();
    let boost = "priority_boost { policy: POLICY_SCHED_OTHER priority: 5 } ftrace_config {";
    let config = config_of(&instance, "").replace("ftrace_config {", boost);
    let trigger = "trigger_mode: START_TRACING trigger_timeout_ms: 60000 triggers { name: \"go\" }";
    std::fs::write(
        system.path("config"),
        format!("trigger_config {{ {trigger} }} {config}"),
    )
    .unwrap();
    let mut perfetto = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
    let (config, trace) = (system.path("config"), system.path("trace"));
    perfetto.args(["--txt", "-c"]).arg(config).arg("-o").arg(trace);
    let mut perfetto = perfetto.spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let may_be_raised = loop {
        if nice() != usual {
            break true;
        }
        if system.log("traced_probes.log").contains("at the usual priority") {
            break false;
        }
        assert!(Instant::now() < until, "it is set up");
        std::thread::yield_now();
    };
    if may_be_raised {
        instance.remove().unwrap();
        let mut trigger = system.command(Path::new(env!("CARGO_BIN_EXE_trigger_perfetto")), "trigger.log");
        assert!(trigger.arg("go").status().unwrap().success());
        await_log(&system, "could not be started");
        while nice() != usual {
            assert!(Instant::now() < until, "the priority is as before");
            std::thread::yield_now();
        }
    } else {
        println!("skipped: this user may not raise priorities");
    }
    perfetto.kill().unwrap();
    perfetto.wait().unwrap();
}

#[test]
fn an_event_that_cannot_be_does_not_keep_the_others_from_being_recorded() {
    let Some(instance) = Instance::new() else { return };
    // Our command line refuses such a config, so upstream's sends it.
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let config = config_of(
        &instance,
        r#"ftrace_events: "sched/*,irq/*" ftrace_events: "*/*" ftrace_events: "sched/sched_switch"
        syscall_events: "sys_nonsense" compact_sched { enabled: false }"#,
    );
    let recording = system.record(Side::Upstream, &config);
    // This thread is switched out, and in again.
    assert!(std::process::Command::new("true").status().unwrap().success());
    let trace = recording.interrupt();
    let packets = packets(&trace);
    let bundles = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::FtraceEvents(bundle)) => Some(bundle),
        _ => None,
    });
    let events: Vec<_> = bundles.flat_map(|bundle| &bundle.event).collect();
    assert!(!events.is_empty());
    for event in &events {
        let event = format!("{:?}", event.event);
        assert!(event.starts_with("Some(SchedSwitch("), "{event}");
    }
    let (_, stats) = &ftrace_stats(&trace)[0];
    assert_eq!(stats.unknown_ftrace_events, ["sched/*,irq/*", "*/*"]);
    assert_eq!(troubles(&trace), [""; 0]);
}

/// Waits until the probes have logged this.
fn await_log(system: &System<'_>, text: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let log = std::fs::read_to_string(system.path("traced_probes.log")).unwrap();
        if log.contains(text) {
            return;
        }
        assert!(Instant::now() < until, "{text} is not in\n{log}");
        std::thread::yield_now();
    }
}

#[test]
fn the_trace_notes_that_another_program_changed_ftrace() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    // A missing event: upstream's trace processor reads only one such packet of each writer.
    let config = config_of(
        &instance,
        r#"ftrace_events: "sched/sched_switch" ftrace_events: "no/event""#,
    );
    let recording = system.record(Side::Ours, &config);
    instance.write("tracing_on", "0");
    await_log(&system, "switched recording off");
    instance.write("tracing_on", "1");
    await_log(&system, "Recording is on again");
    instance.write("set_event", "");
    await_log(&system, "switched events off");
    // The probes notice it at the stop, if not before.
    instance.write("tracing_on", "0");
    let trace = recording.interrupt();
    let troubles = troubles(&trace);
    let expected = [
        "Somebody switched recording off",
        "Recording is on again",
        "Somebody switched events off",
        "Somebody switched recording off",
    ];
    assert_eq!(troubles.len(), expected.len(), "{troubles:?}");
    for (trouble, expected) in troubles.iter().zip(expected) {
        assert!(trouble.starts_with(expected), "{troubles:?}");
    }
    let stats = ftrace_stats(&trace);
    let timed = stats
        .iter()
        .filter(|(time, stats)| time.is_some() && stats.atrace_errors.is_some());
    assert_eq!(timed.count(), 4, "each has a packet of its own");
    if let Some(processor) = TraceProcessor::find() {
        let [errors] = processor.query(
            &trace,
            ["select value >= 4 from stats where name = 'ftrace_setup_errors'"],
        );
        assert_eq!(errors, [["1"]]);
    }
    // The probes do not change it back.
    assert_eq!(instance.read("tracing_on"), "0");
}

/// Another program that writes to files of an instance, and then stays.
struct Shell(Child);

impl Shell {
    fn that_does(instance: &Instance, commands: &str) -> Shell {
        let mut shell = Command::new("sh")
            .current_dir(instance.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(shell.stdin.as_ref().unwrap(), "set -e; {commands}; echo done").unwrap();
        let mut said = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "done\n", "{commands}");
        Shell(shell)
    }

    /// The note about a write of this process to `file`.
    fn wrote_to(&self, file: &Path) -> String {
        format!("Process {} (sh) wrote to {} ", self.0.id(), file.display())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_trace_notes_changes_between_two_looks() {
    let Some(instance) = Instance::new() else { return };
    if !Tracefs::tells_of_writes_to(&instance.file("tracing_on")) {
        return;
    }
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    // An event that hardly ever happens. The buffers are not read then, so reading does not show that they were emptied.
    let config = config_of(
        &instance,
        r#"ftrace_events: "sched/sched_process_hang" ftrace_events: "ftrace/print""#,
    );
    let event = "events/sched/sched_process_hang/enable";
    let ferretto = Path::new(env!("CARGO_BIN_EXE_ferretto"));
    let (mut recording, _) = system.begin(ferretto, &["--strict"], &config);
    let by = [
        ("trace", ": > trace".to_owned()),
        ("tracing_on", "echo 0 > tracing_on; echo 1 > tracing_on".into()),
        (
            "set_event",
            "echo > set_event; echo sched:sched_process_hang > set_event".into(),
        ),
        (event, format!("echo 0 > {event}; echo 1 > {event}")),
        (
            "events/enable",
            format!("echo 0 > events/enable; echo 1 > {event}"),
        ),
        (
            "buffer_size_kb",
            "echo 512 > buffer_size_kb; echo 1024 > buffer_size_kb".into(),
        ),
        (
            "trace_clock",
            "echo local > trace_clock; echo boot > trace_clock".into(),
        ),
    ];
    // The probes are stopped, so that they do not look between the changes.
    let stopped = Stopped::new(probes);
    let shells = by.map(|(file, commands)| (file, Shell::that_does(&instance, &commands)));
    drop(stopped);
    for (file, shell) in &shells {
        await_log(&system, &shell.wrote_to(&instance.file(file)));
    }
    // An event is recorded nevertheless.
    instance.write("trace_marker", "still here");
    recording.signal(Signal::INT);
    let status = recording.wait().unwrap();
    assert_eq!(status.code(), Some(3), "{}", recording.said());
    let troubles = troubles(recording.trace());
    assert_eq!(troubles.len(), shells.len(), "each once: {troubles:#?}");
    for (file, shell) in &shells {
        let wrote = shell.wrote_to(&instance.file(file));
        let told = troubles.iter().filter(|trouble| trouble.starts_with(&wrote));
        assert_eq!(told.count(), 1, "{wrote}: {troubles:#?}");
        assert!(recording.said().contains(&wrote), "{wrote}: {}", recording.said());
    }
}

#[test]
fn a_program_that_changed_ftrace_is_named_once() {
    let Some(instance) = Instance::new() else { return };
    if !Tracefs::tells_of_writes_to(&instance.file("tracing_on")) {
        return;
    }
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let recording = system.record(
        Side::Ours,
        &config_of(&instance, r#"ftrace_events: "sched/sched_switch""#),
    );
    let shell = Shell::that_does(&instance, "echo 0 > tracing_on");
    await_log(&system, "switched recording off");
    let other = Shell::that_does(&instance, "echo > set_event");
    await_log(&system, "switched events off");
    let trace = recording.interrupt();
    let troubles = troubles(&trace);
    let expected = [
        format!("; process {} (sh) wrote to tracing_on then.", shell.0.id()),
        format!("; process {} (sh) wrote to set_event then.", other.0.id()),
    ];
    assert_eq!(troubles.len(), expected.len(), "{troubles:#?}");
    for (trouble, expected) in troubles.iter().zip(expected) {
        assert!(
            trouble.starts_with("Somebody switched") && trouble.ends_with(&expected),
            "{troubles:#?}"
        );
    }
}

#[test]
fn a_recording_that_is_left_alone_tells_of_no_trouble() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let config = config_of(
        &instance,
        r#"ftrace_events: "sched/sched_waking" ftrace_events: "sched/sched_switch""#,
    );
    let other = config_of(
        &instance,
        r#"ftrace_events: "sched/sched_process_exit" ftrace_events: "sched/sched_switch""#,
    );
    let first = system.record(Side::Ours, &format!("flush_period_ms: 500 {config}"));
    let second = system.record(Side::Ours, &format!("duration_ms: 1500 {other}"));
    let second = second.finish();
    let third = system.record(Side::Ours, &format!("duration_ms: 1500 {other}"));
    let third = third.finish();
    for trace in [second, third, first.interrupt()] {
        assert_eq!(troubles(&trace), [""; 0]);
    }
    assert_eq!(instance.read("set_event"), "");
}

#[test]
fn cleaning_up_after_a_crash_leaves_nothing_for_a_later_start_to_put_back() {
    let Some(instance) = Instance::new() else { return };
    let Some(_lock) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    // It hardly ever happens, so that nothing overwrites what the test writes.
    let config = config_of(&instance, r#"ftrace_events: "sched/sched_process_hang""#);
    let clock = instance.read("trace_clock");
    let recording = system.record(Side::Ours, &config);
    assert_eq!(instance.read("set_event"), "sched:sched_process_hang");
    let journals = || {
        let folders = JournalDir::places(rustix::process::geteuid().as_raw());
        let entries = folders.iter().flat_map(std::fs::read_dir).flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with(&format!("ftrace-{probes}-")))
            .count()
    };
    assert_eq!(journals(), 1);
    // From now on, any daemon that starts restores the settings in this journal, including daemons of other tests.
    system.end_with(probes, Signal::KILL);
    let cleanup = system
        .command(&system.program(Side::Ours, Program::TracedProbes), "cleanup.log")
        .arg("--cleanup-after-crash")
        .status()
        .unwrap();
    assert!(cleanup.success(), "{}", system.log("cleanup.log"));
    assert_eq!(journals(), 0, "{}", system.log("cleanup.log"));
    assert_eq!(instance.read("set_event"), "");
    assert_eq!(instance.read("trace_clock"), clock);
    drop(recording);

    // Another program's tracing, with the settings that the recording had used.
    for (file, value) in [
        ("buffer_size_kb", "1024"),
        ("set_event", "sched:sched_process_hang"),
        ("tracing_on", "1"),
    ] {
        instance.write(file, value);
    }
    instance.write("trace_marker", "theirs");
    system.start(Side::Ours, Program::TracedProbes);
    assert_eq!(instance.read("set_event"), "sched:sched_process_hang");
    assert!(instance.read("trace").contains("theirs"));
    instance.write("set_event", "");
}

#[test]
fn events_that_killed_probes_had_read_are_in_the_trace() {
    let Some(instance) = Instance::new() else { return };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    let recording = system.record(
        Side::Ours,
        &config_of(&instance, r#"ftrace_events: "ftrace/print""#),
    );
    let read_events = || {
        let folders = std::fs::read_dir(instance.file("per_cpu")).unwrap();
        let stats =
            folders.map(|folder| std::fs::read_to_string(folder.unwrap().path().join("stats")).unwrap());
        let count = |stats: String| {
            let line = stats.lines().find_map(|line| line.strip_prefix("read events: "));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        stats.map(count).sum::<u64>()
    };
    // When the second event has been read, the first has been written.
    for number in 1..=2 {
        instance.write("trace_marker", "rescued\n");
        let until = Instant::now() + PATIENCE;
        while read_events() < number {
            assert!(Instant::now() < until, "the probes do not read");
            std::thread::yield_now();
        }
    }
    system.end_with(probes, Signal::KILL);
    let trace = recording.interrupt();
    let prints = packets(&trace)
        .into_iter()
        .filter_map(|packet| match packet.data {
            Some(Data::FtraceEvents(bundle)) => Some(bundle.event.len()),
            _ => None,
        })
        .sum::<usize>();
    assert!(prints >= 1, "{prints}");
    // The next start finds the journal and switches the recording off.
    system.start(Side::Ours, Program::TracedProbes);
}
