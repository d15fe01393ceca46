//! Chunks and patches that reach no buffer, and the sessions that lose them.
//!
//! `commit` collects them while it holds the buffers, and then counts them for sessions. A chunk for a session's buffer is a loss of that session. A
//! chunk for a buffer that no longer exists is no session's loss. A chunk for a buffer that never existed may have been meant for any session that
//! records its producer, so it counts in each of them. The same holds for patches.

use crate::ids::{BufferId, ProducerId};
use crate::ordered::OrderedMap;
use crate::producers::Producer;
use crate::service::Service;
use crate::service::sessions::Sessions;

/// The chunks and patches that one producer sent in vain.
#[derive(Debug, Default)]
pub(crate) struct Discarded {
    /// Counts by their target buffer. A request can name any number of buffers, so only existing ones are in this map.
    pub(crate) for_buffers: OrderedMap<BufferId, Counts>,
    /// Chunks and patches for unknown buffers.
    pub(crate) astray: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) chunks: u64,
    pub(crate) patches: u64,
}

impl Discarded {
    /// The counts for chunks that `sender` meant for the buffer `target`. `None` if no session misses them.
    pub(crate) fn counts(
        &mut self,
        target: BufferId,
        sender: &Producer,
        sessions: &Sessions,
    ) -> Option<&mut Counts> {
        match sessions.has_buffer(target) {
            true if sender.allowed_buffers.contains(&target) => {
                Some(self.for_buffers.get_or_insert_with(target, Counts::default))
            }
            // This is usual for chunks that were on their way when their session ended.
            false if sessions.had_buffer(target) => None,
            _ => Some(&mut self.astray),
        }
    }
}

impl Service {
    /// Counts a producer's discarded chunks and patches in the sessions that lose them.
    pub(crate) fn count_discarded(&mut self, producer: ProducerId, discarded: &Discarded) {
        let Discarded { for_buffers, astray } = discarded;
        if for_buffers.is_empty() && astray.chunks == 0 && astray.patches == 0 {
            return;
        }
        for session in self.sessions.iter_mut() {
            let own = session
                .buffer_ids
                .iter()
                .filter_map(|buffer| for_buffers.get(buffer));
            let anybodys = session.records(producer).then_some(astray);
            let lost = own.chain(anybodys).fold((0, 0), |(chunks, patches), more| {
                (chunks + more.chunks, patches + more.patches)
            });
            session.losses.chunks_discarded += lost.0;
            session.losses.patches_discarded += lost.1;
        }
    }
}
