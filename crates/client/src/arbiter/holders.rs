//! The writers that hold chunks open, and the choice of chunks to take back when there are too many. Used by the arbiter alone.

use crate::trace_writer::{Holder, Seen};
use ferretto_smb::WriterId;
use std::sync::Arc;

/// The writers of an arbiter, in a circle, with a hand that points at the next one to be looked at.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// In the order of their ids. A vector, because it takes the compiler far less time than a B-tree, and there is one for each thread.
    by_writer: Vec<(u16, Arc<Holder>)>,
    hand: u16,
}

impl Holders {
    /// Adds a new writer.
    pub(super) fn add(&mut self, writer: WriterId, holder: Arc<Holder>) {
        match self.place(writer.0) {
            Ok(at) => self.by_writer[at].1 = holder,
            Err(at) => self.by_writer.insert(at, (writer.0, holder)),
        }
    }

    /// Removes a writer that has ended.
    pub(super) fn remove(&mut self, writer: WriterId) {
        if let Ok(at) = self.place(writer.0) {
            self.by_writer.remove(at);
        }
    }

    /// Where the writer is, or else would be.
    fn place(&self, writer: u16) -> Result<usize, usize> {
        self.by_writer.binary_search_by(|(known, _)| known.cmp(&writer))
    }

    /// Chooses writers that hold `bytes` together, or all writers with a chunk that can be taken: in turn those that have not written since the hand
    /// last passed them, and others only if that is not enough.
    pub(super) fn choose(&mut self, bytes: usize) -> Vec<Arc<Holder>> {
        let writers = self.by_writer.len();
        let (Ok(start) | Err(start)) = self.place(self.hand);
        let mut is_chosen = vec![false; writers];
        let mut gathered = 0;
        // The second lap finds every writer idle that has not written since the first.
        for step in start..start + 2 * writers {
            let at = step % writers;
            let (writer, holder) = &self.by_writer[at];
            if gathered >= bytes {
                self.hand = *writer;
                break;
            }
            if holder.look() == Seen::Idle && !is_chosen[at] {
                is_chosen[at] = true;
                gathered += holder.size();
            }
        }
        let chosen = self
            .by_writer
            .iter()
            .zip(is_chosen)
            .filter(|(_, is_chosen)| *is_chosen);
        chosen.map(|((_, holder), _)| holder.clone()).collect()
    }
}
