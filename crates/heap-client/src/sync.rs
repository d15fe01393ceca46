//! The words of shared memory, as the ring uses them: `AtomicU64`, or loom's in tests of the memory model.

use core::sync::atomic::{AtomicU64, Ordering};

/// An atomic word.
pub trait Word {
    /// As `AtomicU64`'s.
    fn load(&self, ordering: Ordering) -> u64;
    /// As `AtomicU64`'s.
    fn store(&self, value: u64, ordering: Ordering);
    /// As `AtomicU64`'s.
    fn swap(&self, value: u64, ordering: Ordering) -> u64;
    /// As `AtomicU64`'s.
    ///
    /// # Errors
    ///
    /// With the value that is there, if it is not `current`; or sometimes if it is.
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    #[inline(always)]
    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }

    #[inline(always)]
    fn swap(&self, value: u64, ordering: Ordering) -> u64 {
        self.swap(value, ordering)
    }

    #[inline(always)]
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, success, failure)
    }
}
