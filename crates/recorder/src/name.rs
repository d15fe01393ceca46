//! The names of sessions, of reasons and of sealed files.
//!
//! A sealed file is `20261126T215617.123Z-SESSION-REASON.pftrace`: the time of the request in UTC, so that names sort by time. A reason has no
//! hyphen, so a name can be taken apart again.

use std::fmt;

use chrono::{DateTime, NaiveDateTime};

/// The longest name of a session or reason, so that no file name is too long for a filesystem.
const LONGEST: usize = 64;
const TIME: &str = "%Y%m%dT%H%M%S%.3fZ";
/// The form of a time has this many letters until the year 10000.
const TIME_LENGTH: usize = "20261126T215617.123Z".len();
/// The ending of traces.
const ENDING: &str = ".pftrace";

/// The reason why a name cannot be one of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for a session: it has to be 1 to {LONGEST} letters, digits, dots, hyphens and underscores, and to begin with a letter or \
     digit; rename the file"
)]
pub struct NameError(String);

/// The name of a session: the name of its file without the ending.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName(String);

impl SessionName {
    /// Checks a name.
    ///
    /// # Errors
    /// If it could not be a part of a file's name.
    pub fn new(name: &str) -> Result<SessionName, NameError> {
        let letters = name.chars().all(|letter| is_plain(letter) || letter == '-');
        let begins = name
            .chars()
            .next()
            .is_some_and(|letter| letter.is_ascii_alphanumeric());
        match letters && begins && name.len() <= LONGEST {
            true => Ok(SessionName(name.to_owned())),
            false => Err(NameError(name.to_owned())),
        }
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason for a seal, in the letters of a file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(String);

impl Reason {
    /// Makes a reason from any text, such as the name of a trigger: letters that may not be in it become underscores.
    pub fn new(text: &str) -> Reason {
        let plain = |letter| if is_plain(letter) { letter } else { '_' };
        let mut reason: String = text.chars().take(LONGEST).map(plain).collect();
        if reason.is_empty() {
            reason.push('_');
        }
        Reason(reason)
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.')
}

/// The name of a sealed file. Names sort by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName {
    /// The time of the request in milliseconds since 1970.
    pub time: i64,
    /// The session that was sealed.
    pub session: SessionName,
    /// Why.
    pub reason: Reason,
}

impl FileName {
    /// Takes a name apart; `None` if no recorder gave it.
    pub fn parse(name: &str) -> Option<FileName> {
        let (time, rest) = name.strip_suffix(ENDING)?.split_at_checked(TIME_LENGTH)?;
        let time = NaiveDateTime::parse_from_str(time, TIME).ok()?.and_utc();
        let (session, reason) = rest.strip_prefix('-')?.rsplit_once('-')?;
        let parsed = FileName {
            time: time.timestamp_millis(),
            session: SessionName::new(session).ok()?,
            reason: Reason::new(reason),
        };
        // Only names in the one form that `to_string` gives.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp_millis(self.time).unwrap_or_default();
        write!(
            f,
            "{}-{}-{}{ENDING}",
            time.format(TIME),
            self.session,
            self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_says_when_what_and_why() {
        let name = FileName {
            time: 1_795_730_177_123,
            session: SessionName::new("my-sched").unwrap(),
            reason: Reason::new("psi-memory/some"),
        };
        assert_eq!(
            name.to_string(),
            "20261126T215617.123Z-my-sched-psi_memory_some.pftrace"
        );
    }

    #[test]
    fn only_names_that_fit_into_files_name_sessions() {
        for good in ["a", "sched", "9.x_y-z", &"n".repeat(LONGEST)] {
            assert!(SessionName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".hidden", "-a", "a/b", "ü", "a b", &"n".repeat(LONGEST + 1)] {
            assert!(SessionName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_others_are_not_taken_for_ours() {
        for other in [
            "",
            "trace.pftrace",
            "20261126T215617.123Z-a.pftrace",
            "20261126T215617Z-a-b.pftrace",
            "20261326T215617.123Z-a-b.pftrace",
            "20261126T215617.123Z-a-b.pftrace.tmp",
            "20261126T215617.123Z-a-ü.pftrace",
        ] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn names_come_apart_and_sort_by_time(
            times in prop::collection::vec(0..253_402_300_800_000i64, 2..20),
            session in "[a-z0-9][a-z0-9._-]{0,20}",
            reason in any::<String>(),
        ) {
            let name = |time| FileName {
                time,
                session: SessionName::new(&session).unwrap(),
                reason: Reason::new(&reason),
            };
            let mut names: Vec<_> = times.into_iter().map(name).collect();
            for name in &names {
                prop_assert_eq!(FileName::parse(&name.to_string()), Some(name.clone()));
            }
            names.sort();
            let texts: Vec<_> = names.iter().map(FileName::to_string).collect();
            let mut sorted = texts.clone();
            sorted.sort();
            prop_assert_eq!(texts, sorted);
        }
    }
}
