//! The chunk that a trace writer is filling. Between two packets the arbiter can take it back.
//!
//! Otherwise a thread that writes no more would hold a chunk for ever, and with more threads than chunks no memory would be left. The writer has a
//! [`Held`], the arbiter the [`Holder`] in it. [`Turns`] decides whose turn it is, without a lock: a packet costs the writer two stores and a load.
//! Only a writer whose chunk is wanted at that moment takes a lock, to wait until the arbiter is done.
#![allow(unsafe_code)]

use super::OpenChunk;
use super::turns::Turns;
use crate::arbiter::{BufferId, barrier};
use ferretto_smb::WriteChunk;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// The state of a chunk that a writer and the arbiter share. On cache lines of its own, because the writer stores into it with each packet.
#[repr(align(128))]
pub(crate) struct Holder {
    turns: Turns,
    chunk: UnsafeCell<Option<OpenChunk>>,
    /// Held by a thread that may act as the arbiter in `turns`, and by a writer that has to exclude such a thread.
    arbiter: Mutex<()>,
    /// Where the writer's packets go.
    target: BufferId,
    /// Bytes of the chunk, its header included. Zero since it was taken back.
    size: AtomicU32,
    /// Packets in the chunk when the arbiter last looked.
    seen: AtomicU32,
    /// Bytes of packets in the chunks that the arbiter took back, since the writer last asked.
    taken_back: AtomicU64,
}

// SAFETY: only the side whose turn it is touches the cell. The one writer does so in turns that it begins, or while it has the lock; the arbiter in
// turns that it was granted while it has the lock. A turn acquires the writes that the last one released, and so does the lock. The chunk itself may
// be sent.
unsafe impl Sync for Holder {}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("turns", &self.turns)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// The state of a writer's chunk, as the arbiter sees it from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// There is no chunk, or the writer is using it.
    Nothing,
    /// A chunk that was written to since the arbiter last looked.
    Recent,
    /// A chunk that was not.
    Idle,
}

/// The arbiter's side.
impl Holder {
    /// Checks whether the writer has written since the last call.
    pub(crate) fn look(&self) -> Seen {
        match self.turns.packets() {
            None | Some(0) => Seen::Nothing,
            Some(_) if self.size() == 0 => Seen::Nothing,
            Some(packets) if self.seen.swap(packets, Ordering::Relaxed) == packets => Seen::Idle,
            Some(_) => Seen::Recent,
        }
    }

    /// Bytes that the chunk takes up.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed) as usize
    }

    /// Passes `each` the chunks that these writers hold and are not using, ready to be completed, with their targets. A writer takes no other chunk
    /// before `each` has returned. Without a barrier there are no such chunks.
    pub(crate) fn take_back(holders: &[Arc<Holder>], mut each: impl FnMut(WriteChunk, BufferId)) {
        let wanted: Vec<_> = holders
            .iter()
            .filter_map(|holder| match holder.arbiter.try_lock() {
                Ok(lock) => Some((holder, lock)),
                Err(TryLockError::Poisoned(poisoned)) => Some((holder, poisoned.into_inner())),
                // The writer is about to write.
                Err(TryLockError::WouldBlock) => None,
            })
            .inspect(|(holder, _)| holder.turns.want())
            .collect();
        let passed = !wanted.is_empty() && barrier::heavy();
        for (holder, _lock) in wanted {
            if passed && holder.turns.is_granted() {
                // SAFETY: it is the arbiter's turn until `done`, and every other thread needs the lock to be the arbiter.
                let chunk = unsafe { (*holder.chunk.get()).take() };
                if let Some(mut open) = chunk {
                    open.close();
                    holder.size.store(0, Ordering::Relaxed);
                    holder.taken_back.fetch_add(open.used as u64, Ordering::Relaxed);
                    each(open.chunk, holder.target);
                }
            }
            holder.turns.done();
        }
    }
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct Held(Arc<Holder>);

impl Held {
    /// Makes the state of a writer that has no chunk yet.
    pub(super) fn new(target: BufferId) -> Self {
        Self(Arc::new(Holder {
            turns: Turns::default(),
            chunk: UnsafeCell::new(None),
            arbiter: Mutex::new(()),
            target,
            size: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            taken_back: AtomicU64::new(0),
        }))
    }

    /// The arbiter's end.
    pub(super) fn holder(&self) -> &Arc<Holder> {
        &self.0
    }

    /// The chunk, for as long as the writer uses it. `None` if there is none, or the arbiter wants it.
    #[inline(always)]
    pub(super) fn open(&mut self) -> Option<InUse<'_>> {
        let turns = &self.0.turns;
        if !turns.begin() {
            return None;
        }
        // SAFETY: it is the writer's turn until the turn is ended, here or when `InUse` is dropped. The borrow of `self` keeps the writer from
        // beginning another one meanwhile.
        match unsafe { &mut *self.0.chunk.get() } {
            Some(open) => Some(InUse { open, turns }),
            None => {
                turns.end(0);
                None
            }
        }
    }

    /// Takes the chunk out of the arbiter's reach.
    pub(super) fn take(&mut self) -> Option<OpenChunk> {
        self.exclusively(Option::take)
    }

    /// Puts a chunk where the arbiter can take it back.
    pub(super) fn put(&mut self, chunk: OpenChunk) {
        self.0.size.store(chunk.chunk.size() as u32, Ordering::Relaxed);
        self.exclusively(|place| *place = Some(chunk));
    }

    /// Bytes of packets in the chunks that the arbiter took back since the last call.
    pub(super) fn taken_back(&mut self) -> u64 {
        self.0.taken_back.swap(0, Ordering::Relaxed)
    }

    /// Calls `change`, which is one of the closures above and no foreign code, while the arbiter is kept out.
    fn exclusively<R>(&mut self, change: impl FnOnce(&mut Option<OpenChunk>) -> R) -> R {
        let holder = &*self.0;
        let lock =
            (!holder.turns.begin()).then(|| holder.arbiter.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: either it is the writer's turn, or it has the lock, without which the arbiter gets no turn.
        let place = unsafe { &mut *holder.chunk.get() };
        let result = change(place);
        holder.turns.end(place.as_ref().map_or(0, OpenChunk::mark));
        drop(lock);
        result
    }
}

/// A chunk that its writer uses.
pub(super) struct InUse<'a> {
    open: &'a mut OpenChunk,
    turns: &'a Turns,
}

impl Deref for InUse<'_> {
    type Target = OpenChunk;

    #[inline(always)]
    fn deref(&self) -> &OpenChunk {
        self.open
    }
}

impl DerefMut for InUse<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut OpenChunk {
        self.open
    }
}

impl Drop for InUse<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.turns.end(self.open.mark());
    }
}
