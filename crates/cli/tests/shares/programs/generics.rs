//! Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10 and 20 % of it in instances of a generic function, 30 % in a method of a
//! trait, and 40 % in a function that is inlined into `caller`, all below closures, iterators and a thread. See `plain.c`.

use std::hint::black_box;

unsafe extern "C" {
    /// Of the C library, which counts in millionths of a second.
    safe fn clock() -> std::ffi::c_long;
}

trait Number: Copy {
    fn widened(self) -> u64;
}

impl Number for u32 {
    fn widened(self) -> u64 {
        u64::from(self)
    }
}

impl Number for u64 {
    fn widened(self) -> u64 {
        self
    }
}

#[inline(always)]
fn steps(count: u64) -> u64 {
    let mut x = black_box(1_u64);
    for _ in 0..count {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    }
    black_box(x)
}

#[inline(never)]
fn work<N: Number, const SHARE: u64>(scale: N) {
    steps(SHARE * 100 * scale.widened());
}

trait Worker {
    fn run(&self, scale: u64);
}

struct Thirty;

impl Worker for Thirty {
    #[inline(never)]
    fn run(&self, scale: u64) {
        steps(3000 * scale);
    }
}

#[inline(never)]
fn caller(scale: u64) {
    steps(4000 * scale);
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(1.0, |typed| typed.parse().unwrap());
    let end = (seconds * 1e6) as std::ffi::c_long;
    let worker: Box<dyn Worker + Send> = Box::new(Thirty);
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let thread = std::thread::spawn(move || {
        let mut random = 1_u64;
        while clock() < end {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let scale = 1 + (random >> 60);
            [scale].iter().map(|scale| *scale as u32).for_each(work::<u32, 10>);
            work::<u64, 20>(scale);
            worker.run(scale);
            (0..1).for_each(|_| caller(scale));
        }
    });
    thread.join().unwrap();
}
