//! Converts times on the clocks of a trace to time since boot and to wall-clock time.
//!
//! [`info`](crate::info), [`samples`](crate::samples) and [`convert`](crate::convert) call it. A clock snapshot has the readings of several clocks at one moment. Between snapshots, all clocks are assumed
//! to advance alike. Ids from 64 to 127 are clocks of one sequence; these may count in larger steps, and relative to their last value
//! (`is_incremental`).

use std::collections::HashMap;

use ferretto_proto::messages::{BuiltinClock, ClockSnapshot};

#[cfg(test)]
mod tests;

const REALTIME: u32 = BuiltinClock::BUILTIN_CLOCK_REALTIME as u32;
const BOOTTIME: u32 = BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32;
/// Ids of clocks that a sequence defines for itself.
const OF_A_SEQUENCE: std::ops::Range<u32> = 64..128;
/// The most readings of a clock. Beyond it, every second reading is dropped. A trace of a week has 60,000 snapshots.
const MAX_READINGS: usize = 1 << 16;
/// The most clocks that are stored.
const MAX_CLOCKS: usize = 1 << 16;

/// All clocks of a trace, as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// By sequence (0 for clocks of the whole trace) and id.
    clocks: HashMap<(u32, u32), Clock>,
    /// The clock of timestamps without a clock id.
    primary: Option<u32>,
}

#[derive(Debug)]
struct Clock {
    /// Its readings with the time since boot, both in ns and ascending.
    readings: Vec<(u64, u64)>,
    /// The length of its steps, in ns.
    step: u64,
    is_incremental: bool,
    /// Its last value, in steps.
    last: u64,
}

impl Timeline {
    /// Takes in a snapshot from this sequence.
    pub(crate) fn snapshot(&mut self, sequence: u32, snapshot: &ClockSnapshot) {
        if let Some(primary) = snapshot.primary_trace_clock {
            self.primary.get_or_insert(primary as u32);
        }
        let Some(boot) = self.boot_time_of(sequence, snapshot) else {
            return;
        };
        for reading in &snapshot.clocks {
            let (Some(id), Some(value)) = (reading.clock_id, reading.timestamp) else {
                continue;
            };
            let key = (scope(sequence, id), id);
            if self.clocks.len() >= MAX_CLOCKS && !self.clocks.contains_key(&key) {
                continue;
            }
            let clock = self.clocks.entry(key).or_insert_with(|| Clock {
                readings: Vec::new(),
                step: 1,
                is_incremental: false,
                last: 0,
            });
            clock.step = reading.unit_multiplier_ns.unwrap_or(1).max(1);
            clock.is_incremental = reading.is_incremental.unwrap_or(false);
            clock.last = value;
            clock.add(value.saturating_mul(clock.step), boot);
        }
    }

    /// Returns the time of a snapshot. If none of its clocks is known yet and it lacks boot time, the primary clock or else the first one stands in
    /// for boot time. Times are then right up to a constant.
    fn boot_time_of(&self, sequence: u32, snapshot: &ClockSnapshot) -> Option<u64> {
        let value = |wanted: u32| {
            let mut clocks = snapshot.clocks.iter();
            clocks.find(|clock| clock.clock_id == Some(wanted))?.timestamp
        };
        let known = || {
            snapshot.clocks.iter().find_map(|reading| {
                let id = reading.clock_id?;
                let clock = self.clocks.get(&(scope(sequence, id), id))?;
                // Clocks that count from their last value start over with a snapshot.
                if clock.is_incremental {
                    return None;
                }
                Some(clock.boot_at(reading.timestamp?.saturating_mul(clock.step)))
            })
        };
        let assumed = || {
            let global = snapshot
                .clocks
                .iter()
                .filter_map(|clock| clock.clock_id)
                .find(|id| !OF_A_SEQUENCE.contains(id));
            self.primary.and_then(value).or_else(|| value(global?))
        };
        value(BOOTTIME).or_else(known).or_else(assumed)
    }

    /// Returns the time in ns since boot at which a clock (or the trace's default clock) showed `value`. `None` if no snapshot has that clock.
    pub(crate) fn boot_time(&mut self, sequence: u32, id: Option<u32>, value: u64) -> Option<u64> {
        let id = id.or(self.primary).unwrap_or(BOOTTIME);
        let Some(clock) = self.clocks.get_mut(&(scope(sequence, id), id)) else {
            return (id == BOOTTIME).then_some(value);
        };
        let value = if clock.is_incremental {
            clock.last = clock.last.saturating_add(value);
            clock.last
        } else {
            value
        };
        Some(clock.boot_at(value.saturating_mul(clock.step)))
    }

    /// Returns the wall-clock time at a time since boot, in ns since 1970 (UTC).
    pub(crate) fn wall_time(&self, boot: u64) -> Option<u64> {
        let readings = &self.clocks.get(&(0, REALTIME))?.readings;
        let after = readings.partition_point(|(_, at)| *at <= boot);
        let (value, at) = readings.get(after.saturating_sub(1))?;
        Some(moved(*value, *at, boot))
    }
}

impl Clock {
    fn add(&mut self, value: u64, boot: u64) {
        if let Some((last, at)) = self.readings.last()
            && (*last > value || *at > boot)
        {
            // The clock was set back, or has started over.
            self.readings.clear();
        }
        if self.readings.len() >= MAX_READINGS {
            let mut keep = false;
            self.readings.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.readings.push((value, boot));
    }

    /// Converts by the last reading before `value`, or by the first one if `value` is earlier than all.
    fn boot_at(&self, value: u64) -> u64 {
        let after = self.readings.partition_point(|(shown, _)| *shown <= value);
        match self.readings.get(after.saturating_sub(1)) {
            Some((shown, at)) => moved(*at, *shown, value),
            None => value,
        }
    }
}

/// Moves `base` by the distance from `from` to `to`.
fn moved(base: u64, from: u64, to: u64) -> u64 {
    if to >= from {
        base.saturating_add(to - from)
    } else {
        base.saturating_sub(from - to)
    }
}

fn scope(sequence: u32, id: u32) -> u32 {
    if OF_A_SEQUENCE.contains(&id) { sequence } else { 0 }
}
