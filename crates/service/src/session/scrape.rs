//! Scraping: the service copies packets that writers finished but did not commit out of shared memory.
//!
//! A session scrapes all producers that allow it when a flush ends and when it stops. A producer that disconnects is scraped in any case, because it
//! will not commit anything any more.

use std::ops::ControlFlow;

use ferretto_smb::Completeness;

use crate::ids::{BufferId, ProducerId, WriterId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::producers::{Owner, Producer, writer_id};
use crate::session::Session;
use crate::session::common::Common;
use crate::trace_buffer::{ChunkState, TraceBuffer};

/// The remaining budget of a scrape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrapeBudget {
    /// Bytes that may be copied.
    bytes: usize,
    /// Pages that may be looked at.
    pages: usize,
    /// Work of programs that merge overwritten packets.
    protovm_work: u64,
}

impl ScrapeBudget {
    /// For the producers of one owner.
    pub(crate) fn of_owner() -> ScrapeBudget {
        ScrapeBudget {
            bytes: limits::MAX_SCRAPED_PER_UID,
            pages: limits::MAX_PAGES_SCRAPED_PER_UID,
            protovm_work: limits::MAX_PROTOVM_WORK_AT_ONCE,
        }
    }

    /// For a producer that goes away: its leftovers are taken now or never, however much they are.
    pub(crate) fn of_the_last_time() -> ScrapeBudget {
        ScrapeBudget {
            bytes: usize::MAX,
            pages: usize::MAX,
            ..ScrapeBudget::of_owner()
        }
    }
}

/// Chunks whose writer is not registered.
#[derive(Debug)]
pub(crate) enum Strangers {
    /// They are left alone, since the registration may still come.
    Stay,
    /// The producer writes into one buffer only, so they go there.
    MeantFor(BufferId),
    /// The producer writes into several buffers, and nothing says which is meant. Counts the chunks.
    Lost(u64),
}

impl Strangers {
    /// How to treat them when a producer goes away that writes into these buffers of sessions that record.
    pub(crate) fn of_one_that_writes_into(targets: &OrderedSet<BufferId>) -> Strangers {
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

/// The buffers that are scraped for.
pub(crate) trait Targets {
    /// The buffer that producers know by this id, if it is among them.
    fn buffer_mut(&mut self, id: BufferId) -> Option<&mut TraceBuffer>;
}

impl Targets for Session {
    fn buffer_mut(&mut self, id: BufferId) -> Option<&mut TraceBuffer> {
        Session::buffer_mut(self, id)
    }
}

impl Session {
    /// Scrapes the shared memory of every producer for the buffers of this session, within the limits of one flush for each owner.
    pub(crate) fn scrape_all(&mut self, common: &mut Common) {
        let mut left: OrderedMap<Owner, ScrapeBudget> = OrderedMap::new();
        let mut cut = None;
        let buffers = self.buffer_ids.clone();
        for (id, producer) in common.producers.iter() {
            if !producer.may_be_scraped() {
                continue;
            }
            let owner = producer.owner();
            let left = left.get_or_insert_with(owner, ScrapeBudget::of_owner);
            let mut scraping = ScrapedProducer {
                id,
                producer,
                buffers: &buffers,
                strangers: &mut Strangers::Stay,
            };
            if scraping.scrape(self, left, &mut common.chunk).is_break() {
                cut.get_or_insert(owner);
            }
        }
        if let Some(owner) = cut
            && !std::mem::replace(&mut self.scrape_told, true)
        {
            common.outbox.warn(format!(
                "tracing session {}: the producers of {owner} have left more than {} bytes, or filled more than {} pages, in their \
                 shared memory: a flush did not take all of it",
                self.id,
                limits::MAX_SCRAPED_PER_UID,
                limits::MAX_PAGES_SCRAPED_PER_UID
            ));
        }
    }
}

/// A producer whose memory is scraped.
pub(crate) struct ScrapedProducer<'a> {
    pub(crate) id: ProducerId,
    pub(crate) producer: &'a Producer,
    /// Chunks are taken that are meant for these.
    pub(crate) buffers: &'a [BufferId],
    pub(crate) strangers: &'a mut Strangers,
}

impl ScrapedProducer<'_> {
    /// Copies the packets that the producer's writers have finished but not committed. Breaks if there is more than `left` allows.
    /// `chunk` is scratch space.
    pub(crate) fn scrape(
        &mut self,
        targets: &mut impl Targets,
        left: &mut ScrapeBudget,
        chunk: &mut Vec<u8>,
    ) -> ControlFlow<()> {
        let producer = self.producer;
        let may_hold_any = !producer.writers.is_empty() || !matches!(self.strangers, Strangers::Stay);
        let Some(smb) = producer.smb.as_ref().filter(|_| may_hold_any) else {
            return ControlFlow::Continue(());
        };
        let wanted: OrderedSet<BufferId> = self
            .buffers
            .iter()
            .filter(|buffer| producer.allowed_buffers.contains(*buffer))
            .copied()
            .collect();
        if wanted.is_empty() {
            return ControlFlow::Continue(());
        }
        let ScrapeBudget {
            bytes,
            pages,
            protovm_work,
        } = left;
        smb.scrape_until(pages, |candidate| {
            let header = candidate.header();
            let known = producer.writers.get(&header.writer).copied();
            let meant_for = known.or_else(|| self.strangers.place(header.writer));
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
            let target = targets.buffer_mut(buffer);
            // Only chunks for existing buffers get here.
            let _ = producer.copy_chunk(self.id, buffer, target, (&header, state, chunk), protovm_work);
            ControlFlow::Continue(())
        })
    }
}
