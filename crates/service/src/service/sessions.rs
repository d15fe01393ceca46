//! All sessions, and the session that each buffer or instance belongs to.
//!
//! Sessions own their buffers. Producers name a buffer by an id that is unique in the service, and this module finds the buffer by that id.

use crate::ids::{BufferId, DataSourceInstanceId, ProducerId, SessionId};
use crate::ordered::OrderedMap;
use crate::session::concurrent::Change;
use crate::session::{Census, Session, State};
use crate::trace_buffer::TraceBuffer;

/// All sessions of the service, in the order in which they began.
#[derive(Default)]
pub(crate) struct Sessions {
    by_id: OrderedMap<SessionId, Session>,
    /// The session that each buffer belongs to, and its index there.
    buffers: OrderedMap<BufferId, (SessionId, usize)>,
    buffer_ids: BufferIds,
    last: SessionId,
}

impl Sessions {
    /// An id that no session had.
    pub(crate) fn next_id(&mut self) -> SessionId {
        self.last = SessionId(self.last.0 + 1);
        self.last
    }

    /// The id given out last.
    pub(crate) fn last_id(&self) -> SessionId {
        self.last
    }

    pub(crate) fn insert(&mut self, session: Session) {
        for (index, buffer) in session.buffer_ids.iter().enumerate() {
            self.buffers.insert(*buffer, (session.id, index));
        }
        self.by_id.insert(session.id, session);
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let removed = self.by_id.remove(&id)?;
        for buffer in &removed.buffer_ids {
            self.buffers.remove(buffer);
        }
        Some(removed)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_id.get_mut(&id)
    }

    /// The session behind this one.
    pub(crate) fn after(&self, id: SessionId) -> Option<&Session> {
        Some(self.by_id.after(&id)?.1)
    }

    pub(crate) fn contains(&self, id: SessionId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.by_id.keys().copied().collect()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Session> + Clone {
        self.by_id.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Session> {
        self.by_id.values_mut()
    }

    /// Sessions that were not freed. A freed one only waits until its file is complete.
    pub(crate) fn live(&self) -> impl DoubleEndedIterator<Item = &Session> + Clone {
        self.iter().filter(|session| !session.is_freed)
    }

    /// The live sessions that are not clones. Clones record nothing, have no name, and have limits of their own, so that one user's clones cannot
    /// keep others from recording.
    pub(crate) fn recordings(&self) -> impl DoubleEndedIterator<Item = &Session> + Clone {
        self.live().filter(|session| !session.is_clone())
    }

    pub(crate) fn in_state(&self, state: State) -> usize {
        self.iter().filter(|session| session.state == state).count()
    }

    /// The session that has this instance, if it is of this producer.
    pub(crate) fn of_instance(&self, producer: ProducerId, id: DataSourceInstanceId) -> Option<SessionId> {
        let mut sessions = self
            .iter()
            .filter(|session| session.instances.has_any_of(producer));
        let of_producer = |session: &&Session| {
            let instance = session.instances.get(id);
            instance.is_some_and(|instance| instance.producer == producer)
        };
        Some(sessions.find(of_producer)?.id)
    }

    /// A session's state changed: tells the sessions that record such changes.
    pub(crate) fn tell_of(&mut self, change: &Change) {
        for other in self.iter_mut().filter(|other| other.listens_to(change.session)) {
            other.notes.other_sessions.push(change.clone());
        }
    }

    pub(crate) fn has_buffer(&self, id: BufferId) -> bool {
        self.buffers.contains_key(&id)
    }

    /// Whether there is or was a buffer with this id.
    pub(crate) fn had_buffer(&self, id: BufferId) -> bool {
        self.buffer_ids.contain(id)
    }

    /// The buffer that producers know by this id.
    pub(crate) fn buffer_mut(&mut self, id: BufferId) -> Option<&mut TraceBuffer> {
        let (session, index) = *self.buffers.get(&id)?;
        self.by_id.get_mut(&session)?.buffers.get_mut(index)
    }

    pub(crate) fn census(&self) -> Census {
        Census {
            sessions: self.len(),
            buffers: self.buffers.len(),
        }
    }

    /// All buffers, clones' buffers included.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &TraceBuffer> {
        self.iter().flat_map(|session| &session.buffers)
    }

    /// Allocates this many ids. Ids go round, so that a late commit into a freed buffer does not reach its successor.
    ///
    /// # Errors
    /// If so many are in use that the search would not end; the limits of sessions are below that.
    pub(crate) fn allocate_buffer_ids(&mut self, count: usize) -> Result<Vec<BufferId>, String> {
        if self.buffers.len() + count > usize::from(u16::MAX) {
            return Err("cannot allocate trace buffers: all buffer ids are in use".into());
        }
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            // Each id is tried once before any is tried again.
            let id = self.buffer_ids.next();
            if !self.buffers.contains_key(&id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }
}

/// The ids of buffers that were given out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferIds {
    last: u16,
    /// Whether all ids were used once.
    went_round: bool,
}

impl BufferIds {
    fn next(&mut self) -> BufferId {
        self.last = self.last.checked_add(1).unwrap_or_else(|| {
            self.went_round = true;
            1
        });
        BufferId(self.last)
    }

    /// Whether there is or was a buffer with this id.
    pub(crate) fn contain(self, id: BufferId) -> bool {
        id.0 != 0 && (id.0 <= self.last || self.went_round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordered::OrderedSet;

    #[test]
    fn ids_of_buffers_go_round_and_skip_used_ones() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.allocate_buffer_ids(1), Ok(vec![BufferId(1)]));
        assert!(sessions.had_buffer(BufferId(1)) && !sessions.had_buffer(BufferId(2)));
        sessions.buffers.insert(BufferId(5), (SessionId(1), 0));
        for _ in 0..3 * usize::from(u16::MAX) / 1000 {
            let ids = sessions.allocate_buffer_ids(1000).expect("enough are free");
            let different: OrderedSet<BufferId> = ids.into_iter().collect();
            assert_eq!(different.len(), 1000);
            assert!(!different.contains(&BufferId(5)) && !different.contains(&BufferId(0)));
        }
        assert!(sessions.had_buffer(BufferId(u16::MAX)) && !sessions.had_buffer(BufferId(0)));
        assert!(sessions.allocate_buffer_ids(usize::from(u16::MAX)).is_err());
    }
}
