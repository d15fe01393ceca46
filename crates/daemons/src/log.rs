//! Lines for the people who watch the daemons: on stderr, with the time since boot, as upstream's daemons write them.
//!
//! A line is `[seconds] E|W|I text`; in systemd's journal, which keeps time and level itself, the text. Clients can cause lines with every request.
//! So lines are bounded in length, and in number over time: where some are left out, the next line says how many.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The variable with the `Level` up to which lines are written.
pub const LEVEL: &str = "FERRETTO_LOG";

/// The importance of a line; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The daemon ends, or cannot do its task.
    Error,
    /// Somebody will miss something.
    Warning,
    /// Something happened that is in order.
    Info,
}

impl Level {
    fn from_name(name: &str) -> Option<Level> {
        match name {
            "error" => Some(Level::Error),
            "warning" => Some(Level::Warning),
            "info" => Some(Level::Info),
            _ => None,
        }
    }

    /// The letter of the level in a line.
    fn letter(self) -> char {
        match self {
            Level::Error => 'E',
            Level::Warning => 'W',
            Level::Info => 'I',
        }
    }

    /// The level as the journal counts it. The journal takes the number from the front of a line: `<3>`, sd-daemon(3).
    fn syslog(self) -> u8 {
        match self {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Info => 6,
        }
    }
}

/// Bytes of a line.
const MAX_LINE: usize = 4096;
/// Lines that may come at once after a quiet time.
const MAX_BURST: u32 = 200;
/// In the long run there is one line in this time.
const PERIOD: Duration = Duration::from_millis(200);

/// Up to which level lines are written, if a flag says.
static OF_FLAG: OnceLock<Level> = OnceLock::new();

/// Up to which level lines are written otherwise.
static OF_ENVIRONMENT: LazyLock<Level> = LazyLock::new(|| {
    let value = std::env::var_os(LEVEL).unwrap_or_default();
    let level = value.to_str().and_then(Level::from_name);
    if level.is_none() && !value.is_empty() {
        let value = value.display();
        write(
            Level::Warning,
            format_args!("{LEVEL}={value} is none of error, warning and info"),
            0,
        );
    }
    level.unwrap_or(Level::Info)
});

/// Whether lines go to systemd's journal, which has a column for levels and one for the time.
static TO_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|stderr| journal == format!("{}:{}", stderr.st_dev, stderr.st_ino))
});

static THROTTLE: Mutex<Throttle> = Mutex::new(Throttle::new());

/// Writes lines up to this level only, whatever the environment says. The first call counts.
pub(crate) fn limit(level: Level) {
    let _ = OF_FLAG.set(level);
}

/// The daemon ends, or cannot do its task. This is always written.
pub fn error(line: Arguments<'_>) {
    write(Level::Error, line, 0);
}

/// Somebody will miss something.
pub fn warning(line: Arguments<'_>) {
    write_if_admitted(Level::Warning, line);
}

/// Something happened that is in order.
pub fn info(line: Arguments<'_>) {
    write_if_admitted(Level::Info, line);
}

fn write_if_admitted(level: Level, line: Arguments<'_>) {
    if level > OF_FLAG.get().copied().unwrap_or_else(|| *OF_ENVIRONMENT) {
        return;
    }
    let now = ferretto_ipc::reactor::boot_now();
    if let Some(left_out) = THROTTLE.lock().unwrap_or_else(PoisonError::into_inner).admit(now) {
        write(level, line, left_out);
    }
}

/// Writes a line, after another that says how many were left out.
fn write(level: Level, line: Arguments<'_>, left_out: u64) {
    let mut text = String::new();
    if left_out > 0 {
        text = format(
            Level::Warning,
            format_args!("there was too much to say: {left_out} lines are left out here"),
        );
    }
    text.push_str(&format(level, line));
    // In one write, so that lines of several processes do not mix. A failure cannot be reported anywhere.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn format(level: Level, line: Arguments<'_>) -> String {
    let mut text = if *TO_JOURNAL {
        cut(format!("<{}>{line}", level.syslog()))
    } else {
        let now = ferretto_ipc::reactor::boot_now();
        cut(format!(
            "[{:05}.{:03}] {} {line}",
            now / 1_000_000_000 % 100_000,
            now / 1_000_000 % 1000,
            level.letter()
        ))
    };
    text.push('\n');
    text
}

/// The line, or as much of it as is written. Lines contain names that clients choose, which must not end the line or move the cursor.
fn cut(mut line: String) -> String {
    const MARK: char = '…';
    if line.contains(char::is_control) {
        line = line
            .chars()
            .map(|letter| {
                if letter.is_control() {
                    letter.escape_default().to_string()
                } else {
                    letter.into()
                }
            })
            .collect();
    }
    if line.len() > MAX_LINE {
        let end = (0..=MAX_LINE - MARK.len_utf8()).rfind(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or_default());
        line.push(MARK);
    }
    line
}

/// Returns the text of a line of [`write`], for a reader that needs neither time nor level. Returns other lines whole.
pub fn text(line: &str) -> &str {
    let stamped = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    match stamped.map(|(_, rest)| rest.split_at_checked(2)) {
        Some(Some(("I " | "W " | "E ", text))) => text,
        _ => line,
    }
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
    fn after_a_burst_lines_come_slowly_and_count_the_omitted_ones() {
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
    fn a_line_stays_one_line() {
        let line = "p\n[00001.000] E \x1b[2Jq\u{85}ä".to_owned();
        assert_eq!(cut(line), "p\\n[00001.000] E \\u{1b}[2Jq\\u{85}ä");
    }

    #[test]
    fn a_line_is_separated_from_its_time_and_level() {
        assert_eq!(text("[33491.139] W cannot do it: [x] y"), "cannot do it: [x] y");
        for other in ["    sudo it", "", "[33491.139] Wrong", "[a] ", "thread panicked"] {
            assert_eq!(text(other), other);
        }
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
