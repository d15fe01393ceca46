//! Clones: read-only copies of a session's buffers, made while it goes on.
//!
//! Called by the driver ([`Service::clone_session`]) and by the modules that know when a flush is done (`flush`), a
//! session or consumer gone (`lifecycle`, `service`) and a file complete (`readback`).
//!
//! A request is checked, producers are flushed, the buffers are copied, and a session is made of the copies that
//! belongs to the consumer who asked. Buffers with `transfer_on_clone` are flushed apart from the others, so that slow
//! writers into them do not delay the copy of the rest; they are not copied but handed over, when the rest of the clone is
//! there, and the original goes on with empty ones. Of a session that streams into a file the clone is a file too: what
//! the original's file holds, then what its buffers hold.
//!
//! Every request is answered exactly once with [`Output::SessionCloned`], unless the consumer is gone by then. Until a
//! clone is complete it is a [`PendingClone`]; nothing of the original has changed by then, but for the buffers with
//! `clear_before_clone`.

use std::time::Duration;

use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::messages::trace_stats::FinalFlushOutcome;
use ferretto_proto::messages::{Message, TraceConfig};

use crate::clock::Now;
use crate::flush::flags;
use crate::ids::{BufferId, ConsumerId, SessionId};
use crate::limits;
use crate::ordered::OrderedSet;
use crate::output::{FlushOutcome, LogLevel, Output};
use crate::service::Service;
use crate::session::{
    BatchEnd, Beginning, Drain, FileSink, FlushPurpose, FlushStrategy, LifecycleEvent, Session, State,
};
use crate::trace_buffer::TraceBuffer;
use crate::trace_filter::SessionFilter;
use crate::triggers::Triggers;
use crate::wanted::Wanted;

/// What a consumer wants cloned, and how.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    /// Which session.
    pub original: Original,
    /// What for.
    pub purpose: ClonePurpose,
    /// Whether the original's filter applies.
    pub filter: CloneFilter,
    /// The trigger that led to it, to be noted in the trace.
    pub trigger: Option<CloneTrigger>,
    /// Where the trace goes if the original streams into a file.
    pub file: CloneFile,
}

/// Which session is to be cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Original {
    /// The one with this id. [`Original::BUGREPORT`] stands for the one with the highest `bugreport_score`.
    Id(u64),
    /// The one with this `unique_session_name`, which no clone has.
    Name(String),
}

impl Original {
    /// By this id older clients ask for the session that a bug report wants.
    pub const BUGREPORT: Original = Original::Id(u64::MAX);
}

/// What a clone is for. Producers are told with the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonePurpose {
    /// Nothing in particular.
    Snapshot,
    /// A bug report.
    Bugreport,
}

/// Whether the `trace_filter` of the original applies to the clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneFilter {
    /// It does.
    Applied,
    /// Bug reports want everything.
    Skipped,
}

/// A descriptor that came with the request. Command lines always pass one, for they do not know whether the session streams into
/// a file; if it does not, the descriptor is of no use, and whether it could be written does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloneFile {
    /// There was none.
    None,
    /// The driver has it, and writes into it what [`Output::CopyFile`] and what follows asks for.
    Passed,
    /// The driver cannot write into it, for this reason.
    Unusable(String),
}

/// The trigger that led to a clone, as the consumer tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneTrigger {
    /// Its name.
    pub name: String,
    /// Who activated it.
    pub producer_name: String,
    /// As which user.
    pub producer_uid: i32,
    /// When, in nanoseconds of boot time.
    pub boot_time_ns: u64,
    /// `stop_delay_ms` of the trigger's config.
    pub delay_ms: u64,
}

/// A clone that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cloned {
    /// Names its trace: new in the upper half, the original's in the lower.
    pub uuid: u128,
    /// Where its packets are.
    pub content: ClonedContent,
}

/// Where the packets of a clone are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonedContent {
    /// In its buffers, to be read.
    Buffers,
    /// In the file that came with the request, which is complete.
    File,
}

/// Buffers that are flushed and copied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferGroup {
    /// Those of which the clone gets copies.
    Copied,
    /// Those with `transfer_on_clone`.
    Transferred,
}

/// A clone that is not complete yet.
#[derive(Debug)]
pub(crate) struct PendingClone {
    consumer: ConsumerId,
    original: SessionId,
    request: CloneRequest,
    uuid: u128,
    /// Of a session that streams into a file it is a file.
    content: ClonedContent,
    started: u64,
    outcome: FlushOutcome,
    /// Groups whose flush is under way.
    flushing: usize,
    /// By index in the config.
    buffers: Vec<Option<SnapshotBuffer>>,
    /// When the buffers were copied a batch was on its way into the original's file, and has not arrived yet.
    awaits_batch: bool,
}

#[derive(Debug)]
struct SnapshotBuffer {
    buffer: TraceBuffer,
    /// When it was copied: boot time.
    at: u64,
}

impl PendingClone {
    fn bytes(&self) -> u64 {
        let buffers = self.buffers.iter().flatten();
        buffers.map(|snapshot| snapshot.buffer.memory_used()).sum()
    }
}

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
        self.clear_before_clone(original)?;

        let Some(session) = self.sessions.get_mut(&original) else {
            return Err("the session has just ended".into());
        };
        session.note(LifecycleEvent::FlushStarted, now);
        // The clocks of the start come first in a trace, and readers want them in order.
        if session.state != State::Configured {
            session.snapshot_clocks(now);
        }
        let groups = flush_groups(session);
        let content = if session.streams_into_file() {
            ClonedContent::File
        } else {
            ClonedContent::Buffers
        };
        self.last_session += 1;
        let id = SessionId(self.last_session);
        let flags = match request.purpose {
            ClonePurpose::Snapshot => flags::TRACE_CLONE,
            ClonePurpose::Bugreport => flags::TRACE_CLONE_FOR_BUGREPORT,
        };
        let mut buffers = Vec::new();
        buffers.resize_with(session.buffers.len(), || None);
        self.clones.insert(
            id,
            PendingClone {
                consumer,
                original,
                request,
                uuid,
                content,
                started: now.boot,
                outcome: FlushOutcome::Succeeded,
                flushing: groups.len(),
                buffers,
                awaits_batch: false,
            },
        );
        for (group, buffers) in groups {
            let purpose = FlushPurpose::Clone { clone: id, group };
            self.flush_instances(original, None, purpose, flags, now, |instance| {
                buffers.contains(&instance.buffer)
            });
        }
        Ok(id)
    }

    /// The session that is meant. A request in the old way of bug reports is turned into one in the new.
    fn find_original(&self, request: &mut CloneRequest) -> Result<SessionId, String> {
        if request.original == Original::BUGREPORT {
            let eligible = self.sessions.values().filter(|session| {
                session.state == State::Started && session.config.bugreport_score.unwrap_or_default() > 0
            });
            // The first of those with the highest score.
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
                .live_sessions()
                .find(|session| session.id.0 == *id)
                .map(|session| session.id)
                .ok_or_else(|| {
                    format!(
                        "Tracing session not found: none has the id {id}; `perfetto --query` lists those there are"
                    )
                }),
            Original::Name(name) => self
                .live_sessions()
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
        let session = self.sessions.get(&original).ok_or("the session has just ended")?;
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
        let made = self
            .sessions
            .values()
            .filter(|session| session.is_clone())
            .map(|clone| clone.uid);
        let pending = self
            .clones
            .values()
            .filter_map(|pending| self.consumers.get(&pending.consumer));
        let of_uid = made
            .chain(pending.map(|consumer| consumer.uid))
            .filter(|owner| *owner == uid)
            .count();
        if of_uid >= limits::MAX_CLONES_PER_UID {
            return Err(format!(
                "too many clones of sessions ({of_uid}) for uid {uid}, the limit is {}; read and free some first",
                limits::MAX_CLONES_PER_UID
            ));
        }
        let buffers = session.buffers.iter().filter_map(|id| self.buffers.get(id));
        self.check_clone_memory(uid, buffers.map(TraceBuffer::memory_used).sum())
    }

    fn check_free_of_sessions(&self, consumer: ConsumerId) -> Result<(), String> {
        match self.session_of(consumer) {
            Some(session) if self.sessions.contains_key(&session) => Err(
                "the consumer is already attached to another tracing session; clone over a connection of its own".into(),
            ),
            _ => Ok(()),
        }
    }

    /// Whether clones of this user may take so many bytes more.
    fn check_clone_memory(&self, uid: u32, more: u64) -> Result<(), String> {
        let (mut of_uid, mut of_all) = (0, 0);
        let mut count = |owner: u32, bytes: u64| {
            of_all += bytes;
            of_uid += if owner == uid { bytes } else { 0 };
        };
        for clone in self.sessions.values().filter(|session| session.is_clone()) {
            let buffers = clone.buffers.iter().filter_map(|id| self.buffers.get(id));
            count(clone.uid, buffers.map(TraceBuffer::memory_used).sum());
        }
        for pending in self.clones.values() {
            let consumer = self.consumers.get(&pending.consumer);
            count(consumer.map_or(uid, |consumer| consumer.uid), pending.bytes());
        }
        let limit = limits::clone_memory(self.identity.system.ram_bytes);
        let limit_of_uid = limits::clone_memory_per_uid(limit);
        let refused = |whose: &str, taken: u64, limit: u64| {
            format!(
                "a clone would take {} KB beside the {} KB that clones{whose} have already, and all of them may have {} KB; read \
                 and free some first",
                more / 1024,
                taken / 1024,
                limit / 1024
            )
        };
        if of_uid + more > limit_of_uid {
            return Err(refused(&format!(" of uid {uid}"), of_uid, limit_of_uid));
        }
        if of_all + more > limit {
            return Err(refused("", of_all, limit));
        }
        Ok(())
    }

    /// Empties the buffers with `clear_before_clone`: what they hold afterwards is what producers write when flushed.
    fn clear_before_clone(&mut self, original: SessionId) -> Result<(), String> {
        let Some(session) = self.sessions.get(&original) else {
            return Ok(());
        };
        let configs = session.config.buffers.iter().zip(&session.buffers);
        let cleared = configs.filter(|(config, _)| config.clear_before_clone == Some(true));
        for (_, id) in cleared {
            if let Some(buffer) = self.buffers.get_mut(id)
                && buffer.has_data()
            {
                *buffer = emptied(buffer)?;
            }
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
        pending.flushing -= 1;
        if outcome == FlushOutcome::Failed {
            pending.outcome = outcome;
        }
        let copied = match group {
            BufferGroup::Copied => self.copy_buffers(&mut pending, now),
            BufferGroup::Transferred => Ok(()),
        };
        let finished = match copied {
            Ok(()) if pending.flushing > 0 => {
                self.clones.insert(clone, pending);
                return;
            }
            Ok(()) => self.finish_clone(clone, pending, now),
            Err(error) => Err(error),
        };
        if let Some(answer) = finished.transpose() {
            self.session_cloned(consumer, clone, answer);
        }
    }

    /// Takes copies of the buffers that are to be copied.
    fn copy_buffers(&mut self, pending: &mut PendingClone, now: &Now) -> Result<(), String> {
        for (index, id) in self.buffers_to_clone(pending, BufferGroup::Copied)? {
            let Some(buffer) = self.buffers.get(&id) else {
                continue;
            };
            pending.buffers[index] = Some(SnapshotBuffer {
                buffer: buffer.clone_read_only().map_err(|error| error.to_string())?,
                at: now.boot,
            });
        }
        Ok(())
    }

    /// Takes the buffers that are to be transferred: all of them, or none if it fails.
    fn transfer_buffers(&mut self, pending: &mut PendingClone, now: &Now) -> Result<(), String> {
        let members = self.buffers_to_clone(pending, BufferGroup::Transferred)?;
        let mut empty = Vec::with_capacity(members.len());
        for (index, id) in members {
            if let Some(buffer) = self.buffers.get(&id) {
                empty.push((index, id, emptied(buffer)?));
            }
        }
        for (index, id, empty) in empty {
            if let Some(mut buffer) = self.buffers.insert(id, empty) {
                buffer.set_read_only();
                let at = now.boot;
                pending.buffers[index] = Some(SnapshotBuffer { buffer, at });
            }
        }
        Ok(())
    }

    /// The buffers of one group, by index in the config, if clones may take as much memory.
    fn buffers_to_clone(
        &self,
        pending: &PendingClone,
        group: BufferGroup,
    ) -> Result<Vec<(usize, BufferId)>, String> {
        let original = self.sessions.get(&pending.original);
        let original = original.ok_or("the original session has ended")?;
        let configs = original.config.buffers.iter().zip(&original.buffers);
        let members: Vec<(usize, BufferId)> = configs
            .enumerate()
            .filter(|(_, (config, _))| group_of(config) == group)
            .map(|(index, (_, id))| (index, *id))
            .collect();
        let buffers = members.iter().filter_map(|(_, id)| self.buffers.get(id));
        let more = pending.bytes() + buffers.map(TraceBuffer::memory_used).sum::<u64>();
        let consumer = self.consumers.get(&pending.consumer);
        self.check_clone_memory(consumer.ok_or("the consumer has gone")?.uid, more)?;
        Ok(members)
    }

    /// Makes a session of the copies. `None` if its file is yet to be written.
    fn finish_clone(
        &mut self,
        id: SessionId,
        mut pending: PendingClone,
        now: &Now,
    ) -> Result<Option<Cloned>, String> {
        let consumer = pending.consumer;
        self.check_free_of_sessions(consumer)?;
        let uid = self.consumers.get(&consumer).map(|consumer| consumer.uid);
        let uid = uid.ok_or("the consumer has gone")?;
        let ids = self.allocate_buffer_ids(pending.buffers.len())?;
        let content = pending.content;
        let original = self.sessions.get(&pending.original);
        if content == ClonedContent::File && !original.is_some_and(Session::streams_into_file) {
            return Err(
                "the original's file was completed while it was being cloned: everything that was recorded is in that file"
                    .into(),
            );
        }
        let file = original.and_then(|original| original.file.as_ref());
        pending.awaits_batch = file.is_some_and(|file| file.handed_out.is_some());
        self.transfer_buffers(&mut pending, now)?;
        let original = self.sessions.get_mut(&pending.original);
        let original = original.ok_or("the original session has ended")?;
        let file = (content == ClonedContent::File).then_some(FileSink {
            write_period: Duration::ZERO,
            max_size: u64::MAX,
            written: 0,
            sync_after_write: false,
            drain: Drain::Final,
            handed_out: None,
            progress: 0,
        });
        let filter = match pending.request.filter {
            CloneFilter::Applied => original.filter.as_deref().map(SessionFilter::afresh),
            CloneFilter::Skipped => None,
        };
        const LOWER_HALF: u128 = u64::MAX as u128;
        let beginning = Beginning {
            id,
            consumer,
            uid,
            // It was decoded from these, but for what decides which producers take part: none do.
            config: TraceConfig::decode_from_slice(&original.config_bytes).unwrap_or_default(),
            config_bytes: original.config_bytes.clone(),
            data_source_configs: Vec::new(),
            wanted: Wanted::default(),
            // The lower half is what ties a trace to the subscription that led to it.
            uuid: pending.uuid & !LOWER_HALF | original.uuid & LOWER_HALF,
            buffers: ids.clone(),
            flush_strategy: FlushStrategy::Never,
            file,
            triggers: Triggers::default(),
            filter: filter.map(Box::new),
            boost: None,
        };
        let absences = original.absences_at_the_end(&self.producers, now);
        let mut session = Session::clone_of(original, beginning);
        for absence in absences {
            session.note_absence(absence);
        }
        session.buffers_cloned = pending
            .buffers
            .iter()
            .flatten()
            .map(|snapshot| snapshot.at)
            .collect();
        session.clone_trigger = pending.request.trigger.take();
        session.final_flush_outcome = match pending.outcome {
            FlushOutcome::Succeeded => FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED,
            FlushOutcome::Failed => FinalFlushOutcome::FINAL_FLUSH_FAILED,
        };
        session.note_at(LifecycleEvent::CloneStarted, pending.started);
        session.snapshot_clocks(now);
        session.note(LifecycleEvent::TracingDisabled, now);
        let line = format!(
            "cloned tracing session {} as {id} for uid {uid}, {} sessions now",
            pending.original,
            self.sessions.len() + 1
        );
        let cloned = Cloned {
            uuid: session.uuid,
            content,
        };
        let snapshots = std::mem::take(&mut pending.buffers).into_iter().flatten();
        self.buffers
            .extend(ids.into_iter().zip(snapshots.map(|snapshot| snapshot.buffer)));
        self.sessions.insert(id, session);
        self.enter_state(id, State::ClonedReadOnly, now);
        // The original was told of this clone as of any other session, and the clone has all that it was told.
        let others = self.sessions.get(&pending.original);
        let others = others.map(|original| original.other_sessions.clone());
        if let (Some(clone), Some(others)) = (self.sessions.get_mut(&id), others) {
            clone.other_sessions = others;
        }
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = Some(id);
        }
        self.log(LogLevel::Info, line);
        if content == ClonedContent::Buffers {
            return Ok(Some(cloned));
        }
        // Before anything that is due for the file already: what that takes out of the buffers is in the clone's.
        self.outputs.push_front(Output::CopyFile {
            from: pending.original,
            to: id,
        });
        self.clones.insert(id, pending);
        Ok(None)
    }

    /// A batch arrived in the file of a session, or a part of it did. What did not is nowhere: the file of a clone would
    /// go on after a gap that nothing marks.
    pub(crate) fn batch_arrived_for_clones(&mut self, original: SessionId, end: BatchEnd, now: &Now) {
        let mut failed = Vec::new();
        for (clone, pending) in self.clones.iter_mut() {
            let awaited = pending.original == original && std::mem::take(&mut pending.awaits_batch);
            if awaited && end == BatchEnd::Full {
                failed.push(*clone);
            }
        }
        for clone in failed {
            let error = "the file that the session streams into could not take all of its data; clone it again to have what \
                         its buffers hold";
            self.output(Output::AbandonFile(clone));
            self.fail_clone(clone, error.into());
            self.remove_session(clone, now);
        }
    }

    /// What [`Output::CopyFile`] asked for is done, or failed for this reason.
    pub fn file_copied(&mut self, clone: SessionId, result: Result<(), String>, now: &Now) {
        if !self.sessions.contains_key(&clone) {
            return;
        }
        match result {
            Ok(()) => self.output(Output::FileDue(clone)),
            Err(error) => {
                let error = format!("cannot copy the file that the original streams into: {error}");
                self.fail_clone(clone, error);
                self.remove_session(clone, now);
            }
        }
    }

    /// The file of a clone is complete, or will not be.
    pub(crate) fn clone_file_closed(&mut self, clone: SessionId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&clone) else {
            return;
        };
        let (uuid, error) = (session.uuid, session.disabled_error.take());
        let Some(pending) = self.clones.remove(&clone) else {
            return;
        };
        match error {
            None => {
                let content = ClonedContent::File;
                self.session_cloned(pending.consumer, clone, Ok(Cloned { uuid, content }));
            }
            Some(error) => {
                self.session_cloned(pending.consumer, clone, Err(error));
                self.remove_session(clone, now);
            }
        }
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
        if self.consumers.contains_key(&consumer) {
            self.output(Output::SessionCloned {
                consumer,
                clone,
                result,
            });
        }
    }
}

fn group_of(config: &BufferConfig) -> BufferGroup {
    match config.transfer_on_clone {
        Some(true) => BufferGroup::Transferred,
        _ => BufferGroup::Copied,
    }
}

/// Which buffers are flushed together. The first group is there even if it has no buffer, so that there is one.
fn flush_groups(session: &Session) -> Vec<(BufferGroup, OrderedSet<BufferId>)> {
    let of = |group| {
        let configs = session.config.buffers.iter().zip(&session.buffers);
        let members = configs.filter(move |(config, _)| group_of(config) == group);
        (group, members.map(|(_, id)| *id).collect::<OrderedSet<_>>())
    };
    let mut groups = vec![of(BufferGroup::Copied), of(BufferGroup::Transferred)];
    if groups[1].1.is_empty() {
        groups.pop();
    }
    groups
}

/// A buffer like this one, with nothing in it.
fn emptied(buffer: &TraceBuffer) -> Result<TraceBuffer, String> {
    TraceBuffer::new(buffer.size(), buffer.policy()).map_err(|error| error.to_string())
}
