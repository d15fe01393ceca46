//! `linux.inode_file_map`: finds the paths of files that kernel events identify only by device and inode number.
//!
//! `linux.ftrace` of the same session hands over the inodes of its events after each round over the CPUs. Files that are known already
//! (`known.rs`) are written at once, each time they are seen. For other inodes a scan begins after a delay, in which more of them gather. It
//! starts at the mount points of their devices, on a thread of its own (`scan.rs`, `walk.rs`). This module takes its results ten times a
//! second. New inodes join a running scan. The next scan looks for those new inodes that the running scan has already passed. An inode that
//! was not found is forgotten until it is seen again.
//!
//! Guarantees: the runtime's thread accesses no file system but procfs. Inodes, paths and packets under way are bounded, and so is the
//! length of a scan. The log reports everything that is left out. The accesses of a scan do not start another one (`own_threads.rs`).

mod config;
mod known;
mod mounts;
mod output;
mod scan;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeSet;
use std::sync::Arc;

use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_proto::messages::DataSourceConfig;

use self::config::Config;
pub use self::known::KnownFiles;
use self::mounts::MountTable;
use self::output::Output;
use self::scan::{Ending, Inodes, Pace, Scan};
use crate::ftrace::metadata::{FileId, FilesWanted};
use crate::kernel_files::KernelRoots;
use crate::notice::Notice;
use crate::time::next_multiple;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.inode_file_map";

/// Inodes that wait for a scan, or for the static files, at most.
const MOST_WAITING: usize = 200_000;
/// Nanoseconds between two looks at a scan's findings.
const LOOK_PERIOD: u64 = 100_000_000;

/// The search for unknown inodes.
#[derive(Debug)]
enum Phase {
    /// No inode is unknown.
    Idle,
    /// A scan begins at this time.
    Planned(BootTime),
    Scanning(Scan),
}

/// One instance of the data source.
#[derive(Debug)]
pub struct InodeFileMap {
    config: Config,
    known: Arc<KnownFiles>,
    /// Makes `linux.ftrace` note files, which it does only while somebody wants them.
    _wanted: FilesWanted,
    mounts: MountTable,
    phase: Phase,
    /// Inodes that the next scan looks for.
    missing: Inodes,
    /// Files that were seen before the static files were read.
    early: BTreeSet<FileId>,
    output: Output,
    next_look: Option<BootTime>,
    notices: Vec<Notice>,
    /// The kinds of trouble that were reported; each is reported once.
    told: BTreeSet<&'static str>,
    losses: u64,
}

impl InodeFileMap {
    /// Makes an instance with the settings of the `inode_file_config` in `config`. Instances share `known`. The table of mounts is below
    /// `roots`.
    pub(crate) fn from_config(
        config: &DataSourceConfig,
        roots: &KernelRoots,
        known: Arc<KnownFiles>,
    ) -> Self {
        known.read_static_files();
        Self {
            config: Config::new(&config.inode_file_config),
            known,
            _wanted: FilesWanted::new(),
            mounts: MountTable::new(roots.procfs.join("self/mountinfo")),
            phase: Phase::Idle,
            missing: Inodes::new(),
            early: BTreeSet::new(),
            output: Output::default(),
            next_look: None,
            notices: Vec::new(),
            told: BTreeSet::new(),
            losses: 0,
        }
    }

    /// Takes the files that events of `linux.ftrace` of the same session have named since the last call.
    pub(crate) fn on_files_seen(
        &mut self,
        files: &BTreeSet<FileId>,
        now: BootTime,
        sink: &mut dyn PacketSink,
    ) {
        if files.is_empty() {
            return;
        }
        if self.known.are_static_files_read() {
            self.resolve(files, now, sink);
            return;
        }
        let room = MOST_WAITING.saturating_sub(self.early.len());
        self.early.extend(files.iter().take(room));
        if files.len() > room {
            self.tell_of_full_list();
        }
        self.next_look.get_or_insert(next_multiple(now, LOOK_PERIOD));
    }

    fn resolve(&mut self, files: &BTreeSet<FileId>, now: BootTime, sink: &mut dyn PacketSink) {
        let losses = sink.losses();
        if std::mem::replace(&mut self.losses, losses) < losses {
            self.output.forget();
        }
        let mut files = files.iter().peekable();
        while let Some(first) = files.next() {
            let device = first.device;
            self.know_mounts_of(device, now);
            let mut unknown = BTreeSet::new();
            let mut cached = Vec::new();
            let mut file = Some(first);
            while let Some(&id) = file {
                if let Some(found) = self.known.static_file(id) {
                    self.output.add(id, found, self.mounts.mounts(), sink);
                } else if let Some(found) = self.known.cached(id) {
                    cached.push((id, found));
                } else {
                    unknown.insert(id.inode);
                }
                file = files.next_if(|id| id.device == device);
            }
            for (id, found) in &cached {
                self.output.add(*id, found, self.mounts.mounts(), sink);
            }
            if !unknown.is_empty() && self.config.may_scan(device, self.mounts.mounts()) {
                self.look_for(device, unknown, now);
            }
        }
    }

    fn look_for(&mut self, device: u64, mut inodes: BTreeSet<u64>, now: BootTime) {
        let waiting: usize = self.missing.values().map(BTreeSet::len).sum();
        let room = MOST_WAITING.saturating_sub(waiting);
        if inodes.len() > room {
            inodes = inodes.into_iter().take(room).collect();
            self.tell_of_full_list();
        }
        if let Phase::Scanning(scan) = &self.phase {
            scan.look_also_for(device, &inodes);
        }
        self.missing.entry(device).or_default().append(&mut inodes);
        if matches!(self.phase, Phase::Idle) {
            self.plan_scan(now);
        }
    }

    fn plan_scan(&mut self, now: BootTime) {
        self.phase = match self.missing.is_empty() {
            true => Phase::Idle,
            false => Phase::Planned(now.saturating_add(self.config.delay.as_nanos() as u64)),
        };
    }

    fn start_scan(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let wanted = std::mem::take(&mut self.missing);
        let mut roots = Vec::new();
        for &device in wanted.keys() {
            self.know_mounts_of(device, now);
            self.config.add_roots(device, self.mounts.mounts(), &mut roots);
        }
        let pace = Pace {
            batch: self.config.batch,
            rest: self.config.interval,
        };
        match Scan::start(roots, wanted.clone(), pace) {
            Ok(scan) => {
                self.phase = Phase::Scanning(scan);
                self.next_look = Some(next_multiple(now, LOOK_PERIOD));
            }
            Err(why) => {
                self.tell("thread", Notice::NoScan { why });
                self.end_scan(wanted, now, sink);
            }
        }
    }

    /// Writes the files that other threads have found since the last look.
    fn look(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if !self.early.is_empty() && self.known.are_static_files_read() {
            if self.known.are_static_files_cut_off() {
                self.tell("static", Notice::StaticFilesCutOff);
            }
            let early = std::mem::take(&mut self.early);
            self.resolve(&early, now, sink);
        }
        self.take_found(now, sink);
    }

    /// Writes the files that the scan has found until now.
    fn take_found(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let Phase::Scanning(scan) = &self.phase else {
            return;
        };
        let (found, ending) = scan.take();
        for found in found {
            if let Some(missing) = self.missing.get_mut(&found.id.device) {
                missing.remove(&found.id.inode);
            }
            let file = self.known.found(found.id, found.kind, found.path);
            self.output.add(found.id, &file, self.mounts.mounts(), sink);
        }
        if let Some((Ending { left_out, gave_up }, not_found)) = ending {
            if left_out > 0 {
                self.tell("left out", Notice::DirectoriesLeftOut { left_out });
            }
            if gave_up {
                self.tell("gave up", Notice::ScanGaveUp);
            }
            self.end_scan(not_found, now, sink);
        }
    }

    fn end_scan(&mut self, not_found: Inodes, now: BootTime, sink: &mut dyn PacketSink) {
        self.output.finish(self.mounts.mounts(), sink);
        for &device in not_found.keys() {
            self.output.add_device(device, self.mounts.mounts(), sink);
        }
        self.missing.retain(|_, inodes| !inodes.is_empty());
        self.plan_scan(now);
    }

    fn know_mounts_of(&mut self, device: u64, now: BootTime) {
        if let Err(source) = self.mounts.look_for(device, now) {
            let path = self.mounts.path().to_owned();
            let field = NAME;
            self.tell("mounts", Notice::Unreadable { field, path, source });
        }
    }

    fn tell_of_full_list(&mut self) {
        self.tell("full", Notice::TooManyInodes { most: MOST_WAITING });
    }

    fn tell(&mut self, kind: &'static str, notice: Notice) {
        if self.told.insert(kind) {
            self.notices.push(notice);
        }
    }
}

impl Probe for InodeFileMap {
    /// Nothing is written before `linux.ftrace` has seen something.
    fn start(&mut self, _now: BootTime, sink: &mut dyn PacketSink) {
        self.losses = sink.losses();
    }

    fn next_deadline(&self) -> Option<BootTime> {
        let planned = match self.phase {
            Phase::Planned(due) => Some(due),
            Phase::Idle | Phase::Scanning(_) => None,
        };
        [planned, self.next_look].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if self.next_look.is_some_and(|due| due <= now) {
            self.next_look = None;
            self.look(now, sink);
            if !self.early.is_empty() || matches!(self.phase, Phase::Scanning(_)) {
                self.next_look = Some(next_multiple(now, LOOK_PERIOD));
            }
        }
        if matches!(self.phase, Phase::Planned(due) if due <= now) {
            self.start_scan(now, sink);
        }
    }

    fn flush(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.look(now, sink);
        self.output.finish(self.mounts.mounts(), sink);
    }

    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.flush(now, sink);
    }

    fn clear_incremental_state(&mut self) {
        self.output.forget();
    }

    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}
