//! Lines for the log about clients, few enough that none of their users can fill it.
//!
//! `listener` and `handshake` write them. Refused clients leave no connection behind whose end could make room for the next line, as the service's have,
//! so time does: each user has [`LINES`] in a [`PERIOD`], and all together have [`LINES_OF_ALL`]. The last of them says that others are left out, and the
//! first one of the next period how many were.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferretto_client::runtime::ProducerProgram;
use ferretto_probes::lru::LruMap;

use crate::source::NAME;

/// Lines about the clients of one user in a period.
const LINES: u32 = 4;

/// Lines about all clients in a period: one user may have many ids.
const LINES_OF_ALL: u32 = 64;

const PERIOD: Duration = Duration::from_secs(60);

/// Users that are remembered.
const MOST_USERS: usize = 1024;

/// See the [module](self).
pub(crate) struct Warnings {
    program: Arc<dyn ProducerProgram>,
    limits: Mutex<Limits>,
}

impl Warnings {
    pub(crate) fn new(program: Arc<dyn ProducerProgram>) -> Warnings {
        Warnings {
            program,
            limits: Mutex::new(Limits::new(Instant::now())),
        }
    }

    /// Writes a line about a client of this user, if there may be one more.
    pub(crate) fn about_client_of(&self, user: u32, line: &str) {
        self.about(About::ClientsOf(user), line);
    }

    /// Writes a line about the obstacle to taking clients, if there may be one more.
    pub(crate) fn about_daemon(&self, line: &str) {
        self.about(About::Daemon, line);
    }

    fn about(&self, about: About, line: &str) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = limits.line(about, line, Instant::now()) {
            // In order, so under the lock.
            self.program.warning(&format!("{NAME}: {line}"));
        }
    }
}

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum About {
    /// Clients of this user.
    ClientsOf(u32),
    Daemon,
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            About::ClientsOf(user) => write!(f, "clients of uid {user}"),
            About::Daemon => f.write_str("new connections"),
        }
    }
}

/// The recent lines.
struct Limits {
    all: Lines,
    each: LruMap<About, Lines>,
}

/// The lines of a period.
#[derive(Clone, Copy, Debug)]
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl Lines {
    fn new(now: Instant) -> Lines {
        Lines {
            since: now,
            written: 0,
            left_out: 0,
        }
    }

    /// Begins a period if the last one is over, and returns how many lines that left out.
    fn begin(&mut self, now: Instant) -> u64 {
        match now.saturating_duration_since(self.since) < PERIOD {
            true => 0,
            false => std::mem::replace(self, Lines::new(now)).left_out,
        }
    }
}

impl Limits {
    fn new(now: Instant) -> Limits {
        Limits {
            all: Lines::new(now),
            each: LruMap::new(MOST_USERS),
        }
    }

    /// The line as it is to be written; `None` if it is left out.
    fn line(&mut self, about: About, line: &str, now: Instant) -> Option<String> {
        let own = self.each.get_or_insert_with(about, || Lines::new(now));
        let left_out_of_own = own.begin(now);
        let left_out = self.all.begin(now);
        if own.written >= LINES {
            own.left_out += 1;
            return None;
        }
        if self.all.written >= LINES_OF_ALL {
            self.all.left_out += 1;
            return None;
        }
        own.written += 1;
        self.all.written += 1;
        let mut line = line.to_owned();
        if left_out_of_own > 0 {
            line += &format!(" ({left_out_of_own} lines about {about} were left out before)");
        }
        if left_out > 0 {
            line += &format!(" ({left_out} lines about all clients together were left out before)");
        }
        if own.written == LINES {
            line += &format!("; no more lines about {about} for some time");
        }
        if self.all.written == LINES_OF_ALL {
            line += "; no more lines about any clients for some time";
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_few_lines_and_is_told_later_how_many_were_left_out() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let lines: Vec<_> = (0..1000)
            .filter_map(|_| limits.line(About::ClientsOf(7), "no", now))
            .collect();
        assert_eq!(lines.len(), LINES as usize);
        assert_eq!(lines[0], "no");
        let last = lines.last().expect("there are some");
        assert_eq!(last, "no; no more lines about clients of uid 7 for some time");
        // Others have theirs.
        assert_eq!(limits.line(About::ClientsOf(8), "no", now).as_deref(), Some("no"));
        let later = now + PERIOD;
        let first = limits
            .line(About::ClientsOf(7), "no", later)
            .expect("it is a new period");
        assert_eq!(
            first,
            "no (996 lines about clients of uid 7 were left out before)"
        );
        assert_eq!(
            limits.line(About::ClientsOf(7), "no", later).as_deref(),
            Some("no")
        );
    }

    #[test]
    fn many_users_together_have_a_bounded_number_of_lines() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let lines: Vec<_> = (0..5000)
            .filter_map(|user| limits.line(About::ClientsOf(user), "no", now))
            .collect();
        assert_eq!(lines.len(), LINES_OF_ALL as usize);
        let last = lines.last().expect("there are some");
        assert_eq!(last, "no; no more lines about any clients for some time");
        assert!(limits.each.len() <= MOST_USERS);
        let first = limits
            .line(About::ClientsOf(1), "no", now + PERIOD)
            .expect("it is a new period");
        let left_out = 5000 - u64::from(LINES_OF_ALL);
        assert_eq!(
            first,
            format!("no ({left_out} lines about all clients together were left out before)")
        );
    }
}
