//! What an interpreter spends its time on: the program samples the call stacks of its own scripts.
//!
//! ```text
//! cargo run --example interpreter [FILE]
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferretto::RecordingOptions;
use ferretto::callstack::Frame;
use ferretto::data_source::{DataSource, DataSourceHandle, SetUp};
use ferretto::session;
use ferretto::stack_sample::{Counter, Sample, StackSamples, Unit, thread_id};

/// The profiler, as sessions see it.
struct Profiler;

impl DataSource for Profiler {
    const NAME: &'static str = "com.example.scripts";
    type Incremental = StackSamples;
    type Thread = ();

    fn set_up(_: &SetUp<'_>) -> Self {
        Profiler
    }
}

static PROFILER: DataSourceHandle<Profiler> = DataSourceHandle::new();
const WALL_TIME: Counter = Counter::new("wall time", Unit::Nanoseconds);

/// A script that runs: its thread, and the functions that it is in, each with its current line.
struct Script {
    thread: u32,
    calls: Mutex<Vec<(&'static str, u32)>>,
}

impl Script {
    /// Calls a function of the script.
    fn call(&self, function: &'static str, run: impl FnOnce()) {
        self.change(|calls| calls.push((function, 1)));
        run();
        self.change(Vec::pop);
    }

    /// Runs a line that takes this long.
    fn line(&self, line: u32, takes: Duration) {
        self.change(|calls| calls.last_mut().expect("a function").1 = line);
        thread::sleep(takes);
    }

    fn change<R>(&self, change: impl FnOnce(&mut Vec<(&'static str, u32)>) -> R) -> R {
        change(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn run(&self) {
        self.call("main", || {
            self.line(1, Duration::from_millis(2));
            self.call("parse", || self.line(10, Duration::from_millis(3)));
            self.call("draw", || {
                self.call("layout", || self.line(20, Duration::from_millis(5)));
                self.line(31, Duration::from_millis(10));
            });
        });
    }
}

/// Takes a sample of each script every millisecond, and stops after so many.
fn sample(scripts: &[Arc<Script>], samples: usize) {
    let (mut last, mut taken) = (Instant::now(), 0);
    while taken < samples {
        thread::sleep(Duration::from_millis(1));
        let weight = last.elapsed().as_nanos() as u64;
        last = Instant::now();
        for script in scripts {
            let calls = script.change(|calls| calls.clone());
            let frames = calls
                .iter()
                .rev()
                .map(|(function, line)| Frame::named(function).source("main.script", *line));
            let stack: Vec<Frame<'_>> = frames.collect();
            if stack.is_empty() {
                continue;
            }
            PROFILER
                .trace(|ctx| ctx.stack_sample(&Sample::new(&stack, WALL_TIME, weight).thread(script.thread)));
            taken += 1;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    PROFILER.register();
    let _trace = RecordingOptions::new()
        .data_source(session::DataSource::new(Profiler::NAME))
        .record_to(path.as_deref().unwrap_or("trace.pftrace"))?;

    let script = Arc::new(Script {
        thread: thread_id(),
        calls: Mutex::default(),
    });
    let scripts = [Arc::clone(&script)];
    let sampler = thread::spawn(move || sample(&scripts, 200));
    while !sampler.is_finished() {
        ferretto::trace_event!("scripts", "Run");
        script.run();
    }
    sampler.join().map_err(|_| "the sampler has panicked")?;
    Ok(())
}
