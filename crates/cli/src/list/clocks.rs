//! `ferretto list clocks`: the machine's clocks that traces use, and the clocks that ftrace can use.
//!
//! [`run`](super::run) calls it. It reads the clocks itself, needs no service, and takes a fraction of a second.

use std::time::Duration;

use ferretto_probes::ftrace::tracefs::Tracefs;
use ferretto_proto::messages::{BuiltinClock, Enumeration};
use rustix::time::{ClockId, clock_getres, clock_gettime};
use serde_json::json;

use super::Listing;
use super::pattern::Patterns;
use crate::stdout::{Column, Table};
use ferretto_daemons::traced::tsc;

/// The time over which the speed of clocks is measured.
const WATCHED: Duration = Duration::from_millis(200);
/// The number of attempts at reading a clock beside BOOTTIME. The fastest attempt counts.
const TRIES: usize = 20;
/// The longest steps, in ns, with which the speed of a clock can be measured in that time.
const FINE: u64 = 1_000;
const NANOS: u64 = 1_000_000_000;

/// The source of a clock's readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A kernel clock, in nanoseconds.
    Kernel(ClockId),
    /// The time-stamp counter, in ticks.
    TimeStampCounter,
}

const CLOCKS: &[(BuiltinClock, Source)] = &[
    (
        BuiltinClock::BUILTIN_CLOCK_REALTIME,
        Source::Kernel(ClockId::Realtime),
    ),
    (
        BuiltinClock::BUILTIN_CLOCK_REALTIME_COARSE,
        Source::Kernel(ClockId::RealtimeCoarse),
    ),
    (
        BuiltinClock::BUILTIN_CLOCK_MONOTONIC,
        Source::Kernel(ClockId::Monotonic),
    ),
    (
        BuiltinClock::BUILTIN_CLOCK_MONOTONIC_COARSE,
        Source::Kernel(ClockId::MonotonicCoarse),
    ),
    (
        BuiltinClock::BUILTIN_CLOCK_MONOTONIC_RAW,
        Source::Kernel(ClockId::MonotonicRaw),
    ),
    (
        BuiltinClock::BUILTIN_CLOCK_BOOTTIME,
        Source::Kernel(ClockId::Boottime),
    ),
    (BuiltinClock::BUILTIN_CLOCK_TSC, Source::TimeStampCounter),
];

/// A clock's value beside BOOTTIME.
#[derive(Debug, Clone, Copy)]
struct Reading {
    boot: u64,
    value: u64,
}

impl Source {
    /// Reads the clock; `None` if this machine has no such clock.
    fn read(self) -> Option<u64> {
        match self {
            Source::Kernel(clock) => {
                let time = clock_gettime(clock);
                let seconds = u64::try_from(time.tv_sec).ok()?;
                Some(seconds * NANOS + u64::try_from(time.tv_nsec).ok()?)
            }
            Source::TimeStampCounter => tsc::read(),
        }
    }

    /// Reads the clock between two readings of BOOTTIME. An interruption moves these apart, so the attempt with the closest two counts.
    fn read_beside_boot(self) -> Option<Reading> {
        let boot = || Source::Kernel(ClockId::Boottime).read();
        let mut closest: Option<(u64, Reading)> = None;
        for _ in 0..TRIES {
            let (before, value, after) = (boot()?, self.read()?, boot()?);
            let apart = after.saturating_sub(before);
            if closest.is_none_or(|(least, _)| apart < least) {
                let boot = before + apart / 2;
                closest = Some((apart, Reading { boot, value }));
            }
        }
        closest.map(|(_, reading)| reading)
    }

    fn resolution(self) -> Option<u64> {
        let Source::Kernel(clock) = self else { return None };
        let resolution = clock_getres(clock);
        let nanos = u64::try_from(resolution.tv_nsec).ok()?;
        Some(u64::try_from(resolution.tv_sec).ok()? * NANOS + nanos)
    }
}

pub(super) fn list(patterns: &Patterns) -> Result<Listing, String> {
    let name_of = |clock: BuiltinClock| {
        let name = clock.proto_name();
        name.strip_prefix("BUILTIN_CLOCK_").unwrap_or(name)
    };
    let wanted: Vec<_> = CLOCKS
        .iter()
        .filter(|(clock, _)| patterns.want([name_of(*clock)]))
        .filter_map(|(clock, source)| Some((*clock, *source, source.read_beside_boot()?)))
        .collect();
    if !wanted.is_empty() {
        std::thread::sleep(WATCHED);
    }
    let mut table = Table::new([
        Column::number("ID"),
        Column::text("CLOCK"),
        Column::number("READING"),
        Column::number("RESOLUTION"),
        Column::number("AHEAD OF BOOTTIME"),
        Column::number("DRIFT"),
    ]);
    let mut clocks = Vec::new();
    for (clock, source, first) in wanted {
        let Some(now) = source.read_beside_boot() else {
            continue;
        };
        let (id, name) = (clock.to_i32().to_string(), name_of(clock));
        let passed = now.boot.saturating_sub(first.boot).max(1) as f64;
        let went = now.value as f64 - first.value as f64;
        let resolution = source.resolution();
        if source == Source::TimeStampCounter {
            let rate = (went / passed * NANOS as f64).round();
            table.row([
                id.as_str(),
                name,
                &format!("{} ticks", now.value),
                &format!("{:.3} GHz", rate / NANOS as f64),
                "-",
                "-",
            ]);
            clocks.push(json!({
                "id": clock.to_i32(),
                "name": name,
                "reading_ns": null,
                "resolution_ns": null,
                "ahead_of_boottime_ns": null,
                "drift_ppm": null,
                "ticks": now.value,
                "ticks_per_second": rate,
            }));
            continue;
        }
        let ahead = i128::from(now.value) - i128::from(now.boot);
        let fine = resolution.is_some_and(|resolution| resolution <= FINE);
        let drift = fine.then(|| match clock {
            BuiltinClock::BUILTIN_CLOCK_BOOTTIME => 0.0,
            _ => (went / passed - 1.0) * 1e6,
        });
        table.row([
            id.as_str(),
            name,
            &format!("{}.{:09} s", now.value / NANOS, now.value % NANOS),
            &resolution.map_or("-".to_owned(), |resolution| format!("{resolution} ns")),
            &seconds(ahead),
            &drift.map_or("-".to_owned(), |drift| format!("{} ppm", rounded(drift))),
        ]);
        clocks.push(json!({
            "id": clock.to_i32(),
            "name": name,
            "reading_ns": now.value,
            "resolution_ns": resolution,
            "ahead_of_boottime_ns": i64::try_from(ahead).ok(),
            "drift_ppm": drift,
            "ticks": null,
            "ticks_per_second": null,
        }));
    }
    let ftrace = Tracefs::find().map_err(|error| error.to_string());
    let ftrace = ftrace.and_then(|tracefs| tracefs.read("trace_clock").map_err(|error| error.to_string()));
    let (choices, below, notes) = match &ftrace {
        Ok(choices) => {
            let below = format!(
                "ftrace's clocks, the present one in brackets:\n{}",
                choices.trim()
            );
            (Some(choices), Some(below), Vec::new())
        }
        Err(reason) => (
            None,
            None,
            vec![format!("ftrace's clocks are not known: {reason}")],
        ),
    };
    let json = json!({
        "clocks": clocks,
        "ftrace": choices.map(|choices| {
            let names = choices.split_ascii_whitespace();
            let plain = |name: &str| name.trim_matches(['[', ']']).to_owned();
            json!({
                "present": names.clone().find(|name| name.starts_with('[')).map(plain),
                "choices": names.map(plain).collect::<Vec<_>>(),
            })
        }),
    });
    Ok(Listing {
        table,
        below,
        json,
        notes,
    })
}

/// Formats a time with its sign, in seconds. A time below the error of the readings becomes zero.
fn seconds(ns: i128) -> String {
    let (sign, ns) = match ns {
        ..-999 => ("-", ns.unsigned_abs()),
        -999..1000 => ("", 0),
        _ => ("+", ns.unsigned_abs()),
    };
    let nanos = u128::from(NANOS);
    format!("{sign}{}.{:06} s", ns / nanos, ns % nanos / 1000)
}

/// Formats a rate to one decimal, without a negative zero.
fn rounded(ppm: f64) -> String {
    let text = format!("{ppm:.1}");
    match text.strip_prefix("-0.0") {
        Some("") => "0.0".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_signs_and_noise_has_none() {
        assert_eq!(seconds(-1_500_000_000), "-1.500000 s");
        assert_eq!(seconds(999), "0.000000 s");
        assert_eq!(seconds(1_000), "+0.000001 s");
        assert_eq!(rounded(-0.04), "0.0");
        assert_eq!(rounded(-12.34), "-12.3");
    }
}
