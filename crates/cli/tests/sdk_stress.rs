//! Many threads of an application, sessions that start and end, services that restart, and applications that end in the middle of an event:
//! every event is accounted for, and nothing is left.
//!
//! It uses real processes. Even the shortest run applies each fate to an application of our service and to one of upstream's. It runs for seconds, or
//! for `FERRETTO_SDK_STRESS_SECONDS`. The seed is printed (`FERRETTO_SDK_STRESS_SEED`), and each round's seed before the round; with that seed, the
//! round comes first.

#![allow(clippy::unwrap_used)]

#[path = "../../ferretto/tests/stress/mod.rs"]
mod stress;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferretto::options::Port;
use ferretto::session::{Session, SessionError, StateScope};
use ferretto::{Backend, BufferExhaustedPolicy, Options};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{Message, Trace};
use rustix::process::Signal;
use stress::account::{self, Found, NeverHeardOf};
use stress::crowd::Crowd;
use stress::leaks::{self, Resources};
use stress::recording::Service;
use stress::{Chance, PATIENCE, journal, recording};
use support::trace::{LOSSES, TraceProcessor};
use support::{Program, Programs, Running, Side, System, await_that};

/// Set where this program is the application: the folder of its journals.
const JOURNALS: &str = "FERRETTO_STRESS_JOURNALS";
const SEED: &str = "FERRETTO_STRESS_APPLICATION_SEED";

const NAME: &str = "sdk-stress";

/// The prefix of its answers, which distinguishes them from the test harness's output.
const ANSWER: &str = "application: ";

/// The number of sessions that record at the same time.
const RECORDERS: u64 = 3;

/// The shortest and longest time of recording in one round.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);
const LONGEST_ROUND: Duration = Duration::from_secs(3);

/// Not a test: the test runs this as the application.
#[test]
fn application() {
    let Some(journals) = std::env::var_os(JOURNALS) else {
        return;
    };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let mut chance = Chance::new(seed);
    let options = Options::system()
        .producer_name(NAME)
        .shared_memory_size(chance.pick(&[0, 0, 64 << 10, 32 << 20]))
        .batch_commits(Duration::from_millis(chance.pick(&[0, 0, 5, 50])))
        .track_event_policy(chance.pick(&[
            BufferExhaustedPolicy::Drop,
            BufferExhaustedPolicy::Drop,
            BufferExhaustedPolicy::StallThenDrop,
        ]));
    ferretto::initialize(options);
    let mut crowd = None;
    for order in std::io::stdin().lines() {
        match &*order.unwrap() {
            "start" => crowd = Some(Crowd::start(seed, 0, Path::new(&journals))),
            "stop" => drop(crowd.take().map(Crowd::end)),
            "exit" => std::process::exit(0),
            "abort" => std::process::abort(),
            other => panic!("no such order: {other}"),
        }
        println!("\n{ANSWER}");
    }
    // Returns, which ends the program while the threads go on.
}

struct Application {
    running: Running,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Application {
    fn start(system: &System<'_>, journals: &Path, seed: u64) -> Application {
        let mut command = system.command(&std::env::current_exe().unwrap(), "application.log");
        command
            .args(["--exact", "application", "--nocapture"])
            .env(JOURNALS, journals)
            .env(SEED, seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        Application {
            orders: running.0.stdin.take().unwrap(),
            answers: BufReader::new(running.0.stdout.take().unwrap()),
            running,
        }
    }

    fn does(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        while !line.starts_with(ANSWER) {
            line.clear();
            let read = self.answers.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the application has ended at {order:?}");
        }
    }
}

/// The time that upstream's service waits for the flush of an application that may be gone. It is longer than a busy machine needs, and short enough
/// for each fate to have its turn.
const FLUSH_WITHOUT_APPLICATION: Duration = Duration::from_secs(10);

/// The fate of the application, or of its service, in mid-recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its threads end, and their writers are released.
    None,
    Returns,
    Exits,
    Aborts,
    Killed,
    /// The service ends, and another one starts.
    ServiceRestarts,
}

impl Fate {
    const ALL: [Fate; 6] = [
        Fate::None,
        Fate::Killed,
        Fate::Exits,
        Fate::ServiceRestarts,
        Fate::Aborts,
        Fate::Returns,
    ];
}

/// The socket of the present service.
static SERVICE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes a session with the present service, of which this process is no producer.
fn sessions() -> Session {
    Session::with_backend(Backend::Custom)
}

fn connect(port: Port) -> std::io::Result<OwnedFd> {
    let service = SERVICE.lock().unwrap().clone();
    match (port, service) {
        (Port::Consumer, Some(socket)) => UnixStream::connect(socket).map(OwnedFd::from),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

#[test]
fn every_event_is_accounted_for_whatever_ends() {
    let (duration, seed) = stress::seconds_and_seed(20);
    let programs = Programs::of_both();
    let sides: &[Side] = match programs {
        Some(_) => &[Side::Ours, Side::Upstream],
        None => &[Side::Ours],
    };
    let programs = programs.unwrap_or_else(Programs::ours);
    let log = |_, line: &str| println!("{line}");
    ferretto::initialize(Options::custom(connect).log(log));
    let processor = TraceProcessor::find();
    let until = Instant::now() + duration;
    let mut found = Found::default();
    let all_fates = (sides.len() * Fate::ALL.len()) as u64;
    let length = (duration / all_fates as u32).clamp(SHORTEST_ROUND, LONGEST_ROUND);
    for round in seed..seed + u64::MAX / 2 {
        if round - seed >= all_fates && Instant::now() >= until {
            break;
        }
        let side = sides[(round % sides.len() as u64) as usize];
        let fate = Fate::ALL[(round / sides.len() as u64 % Fate::ALL.len() as u64) as usize];
        println!("{round}: {side}, {fate:?}");
        let more = one_round(&programs, side, fate, round, length, processor.as_ref());
        println!("{round}: {more}");
        found += more;
    }
    println!("in the traces: {found}");
    assert!(found.events > 1000, "{found}");
}

fn is_registered(session: &Session) -> bool {
    let sources = match session.query_service_state(StateScope::Everything) {
        Ok(state) => state.state.data_sources,
        Err(_) => return false,
    };
    sources
        .iter()
        .any(|source| source.ds_descriptor.name.as_deref() == Some("track_event"))
}

fn one_round(
    programs: &Programs,
    side: Side,
    fate: Fate,
    seed: u64,
    length: Duration,
    processor: Option<&TraceProcessor>,
) -> Found {
    let mut system = System::new(programs);
    let mut traced = system.start(side, Program::Traced);
    *SERVICE.lock().unwrap() = Some(system.consumer_socket());
    let journals = tempfile::tempdir().unwrap();
    let mut application = Application::start(&system, journals.path(), seed);
    await_that("the application is registered", || is_registered(&sessions()));
    // A first round, because some memory is allocated once and kept.
    let service = match side {
        Side::Ours => Service::Ours,
        Side::Upstream => Service::Upstream,
    };
    let flushes_last = match (side, fate) {
        (_, Fate::None) | (Side::Ours, _) => PATIENCE,
        // Upstream's service waits for a flush of a process that is gone, and so does the consumer that requested the flush.
        (Side::Upstream, _) => FLUSH_WITHOUT_APPLICATION,
    };
    let never_heard_of = match (side, fate) {
        (Side::Ours, _) | (_, Fate::None | Fate::ServiceRestarts) => NeverHeardOf::Counted,
        (Side::Upstream, _) => NeverHeardOf::Ignored,
    };
    let record = |chance: &mut Chance| recording::record(&sessions, NAME, service, flushes_last, chance);
    record(&mut Chance::new(seed)).unwrap();
    let before = Resources::of(application.running.pid());
    application.does("start");
    let round_ends = Instant::now() + length;
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let recorders = (0..RECORDERS).map(|recorder| {
            let mut chance = Chance::new(seed << 8 ^ recorder);
            let journals = journals.path();
            scope.spawn(move || {
                let mut found = Found::default();
                while Instant::now() < round_ends {
                    if fate == Fate::ServiceRestarts {
                        await_that("the application is registered again", || {
                            is_registered(&sessions())
                        });
                    }
                    match record(&mut chance) {
                        Ok(recordings) => {
                            for recording in recordings {
                                let more = account::check_or_keep(
                                    &recording,
                                    &journal::read(journals),
                                    never_heard_of,
                                );
                                check_with_processor(processor, fate, &recording.trace, &more);
                                found += more;
                            }
                        }
                        Err(error) => {
                            let of_an_end = match fate {
                                Fate::ServiceRestarts => is_of_an_end(&error),
                                Fate::None => false,
                                _ => side == Side::Upstream && matches!(error, SessionError::NotFlushed),
                            };
                            assert!(of_an_end, "{fate:?}: {error}");
                        }
                    }
                }
                found
            })
        });
        let recorders: Vec<_> = recorders.collect();
        std::thread::sleep(length / 2);
        match fate {
            Fate::None => {}
            Fate::Returns => {
                let (sender, _) = std::os::unix::net::UnixStream::pair().unwrap();
                drop(std::mem::replace(
                    &mut application.orders,
                    ChildStdin::from(OwnedFd::from(sender)),
                ));
            }
            Fate::Exits => writeln!(application.orders, "exit").unwrap(),
            Fate::Aborts => writeln!(application.orders, "abort").unwrap(),
            Fate::Killed => application.running.signal(Signal::KILL),
            Fate::ServiceRestarts => {
                system.end(traced);
                traced = system.start(side, Program::Traced);
            }
        }
        for recorder in recorders {
            found += recorder.join().unwrap();
        }
    });
    match fate {
        Fate::None | Fate::ServiceRestarts => {
            application.does("stop");
            leaks::await_none(application.running.pid(), &before);
            drop(application.orders);
            assert!(application.running.wait(PATIENCE).unwrap().success());
        }
        _ => assert!(application.running.wait(PATIENCE).is_some(), "{fate:?}"),
    }
    system.assert_running();
    system.end(traced);
    found
}

/// Whether a session reports this error when its service ends.
fn is_of_an_end(error: &SessionError) -> bool {
    match error {
        SessionError::Unavailable(_)
        | SessionError::Disconnected(_)
        | SessionError::Failed(_)
        | SessionError::EndedEarly
        | SessionError::NotCloned(_) => true,
        // It completes files before it goes, and accepts no session then.
        SessionError::Refused(why) => why.starts_with("the tracing service is ending"),
        _ => false,
    }
}

/// Returns how many flushes were under way at once. A session flushes periodically, even if the application has not done the last flush yet because its
/// machine is busy.
fn most_pending_flushes(trace: &[u8]) -> usize {
    let (mut pending, mut most) = (0_usize, 0);
    for packet in Trace::decode_from_slice(trace).unwrap().packet {
        let event = match packet.data {
            Some(Data::ServiceEvent(event)) => event.event_type,
            _ => None,
        };
        match event {
            Some(EventType::FlushStarted(_)) => pending += 1,
            Some(EventType::AllDataSourcesFlushed(_)) => pending = pending.saturating_sub(1),
            _ => {}
        }
        most = most.max(pending);
    }
    most
}

/// Asserts that upstream's trace processor has no complaints except the losses that the trace notes.
fn check_with_processor(processor: Option<&TraceProcessor>, fate: Fate, trace: &[u8], found: &Found) {
    let Some(processor) = processor else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace).unwrap();
    let [complaints] = processor.query(file.path(), [LOSSES]);
    let losses = found.gaps > 0 || found.ends_lost > 0;
    for complaint in &complaints {
        let expected = match &*complaint[0] {
            // The application ended before it could acknowledge the flush.
            "traced_flushes_failed" | "traced_final_flush_failed" => fate != Fate::None,
            // The trace's statistics also count losses of a thread after the last event that has to be there.
            "traced_buf_trace_writer_packet_loss" => true,
            // The trace processor sorts up to the newest event that it had at the last but one flush. It does not know that this flush began long ago.
            "sorter_push_event_out_of_order" => most_pending_flushes(trace) > 2,
            _ => losses && complaint[2] == "data_loss",
        };
        if !expected {
            let (_, path) = file.keep().unwrap();
            panic!("{complaints:?} in {}, of which is known: {found}", path.display());
        }
    }
}
