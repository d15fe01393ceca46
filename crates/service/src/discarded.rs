//! Chunks and patches that reach no buffer, and the sessions that lose them.
//!
//! `commit` and `scrape` collect them while they hold the buffers, and then count them for sessions. A chunk for a session's buffer is a loss
//! of that session. A chunk for a session that is over is nobody's loss. A chunk for a buffer that never existed may have been meant for any
//! session of its producer, so it counts in each of them. The same goes for patches.

use crate::ids::{BufferId, ProducerId};
use crate::ordered::OrderedMap;
use crate::service::Service;

/// The chunks and patches that one producer sent in vain, by the buffer that it named.
#[derive(Debug, Default)]
pub(crate) struct Discarded(OrderedMap<BufferId, Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    chunks: u64,
    patches: u64,
}

impl Discarded {
    pub(crate) fn chunk(&mut self, target: BufferId) {
        self.0.get_or_insert_with(target, Counts::default).chunks += 1;
    }

    pub(crate) fn patches(&mut self, target: BufferId, count: u64) {
        self.0.get_or_insert_with(target, Counts::default).patches += count;
    }
}

impl Service {
    /// Counts a producer's discarded chunks and patches in the sessions that lose them.
    pub(crate) fn count_discarded(&mut self, producer: ProducerId, discarded: &Discarded) {
        for (target, counts) in discarded.0.iter() {
            let entry = self.producers.get(&producer);
            let may_write = entry.is_some_and(|entry| entry.allowed_buffers.contains(target));
            let is_here = self.buffers.contains_key(target);
            if !is_here && self.was_given_out(*target) {
                continue;
            }
            for session in self.sessions.values_mut() {
                let lacks_it = match is_here && may_write {
                    true => session.buffers.contains(target),
                    false => !session.instances.of(producer).is_empty(),
                };
                if lacks_it {
                    session.chunks_discarded += counts.chunks;
                    session.patches_discarded += counts.patches;
                }
            }
        }
    }
}
