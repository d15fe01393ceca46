//! The application beside the recordings: a second process of this test program, with [`ROLE`] set. A pipe tells it how many events to emit.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use crate::support::{Running, System};
use ferretto::{Category, Options, trace_event_instant};
use rustix::process::Signal;

const ROLE: &str = "FERRETTO_TEST_VANDAL_APPLICATION";

/// The prefix of its answers, which distinguishes them from the test harness's output.
const ANSWER: &str = "application: ";

static VANDAL: Category = Category::new("vandal");

/// Not a test: the test runs this as the application. It ends at the end of its commands.
#[test]
fn application() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    ferretto::register_categories(&[&VANDAL]);
    ferretto::initialize(Options::system().producer_name("vandal"));
    let mut number = 0_u64;
    for order in std::io::stdin().lines() {
        let count: u64 = order.unwrap().parse().unwrap();
        for _ in 0..count {
            trace_event_instant!("vandal", "step", "number" => number);
            number += 1;
        }
        println!("\n{ANSWER}");
    }
}

pub(crate) struct Application {
    running: Running,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The number of events emitted so far. Events are numbered from 0.
    emitted: u64,
}

impl Application {
    /// Starts it, and waits until the service knows it.
    pub(crate) fn start(system: &System<'_>) -> Application {
        let mut command = system.command(&std::env::current_exe().unwrap(), "application.log");
        command
            .args(["--exact", "vandal::application::application", "--nocapture"])
            .env(ROLE, "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let application = Application {
            orders: running.0.stdin.take(),
            answers: BufReader::new(running.0.stdout.take().unwrap()),
            running,
            emitted: 0,
        };
        system.await_state(|state| {
            let mut sources = state.data_sources.iter();
            sources.any(|source| source.ds_descriptor.name.as_deref() == Some("track_event"))
        });
        application
    }

    /// Emits so many events, and waits until it has. Does nothing if it has ended.
    pub(crate) fn emit(&mut self, count: u64) {
        let Some(orders) = &mut self.orders else { return };
        writeln!(orders, "{count}").unwrap();
        let mut line = String::new();
        while !line.starts_with(ANSWER) {
            line.clear();
            let read = self.answers.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the application has ended");
        }
        self.emitted += count;
    }

    pub(crate) fn emitted(&self) -> u64 {
        self.emitted
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.orders = None;
        self.running.signal(Signal::KILL);
        assert!(self.running.wait(crate::support::PATIENCE).is_some());
    }

    /// Makes it return from `main`, and waits for its end.
    pub(crate) fn returns(&mut self) {
        self.orders = None;
        assert!(self.running.wait(crate::support::PATIENCE).is_some());
    }
}
