//! Samples the counters of all processes and fills `ProcessStats` messages with the changed values.
//!
//! Called once per polling period. Written values are remembered for the life time of the cache. A value is written
//! again only when it changes or that time is over. So a trace whose start was overwritten gets every value again.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use ferretto_proto::write;

use super::config::CounterOptions;
use super::proc_dir::{LONGEST_LINK, ProcDir, TaskFile};
use super::status::{
    Counter, Sample, StatTimes, sample_dmabuf_rss, sample_oom_score_adj, sample_smaps_rollup, sample_status,
};
use crate::time::nanos_per_clock_tick;

/// The values of one process that were written since the cache was last cleared.
#[derive(Debug, Default)]
struct Written {
    values: Sample,
    /// Empty unless open files are recorded.
    files: BTreeSet<u64>,
}

/// The last values of every process, and the buffers to read new ones.
#[derive(Debug)]
pub(crate) struct Counters {
    options: CounterOptions,
    nanos_per_tick: u64,
    written: HashMap<i32, Written>,
    /// Processes without memory (kernel processes and zombies), sorted: their status is not read again. Processes that
    /// are gone leave the list, so it is never longer than the list of processes, and a reused id is looked at anew.
    without_memory: Vec<i32>,
    without_memory_next: Vec<i32>,
    text: Vec<u8>,
    files: NewFiles,
}

impl Counters {
    pub(crate) fn new(options: CounterOptions) -> Self {
        Self {
            options,
            nanos_per_tick: nanos_per_clock_tick(),
            written: HashMap::new(),
            without_memory: Vec::new(),
            without_memory_next: Vec::new(),
            text: Vec::new(),
            files: NewFiles::default(),
        }
    }

    /// Forgets the written values, so that the next sample writes every value, changed or not.
    pub(crate) fn forget_values(&mut self) {
        self.written.clear();
    }

    /// As [`Self::forget_values`]; also forgets which processes had no memory.
    pub(crate) fn forget_all(&mut self) {
        self.forget_values();
        self.without_memory.clear();
    }

    /// Samples all of `pids` and writes the changed values. Leaves in `pids` the processes that had something to
    /// sample. Returns whether it wrote anything.
    pub(crate) fn sample_all(
        &mut self,
        procfs: &ProcDir,
        pids: &mut Vec<i32>,
        stats: &mut write::ProcessStats<'_>,
    ) -> bool {
        let mut wrote = false;
        self.without_memory_next.clear();
        pids.retain(|&pid| {
            let mut sample = Sample::default();
            self.files.clear();
            let has_runtime = self.options.runtime && self.sample_runtime(procfs, pid, &mut sample);
            let has_memory = self.sample_memory(procfs, pid, &mut sample);
            wrote |= self.write_changes(pid, &sample, stats);
            has_runtime || has_memory
        });
        self.without_memory_next.sort_unstable();
        std::mem::swap(&mut self.without_memory, &mut self.without_memory_next);
        wrote
    }

    /// Writes the open files of `pid` that were not written yet. Returns whether there were any.
    pub(crate) fn write_open_files(
        &mut self,
        procfs: &ProcDir,
        pid: i32,
        stats: &mut write::ProcessStats<'_>,
    ) -> bool {
        self.files.clear();
        self.files.find(procfs, pid, self.written.get(&pid));
        self.write_changes(pid, &Sample::default(), stats)
    }

    /// As [`Self::write_open_files`], only for the file numbers `fds`.
    pub(crate) fn write_files(
        &mut self,
        procfs: &ProcDir,
        pid: i32,
        fds: impl Iterator<Item = u64>,
        stats: &mut write::ProcessStats<'_>,
    ) -> bool {
        self.files.clear();
        for fd in fds {
            self.files.resolve(procfs, pid, fd, self.written.get(&pid));
        }
        self.write_changes(pid, &Sample::default(), stats)
    }

    fn sample_runtime(&mut self, procfs: &ProcDir, pid: i32, sample: &mut Sample) -> bool {
        let Some(times) = StatTimes::parse(procfs.read(pid, TaskFile::Stat, &mut self.text)) else {
            return false;
        };
        let nanos = |ticks: u64| Some(ticks.saturating_mul(self.nanos_per_tick));
        sample[Counter::RuntimeUser as usize] = nanos(times.user);
        sample[Counter::RuntimeKernel as usize] = nanos(times.kernel);
        true
    }

    /// Whether `pid` has memory. Remembers a process without memory, unless the process is gone.
    fn sample_memory(&mut self, procfs: &ProcDir, pid: i32, sample: &mut Sample) -> bool {
        if self.without_memory.binary_search(&pid).is_ok() {
            self.without_memory_next.push(pid);
            return false;
        }
        let status = procfs.read(pid, TaskFile::Status, &mut self.text);
        if status.is_empty() {
            return false;
        }
        let has_memory = sample_status(status, sample);
        if self.options.dmabuf_rss {
            sample_dmabuf_rss(procfs.read(pid, TaskFile::DmabufRss, &mut self.text), sample);
        }
        if !has_memory {
            self.without_memory_next.push(pid);
            return false;
        }
        if self.options.smaps_rollup {
            sample_smaps_rollup(procfs.read(pid, TaskFile::SmapsRollup, &mut self.text), sample);
        }
        sample_oom_score_adj(procfs.read(pid, TaskFile::OomScoreAdj, &mut self.text), sample);
        if self.options.open_files {
            self.files.find(procfs, pid, self.written.get(&pid));
        }
        true
    }

    fn write_changes(&mut self, pid: i32, sample: &Sample, stats: &mut write::ProcessStats<'_>) -> bool {
        let written = self.written.entry(pid).or_default();
        let unchanged = |(new, old): (&Option<u64>, &Option<u64>)| new.is_none() || new == old;
        if self.files.found.is_empty() && sample.iter().zip(&written.values).all(unchanged) {
            return false;
        }
        stats.processes(|process| {
            process.pid(pid);
            for counter in Counter::ALL {
                let slot = counter as usize;
                let Some(value) = sample[slot] else { continue };
                if written.values[slot].replace(value) != Some(value) {
                    write_counter(process, counter, value);
                }
            }
            for (fd, path) in &self.files.found {
                written.files.insert(*fd);
                process.fds(|file| {
                    file.fd(*fd).path(&self.files.paths[path.clone()]);
                });
            }
        });
        true
    }
}

fn write_counter(process: &mut write::process_stats::Process<'_>, counter: Counter, value: u64) {
    match counter {
        Counter::VmSize => process.vm_size_kb(value),
        Counter::VmRss => process.vm_rss_kb(value),
        Counter::RssAnon => process.rss_anon_kb(value),
        Counter::RssFile => process.rss_file_kb(value),
        Counter::RssShmem => process.rss_shmem_kb(value),
        Counter::VmSwap => process.vm_swap_kb(value),
        Counter::VmLocked => process.vm_locked_kb(value),
        Counter::VmHwm => process.vm_hwm_kb(value),
        Counter::OomScoreAdj => process.oom_score_adj(value.cast_signed()),
        Counter::SmapsRss => process.smr_rss_kb(value),
        Counter::SmapsPss => process.smr_pss_kb(value),
        Counter::SmapsPssAnon => process.smr_pss_anon_kb(value),
        Counter::SmapsPssFile => process.smr_pss_file_kb(value),
        Counter::SmapsPssShmem => process.smr_pss_shmem_kb(value),
        Counter::SmapsSwapPss => process.smr_swap_pss_kb(value),
        Counter::RuntimeUser => process.runtime_user_mode(value),
        Counter::RuntimeKernel => process.runtime_kernel_mode(value),
        Counter::DmabufRss => process.dmabuf_rss_kb(value),
    };
}

/// Open files of one process that are not written yet: number and place in `paths`.
#[derive(Debug, Default)]
struct NewFiles {
    found: Vec<(u64, Range<usize>)>,
    paths: Vec<u8>,
    numbers: Vec<u64>,
}

impl NewFiles {
    fn clear(&mut self) {
        self.found.clear();
        self.paths.clear();
    }

    fn find(&mut self, procfs: &ProcDir, pid: i32, written: Option<&Written>) {
        let mut numbers = std::mem::take(&mut self.numbers);
        procfs.open_files(pid, &mut numbers);
        for &fd in &numbers {
            self.resolve(procfs, pid, fd, written);
        }
        self.numbers = numbers;
    }

    fn resolve(&mut self, procfs: &ProcDir, pid: i32, fd: u64, written: Option<&Written>) {
        if written.is_some_and(|written| written.files.contains(&fd)) {
            return;
        }
        let mut target = [0; LONGEST_LINK];
        if let Some(target) = procfs.open_file(pid, fd, &mut target) {
            let start = self.paths.len();
            self.paths.extend_from_slice(target);
            self.found.push((fd, start..self.paths.len()));
        }
    }
}
