//! What the tokenizer and the trackers share while a trace becomes tables.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::clocks::Clocks;
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{CPU, MACHINE_TABLE, METADATA, STATS};
use crate::stat_list::{self, Severity, Source};
use crate::strings::{StringId, Strings};
use crate::tokenizer::sanitized;
use crate::tokenizer::stacks::Pool;
use crate::trackers::args::Args;
use crate::trackers::descriptors::Descriptors;
use crate::trackers::ftrace_events::Descriptions;
use crate::trackers::groups::Groups;
use crate::trackers::syscalls::Architecture;
use crate::trackers::task_state::{self, Version};

/// The most CPUs of a machine.
pub(crate) const MOST_CPUS: u32 = 1024;

/// Everything that both know.
pub(crate) struct Context<'a> {
    pub(crate) strings: Strings,
    pub(crate) output: Output<'a>,
    pub(crate) clocks: Clocks,
    pub(crate) stats: Stats,
    pub(crate) metadata: Metadata,
    pub(crate) cpus: Cpus,
    pub(crate) machine: Machine,
    pub(crate) args: Args,
    pub(crate) descriptors: Descriptors,
    pub(crate) descriptions: Descriptions,
    pub(crate) groups: Groups,
    pub(crate) stacks: Pool,
    /// Whether kernel events from before the recording count.
    pub(crate) keeps_old_events: bool,
    /// What numbers of system calls depend on.
    pub(crate) architecture: Option<Architecture>,
    kernel: Option<Version>,
    /// The letters of states that occurred, by their bits; `None` for those that did not.
    states: Vec<Option<Option<StringId>>>,
    /// The keys of debug annotations, by their names.
    debug_keys: HashMap<StringId, StringId>,
    /// The rows of `clock_snapshot` so far.
    pub(crate) clock_rows: i64,
    /// The rows of `cpu_available_frequencies` so far.
    pub(crate) frequency_rows: i64,
    /// The size of a page of memory, for counters in pages.
    pub(crate) page_size: i64,
}

impl<'a> Context<'a> {
    pub(crate) fn new(output: Output<'a>) -> Context<'a> {
        Context {
            strings: Strings::default(),
            output,
            clocks: Clocks::default(),
            stats: Stats::default(),
            metadata: Metadata::default(),
            cpus: Cpus::default(),
            machine: Machine::default(),
            args: Args::default(),
            descriptors: Descriptors::default(),
            descriptions: Descriptions::default(),
            groups: Groups::default(),
            stacks: Pool::default(),
            keeps_old_events: false,
            architecture: None,
            kernel: None,
            states: vec![None; 1 << 16],
            debug_keys: HashMap::new(),
            clock_rows: 0,
            frequency_rows: 0,
            page_size: 4096,
        }
    }

    pub(crate) fn set_kernel(&mut self, kernel: Option<Version>) {
        self.kernel = kernel;
        self.states.fill(None);
    }

    /// Returns the key of a debug annotation that has this name.
    #[inline]
    pub(crate) fn debug_key(&mut self, name: StringId) -> StringId {
        if let Some(key) = self.debug_keys.get(&name) {
            return *key;
        }
        let key = format!("debug.{}", sanitized(self.strings.get(name)));
        let key = self.strings.intern(&key);
        self.debug_keys.insert(name, key);
        key
    }

    /// Returns the letters of a state that the kernel gave as bits. `None` if they mean nothing, which is counted.
    #[inline]
    pub(crate) fn state(&mut self, bits: i64) -> Option<StringId> {
        let bits = bits as u16;
        let state = match self.states[usize::from(bits)] {
            Some(state) => state,
            None => {
                let state = task_state::letters(bits.into(), self.kernel)
                    .map(|letters| self.strings.intern(&letters));
                self.states[usize::from(bits)] = Some(state);
                state
            }
        };
        if state.is_none() {
            self.stats.add("task_state_invalid", None, 1);
        }
        state
    }
}

/// The counters of the table `stats` that are not zero.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    counters: BTreeMap<(&'static str, Option<i64>), i64>,
}

/// The most counters, as indices come from the trace.
const MOST_COUNTERS: usize = 1 << 16;

impl Stats {
    /// Adds to a counter.
    pub(crate) fn add(&mut self, name: &'static str, index: Option<i64>, count: i64) {
        if self.counters.len() < MOST_COUNTERS {
            let counter = self.counters.entry((name, index)).or_default();
            *counter = counter.saturating_add(count);
        }
    }

    /// Sets a counter.
    pub(crate) fn set(&mut self, name: &'static str, index: Option<i64>, value: i64) {
        if self.counters.len() < MOST_COUNTERS {
            self.counters.insert((name, index), value);
        }
    }

    pub(crate) fn write(&self, strings: &Strings, output: &mut Output<'_>) {
        for ((name, index), value) in &self.counters {
            if *value == 0 {
                continue;
            }
            let known = stat_list::find(name);
            debug_assert!(known.is_some(), "{name} is not in the list of counters");
            let (severity, source, description) = match known {
                Some((_, severity, source, description)) => (severity.name(), source.name(), *description),
                None => (Severity::Error.name(), Source::Analysis.name(), ""),
            };
            let row = [
                output.text(&STATS, name),
                Cell::from(*index),
                output.text(&STATS, severity),
                output.text(&STATS, source),
                Cell::from(*value),
                output.text(&STATS, description),
            ];
            output.push(&STATS, &row, strings);
        }
    }
}

/// A value of the table `metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    Int(i64),
    Text(String),
}

/// What is known about the trace as a whole.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    rows: Vec<(&'static str, bool, Known)>,
}

/// The most rows.
const MOST_ROWS: usize = 1 << 16;

impl Metadata {
    /// Sets the value of a key.
    pub(crate) fn set(&mut self, key: &'static str, value: Known) {
        match self.rows.iter_mut().find(|row| row.0 == key) {
            Some(row) => row.2 = value,
            None => self.rows.push((key, true, value)),
        }
    }

    /// Adds a value of a key that may have several.
    pub(crate) fn add(&mut self, key: &'static str, value: Known) {
        if self.rows.len() < MOST_ROWS {
            self.rows.push((key, false, value));
        }
    }

    /// Returns the number that a key has.
    pub(crate) fn number(&self, key: &str) -> Option<i64> {
        self.rows.iter().find_map(|row| match &row.2 {
            Known::Int(value) if row.0 == key => Some(*value),
            _ => None,
        })
    }

    /// Returns the text that a key has.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.rows.iter().find_map(|row| match &row.2 {
            Known::Text(value) if row.0 == key => Some(value.as_str()),
            _ => None,
        })
    }

    pub(crate) fn write(&self, strings: &Strings, output: &mut Output<'_>) {
        for (id, (name, is_single, value)) in self.rows.iter().enumerate() {
            let (int, text) = match value {
                Known::Int(value) => (Cell::from(*value), Cell::NULL),
                Known::Text(value) => (Cell::NULL, output.text(&METADATA, value)),
            };
            let kind = output.text(&METADATA, if *is_single { "single" } else { "multi" });
            let row = [
                Cell::from(id as i64),
                output.text(&METADATA, name),
                kind,
                int,
                text,
            ];
            output.push(&METADATA, &row, strings);
        }
    }
}

/// What is known about one CPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    is_known: bool,
    pub(crate) cluster: i64,
    pub(crate) processor: Option<StringId>,
    pub(crate) capacity: Option<i64>,
    pub(crate) arg_set: Option<i64>,
}

/// What the table `machine` says of the machine that recorded the trace.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// System, release, version and architecture.
    pub(crate) kernel: [Option<StringId>; 4],
    pub(crate) cpus: Option<i64>,
    pub(crate) fingerprint: Option<StringId>,
    pub(crate) manufacturer: Option<StringId>,
    pub(crate) sdk: Option<i64>,
}

impl Machine {
    pub(crate) fn write(&self, strings: &Strings, output: &mut Output<'_>) {
        let [name, release, version, arch] = self.kernel.map(Cell::from);
        let row = [
            Cell::from(0),
            Cell::from(0),
            name,
            release,
            version,
            arch,
            Cell::from(self.cpus),
            Cell::from(self.fingerprint),
            Cell::from(self.manufacturer),
            Cell::from(self.sdk),
        ];
        output.push(&MACHINE_TABLE, &row, strings);
    }
}

/// The CPUs that the trace mentions.
#[derive(Debug, Default)]
pub(crate) struct Cpus {
    cpus: Vec<Cpu>,
}

impl Cpus {
    /// Notes that the trace mentions this CPU. `None` if its number is too large.
    #[inline]
    pub(crate) fn mention(&mut self, cpu: u32) -> Option<&mut Cpu> {
        if cpu >= MOST_CPUS {
            return None;
        }
        let cpu = cpu as usize;
        if cpu >= self.cpus.len() {
            self.cpus.resize(cpu + 1, Cpu::default());
        }
        self.cpus[cpu].is_known = true;
        Some(&mut self.cpus[cpu])
    }

    pub(crate) fn write(&self, strings: &Strings, output: &mut Output<'_>) {
        for (number, cpu) in self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.is_known) {
            let number = Cell::from(number as i64);
            let row = [
                number,
                number,
                number,
                Cell::from(cpu.cluster),
                Cell::from(cpu.processor),
                Cell::NULL,
                Cell::from(cpu.capacity),
                Cell::from(cpu.arg_set),
            ];
            output.push(&CPU, &row, strings);
        }
    }
}
