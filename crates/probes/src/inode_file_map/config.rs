//! The settings of an `InodeFileConfig`. Built once per instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferretto_proto::messages::InodeFileConfig;

use super::mounts::Mounts;

/// The pause that `scan_interval_ms` and `scan_delay_ms` mean if they are 0 or missing.
const DEFAULT_PAUSE_MS: u32 = 10_000;
/// The batch that `scan_batch_size` means if it is 0 or missing.
const DEFAULT_BATCH: u32 = 15_000;

/// Whether directories are scanned for unknown inodes (`do_not_scan`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanning {
    Allowed,
    Forbidden,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) scanning: Scanning,
    /// The pause before a scan.
    pub(super) delay: Duration,
    /// The pause between two batches of a scan.
    pub(super) interval: Duration,
    /// Entries of directories in a batch.
    pub(super) batch: u32,
    only: BTreeSet<Vec<u8>>,
    instead: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl Config {
    pub(super) fn new(config: &InodeFileConfig) -> Self {
        let pause = |ms: Option<u32>| {
            let ms = ms.filter(|&ms| ms > 0).unwrap_or(DEFAULT_PAUSE_MS);
            Duration::from_millis(ms.into())
        };
        let bytes = |texts: &[String]| -> Vec<Vec<u8>> {
            texts.iter().map(|text| text.clone().into_bytes()).collect()
        };
        let mut instead = BTreeMap::new();
        for entry in &config.mount_point_mapping {
            let mount_point = entry.mountpoint.clone().unwrap_or_default().into_bytes();
            // If a mount point has several entries, upstream uses the first.
            instead
                .entry(mount_point)
                .or_insert_with(|| bytes(&entry.scan_roots));
        }
        Self {
            scanning: match config.do_not_scan {
                Some(true) => Scanning::Forbidden,
                Some(false) | None => Scanning::Allowed,
            },
            delay: pause(config.scan_delay_ms),
            interval: pause(config.scan_interval_ms),
            batch: config
                .scan_batch_size
                .filter(|&size| size > 0)
                .unwrap_or(DEFAULT_BATCH),
            only: bytes(&config.scan_mount_points).into_iter().collect(),
            instead,
        }
    }

    /// Whether to scan for inodes of a device: only if the config allows all of the device's mount points.
    pub(super) fn may_scan(&self, device: u64, mounts: &Mounts) -> bool {
        self.scanning == Scanning::Allowed
            && (self.only.is_empty() || mounts.points_of(device).all(|point| self.only.contains(point)))
    }

    /// Adds the directories in which to look for inodes of a device.
    pub(super) fn add_roots(&self, device: u64, mounts: &Mounts, roots: &mut Vec<Vec<u8>>) {
        let instead = mounts.points_of(device).find_map(|point| self.instead.get(point));
        match instead {
            Some(paths) => roots.extend_from_slice(paths),
            None => roots.extend(mounts.points_of(device).map(<[u8]>::to_vec)),
        }
    }
}
