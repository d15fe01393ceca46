//! Event words that users type: in the spelling of `perf`, `trace-cmd`, `strace` and `bpftrace`, and with mistakes.
//!
//! `ferretto` looks words up in the kernel's list of events; the config in the trace shows the result.

use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::tracefs::Tracefs;
use crate::support::{Program, Programs, Side, System};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{FtraceConfig, Message, Trace};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// A system with a service and no probes, so that recordings do not touch the kernel.
fn system(programs: &Programs) -> System<'_> {
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    system
}

fn run(system: &System<'_>, words: &[&str]) -> Output {
    let mut command = system.command(Path::new(FERRETTO), "unused.log");
    command
        .args(words)
        .current_dir(system.path(""))
        .stderr(Stdio::piped());
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Records with these words; returns the ftrace config in the trace.
fn asked_for(system: &System<'_>, words: &[&str]) -> FtraceConfig {
    let trace = system.path("trace");
    let file = trace.to_str().unwrap();
    let output = run(system, &[&["-t", "1ms", "-o", file], words].concat());
    let read = std::fs::read(&trace).unwrap_or_default();
    let trace = Trace::decode_from_slice(&read).unwrap();
    let configs = trace.packet.into_iter().filter_map(|packet| match packet.data {
        Some(Data::TraceConfig(config)) => Some(config),
        _ => None,
    });
    let sources = configs.flat_map(|config| config.data_sources.clone());
    let ftrace = sources.filter(|source| source.config.name.as_deref() == Some("linux.ftrace"));
    let found: Vec<FtraceConfig> = ftrace
        .map(|source| (*source.config.ftrace_config).clone())
        .collect();
    match <[FtraceConfig; 1]>::try_from(found) {
        Ok([config]) => config,
        Err(found) => panic!("{words:?}: {found:?}\n{}", said(&output)),
    }
}

#[test]
fn the_words_of_other_tools_are_understood() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let system = system(&programs);
    for (words, events) in [
        (&["sched:sched_switch"][..], &["sched/sched_switch"][..]),
        (&["sched_switch"], &["sched/sched_switch"]),
        (&["sys_enter_openat"], &["syscalls/sys_enter_openat"]),
        (&["syscalls:sys_enter_openat"], &["syscalls/sys_enter_openat"]),
        (&["sched:*"], &["sched/*"]),
        (&["irq:softirq_e*"], &["irq/softirq_entry", "irq/softirq_exit"]),
        (
            &["-e", "sched:sched_switch,irq:softirq_entry", "-e", "sched_waking"],
            &["sched/sched_switch", "irq/softirq_entry", "sched/sched_waking"],
        ),
        (&["-e", "irq"], &["irq/*"]),
        (&["tracepoint:sched:sched_switch"], &["sched/sched_switch"]),
        (&["sched/*,irq/*"], &["sched/*", "irq/*"]),
    ] {
        assert_eq!(asked_for(&system, words).ftrace_events, events, "{words:?}");
    }
    let calls = asked_for(&system, &["-e", "trace=openat,read"]);
    assert_eq!(calls.syscall_events, ["sys_openat", "sys_read"]);
    // Words that upstream's command line knows have the same meaning here.
    let categories = asked_for(&system, &["sched", "gfx"]);
    assert_eq!(categories.atrace_categories, ["sched", "gfx"]);
    assert!(categories.ftrace_events.is_empty());
}

#[test]
fn perfetto_takes_words_as_upstreams_does() {
    let programs = Programs::ours();
    let system = system(&programs);
    let trace = system.path("trace");
    let perfetto = |words: &[&str]| {
        let mut command = system.command(Path::new(env!("CARGO_BIN_EXE_perfetto")), "unused.log");
        command
            .args(["-t", "1ms", "-o"])
            .arg(&trace)
            .args(words)
            .stderr(Stdio::piped());
        command.output().unwrap()
    };
    assert!(perfetto(&["sched_switch", "sched:sched_switch"]).status.success());
    let written = Trace::decode_from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let categories = written.packet.iter().find_map(|packet| match &packet.data {
        Some(Data::TraceConfig(config)) => Some(
            config
                .data_sources
                .first()?
                .config
                .ftrace_config
                .atrace_categories
                .clone(),
        ),
        _ => None,
    });
    assert_eq!(categories.unwrap(), ["sched_switch", "sched:sched_switch"]);
    assert_eq!(perfetto(&["-e", "sched:sched_switch"]).status.code(), Some(1));
}

#[test]
fn a_mistake_gets_a_suggestion_and_records_nothing() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let system = system(&programs);
    let trace = system.path("trace");
    let file = trace.to_str().unwrap();
    for (words, meant) in [
        (
            &["-t", "5s", "sched/sched_swich"][..],
            "did you mean sched/sched_switch?",
        ),
        (
            &["-t", "5s", "sched_swich"],
            "did you mean the event sched/sched_switch?",
        ),
        (
            &["-t", "5s", "-e", "sched:sched_swich"],
            "did you mean sched/sched_switch?",
        ),
        (&["-t", "5s", "shced"], "did you mean the category sched?"),
        (&["-t", "5s", "recrod"], "did you mean `ferretto record`?"),
        (&["recrod", "sched"], "did you mean `ferretto record`?"),
        (&["reccord", "sched"], "did you mean `ferretto record`?"),
        (&["-t", "5s", "*/*"], "name groups, like 'sched/*'"),
        (&["-t", "5s", "openat"], "-e trace=openat"),
        (
            &["-t", "5s", "--outt", "x", "sched"],
            "unrecognized option '--outt': did you mean '--out'?",
        ),
        (
            &["-t", "5s", "--tmie", "x", "sched"],
            "unrecognized option '--tmie': did you mean '--time'?",
        ),
        (&["-t", "5s", "-z", "sched"], "unrecognized option '-z'"),
    ] {
        for more in [&["-o", file][..], &[]] {
            let output = run(&system, &[words, more].concat());
            let said = said(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
            assert!(said.contains(meant), "{words:?}: {said}");
            assert!(!said.contains("-- -"), "{words:?}: {said}");
            assert!(!trace.exists(), "{words:?}");
        }
    }
    let entries: Vec<_> = std::fs::read_dir(system.path(""))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(
        !entries
            .iter()
            .any(|name| name.to_string_lossy().ends_with(".pftrace")),
        "{entries:?}"
    );
}

#[test]
fn a_wrong_flag_at_any_place_is_reported_with_the_right_one() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for (line, meant) in [
        (
            "info --jsno x",
            "ferretto info: unrecognized option '--jsno': did you mean '--json'?",
        ),
        (
            "config check --foo x",
            "ferretto config: unrecognized option '--foo': `ferretto config --help` lists all",
        ),
        ("doctor --foo", "ferretto doctor: unrecognized option '--foo'"),
        ("config chekc x", "'check'"),
        ("help recrod", "'record'"),
        (
            "--time",
            "ferretto: option '--time' requires an argument: write --time <TIME>",
        ),
        (
            "-t 1s --foo",
            "ferretto: unrecognized option '--foo': `ferretto help record` lists all",
        ),
    ] {
        let output = run(&system, &line.split(' ').collect::<Vec<_>>());
        let said = said(&output);
        assert!(!output.status.success(), "{line}");
        assert!(
            said.contains(meant) && !said.contains("use '-- "),
            "{line}: {said}"
        );
    }
}
