//! The application: a second process of this test program, with [`ROLE`] set. It obeys commands from a pipe, one in each line.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ferretto::data_source::{DataSource, DataSourceHandle, PolicySource, SetUp, Start, Stop};
use ferretto::session::TraceConfig;
use ferretto::startup::{StartupOptions, StartupSession};

use crate::support::{PATIENCE, Running, System, await_that};

/// Set in the application's environment.
const ROLE: &str = "FERRETTO_TEST_APPLICATION";

/// The prefix of its answers, which distinguishes them from the test harness's output.
const ANSWER: &str = "application: ";

/// A data source whose behaviour is in its `legacy_config`.
struct Numbers {
    behaviour: String,
    stop: Mutex<Option<Stop<Numbers>>>,
    start: Mutex<Option<Start>>,
}

/// Whether the sequence has been introduced; reset when the introduction may be lost.
struct Introduced(bool);

impl Default for Introduced {
    fn default() -> Self {
        INTRODUCTIONS.fetch_add(1, Ordering::Relaxed);
        Introduced(false)
    }
}

static NUMBERS: DataSourceHandle<Numbers> = DataSourceHandle::new();
static INTRODUCTIONS: AtomicU32 = AtomicU32::new(0);
/// Instances whose start or stop is being held back.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

#[allow(dead_code, reason = "they are there to be dropped")]
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
            "has much to say at last" => write(0, 50_000),
            "stops late" => return HELD.lock().unwrap().push(Held::Stop(stop)),
            _ => *self.stop.lock().unwrap() = None,
        }
        drop(stop);
    }
}

/// Writes `count` numbers, beginning with `first`.
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

/// Obeys the commands, if this program is the application.
pub(crate) fn run() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut startup: Option<StartupSession> = None;
    let mut children = Vec::new();
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
            "connect_to" => {
                let options = ferretto::Options::system().producer_socket(words[1].parse().unwrap());
                ferretto::initialize(options.producer_name("numbers"));
                NUMBERS.register();
                String::new()
            }
            "write_and_end" => {
                write(number(1), 10);
                match words[2] {
                    "return" => return,
                    "exit" => std::process::exit(0),
                    _ => std::process::abort(),
                }
            }
            // A child that does not use tracing.
            "fork" => {
                let child = fork(|| {
                    assert!(!ferretto::is_initialized() && !NUMBERS.is_active());
                    write(5000, 1000);
                });
                reap(child);
                String::new()
            }
            // A child that records by itself, until it is told to end.
            "fork_and_initialize" => {
                let (tell, told) = rustix::pipe::pipe().map(|(read, write)| (write, read)).unwrap();
                let child = fork(|| {
                    ferretto::initialize(ferretto::Options::system().producer_name("child"));
                    await_that("the data source is active", || NUMBERS.is_active());
                    write(10, 10);
                    let _ = rustix::io::read(&told, &mut [0u8; 1]);
                });
                children.push((child, tell));
                String::new()
            }
            "reap" => {
                for (child, tell) in children.drain(..) {
                    rustix::io::write(&tell, &[1]).unwrap();
                    reap(child);
                }
                String::new()
            }
            "small_memory" => {
                let options = ferretto::Options::system().shared_memory_size(32768);
                ferretto::initialize(options.producer_name("numbers"));
                NUMBERS.register();
                String::new()
            }
            // On the main thread, which goes on.
            "write" => {
                write(number(1), number(2));
                String::new()
            }
            // Each on a thread of its own, which ends.
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
                await_that("the data source is active", || NUMBERS.is_active());
                String::new()
            }
            "await_inactive" => {
                await_that("the data source is not active", || !NUMBERS.is_active());
                String::new()
            }
            "await_introductions" => {
                let wanted = number(1);
                // A new introduction is made only when something is written.
                await_that("enough introductions are written", || {
                    write(0, 1);
                    INTRODUCTIONS.load(Ordering::Relaxed) >= wanted
                });
                String::new()
            }
            "await_held" => {
                await_that("a stop is held", || !HELD.lock().unwrap().is_empty());
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
                let config = TraceConfig::from_encoded(config.unwrap()).unwrap();
                match ferretto::startup_tracing(&config, StartupOptions::default()) {
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

/// Forks a child that does this, and then exits as processes usually do.
#[allow(unsafe_code)]
fn fork(work: impl FnOnce()) -> rustix::process::Pid {
    // SAFETY: the child goes on to use the SDK, which must be ready for a fork; this is the subject of the test.
    match unsafe { libc::fork() } {
        0 => {
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            std::process::exit(if worked { 0 } else { 1 });
        }
        child => rustix::process::Pid::from_raw(child).unwrap(),
    }
}

fn reap(child: rustix::process::Pid) {
    let options = rustix::process::WaitOptions::empty();
    let (_, status) = rustix::process::waitpid(Some(child), options).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "the child has failed");
}

/// The application, as seen by a test.
pub(crate) struct Application {
    pub(crate) running: Running,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Application {
    pub(crate) fn start(system: &System<'_>) -> Application {
        let mut command = system.command(&std::env::current_exe().unwrap(), "application.log");
        command
            .args(["--exact", "sdk_data_sources::application", "--nocapture"])
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

    /// Makes it do something; returns its answer.
    pub(crate) fn does(&mut self, order: &str) -> String {
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

    /// Makes it do something from which it does not return.
    pub(crate) fn orders(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Waits for its end, of any kind.
    pub(crate) fn awaits_end(mut self) {
        assert!(self.running.wait(PATIENCE).is_some());
    }

    /// Lets it end normally.
    pub(crate) fn ends(mut self) {
        drop(self.orders);
        assert!(self.running.wait(PATIENCE).unwrap().success());
    }
}
