//! The sentences for which upstream's own integration tests look (`test/cmdline_integrationtest.cc`), as scripts may do. Our messages begin with
//! these sentences or contain them, and then give advice.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Program, Programs, Side, System};

/// A command line, with the expected result.
struct Phrase {
    /// The arguments of `perfetto`.
    line: &'static str,
    /// The config on stdin.
    config: &'static str,
    code: i32,
    /// Texts on stderr, in this order: all for which upstream's tests look.
    says: &'static [&'static str],
}

const fn phrase(
    line: &'static str,
    config: &'static str,
    code: i32,
    says: &'static [&'static str],
) -> Phrase {
    Phrase {
        line,
        config,
        code,
        says,
    }
}

const CONFIG: &str = "duration_ms: 100";

const PHRASES: &[Phrase] = &[
    phrase("--version", "", 0, &[]),
    phrase("-c - --txt -o -", CONFIG, 0, &[]),
    phrase("-o - -c - -t 100ms", "", 0, &[]),
    phrase(
        "-o - -c - --txt --detach=valid_stop",
        "duration_ms: 10000; write_into_file: true",
        0,
        &[],
    ),
    phrase("--attach=valid_stop --stop", "", 0, &[]),
    phrase("--time 1ms --out here", "", 0, &[]),
    phrase(
        "--time 1ms --no-clobber --out here",
        "",
        1,
        &["Error: Output file 'here' already exists, refusing to overwrite due to '--no-clobber'."],
    ),
    phrase("--time 1ms --out here", "", 0, &[]),
    phrase("--invalid-arg", "", 1, &[]),
    phrase("-c - -o -", "", 1, &["TraceConfig is empty"]),
    phrase("-o -", "", 1, &["TraceConfig is empty"]),
    phrase("-c - --txt -o - --dropbox=foo", CONFIG, 1, &[]),
    phrase("-c - --txt", CONFIG, 1, &["Either --out or --upload is required"]),
    phrase("-t 1s", "", 1, &["Either --out or --upload is required"]),
    phrase(
        "-o - -c - -t 2s",
        CONFIG,
        1,
        &["Cannot specify both -c/--config and any of"],
    ),
    phrase(
        "-o - -c - -b 2m",
        CONFIG,
        1,
        &["Cannot specify both -c/--config and any of"],
    ),
    phrase(
        "-o - -c - -s 2m",
        CONFIG,
        1,
        &["Cannot specify both -c/--config and any of"],
    ),
    phrase(
        "-o - -c - sched/sched_switch",
        CONFIG,
        1,
        &["Cannot specify both -c/--config and any of"],
    ),
    phrase(
        "-c - --txt -o - --stop",
        CONFIG,
        1,
        &["--stop is supported only in combination with --attach"],
    ),
    phrase(
        "-c - --txt -o - --attach=foo",
        CONFIG,
        1,
        &["Cannot specify a trace config"],
    ),
    phrase(
        "-t 2s -o - --attach=foo",
        "",
        1,
        &["Cannot specify a trace config"],
    ),
    phrase("-t 2s --query", "", 1, &["Cannot specify a trace config"]),
    phrase("-c - --query", CONFIG, 1, &["Cannot specify a trace config"]),
    phrase("--attach", "", 1, &["option", "--attach", "requires an argument"]),
    phrase(
        "-t 2s -o - --detach",
        "",
        1,
        &["option", "--detach", "requires an argument"],
    ),
    phrase(
        "-o trace --time",
        "",
        1,
        &["option", "--time", "requires an argument"],
    ),
    phrase("-t 2s --detach=foo", "", 1, &["--out or --upload is required"]),
    phrase("--attach=not_existent", "", 2, &["Session re-attach failed"]),
    phrase(
        "--attach=not_existent --stop",
        "",
        2,
        &["Session re-attach failed"],
    ),
    phrase(
        "--save-all-for-bugreport",
        "",
        0,
        &["No tracing sessions eligible"],
    ),
    phrase(
        "-t 1ms -o there --no-clobber",
        "",
        1,
        &["Error: Output file 'there' already exists, refusing to overwrite due to '--no-clobber'."],
    ),
];

#[test]
fn upstreams_tests_find_the_sentences_that_they_look_for() {
    let programs = &Programs::of_both().unwrap_or_else(Programs::ours);
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    std::fs::write(system.path("there"), "earlier").unwrap();
    let mut failures = Vec::new();
    let sides = [Side::Ours, Side::Upstream];
    // In order, because later command lines use the results of earlier ones.
    for side in sides
        .into_iter()
        .filter(|side| *side == Side::Ours || programs.has_upstreams())
    {
        for phrase in PHRASES {
            let mut command = system.command(&system.program(side, Program::Perfetto), "unused.log");
            command.args(phrase.line.split(' ')).current_dir(system.path(""));
            let (code, said) = run(command, phrase.config);
            let mut rest = said.as_str();
            let found = phrase.says.iter().all(|part| match rest.split_once(part) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            });
            if code != Some(phrase.code) || !found {
                failures.push(format!("{side} perfetto {}: {code:?}\n{said}", phrase.line));
            }
        }
    }
    assert_eq!(std::fs::read(system.path("there")).unwrap(), b"earlier");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_lost_service_is_reported_as_upstream_does() {
    let programs = &Programs::ours();
    let mut system = System::new(programs);
    let traced = system.start(Side::Ours, Program::Traced);
    let mut recording = system.record(Side::Ours, "buffers { size_kb: 64 }");
    system.end_with(traced, rustix::process::Signal::KILL);
    assert_eq!(recording.wait().and_then(|status| status.code()), Some(1));
    let said = recording.said();
    let sentence = "Service error: EnableTracing IPC request rejected. This is likely due to a loss of the traced connection";
    assert!(said.contains(sentence), "{said}");
}

/// Runs a command with this on stdin; returns its exit code and its messages.
fn run(mut command: Command, input: &str) -> (Option<i32>, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its flags reads no config.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
