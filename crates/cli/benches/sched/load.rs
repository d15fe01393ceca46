//! Loads of the kernel's events: pairs of threads on one CPU that wake each other through pipes, so that each byte costs a wakeup and a switch; or
//! threads that set timers.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A switch for each of the two directions, and at least one waking: a thread that is preempted right after writing may be answered before it sleeps.
const EVENTS_PER_ROUND_TRIP: u32 = 3;
/// The pause of a rate-limited pair between two bursts.
const BURST: Duration = Duration::from_millis(10);

/// The time that timers are set to, so that none ends during a bench.
const IN_AN_HOUR: Itimerspec = Itimerspec {
    it_interval: Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    },
    it_value: Timespec {
        tv_sec: 3600,
        tv_nsec: 0,
    },
};

/// The speed of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rate {
    /// As fast as the machine can.
    Full,
    /// At least this many events per second, by all pairs together.
    EventsPerSecond(u32),
}

/// Threads, which rest at first. The same threads serve all recordings of a bench, because the size of an event in a trace depends on the
/// digits of their ids. They end when this is dropped.
pub(crate) struct Load {
    gate: Arc<Gate>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Makes `pairs` pairs, distributed over the `cpus` in turn.
    pub(crate) fn new(pairs: u32, cpus: &[usize], rate: Rate) -> Load {
        let gate = Arc::new(Gate::default());
        let pace = match rate {
            Rate::Full => None,
            Rate::EventsPerSecond(events) => {
                let per_burst = f64::from(events / pairs / EVENTS_PER_ROUND_TRIP) * BURST.as_secs_f64();
                Some(per_burst.max(1.0) as u32)
            }
        };
        let threads = (0..pairs as usize)
            .zip(cpus.iter().cycle())
            .flat_map(|(pair, &cpu)| start_pair(pair, cpu, pace, Arc::clone(&gate)))
            .collect();
        Load { gate, threads }
    }

    /// Makes `threads` threads, distributed over the `cpus` in turn. Each sets a timer over and over, as fast as the machine can.
    pub(crate) fn of_timers(threads: u32, cpus: &[usize]) -> Load {
        let gate = Arc::new(Gate::default());
        let threads = (0..threads as usize)
            .zip(cpus.iter().cycle())
            .map(|(thread, &cpu)| start_setting_timers(thread, cpu, Arc::clone(&gate)))
            .collect();
        Load { gate, threads }
    }

    /// Lets the threads run.
    pub(crate) fn run(&self) {
        self.gate.set(Phase::Running);
    }

    /// Lets the threads rest, which takes some milliseconds.
    pub(crate) fn rest(&self) {
        self.gate.set(Phase::Resting);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.gate.set(Phase::Ended);
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread of the load");
        }
    }
}

/// The state of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Resting,
    Running,
    Ended,
}

#[derive(Default)]
struct Gate {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Whether the phase is `Running`, for a look between two bursts.
    open: AtomicBool,
}

impl Gate {
    fn set(&self, phase: Phase) {
        *self.phase.lock().expect("no thread panics with it") = phase;
        self.open.store(phase == Phase::Running, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits while the phase is `Resting`.
    fn next_phase(&self) -> Phase {
        let phase = self.phase.lock().expect("no thread panics with it");
        let phase = self.changed.wait_while(phase, |phase| *phase == Phase::Resting);
        *phase.expect("no thread panics with it")
    }
}

/// Starts a pair. `pace` is the number of round trips in each burst; `None` for endless ones.
fn start_pair(pair: usize, cpu: usize, pace: Option<u32>, gate: Arc<Gate>) -> [JoinHandle<()>; 2] {
    let (mut ping_out, mut ping_in) = std::io::pipe().expect("a pipe");
    let (mut pong_out, mut pong_in) = std::io::pipe().expect("a pipe");
    let ping = spawn(format!("ping-{pair}"), cpu, move || {
        while gate.next_phase() == Phase::Running {
            let mut next = Instant::now();
            while gate.open.load(Ordering::Relaxed) {
                for _ in 0..pace.unwrap_or(1_000) {
                    round_trip(&mut ping_in, &mut pong_out);
                }
                if pace.is_some() {
                    next += BURST;
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
        }
        // The pipe ends with this thread, and the other thread with the pipe.
    });
    let pong = spawn(format!("pong-{pair}"), cpu, move || {
        while ping_out.read_exact(&mut [0]).is_ok() {
            pong_in.write_all(&[0]).expect("a pipe that is read");
        }
    });
    [ping, pong]
}

fn start_setting_timers(thread: usize, cpu: usize, gate: Arc<Gate>) -> JoinHandle<()> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("a timer");
    spawn(format!("timer-{thread}"), cpu, move || {
        while gate.next_phase() == Phase::Running {
            while gate.open.load(Ordering::Relaxed) {
                timerfd_settime(&timer, TimerfdTimerFlags::empty(), &IN_AN_HOUR).expect("a timer");
            }
        }
    })
}

fn round_trip(there: &mut PipeWriter, back: &mut PipeReader) {
    there.write_all(&[0]).expect("a pipe that is read");
    back.read_exact(&mut [0]).expect("a pipe that is written");
}

fn spawn(name: String, cpu: usize, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let pinned = move || {
        let mut one = CpuSet::new();
        one.set(cpu);
        rustix::thread::sched_setaffinity(None, &one).expect("a CPU of ours");
        body();
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(pinned)
        .expect("a thread")
}

/// Returns the CPUs that this process may use.
pub(crate) fn cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).expect("a mask of CPUs");
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}
