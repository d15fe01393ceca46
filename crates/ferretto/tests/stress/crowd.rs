//! Threads that tell their stories, end in the middle, and are replaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Chance;
use super::journal::Journal;
use super::story::{self, Outcome};

/// The number of threads at a time, for each processor that this process may use.
const THREADS_PER_PROCESSOR: u64 = 32;
/// The number of threads at a time on a machine with many processors.
const MOST_THREADS: u64 = 64;
/// The nice value of the threads.
const LOW_PRIORITY: i32 = 10;

/// The threads, and the supervisor that replaces ended ones.
pub(crate) struct Crowd {
    over: Arc<AtomicBool>,
    supervisor: JoinHandle<u64>,
}

impl Crowd {
    /// Starts the threads, whose streams are numbered from `first` on. Journals go into `folder`.
    pub(crate) fn start(seed: u64, first: u64, folder: &Path) -> Crowd {
        let over = Arc::new(AtomicBool::new(false));
        let (folder, is_over) = (folder.to_owned(), over.clone());
        let supervisor = std::thread::spawn(move || supervise(seed, first, &folder, &is_over));
        Crowd { over, supervisor }
    }

    /// Ends them all, and waits for that; how many streams there were.
    pub(crate) fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.supervisor.join().unwrap()
    }
}

/// The number of threads: [`THREADS_PER_PROCESSOR`], or `FERRETTO_SDK_STRESS_THREADS`. A sanitized program has time for fewer.
fn threads() -> u64 {
    let variable = std::env::var("FERRETTO_SDK_STRESS_THREADS").ok();
    let processors = || std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    variable.map_or_else(
        || (THREADS_PER_PROCESSOR * processors()).min(MOST_THREADS),
        |threads| threads.parse().expect("a number"),
    )
}

/// Lowers the calling thread's priority, so that the SDK's own thread gets more than its even share of the processors. Beside so many
/// threads that never rest it would fall behind for as long as they run.
fn stand_back() {
    let this = Some(rustix::thread::gettid());
    let present = rustix::process::getpriority_process(this).unwrap();
    if present < LOW_PRIORITY {
        rustix::process::setpriority_process(this, LOW_PRIORITY).unwrap();
    }
}

fn supervise(seed: u64, first: u64, folder: &Path, over: &Arc<AtomicBool>) -> u64 {
    let (ended, has_ended) = channel();
    let mut streams = first..;
    let mut spawn = |place: u64| {
        let (stream, ended) = (streams.next().unwrap(), ended.clone());
        let (folder, over) = (PathBuf::from(folder), over.clone());
        std::thread::Builder::new()
            .name(format!("crowd {place}"))
            .spawn(move || {
                stand_back();
                let told = std::panic::catch_unwind(|| live(seed, stream, &folder, &over));
                // Others matter.
                if let Err(panic) = told
                    && !panic.is::<story::Planned>()
                {
                    std::process::abort();
                }
                let _ = ended.send(place);
            })
            .unwrap()
    };
    let mut threads: Vec<_> = (0..threads()).map(&mut spawn).collect();
    while !over.load(Ordering::Relaxed) {
        if let Ok(place) = has_ended.recv_timeout(Duration::from_millis(20)) {
            let next = spawn(place);
            std::mem::replace(&mut threads[place as usize], next)
                .join()
                .unwrap();
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    streams.start - first
}

/// A thread's life.
fn live(seed: u64, stream: u64, folder: &Path, over: &AtomicBool) {
    let mut chance = Chance::new(seed ^ stream.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut journal = Journal::create(folder, stream);
    let steps = match chance.below(4) {
        0 => chance.below(50),
        1 => chance.below(2_000),
        _ => chance.below(20_000),
    };
    // Up to twice this many microseconds.
    let pause = match chance.below(32) {
        0 => 0,
        _ => chance.pick(&[5_000u64, 20_000, 60_000]),
    };
    let panics = chance.one_in(3);
    let mut burst = 0;
    for number in 0..steps {
        if over.load(Ordering::Relaxed) {
            break;
        }
        if burst == 0 {
            burst = chance.below(60) + 1;
            // So that there are pauses between events as well as rushes.
            match chance.below(2 * pause + 1) {
                0 => std::thread::yield_now(),
                micros => std::thread::sleep(Duration::from_micros(micros)),
            }
        }
        burst -= 1;
        journal.note();
        let outcome = match panics && number + 10 > steps {
            true => Outcome::Panic,
            false => Outcome::Normal,
        };
        story::tell(stream, number, outcome);
    }
    journal.note();
}
