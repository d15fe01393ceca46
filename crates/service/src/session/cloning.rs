//! The part that a session takes in being cloned: it flushes the buffers that are copied or handed over.

use super::common::Common;
use super::{FlushPurpose, Session};
use crate::clock::Now;
use crate::clone::BufferGroup;
use crate::ids::{BufferId, SessionId};
use crate::ordered::OrderedSet;
use crate::trace_buffer::TraceBuffer;

impl Session {
    /// Empties the buffers with `clear_before_clone`, so that the clone holds only data that producers write when flushed.
    pub(crate) fn clear_before_clone(&mut self) -> Result<(), String> {
        let buffers = self.config.buffers.iter().zip(&mut self.buffers);
        for (config, buffer) in buffers {
            if config.clear_before_clone == Some(true) && buffer.has_data() {
                *buffer = emptied(buffer)?;
            }
        }
        Ok(())
    }

    /// The buffers of one group, by index in the config.
    pub(crate) fn buffers_of(&self, group: BufferGroup) -> Vec<usize> {
        let buffers = self.config.buffers.iter().zip(&self.buffers).enumerate();
        let members = buffers.filter(|(_, (config, _))| BufferGroup::of(config) == group);
        members.map(|(index, _)| index).collect()
    }

    /// Which groups of buffers are flushed one by one. The first is there even if it has no buffer, so that there is one.
    pub(crate) fn flush_groups(&self) -> Vec<BufferGroup> {
        let mut groups = vec![BufferGroup::Copied];
        if !self.buffers_of(BufferGroup::Transferred).is_empty() {
            groups.push(BufferGroup::Transferred);
        }
        groups
    }

    /// Flushes the data sources that write into this group of buffers.
    pub(crate) fn flush_for_clone(
        &mut self,
        clone: SessionId,
        group: BufferGroup,
        flags: u64,
        common: &mut Common,
        now: &Now,
    ) {
        let members = self.buffers_of(group).into_iter();
        let members: OrderedSet<BufferId> = members.map(|index| self.buffer_ids[index]).collect();
        let purpose = FlushPurpose::Clone { clone, group };
        let timeout = self.flush_timeout();
        self.flush_instances(timeout, purpose, flags, common, now, |instance| {
            members.contains(&instance.buffer)
        });
    }
}

/// A buffer like this one, with nothing in it.
pub(crate) fn emptied(buffer: &TraceBuffer) -> Result<TraceBuffer, String> {
    buffer.replacement().map_err(|error| error.to_string())
}
