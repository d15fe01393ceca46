//! Scraping: the service copies packets that writers have finished but not committed out of shared memory.
//!
//! `flush` and `lifecycle` scrape the producers that allow it. `producer` scrapes every producer that goes away, because it will not
//! commit anything any more.

use std::ops::ControlFlow;

use ferretto_smb::Completeness;

use crate::ids::{BufferId, ProducerId, SessionId, WriterId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::LogLevel;
use crate::producer::{Owner, Scraping, Target, writer_id};
use crate::service::Service;
use crate::session::Session;
use crate::trace_buffer::ChunkState;

/// What scraping may still take.
#[derive(Clone, Copy, Debug)]
struct ScrapeBudget {
    /// To be copied.
    bytes: usize,
    /// To be looked at.
    pages: usize,
    /// Of programs, to merge what is overwritten.
    protovm_work: u64,
}

impl ScrapeBudget {
    /// For the producers of one owner.
    fn of_owner() -> ScrapeBudget {
        ScrapeBudget {
            bytes: limits::MAX_SCRAPED_PER_UID,
            pages: limits::MAX_PAGES_SCRAPED_PER_UID,
            protovm_work: limits::MAX_PROTOVM_WORK_AT_ONCE,
        }
    }

    /// For a producer that goes away: its leftovers are taken now or never, however much they are.
    fn of_the_last_time() -> ScrapeBudget {
        ScrapeBudget {
            bytes: usize::MAX,
            pages: usize::MAX,
            ..ScrapeBudget::of_owner()
        }
    }
}

/// Chunks whose writer is not registered.
#[derive(Debug)]
enum Strangers {
    /// They are left alone, since the registration may still come.
    Stay,
    /// The producer writes into one buffer only, so they go there.
    MeantFor(BufferId),
    /// The producer writes into several buffers, and nothing says which is meant. Counts the chunks.
    Lost(u64),
}

impl Strangers {
    /// What to do with them when `producer` goes away while these sessions record it.
    fn of(producer: ProducerId, recording: &[&Session]) -> Strangers {
        let mut targets = OrderedSet::new();
        for session in recording {
            let own = session.instances.of(producer).iter();
            for instance in own.filter_map(|id| session.instances.get(*id)) {
                targets.insert(instance.buffer);
            }
        }
        match (targets.first(), targets.len()) {
            (None, _) => Strangers::Stay,
            (Some(only), 1) => Strangers::MeantFor(*only),
            (Some(_), _) => Strangers::Lost(0),
        }
    }

    /// The buffer for a chunk of this writer, if there is one. Ids that cannot be registered are ignored.
    fn place(&mut self, writer: WriterId) -> Option<BufferId> {
        writer_id(writer.0.into())?;
        match self {
            Strangers::Stay => None,
            Strangers::MeantFor(buffer) => Some(*buffer),
            Strangers::Lost(chunks) => {
                *chunks += 1;
                None
            }
        }
    }
}

impl Service {
    /// Scrapes the shared memory of every producer for the buffers of this session, as much of it as one flush may have scraped for each
    /// owner.
    pub(crate) fn scrape_all(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let buffers = session.buffers.clone();
        let producers: Vec<(ProducerId, Owner)> = self
            .producers
            .iter()
            .filter(|(_, producer)| producer.may_be_scraped())
            .map(|(id, producer)| (*id, producer.owner()))
            .collect();
        let mut left: OrderedMap<Owner, ScrapeBudget> = OrderedMap::new();
        let mut cut = None;
        for (producer, owner) in producers {
            let left = left.get_or_insert_with(owner, ScrapeBudget::of_owner);
            let scraped = self.scrape(&buffers, producer, left, &mut Strangers::Stay);
            if scraped.is_break() {
                cut.get_or_insert(owner);
            }
        }
        let session = self.sessions.get_mut(&id);
        if let Some((session, owner)) = session.zip(cut)
            && !std::mem::replace(&mut session.scrape_told, true)
        {
            let line = format!(
                "tracing session {}: the producers of {owner} have left more than {} bytes, or filled more than {} pages, in their \
                 shared memory: a flush did not take all of it",
                id.0,
                limits::MAX_SCRAPED_PER_UID,
                limits::MAX_PAGES_SCRAPED_PER_UID
            );
            self.log(LogLevel::Warning, line);
        }
    }

    /// Saves the data that a producer leaves in shared memory when it goes away, even if it did not want flushes to scrape it: no commit of
    /// it will come any more. If it did not, only sessions that still record get its data. Leftovers for sessions that are over mean nothing.
    ///
    /// A process that was killed right after its first packets may have left chunks of writers that it had not yet registered. They go to the
    /// buffer that it writes into for the sessions that still record. If there are several, they are counted as discarded in each of these
    /// sessions, since nobody can tell which of them lacks the data.
    pub(crate) fn rescue(&mut self, producer: ProducerId) {
        let Some(entry) = self.producers.get(&producer) else {
            return;
        };
        let sessions = self.sessions.values();
        let recording: Vec<&Session> = sessions.filter(|session| session.records(producer)).collect();
        let buffers: Vec<BufferId> = match entry.scraping {
            Scraping::Enabled => self
                .sessions
                .values()
                .flat_map(|session| &session.buffers)
                .copied()
                .collect(),
            Scraping::Disabled => recording
                .iter()
                .flat_map(|session| &session.buffers)
                .copied()
                .collect(),
        };
        let mut strangers = Strangers::of(producer, &recording);
        let mut left = ScrapeBudget::of_the_last_time();
        let _ = self.scrape(&buffers, producer, &mut left, &mut strangers);
        if let Strangers::Lost(chunks) = strangers {
            let sessions = self.sessions.values_mut();
            for session in sessions.filter(|session| session.records(producer)) {
                session.chunks_discarded += chunks;
            }
        }
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        for id in &entry.allowed_buffers {
            if let Some(buffer) = self.buffers.get_mut(id) {
                buffer.producer_gone(producer);
            }
        }
        // The flushes and stops that its end completes find nothing of it any more: it would be counted and charged again.
        entry.smb = None;
        entry.writers.clear();
    }

    /// Copies the packets that a producer's writers have finished but not committed, if they are meant for one of these buffers. Breaks if
    /// there is more than `left` allows.
    fn scrape(
        &mut self,
        buffers: &[BufferId],
        producer: ProducerId,
        left: &mut ScrapeBudget,
        strangers: &mut Strangers,
    ) -> ControlFlow<()> {
        let Some(entry) = self.producers.get(&producer) else {
            return ControlFlow::Continue(());
        };
        let may_hold_any = !entry.writers.is_empty() || !matches!(strangers, Strangers::Stay);
        let Some(smb) = entry.smb.as_ref().filter(|_| may_hold_any) else {
            return ControlFlow::Continue(());
        };
        let wanted: OrderedSet<BufferId> = buffers
            .iter()
            .filter(|buffer| entry.allowed_buffers.contains(*buffer))
            .copied()
            .collect();
        if wanted.is_empty() {
            return ControlFlow::Continue(());
        }
        let chunk = &mut self.chunk;
        let ScrapeBudget {
            bytes,
            pages,
            protovm_work,
        } = left;
        let mut target = Target {
            entry,
            producer,
            buffers: &mut self.buffers,
            protovm_work,
        };
        smb.scrape_until(pages, |candidate| {
            let header = candidate.header();
            let known = entry.writers.get(&header.writer).copied();
            let meant_for = known.or_else(|| strangers.place(header.writer));
            let Some(buffer) = meant_for.filter(|buffer| wanted.contains(buffer)) else {
                return ControlFlow::Continue(());
            };
            candidate.copy_payload(chunk);
            let Some(rest) = bytes.checked_sub(chunk.len()) else {
                return ControlFlow::Break(());
            };
            *bytes = rest;
            let state = match candidate.completeness() {
                Completeness::Complete => ChunkState::Complete,
                Completeness::BeingWritten => ChunkState::Incomplete,
            };
            // Only chunks for buffers that are here come so far.
            let _ = target.copy_chunk(buffer, &header, state, chunk);
            ControlFlow::Continue(())
        })
    }
}
