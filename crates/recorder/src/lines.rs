//! Recognises the entries of systemd's journal for which sessions are sealed: lines that match a pattern, and units that fail.
//!
//! The command line follows the journal and passes each entry. Any program that may log decides the text of an entry, so of one condition only one entry in a
//! [`QUIET`] asks, and the recorder's own lines never do: a pattern that matches its refusals would ask for ever.

use std::time::Duration;

use regex::bytes::Regex;

use crate::glob::glob;
use crate::settings::{Condition, Kind};

/// The time after an entry that asked in which others like it ask no more. They have the same cause, or the limiter would refuse them.
const QUIET: Duration = Duration::from_secs(1);
/// The longest name of a field that is looked at, and the equals sign.
const LONGEST_NAME: usize = "SYSLOG_IDENTIFIER=".len();
/// `SD_MESSAGE_UNIT_FAILURE_RESULT`: systemd says that a unit has failed. Its `UNIT` names the unit.
const UNIT_HAS_FAILED: &[u8] = b"d9b373ed55a64feb8242e02dbe79a49c";
/// Root's user id. Only systemd, which runs as root, says that a unit of the machine has failed; the journal itself notes who said something.
const ROOT: &[u8] = b"0";

/// A regular expression. Two are equal if their texts are.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles it.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(text: &str) -> Result<Pattern, regex::Error> {
        Regex::new(text).map(Pattern)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// The fields of an entry that count. The first of several with one name counts.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    message: Option<Vec<u8>>,
    message_id: Option<Vec<u8>>,
    /// The unit that systemd talks about.
    unit: Option<Vec<u8>>,
    /// The unit that talks.
    of_unit: Option<Vec<u8>>,
    identifier: Option<Vec<u8>>,
    pid: Option<Vec<u8>>,
    uid: Option<Vec<u8>>,
}

impl Entry {
    /// Takes a field, `NAME=value`, if it counts.
    pub fn take(&mut self, field: &[u8]) {
        let equals = field.iter().take(LONGEST_NAME).position(|byte| *byte == b'=');
        let Some((name, value)) = equals.map(|at| (&field[..at], &field[at + 1..])) else {
            return;
        };
        let place = match name {
            b"MESSAGE" => &mut self.message,
            b"MESSAGE_ID" => &mut self.message_id,
            b"UNIT" => &mut self.unit,
            b"_SYSTEMD_UNIT" => &mut self.of_unit,
            b"SYSLOG_IDENTIFIER" => &mut self.identifier,
            b"_PID" => &mut self.pid,
            b"_UID" => &mut self.uid,
            _ => return,
        };
        place.get_or_insert_with(|| value.to_vec());
    }
}

/// The conditions on entries.
#[derive(Debug)]
pub struct Lines {
    /// The process of the recorder.
    own_pid: String,
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    condition: Condition,
    /// When an entry asked last.
    asked: Option<Duration>,
}

impl Lines {
    /// Listens for those of these conditions that are about entries, in the process `own_pid`.
    pub fn new(own_pid: u32, conditions: &[Condition]) -> Lines {
        let mut lines = Lines {
            own_pid: own_pid.to_string(),
            watched: Vec::new(),
        };
        lines.replace(conditions);
        lines
    }

    /// Listens for those of these conditions instead. Those that stay are quiet as long as they would have been.
    pub fn replace(&mut self, conditions: &[Condition]) {
        let before = std::mem::take(&mut self.watched);
        let of_journal = conditions
            .iter()
            .filter(|condition| condition.kind.is_of_journal());
        let watched = of_journal.map(|condition| Watched {
            condition: condition.clone(),
            asked: before
                .iter()
                .find(|watched| watched.condition == *condition)
                .and_then(|watched| watched.asked),
        });
        self.watched = watched.collect();
    }

    /// Whether there is nothing to listen for.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Returns the conditions that this entry meets.
    pub fn hear(&mut self, now: Duration, entry: &Entry) -> Vec<Condition> {
        let mut met = Vec::new();
        if entry.pid.as_deref() == Some(self.own_pid.as_bytes()) {
            return met;
        }
        for watched in &mut self.watched {
            let is_quiet = watched
                .asked
                .is_some_and(|asked| now.saturating_sub(asked) < QUIET);
            if !is_quiet && fits(&watched.condition.kind, entry) {
                watched.asked = Some(now);
                met.push(watched.condition.clone());
            }
        }
        met
    }
}

fn fits(kind: &Kind, entry: &Entry) -> bool {
    let is_named = |wanted: &str, name: &Option<Vec<u8>>| {
        name.as_ref()
            .is_some_and(|name| glob(wanted, &String::from_utf8_lossy(name)))
    };
    let may_be = |wanted: &Option<String>, name| wanted.as_ref().is_none_or(|wanted| is_named(wanted, name));
    match kind {
        Kind::Line {
            message,
            unit,
            identifier,
        } => {
            may_be(unit, &entry.of_unit)
                && may_be(identifier, &entry.identifier)
                && entry
                    .message
                    .as_ref()
                    .is_some_and(|text| message.0.is_match(text))
        }
        Kind::UnitFailed(unit) => {
            entry.message_id.as_deref() == Some(UNIT_HAS_FAILED)
                && entry.uid.as_deref() == Some(ROOT)
                && is_named(unit, &entry.unit)
        }
        Kind::Pressure { .. } | Kind::MemoryBelow(_) | Kind::LoadAbove(_) | Kind::Watchdog { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::name::Reason;

    const OWN: u32 = 77;

    fn condition(name: &str, kind: Kind) -> Condition {
        Condition {
            name: Reason::new(name),
            sessions: Vec::new(),
            kind,
        }
    }

    fn line(message: &str, unit: Option<&str>, identifier: Option<&str>) -> Kind {
        Kind::Line {
            message: Pattern::new(message).unwrap(),
            unit: unit.map(str::to_owned),
            identifier: identifier.map(str::to_owned),
        }
    }

    fn entry(fields: &[&str]) -> Entry {
        let mut entry = Entry::default();
        fields.iter().for_each(|field| entry.take(field.as_bytes()));
        entry
    }

    /// Whether a condition of this kind is met.
    fn asks(kind: Kind, fields: &[&str]) -> bool {
        let mut lines = Lines::new(OWN, &[condition("x", kind)]);
        !lines.hear(Duration::ZERO, &entry(fields)).is_empty()
    }

    #[test]
    fn a_line_is_known_by_its_message_and_by_who_wrote_it() {
        let words = "MESSAGE=Out of memory: Killed process 17 (app)";
        assert!(asks(line("Out of memory", None, None), &[words]));
        assert!(asks(line("(?i)out OF.*app", None, None), &[words]));
        assert!(!asks(line("^memory", None, None), &[words]));
        assert!(!asks(
            line("memory", None, None),
            &["MESSAGE_ID=memory", "OTHER=memory"]
        ));
        let of_kernel = || line("memory", None, Some("kernel"));
        assert!(asks(of_kernel(), &[words, "SYSLOG_IDENTIFIER=kernel"]));
        assert!(!asks(of_kernel(), &[words, "SYSLOG_IDENTIFIER=kernel2"]));
        assert!(!asks(of_kernel(), &[words]));
        let of_unit = || line("memory", Some("app@*.service"), None);
        assert!(asks(of_unit(), &[words, "_SYSTEMD_UNIT=app@1.service"]));
        // Anybody may say UNIT=; only the journal itself says _SYSTEMD_UNIT=.
        assert!(!asks(of_unit(), &[words, "UNIT=app@1.service"]));
        let mut lines = Lines::new(OWN, &[condition("x", line("\\xff", None, None))]);
        let mut no_text = Entry::default();
        no_text.take(b"MESSAGE=\xff\xfe");
        assert_eq!(
            lines.hear(Duration::ZERO, &no_text).len(),
            0,
            "a letter, and no byte"
        );
        assert!(asks(line("", None, None), &["MESSAGE="]));
    }

    #[test]
    fn a_unit_has_failed_if_systemd_says_so() {
        let failed = || Kind::UnitFailed("app*.service".to_owned());
        let id = "MESSAGE_ID=d9b373ed55a64feb8242e02dbe79a49c";
        assert!(asks(failed(), &[id, "_UID=0", "UNIT=app-1.service"]));
        assert!(!asks(failed(), &[id, "_UID=0", "UNIT=other.service"]));
        assert!(!asks(
            failed(),
            &[id, "_UID=0", "UNIT=other.service", "UNIT=app.service"]
        ));
        assert!(
            !asks(failed(), &[id, "_UID=1000", "UNIT=app.service"]),
            "it is forged"
        );
        assert!(!asks(failed(), &["_UID=0", "UNIT=app.service"]));
    }

    #[test]
    fn what_the_recorder_itself_logs_asks_for_nothing() {
        let any = || line("", None, None);
        assert!(asks(any(), &["MESSAGE=not sealed", "_PID=78"]));
        assert!(!asks(any(), &["MESSAGE=not sealed", "_PID=77"]));
    }

    #[test]
    fn conditions_that_stay_keep_quiet_when_others_change() {
        let all = [
            condition("a", line("x", None, None)),
            condition("b", line("x", None, None)),
        ];
        let mut lines = Lines::new(OWN, &all[..1]);
        let heard = entry(&["MESSAGE=x"]);
        assert_eq!(lines.hear(Duration::ZERO, &heard).len(), 1);
        lines.replace(&all);
        assert_eq!(lines.hear(Duration::from_millis(500), &heard), all[1..]);
        lines.replace(&[condition("load", Kind::LoadAbove(1.0))]);
        assert!(lines.is_empty());
    }

    proptest! {
        #[test]
        fn a_storm_asks_once_a_second_and_whoever_waits_that_long_is_heard(
            steps in prop::collection::vec(0..700u64, 1..100),
        ) {
            let mut lines = Lines::new(OWN, &[condition("x", line("x", None, None))]);
            let (mut now, mut last) = (0, None);
            for step in steps {
                now += step;
                let asks = !lines.hear(Duration::from_millis(now), &entry(&["MESSAGE=x"])).is_empty();
                prop_assert_eq!(asks, last.is_none_or(|last| now - last >= 1000));
                if asks {
                    last = Some(now);
                }
            }
        }

        #[test]
        fn any_bytes_are_taken(fields in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..10)) {
            let mut entry = Entry::default();
            fields.iter().for_each(|field| entry.take(field));
            let mut lines = Lines::new(OWN, &[condition("x", line("a+b", None, None))]);
            lines.hear(Duration::ZERO, &entry);
        }
    }
}
