//! Clients that load a service in benches: any number of producers and consumers in one thread, with our own client library, so that both sides'
//! services get the same bytes in the same order.

#![allow(dead_code)] // Each bench uses a part of it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Wake};
use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_client::producer::{
    ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions, SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::client::{CallId, More};
use ferretto_ipc::reactor::{Deadline, Events, Interest, Token};
use ferretto_ipc::{Address, Reactor};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{DataSourceDescriptor, Message as _, TestEvent, TracePacket, TraceStats};
use ferretto_smb::{PageLayout, PageSize, Peer, ProducerSmb, SharedMemory};

/// The data source that every producer has.
pub(crate) const DATA_SOURCE: &str = "ferretto.bench";
/// The size in bytes of an event: a packet with a timestamp and some text.
pub(crate) const EVENT_BYTES: usize = 100;
/// The time limit for anything but the load itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first token of a consumer.
const FIRST_CONSUMER: u64 = 1 << 32;

/// The time at which producers tell the service of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Commits {
    /// As each is full, as clients do that were not told to batch.
    EachChunk,
    /// Once a tick of the load.
    EachTick,
}

/// The rate of events, by all producers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Events in each tick.
    pub(crate) events: u64,
    pub(crate) tick: Duration,
}

/// Every client of one service.
pub(crate) struct Clients {
    reactor: Reactor,
    events: Events,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
}

struct Consumer {
    endpoint: ConsumerEndpoint,
    interest: Interest,
    replies: VecDeque<(CallId, ConsumerReply)>,
}

impl Consumer {
    fn receive(&mut self) {
        self.endpoint.on_readable();
        while let Some(event) = self.endpoint.next_event() {
            match event {
                ConsumerEvent::Connected => {}
                ConsumerEvent::Reply { request, reply, .. } => {
                    self.replies
                        .push_back((request, reply.expect("a request that is granted")));
                }
                ConsumerEvent::Disconnected(reason) => panic!("{reason}"),
            }
        }
    }
}

/// One producer: a connection with shared memory of its own, one data source, and a writer for each instance of it.
struct Producer {
    link: Arc<Link>,
    interest: Interest,
    arbiter: Option<Arc<Arbiter>>,
    writers: Vec<TraceWriter>,
    synced: bool,
}

/// The way from a producer's writer to the service. Commits take it at once, on the thread that writes.
struct Link {
    endpoint: Mutex<ProducerEndpoint>,
    arbiter: OnceLock<Weak<Arbiter>>,
    commits: Commits,
}

impl Link {
    fn with_endpoint<T>(&self, act: impl FnOnce(&mut ProducerEndpoint) -> T) -> T {
        act(&mut self.endpoint.lock().expect("no panic with it"))
    }

    fn send(&self) {
        let arbiter = self.arbiter.get().and_then(Weak::upgrade);
        self.with_endpoint(|endpoint| {
            for request in arbiter.iter().flat_map(|arbiter| arbiter.take_requests()) {
                endpoint.send(request).expect("a service that reads");
            }
            endpoint.flush();
        });
    }
}

struct Sender(Arc<Link>);

impl Notify for Sender {
    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Within(_) if self.0.commits == Commits::EachTick => {}
            _ => self.0.send(),
        }
    }
}

impl Producer {
    fn connect(address: &Address, number: usize, commits: Commits) -> Producer {
        let options = ProducerOptions {
            name: format!("ferretto.bench.{number}"),
            sdk_version: "ferretto bench".into(),
            ..Default::default()
        };
        let mut endpoint = ProducerEndpoint::connect(address, options).expect("a service");
        endpoint
            .register_data_source(DataSourceDescriptor {
                name: Some(DATA_SOURCE.into()),
                will_notify_on_start: Some(true),
                ..Default::default()
            })
            .expect("room for a request");
        endpoint.sync().expect("room for a request");
        let link = Link {
            endpoint: Mutex::new(endpoint),
            arbiter: OnceLock::new(),
            commits,
        };
        Producer {
            link: Arc::new(link),
            interest: Interest::Both,
            arbiter: None,
            writers: Vec::new(),
            synced: false,
        }
    }

    fn handle(&mut self, event: ProducerEvent) {
        let command = match event {
            ProducerEvent::Connected(_) => return,
            ProducerEvent::Synced(_) => return self.synced = true,
            ProducerEvent::Command(command) => command,
            other => panic!("{other:?}"),
        };
        match command {
            ProducerCommand::SetupTracing(SharedMemoryOffer::FromService { fd, page_size }) => {
                let memory = SharedMemory::attach(fd, Peer::Service, usize::MAX).expect("shared memory");
                let page_size = PageSize::new(page_size as usize).expect("a page size");
                let smb = ProducerSmb::new(Arc::new(memory), page_size).expect("pages");
                let arbiter = Arbiter::new(smb, PageLayout::Div1, Sender(Arc::clone(&self.link)));
                if self.link.commits == Commits::EachTick {
                    arbiter.set_batch_duration(PATIENCE);
                }
                let _ = self.link.arbiter.set(Arc::downgrade(&arbiter));
                self.arbiter = Some(arbiter);
            }
            ProducerCommand::SetupTracing(other) => panic!("{other:?}"),
            ProducerCommand::StartDataSource(setup) => {
                let target = setup.config.target_buffer.unwrap_or_default();
                let target = BufferId(target.try_into().expect("a buffer id"));
                let arbiter = self.arbiter.as_ref().expect("shared memory comes first");
                // Nothing may be lost, because the bench measures the cost of a given number of events.
                let writer = arbiter.create_trace_writer(target, BufferExhaustedPolicy::Stall);
                self.writers.push(writer.expect("a writer"));
                self.link
                    .with_endpoint(|endpoint| endpoint.notify_data_source_started(setup.instance))
                    .expect("room for a request");
            }
            ProducerCommand::Flush(flush) => {
                self.writers.iter_mut().for_each(TraceWriter::flush);
                if let Some(arbiter) = &self.arbiter {
                    arbiter.acknowledge_flush(flush.id.0);
                }
            }
            ProducerCommand::SetupDataSource(_)
            | ProducerCommand::StopDataSource(_)
            | ProducerCommand::ClearIncrementalState(_) => {}
        }
    }
}

impl Clients {
    /// Makes an empty set.
    pub(crate) fn new() -> Clients {
        Clients {
            reactor: Reactor::new().expect("a reactor"),
            events: Events::new(),
            producers: Vec::new(),
            consumers: Vec::new(),
        }
    }

    /// Connects producers, and waits until the service knows their data sources.
    pub(crate) fn add_producers(&mut self, address: &Address, count: usize, commits: Commits) {
        for _ in 0..count {
            let number = self.producers.len();
            let producer = Producer::connect(address, number, commits);
            producer
                .link
                .with_endpoint(|endpoint| {
                    self.reactor
                        .register(&*endpoint, Token(number as u64), Interest::Both)
                })
                .expect("a descriptor");
            self.producers.push(producer);
        }
        self.turn_until(|clients| clients.producers.iter().all(|producer| producer.synced));
    }

    /// Enables a session of a new consumer; returns the consumer's number and the call that will be answered when the session ends.
    pub(crate) fn enable(
        &mut self,
        address: &Address,
        config: &[u8],
        file: Option<OwnedFd>,
    ) -> (usize, CallId) {
        let number = self.consumers.len();
        let mut endpoint = ConsumerEndpoint::connect(address).expect("a service");
        let call = endpoint.enable_tracing(config, file).expect("room for a request");
        self.reactor
            .register(
                endpoint.as_fd(),
                Token(FIRST_CONSUMER + number as u64),
                Interest::Both,
            )
            .expect("a descriptor");
        self.consumers.push(Consumer {
            endpoint,
            interest: Interest::Both,
            replies: VecDeque::new(),
        });
        // An answer to this shows that the session exists.
        self.stats(number);
        (number, call)
    }

    /// Waits until every producer takes part in so many sessions.
    pub(crate) fn await_producers(&mut self, sessions: usize) {
        self.turn_until(|clients| {
            clients
                .producers
                .iter()
                .all(|producer| producer.writers.len() >= sessions)
        });
        self.sync();
    }

    /// Returns the next reply to a request of a consumer, and drops replies to other requests.
    pub(crate) fn reply(&mut self, consumer: usize, call: CallId) -> ConsumerReply {
        let mut found = None;
        self.turn_until(|clients| {
            let replies = &mut clients.consumers[consumer].replies;
            while let Some((request, reply)) = replies.pop_front() {
                if request == call {
                    found = Some(reply);
                    break;
                }
            }
            found.is_some()
        });
        found.expect("a reply")
    }

    /// Ends a session; `enabled` is the call that enabled it.
    pub(crate) fn disable(&mut self, (consumer, enabled): (usize, CallId)) {
        self.consumers[consumer]
            .endpoint
            .disable_tracing()
            .expect("room for a request");
        match self.reply(consumer, enabled) {
            ConsumerReply::TracingDisabled { error: None } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Returns the statistics of a consumer's session.
    pub(crate) fn stats(&mut self, consumer: usize) -> TraceStats {
        let endpoint = &mut self.consumers[consumer].endpoint;
        let call = endpoint.trace_stats().expect("room for a request");
        match self.reply(consumer, call) {
            ConsumerReply::TraceStats(stats) => *stats,
            other => panic!("{other:?}"),
        }
    }

    /// Frees the buffers of a consumer's session.
    pub(crate) fn free(&mut self, consumer: usize) {
        let endpoint = &mut self.consumers[consumer].endpoint;
        let call = endpoint.free_buffers().expect("room for a request");
        self.reply(consumer, call);
    }

    /// Reads a session's buffers to their end and passes each packet to `visit`.
    pub(crate) fn read(&mut self, consumer: usize, mut visit: impl FnMut(&[u8])) {
        let endpoint = &mut self.consumers[consumer].endpoint;
        let call = endpoint.read_buffers().expect("room for a request");
        loop {
            match self.reply(consumer, call) {
                ConsumerReply::TraceData { packets, more } => {
                    packets.iter().for_each(&mut visit);
                    if more == More::Last {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Makes the producers write `count` events in turn into their first session, and waits until the service has all of them.
    pub(crate) fn write(&mut self, count: u64, pace: Pace) {
        let event = event();
        let (mut written, mut producer) = (0, 0);
        let mut due = Instant::now();
        while written < count {
            for _ in 0..pace.events.min(count - written) {
                self.producers[producer].writers[0].write_packet(&event);
                producer = (producer + 1) % self.producers.len();
                written += 1;
            }
            self.turn(Deadline::Monotonic(0));
            due += pace.tick;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        for producer in &mut self.producers {
            producer.writers[0].flush();
        }
        self.sync();
    }

    /// Waits until the service has handled everything that the producers have sent.
    pub(crate) fn sync(&mut self) {
        for producer in &mut self.producers {
            producer.synced = false;
            producer
                .link
                .with_endpoint(ProducerEndpoint::sync)
                .expect("room for a request");
        }
        self.turn_until(|clients| clients.producers.iter().all(|producer| producer.synced));
    }

    fn turn_until(&mut self, mut done: impl FnMut(&mut Clients) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < until, "nothing for {PATIENCE:?}");
            self.turn(Deadline::after(Duration::from_secs(1)));
        }
    }

    /// Sends pending data, then handles arriving data until `deadline`.
    fn turn(&mut self, deadline: Deadline) {
        for (producer, number) in self.producers.iter_mut().zip(0..) {
            producer.link.send();
            producer.link.with_endpoint(|endpoint| {
                let wanted = endpoint.interest();
                if wanted != std::mem::replace(&mut producer.interest, wanted) {
                    self.reactor
                        .reregister(&*endpoint, Token(number), wanted)
                        .expect("a descriptor");
                }
            });
        }
        for (consumer, number) in self.consumers.iter_mut().zip(FIRST_CONSUMER..) {
            consumer.endpoint.flush();
            let wanted = consumer.endpoint.interest();
            if wanted != std::mem::replace(&mut consumer.interest, wanted) {
                self.reactor
                    .reregister(consumer.endpoint.as_fd(), Token(number), wanted)
                    .expect("a descriptor");
            }
        }
        self.reactor
            .wait(&mut self.events, Some(deadline))
            .expect("events");
        for event in self.events.ready() {
            match event.token.0.checked_sub(FIRST_CONSUMER) {
                Some(consumer) => self.consumers[consumer as usize].receive(),
                None => {
                    let producer = &mut self.producers[event.token.0 as usize];
                    producer.link.with_endpoint(ProducerEndpoint::on_readable);
                    while let Some(event) = producer.link.with_endpoint(ProducerEndpoint::next_event) {
                        producer.handle(event);
                    }
                }
            }
        }
    }
}

/// Returns the address of a service.
pub(crate) fn address(socket: &Path) -> Address {
    socket.to_string_lossy().parse().expect("the path of a socket")
}

/// An event of [`EVENT_BYTES`] bytes.
fn event() -> Vec<u8> {
    let encode = |text: usize| {
        let event = TestEvent {
            str: Some("x".repeat(text)),
            ..Default::default()
        };
        TracePacket {
            timestamp: Some(1_700_000_000_000_000_000),
            data: Some(Data::ForTesting(Box::new(event))),
            ..Default::default()
        }
        .encode_to_vec()
    };
    let event = encode(EVENT_BYTES - encode(0).len());
    assert_eq!(event.len(), EVENT_BYTES);
    event
}

/// Whether a packet is an event, and not one of the service's own packets.
pub(crate) fn is_event(packet: &[u8]) -> bool {
    ferretto_wire::Reader::new(packet)
        .flatten()
        .any(|field| field.number == ferretto_proto::write::TracePacket::FOR_TESTING)
}
