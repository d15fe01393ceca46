//! Data sources that an application has made with the SDK, in processes of their own, against our service and upstream's: what they
//! write is in the trace, all of it and nothing else, whoever comes first, and whatever ends in between.
//!
//! The application is this program once more, with [`ROLE`] set: it does what it is told over a pipe, a line at a time.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferretto::data_source::{DataSource, DataSourceHandle, PolicySource, SetUp, Start, Stop};
use ferretto::startup::{StartupOptions, StartupSession};
use ferretto_proto::messages::TestEvent;
use ferretto_wire::Reader;
use support::{PATIENCE, Program, Programs, Running, Side, System};

/// Set where this program is the application.
const ROLE: &str = "FERRETTO_TEST_APPLICATION";

/// In front of its answers, among what the test harness says.
const ANSWER: &str = "application: ";

// --- The application. ---

/// What its `legacy_config` says is how it behaves.
struct Numbers {
    behaviour: String,
    stop: Mutex<Option<Stop<Numbers>>>,
    start: Mutex<Option<Start>>,
}

/// Said once in each sequence, and again when that may be lost.
struct Introduced(bool);

impl Default for Introduced {
    fn default() -> Self {
        INTRODUCTIONS.fetch_add(1, Ordering::Relaxed);
        Introduced(false)
    }
}

static NUMBERS: DataSourceHandle<Numbers> = DataSourceHandle::new();
static INTRODUCTIONS: AtomicU32 = AtomicU32::new(0);
/// Instances that wait to be stopped, or started.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

#[allow(dead_code)] // They are there to be dropped.
enum Held {
    Start(Start),
    Stop(Stop<Numbers>),
}

impl DataSource for Numbers {
    const NAME: &'static str = "ferretto.test.numbers";
    const POLICY_SOURCE: PolicySource = PolicySource::Config;
    type Incremental = Introduced;
    type Thread = u32;

    fn set_up(set_up: &SetUp<'_>) -> Self {
        Numbers {
            behaviour: set_up.config.legacy_config.clone().unwrap_or_default(),
            stop: Mutex::default(),
            start: Mutex::default(),
        }
    }

    fn start(&self, start: Start) {
        match &*self.behaviour {
            "panics" => panic!("on purpose"),
            "starts late" => HELD.lock().unwrap().push(Held::Start(start)),
            _ => *self.start.lock().unwrap() = None,
        }
    }

    fn stop(&self, stop: Stop<Self>) {
        match &*self.behaviour {
            "says goodbye" => NUMBERS.trace(|ctx| {
                if ctx.instance.behaviour == "says goodbye" {
                    ctx.packet(|packet| {
                        packet.for_testing(|event| {
                            event.str("goodbye");
                        });
                    });
                }
            }),
            "stops late" => return HELD.lock().unwrap().push(Held::Stop(stop)),
            _ => *self.stop.lock().unwrap() = None,
        }
        drop(stop);
    }
}

/// Writes so many numbers, from `first` on.
fn write(first: u32, count: u32) {
    for number in first..first + count {
        NUMBERS.trace(|ctx| {
            if !std::mem::replace(&mut ctx.incremental.0, true) {
                ctx.packet(|packet| {
                    packet.for_testing(|event| {
                        event.str("introduction");
                    });
                });
            }
            *ctx.thread += 1;
            let written = *ctx.thread;
            ctx.packet(|packet| {
                packet.for_testing(|event| {
                    event.seq_value(number).counter(u64::from(written));
                });
            });
        });
    }
}

#[test]
fn application() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut startup: Option<StartupSession> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u32>().unwrap();
        let answer = match words[0] {
            "initialize" => {
                ferretto::initialize(ferretto::Options::system().producer_name("numbers"));
                NUMBERS.register();
                String::new()
            }
            "small_memory" => {
                let options = ferretto::Options::system().shared_memory_size(32768);
                ferretto::initialize(options.producer_name("numbers"));
                NUMBERS.register();
                String::new()
            }
            // From the main thread, which goes on.
            "write" => {
                write(number(1), number(2));
                String::new()
            }
            // Each from a thread of its own, which ends.
            "threads" => {
                let (threads, count) = (number(1), number(2));
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        scope.spawn(move || write(thread * count, count));
                    }
                });
                String::new()
            }
            "await_active" => {
                await_that(|| NUMBERS.is_active());
                String::new()
            }
            "await_inactive" => {
                await_that(|| !NUMBERS.is_active());
                String::new()
            }
            "await_introductions" => {
                let wanted = number(1);
                // An introduction is due only when something is written.
                await_that(|| {
                    write(0, 1);
                    INTRODUCTIONS.load(Ordering::Relaxed) >= wanted
                });
                String::new()
            }
            "await_held" => {
                await_that(|| !HELD.lock().unwrap().is_empty());
                String::new()
            }
            "release" => {
                HELD.lock().unwrap().clear();
                String::new()
            }
            "flush" => {
                let (sender, seen) = std::sync::mpsc::channel();
                NUMBERS.trace(|ctx| {
                    let sender = sender.clone();
                    ctx.writer.flush_then(move || sender.send(()).unwrap());
                });
                seen.recv_timeout(PATIENCE).unwrap();
                String::new()
            }
            "startup" => {
                let config =
                    ferretto_proto::text::encode(&line["startup ".len()..], "perfetto.protos.TraceConfig");
                match ferretto::startup_tracing(&config.unwrap(), StartupOptions::default()) {
                    Ok(session) => {
                        startup = Some(session);
                        String::new()
                    }
                    Err(error) => error.to_string(),
                }
            }
            "startup_outcome" => format!("{:?}", startup.take().unwrap().wait()),
            "startup_abort" => {
                startup.as_ref().unwrap().abort();
                String::new()
            }
            "trigger" => {
                ferretto::activate_triggers(&[words[1]], PATIENCE);
                String::new()
            }
            "status" => ferretto::status().to_string().replace('\n', "; "),
            "unregister" => {
                NUMBERS.unregister();
                String::new()
            }
            other => panic!("no such command: {other}"),
        };
        println!("\n{ANSWER}{answer}");
    }
}

fn await_that(holds: impl Fn() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < until, "in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The application, as a test has it.
struct Application {
    running: Running,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Application {
    fn start(system: &System<'_>) -> Application {
        let mut command = system.command(&std::env::current_exe().unwrap(), "application.log");
        command
            .args(["--exact", "application", "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        Application {
            orders: running.0.stdin.take().unwrap(),
            answers: BufReader::new(running.0.stdout.take().unwrap()),
            running,
        }
    }

    /// Has it do something; its answer.
    fn does(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the application has ended at {order:?}");
            if let Some(answer) = line.strip_prefix(ANSWER) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Lets it come to its end.
    fn ends(mut self) {
        drop(self.orders);
        assert!(self.running.wait(PATIENCE).unwrap().success());
    }
}

// --- What is in a trace. ---

/// What the application has written, by sequence, in the order of the trace.
fn events(trace: &Path) -> BTreeMap<u64, Vec<TestEvent>> {
    use ferretto_proto::messages::Message;
    let bytes = std::fs::read(trace).unwrap();
    let mut events: BTreeMap<u64, Vec<TestEvent>> = BTreeMap::new();
    for packet in Reader::new(&bytes).map(Result::unwrap) {
        let (mut sequence, mut event) = (0, None);
        for field in Reader::new(packet.value.as_bytes().unwrap()).map(Result::unwrap) {
            match field.number {
                10 => sequence = field.value.as_varint().unwrap(),
                900 => event = Some(TestEvent::decode_from_slice(field.value.as_bytes().unwrap()).unwrap()),
                _ => {}
            }
        }
        if let Some(event) = event {
            events.entry(sequence).or_default().push(event);
        }
    }
    events
}

/// The numbers in a trace, each once.
fn numbers(trace: &Path) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for number in events(trace)
        .values()
        .flatten()
        .filter_map(|event| event.seq_value)
    {
        assert!(numbers.insert(number), "{number} is there twice");
    }
    numbers
}

/// Checks that a trace has exactly these numbers; says which it lacks, or has besides.
#[track_caller]
fn assert_numbers(trace: &Path, expected: std::ops::Range<u32>) {
    let (numbers, expected) = (numbers(trace), expected.collect::<BTreeSet<u32>>());
    let differing: Vec<&u32> = numbers.symmetric_difference(&expected).take(20).collect();
    assert!(
        numbers == expected,
        "{} of {}; among those that differ: {differing:?}",
        numbers.len(),
        expected.len()
    );
}

fn texts(trace: &Path) -> Vec<String> {
    let events = events(trace);
    events
        .values()
        .flatten()
        .filter_map(|event| event.str.clone())
        .collect()
}

const CONFIG: &str =
    r#"buffers { size_kb: 16384 } data_sources { config { name: "ferretto.test.numbers" } }"#;

const STALL: &str = "buffer_exhausted_policy: BUFFER_EXHAUSTED_STALL_THEN_DROP";

/// A config with more in that of the data source.
fn config_with(more: &str) -> String {
    format!(
        r#"buffers {{ size_kb: 16384 }} data_sources {{ config {{ name: "ferretto.test.numbers" {more} }} }}"#
    )
}

/// Calls a story with each service that there is.
fn with_each_service(story: impl Fn(&mut System<'_>, Side)) {
    let both = Programs::of_both();
    let sides: &[Side] = match both {
        Some(_) => &[Side::Ours, Side::Upstream],
        None => &[Side::Ours],
    };
    let programs = both.unwrap_or_else(Programs::ours);
    for &side in sides {
        println!("--- {side}");
        story(&mut System::new(&programs), side);
    }
}

/// An application that has registered its data source with a running service.
fn registered(system: &mut System<'_>, side: Side) -> Application {
    system.start(side, Program::Traced);
    let mut application = Application::start(system);
    application.does("initialize");
    await_registration(system);
    application
}

fn await_registration(system: &System<'_>) {
    system.await_state(|state| {
        state
            .data_sources
            .iter()
            .any(|source| source.ds_descriptor.name.as_deref() == Some("ferretto.test.numbers"))
    });
}

// --- The tests. ---

#[test]
fn what_threads_wrote_that_have_ended_or_go_on_is_in_the_trace() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        application.does("write 100000 10");
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 8 5000");
        application.does("write 40000 1000");
        let trace = recording.interrupt();
        assert_numbers(&trace, 0..41000);
        let events = events(&trace);
        assert_eq!(events.len(), 9, "sequences: a thread each");
        for sequence in events.values() {
            assert_eq!(sequence[0].str.as_deref(), Some("introduction"));
            let counters: Vec<u64> = sequence[1..].iter().map(|event| event.counter.unwrap()).collect();
            assert_eq!(counters, (1..=counters.len() as u64).collect::<Vec<_>>());
        }
        application.ends();
    });
}

#[test]
fn each_session_gets_what_was_written_while_it_ran() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let first = system.record(Side::Ours, CONFIG);
        application.does("write 0 100");
        let second = system.record(Side::Ours, CONFIG);
        application.does("write 100 100");
        let first = first.interrupt();
        application.does("write 200 100");
        let second = second.interrupt();
        application.does("await_inactive");
        application.does("write 300 100");
        let third = system.record(Side::Ours, CONFIG);
        application.does("write 400 100");
        let third = third.interrupt();
        assert_numbers(&first, 0..200);
        assert_numbers(&second, 100..300);
        assert_numbers(&third, 400..500);
        application.ends();
    });
}

#[test]
fn there_is_room_for_eight_instances_and_nobody_waits_for_the_ninth() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let sources: String = (0..9)
            .map(|number| {
                format!(
                    r#"data_sources {{ config {{ name: "ferretto.test.numbers" legacy_config: "{number}" }} }}"#
                )
            })
            .collect();
        let recording = system.record(Side::Ours, &format!("buffers {{ size_kb: 1024 }} {sources}"));
        application.does("write 7 1");
        let trace = recording.interrupt();
        let events = events(&trace);
        assert_eq!(events.len(), 8);
        assert!(events.values().all(|sequence| sequence.len() == 2), "{events:?}");
        // They have given their places back.
        application.does("await_inactive");
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 1");
        assert_numbers(&recording.interrupt(), 0..1);
        application.ends();
    });
}

#[test]
fn an_application_that_comes_first_is_recorded_when_the_service_comes_and_when_it_comes_again() {
    with_each_service(|system, side| {
        let mut application = Application::start(system);
        application.does("initialize");
        let status = loop {
            let status = application.does("status");
            if status != "starting" {
                break status;
            }
        };
        assert!(
            status.contains("not connected: cannot connect") && status.contains("producer"),
            "{status}"
        );
        for round in 0..3 {
            let traced = system.start(side, Program::Traced);
            await_registration(system);
            assert_eq!(
                application.does("status"),
                "system service: connected, no session records this process"
            );
            let recording = system.record(Side::Ours, CONFIG);
            application.does(&format!("write {round} 1"));
            assert_eq!(numbers(&recording.interrupt()), BTreeSet::from([round]));
            // The next one ends with its service.
            let _recording = system.record(Side::Ours, CONFIG);
            application.does("await_active");
            application.does("write 5 10");
            system.end(traced);
            application.does("await_inactive");
            application.does("write 5 10");
        }
        application.ends();
    });
}

#[test]
fn what_is_written_while_stopping_is_in_the_trace() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = system.record(Side::Ours, &config_with(r#"legacy_config: "says goodbye""#));
        assert_eq!(texts(&recording.interrupt()), ["introduction", "goodbye"][1..]);
        let recording = system.record(Side::Ours, &config_with(r#"legacy_config: "stops late""#));
        application.does("write 0 1");
        recording_signal(&recording);
        application.does("await_held");
        application.does("write 1 1");
        application.does("flush");
        application.does("release");
        assert_eq!(numbers(&recording.finish()), BTreeSet::from([0, 1]));
        application.ends();
    });
}

fn recording_signal(recording: &support::Recording) {
    let pid = rustix::process::Pid::from_raw(recording.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn a_session_starts_when_the_data_source_says_so_and_though_it_panics() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = std::thread::scope(|scope| {
            let config = config_with(r#"legacy_config: "starts late""#);
            let system = &*system;
            let recording = scope.spawn(move || system.record(Side::Ours, &config));
            application.does("await_held");
            assert!(!recording.is_finished());
            application.does("release");
            recording.join().unwrap()
        });
        drop(recording);
        let recording = system.record(Side::Ours, &config_with(r#"legacy_config: "panics""#));
        application.does("write 0 5");
        assert_eq!(numbers(&recording.interrupt()).len(), 5);
        application.ends();
    });
}

#[test]
fn a_config_may_have_the_application_wait_for_room() {
    with_each_service(|system, side| {
        system.start(side, Program::Traced);
        let mut application = Application::start(system);
        application.does("small_memory");
        await_registration(system);
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 4 50000");
        assert_numbers(&recording.interrupt(), 0..200_000);
        application.ends();
    });
}

#[test]
fn incremental_state_begins_anew_when_the_service_clears_it() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let config = format!("{CONFIG} incremental_state_config {{ clear_period_ms: 100 }}");
        let recording = system.record(Side::Ours, &config);
        application.does("await_introductions 4");
        let trace = recording.interrupt();
        let introductions = texts(&trace).len();
        assert!(introductions >= 4, "{introductions}");
        application.ends();
    });
}

#[test]
fn startup_tracing_is_taken_over_by_the_session_that_asks_for_the_same() {
    with_each_service(|system, side| {
        let mut application = Application::start(system);
        application.does("initialize");
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("threads 4 100");
        application.does("write 400 100");
        system.start(side, Program::Traced);
        await_registration(system);
        let recording = system.record(Side::Ours, CONFIG);
        assert_eq!(application.does("startup_outcome"), "Adopted");
        application.does("write 500 100");
        let trace = recording.interrupt();
        assert_numbers(&trace, 0..600);
        assert_eq!(events(&trace).len(), 5, "sequences: those begun at startup go on");
        // And the next session is one as any other.
        application.does("await_inactive");
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 7");
        assert_eq!(numbers(&recording.interrupt()).len(), 7);
        application.ends();
    });
}

#[test]
fn startup_tracing_with_a_connected_service_is_kept_apart_from_other_sessions() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let other = system.record(Side::Ours, &config_with(r#"legacy_config: "other""#));
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("write 0 100");
        // Another config is not what was expected.
        assert_eq!(numbers(&other.interrupt()).len(), 100);
        let recording = system.record(Side::Ours, CONFIG);
        assert_eq!(application.does("startup_outcome"), "Adopted");
        application.does("write 100 100");
        assert_numbers(&recording.interrupt(), 0..200);
        application.ends();
    });
}

#[test]
fn what_was_recorded_for_a_session_that_never_came_is_thrown_away() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("write 0 20000");
        application.does("startup_abort");
        assert_eq!(application.does("startup_outcome"), "Aborted");
        application.does("await_inactive");
        await_registration(system);
        // And it does not take up memory that those to come need.
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 5000");
        assert_eq!(numbers(&recording.interrupt()).len(), 5000);
        application.ends();
    });
}

#[test]
fn nothing_can_be_recorded_from_startup_on_for_a_data_source_that_there_is_none_of() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let mut application = Application::start(&system);
    application.does("initialize");
    let said = application.does(r#"startup data_sources { config { name: "another" } }"#);
    assert!(said.contains("no data source"), "{said}");
    application.ends();
}

#[test]
fn a_trigger_reaches_a_session_though_the_application_is_not_connected_yet() {
    with_each_service(|system, side| {
        system.start(side, Program::Traced);
        let config = format!(
            "{CONFIG} trigger_config {{ trigger_mode: STOP_TRACING trigger_timeout_ms: 60000 \
             triggers {{ name: \"enough\" stop_delay_ms: 1 }} }}"
        );
        let recording = system.record(Side::Ours, &config);
        let mut application = Application::start(system);
        application.does("initialize");
        application.does("trigger enough");
        recording.finish();
        application.ends();
    });
}

#[test]
fn a_data_source_that_is_withdrawn_stops_and_is_gone_from_the_service() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 10");
        application.does("unregister");
        application.does("await_inactive");
        application.does("write 10 10");
        system.await_state(|state| state.data_sources.is_empty());
        assert_numbers(&recording.interrupt(), 0..10);
        application.ends();
    });
}
