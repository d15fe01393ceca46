//! The writers that hold chunks open, and the choice of chunks to take back when there are too many. Used by the arbiter alone.

use crate::trace_writer::{Holder, Seen};
use ferretto_smb::WriterId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The writers of an arbiter, in a circle, with a hand that points at the next one to be looked at.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_writer: BTreeMap<u16, Arc<Holder>>,
    hand: u16,
}

impl Holders {
    /// Adds a new writer.
    pub(super) fn add(&mut self, writer: WriterId, holder: Arc<Holder>) {
        self.by_writer.insert(writer.0, holder);
    }

    /// Removes a writer that has ended.
    pub(super) fn remove(&mut self, writer: WriterId) {
        self.by_writer.remove(&writer.0);
    }

    /// Chooses writers that hold `bytes` together, or all writers with a chunk that can be taken: in turn those that have not written since the hand
    /// last passed them, and others only if that is not enough.
    pub(super) fn choose(&mut self, bytes: usize) -> Vec<Arc<Holder>> {
        let behind_hand = self.by_writer.range(self.hand..);
        let lap = behind_hand.chain(self.by_writer.range(..self.hand));
        // In the second lap every writer is idle that has not written since the first.
        let laps = lap.clone().chain(lap);
        let mut chosen = BTreeMap::new();
        let mut gathered = 0;
        for (&writer, holder) in laps {
            if gathered >= bytes {
                self.hand = writer;
                break;
            }
            if holder.look() == Seen::Idle && chosen.insert(writer, holder.clone()).is_none() {
                gathered += holder.size();
            }
        }
        chosen.into_values().collect()
    }
}
