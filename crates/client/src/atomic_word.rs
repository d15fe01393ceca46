//! An atomic word: the processor's or, in model tests, loom's, which tries all interleavings and all results that orderings allow.
//!
//! Lock-free code is generic over it, so that the models run the same code: the decision when the runtime's thread is to send; in the SDK, the
//! clock's sequence lock and the lanes of futures.

use std::sync::atomic::{AtomicU64, Ordering};

/// As the methods of [`AtomicU64`].
#[expect(missing_docs, reason = "they are those of AtomicU64")]
pub trait AtomicWord {
    fn load(&self, ordering: Ordering) -> u64;
    fn store(&self, value: u64, ordering: Ordering);
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    fn fetch_or(&self, bits: u64, ordering: Ordering) -> u64;
    fn fetch_and(&self, bits: u64, ordering: Ordering) -> u64;
    fn fetch_min(&self, value: u64, ordering: Ordering) -> u64;
    fn swap(&self, value: u64, ordering: Ordering) -> u64;
    /// As [`std::sync::atomic::fence`].
    fn fence(ordering: Ordering);
}

impl AtomicWord for AtomicU64 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u64 {
        AtomicU64::load(self, ordering)
    }

    #[inline(always)]
    fn store(&self, value: u64, ordering: Ordering) {
        AtomicU64::store(self, value, ordering);
    }

    #[inline(always)]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, success, failure)
    }

    #[inline(always)]
    fn fetch_or(&self, bits: u64, ordering: Ordering) -> u64 {
        AtomicU64::fetch_or(self, bits, ordering)
    }

    #[inline(always)]
    fn fetch_and(&self, bits: u64, ordering: Ordering) -> u64 {
        AtomicU64::fetch_and(self, bits, ordering)
    }

    #[inline(always)]
    fn fetch_min(&self, value: u64, ordering: Ordering) -> u64 {
        AtomicU64::fetch_min(self, value, ordering)
    }

    #[inline(always)]
    fn swap(&self, value: u64, ordering: Ordering) -> u64 {
        AtomicU64::swap(self, value, ordering)
    }

    #[inline(always)]
    fn fence(ordering: Ordering) {
        std::sync::atomic::fence(ordering);
    }
}

/// For tests, with the feature `model`.
#[cfg(any(test, feature = "model"))]
pub mod model {
    use super::{AtomicU64, AtomicWord, Ordering};

    /// A word in a model.
    pub struct Modelled {
        word: loom::sync::atomic::AtomicU64,
        /// Loom (0.7) forgets a load as a point to switch threads at once another thread loads too, and would explore one interleaving only.
        /// So each access is one to this as well; being relaxed it orders nothing else.
        switch: loom::sync::atomic::AtomicU64,
    }

    impl Modelled {
        /// A word of this value.
        pub fn new(value: u64) -> Self {
            Self {
                word: loom::sync::atomic::AtomicU64::new(value),
                switch: loom::sync::atomic::AtomicU64::new(0),
            }
        }

        fn word(&self) -> &loom::sync::atomic::AtomicU64 {
            self.switch.fetch_or(0, Ordering::Relaxed);
            &self.word
        }
    }

    impl AtomicWord for Modelled {
        fn load(&self, ordering: Ordering) -> u64 {
            self.word().load(ordering)
        }

        fn store(&self, value: u64, ordering: Ordering) {
            self.word().store(value, ordering);
        }

        fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.word().compare_exchange(current, new, success, failure)
        }

        fn fetch_or(&self, bits: u64, ordering: Ordering) -> u64 {
            self.word().fetch_or(bits, ordering)
        }

        fn fetch_and(&self, bits: u64, ordering: Ordering) -> u64 {
            self.word().fetch_and(bits, ordering)
        }

        fn fetch_min(&self, value: u64, ordering: Ordering) -> u64 {
            self.word().fetch_min(value, ordering)
        }

        fn swap(&self, value: u64, ordering: Ordering) -> u64 {
            self.word().swap(value, ordering)
        }

        fn fence(ordering: Ordering) {
            loom::sync::atomic::fence(ordering);
        }
    }

    /// Runs `model` in every interleaving with at most three preemptions, and makes sure that there were many.
    pub fn check(model: impl Fn() + Send + Sync + 'static) {
        use std::sync::Arc;
        let runs = Arc::new(AtomicU64::new(0));
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check({
            let runs = runs.clone();
            move || {
                runs.fetch_add(1, Ordering::Relaxed);
                model();
            }
        });
        let runs = runs.load(Ordering::Relaxed);
        assert!(runs > 20, "only {runs} interleavings explored");
    }
}
