//! The sealed files, and the room for more.
//!
//! [`Recorder`](crate::Recorder) asks it before each seal. The files on the shelf and the room reserved for files that are being written never
//! exceed the quota together, nor do they with the rings of crash-safe sessions and the remains of such rings. A file that should be deleted counts
//! until it is known to be gone. Uploaded files make room before those that exist only here; within each kind, the oldest go first.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::{FileName, SessionName};
use crate::recorder::SealId;

/// The answer to a request for room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is reserved.
    Reserved,
    /// There will be room once this file is gone.
    After(FileName),
    /// There may be room once the files that are being written or deleted are done.
    Later,
    /// The disk is full of the files of others.
    DiskIsFull,
    /// There is none: the quota is smaller.
    Never,
}

/// The sealed files.
#[derive(Debug)]
pub struct Shelf {
    quota: u64,
    /// The sizes of the files.
    files: BTreeMap<FileName, u64>,
    /// The files that are being deleted; all are in `files`.
    leaving: BTreeSet<FileName>,
    /// The files that could not be deleted; all are in `files`.
    stuck: BTreeSet<FileName>,
    /// Files of which there is a copy elsewhere. Some may be gone here.
    uploaded: BTreeSet<FileName>,
    /// The room of the files that are being written.
    reserved: BTreeMap<SealId, u64>,
    /// The room of rings on the disk.
    rings: BTreeMap<SessionName, u64>,
    /// The remains of the rings of earlier runs, until they have been sealed.
    leftovers: BTreeMap<SealId, u64>,
}

impl Shelf {
    pub(crate) fn new(quota: u64, files: impl IntoIterator<Item = (FileName, u64)>) -> Shelf {
        Shelf {
            quota,
            files: files.into_iter().collect(),
            leaving: BTreeSet::new(),
            stuck: BTreeSet::new(),
            uploaded: BTreeSet::new(),
            reserved: BTreeMap::new(),
            rings: BTreeMap::new(),
            leftovers: BTreeMap::new(),
        }
    }

    pub(crate) fn set_quota(&mut self, quota: u64) {
        self.quota = quota;
    }

    pub(crate) fn set_uploaded(&mut self, uploaded: BTreeSet<FileName>) {
        self.uploaded = uploaded;
    }

    /// Returns the size of all files.
    pub fn used(&self) -> u64 {
        self.files.values().sum()
    }

    /// Returns the room that is reserved for files that are being written.
    pub fn reserved(&self) -> u64 {
        self.reserved.values().sum()
    }

    /// Returns the files with their sizes, the oldest first.
    pub fn files(&self) -> impl Iterator<Item = (&FileName, u64)> {
        self.files.iter().map(|(name, size)| (name, *size))
    }

    /// Returns the room of rings, and of the remains of some.
    fn of_rings(&self) -> u64 {
        self.rings.values().chain(self.leftovers.values()).sum()
    }

    /// Sets the room of a session's ring.
    pub(crate) fn set_ring(&mut self, session: &SessionName, bytes: u64) {
        match bytes {
            0 => self.rings.remove(session),
            bytes => self.rings.insert(session.clone(), bytes),
        };
    }

    /// Counts what is left of a ring, until it is sealed. Returns whether there is room for it, and beside all of them for one file made of one.
    pub(crate) fn add_leftover(&mut self, id: SealId, bytes: u64) -> bool {
        let largest = self.leftovers.values().copied().max().unwrap_or(0).max(bytes);
        let has_room = self.of_rings() + bytes + largest.max(self.reserved()) <= self.quota;
        if has_room {
            self.leftovers.insert(id, bytes);
        }
        has_room
    }

    /// Whether what is left of a ring, and the file made of it, have room beside all that is there, so that no file is deleted.
    pub(crate) fn takes_leftover(&self, bytes: u64) -> bool {
        // Each leftover that waits becomes a file, too.
        let waiting: u64 = self.leftovers.values().sum();
        self.used() + self.reserved() + self.of_rings() + waiting + 2 * bytes <= self.quota
    }

    /// Stops counting what was left of a ring: it is gone.
    pub(crate) fn end_leftover(&mut self, id: SealId) {
        self.leftovers.remove(&id);
    }

    /// Whether a file of this name is there.
    pub(crate) fn has(&self, name: &FileName) -> bool {
        self.files.contains_key(name)
    }

    /// Reserves `bytes` for a file, or says what has to happen before. `free` is how much the disk can take besides what is reserved.
    pub(crate) fn reserve(&mut self, id: SealId, bytes: u64, free: u64) -> Room {
        if bytes + self.rings.values().sum::<u64>() > self.quota {
            return Room::Never;
        }
        let after = self.used() + self.reserved() + self.of_rings() + bytes;
        if after <= self.quota && bytes <= free.saturating_sub(self.reserved()) {
            self.reserved.insert(id, bytes);
            return Room::Reserved;
        }
        if !self.leaving.is_empty() {
            return Room::Later;
        }
        // Deleting is of no use if it could not make enough room.
        let deletable: u64 = self.deletable().map(|(_, size)| size).sum();
        let in_way = after.saturating_sub(self.quota);
        let lacking = (bytes + self.reserved()).saturating_sub(free);
        match self.most_dispensable() {
            Some(name) if deletable >= in_way.max(lacking) => Room::After(name.clone()),
            _ if !self.reserved.is_empty() => Room::Later,
            _ if deletable >= in_way => Room::DiskIsFull,
            _ => Room::Never,
        }
    }

    fn deletable(&self) -> impl Iterator<Item = (&FileName, u64)> {
        self.files().filter(|(name, _)| !self.stuck.contains(*name))
    }

    /// Whether the files exceed the quota. No ring may begin then, until the leftovers of others have been sealed.
    pub(crate) fn is_over(&self) -> bool {
        self.used() + self.reserved() + self.of_rings() > self.quota
    }

    /// Files that can be deleted and are not being deleted yet, the oldest first.
    fn candidates(&self) -> impl Iterator<Item = &FileName> {
        self.deletable()
            .map(|(name, _)| name)
            .filter(|name| !self.leaving.contains(*name))
    }

    /// Returns the file that makes room next.
    fn most_dispensable(&self) -> Option<&FileName> {
        let mut uploaded = self.candidates().filter(|name| self.uploaded.contains(*name));
        uploaded.next().or_else(|| self.candidates().next())
    }

    /// Returns a file that is too many for the quota, or else the oldest if it is from before this time.
    pub(crate) fn surplus(&self, before: i64) -> Option<FileName> {
        let leaving: u64 = self.leaving.iter().filter_map(|name| self.files.get(name)).sum();
        let is_over = self.used() - leaving + self.reserved() + self.of_rings() > self.quota;
        let chosen = match is_over {
            true => self.most_dispensable(),
            false => self.candidates().next().filter(|oldest| oldest.time < before),
        };
        chosen.cloned()
    }

    /// Returns the time of the oldest file that can be deleted.
    pub(crate) fn oldest(&self) -> Option<i64> {
        self.candidates().next().map(|name| name.time)
    }

    /// Notes that a file is being deleted.
    pub(crate) fn leave(&mut self, name: &FileName) {
        self.leaving.insert(name.clone());
    }

    /// Notes that a file is gone, or that it cannot be deleted.
    pub(crate) fn left(&mut self, name: &FileName, is_gone: bool) {
        self.leaving.remove(name);
        if is_gone {
            self.files.remove(name);
            self.stuck.remove(name);
        } else if self.files.contains_key(name) {
            self.stuck.insert(name.clone());
        }
    }

    /// Lets files be tried again that could not be deleted.
    pub(crate) fn forgive(&mut self) {
        self.stuck.clear();
    }

    /// Turns a reservation into a file of this size, or into nothing.
    pub(crate) fn written(&mut self, id: SealId, file: Option<(FileName, u64)>) {
        self.reserved.remove(&id);
        self.files.extend(file);
    }
}
