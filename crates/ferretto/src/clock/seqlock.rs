//! A few words that many threads read, and that one thread at a time replaces. No thread waits for another.
//!
//! The timeline keeps its state in one. A thread that finds the words being written, or loses the race to write them, is told so and does without. A
//! fork may leave the child's copy in the middle of a write: [`SeqLock::abandon`].

use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_client::atomic_word::AtomicWord;

/// `N` words, all zero at first.
pub(super) struct SeqLock<const N: usize, W = AtomicU64> {
    /// Odd while the words are being written; otherwise different for each state they have been in.
    version: W,
    words: [W; N],
}

/// A state that the words have been in.
#[derive(Clone, Copy)]
pub(super) struct Version(u64);

impl<const N: usize> SeqLock<N> {
    pub(super) const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; N],
        }
    }
}

impl<const N: usize, W: AtomicWord> SeqLock<N, W> {
    /// The words as one writer left them; `None` while a writer is at work.
    pub(super) fn read(&self) -> Option<(Version, [u64; N])> {
        let version = self.version.load(Ordering::Acquire);
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        // Keeps the second load of the version behind the loads of the words.
        W::fence(Ordering::Acquire);
        let unchanged = self.version.load(Ordering::Relaxed) == version;
        (version.is_multiple_of(2) && unchanged).then_some((Version(version), words))
    }

    /// Replaces the words by the result of `write`, if they are still at the version that was read. If `write` panics, they stay as they were.
    pub(super) fn replace<T>(&self, read: Version, write: impl FnOnce() -> ([u64; N], T)) -> Option<T> {
        /// Makes the version even again.
        struct Unwritten<'a, W: AtomicWord>(&'a W, u64);
        impl<W: AtomicWord> Drop for Unwritten<'_, W> {
            fn drop(&mut self) {
                // The words have not changed, so threads that have read this version may rely on it.
                self.0.store(self.1, Ordering::Release);
            }
        }
        let Version(version) = read;
        self.version
            .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let unwritten = Unwritten(&self.version, version);
        let (words, result) = write();
        std::mem::forget(unwritten);
        // A thread that sees one of the new words also sees the odd version, or a later one.
        W::fence(Ordering::Release);
        self.store(words);
        self.version.store(version + 2, Ordering::Release);
        Some(result)
    }

    /// Ends a write that another thread can no longer end, and zeroes the words then. Only for a process with a single thread, between `fork` and
    /// anything else; async-signal-safe.
    pub(super) fn abandon(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if !version.is_multiple_of(2) {
            self.store([0; N]);
            self.version.store(version + 1, Ordering::Release);
        }
    }

    fn store(&self, words: [u64; N]) {
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
