//! A program that records itself: one line in `main`, and a file at the end.
//!
//! ```text
//! cargo run --example first_trace [FILE]
//! ```

use ferretto::track::CounterTrack;
use ferretto::{trace_counter, trace_event, trace_event_instant};

/// Each thread has its own.
static PRIMES: CounterTrack = CounterTrack::new("Primes").thread_scoped();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = ferretto::record_to(path.as_deref().unwrap_or("trace.pftrace"))?;

    std::thread::scope(|scope| {
        for (name, from, to) in [("first half", 0, 10_000), ("second half", 10_000, 20_000)] {
            // The trace has the names of threads.
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, move || count_primes(from, to))?;
        }
        Ok(())
    })
}

fn count_primes(from: u32, to: u32) {
    // A slice from here to the end of the function.
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
}

fn is_prime(number: u32) -> bool {
    let mut divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number > 1 && divisors.all(|divisor| !number.is_multiple_of(divisor))
}
