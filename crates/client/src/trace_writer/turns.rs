//! Decides whose turn it is with a chunk: its writer's, packet by packet, or the arbiter's, to take the chunk back.
//!
//! A handshake of two words. Each side stores its own word, passes a barrier, and reads the other's. So at least one of them sees the other, and
//! steps back. The writer passes the barrier for each packet, so its half costs nothing; the arbiter pays for both, see [`crate::arbiter::barrier`].

use crate::arbiter::barrier;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
mod tests;

/// The writer's word while it uses the chunk. Otherwise the word is the number of packets in the chunk, zero if there is none.
const IN_USE: u32 = u32::MAX;

/// A word of the handshake: the processor's or, in model tests, loom's.
pub(crate) trait Word {
    fn load(&self, ordering: Ordering) -> u32;
    fn store(&self, value: u32, ordering: Ordering);
    /// The writer's side of the barrier.
    fn light_barrier();
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u32 {
        AtomicU32::load(self, ordering)
    }

    #[inline(always)]
    fn store(&self, value: u32, ordering: Ordering) {
        AtomicU32::store(self, value, ordering);
    }

    #[inline(always)]
    fn light_barrier() {
        barrier::light();
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Turns<W = AtomicU32> {
    /// Stored by the writer.
    mark: W,
    /// Whether the arbiter wants the chunk. Stored by the arbiter.
    wanted: W,
}

impl<W: Word> Turns<W> {
    /// Begins the writer's turn. False if the arbiter wants the chunk: then the writer may touch it only when it knows that the arbiter is done.
    #[inline(always)]
    pub(super) fn begin(&self) -> bool {
        self.mark.store(IN_USE, Ordering::Relaxed);
        W::light_barrier();
        // Acquires the arbiter's writes in its last turn.
        if self.wanted.load(Ordering::Acquire) == 0 {
            return true;
        }
        self.end(0);
        false
    }

    /// Ends the writer's turn, with this many packets in the chunk.
    #[inline(always)]
    pub(super) fn end(&self, packets: u32) {
        self.mark.store(packets, Ordering::Release);
    }

    /// The number of packets at the end of the writer's last turn; `None` during a turn. Only a hint for the arbiter's choice.
    pub(super) fn packets(&self) -> Option<u32> {
        Some(self.mark.load(Ordering::Relaxed)).filter(|mark| *mark != IN_USE)
    }

    /// Tells the writer that the arbiter wants the chunk. The arbiter calls this for all chunks that it wants, and then passes the heavy barrier.
    pub(super) fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// Whether it is the arbiter's turn, until [`Turns::done`]. To be called after the barrier.
    pub(super) fn is_granted(&self) -> bool {
        self.mark.load(Ordering::Acquire) != IN_USE
    }

    /// Gives up the arbiter's wish for the chunk, whether it had its turn or not.
    pub(super) fn done(&self) {
        self.wanted.store(0, Ordering::Release);
    }
}
