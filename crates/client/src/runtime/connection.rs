//! One of the services that this producer records for: the times of attempts to connect, and the state of the connection.
//!
//! Driven by [`super::Runtime`], which drives the data sources. A connection goes through *generations*. A generation begins with the first data
//! recorded for a connection, which may be before the socket is connected, and ends when that socket is lost.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ferretto_ipc::reactor::{Waker, boot_now, monotonic_now};
use ferretto_ipc::retry::Retry;
use ferretto_smb::{PageSize, Peer, ProducerSmb, SharedMemory};

use super::link::{Help, Link, Producer};
use super::{ConnectionState, MemoryOptions, ProducerProgram};
use crate::arbiter::{Arbiter, Partitioning};
use crate::data_source::ConnectionId;
use crate::producer::{
    ConnectionFeatures, FlushRequestId, ProducerEndpoint, ProducerOptions, Scraping, SharedMemoryOffer,
};

/// The most memory that is mapped, where the service chooses the size.
const MAX_MAPPED_SMB: usize = 256 * 1024 * 1024;

/// The bytes of memory that are made present before they are written. Chunks are taken from the beginning, so this suffices unless the service is
/// slow.
const POPULATED_BYTES: usize = 1024 * 1024;

/// The size and page size of memory of our own if the options have none: the size that services choose, in pages that they accept.
const OWN_SMB_SIZE: u32 = 256 * 1024;
const OWN_PAGE_SIZE: u32 = 4096;

/// The most triggers that are kept for a service that is not there; the oldest are dropped.
const MAX_WAITING_TRIGGERS: usize = 1000;

/// The options of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The id by which data sources know the connection. No two connections have the same.
    pub id: ConnectionId,
    /// The service's name in the program's log.
    pub name: String,
    /// The name by which trace configs select this producer (`producer_name_filter`).
    pub producer_name: String,
    /// Free text, shown in the service's state.
    pub sdk_version: String,
    /// The shared memory to ask for.
    pub memory: MemoryOptions,
}

/// A connection that a program has opened.
pub struct Connected {
    /// The producer's end.
    pub producer: Producer,
    /// Work for a service on the same thread.
    pub help: Option<Help>,
}

impl Connected {
    /// Takes an endpoint without a wrapper, for a service in another process.
    pub fn new(endpoint: ProducerEndpoint) -> Connected {
        Connected {
            producer: Box::new(Box::new(endpoint)),
            help: None,
        }
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").finish_non_exhaustive()
    }
}

/// The phases of a connection in its generation.
#[derive(Debug)]
enum Phase {
    /// No connection.
    Waiting { until: u64, reason: String },
    /// The service has not answered yet.
    Connecting,
    /// It has.
    Connected { since: u64 },
}

/// Whether memory of our own may be offered to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnMemory {
    /// It was not tried yet.
    Possible,
    /// The service has refused it.
    Refused,
}

/// See the [module](self).
pub(super) struct Connection {
    pub(super) options: ConnectionOptions,
    program: Arc<dyn ProducerProgram>,
    waker: Waker,
    /// The current generation.
    pub(super) generation: u32,
    phase: Phase,
    retry: Retry,
    /// The last reported reason why there was no connection.
    told: Option<String>,
    pub(super) link: Link,
    /// The arbiter that hands out chunks: `Some` once the service has set up tracing, or when memory of our own is offered.
    pub(super) arbiter: Option<Arc<Arbiter>>,
    /// The memory of the arbiter, if it is ours and was not offered yet.
    offered: Option<Arc<SharedMemory>>,
    /// Memory that has to be made present before it is first written.
    unpopulated: Option<Arc<SharedMemory>>,
    pub(super) own_memory: OwnMemory,
    /// The data sources that the service was told of, by index.
    pub(super) registered: Vec<usize>,
    /// The flushes that were not acknowledged, in the order in which they came, each with the serial numbers of the instances that have not flushed
    /// yet.
    flushes: VecDeque<(FlushRequestId, Vec<u32>)>,
    /// Triggers with the boot time at which they expire.
    triggers: VecDeque<(String, u64)>,
}

impl Connection {
    pub(super) fn new(options: ConnectionOptions, program: Arc<dyn ProducerProgram>, waker: Waker) -> Self {
        Self {
            options,
            link: Link::new(program.clone(), waker.clone()),
            program,
            waker,
            generation: 1,
            phase: Phase::Waiting {
                until: 0,
                reason: "not tried yet".to_owned(),
            },
            retry: Retry::default(),
            told: None,
            arbiter: None,
            offered: None,
            unpopulated: None,
            own_memory: OwnMemory::Possible,
            registered: Vec::new(),
            flushes: VecDeque::new(),
            triggers: VecDeque::new(),
        }
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.options.id
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected { .. })
    }

    /// When to connect next.
    pub(super) fn retry_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Waiting { until, .. } => Some(until),
            Phase::Connecting | Phase::Connected { .. } => None,
        }
    }

    /// When the service has to have answered, if it has not.
    pub(super) fn answer_due(&self) -> Option<u64> {
        match self.phase {
            Phase::Connecting => self.link.with(|producer| producer.answer_due()).flatten(),
            Phase::Waiting { .. } | Phase::Connected { .. } => None,
        }
    }

    /// Gives up a service that does not answer.
    pub(super) fn end_silence(&self, now: u64) {
        if let Phase::Connecting = self.phase {
            self.link.with(|producer| producer.handle_timeout(now));
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        match &self.phase {
            Phase::Connected { .. } => ConnectionState::Connected,
            Phase::Connecting => ConnectionState::Connecting,
            Phase::Waiting { until, reason } => ConnectionState::Waiting {
                reason: reason.clone(),
                until: *until,
            },
        }
    }

    /// Connects. Returns the reason if it fails and the reason is new.
    pub(super) fn connect(
        &mut self,
        connect: impl FnOnce(ProducerOptions) -> Result<Connected, String>,
    ) -> Option<String> {
        match self.producer_options().and_then(connect) {
            Ok(connected) => {
                self.link.attach(connected.producer, connected.help);
                self.phase = Phase::Connecting;
                None
            }
            Err(reason) => self.wait(reason),
        }
    }

    /// Makes the next attempt due at once.
    pub(super) fn retry_soon(&mut self) {
        if let Phase::Waiting { until, .. } = &mut self.phase {
            *until = 0;
        }
    }

    fn producer_options(&self) -> Result<ProducerOptions, String> {
        let offered = match &self.offered {
            Some(memory) => Some(
                memory
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(|error| error.to_string())?,
            ),
            None => None,
        };
        let (size, page_size) = match &self.offered {
            Some(memory) => (memory.size() as u32, self.own_page_size()),
            None => (self.options.memory.size, self.options.memory.page_size),
        };
        Ok(ProducerOptions {
            name: self.options.producer_name.clone(),
            sdk_version: self.options.sdk_version.clone(),
            page_size_hint: page_size,
            shared_memory_size_hint: size,
            // Upstream's probes have scraping off. With it, the packets of a killed producer are not lost: nothing is committed before a chunk is
            // full or somebody asks for a flush.
            scraping: Scraping::Enabled,
            shared_memory: offered,
        })
    }

    /// Begins to wait for the next attempt.
    fn wait(&mut self, reason: String) -> Option<String> {
        let until = monotonic_now() + self.retry.pause().as_nanos() as u64;
        let news = self.told.as_ref() != Some(&reason);
        self.told = Some(reason.clone());
        self.phase = Phase::Waiting {
            until,
            reason: reason.clone(),
        };
        news.then_some(reason)
    }

    /// The service has answered. Returns whether it uses the memory that it was offered, if any was.
    pub(super) fn accepted(&mut self, features: ConnectionFeatures) -> OwnMemory {
        self.told = None;
        self.phase = Phase::Connected {
            since: monotonic_now(),
        };
        if self.offered.is_some() && !features.uses_our_shared_memory {
            self.own_memory = OwnMemory::Refused;
        }
        self.own_memory
    }

    /// Begins the next generation, because the connection is lost, or is given up. Writers of this generation drop their packets from now on. Returns
    /// the reason, if that is news, and the old connection.
    pub(super) fn lost(&mut self, reason: String) -> (Option<String>, Option<Producer>) {
        if let Phase::Connected { since } = self.phase {
            self.retry.lasted(Duration::from_nanos(monotonic_now() - since));
        }
        if let Some(arbiter) = self.arbiter.take() {
            arbiter.close();
        }
        let closed = self.link.detach();
        self.link = Link::new(self.program.clone(), self.waker.clone());
        self.offered = None;
        self.unpopulated = None;
        self.registered.clear();
        self.flushes.clear();
        self.generation += 1;
        (self.wait(reason), closed)
    }

    /// The service has set up tracing.
    pub(super) fn set_up_memory(&mut self, offer: SharedMemoryOffer) -> Result<(), String> {
        match offer {
            SharedMemoryOffer::FromService { fd, page_size } => {
                let memory = SharedMemory::attach(fd, Peer::Service, MAX_MAPPED_SMB)
                    .map_err(|error| error.to_string())?;
                self.make_arbiter(Arc::new(memory), page_size)?;
            }
            SharedMemoryOffer::Emulated { page_size } => {
                let arbiter =
                    Arbiter::emulating(pages_of(page_size)?, Partitioning::ByWriters, self.link.clone())
                        .map_err(|error| error.to_string())?;
                arbiter.set_batch_duration(self.options.memory.batch_commits);
                self.arbiter = Some(arbiter);
            }
            SharedMemoryOffer::Ours if self.arbiter.is_some() => {}
            SharedMemoryOffer::Ours => return Err("this producer has offered none".to_owned()),
        }
        if let Some(arbiter) = &self.arbiter {
            self.link.use_memory(arbiter);
        }
        Ok(())
    }

    /// Makes memory to offer to the service at the next connection, if there is none yet.
    pub(super) fn make_own_memory(&mut self) -> Result<&Arc<Arbiter>, String> {
        if self.arbiter.is_none() {
            let size = match self.options.memory.size {
                0 => OWN_SMB_SIZE,
                size => size,
            };
            let memory = Arc::new(SharedMemory::create(size as usize).map_err(|error| error.to_string())?);
            self.make_arbiter(memory.clone(), self.own_page_size())?;
            self.offered = Some(memory);
        }
        self.arbiter
            .as_ref()
            .ok_or_else(|| "there is no shared memory".to_owned())
    }

    fn own_page_size(&self) -> u32 {
        match self.options.memory.page_size {
            0 => OWN_PAGE_SIZE,
            size => size,
        }
    }

    fn make_arbiter(&mut self, memory: Arc<SharedMemory>, page_size: u32) -> Result<(), String> {
        let smb =
            ProducerSmb::new(memory.clone(), pages_of(page_size)?).map_err(|error| error.to_string())?;
        let arbiter = Arbiter::new(smb, Partitioning::ByWriters, self.link.clone());
        arbiter.set_batch_duration(self.options.memory.batch_commits);
        self.arbiter = Some(arbiter);
        self.unpopulated = Some(memory);
        Ok(())
    }

    /// Makes memory present before it is first written. Otherwise the first touch would cost an application's thread a microsecond per page.
    pub(super) fn populate_memory(&mut self) {
        if let Some(memory) = self.unpopulated.take() {
            memory.populate(POPULATED_BYTES);
        }
    }

    /// Instances have begun to flush.
    pub(super) fn begin_flush(&mut self, flush: FlushRequestId, instances: Vec<u32>) {
        self.flushes.push_back((flush, instances));
    }

    /// An instance has flushed for `flush`, or (`None`) takes part in no flush any more.
    pub(super) fn flushed(&mut self, serial: u32, flush: Option<FlushRequestId>) {
        for (id, waiting) in &mut self.flushes {
            if flush.is_none_or(|flush| flush == *id) {
                waiting.retain(|waiting| *waiting != serial);
            }
        }
    }

    /// Acknowledges flushes that are done. An acknowledgement also covers all earlier flushes, so it waits for them.
    pub(super) fn acknowledge_flushes(&mut self) {
        let mut done = None;
        while let Some((flush, waiting)) = self.flushes.front()
            && waiting.is_empty()
        {
            done = Some(*flush);
            self.flushes.pop_front();
        }
        if let Some(flush) = done {
            match &self.arbiter {
                // After the remaining commits.
                Some(arbiter) => arbiter.acknowledge_flush(flush.0),
                None => self.link.request(|producer| producer.acknowledge_flush(flush)),
            }
        }
    }

    /// Activates triggers, now or when the service is there, but not after `expiry` (boot time in nanoseconds).
    pub(super) fn activate_triggers(&mut self, names: &[String], expiry: u64) {
        if self.is_connected() {
            self.link.request(|producer| producer.activate_triggers(names));
        } else {
            let waiting = names.iter().map(|name| (name.clone(), expiry));
            self.triggers.extend(waiting);
            let excess = self.triggers.len().saturating_sub(MAX_WAITING_TRIGGERS);
            self.triggers.drain(..excess);
        }
    }

    /// Activates the triggers that have waited for the service.
    pub(super) fn activate_waiting_triggers(&mut self) {
        let names = self.take_waiting_triggers(boot_now());
        if !names.is_empty() {
            self.link.request(|producer| producer.activate_triggers(&names));
        }
    }

    /// Takes the triggers that have not expired.
    fn take_waiting_triggers(&mut self, now: u64) -> Vec<String> {
        std::mem::take(&mut self.triggers)
            .into_iter()
            .filter(|(_, expiry)| *expiry > now)
            .map(|(name, _)| name)
            .collect()
    }
}

fn pages_of(size: u32) -> Result<PageSize, String> {
    PageSize::new(size as usize).ok_or_else(|| format!("{size} bytes are no page size"))
}

#[cfg(test)]
mod tests;
