//! Data sources that a trace names because some of their data may be missing: those that were slow to start or to flush, those that ended
//! while the session recorded, and those that no producer offered.
//!
//! `lifecycle`, `flush`, `producer` and `clone` note them as it happens. `packets` writes them with the other events of the session. The notes that
//! wait for the next read-back have a limit for each user, so one user's producers cannot push out another's.

use super::{Instance, InstanceState, Session, State};
use crate::clock::Now;
use crate::limits;
use crate::ordered::OrderedSet;
use crate::producers::{Owner, Producers};
use crate::triggers::beginning;

/// Data sources to be named in the trace, and why.
#[derive(Clone, Debug)]
pub(crate) struct Absence {
    /// Nanoseconds of boot time.
    pub(crate) at: u64,
    pub(crate) kind: AbsenceKind,
    pub(crate) who: Vec<Absent>,
}

/// A data source, and its producer if there was one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) producer: Option<String>,
    pub(crate) source: String,
}

/// Why data sources are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbsenceKind {
    /// They did not acknowledge the start in time, or before the end.
    SlowToStart,
    /// They did not acknowledge the last flush.
    SlowToFlush,
    /// They ended while the session recorded. All of them belong to this owner.
    Gone(Owner),
    /// No producer that the config admits offered them from the start to the end.
    NotOffered,
}

impl AbsenceKind {
    /// How many of a kind wait for the next read-back; older ones make room.
    fn kept(self) -> usize {
        match self {
            AbsenceKind::Gone(_) => limits::MAX_GONE_PER_OWNER,
            _ => limits::MAX_SLOW_FLUSHES,
        }
    }
}

impl Absence {
    /// Names these instances, up to the limits.
    pub(crate) fn new<'i>(
        kind: AbsenceKind,
        instances: impl Iterator<Item = &'i Instance>,
        producers: &Producers,
        now: &Now,
    ) -> Absence {
        let who = instances.take(limits::MAX_LISTED_DATA_SOURCES).map(|instance| {
            let producer = producers.get(instance.producer);
            Absent {
                producer: Some(producer.map_or_else(String::new, |producer| listed(&producer.name))),
                source: listed(&instance.name),
            }
        });
        Absence {
            at: now.boot,
            kind,
            who: who.collect(),
        }
    }
}

fn listed(name: &str) -> String {
    beginning(name, limits::MAX_LISTED_NAME).to_owned()
}

/// The data sources that a session's trace is still to name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absences {
    noted: Vec<Absence>,
    /// The data sources that the trace already names as slow to start.
    slow_told: Vec<Absent>,
}

impl Absences {
    /// Notes data sources, if there are any.
    pub(crate) fn note(&mut self, mut absence: Absence) {
        if absence.kind == AbsenceKind::SlowToStart {
            let told = &self.slow_told;
            absence.who.retain(|absent| !told.contains(absent));
            self.slow_told.extend(absence.who.iter().cloned());
        }
        if absence.who.is_empty() {
            return;
        }
        let of_kind = |other: &Absence| other.kind == absence.kind;
        if self.noted.iter().filter(|other| of_kind(other)).count() >= absence.kind.kept()
            && let Some(oldest) = self.noted.iter().position(of_kind)
        {
            self.noted.remove(oldest);
        }
        self.noted.push(absence);
    }

    /// A flush begins: only the last one is of interest, and only if the trace was not read since.
    pub(super) fn forget_slow_flushes(&mut self) {
        self.noted
            .retain(|absence| absence.kind != AbsenceKind::SlowToFlush);
    }

    /// Takes the notes to be written now.
    pub(crate) fn take(&mut self) -> Vec<Absence> {
        std::mem::take(&mut self.noted)
    }

    /// The notes for a clone. Its trace begins anew, so it has named only the data sources in these notes.
    pub(super) fn for_clone(&self) -> Absences {
        let slow = self.noted.iter();
        let slow = slow.filter(|note| note.kind == AbsenceKind::SlowToStart);
        Absences {
            slow_told: slow.flat_map(|note| &note.who).cloned().collect(),
            noted: self.noted.clone(),
        }
    }
}

impl Session {
    /// The data sources that a recording session would lack if it ended now: those that did not acknowledge the start, and those that no producer
    /// offered. Empty if the session does not record.
    pub(crate) fn absences_at_the_end(&self, producers: &Producers, now: &Now) -> Vec<Absence> {
        if self.state != State::Started {
            return Vec::new();
        }
        let starting = self
            .instances
            .values()
            .filter(|instance| instance.state == InstanceState::Starting);
        let slow = Absence::new(AbsenceKind::SlowToStart, starting, producers, now);
        let sources = self.config.data_sources.iter().zip(&self.was_offered);
        let named = sources.map(|(source, was_offered)| {
            let name = source.config.name.as_deref();
            (name.unwrap_or_default(), *was_offered)
        });
        // A data source that the config wants twice may be offered by producers that only one of the two wants.
        let offered = named.clone().filter(|(_, was_offered)| *was_offered);
        let mut settled: OrderedSet<&str> = offered.map(|(name, _)| name).collect();
        let missing = named
            .map(|(name, _)| name)
            .filter(|name| settled.insert(*name))
            .take(limits::MAX_LISTED_DATA_SOURCES)
            .map(|name| Absent {
                producer: None,
                source: listed(name),
            });
        let missing = Absence {
            at: now.boot,
            kind: AbsenceKind::NotOffered,
            who: missing.collect(),
        };
        vec![slow, missing]
    }
}
