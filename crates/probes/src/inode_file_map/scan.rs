//! A scan of directories for certain inodes, on a thread of its own, because a file system may take any time to answer.
//!
//! The thread looks at a batch of entries, rests, and goes on until it has found all inodes or seen all directories. The instance takes the
//! found files now and then. After many finds the thread waits for that. The thread holds no lock while it asks a file system. Dropping the
//! [`Scan`] ends the thread as soon as the file system lets it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferretto_proto::messages::inode_file_map::entry::Type;

use super::walk::{Step, Walk};
use crate::ftrace::metadata::FileId;
use crate::own_threads;

/// Entries that a scan looks at, at most. A file system can be made of any number of them.
const MOST_ENTRIES: u64 = 20_000_000;

/// Bytes of found paths at which the thread waits until they are taken. One path more may follow.
const ENOUGH_FOUND: usize = 1 << 20;

/// Inodes by device.
pub(super) type Inodes = BTreeMap<u64, BTreeSet<u64>>;

/// The amount that the thread looks at without a rest, and the length of the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) batch: u32,
    pub(super) rest: Duration,
}

/// A file that the scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: FileId,
    pub(super) kind: Type,
    pub(super) path: Vec<u8>,
}

/// How a scan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    /// Directories that the scan skipped because there were too many.
    pub(super) left_out: u64,
    /// Whether the scan gave up after [`MOST_ENTRIES`].
    pub(super) gave_up: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Scan(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals that the scan was cancelled, or that the found files were taken.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: Inodes,
    found: Vec<Found>,
    /// Bytes of the paths in `found`.
    found_bytes: usize,
    is_cancelled: bool,
    ending: Option<Ending>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scan {
    /// Starts looking for `wanted` below `roots`.
    ///
    /// # Errors
    /// If the system refuses another thread: a clause that says why.
    pub(super) fn start(roots: Vec<Vec<u8>>, wanted: Inodes, pace: Pace) -> Result<Self, String> {
        let shared = Arc::new(Shared::default());
        shared.lock().wanted = wanted;
        let scan = Self(shared.clone());
        own_threads::spawn("inode-scan", move || run(&shared, Walk::new(roots), pace))?;
        Ok(scan)
    }

    /// Adds inodes to the search if it still looks for others of the same device. An inode that was found and not taken yet is not looked for again, as
    /// that could find another name of it.
    pub(super) fn look_also_for(&self, device: u64, inodes: &BTreeSet<u64>) {
        let mut state = self.0.lock();
        let State { wanted, found, .. } = &mut *state;
        if let Some(wanted) = wanted.get_mut(&device) {
            let found: BTreeSet<u64> = found
                .iter()
                .filter(|found| found.id.device == device)
                .map(|found| found.id.inode)
                .collect();
            wanted.extend(inodes.difference(&found));
        }
    }

    /// The files found since the last call, in the order in which they were found. If the scan has ended, also how it ended and which inodes
    /// it did not find.
    pub(super) fn take(&self) -> (Vec<Found>, Option<(Ending, Inodes)>) {
        let mut state = self.0.lock();
        let found = std::mem::take(&mut state.found);
        state.found_bytes = 0;
        self.0.changed.notify_one();
        let ending = state.ending;
        let ending = ending.map(|ending| (ending, std::mem::take(&mut state.wanted)));
        (found, ending)
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.0.lock().is_cancelled = true;
        self.0.changed.notify_one();
    }
}

/// The body of a scan's thread.
fn run(shared: &Shared, mut walk: Walk, pace: Pace) {
    let mut in_batch = 0;
    let mut in_all = 0;
    loop {
        let step = walk.step();
        let mut state = shared.lock();
        if state.is_cancelled {
            return;
        }
        match step {
            Step::Entry { id, kind, path } if state.is_wanted(id) => {
                state.found_bytes += path.len();
                state.found.push(Found { id, kind, path });
                let is_full = |state: &mut State| state.found_bytes >= ENOUGH_FOUND && !state.is_cancelled;
                let taken = shared.changed.wait_while(state, is_full);
                state = taken.unwrap_or_else(PoisonError::into_inner);
                if state.is_cancelled {
                    return;
                }
            }
            Step::Entry { .. } | Step::Nothing => {}
            Step::Done => {
                state.ending = Some(Ending {
                    left_out: walk.directories_left_out(),
                    gave_up: false,
                });
                return;
            }
        }
        in_batch += 1;
        in_all += 1;
        if state.wanted.is_empty() || in_all == MOST_ENTRIES {
            state.ending = Some(Ending {
                left_out: 0,
                gave_up: !state.wanted.is_empty(),
            });
            return;
        }
        if in_batch == pace.batch {
            in_batch = 0;
            let rested = shared
                .changed
                .wait_timeout_while(state, pace.rest, |state| !state.is_cancelled);
            drop(rested.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl State {
    /// Whether the scan looks for the file. Removes the file from the wanted ones.
    fn is_wanted(&mut self, id: FileId) -> bool {
        let Some(inodes) = self.wanted.get_mut(&id.device) else {
            return false;
        };
        let is_wanted = inodes.remove(&id.inode);
        if inodes.is_empty() {
            self.wanted.remove(&id.device);
        }
        is_wanted
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::test_files::TempDir;

    #[test]
    fn a_scan_whose_results_nobody_takes_waits() {
        const FILES: usize = 500;
        let dir = TempDir::new("waits");
        // Paths are about as long as the kernel allows.
        let deep: String = (0..14).map(|_| format!("{}/", "d".repeat(250))).collect();
        let mut wanted = Inodes::new();
        for file in 0..FILES {
            let path = format!("{deep}{file}");
            dir.write(&path, "");
            let metadata = std::fs::metadata(dir.path().join(path)).unwrap();
            wanted.entry(metadata.dev()).or_default().insert(metadata.ino());
        }
        let root = dir.path().to_str().unwrap().as_bytes().to_vec();
        let pace = Pace {
            batch: u32::MAX,
            rest: Duration::ZERO,
        };
        let scan = Scan::start(vec![root], wanted, pace).unwrap();
        while scan.0.lock().found_bytes < ENOUGH_FOUND {
            std::thread::yield_now();
        }
        // The thread gets many chances to continue.
        for _ in 0..1000 {
            assert!(scan.0.lock().found_bytes < ENOUGH_FOUND + 4096);
            std::thread::yield_now();
        }
        let mut found = 0;
        loop {
            let (files, ending) = scan.take();
            found += files.len();
            if let Some((_, missing)) = ending {
                assert!(missing.is_empty());
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(found, FILES);
    }

    #[test]
    fn what_was_found_is_not_looked_for_again_before_it_is_taken() {
        let device = 7;
        let shared = Arc::new(Shared::default());
        shared.lock().wanted = Inodes::from([(device, BTreeSet::from([2]))]);
        shared.lock().found.push(Found {
            id: FileId { device, inode: 1 },
            kind: Type::FILE,
            path: b"/a".to_vec(),
        });
        let scan = Scan(shared);
        scan.look_also_for(device, &BTreeSet::from([1, 3]));
        assert_eq!(scan.0.lock().wanted[&device], BTreeSet::from([2, 3]));
        scan.take();
        scan.look_also_for(device, &BTreeSet::from([1]));
        assert_eq!(scan.0.lock().wanted[&device], BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn a_scan_that_waits_ends_when_nobody_wants_it() {
        let shared = Arc::new(Shared::default());
        shared.lock().found_bytes = ENOUGH_FOUND;
        let dir = TempDir::new("unwanted");
        let metadata = std::fs::metadata(dir.path()).unwrap();
        shared.lock().wanted = Inodes::from([(metadata.dev(), BTreeSet::from([metadata.ino()]))]);
        let scan = Scan(shared.clone());
        let root = dir.path().to_str().unwrap().as_bytes().to_vec();
        let pace = Pace {
            batch: 1,
            rest: Duration::MAX,
        };
        let thread = std::thread::spawn(move || run(&shared, Walk::new(vec![root]), pace));
        drop(scan);
        thread.join().unwrap();
    }
}
