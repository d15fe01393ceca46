//! Counters of `/proc/meminfo` and `/proc/vmstat`: files of one key and one number a line.
//!
//! The trace format has numbers for the keys that it knows. A kernel may have other keys and lack some of these.
//! The numbers are those of `sys_stats_counters.proto`, and a key's number is its place in the tables of [`ferretto_proto::kernel_names`].

use std::path::PathBuf;

use ferretto_proto::kernel_names::{MEMINFO_KEYS, VMSTAT_KEYS};
use ferretto_proto::messages::Enumeration;
use ferretto_proto::messages::{MeminfoCounters, VmstatCounters};
use ferretto_proto::write;

use super::{Missing, Sampler};
use crate::kernel_files::{Keep, PolledFile};
use crate::kernel_text::{leading_u64, lines};

/// A kind of counter: its keys, and how its values are written.
pub(crate) trait KeyedCounter: Enumeration + Copy + PartialEq + std::fmt::Debug + 'static {
    /// The kernel's keys, from counter 1 on.
    const KEYS: &'static [&'static str];

    /// Writes one value.
    fn write(self, value: u64, stats: &mut write::SysStats<'_>);
}

impl KeyedCounter for MeminfoCounters {
    const KEYS: &'static [&'static str] = &MEMINFO_KEYS;

    fn write(self, value: u64, stats: &mut write::SysStats<'_>) {
        stats.meminfo(|entry| {
            entry.key(self).value(value);
        });
    }
}

impl KeyedCounter for VmstatCounters {
    const KEYS: &'static [&'static str] = &VMSTAT_KEYS;

    fn write(self, value: u64, stats: &mut write::SysStats<'_>) {
        stats.vmstat(|entry| {
            entry.key(self).value(value);
        });
    }
}

/// Samples one such file.
#[derive(Debug)]
pub(crate) struct CounterFile<C> {
    file: PolledFile,
    /// The keys that are wanted, sorted.
    wanted: Vec<(&'static [u8], C)>,
    /// The last look-up of each line of the file. Lines keep their places, so nearly always one comparison of a
    /// line with itself replaces the look-up.
    known_lines: Vec<KnownLine<C>>,
}

#[derive(Debug)]
struct KnownLine<C> {
    key: Vec<u8>,
    counter: Option<C>,
}

impl<C: KeyedCounter> CounterFile<C> {
    /// Samples the counters of `only` from the file at `path`, or all counters if `only` is empty.
    pub(crate) fn new(path: PathBuf, only: &[C]) -> Self {
        let mut wanted: Vec<(&'static [u8], C)> = (1..)
            .zip(C::KEYS)
            .filter_map(|(number, key)| Some((key.as_bytes(), C::from_i32(number)?)))
            .filter(|(_, counter)| only.is_empty() || only.contains(counter))
            .collect();
        wanted.sort_unstable_by_key(|(key, _)| *key);
        Self {
            file: PolledFile::new(path, Keep::Open),
            wanted,
            known_lines: Vec::new(),
        }
    }

    fn counter(&mut self, line: usize, key: &[u8]) -> Option<C> {
        if let Some(known) = self.known_lines.get(line)
            && known.key == key
        {
            return known.counter;
        }
        let place = self.wanted.binary_search_by_key(&key, |(wanted, _)| wanted);
        let counter = place.ok().map(|place| self.wanted[place].1);
        let known = KnownLine {
            key: key.to_vec(),
            counter,
        };
        match self.known_lines.get_mut(line) {
            Some(outdated) => *outdated = known,
            None => self.known_lines.push(known),
        }
        counter
    }
}

impl<C: KeyedCounter> Sampler for CounterFile<C> {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        let text = self
            .file
            .read(buffer)
            .map_err(|error| Missing::new(self.file.path(), error))?;
        for (number, line) in lines(text).enumerate() {
            // "MemTotal:       24684084 kB", "nr_free_pages 949810"
            let key_end = line
                .iter()
                .position(|byte| matches!(byte, b':' | b' '))
                .unwrap_or(line.len());
            let Some(counter) = self.counter(number, &line[..key_end]) else {
                continue;
            };
            let value = line.get(key_end + 1..).and_then(leading_u64);
            if let Some(value) = value {
                counter.write(value, stats);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_format_has_a_key_and_no_other() {
        assert_eq!(MeminfoCounters::from_i32(MEMINFO_KEYS.len() as i32 + 1), None);
        assert_eq!(VmstatCounters::from_i32(VMSTAT_KEYS.len() as i32 + 1), None);
        for (number, key) in (1..).zip(VMSTAT_KEYS) {
            let counter = VmstatCounters::from_i32(number).expect(key);
            assert_eq!(counter.proto_name(), format!("VMSTAT_{}", key.to_uppercase()));
        }
        // The names of the values are the keys' words, separated and sometimes abbreviated. Checking a few catches
        // a shift.
        for (number, key) in (1..).zip(MEMINFO_KEYS) {
            let counter = MeminfoCounters::from_i32(number).expect(key);
            let words: String = counter
                .proto_name()
                .trim_start_matches("MEMINFO_")
                .replace('_', "")
                .to_lowercase();
            let letters: String = key
                .to_lowercase()
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .collect();
            let renamed = [
                ("sreclaimable", "slabreclaimable"),
                ("sunreclaim", "slabunreclaimable"),
                ("committedas", "commitedas"),
            ];
            let expected = renamed
                .iter()
                .find(|(from, _)| *from == letters)
                .map_or(&*letters, |(_, to)| to);
            assert_eq!(words, expected);
        }
    }
}
