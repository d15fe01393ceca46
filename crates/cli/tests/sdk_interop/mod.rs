//! One program, written once with our SDK (`program.rs`) and once with upstream's (`interop/cxx-producer/src/common_program.cc`). It is recorded with
//! either side's service and command line and with all variants of configs. Upstream's trace processor reads the same from all traces, event for
//! event.
//!
//! Upstream's version is a program of its own workspace, named by `$FERRETTO_CXX_PRODUCER`: `cargo build --release --manifest-path
//! interop/cxx-producer/Cargo.toml`.

mod dump;
mod program;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::trace::TraceProcessor;
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use dump::{Dump, Times};

/// Set where this program is the common program. The value has the number of rounds, and the pause between them.
const ROLE: &str = "FERRETTO_TEST_COMMON_PROGRAM";

/// Not a test: the tests run this as the common program.
#[test]
fn common_program() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (rounds, pause) = role.split_once(' ').unwrap();
    program::run(
        rounds.parse().unwrap(),
        Duration::from_millis(pause.parse().unwrap()),
    );
}

/// A variant of recording.
struct Variant {
    name: &'static str,
    /// Fields of the `TrackEventConfig`.
    track_event: &'static str,
    /// Fields of the `TraceConfig`.
    trace: &'static str,
    /// The number of rounds of the program, with pauses between them.
    rounds: u32,
}

const PAUSE_MS: u32 = 60;

/// The most recordings of upstream's program for one variant.
const UPSTREAMS_ATTEMPTS: u32 = 3;

const fn variant(name: &'static str, track_event: &'static str) -> Variant {
    Variant {
        name,
        track_event,
        trace: "",
        rounds: 1,
    }
}

const VARIANTS: [Variant; 14] = [
    variant("nothing said", ""),
    variant("absolute timestamps", "disable_incremental_timestamps: true"),
    variant("microseconds", "timestamp_unit_multiplier: 1000"),
    variant(
        "absolute microseconds",
        "timestamp_unit_multiplier: 1000 disable_incremental_timestamps: true",
    ),
    variant("without annotations", "filter_debug_annotations: true"),
    variant("without dynamic names", "filter_dynamic_event_names: true"),
    variant("thread time", "enable_thread_time_sampling: true"),
    variant(
        // An hour: a program that gets no processor must not take longer.
        "thread time now and then",
        "enable_thread_time_sampling: true thread_time_subsampling_ns: 3600000000000",
    ),
    variant(
        "patterns of categories",
        r#"disabled_categories: "*" enabled_categories: "common" enabled_categories: "rend*""#,
    ),
    variant(
        "plugins but not the network",
        r#"disabled_categories: "network*" enabled_categories: "plugin.*" enabled_tags: "slow""#,
    ),
    variant(
        "tags",
        r#"disabled_categories: "*" enabled_categories: "common" enabled_tags: "debug" enabled_tags: "s*""#,
    ),
    variant("without a tag", r#"disabled_tags: "net""#),
    Variant {
        name: "state cleared",
        track_event: "",
        trace: "incremental_state_config { clear_period_ms: 100 }",
        rounds: 6,
    },
    Variant {
        name: "flushed",
        track_event: "",
        trace: "flush_period_ms: 100",
        rounds: 6,
    },
];

/// The programs for recording, unless the test is skipped.
struct Setting {
    programs: Programs,
    processor: TraceProcessor,
    upstreams_program: PathBuf,
}

impl Setting {
    fn find() -> Option<Setting> {
        let (programs, processor) = (Programs::of_both()?, TraceProcessor::find()?);
        let upstreams_program = std::env::var_os("FERRETTO_CXX_PRODUCER").map(PathBuf::from);
        if upstreams_program.is_none() {
            println!("skipped: name the program of interop/cxx-producer in FERRETTO_CXX_PRODUCER");
        }
        Some(Setting {
            programs,
            processor,
            upstreams_program: upstreams_program?,
        })
    }

    /// Returns the command of the common program.
    fn program(&self, system: &System<'_>, sdk: Side, variant: &Variant) -> Command {
        let rounds = variant.rounds.to_string();
        match sdk {
            Side::Upstream => {
                let mut command = system.command(&self.upstreams_program, "program.log");
                command.args(["common-program", &rounds, &PAUSE_MS.to_string()]);
                command
            }
            Side::Ours => {
                let mut command = system.command(&std::env::current_exe().unwrap(), "program.log");
                command
                    .args(["--exact", "sdk_interop::common_program", "--nocapture"])
                    .env(ROLE, format!("{rounds} {PAUSE_MS}"));
                command
            }
        }
    }

    /// Records the program of one side with the service and the command line of another; returns the trace processor's view.
    fn record(&self, sdk: Side, service: Side, variant: &Variant) -> Dump {
        let mut system = System::new(&self.programs);
        system.start(service, Program::Traced);
        let mut command = self.program(&system, sdk, variant);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Running(command.spawn().unwrap());
        system.await_state(|state| !state.data_sources.is_empty());
        let config = format!(
            r#"buffers {{ size_kb: 65536 }}
            data_sources {{ config {{ name: "track_event" track_event_config {{ {} }} }} }}
            {}"#,
            variant.track_event, variant.trace
        );
        let recording = system.record(service, &config);
        let mut said = BufReader::new(program.0.stdout.take().unwrap());
        let done = said.by_ref().lines().any(|line| line.unwrap() == "done");
        assert!(done, "the program has ended\n{}", system.log("program.log"));
        let trace = recording.interrupt();
        drop(program.0.stdin.take());
        assert!(program.wait(PATIENCE).is_some_and(|status| status.success()));
        drop(said);
        if let Some(folder) = std::env::var_os("FERRETTO_KEEP_TRACES") {
            let name = format!("{sdk}-{service}-{}.pftrace", variant.name.replace(' ', "-"));
            std::fs::copy(&trace, PathBuf::from(folder).join(name)).unwrap();
        }
        let times = match variant.track_event.contains("timestamp_unit_multiplier") {
            true => Times::Coarse,
            false => Times::Distinct,
        };
        Dump::of(&self.processor, &trace, times)
    }

    fn compare(&self, service: Side) {
        for variant in &VARIANTS {
            println!("--- {}", variant.name);
            let ours = self.record(Side::Ours, service, variant);
            // On a machine that is short of processors upstream's program sometimes lacks its first events. Ours is recorded once.
            let mut upstreams = self.record(Side::Upstream, service, variant);
            for _ in 1..UPSTREAMS_ATTEMPTS {
                if upstreams == ours {
                    break;
                }
                upstreams = self.record(Side::Upstream, service, variant);
            }
            upstreams.assert_same(&ours, variant.name);
        }
    }
}

#[test]
fn with_our_service() {
    if let Some(setting) = Setting::find() {
        setting.compare(Side::Ours);
    }
}

#[test]
fn with_upstreams_service() {
    if let Some(setting) = Setting::find() {
        setting.compare(Side::Upstream);
    }
}
