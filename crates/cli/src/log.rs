//! Lines for whoever watches the daemons: on stderr, with the time since boot, as upstream's daemons write them.
//!
//! Clients can make the daemons say something with every request. So lines are bounded in length, and in number over time:
//! where some are left out, the next one says how many.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// The variable that says how loud a line must be to be written: `info` (the default) or `warning`.
pub(crate) const LEVEL: &str = "FERRETTO_LOG";

/// Bytes of a line.
const MAX_LINE: usize = 4096;
/// Lines that may come at once after a quiet time.
const MAX_BURST: u32 = 200;
/// In the long run there is one line in this time.
const PERIOD: Duration = Duration::from_millis(200);

static WARNINGS_ONLY: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os(LEVEL).is_some_and(|level| level == "warning"));

static THROTTLE: Mutex<Throttle> = Mutex::new(Throttle::new());

/// Something happened that is in order.
pub(crate) fn info(line: Arguments<'_>) {
    if !*WARNINGS_ONLY {
        write('I', line);
    }
}

/// Somebody will miss something.
pub(crate) fn warning(line: Arguments<'_>) {
    write('W', line);
}

fn write(level: char, line: Arguments<'_>) {
    let now = ferretto_ipc::reactor::boot_now();
    let admitted = THROTTLE.lock().unwrap_or_else(PoisonError::into_inner).admit(now);
    let Some(left_out) = admitted else { return };
    let time = format!(
        "[{:05}.{:03}]",
        now / 1_000_000_000 % 100_000,
        now / 1_000_000 % 1000
    );
    let mut text = String::new();
    if left_out > 0 {
        text = format!("{time} W there was too much to say: {left_out} lines are left out here\n");
    }
    text.push_str(&cut(format!("{time} {level} {line}")));
    text.push('\n');
    // In one write, so that lines of several processes do not mix. If nobody takes it, there is nobody to tell.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The line, or as much of it as is written.
fn cut(mut line: String) -> String {
    const MARK: char = '…';
    if line.len() > MAX_LINE {
        let end = (0..=MAX_LINE - MARK.len_utf8()).rfind(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or_default());
        line.push(MARK);
    }
    line
}

/// Says which lines are written.
#[derive(Debug)]
struct Throttle {
    /// Lines that may come now.
    allowed: u32,
    /// Up to when the passing of time has been turned into lines, in nanoseconds of boot time.
    counted_to: u64,
    left_out: u64,
}

impl Throttle {
    const fn new() -> Throttle {
        Throttle {
            allowed: MAX_BURST,
            counted_to: 0,
            left_out: 0,
        }
    }

    /// Whether a line may be written now, and how many were left out before it.
    fn admit(&mut self, now: u64) -> Option<u64> {
        let period = PERIOD.as_nanos() as u64;
        let periods = now.saturating_sub(self.counted_to) / period;
        self.counted_to += periods * period;
        let more = u32::try_from(periods).unwrap_or(u32::MAX);
        self.allowed = self.allowed.saturating_add(more).min(MAX_BURST);
        if self.allowed == 0 {
            self.left_out += 1;
            return None;
        }
        self.allowed -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_lines_come_slowly_and_tell_of_those_left_out() {
        let start = 1_000_000_000_000;
        let period = PERIOD.as_nanos() as u64;
        let mut throttle = Throttle::new();
        for _ in 0..MAX_BURST {
            assert_eq!(throttle.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(throttle.admit(start), None);
        }
        assert_eq!(throttle.admit(start + period), Some(7));
        assert_eq!(throttle.admit(start + period), None);
        let quiet = start + 10_000 * period;
        let burst = (0..1000).take_while(|_| throttle.admit(quiet).is_some()).count();
        assert_eq!(burst, MAX_BURST as usize);
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        assert_eq!(cut("short".to_owned()), "short");
        for shift in 0..4 {
            let line = "x".repeat(shift) + &"\u{20ac}".repeat(MAX_LINE);
            let cut = cut(line.clone());
            assert!(cut.len() <= MAX_LINE && cut.len() > MAX_LINE - 4, "{}", cut.len());
            assert!(cut.ends_with('…') && line.starts_with(cut.trim_end_matches('…')));
        }
    }
}
