//! The ids of a producer's trace writers. Used by the arbiter alone.

use ferretto_smb::{MAX_WRITER_ID, WriterId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Gives out ids in a circle: an id that was released is not used again before all others were, so that two writers
/// which share an id are far apart in the trace.
#[derive(Default)]
pub(crate) struct WriterIds {
    circle: Mutex<Circle>,
    /// The number of ids in use.
    count: AtomicUsize,
}

#[derive(Default)]
struct Circle {
    in_use: HashSet<u16>,
    last: u16,
}

impl WriterIds {
    /// An id that is not in use, from 1 to [`MAX_WRITER_ID`].
    pub(crate) fn allocate(&self) -> Option<WriterId> {
        let mut circle = self.circle();
        if circle.in_use.len() == usize::from(MAX_WRITER_ID) {
            return None;
        }
        loop {
            circle.last = circle.last % MAX_WRITER_ID + 1;
            let id = circle.last;
            if circle.in_use.insert(id) {
                self.count.store(circle.in_use.len(), Ordering::Relaxed);
                return Some(WriterId(id));
            }
        }
    }

    /// Makes an id free again.
    pub(crate) fn release(&self, writer: WriterId) {
        let mut circle = self.circle();
        circle.in_use.remove(&writer.0);
        self.count.store(circle.in_use.len(), Ordering::Relaxed);
    }

    /// How many writers there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn circle(&self) -> MutexGuard<'_, Circle> {
        // Nothing panics while it holds the lock.
        self.circle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_given_out_once_and_reused_in_turn() {
        let ids = WriterIds::default();
        for id in 1..=MAX_WRITER_ID {
            assert_eq!(ids.allocate(), Some(WriterId(id)));
            assert_eq!(ids.count(), usize::from(id));
        }
        assert_eq!(ids.allocate(), None);
        ids.release(WriterId(500));
        ids.release(WriterId(3));
        assert_eq!(ids.count(), usize::from(MAX_WRITER_ID) - 2);
        assert_eq!(ids.allocate(), Some(WriterId(3)));
        ids.release(WriterId(2));
        assert_eq!(ids.allocate(), Some(WriterId(500)));
        assert_eq!(ids.allocate(), Some(WriterId(2)));
        assert_eq!(ids.allocate(), None);
    }
}
