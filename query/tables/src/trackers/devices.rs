//! Batteries and graphics processors, and the lists of packages that Android writes.

use std::collections::BTreeSet;

use ferretto_wire::Value as Wire;
use hashbrown::HashMap;

use super::Trackers;
use super::args::Value;
use super::tracks::{Count, Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number_of};
use crate::rows::Cell;
use crate::schema::{ANDROID_GAME_INTERVENTION_LIST, GPU_COUNTER_GROUP, PACKAGE_LIST};

/// The most counters of graphics processors, and the most packages.
const MOST: usize = 1 << 16;

/// What is known of devices.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// The counters of graphics processors by their numbers.
    counters: HashMap<u32, GpuCounter>,
    /// The rows of `gpu_counter_group`.
    groups: i64,
    packages: BTreeSet<Vec<u8>>,
    /// The rows of `android_game_intervention_list`.
    games: i64,
}

/// A value counts for the time before it, so it is written with the time of the one before.
#[derive(Debug)]
struct GpuCounter {
    track: TrackId,
    last: Option<Count>,
}

impl Trackers {
    /// Counters of a battery.
    pub(super) fn battery(&mut self, ts: i64, battery: &[u8], context: &mut Context<'_>) {
        const CAPACITY_PERCENT: u32 = 2;
        const NAME: u32 = 5;
        let get = |field| number_of(battery, field).map(|value| value as i64);
        let [charge, current, average, energy, voltage] = [1, 3, 4, 6, 7].map(get);
        let capacity = fields(battery).filter(|field| field.number == CAPACITY_PERCENT);
        let capacity = capacity.filter_map(|field| as_float(field.value)).last();
        let name = context
            .strings
            .intern_bytes(bytes_of(battery, NAME).unwrap_or(&[]));
        let from_energy = match (charge, energy, voltage) {
            (None, Some(energy), Some(voltage)) if voltage > 0 => {
                Some(energy.wrapping_mul(1_000_000) / voltage)
            }
            _ => None,
        };
        let power = current.zip(voltage).map(|(current, voltage)| {
            // Whether it charges or not.
            ((current.wrapping_mul(voltage) / 1_000_000_000) as f64).abs()
        });
        let whole = |value: Option<i64>| value.map(|value| value as f64);
        for (counter, value) in [
            ("charge_uah", whole(charge.or(from_energy))),
            ("capacity_pct", capacity),
            ("current_ua", whole(current)),
            ("current.avg_ua", whole(average)),
            ("voltage_uv", whole(voltage)),
            ("power_mw", power),
        ] {
            let Some(value) = value else { continue };
            let word = Dimension::Text(context.strings.intern(counter));
            let dimensions = [("battery_name", Dimension::Text(name)), ("counter_name", word)];
            let key = Key::new("battery_counter", &dimensions);
            let whole = match context.strings.get(name) {
                "" => format!("batt.{counter}"),
                name => format!("batt.{name}.{counter}"),
            };
            self.count(ts, value, &key, || whole, Has::Counter { unit: None }, context);
        }
    }

    /// The frequency of a graphics processor.
    pub(super) fn gpu_frequency(&mut self, ts: i64, gpu: u32, value: f64, context: &mut Context<'_>) {
        let unit = Some(context.strings.intern("MHz"));
        let key = Key::new("gpu_frequency", &[("gpu", Dimension::Int(gpu.into()))]);
        self.count(
            ts,
            value,
            &key,
            || "gpufreq".to_owned(),
            Has::Counter { unit },
            context,
        );
    }

    /// Counters of a graphics processor, and what they are.
    pub(super) fn gpu_counters(&mut self, ts: i64, event: &[u8], context: &mut Context<'_>) {
        const COUNTER_DESCRIPTOR: u32 = 1;
        const COUNTERS: u32 = 2;
        const SPECS: u32 = 1;
        const COUNTER_ID: u32 = 1;
        if let Some(descriptor) = bytes_of(event, COUNTER_DESCRIPTOR) {
            for spec in all_bytes(descriptor, SPECS) {
                self.gpu_counter(spec, context);
            }
        }
        for counter in all_bytes(event, COUNTERS) {
            let value = fields(counter).fold(None, |known, field| match (field.number, field.value) {
                (2, Wire::Varint(value)) => Some(value as i64 as f64),
                (3, Wire::Fixed64(bits)) => Some(f64::from_bits(bits)),
                _ => known,
            });
            let id = number_of(counter, COUNTER_ID).map(|id| id as u32);
            let (Some(value), Some(state)) = (value, id.and_then(|id| self.devices.counters.get_mut(&id)))
            else {
                continue;
            };
            let now = self.tracks.reserve_count(ts, state.track);
            if let Some(last) = state.last.replace(now) {
                self.tracks
                    .write_count(last, value, &context.strings, &mut context.output);
            }
        }
    }

    fn gpu_counter(&mut self, spec: &[u8], context: &mut Context<'_>) {
        const COUNTER_ID: u32 = 1;
        const NAME: u32 = 2;
        const DESCRIPTION: u32 = 3;
        const NUMERATORS: u32 = 7;
        const DENOMINATORS: u32 = 8;
        const GROUPS: u32 = 10;
        const UNCLASSIFIED: u64 = 0;
        let numbers = |wanted| {
            let mut numbers = Vec::new();
            for field in fields(spec).filter(|field| field.number == wanted) {
                each_varint(field.value, |number| numbers.push(number));
            }
            numbers
        };
        let id = number_of(spec, COUNTER_ID).map(|id| id as u32);
        let (Some(id), Some(name)) = (id, bytes_of(spec, NAME)) else {
            context.stats.add("gpu_counters_invalid_spec", None, 1);
            return;
        };
        if self.devices.counters.contains_key(&id) || self.devices.counters.len() >= MOST {
            context.stats.add("gpu_counters_invalid_spec", None, 1);
            return;
        }
        let joined = |numbers: Vec<u64>| {
            let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            texts.join(":")
        };
        let (over, under) = (joined(numbers(NUMERATORS)), joined(numbers(DENOMINATORS)));
        let unit = match (over.is_empty(), under.is_empty()) {
            (true, true) => None,
            (_, true) => Some(over),
            _ => Some(format!("{over}/{under}")),
        };
        let unit = unit.map(|unit| context.strings.intern(&unit));
        let name = context.strings.intern_bytes(name);
        let description = context
            .strings
            .intern_bytes(bytes_of(spec, DESCRIPTION).unwrap_or(&[]));
        let dimensions = [("gpu", Dimension::Int(0)), ("name", Dimension::Text(name))];
        let key = Key::new("gpu_counter", &dimensions);
        let track = self
            .tracks
            .intern(&key, Has::Counter { unit }, |_| Some(name), context);
        if !self.tracks.is_described(track) {
            let Context {
                strings,
                output,
                args,
                ..
            } = context;
            let word = strings.intern("description");
            args.add(word, word, Value::Text(description));
            let source = args.finish(strings, output);
            self.tracks.describe(track, source, Some(description));
        }
        self.devices.counters.insert(id, GpuCounter { track, last: None });
        let mut groups = numbers(GROUPS);
        if groups.is_empty() {
            groups.push(UNCLASSIFIED);
        }
        for group in groups {
            let row = [
                Cell::from(self.devices.groups),
                Cell::from(group as i64),
                Cell::from(track),
            ];
            self.devices.groups += 1;
            context.output.push(&GPU_COUNTER_GROUP, &row, &context.strings);
        }
    }

    /// Writes the last values of counters, whose time has no end.
    pub(super) fn finish_devices(&mut self, context: &mut Context<'_>) {
        let counters = std::mem::take(&mut self.devices.counters);
        for last in counters.into_values().filter_map(|counter| counter.last) {
            self.tracks
                .write_count(last, 0.0, &context.strings, &mut context.output);
        }
    }

    /// The packages that are installed. Those of one name are one.
    pub(super) fn packages(&mut self, list: &[u8], context: &mut Context<'_>) {
        note_errors(
            list,
            "packages_list_has_read_errors",
            "packages_list_has_parse_errors",
            context,
        );
        for package in all_bytes(list, 1) {
            let name = bytes_of(package, 1).unwrap_or(&[]);
            let id = self.devices.packages.len();
            if id >= MOST || !self.devices.packages.insert(name.to_vec()) {
                continue;
            }
            let get = |field| number_of(package, field).unwrap_or(0) as i64;
            let row = [
                Cell::from(id as i64),
                Cell::from(context.strings.intern_bytes(name)),
                Cell::from(get(2)),
                Cell::from(get(3) != 0),
                Cell::from(get(4) != 0),
                Cell::from(get(5)),
            ];
            context.output.push(&PACKAGE_LIST, &row, &context.strings);
        }
    }

    /// What is done to games.
    pub(super) fn game_interventions(&mut self, list: &[u8], context: &mut Context<'_>) {
        const MODES: u64 = 3;
        note_errors(
            list,
            "game_intervention_has_read_errors",
            "game_intervention_has_parse_errors",
            context,
        );
        for game in all_bytes(list, 1) {
            let get = |field| number_of(game, field).unwrap_or(0);
            let name = context.strings.intern_bytes(bytes_of(game, 1).unwrap_or(&[]));
            let mut row = [Cell::NULL; 16];
            row[..4].copy_from_slice(&[
                Cell::from(self.devices.games),
                Cell::from(name),
                Cell::from(get(2) as i64),
                Cell::from(get(3) as i32),
            ]);
            for mode in row[4..].chunks_mut(4) {
                mode[0] = Cell::from(false);
            }
            for mode in all_bytes(game, 4) {
                let number = number_of(mode, 1).unwrap_or(0);
                let Some(place) = number.checked_sub(1).filter(|place| *place < MODES) else {
                    continue;
                };
                let real = |wanted| {
                    let field = fields(mode).filter(|field| field.number == wanted);
                    field
                        .filter_map(|field| as_float(field.value))
                        .last()
                        .unwrap_or(0.0)
                };
                row[4 + place as usize * 4..][..4].copy_from_slice(&[
                    Cell::from(true),
                    Cell::from(real(3)),
                    Cell::from(number_of(mode, 2).unwrap_or(0) != 0),
                    Cell::from(real(4)),
                ]);
            }
            self.devices.games += 1;
            context
                .output
                .push(&ANDROID_GAME_INTERVENTION_LIST, &row, &context.strings);
        }
    }
}

/// A `float`, as a number of twice the size.
fn as_float(value: Wire<'_>) -> Option<f64> {
    match value {
        Wire::Fixed32(bits) => Some(f32::from_bits(bits).into()),
        _ => None,
    }
}

fn note_errors(list: &[u8], read: &'static str, parse: &'static str, context: &mut Context<'_>) {
    for (counter, field) in [(parse, 2), (read, 3)] {
        let has = number_of(list, field).is_some_and(|value| value != 0);
        context.stats.set(counter, None, has.into());
    }
}
