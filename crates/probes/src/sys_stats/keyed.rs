//! Counters of `/proc/meminfo` and `/proc/vmstat`: files of one key and one number a line.
//!
//! The trace format has numbers for the keys that it knows. A kernel may have other keys and lack some of these.
//! The numbers are those of `sys_stats_counters.proto`, and a key's number is its place in the tables below.

use std::path::PathBuf;

use ferretto_proto::messages::Enumeration;
use ferretto_proto::messages::{MeminfoCounters, VmstatCounters};
use ferretto_proto::write;

use super::{Missing, Sampler};
use crate::kernel_files::{Keep, PolledFile};
use crate::kernel_text::{leading_u64, lines};

/// Keys of `/proc/meminfo`, from counter 1 on.
const MEMINFO_KEYS: [&str; 38] = [
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "SwapCached",
    "Active",
    "Inactive",
    "Active(anon)",
    "Inactive(anon)",
    "Active(file)",
    "Inactive(file)",
    "Unevictable",
    "Mlocked",
    "SwapTotal",
    "SwapFree",
    "Dirty",
    "Writeback",
    "AnonPages",
    "Mapped",
    "Shmem",
    "Slab",
    "SReclaimable",
    "SUnreclaim",
    "KernelStack",
    "PageTables",
    "CommitLimit",
    "Committed_AS",
    "VmallocTotal",
    "VmallocUsed",
    "VmallocChunk",
    "CmaTotal",
    "CmaFree",
    "Gpu",
    "Zram",
    "Misc",
    "ION_heap",
    "ION_heap_pool",
];

/// Keys of `/proc/vmstat`, from counter 1 on.
const VMSTAT_KEYS: [&str; 188] = [
    "nr_free_pages",
    "nr_alloc_batch",
    "nr_inactive_anon",
    "nr_active_anon",
    "nr_inactive_file",
    "nr_active_file",
    "nr_unevictable",
    "nr_mlock",
    "nr_anon_pages",
    "nr_mapped",
    "nr_file_pages",
    "nr_dirty",
    "nr_writeback",
    "nr_slab_reclaimable",
    "nr_slab_unreclaimable",
    "nr_page_table_pages",
    "nr_kernel_stack",
    "nr_overhead",
    "nr_unstable",
    "nr_bounce",
    "nr_vmscan_write",
    "nr_vmscan_immediate_reclaim",
    "nr_writeback_temp",
    "nr_isolated_anon",
    "nr_isolated_file",
    "nr_shmem",
    "nr_dirtied",
    "nr_written",
    "nr_pages_scanned",
    "workingset_refault",
    "workingset_activate",
    "workingset_nodereclaim",
    "nr_anon_transparent_hugepages",
    "nr_free_cma",
    "nr_swapcache",
    "nr_dirty_threshold",
    "nr_dirty_background_threshold",
    "pgpgin",
    "pgpgout",
    "pgpgoutclean",
    "pswpin",
    "pswpout",
    "pgalloc_dma",
    "pgalloc_normal",
    "pgalloc_movable",
    "pgfree",
    "pgactivate",
    "pgdeactivate",
    "pgfault",
    "pgmajfault",
    "pgrefill_dma",
    "pgrefill_normal",
    "pgrefill_movable",
    "pgsteal_kswapd_dma",
    "pgsteal_kswapd_normal",
    "pgsteal_kswapd_movable",
    "pgsteal_direct_dma",
    "pgsteal_direct_normal",
    "pgsteal_direct_movable",
    "pgscan_kswapd_dma",
    "pgscan_kswapd_normal",
    "pgscan_kswapd_movable",
    "pgscan_direct_dma",
    "pgscan_direct_normal",
    "pgscan_direct_movable",
    "pgscan_direct_throttle",
    "pginodesteal",
    "slabs_scanned",
    "kswapd_inodesteal",
    "kswapd_low_wmark_hit_quickly",
    "kswapd_high_wmark_hit_quickly",
    "pageoutrun",
    "allocstall",
    "pgrotated",
    "drop_pagecache",
    "drop_slab",
    "pgmigrate_success",
    "pgmigrate_fail",
    "compact_migrate_scanned",
    "compact_free_scanned",
    "compact_isolated",
    "compact_stall",
    "compact_fail",
    "compact_success",
    "compact_daemon_wake",
    "unevictable_pgs_culled",
    "unevictable_pgs_scanned",
    "unevictable_pgs_rescued",
    "unevictable_pgs_mlocked",
    "unevictable_pgs_munlocked",
    "unevictable_pgs_cleared",
    "unevictable_pgs_stranded",
    "nr_zspages",
    "nr_ion_heap",
    "nr_gpu_heap",
    "allocstall_dma",
    "allocstall_movable",
    "allocstall_normal",
    "compact_daemon_free_scanned",
    "compact_daemon_migrate_scanned",
    "nr_fastrpc",
    "nr_indirectly_reclaimable",
    "nr_ion_heap_pool",
    "nr_kernel_misc_reclaimable",
    "nr_shadow_call_stack_bytes",
    "nr_shmem_hugepages",
    "nr_shmem_pmdmapped",
    "nr_unreclaimable_pages",
    "nr_zone_active_anon",
    "nr_zone_active_file",
    "nr_zone_inactive_anon",
    "nr_zone_inactive_file",
    "nr_zone_unevictable",
    "nr_zone_write_pending",
    "oom_kill",
    "pglazyfree",
    "pglazyfreed",
    "pgrefill",
    "pgscan_direct",
    "pgscan_kswapd",
    "pgskip_dma",
    "pgskip_movable",
    "pgskip_normal",
    "pgsteal_direct",
    "pgsteal_kswapd",
    "swap_ra",
    "swap_ra_hit",
    "workingset_restore",
    "allocstall_device",
    "allocstall_dma32",
    "balloon_deflate",
    "balloon_inflate",
    "balloon_migrate",
    "cma_alloc_fail",
    "cma_alloc_success",
    "nr_file_hugepages",
    "nr_file_pmdmapped",
    "nr_foll_pin_acquired",
    "nr_foll_pin_released",
    "nr_sec_page_table_pages",
    "nr_shadow_call_stack",
    "nr_swapcached",
    "nr_throttled_written",
    "pgalloc_device",
    "pgalloc_dma32",
    "pgdemote_direct",
    "pgdemote_kswapd",
    "pgreuse",
    "pgscan_anon",
    "pgscan_file",
    "pgskip_device",
    "pgskip_dma32",
    "pgsteal_anon",
    "pgsteal_file",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "thp_deferred_split_page",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_fault_fallback_charge",
    "thp_file_alloc",
    "thp_file_fallback",
    "thp_file_fallback_charge",
    "thp_file_mapped",
    "thp_migration_fail",
    "thp_migration_split",
    "thp_migration_success",
    "thp_scan_exceed_none_pte",
    "thp_scan_exceed_share_pte",
    "thp_scan_exceed_swap_pte",
    "thp_split_page",
    "thp_split_page_failed",
    "thp_split_pmd",
    "thp_swpout",
    "thp_swpout_fallback",
    "thp_zero_page_alloc",
    "thp_zero_page_alloc_failed",
    "vma_lock_abort",
    "vma_lock_miss",
    "vma_lock_retry",
    "vma_lock_success",
    "workingset_activate_anon",
    "workingset_activate_file",
    "workingset_nodes",
    "workingset_refault_anon",
    "workingset_refault_file",
    "workingset_restore_anon",
    "workingset_restore_file",
];

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
