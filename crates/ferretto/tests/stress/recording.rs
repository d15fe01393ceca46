//! A session by chance, from its start to its trace.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferretto::session::{Buffer, CloneSource, DataSource, Session, SessionError, TraceConfig};
use ferretto_proto::messages::TraceStats;

use super::account::Expected;
use super::story::CATEGORIES;
use super::{Chance, PATIENCE, now};

/// A trace, and the events that must be in it.
pub(crate) struct Recording {
    pub(crate) trace: Vec<u8>,
    pub(crate) expected: Expected,
    /// The service's counters, if they are not in the trace: reading a part of it takes the statistics with it.
    pub(crate) stats: Option<TraceStats>,
    /// The kind of session, for people.
    pub(crate) what: String,
}

/// Where its packets go.
#[derive(Clone, Copy, Debug)]
enum Place {
    LargeRing,
    SmallRing,
    KeepFirst,
    File,
}

/// The implementation of the service. The test does not ask upstream's (v56) for things that it cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Ours,
    Upstream,
}

impl Service {
    /// Whether sessions may stream into files. Upstream's service does not always write the last packets (its statistics are missing then, too), and
    /// numbers the sequences anew where a clone goes on after the contents of the file.
    fn writes_files(self) -> bool {
        self == Service::Ours
    }

    /// Whether buffers are to be read while they are written. Of a buffer that overflows, upstream's gives a chunk that was read while
    /// it was being written, and was overwritten then, once more when it is complete. And it reads until there is nothing left, which
    /// is for ever if events come faster than it reads; its memory watchdog then ends the service.
    fn reads_meanwhile(self) -> bool {
        self == Service::Ours
    }
}

/// Runs a session of the producer with this name, and clones of it; gives their traces. Flushes may last so long. Fails if the service does
/// not last.
pub(crate) fn record(
    make: &dyn Fn() -> Session,
    producer: &str,
    service: Service,
    flushes_last: Duration,
    chance: &mut Chance,
) -> Result<Vec<Recording>, SessionError> {
    let place = chance.pick(&[
        Place::LargeRing,
        Place::LargeRing,
        Place::SmallRing,
        Place::KeepFirst,
        Place::File,
        Place::File,
    ]);
    let place = match place {
        Place::File if !service.writes_files() => Place::LargeRing,
        place => place,
    };
    let categories = chance.pick(&[[true, true], [true, false], [false, true]]);
    let mut source = DataSource::track_event().of_producer(producer);
    for (category, _) in CATEGORIES.iter().zip(categories).filter(|(_, wanted)| *wanted) {
        source = source.enable_category(category);
    }
    let name = unique_name();
    let mut config = TraceConfig::new()
        .data_source(source.disable_category("*"))
        .unique_session_name(&name)
        .flush_timeout(flushes_last)
        .buffer(match place {
            Place::LargeRing => Buffer::new(64 << 10),
            Place::SmallRing => Buffer::new(512),
            Place::KeepFirst => Buffer::new(2 << 10).keep_first(),
            Place::File => Buffer::new(32 << 10),
        });
    let clears = chance.one_in(3);
    if clears {
        config = config.clear_incremental_state(Duration::from_millis(100 + chance.below(200)));
    }
    // A session that streams into a file should be flushed now and then, or the service warns.
    let flushes = chance.one_in(3) || matches!(place, Place::File);
    if flushes {
        config = config.flush_period(Duration::from_millis(100 + chance.below(300)));
    }
    let mut what = format!("{place:?} {categories:?}");
    if clears {
        what += ", clears";
    }
    if flushes {
        what += ", flushes";
    }
    let mut session = make();
    session.set_patience(PATIENCE);
    let set_up = now();
    let file = match place {
        Place::File => {
            let file = tempfile::tempfile().unwrap();
            let config = config.write_into_file(Duration::from_millis(100));
            session.setup_with_file(&config, file.try_clone().unwrap())?;
            Some(file)
        }
        _ => {
            session.setup(&config)?;
            None
        }
    };
    session.start_blocking()?;
    let started = now();
    let expected = |stopping| Expected {
        categories,
        set_up,
        started,
        stopping,
        stopped: now(),
    };
    let mut recordings = Vec::new();
    let mut read_so_far = Vec::new();
    for _ in 0..chance.below(4) {
        // The session is to last a while.
        std::thread::sleep(Duration::from_millis(chance.below(400)));
        match chance.below(4) {
            0 => session.flush_blocking(flushes_last)?,
            1 if matches!(place, Place::LargeRing | Place::SmallRing) && service.reads_meanwhile() => {
                session.flush_blocking(flushes_last)?;
                session.write_to(&mut read_so_far)?;
                what += ", read meanwhile";
            }
            2 if read_so_far.is_empty() => {
                let mut clone = make();
                clone.set_patience(PATIENCE);
                let stopping = now();
                let source = CloneSource::Name(name.clone());
                let trace = match &file {
                    None => {
                        clone.clone_session(&source)?;
                        clone.read_to_end()?
                    }
                    Some(_) => {
                        let file = tempfile::tempfile().unwrap();
                        clone.clone_session_into(&source, file.try_clone().unwrap())?;
                        contents(file)
                    }
                };
                recordings.push(Recording {
                    trace,
                    expected: expected(stopping),
                    stats: None,
                    what: format!("{what}: clone"),
                });
            }
            _ => {}
        }
    }
    let stopping = now();
    session.stop_blocking()?;
    let expected = expected(stopping);
    let mut trace = read_so_far;
    let stats = match trace.is_empty() {
        true => None,
        false => Some(session.trace_stats()?),
    };
    match file {
        Some(file) => trace = contents(file),
        None => {
            session.write_to(&mut trace)?;
        }
    }
    recordings.push(Recording {
        trace,
        expected,
        stats,
        what,
    });
    Ok(recordings)
}

fn contents(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("stress-{}-{number}", std::process::id())
}
