//! Messages from a data source to its daemon's log: the data source does less than its config says, or something else.
//!
//! Data sources collect notices. The producer takes them after a call and logs them. None is an error: the data source
//! records the rest.

use std::path::PathBuf;

/// Something that a data source could not do as asked, for the daemon's log. It records the rest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Notice {
    /// A period below the shortest that is allowed was raised to it.
    #[error("{field}: {asked_ms} is less than the minimum of {used_ms} ms; sampling every {used_ms} ms")]
    PeriodRaised {
        /// The field of the config.
        field: &'static str,
        /// The config's value, in milliseconds.
        asked_ms: u32,
        /// The value in its place, in milliseconds.
        used_ms: u32,
    },
    /// The config of `linux.sys_stats` cannot be carried out.
    #[error("{why}; nothing is sampled")]
    NothingSampled {
        /// The reason.
        why: String,
    },
    /// A file of the kernel cannot be read, so its content is not recorded.
    #[error("{field}: cannot read {}: {source}; this kernel may lack it, or its reader lacks the right to it", path.display())]
    Unreadable {
        /// The field of the config that asked for the file, or the data source's name if it reads the file in any case.
        field: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The session was shorter than the scan of all processes.
    #[error(
        "linux.process_stats: the session ended before {processes} processes were described; record for longer, or set scan_all_processes_on_start to false"
    )]
    ScanCutShort {
        /// Processes that are not described.
        processes: usize,
    },
    /// The machine has no battery.
    #[error("linux.sysfs_power: there is no battery in {}; nothing is recorded", dir.display())]
    NoBattery {
        /// The directory that would hold batteries.
        dir: PathBuf,
    },
    /// The machine has more batteries than an instance samples.
    #[error("linux.sysfs_power: this machine has {found} batteries; the first {used} are recorded")]
    TooManyBatteries {
        /// How many there are.
        found: usize,
        /// How many are sampled.
        used: usize,
    },
    /// The system refused the thread that would read the batteries.
    #[error("linux.sysfs_power: cannot read batteries: {why}; nothing is recorded")]
    NoBatteryReader {
        /// The reason.
        why: String,
    },
    /// Another session of this process records the data source, which only one at a time can.
    #[error("{name}: another session records it already, and only one at a time can")]
    OneSessionAtATime {
        /// The data source.
        name: &'static str,
    },
    /// A scan for inodes could not begin.
    #[error("linux.inode_file_map: cannot scan for inodes: {why}; they have no path in the trace")]
    NoScan {
        /// The reason.
        why: String,
    },
    /// A scan met more directories than it can remember.
    #[error(
        "linux.inode_file_map: {left_out} directories were not looked into because there were too many, and files in them have no path in the trace; name the directories that matter in mount_point_mapping"
    )]
    DirectoriesLeftOut {
        /// How many.
        left_out: u64,
    },
    /// A scan ended before it had seen everything.
    #[error(
        "linux.inode_file_map: gave up a scan that found no end, and inodes that it looked for have no path in the trace; name the directories that matter in mount_point_mapping"
    )]
    ScanGaveUp,
    /// More inodes were seen than a scan can look for at once.
    #[error(
        "linux.inode_file_map: more than {most} inodes wait for their paths; those beyond get one only if they are seen again"
    )]
    TooManyInodes {
        /// How many may wait.
        most: usize,
    },
    /// There are more static files than are kept.
    #[error("linux.inode_file_map: /system has too many files to know them all; scans look for the others")]
    StaticFilesCutOff,
}
