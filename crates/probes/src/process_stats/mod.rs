//! `linux.process_stats`: processes and threads, and the memory and time that they use.
//!
//! Three sources feed it. A scan describes every process when the recording starts. `linux.ftrace` reports the threads in its events,
//! and each is described once. A timer samples the counters of all processes. One instance serves one tracing session; the producer
//! owns it and calls it as [`Probe`].
//!
//! The scan runs in turns and writes a packet in each, so that a machine with very many processes does not keep the loop from its
//! other work. Flushes wait for it and for the first sample. The stop finishes it, within two seconds.
//!
//! Guarantees: a packet is written only if it has content. Its timestamp is the time when its scan began. The first packet, and the
//! first after state was cleared or lost, says that incremental state starts anew.

mod config;
mod counters;
mod proc_dir;
mod status;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::path::PathBuf;

use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};
use ferretto_proto::write;
use ferretto_wire::Writer;

use self::config::Config;
pub use self::config::SHORTEST_POLL_MS;
use self::counters::Counters;
use self::proc_dir::ProcDir;
use self::tree::Tree;
use crate::kernel_files::KernelRoots;
use crate::metatrace::{Counter, Event, count, span};
use crate::notice::Notice;
use crate::time::next_multiple;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_ipc::reactor::boot_now;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.process_stats";

/// The duration of one turn of the scan. The last process may exceed it.
const SCAN_TURN: BootTime = 10_000_000;
/// How long the stop goes on with the scan, if no flush has waited for it. Services wait for five seconds, unless a config says otherwise, and for
/// other data sources as well. A machine has tens of thousands of processes if they do not fit.
const LONGEST_FINISH: BootTime = 2_000_000_000;
/// Processes that one packet describes, at most.
const MOST_IN_PACKET: usize = 1000;

/// Describes this data source to services.
pub(crate) fn descriptor() -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(NAME.to_owned()),
        handles_incremental_state_clear: Some(true),
        ..Default::default()
    }
}

/// Why an instance cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is no procfs to read.
    #[error("linux.process_stats: cannot open {}: {source}; is procfs mounted there?", path.display())]
    NoProcfs {
        /// The place where procfs should be.
        path: PathBuf,
        /// The error of opening it.
        source: std::io::Error,
    },
}

/// One instance of the data source.
#[derive(Debug)]
pub struct ProcessStats {
    config: Config,
    procfs: ProcDir,
    tree: Tree,
    counters: Counters,
    output: Output,
    next_sample: Option<BootTime>,
    first_sample_due: bool,
    /// Samples taken since the cache was cleared.
    samples: u32,
    pids: Vec<i32>,
    /// Processes that the scan has not reached yet.
    unscanned: std::vec::IntoIter<i32>,
    scan_turn: BootTime,
    longest_finish: BootTime,
    notices: Vec<Notice>,
}

impl ProcessStats {
    /// Makes an instance with the settings of the `process_stats_config` in `config`, which reads below `roots`.
    ///
    /// # Errors
    /// If there is no procfs below `roots`.
    pub fn from_config(config: &DataSourceConfig, roots: &KernelRoots) -> Result<Self, SetupError> {
        let mut notices = Vec::new();
        let config = Config::new(&config.process_stats_config, &mut notices);
        let procfs = ProcDir::open(&roots.procfs).map_err(|error| SetupError::NoProcfs {
            path: roots.procfs.clone(),
            source: error.into(),
        })?;
        Ok(Self {
            tree: Tree::new(config.tree),
            counters: Counters::new(config.counters),
            procfs,
            config,
            output: Output::default(),
            next_sample: None,
            first_sample_due: false,
            samples: 0,
            pids: Vec::new(),
            unscanned: Vec::new().into_iter(),
            scan_turn: SCAN_TURN,
            longest_finish: LONGEST_FINISH,
            notices,
        })
    }

    /// Describes processes that the scan has not reached, with their threads and, if wanted, their open files. Ends when its time is
    /// over, after one process at least.
    fn scan_some(&mut self, began: BootTime, sink: &mut dyn PacketSink) {
        let _span = span(Event::PsWriteAllProcesses);
        let until = boot_now().saturating_add(self.scan_turn);
        let Self {
            tree,
            procfs,
            counters,
            pids,
            unscanned,
            ..
        } = self;
        pids.clear();
        self.output.tree(began, sink, |out| {
            let mut wrote = false;
            for pid in unscanned.by_ref().take(MOST_IN_PACKET) {
                wrote |= tree.describe_with_threads(procfs, pid, out);
                pids.push(pid);
                if boot_now() >= until {
                    break;
                }
            }
            wrote
        });
        if self.config.counters.open_files {
            self.output.stats(boot_now(), sink, |out| {
                pids.iter().fold(false, |wrote, &pid| {
                    counters.write_open_files(procfs, pid, out) | wrote
                })
            });
        }
    }

    /// Describes the processes that the scan has not reached, as far as there is time for.
    fn finish_scan(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let until = boot_now().saturating_add(self.longest_finish);
        while self.unscanned.len() > 0 && boot_now() < until {
            self.scan_some(now, sink);
        }
    }

    /// Samples every process, and describes the processes that were not described yet.
    fn sample_all(&mut self, began: BootTime, sink: &mut dyn PacketSink) {
        let _span = span(Event::PsWriteAllProcessStats);
        if !self.list_processes() {
            return;
        }
        let Self {
            tree,
            procfs,
            counters,
            pids,
            ..
        } = self;
        self.output
            .stats(began, sink, |out| counters.sample_all(procfs, pids, out));
        self.output.tree(boot_now(), sink, |out| {
            pids.iter().fold(false, |wrote, &pid| {
                tree.describe_if_new(procfs, pid, out) | wrote
            })
        });
    }

    fn list_processes(&mut self) -> bool {
        self.procfs.processes(&mut self.pids).is_ok()
    }

    /// Forgets everything that was written if the sink has lost some of it, so that it is written again.
    fn recover_losses(&mut self, sink: &dyn PacketSink) {
        if self.output.losses_grew(sink) {
            self.clear_incremental_state();
        }
    }
}

impl ProcessStats {
    /// Takes the threads whose name changed according to `linux.ftrace` of the same session: their descriptions are out of date. Call
    /// it before [`ProcessStats::on_threads_seen`] for the same batch, which describes them again.
    pub(crate) fn on_threads_renamed(&mut self, tids: &BTreeSet<i32>) {
        if self.config.on_demand && !tids.is_empty() {
            let _span = span(Event::PsOnRenamePids);
            tids.iter().for_each(|&tid| self.tree.forget(tid));
        }
    }

    /// Takes the threads that `linux.ftrace` of the same session has seen since the last call, and describes the new ones.
    pub(crate) fn on_threads_seen(&mut self, tids: &BTreeSet<i32>, now: BootTime, sink: &mut dyn PacketSink) {
        if !self.config.on_demand {
            return;
        }
        let _span = span(Event::PsOnPids);
        self.recover_losses(sink);
        let Self { tree, procfs, .. } = self;
        let mut described = 0;
        self.output.tree(now, sink, |out| {
            for &tid in tids {
                described += usize::from(tree.describe_if_new(procfs, tid, out));
            }
            described > 0
        });
        count(Counter::PsPidsScanned, described);
    }

    /// Takes open files (thread, file number) that `linux.ftrace` of the same session saw in system calls. Call it after
    /// [`ProcessStats::on_threads_seen`] for the same batch.
    pub(crate) fn on_files_seen(
        &mut self,
        files: &BTreeSet<(i32, u64)>,
        now: BootTime,
        sink: &mut dyn PacketSink,
    ) {
        if !self.config.on_demand || !self.config.counters.open_files {
            return;
        }
        self.recover_losses(sink);
        let Self {
            tree,
            procfs,
            counters,
            ..
        } = self;
        // If a thread is not known yet, the next sample finds its files together with it.
        let known = files
            .iter()
            .filter_map(|&(tid, fd)| Some((tree.process_of(tid)?, fd)));
        let by_process: Vec<(i32, u64)> = known.collect::<BTreeSet<_>>().into_iter().collect();
        self.output.stats(now, sink, |out| {
            by_process
                .chunk_by(|left, right| left.0 == right.0)
                .fold(false, |wrote, files| {
                    let fds = files.iter().map(|&(_, fd)| fd);
                    counters.write_files(procfs, files[0].0, fds, out) | wrote
                })
        });
    }
}

impl Probe for ProcessStats {
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.output.losses = sink.losses();
        if self.config.scan_at_start && self.list_processes() {
            self.unscanned = std::mem::take(&mut self.pids).into_iter();
            self.scan_some(now, sink);
        }
        self.next_sample = self.config.poll.map(|_| now);
        self.first_sample_due = self.next_sample.is_some();
    }

    fn next_deadline(&self) -> Option<BootTime> {
        match self.unscanned.len() {
            0 => self.next_sample,
            // The next turn of the scan is due now.
            _ => Some(0),
        }
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if self.unscanned.len() > 0 {
            self.scan_some(now, sink);
            return;
        }
        let Some(poll) = self
            .config
            .poll
            .filter(|_| self.next_sample.is_some_and(|due| due <= now))
        else {
            return;
        };
        self.next_sample = Some(next_multiple(now, poll.period));
        self.first_sample_due = false;
        self.recover_losses(sink);
        self.sample_all(now, sink);
        self.samples += 1;
        if self.samples == poll.samples_per_cache {
            self.samples = 0;
            self.counters.forget_values();
        }
    }

    /// Data that are read after a flush have all processes of the start and the first sample, as if all was written at once.
    fn is_starting(&self) -> bool {
        self.unscanned.len() > 0 || self.first_sample_due
    }

    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.next_sample = None;
        self.finish_scan(now, sink);
        let processes = std::mem::take(&mut self.unscanned).len();
        if processes > 0 {
            self.notices.push(Notice::ScanCutShort { processes });
        }
    }

    fn clear_incremental_state(&mut self) {
        self.tree.forget_all();
        self.counters.forget_all();
        self.samples = 0;
        self.output.announced = Announced::No;
    }

    /// Reports settings that are not followed. They are known after the start, after the first sample of each kind, and at the stop.
    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}

/// Whether a packet has said that incremental state starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Announced {
    #[default]
    No,
    Yes,
}

/// Puts messages into packets and packets into the sink, unless they are empty.
#[derive(Debug, Default)]
struct Output {
    packet: Writer,
    announced: Announced,
    /// [`PacketSink::losses`] when it was asked last.
    losses: u64,
}

impl Output {
    fn losses_grew(&mut self, sink: &dyn PacketSink) -> bool {
        let losses = sink.losses();
        std::mem::replace(&mut self.losses, losses) < losses
    }

    fn tree(
        &mut self,
        began: BootTime,
        sink: &mut dyn PacketSink,
        fill: impl FnOnce(&mut write::ProcessTree<'_>) -> bool,
    ) {
        self.packet(began, sink, |packet| {
            let mut wrote = false;
            packet.process_tree(|tree| {
                wrote = fill(tree);
                tree.collection_end_timestamp(boot_now());
            });
            wrote
        });
    }

    fn stats(
        &mut self,
        began: BootTime,
        sink: &mut dyn PacketSink,
        fill: impl FnOnce(&mut write::ProcessStats<'_>) -> bool,
    ) {
        self.packet(began, sink, |packet| {
            let mut wrote = false;
            packet.process_stats(|stats| {
                wrote = fill(stats);
                stats.collection_end_timestamp(boot_now());
            });
            wrote
        });
    }

    fn packet(
        &mut self,
        began: BootTime,
        sink: &mut dyn PacketSink,
        fill: impl FnOnce(&mut write::TracePacket<'_>) -> bool,
    ) {
        self.packet.clear();
        let mut packet = write::TracePacket::new(&mut self.packet);
        packet.timestamp(began);
        if self.announced == Announced::No {
            packet.incremental_state_cleared(true);
        }
        if fill(&mut packet) {
            sink.write_packet(self.packet.as_slice());
            self.announced = Announced::Yes;
        }
    }
}
