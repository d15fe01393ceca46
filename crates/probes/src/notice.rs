//! What a data source tells the log of its daemon: where it does less than, or other than, its config says.
//!
//! Data sources collect these; the producer takes them after a call and logs them. None is an error: they record the rest.

use std::path::PathBuf;

/// Something that a data source could not do as asked, for the daemon's log. It records the rest.
#[derive(Debug, thiserror::Error)]
pub enum Notice {
    /// A period below the shortest that is allowed was raised to it.
    #[error("{field}: {asked_ms} is less than the minimum of {used_ms} ms; sampling every {used_ms} ms")]
    PeriodRaised {
        /// The field of the config.
        field: &'static str,
        /// What the config says, in milliseconds.
        asked_ms: u32,
        /// What is used instead, in milliseconds.
        used_ms: u32,
    },
    /// A file of the kernel cannot be read, so what it says is not recorded.
    #[error("{field}: cannot read {}: {source}; this kernel may lack it, or its reader lacks the right to it", path.display())]
    Unreadable {
        /// The field of the config that asked for it; the data source's name if it is read without being asked for.
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
        /// Where batteries would be.
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
}
