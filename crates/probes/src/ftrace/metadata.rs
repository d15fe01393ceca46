//! The facts that a session gathers while its events are written: threads, renamed threads, kernel addresses that need a symbol, opened
//! file descriptors, and files that events are about.
//!
//! The event encoders fill it. The data source empties it after each round over all CPUs, when it has passed the facts on. Adding a
//! thread must cost next to nothing, because it happens once per event.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::own_threads;

/// The kernel's thread ids are smaller than this (`PID_MAX_LIMIT`).
const THREAD_ID_LIMIT: usize = 4 << 20;

/// Files that are noted between two [`Metadata::clear`]s at most.
const MOST_FILES: usize = 100_000;

/// A file as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId {
    /// The number of the file's device as `stat` shows it; zero if the event has none.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
}

/// The number of [`FilesWanted`] that exist. While it is zero, an event with an inode costs one load more.
static FILES_WANTED: AtomicUsize = AtomicUsize::new(0);

/// Has files noted as long as it exists.
#[derive(Debug)]
pub(crate) struct FilesWanted(());

impl FilesWanted {
    pub(crate) fn new() -> Self {
        FILES_WANTED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for FilesWanted {
    fn drop(&mut self) {
        FILES_WANTED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub struct Metadata {
    event: CurrentEvent,
    own_process: OwnProcess,
    files: HashSet<FileId, BuildHasherDefault<AddressHasher>>,
    threads: ThreadSet,
    renamed: BTreeSet<i32>,
    opened_fds: BTreeSet<(i32, u64)>,
    addresses: AddressTable,
}

impl Metadata {
    /// Threads seen since the last [`Metadata::clear`], each once, in the order of their first event. Thread 0 (the idle threads) is left
    /// out, because there is nothing to find out about it.
    pub(crate) fn threads(&self) -> &[i32] {
        &self.threads.listed
    }

    /// Threads with a new name: earlier descriptions of them are out of date.
    pub(crate) fn renamed_threads(&self) -> &BTreeSet<i32> {
        &self.renamed
    }

    /// Thread and file descriptor for each system call that opened one.
    pub(crate) fn opened_fds(&self) -> &BTreeSet<(i32, u64)> {
        &self.opened_fds
    }

    /// Files that events are about, except files that only this process touched. Upstream leaves these out because a search for names
    /// must not start the next search.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> {
        self.files.iter().copied()
    }

    /// Starts over. The indices of kernel addresses start over too: the next packet with symbols must (and will) say that older interned
    /// names are void.
    pub fn clear(&mut self) {
        self.threads.clear();
        self.renamed.clear();
        self.opened_fds.clear();
        self.files.clear();
        self.addresses.clear();
    }

    /// Begins an event that thread `tid` caused. All notes that follow belong to it.
    #[inline(always)]
    pub(super) fn begin_event(&mut self, tid: i32) {
        self.event = CurrentEvent { tid, device: 0 };
    }

    /// Sets the device of the event's inodes that follow.
    #[inline]
    pub(super) fn note_device(&mut self, device: u64) {
        self.event.device = device;
    }

    #[inline]
    pub(super) fn note_inode(&mut self, inode: u64) {
        if FILES_WANTED.load(Ordering::Relaxed) == 0 {
            return;
        }
        let CurrentEvent { tid, device } = self.event;
        if self.files.len() < MOST_FILES && tid != self.own_process.0 && !own_threads::has_place(tid) {
            self.files.insert(FileId { device, inode });
        }
    }

    #[inline(always)]
    pub(super) fn add_thread(&mut self, tid: i32) {
        self.threads.add(tid);
    }

    pub(super) fn add_renamed(&mut self, tid: i32) {
        self.renamed.insert(tid);
    }

    pub(super) fn add_opened_fd(&mut self, tid: i32, fd: u64) {
        self.opened_fds.insert((tid, fd));
    }

    /// Replaces a kernel address by a number, which does not reveal where the kernel lies in memory. The trace gets only this number and,
    /// if the session wants symbols, the symbol's name. Counts from 1.
    #[inline]
    pub(super) fn intern_address(&mut self, address: u64) -> u64 {
        self.addresses.intern(address)
    }

    /// Interned addresses whose symbols no packet has named, with their numbers.
    pub(super) fn unnamed_addresses(&self) -> impl Iterator<Item = (u64, u64)> {
        let named = self.addresses.named;
        (named as u64 + 1..).zip(self.addresses.in_order[named..].iter().copied())
    }

    /// Whether no symbol was written since the last [`Metadata::clear`].
    pub(super) fn nothing_named_yet(&self) -> bool {
        self.addresses.named == 0
    }

    /// Notes that a packet has named the symbols of all addresses that have one.
    pub(super) fn mark_named(&mut self) {
        self.addresses.named = self.addresses.in_order.len();
    }
}

/// The event being written.
#[derive(Debug, Default)]
struct CurrentEvent {
    tid: i32,
    device: u64,
}

/// The id of this process and of its first thread.
#[derive(Debug)]
struct OwnProcess(i32);

impl Default for OwnProcess {
    fn default() -> Self {
        Self(rustix::process::getpid().as_raw_nonzero().get())
    }
}

/// A set of thread ids with one bit for each, and a list to visit and clear it by.
#[derive(Debug)]
struct ThreadSet {
    /// Grows with the highest thread id seen, to 512 KiB at most. The bit of thread 0 is always set, although the thread is never listed:
    /// half of all scheduler events name it.
    bits: Vec<u64>,
    listed: Vec<i32>,
}

impl Default for ThreadSet {
    fn default() -> Self {
        Self {
            bits: vec![1],
            listed: Vec::new(),
        }
    }
}

impl ThreadSet {
    #[inline(always)]
    fn add(&mut self, tid: i32) {
        // Negative numbers become huge and miss every word.
        let (word, bit) = (tid as usize / 64, 1 << (tid as u64 % 64));
        match self.bits.get(word) {
            Some(bits) if bits & bit != 0 => {}
            _ => self.add_new(tid),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_new(&mut self, tid: i32) {
        let Some(index) = usize::try_from(tid)
            .ok()
            .filter(|tid| (0..THREAD_ID_LIMIT).contains(tid))
        else {
            return;
        };
        if self.bits.len() <= index / 64 {
            self.bits.resize((index / 64 + 1).next_power_of_two(), 0);
        }
        if let Some(bits) = self.bits.get_mut(index / 64) {
            *bits |= 1 << (index % 64);
            self.listed.push(tid);
        }
    }

    fn clear(&mut self) {
        for tid in self.listed.drain(..) {
            if let Some(bits) = self.bits.get_mut(tid as usize / 64) {
                *bits = 0;
            }
        }
        if let Some(bits) = self.bits.first_mut() {
            *bits = 1;
        }
    }
}

#[derive(Debug, Default)]
struct AddressTable {
    indices: HashMap<u64, u64, BuildHasherDefault<AddressHasher>>,
    in_order: Vec<u64>,
    /// The number of entries of `in_order` that a packet could name.
    named: usize,
}

impl AddressTable {
    #[inline]
    fn intern(&mut self, address: u64) -> u64 {
        *self.indices.entry(address).or_insert_with(|| {
            self.in_order.push(address);
            self.in_order.len() as u64
        })
    }

    fn clear(&mut self) {
        self.indices.clear();
        self.in_order.clear();
        self.named = 0;
    }
}

/// Spreads kernel addresses and file numbers over a hash table. The keys come from the kernel, which does not try to make them collide.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing; the table takes its bits from both ends, so the upper half is folded down.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn threads_are_listed_once_in_order_of_appearance(rounds in prop::collection::vec(prop::collection::vec(any::<i32>().prop_map(|tid| tid >> 9), 0..40), 1..4)) {
            let mut metadata = Metadata::default();
            for round in rounds {
                let mut expected = Vec::new();
                for tid in round {
                    metadata.add_thread(tid);
                    if (1..THREAD_ID_LIMIT as i32).contains(&tid) && !expected.contains(&tid) {
                        expected.push(tid);
                    }
                }
                prop_assert_eq!(metadata.threads(), &expected);
                metadata.clear();
            }
        }
    }

    #[test]
    fn thread_ids_that_cannot_be_are_ignored() {
        let mut metadata = Metadata::default();
        for tid in [0, -1, i32::MIN, i32::MAX, THREAD_ID_LIMIT as i32] {
            metadata.add_thread(tid);
        }
        assert!(metadata.threads().is_empty());
        assert!(
            metadata.threads.bits.len() <= 1,
            "a bogus id must not cost memory"
        );
    }

    #[test]
    fn files_are_noted_once_with_the_device_of_their_event() {
        let _wanted = FilesWanted::new();
        let mut metadata = Metadata::default();
        metadata.begin_event(1);
        metadata.note_device(5);
        metadata.note_inode(10);
        metadata.note_inode(11);
        metadata.begin_event(2);
        metadata.note_inode(10);
        metadata.note_device(5);
        metadata.note_inode(10);
        let files = |metadata: &Metadata| -> BTreeSet<(u64, u64)> {
            metadata.files().map(|file| (file.device, file.inode)).collect()
        };
        assert_eq!(files(&metadata), BTreeSet::from([(0, 10), (5, 10), (5, 11)]));
        metadata.clear();
        assert_eq!(files(&metadata), BTreeSet::new());
    }

    #[test]
    fn files_that_this_process_touches_are_not_noted() {
        let _wanted = FilesWanted::new();
        let scan = std::thread::spawn(|| {
            let place = own_threads::Place::take().unwrap();
            place.occupy();
            let mut metadata = Metadata::default();
            let own = [
                rustix::thread::gettid().as_raw_nonzero().get(),
                OwnProcess::default().0,
            ];
            for tid in own {
                metadata.begin_event(tid);
                metadata.note_inode(10);
            }
            metadata.files().count()
        });
        assert_eq!(scan.join().unwrap(), 0);
    }

    #[test]
    fn an_address_keeps_its_number_until_cleared() {
        let mut metadata = Metadata::default();
        let numbers: Vec<u64> = [0xffff_8000_0000_1000, 7, 0xffff_8000_0000_1000, 8]
            .map(|a| metadata.intern_address(a))
            .into();
        assert_eq!(numbers, [1, 2, 1, 3]);
        assert_eq!(metadata.unnamed_addresses().count(), 3);
        metadata.mark_named();
        metadata.intern_address(9);
        assert_eq!(metadata.unnamed_addresses().collect::<Vec<_>>(), [(4, 9)]);
        metadata.clear();
        assert_eq!(metadata.intern_address(9), 1);
        assert!(metadata.nothing_named_yet());
    }
}
