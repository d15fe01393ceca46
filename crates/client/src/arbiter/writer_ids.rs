//! The ids of a producer's trace writers. Used by the arbiter alone.

use ferretto_smb::{MAX_WRITER_ID, WriterId};
use std::collections::HashSet;

/// Gives out ids in a circle: an id that was released is not used again before all others were, so that two writers
/// which share an id are far apart in the trace.
#[derive(Default)]
pub(crate) struct WriterIds {
    in_use: HashSet<u16>,
    last: u16,
}

impl WriterIds {
    /// An id that is not in use, from 1 to [`MAX_WRITER_ID`].
    pub(crate) fn allocate(&mut self) -> Option<WriterId> {
        if self.in_use.len() == usize::from(MAX_WRITER_ID) {
            return None;
        }
        loop {
            self.last = self.last % MAX_WRITER_ID + 1;
            if self.in_use.insert(self.last) {
                return Some(WriterId(self.last));
            }
        }
    }

    /// Makes an id free again.
    pub(crate) fn release(&mut self, writer: WriterId) {
        self.in_use.remove(&writer.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_given_out_once_and_reused_in_turn() {
        let mut ids = WriterIds::default();
        for id in 1..=MAX_WRITER_ID {
            assert_eq!(ids.allocate(), Some(WriterId(id)));
        }
        assert_eq!(ids.allocate(), None);
        ids.release(WriterId(500));
        ids.release(WriterId(3));
        assert_eq!(ids.allocate(), Some(WriterId(3)));
        ids.release(WriterId(2));
        assert_eq!(ids.allocate(), Some(WriterId(500)));
        assert_eq!(ids.allocate(), Some(WriterId(2)));
        assert_eq!(ids.allocate(), None);
    }
}
