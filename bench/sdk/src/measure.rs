//! The work of a peer's program: it sets the peer up, waits until events are recorded, says `begin`, works when it is told to, says
//! what it took, lets the rest arrive, says `end`, and leaves when its standard input does.
//!
//! On stdout, for each batch in turn `batch NANOSECONDS...` (CPU time of each thread for its whole batch), for the others
//! `load NANOSECONDS COUNT` (the time it took, and how often the case was done).

use std::env;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::description::Description;
use crate::order::{Order, Work};
use crate::peer::{Body, Peer, Tracing};

/// How long a recording may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this time a library is connected to its service, and all written data has arrived there.
const SETTLED: Duration = Duration::from_millis(300);
/// Between two bursts of a paced load.
const TICK: Duration = Duration::from_millis(1);
/// How often each thread of a crowd does the case before it sleeps.
const CROWD_BURST: u64 = 50;

/// The whole of a peer's program: `describe`, or an order.
pub fn main(peer: &dyn Peer) -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let result = match words.as_slice() {
        [word] if word == "describe" => say(&Description::of(peer).to_string()),
        words => Order::from_words(words).and_then(|order| carry_out(peer, &order)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{}: {reason}", peer.name());
            ExitCode::FAILURE
        }
    }
}

fn carry_out(peer: &dyn Peer, order: &Order) -> Result<(), String> {
    let body = peer
        .body(order.case)
        .ok_or_else(|| format!("{} has no {}", peer.name(), order.case))?;
    // The library's own threads too: a thread that it wakes is the cheaper for being near.
    cpu::pin(order.cpus[0])?;
    peer.set_up(order.tracing, order.shared_memory);
    await_state(peer, order.tracing)?;
    say("begin")?;
    await_word()?;
    match order.work {
        Work::Batches { count, size } => {
            let mut report = Vec::new();
            for batch in run_batches(order, body, count, size)? {
                let times: Vec<_> = batch.iter().map(|time| time.as_nanos().to_string()).collect();
                report.push(format!("batch {}", times.join(" ")));
            }
            report.iter().try_for_each(|line| say(line))?;
        }
        Work::Paced { rate, seconds } => {
            let (took, done) = run_paced(body, rate, Duration::from_secs(seconds));
            say(&format!("load {} {done}", took.as_nanos()))?;
        }
        Work::Flat { count } => {
            let begin = Instant::now();
            run_flat(order, body, count)?;
            let done = order.total();
            say(&format!("load {} {done}", begin.elapsed().as_nanos()))?;
        }
        Work::Crowd {
            threads,
            rate,
            seconds,
        } => {
            let (took, done) = run_crowd(body, threads, rate, Duration::from_secs(seconds));
            say(&format!("load {} {done}", took.as_nanos()))?;
        }
    }
    thread::sleep(SETTLED);
    if let Some(kept) = peer.kept() {
        let total = order.total();
        if order.tracing == Tracing::On && kept != total {
            return Err(format!("it kept {kept} of {total}"));
        }
    }
    say("end")?;
    await_word()
}

fn await_state(peer: &dyn Peer, tracing: Tracing) -> Result<(), String> {
    let begin = Instant::now();
    match tracing {
        Tracing::On => {
            while !peer.is_recording() {
                if begin.elapsed() > PATIENCE {
                    return Err(format!("nothing recorded {} in {PATIENCE:?}", peer.name()));
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
        Tracing::Off => {
            thread::sleep(SETTLED);
            if peer.is_recording() {
                return Err(format!("{} is recording", peer.name()));
            }
        }
    }
    Ok(())
}

/// The CPU time of each thread for each batch.
fn run_batches(order: &Order, body: Body, count: u64, size: u64) -> Result<Vec<Vec<Duration>>, String> {
    let threads = order.case.threads() as usize;
    let together = Barrier::new(threads);
    let run = || -> Result<Vec<Duration>, String> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            together.wait();
            let took = timed(body, size);
            times.push(took);
            cpu::await_idle(order.service, PATIENCE)
                .map_err(|error| format!("waiting until all was taken: {error}"))?;
        }
        Ok(times)
    };
    let by_thread = thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|_| {
                scope.spawn(|| {
                    cpu::pin(order.cpus[1])?;
                    run()
                })
            })
            .collect();
        let mut by_thread = vec![run()?];
        for other in others {
            by_thread.push(other.join().map_err(|_| "a measured thread panicked")??);
        }
        Ok::<_, String>(by_thread)
    })?;
    Ok((0..count as usize)
        .map(|batch| by_thread.iter().map(|times| times[batch]).collect())
        .collect())
}

/// CPU time of the calling thread. Callgrind counts what happens in here.
#[inline(never)]
fn timed(body: Body, size: u64) -> Duration {
    let begin = cpu::thread_time();
    body(size);
    cpu::thread_time() - begin
}

/// The time it took, and how often the case was done: less than was asked for if that was too much.
fn run_paced(body: Body, rate: u64, duration: Duration) -> (Duration, u64) {
    let begin = Instant::now();
    let mut done = 0;
    loop {
        let elapsed = begin.elapsed();
        if elapsed >= duration {
            return (elapsed, done);
        }
        let due = (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000) as u64;
        if done < due {
            // Late work comes later, not all at once, so bursts stay as the pace makes them.
            let burst = (due - done).min(2 * rate * TICK.as_millis() as u64 / 1000);
            body(burst);
            done += burst;
        } else {
            thread::sleep(TICK);
        }
    }
}

/// On all threads of the case at once.
fn run_flat(order: &Order, body: Body, count: u64) -> Result<(), String> {
    let together = Barrier::new(order.case.threads() as usize);
    let run = || {
        together.wait();
        body(count);
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..order.case.threads())
            .map(|_| {
                scope.spawn(|| {
                    let pinned = cpu::pin(order.cpus[1]);
                    run();
                    pinned
                })
            })
            .collect();
        run();
        others
            .into_iter()
            .try_for_each(|other| other.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

/// The time it took, and how often the case was done by all threads. Bursts of different threads are spread over time, from when all
/// threads are there.
fn run_crowd(body: Body, threads: u64, rate: u64, duration: Duration) -> (Duration, u64) {
    let period = Duration::from_nanos(threads * CROWD_BURST * 1_000_000_000 / rate);
    let together = Barrier::new(threads as usize);
    let live = |number: u64| {
        together.wait();
        let begin = Instant::now();
        let mut due = begin + period.mul_f64(number as f64 / threads as f64);
        let mut done = 0;
        while due < begin + duration {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            body(CROWD_BURST);
            done += CROWD_BURST;
            due += period;
        }
        done
    };
    let begin = Instant::now();
    let done = thread::scope(|scope| {
        let live = &live;
        let crowd: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || live(number)))
            .collect();
        crowd.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    (begin.elapsed(), done)
}

fn say(line: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("reporting: {error}"))
}

/// Waits for any word, or the end of input.
fn await_word() -> Result<(), String> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map(drop)
        .map_err(|error| format!("waiting for a word: {error}"))
}
