//! The state that the sessions of a service share: the clients, the outputs, the timers.
//!
//! [`Service`](crate::Service) owns it beside the sessions and lends it to the session that an input concerns. That session reaches nothing
//! else. If others have to know, it leaves an [`Effect`], and the service handles that next.

use std::collections::VecDeque;

use crate::clock::ProcessorClock;
use crate::clone::BufferGroup;
use crate::identity::Identity;
use crate::ids::{DataSourceInstanceId, FlushRequestId, SessionId};
use crate::ordered::OrderedSet;
use crate::outbox::Outbox;
use crate::output::FlushOutcome;
use crate::producers::Producers;
use crate::session::BatchEnd;
use crate::session::concurrent::Change;
use crate::timers::Timers;

/// See the module's documentation.
pub(crate) struct Common {
    pub(crate) identity: Identity,
    pub(crate) producers: Producers,
    pub(crate) outbox: Outbox,
    pub(crate) timers: Timers,
    pub(crate) effects: VecDeque<Effect>,
    /// The service ends, so no session may begin any more.
    pub(crate) is_ending: bool,
    /// Sessions whose producers were scraped since the last acknowledgement or deadline. One scrape serves all flushes that end together.
    pub(crate) scraped: OrderedSet<SessionId>,
    /// The clock that measures work which could take long.
    pub(crate) processor_clock: Option<ProcessorClock>,
    /// Reused by commits and scrapes for the chunk being copied.
    pub(crate) chunk: Vec<u8>,
    last_instance: u64,
    last_flush: u64,
}

/// A consequence of an input for others than its session.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A session's state changed. Sessions that record such changes are told.
    StateChanged(Change),
    /// The producers that write into a group of the original's buffers have flushed for this clone, or had their time to.
    FlushedForClone {
        clone: SessionId,
        group: BufferGroup,
        outcome: FlushOutcome,
    },
    /// A batch arrived in this session's file, or a part of it did.
    BatchArrived { original: SessionId, end: BatchEnd },
    /// The original of this clone ended before the clone was complete.
    OriginalEnded { clone: SessionId },
    /// The file of this clone is complete, or will not be.
    CloneFileOver(SessionId),
    /// A session was freed, so its priority boost no longer counts.
    PriorityReleased,
    /// This session has nothing left to do.
    Over(SessionId),
}

impl Common {
    pub(crate) fn new(identity: Identity) -> Common {
        Common {
            identity,
            producers: Producers::default(),
            outbox: Outbox::default(),
            timers: Timers::default(),
            effects: VecDeque::new(),
            is_ending: false,
            scraped: OrderedSet::new(),
            processor_clock: None,
            chunk: Vec::new(),
            last_instance: 0,
            last_flush: 0,
        }
    }

    /// Separates the flushes that end from now on from earlier ones: to be called where acknowledgements and deadlines come in.
    pub(crate) fn begin_turn(&mut self) {
        self.scraped = OrderedSet::new();
    }

    pub(crate) fn next_flush_id(&mut self) -> FlushRequestId {
        self.last_flush += 1;
        FlushRequestId(self.last_flush)
    }

    pub(crate) fn next_instance_id(&mut self) -> DataSourceInstanceId {
        self.last_instance += 1;
        DataSourceInstanceId(self.last_instance)
    }

    /// Instances of data sources that there ever were.
    pub(crate) fn instances_seen(&self) -> u64 {
        self.last_instance
    }
}
