//! Our producer and our consumer with upstream's service and command line.
#![allow(clippy::unwrap_used)]

#[path = "../../ipc/tests/reference/mod.rs"]
mod reference;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Wake};
use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_client::producer::{
    DataSourceInstanceId, DataSourceSetup, Disconnect, ProducerCommand, ProducerEndpoint, ProducerEvent,
    ProducerOptions, SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::client::{CallId, More};
use ferretto_ipc::reactor::{Deadline, Events, Interest, Token, Waker};
use ferretto_ipc::{Address, Reactor};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, Message as _, TestEvent, Trace, TraceConfig, TracePacket,
};
use ferretto_smb::{PageLayout, PageSize, Peer, ProducerSmb, SharedMemory};
use reference::{Reference, Running};

const DATA_SOURCE: &str = "ferretto.interop";
const PRODUCER: Token = Token(0);
const CONSUMER: Token = Token(1);

/// Small packets, among them some that need many chunks, and one that needs many IPC frames.
fn test_packets() -> Vec<String> {
    (0..2000)
        .map(|number: usize| {
            let size = match number {
                1000 => 1_000_000,
                number if number % 100 == 0 => 10_000,
                _ => number % 50,
            };
            format!("{number}:{}", "x".repeat(size))
        })
        .collect()
}

fn encode(text: &str) -> Vec<u8> {
    let event = TestEvent {
        str: Some(text.to_owned()),
        ..Default::default()
    };
    TracePacket {
        data: Some(Data::ForTesting(Box::new(event))),
        ..Default::default()
    }
    .encode_to_vec()
}

/// The texts of the test packets in a trace, in order.
fn texts<'a>(packets: impl Iterator<Item = &'a TracePacket>) -> Vec<String> {
    packets
        .filter_map(|packet| match &packet.data {
            Some(Data::ForTesting(event)) => event.str.clone(),
            _ => None,
        })
        .collect()
}

/// Wakes the loop, which takes the arbiter's requests on every turn.
struct WakeLoop(Waker);

impl Notify for WakeLoop {
    fn wake(&self, _: Wake) {
        self.0.wake();
    }
}

/// A producer with one data source, which writes the test packets when it starts.
struct Producer {
    endpoint: ProducerEndpoint,
    waker: Waker,
    arbiter: Option<Arc<Arbiter>>,
    writers: HashMap<DataSourceInstanceId, TraceWriter>,
    /// The service's commands, in order.
    log: Vec<&'static str>,
    started_with: Option<DataSourceSetup>,
}

impl Producer {
    fn handle(&mut self, event: ProducerEvent) {
        let command = match event {
            ProducerEvent::Connected(_) => return self.log.push("connected"),
            ProducerEvent::Synced(_) => return self.log.push("synced"),
            ProducerEvent::Command(command) => command,
            other => panic!("{other:?}"),
        };
        match command {
            ProducerCommand::SetupTracing(SharedMemoryOffer::FromService { fd, page_size }) => {
                self.log.push("tracing set up");
                let memory = Arc::new(SharedMemory::attach(fd, Peer::Service, usize::MAX).unwrap());
                let smb = ProducerSmb::new(memory, PageSize::new(page_size as usize).unwrap()).unwrap();
                self.arbiter = Some(Arbiter::new(smb, PageLayout::Div1, WakeLoop(self.waker.clone())));
            }
            ProducerCommand::SetupTracing(other) => panic!("{other:?}"),
            ProducerCommand::SetupDataSource(_) => self.log.push("set up"),
            ProducerCommand::StartDataSource(setup) => {
                self.log.push("started");
                let target = BufferId(setup.config.target_buffer.unwrap().try_into().unwrap());
                let arbiter = self
                    .arbiter
                    .as_ref()
                    .expect("tracing is set up before sources are");
                let mut writer = arbiter
                    .create_trace_writer(target, BufferExhaustedPolicy::Drop)
                    .unwrap();
                for text in test_packets() {
                    writer.write_packet(&encode(&text));
                }
                self.writers.insert(setup.instance, writer);
                self.endpoint.notify_data_source_started(setup.instance).unwrap();
                self.started_with = Some(setup);
            }
            ProducerCommand::Flush(flush) => {
                self.log.push("flushed");
                for instance in &flush.instances {
                    self.writers.get_mut(instance).unwrap().flush();
                }
                self.arbiter.as_ref().unwrap().acknowledge_flush(flush.id.0);
            }
            ProducerCommand::StopDataSource(instance) => {
                self.log.push("stopped");
                self.writers.remove(&instance);
                self.commit();
                self.endpoint.notify_data_source_stopped(instance).unwrap();
            }
            ProducerCommand::ClearIncrementalState(_) => {}
        }
    }

    fn commit(&mut self) {
        for request in self.arbiter.iter().flat_map(|arbiter| arbiter.take_requests()) {
            self.endpoint.send(request).unwrap();
        }
    }
}

/// One loop for all endpoints of a test.
struct Stage {
    reactor: Reactor,
    events: Events,
    deadline: Deadline,
    producer: Option<Producer>,
    consumer: Option<ConsumerEndpoint>,
}

impl Stage {
    fn new() -> Stage {
        Stage {
            reactor: Reactor::new().unwrap(),
            events: Events::new(),
            deadline: Deadline::after(Duration::from_secs(120)),
            producer: None,
            consumer: None,
        }
    }

    /// Connects a producer and waits until the service has seen its data source.
    fn add_producer(&mut self, address: &Address) {
        let options = ProducerOptions {
            name: "ferretto.interop.producer".into(),
            sdk_version: "ferretto interop test".into(),
            page_size_hint: 32 * 1024,
            shared_memory_size_hint: 8 << 20,
            ..Default::default()
        };
        let mut endpoint = ProducerEndpoint::connect(address, options).unwrap();
        endpoint
            .register_data_source(DataSourceDescriptor {
                name: Some(DATA_SOURCE.into()),
                will_notify_on_start: Some(true),
                will_notify_on_stop: Some(true),
                ..Default::default()
            })
            .unwrap();
        endpoint.sync().unwrap();
        self.reactor
            .register(&endpoint, PRODUCER, Interest::Both)
            .unwrap();
        self.producer = Some(Producer {
            endpoint,
            waker: self.reactor.waker(),
            arbiter: None,
            writers: HashMap::new(),
            log: Vec::new(),
            started_with: None,
        });
        self.turn_until(|stage| stage.producer().log.contains(&"synced"));
    }

    fn add_consumer(&mut self, address: &Address) {
        let endpoint = ConsumerEndpoint::connect(address).unwrap();
        self.reactor
            .register(&endpoint, CONSUMER, Interest::Both)
            .unwrap();
        self.consumer = Some(endpoint);
    }

    fn producer(&self) -> &Producer {
        self.producer.as_ref().unwrap()
    }

    fn consumer(&mut self) -> &mut ConsumerEndpoint {
        self.consumer.as_mut().unwrap()
    }

    fn turn(&mut self) {
        if let Some(producer) = &mut self.producer {
            producer.commit();
            producer.endpoint.flush();
            self.reactor
                .reregister(&producer.endpoint, PRODUCER, producer.endpoint.interest())
                .unwrap();
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.flush();
            self.reactor
                .reregister(consumer.as_fd(), CONSUMER, consumer.interest())
                .unwrap();
        }
        self.reactor.wait(&mut self.events, Some(self.deadline)).unwrap();
        assert!(
            !self.events.ready().is_empty() || self.events.woken(),
            "nothing happens any more"
        );
        if let Some(producer) = &mut self.producer {
            producer.endpoint.on_readable();
            while let Some(event) = producer.endpoint.next_event() {
                producer.handle(event);
            }
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.on_readable();
        }
    }

    fn turn_until(&mut self, mut condition: impl FnMut(&mut Stage) -> bool) {
        while !condition(self) {
            self.turn();
        }
    }

    /// The next successful reply to `request`; others are passed over.
    fn reply(&mut self, request: CallId) -> ConsumerReply {
        loop {
            match self.consumer().next_event() {
                Some(ConsumerEvent::Reply {
                    request: id, reply, ..
                }) if id == request => {
                    return reply.unwrap();
                }
                Some(ConsumerEvent::Disconnected(reason)) => panic!("{reason}"),
                Some(_) => {}
                None => self.turn(),
            }
        }
    }

    /// Reads the session's buffers to their end.
    fn read_packets(&mut self) -> Vec<TracePacket> {
        let read = self.consumer().read_buffers().unwrap();
        let mut received = Vec::new();
        loop {
            let reply = self.reply(read);
            let ConsumerReply::TraceData { packets, more } = reply else {
                panic!("{reply:?}")
            };
            received.extend(
                packets
                    .iter()
                    .map(|packet| TracePacket::decode_from_slice(packet).unwrap()),
            );
            if more == More::Last {
                return received;
            }
        }
    }
}

fn config(data_sources: &[&str]) -> TraceConfig {
    TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(16 * 1024),
            ..Default::default()
        }],
        data_sources: data_sources
            .iter()
            .map(|name| DataSource {
                config: Some(DataSourceConfig {
                    name: Some((*name).into()),
                    ..Default::default()
                })
                .into(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

#[test]
fn our_consumer_records_the_packets_of_upstreams_service() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let mut stage = Stage::new();
    stage.add_consumer(&sockets.consumer());
    let config = TraceConfig {
        duration_ms: Some(50),
        ..config(&["nobody.offers.this"])
    };
    let enabled = stage
        .consumer()
        .enable_tracing(&config.encode_to_vec(), None)
        .unwrap();
    let reply = stage.reply(enabled);
    assert!(
        matches!(reply, ConsumerReply::TracingDisabled { error: None }),
        "{reply:?}"
    );

    let stats = stage.consumer().trace_stats().unwrap();
    let ConsumerReply::TraceStats(stats) = stage.reply(stats) else {
        panic!("no stats")
    };
    assert_eq!(stats.buffer_stats.len(), 1);

    let packets = stage.read_packets();
    let has = |wanted: fn(&Data) -> bool| packets.iter().filter_map(|it| it.data.as_ref()).any(wanted);
    assert!(
        has(|data| matches!(data, Data::TraceConfig(_))),
        "{} packets",
        packets.len()
    );
    assert!(
        has(|data| matches!(data, Data::ClockSnapshot(_))),
        "{} packets",
        packets.len()
    );

    let freed = stage.consumer().free_buffers().unwrap();
    assert!(matches!(stage.reply(freed), ConsumerReply::Done));
}

#[test]
fn our_consumer_passes_upstreams_service_a_file_to_write_into() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let mut stage = Stage::new();
    stage.add_consumer(&sockets.consumer());
    let path = sockets.file("trace");
    let config = TraceConfig {
        duration_ms: Some(50),
        write_into_file: Some(true),
        file_write_period_ms: Some(100),
        ..config(&["nobody.offers.this"])
    };
    let file = std::fs::File::create(&path).unwrap();
    let enabled = stage
        .consumer()
        .enable_tracing(&config.encode_to_vec(), Some(file.into()))
        .unwrap();
    let reply = stage.reply(enabled);
    assert!(
        matches!(reply, ConsumerReply::TracingDisabled { error: None }),
        "{reply:?}"
    );
    let trace = Trace::decode_from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(
        trace
            .packet
            .iter()
            .any(|packet| matches!(packet.data, Some(Data::TraceConfig(_))))
    );
}

#[test]
fn our_producers_packets_pass_upstreams_service_whole_and_in_order_to_our_consumer() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let mut stage = Stage::new();
    stage.add_producer(&sockets.producer());
    stage.add_consumer(&sockets.consumer());

    let query = stage
        .consumer()
        .query_service_state(StateScope::Everything)
        .unwrap();
    let ConsumerReply::ServiceState { state, .. } = stage.reply(query) else {
        panic!("no state")
    };
    let ours = state
        .producers
        .iter()
        .find(|it| it.name.as_deref() == Some("ferretto.interop.producer"));
    assert_eq!(
        ours.unwrap().sdk_version.as_deref(),
        Some("ferretto interop test")
    );

    let config = config(&[DATA_SOURCE]).encode_to_vec();
    let enabled = stage.consumer().enable_tracing(&config, None).unwrap();
    stage.turn_until(|stage| stage.producer().log.contains(&"started"));
    let flush = stage.consumer().flush_producers(5000, 0).unwrap();
    assert!(matches!(stage.reply(flush), ConsumerReply::Done));
    let during = texts(stage.read_packets().iter());
    let expected = test_packets();
    assert_eq!(during.len(), expected.len());
    assert!(during == expected, "packets differ");

    stage.consumer().disable_tracing().unwrap();
    let reply = stage.reply(enabled);
    assert!(
        matches!(reply, ConsumerReply::TracingDisabled { error: None }),
        "{reply:?}"
    );
    let log = &stage.producer().log;
    let expected = [
        "connected",
        "synced",
        "tracing set up",
        "set up",
        "started",
        "flushed",
        "stopped",
    ];
    assert_eq!(*log, expected);
}

#[test]
fn our_producer_serves_upstreams_command_line() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let mut stage = Stage::new();
    stage.add_producer(&sockets.producer());

    let (config_path, trace_path) = (sockets.file("config"), sockets.file("trace"));
    let config = TraceConfig {
        duration_ms: Some(300),
        ..config(&[DATA_SOURCE])
    };
    std::fs::write(&config_path, config.encode_to_vec()).unwrap();
    let mut perfetto = Running(
        sockets
            .command("perfetto")
            .arg("-c")
            .arg(&config_path)
            .arg("-o")
            .arg(&trace_path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    stage.turn_until(|stage| stage.producer().log.contains(&"stopped"));
    stage.producer.as_mut().unwrap().endpoint.flush();
    assert!(perfetto.0.wait().unwrap().success());
    let started_with = stage.producer().started_with.clone().unwrap();
    assert_eq!(started_with.config.name.as_deref(), Some(DATA_SOURCE));
    assert_eq!(started_with.config.trace_duration_ms, Some(300));
    let decoded = DataSourceConfig::decode_from_slice(&started_with.encoded_config).unwrap();
    assert_eq!(decoded, *started_with.config);

    let trace = Trace::decode_from_slice(&std::fs::read(&trace_path).unwrap()).unwrap();
    assert!(texts(trace.packet.iter()) == test_packets(), "packets differ");
}

#[test]
fn the_wrong_socket_and_the_end_of_the_service_are_reported() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let traced = sockets.start_traced();
    let mut stage = Stage::new();
    stage.add_consumer(&sockets.producer());
    let disconnect = |stage: &mut Stage| loop {
        match stage.consumer().next_event() {
            Some(ConsumerEvent::Disconnected(reason)) => return reason,
            Some(_) => {}
            None => stage.turn(),
        }
    };
    let reason = disconnect(&mut stage);
    assert!(
        matches!(reason, Disconnect::NoSuchService("ConsumerPort")),
        "{reason}"
    );

    let mut stage = Stage::new();
    stage.add_consumer(&sockets.consumer());
    stage.turn_until(|stage| matches!(stage.consumer().next_event(), Some(ConsumerEvent::Connected)));
    drop(traced);
    let reason = disconnect(&mut stage);
    assert!(matches!(reason, Disconnect::Closed), "{reason}");
}
