//! A program that records itself: no daemon, no privileges, one file at the end.
//!
//! ```text
//! cargo run --example in_process [FILE]
//! ```
//!
//! Then open `in_process.pftrace` at <https://ui.perfetto.dev>.

use std::fs::File;

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::track::CounterTrack;
use ferretto::{Options, trace_counter, trace_event, trace_event_instant};

/// Each thread has its own.
static PRIMES: CounterTrack = CounterTrack::new("Primes").thread_scoped();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(Options::in_process());

    let session = Session::in_process();
    session.setup(
        &TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::track_event()),
    )?;
    session.start_blocking()?;

    let primes = std::thread::scope(|scope| {
        let halves = [("first half", 0, 10_000), ("second half", 10_000, 20_000)];
        let threads = halves.map(|(name, from, to)| {
            // Traces call threads what they are called.
            let thread = std::thread::Builder::new().name(name.to_owned());
            let thread = thread.spawn_scoped(scope, move || count_primes(from, to));
            thread.expect("threads can be spawned")
        });
        threads.map(|thread| thread.join().expect("counting does not panic"))
    });

    session.stop_blocking()?;
    let path = std::env::args().nth(1);
    let path = path.as_deref().unwrap_or("in_process.pftrace");
    let bytes = session.write_to(&mut File::create(path)?)?;
    println!("{} primes, {bytes} bytes in {path}", primes[0] + primes[1]);
    Ok(())
}

fn count_primes(from: u32, to: u32) -> usize {
    trace_event!("work", "Count primes", "from" => from, "to" => to);
    let mut count = 0;
    for hundred in (from..to).step_by(100) {
        trace_event!("work", "Hundred", "first" => hundred);
        count += (hundred..hundred + 100)
            .filter(|&number| is_prime(number))
            .count();
        trace_counter!("work", &PRIMES, count);
    }
    trace_event_instant!("work", "Counted", "primes" => count);
    count
}

fn is_prime(number: u32) -> bool {
    let mut divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number > 1 && divisors.all(|divisor| !number.is_multiple_of(divisor))
}
