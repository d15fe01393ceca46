//! One of the services that this process records for: connecting to it, again and again if need be, and the state of the connection.
//!
//! Driven by [`super::thread`], which decides what becomes of data sources. A backend goes through *generations*: one is a connection
//! with whatever was recorded for it before it was there, and ends when it is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_client::arbiter::{Arbiter, Partitioning};
use ferretto_client::consumer::ConsumerEndpoint;
use ferretto_client::producer::{
    ConnectionFeatures, FlushRequestId, ProducerEndpoint, ProducerOptions, Scraping, SharedMemoryOffer,
};
use ferretto_ipc::reactor::{Waker, boot_now, monotonic_now};
use ferretto_ipc::{Address, Stream, socket_names};
#[cfg(feature = "in-process")]
use ferretto_service::MachineId;
use ferretto_smb::{PageSize, Peer, ProducerSmb, SharedMemory};
use std::os::fd::AsFd;

use super::link::Link;
use super::producer::ProducerLink;
use super::served::Watch;
#[cfg(feature = "in-process")]
use crate::in_process::InProcess;
use crate::options::{Backend, BackendOptions, MemoryOptions, Port, Transport};
use crate::process_hooks::KeptFromChildren;
use crate::status::ConnectionStatus;

/// The first wait before connecting again. Each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// The longest. Who starts a service after the application does not want to wait; an attempt costs some ten microseconds.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// A connection that ends sooner than this is no reason to begin anew with short waits.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);

/// The most memory that is mapped for a service that decides on it.
const MAX_SMB_SIZE: usize = 256 * 1024 * 1024;

/// Memory is made present so far before it is written; chunks are taken from its beginning, so that it suffices unless the service is slow.
const POPULATED_BYTES: usize = 1024 * 1024;

/// What memory of our own is like if the options do not say: the size that services choose, in pages that they accept.
const OWN_SMB_SIZE: u32 = 256 * 1024;
const OWN_PAGE_SIZE: u32 = 4096;

/// More triggers than this are not kept for a service that is not there: the oldest go.
const MAX_WAITING_TRIGGERS: usize = 1000;

/// How to reach a service.
enum Way {
    System {
        producer: Option<Address>,
        consumer: Option<Address>,
    },
    Transport(Box<dyn Transport>),
    #[cfg(feature = "in-process")]
    InProcess(InProcess),
}

/// Where a backend is in its generation.
#[derive(Debug)]
enum Phase {
    /// No connection.
    Waiting { until: u64, reason: String },
    /// The service has not answered yet.
    Connecting,
    /// It has.
    Connected { since: u64 },
}

/// Whether the service may be offered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnMemory {
    /// It was not tried.
    Possible,
    /// It was, and the service would not have it.
    Refused,
}

/// See the [module](self).
pub(super) struct BackendState {
    backend: Backend,
    way: Way,
    memory: MemoryOptions,
    waker: Waker,
    /// Which generation this is.
    pub(super) generation: u32,
    phase: Phase,
    attempts: u32,
    /// Why there was no connection the last time that it was told.
    told: Option<String>,
    pub(super) watch: Watch,
    pub(super) link: Link,
    /// What chunks come from: once the service has set up tracing, or since memory of our own is offered.
    pub(super) arbiter: Option<Arc<Arbiter>>,
    /// The memory of the arbiter, if it is ours, to be offered.
    offered: Option<Arc<SharedMemory>>,
    /// To be made present before it is first written.
    unpopulated: Option<Arc<SharedMemory>>,
    pub(super) own_memory: OwnMemory,
    /// The data sources, by id, that the service was told of.
    pub(super) registered: Vec<u64>,
    /// All flushes that were not acknowledged, in the order in which they came, and by serial number which instances have not done
    /// what they are to do for them.
    flushes: VecDeque<(FlushRequestId, Vec<u32>)>,
    /// With the boot time at which they expire.
    triggers: VecDeque<(String, u64)>,
}

impl BackendState {
    pub(super) fn new(options: BackendOptions, memory: MemoryOptions, watch: Watch, waker: Waker) -> Self {
        let backend = options.backend();
        let way = match options {
            BackendOptions::System { producer, consumer } => Way::System { producer, consumer },
            BackendOptions::Custom(transport) => Way::Transport(transport),
            #[cfg(feature = "in-process")]
            BackendOptions::InProcess { machine } => {
                Way::InProcess(InProcess::new(MachineId(machine), waker.clone()))
            }
        };
        Self {
            backend,
            way,
            memory,
            link: Link::new(waker.clone()),
            waker,
            generation: 1,
            phase: Phase::Waiting {
                until: 0,
                reason: "not tried yet".to_owned(),
            },
            attempts: 0,
            told: None,
            watch,
            arbiter: None,
            offered: None,
            unpopulated: None,
            own_memory: OwnMemory::Possible,
            registered: Vec::new(),
            flushes: VecDeque::new(),
            triggers: VecDeque::new(),
        }
    }

    pub(super) fn backend(&self) -> Backend {
        self.backend
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected { .. })
    }

    /// When to connect.
    pub(super) fn retry_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Waiting { until, .. } => Some(until),
            Phase::Connecting | Phase::Connected { .. } => None,
        }
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        match &self.phase {
            Phase::Connected { .. } => ConnectionStatus::Connected,
            Phase::Connecting => ConnectionStatus::Connecting,
            Phase::Waiting { until, reason } => ConnectionStatus::NotConnected {
                reason: reason.clone(),
                retry: Instant::now() + Duration::from_nanos(until.saturating_sub(monotonic_now())),
            },
        }
    }

    /// Connects. Says why not, if that is news.
    pub(super) fn connect(&mut self, producer_name: &str) -> Option<String> {
        match self.try_to_connect(producer_name) {
            Ok(endpoint) => {
                self.link.attach(endpoint);
                self.phase = Phase::Connecting;
                None
            }
            Err(reason) => self.wait(reason),
        }
    }

    /// Does not wait any longer for the next attempt.
    pub(super) fn retry_soon(&mut self) {
        if let Phase::Waiting { until, .. } = &mut self.phase {
            *until = 0;
        }
    }

    fn try_to_connect(&mut self, producer_name: &str) -> Result<ProducerLink, String> {
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
            None => (self.memory.size, self.memory.page_size),
        };
        let options = ProducerOptions {
            name: producer_name.to_owned(),
            sdk_version: concat!("ferretto ", env!("CARGO_PKG_VERSION")).to_owned(),
            page_size_hint: page_size,
            shared_memory_size_hint: size,
            scraping: Scraping::Enabled,
            shared_memory: offered,
        };
        #[cfg(feature = "in-process")]
        if let Way::InProcess(service) = &self.way {
            return Ok(ProducerLink::InProcess(service.connect_producer(options)));
        }
        let stream = self.stream(Port::Producer)?;
        let endpoint = ProducerEndpoint::over(stream, options).map_err(|error| error.to_string())?;
        Ok(ProducerLink::Ipc(KeptFromChildren::new(Box::new(endpoint))))
    }

    /// The service, if it is in this process.
    #[cfg(feature = "in-process")]
    pub(super) fn in_process(&self) -> Option<&InProcess> {
        match &self.way {
            Way::InProcess(service) => Some(service),
            Way::System { .. } | Way::Transport(_) => None,
        }
    }

    /// A consumer's connection to the same service.
    pub(super) fn connect_consumer(&mut self) -> Result<ConsumerEndpoint, String> {
        let stream = self.stream(Port::Consumer)?;
        // What is there for consumers is there for producers.
        self.retry_soon();
        ConsumerEndpoint::over(stream).map_err(|error| error.to_string())
    }

    fn stream(&mut self, port: Port) -> Result<Stream, String> {
        match &mut self.way {
            Way::System { producer, consumer } => {
                let (given, usual): (_, fn() -> _) = match port {
                    Port::Producer => (producer, socket_names::producer_address),
                    Port::Consumer => (consumer, socket_names::consumer_address),
                };
                let address = match given {
                    Some(address) => address.clone(),
                    None => usual().map_err(|error| error.to_string())?,
                };
                Stream::connect(&address).map_err(|error| error.to_string())
            }
            #[cfg(feature = "in-process")]
            Way::InProcess(_) => Err("the service is in this process, behind no socket".to_owned()),
            Way::Transport(transport) => {
                let fd = super::guarded(|| transport.connect(port))
                    .ok_or("the transport has panicked")?
                    .map_err(|error| error.to_string())?;
                Stream::from_fd(fd).map_err(|error| error.to_string())
            }
        }
    }

    /// Waits for the next attempt.
    fn wait(&mut self, reason: String) -> Option<String> {
        let pause = FIRST_RETRY
            .saturating_mul(1 << self.attempts.min(16))
            .min(LAST_RETRY);
        self.attempts += 1;
        let until = monotonic_now() + pause.as_nanos() as u64;
        let news = self.told.as_ref() != Some(&reason);
        self.told = Some(reason.clone());
        self.phase = Phase::Waiting {
            until,
            reason: reason.clone(),
        };
        news.then_some(reason)
    }

    /// The service has answered. Whether it uses the memory that it was offered, if any was.
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

    /// The connection is lost, or to be given up: begins the next generation. Writers of this one drop what they are given from now
    /// on. Says why, if that is news.
    pub(super) fn lost(&mut self, reason: String) -> Option<String> {
        if let Phase::Connected { since } = self.phase
            && monotonic_now() - since >= GOOD_CONNECTION.as_nanos() as u64
        {
            self.attempts = 0;
        }
        if let Some(arbiter) = self.arbiter.take() {
            arbiter.close();
        }
        self.link.detach();
        self.link = Link::new(self.waker.clone());
        self.offered = None;
        self.unpopulated = None;
        self.registered.clear();
        self.flushes.clear();
        self.generation += 1;
        self.wait(reason)
    }

    /// The service has set up tracing.
    pub(super) fn set_up_memory(&mut self, offer: SharedMemoryOffer) -> Result<(), String> {
        match offer {
            SharedMemoryOffer::FromService { fd, page_size } => {
                let memory = SharedMemory::attach(fd, Peer::Service, MAX_SMB_SIZE)
                    .map_err(|error| error.to_string())?;
                self.make_arbiter(Arc::new(memory), page_size)?;
            }
            SharedMemoryOffer::InProcess { memory, page_size } => self.make_arbiter(memory, page_size)?,
            SharedMemoryOffer::Emulated { page_size } => {
                let arbiter =
                    Arbiter::emulating(pages_of(page_size)?, Partitioning::ByWriters, self.link.clone())
                        .map_err(|error| error.to_string())?;
                arbiter.set_batch_duration(self.memory.batch_commits);
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

    /// Makes memory to be offered to the service when it is connected to the next time, if it does not have some yet.
    pub(super) fn make_own_memory(&mut self) -> Result<&Arc<Arbiter>, String> {
        if self.arbiter.is_none() {
            let size = match self.memory.size {
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
        match self.memory.page_size {
            0 => OWN_PAGE_SIZE,
            size => size,
        }
    }

    fn make_arbiter(&mut self, memory: Arc<SharedMemory>, page_size: u32) -> Result<(), String> {
        let smb =
            ProducerSmb::new(memory.clone(), pages_of(page_size)?).map_err(|error| error.to_string())?;
        let arbiter = Arbiter::new(smb, Partitioning::ByWriters, self.link.clone());
        arbiter.set_batch_duration(self.memory.batch_commits);
        self.arbiter = Some(arbiter);
        self.unpopulated = Some(memory);
        Ok(())
    }

    /// What is written from now on finds memory present: its first touch costs a microsecond a page, and would be an application
    /// thread's.
    pub(super) fn populate_memory(&mut self) {
        if let Some(memory) = self.unpopulated.take() {
            memory.populate(POPULATED_BYTES);
        }
    }

    /// Instances have begun to flush.
    pub(super) fn begin_flush(&mut self, flush: FlushRequestId, instances: Vec<u32>) {
        self.flushes.push_back((flush, instances));
    }

    /// An instance has flushed, or (`None`) needs to for no flush any more.
    pub(super) fn flushed(&mut self, serial: u32, flush: Option<FlushRequestId>) {
        for (id, waiting) in &mut self.flushes {
            if flush.is_none_or(|flush| flush == *id) {
                waiting.retain(|waiting| *waiting != serial);
            }
        }
    }

    /// Acknowledges flushes that are done. One stands for all before it, so it waits for them.
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
                // After what is still to be committed.
                Some(arbiter) => arbiter.acknowledge_flush(flush.0),
                None => drop(self.link.with(|producer| producer.acknowledge_flush(flush))),
            }
        }
    }

    /// Activates triggers, now or when the service is there, unless that is after `expiry` (boot time in nanoseconds).
    pub(super) fn activate_triggers(&mut self, names: &[String], expiry: u64) {
        if self.is_connected() {
            self.link.with(|producer| producer.activate_triggers(names));
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
            self.link.with(|producer| producer.activate_triggers(&names));
        }
    }

    /// Those that have not expired.
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
