//! The triggers of one session: the names that it waits for, and the activations.

use std::collections::VecDeque;
use std::sync::Arc;

use super::config::{Definition, Mode, TriggerConfig};
use crate::limits;
use crate::ordered::OrderedMap;

/// An activation of a trigger that a session waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// When, in boot time, nanoseconds.
    pub(crate) at: u64,
    pub(crate) trigger: Arc<str>,
    /// The producer that sent it.
    pub(crate) producer: Arc<str>,
    pub(crate) producer_uid: u32,
    /// The delay from the activation to the effect.
    pub(crate) delay_ms: u32,
}

/// The triggers of a session.
///
/// A clone of the session takes over the triggers that came so far ([`Triggers::for_clone`]), and waits for none itself.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    config: TriggerConfig,
    /// Whether any came.
    hit: bool,
    /// The activations, in order, up to a limit; the first `written` of them are in the part of the trace that was read.
    received: VecDeque<Hit>,
    written: usize,
    /// Whether the log says that more triggers came than are kept.
    overflow_told: bool,
    /// Hits of `CloneSnapshot` that have not taken effect yet.
    pending: OrderedMap<u64, Hit>,
    last_pending: u64,
    /// Whether the log says that more snapshots are wanted than may wait, while that is so.
    pending_overflow_told: bool,
}

/// Whether a snapshot was put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Postponed {
    /// Under this number.
    As(u64),
    /// It will not be made, because too many wait already.
    TooMany,
    /// The same, and it has to be logged.
    TooManyForTheFirstTime,
}

/// Whether a hit was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    No,
    /// No, and it has to be logged.
    NoForTheFirstTime,
}

impl Triggers {
    pub(crate) fn new(config: TriggerConfig) -> Triggers {
        Triggers {
            config,
            ..Triggers::default()
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.config.mode
    }

    pub(crate) fn timeout_ms(&self) -> u32 {
        self.config.timeout_ms
    }

    pub(crate) fn definitions(&self) -> &[Definition] {
        &self.config.definitions
    }

    /// Whether any trigger came.
    pub(crate) fn was_hit(&self) -> bool {
        self.hit
    }

    /// Whether the session cannot be read: a session that waits for a trigger is empty until it comes, and one for snapshots is only ever read as a
    /// clone.
    pub(crate) fn hides_trace(&self) -> bool {
        match self.config.mode {
            Mode::CloneSnapshot => true,
            Mode::Unspecified | Mode::StartTracing | Mode::StopTracing => {
                !self.config.definitions.is_empty() && !self.hit
            }
        }
    }

    /// A trigger came. The first ones are kept, because they show why the session started or stopped.
    pub(crate) fn receive(&mut self, hit: Hit) -> Kept {
        self.hit = true;
        if self.received.len() >= limits::MAX_TRIGGERS_RECEIVED {
            if self.written == 0 {
                return if std::mem::replace(&mut self.overflow_told, true) {
                    Kept::No
                } else {
                    Kept::NoForTheFirstTime
                };
            }
            self.received.pop_front();
            self.written -= 1;
        }
        self.received.push_back(hit);
        Kept::Yes
    }

    /// Takes the activations since the last call, to be written into the trace.
    pub(crate) fn take_unwritten(&mut self) -> impl Iterator<Item = &Hit> {
        let from = std::mem::replace(&mut self.written, self.received.len());
        self.received.range(from..)
    }

    /// Takes the triggers for a clone of this session: those that came since the last clone, all of them still to be written. They are not in later
    /// clones.
    pub(crate) fn for_clone(&mut self) -> Triggers {
        self.written = 0;
        Triggers {
            received: std::mem::take(&mut self.received),
            ..Triggers::default()
        }
    }

    /// A snapshot is due later.
    pub(crate) fn postpone(&mut self, hit: Hit) -> Postponed {
        if self.pending.len() >= limits::MAX_PENDING_SNAPSHOTS {
            return if std::mem::replace(&mut self.pending_overflow_told, true) {
                Postponed::TooMany
            } else {
                Postponed::TooManyForTheFirstTime
            };
        }
        self.pending_overflow_told = false;
        self.last_pending += 1;
        self.pending.insert(self.last_pending, hit);
        Postponed::As(self.last_pending)
    }

    /// The snapshot of this number is due now.
    pub(crate) fn take_pending(&mut self, number: u64) -> Option<Hit> {
        self.pending.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(at: u64) -> Hit {
        Hit {
            at,
            trigger: "t".into(),
            producer: "p".into(),
            producer_uid: 1,
            delay_ms: 0,
        }
    }

    fn unwritten(triggers: &mut Triggers) -> Vec<u64> {
        triggers.take_unwritten().map(|hit| hit.at).collect()
    }

    const MAX: u64 = limits::MAX_TRIGGERS_RECEIVED as u64;

    #[test]
    fn each_is_written_once() {
        let mut triggers = Triggers::default();
        triggers.receive(hit(1));
        triggers.receive(hit(2));
        assert_eq!(unwritten(&mut triggers), [1, 2]);
        assert_eq!(unwritten(&mut triggers), []);
        triggers.receive(hit(3));
        assert_eq!(unwritten(&mut triggers), [3]);
    }

    #[test]
    fn a_clone_writes_all_triggers_since_the_last_clone() {
        let mut triggers = Triggers::default();
        triggers.receive(hit(1));
        assert_eq!(unwritten(&mut triggers), [1]);
        triggers.receive(hit(2));
        let mut clone = triggers.for_clone();
        assert!(!clone.hides_trace());
        assert_eq!(unwritten(&mut clone), [1, 2]);
        assert!(
            triggers.was_hit(),
            "cloning takes nothing from the original but its list"
        );
        triggers.receive(hit(3));
        assert_eq!(unwritten(&mut triggers), [3]);
        assert_eq!(unwritten(&mut triggers.for_clone()), [3]);
    }

    #[test]
    fn the_first_are_kept_until_they_are_written() {
        let mut triggers = Triggers::default();
        for at in 0..MAX {
            assert_eq!(triggers.receive(hit(at)), Kept::Yes);
        }
        assert_eq!(triggers.receive(hit(MAX)), Kept::NoForTheFirstTime);
        assert_eq!(triggers.receive(hit(MAX)), Kept::No);
        assert_eq!(unwritten(&mut triggers), (0..MAX).collect::<Vec<_>>());
        for at in MAX..2 * MAX {
            assert_eq!(triggers.receive(hit(at)), Kept::Yes);
        }
        assert_eq!(triggers.receive(hit(0)), Kept::No);
        assert_eq!(unwritten(&mut triggers), (MAX..2 * MAX).collect::<Vec<_>>());
    }
}
