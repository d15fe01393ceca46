//! Flag by flag: compares the behaviour that a script sees of our programs and of upstream's.
//!
//! Each [`Case`] is a few lines of shell that a user might have. It runs with our programs and with upstream's, with either service. Its output, exit
//! code and files are compared with the expected ones for both sides, and the configs in the traces with each other. Where we differ on purpose, the
//! case has upstream's behaviour and names the [`Difference`]; it fails once there is no difference any more. `docs/flags.md` is compared with the
//! flags that the programs define, with the cases, and with the differences.

mod background;
mod daemons;
mod differences;
mod outcome;
mod output;
mod phrases;
mod recording;
mod sessions;
mod table;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::support::{Program, Programs, Running, Side, System, socket_folder, write_script};
use differences::Difference;
use outcome::Outcome;
use rustix::process::{Pid, Signal};

/// The time for a case, which may run dozens of programs in turn on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// The exit code of a script that cannot run here.
const SKIPPED: i32 = 77;

/// Definitions at the start of each script.
const PRELUDE: &str = r#"
# Until so many sessions are in this state.
until_sessions() { until "$OURS" --query 2>/dev/null | grep -q "^Tracing sessions: $1 "; do :; done; }
until_started() { until "$OURS" --query 2>/dev/null | grep -q "(started: $1)"; do :; done; }
until_file() { until [ -s "$1" ]; do :; done; }
until_gone() { while [ -e "/proc/$1/exe" ]; do :; done; }
until_said() { until grep -q "$1" said; do :; done; }
# Until it has taken the signals that it was sent.
until_taken() { while grep -q '^S..Pnd:.*[1-9a-f]' "/proc/$1/status" 2>/dev/null; do :; done; }
# Until SIGTERM does not simply end it any more.
until_catches() { until grep -q '^SigCgt:.*[4-7c-f]...$' "/proc/$1/status"; do :; done; }
# Until the recording has been told of the first signal, and a second one is no echo of that (SAME_INTERRUPT).
until_ending() { until_said 'ending the recording\|disabling tracing'; sleep 0.4; }
# Follows a detached session as $pid. Who asks whether it is detached has it for a moment, so that others find none.
follow() {
    perfetto --attach="$1" & pid=$!
    while perfetto --is_detached "$1"; do [ -e "/proc/$pid/exe" ] || { perfetto --attach="$1" & pid=$!; }; done
    # It was answered before the last question was, and sleeps again when it has read that.
    until grep -q ') S ' "/proc/$pid/stat"; do :; done
}
is_pid() { case "$1" in ''|*[!0-9]*) echo "no process id: $1";; *) echo "a process id";; esac; }
runs() { if [ -e "/proc/$1/exe" ]; then echo runs; else echo gone; fi; }
# Whether it was said that all of this file was written.
wrote() { grep -q "Wrote $(stat -c %s "$1") bytes into $1\$" said && echo "wrote $1"; }
# The exit code of each of these lines.
codes() { while read -r line; do eval "$line" >/dev/null 2>&1 </dev/null; echo "$? $line"; done; }
"#;

/// Configs in the folder of each script.
const CONFIGS: [(&str, &str); 9] = [
    ("short.cfg", "duration_ms: 10 buffers { size_kb: 64 }"),
    ("endless.cfg", "buffers { size_kb: 64 }"),
    (
        "named.cfg",
        "unique_session_name: \"the name\" buffers { size_kb: 64 }",
    ),
    ("stream.cfg", "write_into_file: true buffers { size_kb: 64 }"),
    ("refused.cfg", "buffers { size_kb: 0 }"),
    ("bugreport.cfg", "bugreport_score: 1 buffers { size_kb: 64 }"),
    ("snapshots.cfg", SNAPSHOTS),
    ("activate.cfg", "activate_triggers: \"now\""),
    ("bad.cfg", "bogus: 5"),
];
const SNAPSHOTS: &str = "buffers { size_kb: 64 } trigger_config { trigger_mode: CLONE_SNAPSHOT trigger_timeout_ms: 60000 \
                         triggers { name: \"now\" stop_delay_ms: 1 } }";
/// A large config, which makes the trace too large for a pipe.
const BIG: (&str, usize) = ("big.cfg", 100_000);
/// short.cfg, encoded.
const ENCODED: (&str, &[u8]) = ("encoded.cfg", &[0x18, 10, 0x0a, 2, 0x08, 64]);

/// A script, with its expected outcome.
struct Case {
    /// The subject of the case.
    about: &'static str,
    script: &'static str,
    /// The outcome with our programs: the lines of stdout, a line for the exit code unless it is 0, and a line for each new file.
    seen: &'static str,
    upstream: Upstream,
}

/// The outcome with upstream's programs.
#[derive(Clone, Copy)]
enum Upstream {
    /// The same outcome.
    Same,
    /// Another outcome, for this reason.
    Differs(Difference, &'static str),
    /// The configs in the traces differ, for this reason.
    OtherConfig(Difference),
    /// The case is not run, for this reason.
    NotRun(&'static str),
}

impl Case {
    const fn same(about: &'static str, script: &'static str, seen: &'static str) -> Case {
        Case {
            about,
            script,
            seen,
            upstream: Upstream::Same,
        }
    }

    const fn differs(
        about: &'static str,
        difference: Difference,
        script: &'static str,
        seen: &'static str,
        upstream: &'static str,
    ) -> Case {
        Case {
            about,
            script,
            seen,
            upstream: Upstream::Differs(difference, upstream),
        }
    }

    const fn ours(about: &'static str, why: &'static str, script: &'static str, seen: &'static str) -> Case {
        Case {
            about,
            script,
            seen,
            upstream: Upstream::NotRun(why),
        }
    }
}

/// All cases, by subject.
const CASES: [&[Case]; 9] = [
    recording::CASES,
    output::CASES,
    background::CASES,
    sessions::CASES,
    sessions::TRIGGERS,
    sessions::QUERIES,
    daemons::TRIGGER_PERFETTO,
    daemons::WEBSOCKET_BRIDGE,
    daemons::CASES,
];

/// Runs cases against a service of each side. Reports failures at the end.
fn run(cases: &[Case]) {
    let programs = &Programs::of_both().unwrap_or_else(Programs::ours);
    let sides: &[Side] = match programs.has_upstreams() {
        true => &[Side::Ours, Side::Upstream],
        false => &[Side::Ours],
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let beside = |&traced| scope.spawn(move || run_beside(programs, cases, traced, sides));
        let threads: Vec<_> = sides.iter().map(beside).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn run_beside(programs: &Programs, cases: &[Case], traced: Side, sides: &[Side]) -> Vec<String> {
    let mut system = System::new(programs);
    let pid = system.start(traced, Program::Traced);
    let fails = |case: &Case| {
        let failure = run_case(&system, case, pid, sides).err()?;
        Some(format!("{} ({traced} traced): {failure}", case.about))
    };
    cases.iter().filter_map(fails).collect()
}

fn run_case(system: &System<'_>, case: &Case, traced_pid: u32, sides: &[Side]) -> Result<(), String> {
    let run = |side, expected: &str| {
        let run = Run {
            system,
            case,
            side,
            traced_pid,
        };
        let outcome = run.outcome()?;
        // Sessions of this script would disturb the next one.
        system.await_state(|state| state.num_sessions == Some(0));
        let Some(outcome) = outcome else { return Ok(None) };
        let expected = unindented(expected);
        if outcome.seen != expected {
            let Outcome { seen, said, .. } = outcome;
            return Err(format!(
                "of {side}'s perfetto is seen\n{seen}\nand not\n{expected}\nIt said\n{said}"
            ));
        }
        Ok(Some(outcome))
    };
    let expected = match case.upstream {
        Upstream::NotRun(why) => {
            println!("{}: upstream's is not run: {why}", case.about);
            None
        }
        Upstream::Same | Upstream::OtherConfig(_) => Some(case.seen),
        Upstream::Differs(_, seen) => Some(seen),
    };
    let ours = run(Side::Ours, case.seen)?;
    let theirs = match expected.filter(|_| sides.contains(&Side::Upstream)) {
        None => None,
        Some(expected) => run(Side::Upstream, expected)?,
    };
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return Ok(());
    };
    let equal = ours.seen == theirs.seen && ours.configs == theirs.configs && ours.same == theirs.same;
    match (case.upstream, equal) {
        (Upstream::Same, false) => Err(format!(
            "not the same: ours {:?} {:?}, upstream's {:?} {:?}",
            ours.configs, ours.same, theirs.configs, theirs.same
        )),
        (Upstream::Differs(difference, _) | Upstream::OtherConfig(difference), true) => {
            Err(format!("{difference:?} is none any more"))
        }
        _ => Ok(()),
    }
}

/// Removes the indentation that the lines have in the source.
fn unindented(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("\n")
}

/// A case with programs of one side.
struct Run<'a> {
    system: &'a System<'a>,
    case: &'a Case,
    side: Side,
    traced_pid: u32,
}

impl Run<'_> {
    /// Runs it; `None` if it cannot run here. Fails if it does not end.
    fn outcome(&self) -> Result<Option<Outcome>, String> {
        let folder = socket_folder("ferretto-flags-");
        let path = folder.path();
        let (bin, place) = (path.join("bin"), path.join("here"));
        for folder in [&bin, &place] {
            std::fs::create_dir(folder).unwrap();
        }
        self.link_programs(&bin);
        write_configs(&place);
        let mut words = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect::<Vec<_>>();
        words.insert(0, bin);
        let ours = self.system.program(Side::Ours, Program::Perfetto);
        let mut command = self.system.command(Path::new("sh"), "script.log");
        command
            .arg("-c")
            .arg(format!("{PRELUDE}{}", self.case.script))
            .current_dir(&place)
            .env("PATH", std::env::join_paths(words).unwrap())
            .env("OURS", ours)
            .env("TRACED", self.traced_pid.to_string())
            .env("SIDE", self.side.to_string())
            .env("TMPDIR", &place)
            .env_remove("NO_COLOR")
            .stdout(Stdio::piped())
            .process_group(0);
        let mut running = Running(command.spawn().unwrap());
        let group = Pid::from_child(&running.0);
        let stdout = running.0.stdout.take().unwrap();
        let printed = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
        let status = running.wait(PATIENCE);
        let said = format!("{}{}", self.system.log("script.log"), read(&place.join("said")));
        let Some(status) = status else {
            // This kills all processes of the script's group.
            rustix::process::kill_process_group(group, Signal::KILL).unwrap();
            // The script may have left the service stopped, and other scripts need it.
            let traced = Pid::from_raw(self.traced_pid as i32).unwrap();
            rustix::process::kill_process(traced, Signal::CONT).unwrap();
            return Err(format!("{}'s still runs. It said\n{said}", self.side));
        };
        let printed = printed.join().unwrap();
        if status.code() == Some(SKIPPED) {
            println!("skipped: {}: {}", self.case.about, printed.trim());
            return Ok(None);
        }
        Ok(Some(Outcome::of(&printed, status, &place, said)))
    }

    /// Links programs into a folder, under their usual names.
    fn link_programs(&self, folder: &Path) {
        let programs = [
            ("perfetto", self.system.program(self.side, Program::Perfetto)),
            ("traced", self.system.program(self.side, Program::Traced)),
            (
                "traced_probes",
                self.system.program(self.side, Program::TracedProbes),
            ),
            ("trigger_perfetto", env!("CARGO_BIN_EXE_trigger_perfetto").into()),
            ("websocket_bridge", env!("CARGO_BIN_EXE_websocket_bridge").into()),
        ];
        for (name, program) in programs {
            let file = folder.join(name);
            write_script(&file, &format!("#!/bin/sh\nexec {} \"$@\"\n", program.display()));
        }
    }
}

fn write_configs(folder: &Path) {
    let write = |name: &str, content: &[u8]| std::fs::write(folder.join(name), content).unwrap();
    CONFIGS
        .iter()
        .for_each(|(name, text)| write(name, text.as_bytes()));
    let (name, length) = BIG;
    let long = "x".repeat(length);
    let big = format!("data_sources {{ config {{ name: \"{long}\" }} }}");
    write(name, big.as_bytes());
    write(ENCODED.0, ENCODED.1);
}

fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

#[test]
fn recordings() {
    run(recording::CASES);
}

#[test]
fn outputs() {
    run(output::CASES);
}

#[test]
fn in_the_background_and_by_signals() {
    run(background::CASES);
}

#[test]
fn detached_sessions_and_clones() {
    run(sessions::CASES);
}

#[test]
fn snapshots_and_triggers() {
    run(sessions::TRIGGERS);
}

#[test]
fn queries_of_the_services_state() {
    run(sessions::QUERIES);
}

#[test]
fn the_daemons_and_others() {
    run(daemons::TRIGGER_PERFETTO);
    run(daemons::WEBSOCKET_BRIDGE);
    run(daemons::CASES);
}
