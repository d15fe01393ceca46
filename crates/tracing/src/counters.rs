//! Counters: fields of events with certain prefixes in their names are samples.
//!
//! `counter.NAME` and `gauge.NAME` are values; `monotonic_counter.NAME` is an increment of a sum, which is kept here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferretto::clock;
use ferretto::private::{CallSite, EventName, EventType, Parts, Sample, Timestamp, emit};
use ferretto::track::CounterTrack;
use tracing_core::Metadata;

use crate::sites::tags;

/// A counter, as one field knows it.
#[derive(Debug)]
pub(crate) struct Counter {
    call_site: &'static CallSite,
    track: CounterTrack<'static>,
    /// The sum over all fields of the name, if the counter shows a sum.
    sum: Option<&'static Sum>,
}

/// The sum of the fields of one name. The lock is held for the addition alone, and not while anything is recorded: writing an event may wait for the
/// service, or allocate, and the allocator may itself count.
#[derive(Debug)]
pub(crate) struct Sum(Mutex<Total>);

#[derive(Debug)]
pub(crate) struct Total {
    number: Number,
    /// When it became that, on the trace clock.
    since: u64,
}

impl Sum {
    /// Returns the new sum, and its time. No two sums have the same time, so samples are in the order of their times.
    fn add(&self, number: Number) -> (Number, u64) {
        let mut total = self.hold();
        total.number = total.number.plus(number);
        total.since = clock::now().max(total.since + 1);
        (total.number, total.since)
    }

    pub(crate) fn hold(&self) -> MutexGuard<'_, Total> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Integer(i64),
    Float(f64),
}

impl Number {
    fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Integer(one), Number::Integer(other)) => Number::Integer(one.saturating_add(other)),
            (one, other) => Number::Float(one.to_float() + other.to_float()),
        }
    }

    fn to_float(self) -> f64 {
        match self {
            Number::Integer(value) => value as f64,
            Number::Float(value) => value,
        }
    }
}

impl Counter {
    /// The counter that a field of this name is a sample of.
    pub(crate) fn of_field(metadata: &'static Metadata<'static>, field: &'static str) -> Option<Counter> {
        let (kind, name) = field.split_once('.').filter(|(_, name)| !name.is_empty())?;
        let sum = match kind {
            "counter" | "gauge" => None,
            "monotonic_counter" => Some(sum_of(name)),
            _ => return None,
        };
        Some(Counter {
            call_site: CallSite::leak(
                EventType::Counter,
                metadata.target(),
                tags(*metadata.level()),
                "",
                &[],
            ),
            track: CounterTrack::new(name),
            sum,
        })
    }

    /// Writes a sample.
    pub(crate) fn sample(&self, number: Number) {
        let listeners = self.call_site.recorded_by();
        if listeners == 0 {
            return;
        }
        match self.sum {
            None => self.write(listeners, number, None),
            Some(sum) => {
                let (total, since) = sum.add(number);
                self.write(listeners, total, Some(Timestamp::TraceTime(since)));
            }
        }
    }

    fn write(&self, listeners: u32, number: Number, timestamp: Option<Timestamp>) {
        let parts = Parts {
            category: None,
            name: EventName::OfSite,
            track: Some(&self.track),
            timestamp,
        };
        match number {
            Number::Integer(value) => emit(self.call_site, listeners, parts, &(Sample(value), ())),
            Number::Float(value) => emit(self.call_site, listeners, parts, &(Sample(value), ())),
        };
    }
}

/// Sums by their names.
pub(crate) type Sums = BTreeMap<&'static str, &'static Sum>;

static SUMS: Mutex<Sums> = Mutex::new(BTreeMap::new());

pub(crate) fn sums() -> MutexGuard<'static, Sums> {
    SUMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sum of this name: one in the process, as the track is.
fn sum_of(name: &'static str) -> &'static Sum {
    sums().entry(name).or_insert_with(|| {
        Box::leak(Box::new(Sum(Mutex::new(Total {
            number: Number::Integer(0),
            since: 0,
        }))))
    })
}
