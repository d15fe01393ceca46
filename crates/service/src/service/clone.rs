//! Clones: read-only copies of a session's buffers, made while the session goes on.
//!
//! The driver requests a clone with [`Service::clone_session`]. `service` reports what happens to the sessions and flushes that a clone waits for.
//!
//! The service checks the request, flushes the producers, copies the buffers, and makes a session of the copies. That session belongs to the
//! consumer that asked. Buffers with `transfer_on_clone` are flushed separately, so that their slow writers do not delay the copies. They are
//! not copied: the clone takes them over once its copies are complete, and the original continues with empty ones. If the original streams into
//! a file, the clone is a file too. It starts with the content of the original's file, and the content of the buffers follows, all as they are when
//! the last flush has ended.
//!
//! Each request gets exactly one answer ([`Output::SessionCloned`]) unless its consumer disconnects first. Until a clone is complete it is a
//! [`PendingClone`], and the original is unchanged except for its buffers with `clear_before_clone`.

mod pending;

use ferretto_proto::messages::{Message, TraceConfig};

use super::Service;
use crate::clock::Now;
use crate::clone::{
    BufferGroup, CloneFile, CloneFilter, ClonePurpose, CloneRequest, Cloned, ClonedContent, Original,
};
use crate::ids::{ConsumerId, SessionId};
use crate::limits;
use crate::output::{FlushOutcome, LogLevel, Output};
use crate::session::cloning::emptied;
use crate::session::common::Effect;
use crate::session::flush::flags;
use crate::session::{BatchEnd, Beginning, FileSink, FlushStrategy, LifecycleEvent, Session, State};
use crate::trace_buffer::{Footprint, TraceBuffer};
use crate::trace_filter::SessionFilter;
use crate::triggers::Triggers;
use crate::wanted::Wanted;

pub(crate) use pending::PendingClone;
use pending::{Flushed, Snapshot, Stage};

const ORIGINAL_ENDED: &str = "the original session has ended";

impl Service {
    /// The consumer wants a copy of a session, which then is its own. [`Output::SessionCloned`] answers, with the id
    /// that is returned here: the clone's, once it exists. `uuid` has random bits for its name.
    ///
    /// # Errors
    /// Why there will be no clone.
    pub fn clone_session(
        &mut self,
        consumer: ConsumerId,
        request: CloneRequest,
        uuid: u128,
        now: &Now,
    ) -> Result<SessionId, String> {
        self.check_not_ending()?;
        let uid = self
            .consumers
            .get(&consumer)
            .ok_or("the consumer is not connected")?
            .uid;
        let mut request = request;
        let original = self.find_original(&mut request)?;
        self.check_clone(consumer, uid, original, &request)?;
        let session = self.sessions.get_mut(original);
        let session = session.ok_or("the session has just ended")?;
        session.clear_before_clone()?;
        session.notes.note(LifecycleEvent::FlushStarted, now);
        // The clocks of the start come first in a trace, and readers want them in order.
        if session.state != State::Configured {
            session.snapshot_clocks(now);
        }
        let (groups, buffers) = (session.flush_groups(), session.buffers.len());
        let content = if session.streams_into_file() {
            ClonedContent::File
        } else {
            ClonedContent::Buffers
        };
        let flags = match request.purpose {
            ClonePurpose::Snapshot => flags::TRACE_CLONE,
            ClonePurpose::Bugreport => flags::TRACE_CLONE_FOR_BUGREPORT,
        };
        let id = self.sessions.next_id();
        let pending = PendingClone {
            consumer,
            uid,
            original,
            request,
            uuid,
            content,
            started: now.boot,
            outcome: FlushOutcome::Succeeded,
            stage: Stage::Flushing { groups: groups.len() },
            snapshots: (0..buffers).map(|_| None).collect(),
        };
        self.clones.insert(id, pending);
        for group in groups {
            self.on_session(original, now, |session, common| {
                session.flush_for_clone(id, group, flags, common, now);
            });
        }
        Ok(id)
    }

    /// The session that is meant. A request in the old way of bug reports is turned into one in the new.
    fn find_original(&self, request: &mut CloneRequest) -> Result<SessionId, String> {
        if request.original == Original::BUGREPORT {
            let eligible = self.sessions.iter().filter(|session| {
                session.state == State::Started && session.config.bugreport_score.unwrap_or_default() > 0
            });
            // The first of the sessions with the highest score.
            let best = eligible
                .rev()
                .max_by_key(|session| session.config.bugreport_score)
                .ok_or(
                    "no running session has a bugreport_score above 0, so there is none for a bug report",
                )?;
            request.purpose = ClonePurpose::Bugreport;
            request.filter = CloneFilter::Skipped;
            return Ok(best.id);
        }
        match &request.original {
            Original::Id(id) => self
                .sessions
                .live()
                .find(|session| session.id.0 == *id)
                .map(|session| session.id)
                .ok_or_else(|| {
                    format!(
                        "Tracing session not found: none has the id {id}; `perfetto --query` lists those there are"
                    )
                }),
            Original::Name(name) => self
                .sessions
                .live()
                .find(|session| !name.is_empty() && session.has_unique_name(name))
                .map(|session| session.id)
                .ok_or_else(|| {
                    format!(
                        "Tracing session not found: none has the unique_session_name {name:?}; `perfetto --query` lists \
                         those there are"
                    )
                }),
        }
    }

    /// Everything that a request must pass before anything is done for it.
    fn check_clone(
        &self,
        consumer: ConsumerId,
        uid: u32,
        original: SessionId,
        request: &CloneRequest,
    ) -> Result<(), String> {
        let session = self.sessions.get(original).ok_or("the session has just ended")?;
        if uid != 0 && uid != session.uid {
            return Err(format!(
                "not allowed to clone a session from another UID ({}); only that user and root are",
                session.uid
            ));
        }
        if session.streams_into_file() {
            match &request.file {
                CloneFile::Passed => {}
                CloneFile::None => {
                    return Err(
                        "the session streams into a file: cloning it takes a file descriptor for the copy, and none came \
                         with the request"
                            .into(),
                    );
                }
                CloneFile::Unusable(error) => return Err(error.clone()),
            }
        }
        self.check_free_of_sessions(consumer)?;
        if self.clones.values().any(|pending| pending.consumer == consumer) {
            return Err("this consumer has a clone under way already".into());
        }
        let clones = self.sessions.iter().filter(|session| session.is_clone());
        let made = clones.map(|clone| clone.uid);
        let pending = self.clones.values().map(|pending| pending.uid);
        let of_uid = made.chain(pending).filter(|owner| *owner == uid).count();
        if of_uid >= limits::MAX_CLONES_PER_UID {
            return Err(format!(
                "too many clones of sessions ({of_uid}) for uid {uid}, the limit is {}; read and free some first",
                limits::MAX_CLONES_PER_UID
            ));
        }
        self.check_clone_memory(uid, None, session.buffers.iter())
    }

    fn check_free_of_sessions(&self, consumer: ConsumerId) -> Result<(), String> {
        match self.session_of(consumer) {
            Some(_) => Err(
                "the consumer is already attached to another tracing session; clone over a connection of its own".into(),
            ),
            None => Ok(()),
        }
    }

    /// Whether clones of this user may have copies of these buffers too. The clone that will have them is not among the pending ones any more.
    fn check_clone_memory<'a>(
        &self,
        uid: u32,
        pending: Option<&PendingClone>,
        more: impl Iterator<Item = &'a TraceBuffer>,
    ) -> Result<(), String> {
        let clones = self.sessions.iter().filter(|session| session.is_clone());
        let made = clones.flat_map(|clone| clone.buffers.iter().map(|buffer| (clone.uid, buffer)));
        let pending = self.clones.values().chain(pending);
        let pending = pending.flat_map(|pending| pending.buffers().map(|buffer| (pending.uid, buffer)));
        let (mut of_uid, mut of_all) = (Footprint::default(), Footprint::default());
        for (owner, buffer) in made.chain(pending) {
            of_all.add(buffer);
            if owner == uid {
                of_uid.add(buffer);
            }
        }
        let (before_of_uid, before_of_all) = (of_uid.bytes(), of_all.bytes());
        for buffer in more {
            of_uid.add(buffer);
            of_all.add(buffer);
        }
        let limit = limits::clone_memory(self.common.identity.system.ram_bytes);
        let limit_of_uid = limits::clone_memory_per_uid(limit);
        let refused = |whose: &str, after: u64, before: u64, limit: u64| {
            format!(
                "a clone would take {} KB beside the {} KB that clones{whose} have already, and all of them may have {} KB; read \
                 and free some first",
                (after - before) / 1024,
                before / 1024,
                limit / 1024
            )
        };
        if of_uid.bytes() > limit_of_uid {
            let whose = format!(" of uid {uid}");
            return Err(refused(&whose, of_uid.bytes(), before_of_uid, limit_of_uid));
        }
        if of_all.bytes() > limit {
            return Err(refused("", of_all.bytes(), before_of_all, limit));
        }
        Ok(())
    }

    /// The producers that write into a group of buffers have flushed, or had their time to.
    pub(crate) fn flushed_for_clone(
        &mut self,
        clone: SessionId,
        group: BufferGroup,
        outcome: FlushOutcome,
        now: &Now,
    ) {
        let Some(mut pending) = self.clones.remove(&clone) else {
            return;
        };
        let consumer = pending.consumer;
        let flushed = pending.flushed(outcome);
        let copied = match (group, pending.content) {
            (BufferGroup::Copied, ClonedContent::Buffers) => self.copy_buffers(&mut pending, now),
            // The file is written while other buffers are flushed, and takes data out of these. So they are copied when the file is.
            (BufferGroup::Copied, ClonedContent::File) | (BufferGroup::Transferred, _) => Ok(()),
        };
        let result = match (copied, flushed) {
            (Err(error), _) => Err(error),
            (Ok(()), Flushed::ThisGroup) => {
                self.clones.insert(clone, pending);
                return;
            }
            (Ok(()), Flushed::AllGroups) => self.finish_clone(clone, pending, now),
        };
        if let Some(result) = result.transpose() {
            self.session_cloned(consumer, clone, result);
        }
    }

    /// Copies the buffers of the first group.
    fn copy_buffers(&mut self, pending: &mut PendingClone, now: &Now) -> Result<(), String> {
        let original = self.original_of(pending, BufferGroup::Copied)?;
        for index in original.buffers_of(BufferGroup::Copied) {
            let buffer = original.buffers[index].clone_read_only();
            pending.add(index, buffer.map_err(|error| error.to_string())?, now);
        }
        Ok(())
    }

    /// Takes the buffers of the second group: all of them, or none if it fails.
    fn transfer_buffers(&mut self, pending: &mut PendingClone, now: &Now) -> Result<(), String> {
        let original = self.original_of(pending, BufferGroup::Transferred)?;
        let indices = original.buffers_of(BufferGroup::Transferred);
        let empty = indices.iter().map(|index| emptied(&original.buffers[*index]));
        let empty = empty.collect::<Result<Vec<_>, _>>()?;
        let transferred = !empty.is_empty();
        for (index, empty) in indices.into_iter().zip(empty) {
            let mut buffer = std::mem::replace(&mut original.buffers[index], empty);
            buffer.set_read_only();
            pending.add(index, buffer, now);
        }
        if transferred {
            // The scraped chunks are not in the empty buffers.
            self.common.scraped.remove(&pending.original);
        }
        Ok(())
    }

    /// The original of a pending clone, if clones may take as much memory as this group of its buffers has.
    fn original_of(&mut self, pending: &PendingClone, group: BufferGroup) -> Result<&mut Session, String> {
        let original = self.sessions.get(pending.original);
        let original = original.ok_or(ORIGINAL_ENDED)?;
        let indices = original.buffers_of(group);
        let buffers = indices.iter().map(|index| &original.buffers[*index]);
        self.check_clone_memory(pending.uid, Some(pending), buffers)?;
        let original = self.sessions.get_mut(pending.original);
        original.ok_or_else(|| ORIGINAL_ENDED.into())
    }

    /// Makes a session of the copies. `None` if its file is yet to be written.
    fn finish_clone(
        &mut self,
        id: SessionId,
        mut pending: PendingClone,
        now: &Now,
    ) -> Result<Option<Cloned>, String> {
        let (consumer, uid) = (pending.consumer, pending.uid);
        self.check_free_of_sessions(consumer)?;
        // No producer writes into them, but their ids are taken, as upstream's are.
        let buffer_ids = self.sessions.allocate_buffer_ids(pending.snapshots.len())?;
        let content = pending.content;
        let original = self.sessions.get(pending.original);
        if content == ClonedContent::File && !original.is_some_and(Session::streams_into_file) {
            return Err(
                "the original's file was completed while it was being cloned: everything that was recorded is in that file"
                    .into(),
            );
        }
        let large_packet = match (content, original) {
            (ClonedContent::File, Some(original)) => original.large_packet_for_clone()?,
            _ => None,
        };
        if content == ClonedContent::File {
            self.copy_buffers(&mut pending, now)?;
        }
        self.transfer_buffers(&mut pending, now)?;
        let original = self.sessions.get_mut(pending.original);
        let original = original.ok_or(ORIGINAL_ENDED)?;
        let filter = match pending.request.filter {
            CloneFilter::Applied => original.filter.as_deref().map(SessionFilter::afresh),
            CloneFilter::Skipped => None,
        };
        const LOWER_HALF: u128 = u64::MAX as u128;
        let (buffers, buffers_cloned): (Vec<_>, Vec<_>) = pending
            .take_snapshots()
            .map(|Snapshot { buffer, at }| (buffer, at))
            .unzip();
        let beginning = Beginning {
            id,
            consumer,
            uid,
            // `config` was decoded from these bytes, but lacks the filters of producers. No producer takes part in a clone.
            config: TraceConfig::decode_from_slice(&original.config_bytes).unwrap_or_default(),
            config_bytes: original.config_bytes.clone(),
            data_source_configs: Vec::new(),
            wanted: Wanted::default(),
            // The lower half ties a trace to the subscription that led to it.
            uuid: pending.uuid & !LOWER_HALF | original.uuid & LOWER_HALF,
            buffer_ids,
            buffers,
            flush_strategy: FlushStrategy::Never,
            file: (content == ClonedContent::File).then(FileSink::of_clone),
            triggers: Triggers::default(),
            filter: filter.map(Box::new),
            boost: None,
        };
        let absences = original.absences_at_the_end(&self.common.producers, now);
        let mut session = Session::clone_of(original, beginning);
        for absence in absences {
            session.notes.absences.note(absence);
        }
        session.notes.buffers_cloned = buffers_cloned;
        session.notes.clone_trigger = pending.request.trigger.clone();
        session.flushes.set_final_outcome(pending.outcome);
        session.large_packet = large_packet;
        session
            .notes
            .note_at(LifecycleEvent::CloneStarted, pending.started);
        session.snapshot_clocks(now);
        session.notes.note(LifecycleEvent::TracingDisabled, now);
        session.state_since = now.boot;
        pending.write_file(original.file.as_ref());
        let (uuid, change) = (session.uuid, session.change());
        // Tells the original of this clone, as of any other session. The clone then gets all that the original was told, this included.
        self.sessions.tell_of(&change);
        if let Some(original) = self.sessions.get(pending.original) {
            session.notes.other_sessions = original.notes.other_sessions.clone();
        }
        self.sessions.insert(session);
        let line = format!(
            "cloned tracing session {} as {id} for uid {uid}, {} sessions now",
            pending.original,
            self.sessions.len()
        );
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = Some(id);
        }
        self.common.outbox.log(LogLevel::Info, line);
        if content == ClonedContent::Buffers {
            return Ok(Some(Cloned { uuid, content }));
        }
        // Goes first, before data that is already due for the original's file: reading that takes it out of the buffers, and the clone has it.
        self.common.outbox.push_first(Output::CopyFile {
            from: pending.original,
            to: id,
        });
        self.clones.insert(id, pending);
        Ok(None)
    }

    /// A batch arrived in the file of a session, or only a part of it, and the rest is lost. Then clones that wait for this file fail: theirs would
    /// go on after a gap that nothing marks.
    pub(crate) fn batch_arrived_for_clones(&mut self, original: SessionId, end: BatchEnd) {
        let clones = self.clones.iter_mut();
        let failed: Vec<SessionId> = clones
            .filter_map(|(clone, pending)| pending.batch_arrived(original, end).then_some(*clone))
            .collect();
        for clone in failed {
            let error = "the file that the session streams into could not take all of its data; clone it again to have what \
                         its buffers hold";
            self.common.outbox.push(Output::AbandonFile(clone));
            self.fail_clone(clone, error.into());
            self.common.effects.push_back(Effect::Over(clone));
        }
    }

    /// The copy that [`Output::CopyFile`] asked for is done, or failed for this reason.
    pub fn file_copied(&mut self, clone: SessionId, result: Result<(), String>, now: &Now) {
        if !self.sessions.contains(clone) {
            return;
        }
        match result {
            Ok(()) => self.common.outbox.push(Output::FileDue(clone)),
            Err(error) => {
                let error = format!("cannot copy the file that the original streams into: {error}");
                self.fail_clone(clone, error);
                self.common.effects.push_back(Effect::Over(clone));
                self.settle(now);
            }
        }
    }

    /// The file of a clone is complete, or will not be.
    pub(crate) fn clone_file_over(&mut self, clone: SessionId) {
        let pending = self.clones.remove(&clone);
        let Some((pending, session)) = pending.zip(self.sessions.get_mut(clone)) else {
            return;
        };
        let (uuid, content) = (session.uuid, ClonedContent::File);
        let result = match session.disabled_error.take() {
            None => Ok(Cloned { uuid, content }),
            Some(error) => {
                self.common.effects.push_back(Effect::Over(clone));
                Err(error)
            }
        };
        self.session_cloned(pending.consumer, clone, result);
    }

    /// There will be no such clone.
    pub(crate) fn fail_clone(&mut self, clone: SessionId, error: String) {
        if let Some(pending) = self.clones.remove(&clone) {
            self.session_cloned(pending.consumer, clone, Err(error));
        }
    }

    /// A consumer that waited for a clone is gone.
    pub(crate) fn forget_clones_of(&mut self, consumer: ConsumerId) {
        self.clones.retain(|_, pending| pending.consumer != consumer);
    }

    fn session_cloned(&mut self, consumer: ConsumerId, clone: SessionId, result: Result<Cloned, String>) {
        self.common.outbox.push(Output::SessionCloned {
            consumer,
            clone,
            result,
        });
    }
}
