//! A host and its clients in one thread: the producers write through an arbiter as the SDK's do, the consumers are the endpoints that
//! the command line has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Partitioning, Wake};
use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_client::producer::{
    CommitReply, DataSourceInstanceId, ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions,
    Scraping, SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_host::{Admission, Host, OutOfLine, Port, Program};
use ferretto_ipc::Stream;
use ferretto_ipc::client::{CallError, CallId, InvokeError, More};
use ferretto_ipc::reactor::{Deadline, Events};
use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_proto::messages::observable_events::Type as Observed;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::messages::{
    CloneSessionRequest, CommitDataRequest, DataSourceConfig, DataSourceDescriptor, Message, TestEvent,
    Trace, TraceConfig, TracePacket, priority_boost_config, trace_packet,
};
use ferretto_service::{MachineId, PriorityBoost};
use ferretto_smb::{PageSize, Peer, ProducerSmb, SharedMemory};

const PATIENCE: Duration = Duration::from_secs(120);

/// A program that has a name for why its priority stays.
struct Tests;

impl Program for Tests {
    fn time_stamp_counter(&self) -> Option<u64> {
        Some(4711)
    }

    fn local_time_offset(&self) -> Option<i32> {
        Some(90)
    }

    fn info(&self, line: Arguments<'_>) {
        eprintln!("in order: {line}");
    }

    fn warning(&self, line: Arguments<'_>) {
        eprintln!("warning: {line}");
    }

    fn refused(&self, line: Arguments<'_>) {
        eprintln!("refused: {line}");
    }

    fn set_priority(&self, boost: Option<PriorityBoost>) -> Result<(), String> {
        boost.map_or(Ok(()), |_| Err("tests have their priority".to_owned()))
    }
}

/// The loop of a program with nothing but a host in it.
struct Machine {
    host: OutOfLine<Host>,
    events: Events,
}

impl Machine {
    fn new() -> Machine {
        Machine::with_id(MachineId::HOST)
    }

    fn with_id(machine: MachineId) -> Machine {
        let identity = ferretto_host::identity("test", machine);
        Machine {
            host: Host::new(identity, Admission::for_descriptors(1024), Arc::new(Tests)).unwrap(),
            events: Events::new(),
        }
    }

    fn connect(&mut self, port: Port) -> Stream {
        let (ours, theirs) = Stream::pair().unwrap();
        self.host.connect(theirs, port);
        ours
    }

    fn turn(&mut self) {
        self.host
            .wait(&mut self.events, Deadline::after(Duration::from_millis(1)).into())
            .unwrap();
        self.host.turn(&self.events);
    }

    /// Turns until `done` has something.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(result) = done() {
                return result;
            }
            assert!(Instant::now() < until, "waited in vain for {what}");
        }
    }

    fn consumer(&mut self) -> ConsumerEndpoint {
        let stream = self.connect(Port::Consumer);
        let mut consumer = ConsumerEndpoint::over(stream).unwrap();
        self.until("a connection", || {
            matches!(heard(&mut consumer), Some(ConsumerEvent::Connected)).then_some(())
        });
        consumer
    }

    /// The reply to a request; events of others are dropped.
    fn reply(
        &mut self,
        consumer: &mut ConsumerEndpoint,
        call: Result<CallId, InvokeError>,
    ) -> Result<ConsumerReply, CallError> {
        let call = call.unwrap();
        self.until("a reply", || {
            while let Some(event) = heard(consumer) {
                if let ConsumerEvent::Reply { request, reply, .. } = event
                    && request == call
                {
                    return Some(reply);
                }
            }
            None
        })
    }

    /// Turns until a chunk is in a buffer of a consumer's session. A single turn may be over before that, as its time is bounded.
    fn until_buffered(&mut self, consumer: &mut ConsumerEndpoint) {
        let until = Instant::now() + PATIENCE;
        loop {
            let call = consumer.trace_stats();
            let Ok(ConsumerReply::TraceStats(stats)) = self.reply(consumer, call) else {
                panic!("no statistics");
            };
            if stats
                .buffer_stats
                .iter()
                .any(|buffer| buffer.chunks_written.unwrap_or(0) > 0)
            {
                return;
            }
            assert!(Instant::now() < until, "nothing comes into a buffer");
        }
    }

    /// Everything in the buffers of a consumer's session.
    fn read(&mut self, consumer: &mut ConsumerEndpoint) -> Trace {
        let call = consumer.read_buffers().unwrap();
        let mut trace = Trace::default();
        loop {
            let Ok(ConsumerReply::TraceData { packets, more }) = self.reply(consumer, Ok(call)) else {
                panic!("no trace data");
            };
            let decoded = packets
                .iter()
                .map(|packet| TracePacket::decode_from_slice(packet).unwrap());
            trace.packet.extend(decoded);
            if more == More::Last {
                return trace;
            }
        }
    }
}

/// The consumer's next event, after its requests were sent.
fn heard(consumer: &mut ConsumerEndpoint) -> Option<ConsumerEvent> {
    consumer.flush();
    consumer.on_readable();
    consumer.next_event()
}

struct Quiet;

impl Notify for Quiet {
    fn wake(&self, _: Wake) {}
}

/// A producer of the data source `test.source`, as the muxer would run it.
struct Recorder {
    producer: ProducerEndpoint,
    arbiter: Option<Arc<Arbiter>>,
    writers: BTreeMap<DataSourceInstanceId, TraceWriter>,
    /// The buffer of the last one.
    target: Option<BufferId>,
    cleared: usize,
}

impl Recorder {
    fn new(machine: &mut Machine, name: &str) -> Recorder {
        let options = ProducerOptions {
            name: name.into(),
            scraping: Scraping::Enabled,
            ..Default::default()
        };
        let mut producer = ProducerEndpoint::over(machine.connect(Port::Producer), options).unwrap();
        machine.until("a connection", || {
            producer.flush();
            producer.on_readable();
            matches!(producer.next_event(), Some(ProducerEvent::Connected(_))).then_some(())
        });
        let descriptor = DataSourceDescriptor {
            name: Some("test.source".into()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        };
        producer.register_data_source(descriptor).unwrap();
        producer.flush();
        Recorder {
            producer,
            arbiter: None,
            writers: BTreeMap::new(),
            target: None,
            cleared: 0,
        }
    }

    fn turn(&mut self) {
        self.producer.on_readable();
        while let Some(event) = self.producer.next_event() {
            let ProducerEvent::Command(command) = event else {
                continue;
            };
            match command {
                ProducerCommand::SetupTracing(SharedMemoryOffer::FromService { fd, page_size }) => {
                    let memory = Arc::new(SharedMemory::attach(fd, Peer::Service, 1 << 25).unwrap());
                    let pages = PageSize::new(page_size as usize).unwrap();
                    let smb = ProducerSmb::new(memory, pages).unwrap();
                    self.arbiter = Some(Arbiter::new(smb, Partitioning::ByWriters, Quiet));
                }
                ProducerCommand::SetupTracing(other) => panic!("{other:?}"),
                ProducerCommand::SetupDataSource(setup) => {
                    assert_eq!(setup.config.name.as_deref(), Some("test.source"));
                }
                ProducerCommand::StartDataSource(setup) => {
                    let target = BufferId(setup.config.target_buffer.unwrap() as u16);
                    self.target = Some(target);
                    let arbiter = self.arbiter.as_ref().unwrap();
                    let writer = arbiter
                        .create_trace_writer(target, BufferExhaustedPolicy::Drop)
                        .unwrap();
                    self.writers.insert(setup.instance, writer);
                    self.producer.notify_data_source_started(setup.instance).unwrap();
                }
                ProducerCommand::StopDataSource(instance) => {
                    drop(self.writers.remove(&instance));
                    self.commit();
                    self.producer.notify_data_source_stopped(instance).unwrap();
                }
                ProducerCommand::Flush(flush) => {
                    self.writers.values_mut().for_each(TraceWriter::flush);
                    self.arbiter.as_ref().unwrap().acknowledge_flush(flush.id.0);
                }
                ProducerCommand::ClearIncrementalState(instances) => self.cleared += instances.len(),
            }
        }
        self.commit();
    }

    fn commit(&mut self) {
        if let Some(arbiter) = &self.arbiter {
            for request in arbiter.take_requests() {
                self.producer.send(request).unwrap();
            }
        }
        self.producer.flush();
    }

    /// Writes a packet for each session.
    fn write(&mut self, text: &str) {
        let packet = TracePacket {
            data: Some(trace_packet::Data::ForTesting(Box::new(TestEvent {
                str: Some(text.into()),
                ..Default::default()
            }))),
            ..Default::default()
        }
        .encode_to_vec();
        for writer in self.writers.values_mut() {
            writer.write_packet(&packet);
        }
        self.commit();
    }
}

/// The texts of the recorders, in order.
fn texts(trace: &Trace) -> Vec<&str> {
    trace
        .packet
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(trace_packet::Data::ForTesting(event)) => event.str.as_deref(),
            _ => None,
        })
        .collect()
}

fn contents(file: &mut File) -> Trace {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    Trace::decode_from_slice(&bytes).unwrap()
}

fn config() -> TraceConfig {
    TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(1024),
            ..Default::default()
        }],
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some("test.source".into()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Enables tracing and waits until `recorder` records.
fn start(
    machine: &mut Machine,
    consumer: &mut ConsumerEndpoint,
    recorder: &mut Recorder,
    config: &TraceConfig,
) {
    let before = recorder.writers.len();
    consumer.enable_tracing(&config.encode_to_vec(), None).unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (recorder.writers.len() > before).then_some(())
    });
}

/// Waits for the end of a session whose recorder takes turns; gives the error it ended with.
fn ended(machine: &mut Machine, consumer: &mut ConsumerEndpoint, recorder: &mut Recorder) -> Option<String> {
    machine.until("the end", || {
        recorder.turn();
        while let Some(event) = heard(consumer) {
            if let ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::TracingDisabled { error }),
                ..
            } = event
            {
                return Some(error);
            }
        }
        None
    })
}

#[test]
fn a_session_records_the_packets_of_a_producer() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    start(&mut machine, &mut consumer, &mut recorder, &config());
    (0..100).for_each(|number| recorder.write(&number.to_string()));
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    let trace = machine.read(&mut consumer);
    let expected: Vec<String> = (0..100).map(|number: u32| number.to_string()).collect();
    assert_eq!(texts(&trace), expected);
    let of_recorder = trace
        .packet
        .iter()
        .find(|packet| matches!(packet.data, Some(trace_packet::Data::ForTesting(_))))
        .unwrap();
    assert_eq!(
        of_recorder.trusted_pid,
        Some(std::process::id() as i32),
        "the service vouches for this process"
    );
    // The service's own packets are there as well.
    let has = |what: fn(&trace_packet::Data) -> bool| {
        trace
            .packet
            .iter()
            .filter_map(|packet| packet.data.as_ref())
            .any(what)
    };
    /// `BuiltinClock` from real time to boot time, and the time-stamp counter.
    const CLOCKS: &[u32] = if cfg!(target_arch = "x86_64") {
        &[1, 2, 3, 4, 5, 6, 9]
    } else {
        &[1, 2, 3, 4, 5, 6]
    };
    assert!(has(|data| {
        let trace_packet::Data::ClockSnapshot(snapshot) = data else {
            return false;
        };
        let mut clocks: Vec<u32> = snapshot
            .clocks
            .iter()
            .filter_map(|clock| clock.clock_id)
            .collect();
        clocks.sort_unstable();
        clocks == CLOCKS
    }));
    assert!(has(|data| matches!(data, trace_packet::Data::SystemInfo(_))));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceConfig(_))));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceUuid(_))));
}

#[test]
fn a_trace_says_that_it_is_of_the_machine_that_the_program_gave_out() {
    let mut machine = Machine::with_id(MachineId(7));
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let config = TraceConfig {
        trace_all_machines: Some(true),
        ..config()
    };
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("elsewhere");
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    let trace = machine.read(&mut consumer);
    assert_eq!(texts(&trace), ["elsewhere"]);
    // Readers find the borders of packets by these markers, so the markers are always the same.
    let is_marker =
        |packet: &&TracePacket| matches!(packet.data, Some(trace_packet::Data::SynchronizationMarker(_)));
    for packet in trace.packet.iter().filter(|packet| !is_marker(packet)) {
        assert_eq!(packet.machine_id, Some(7), "{packet:?}");
    }
}

#[test]
fn several_producers_record_for_several_sessions() {
    let mut machine = Machine::new();
    let mut first = Recorder::new(&mut machine, "first");
    let mut second = Recorder::new(&mut machine, "second");
    let mut everyone = machine.consumer();
    start(&mut machine, &mut everyone, &mut first, &config());
    second.turn();
    let mut only_second = config();
    only_second.data_sources[0].producer_name_filter = vec!["second".into()];
    let mut selective = machine.consumer();
    start(&mut machine, &mut selective, &mut second, &only_second);
    first.turn();
    first.write("of the first");
    second.write("of the second");
    for consumer in [&mut everyone, &mut selective] {
        let flush = consumer.flush_producers(0, 0).unwrap();
        let reply = machine.until("the flush", || {
            first.turn();
            second.turn();
            std::iter::from_fn(|| heard(consumer)).find_map(|event| match event {
                ConsumerEvent::Reply { request, reply, .. } if request == flush => Some(reply),
                _ => None,
            })
        });
        assert!(matches!(reply, Ok(ConsumerReply::Done)), "{reply:?}");
    }
    let trace = machine.read(&mut everyone);
    let mut both = texts(&trace);
    both.sort_unstable();
    assert_eq!(both, ["of the first", "of the second"]);
    assert_eq!(texts(&machine.read(&mut selective)), ["of the second"]);
}

#[test]
fn uncommitted_chunks_are_scraped_when_a_producer_goes() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    start(&mut machine, &mut consumer, &mut recorder, &config());
    ["one", "two", "three"]
        .into_iter()
        .for_each(|text| recorder.write(text));
    // Its writer is not dropped, so its chunk is not returned.
    let Recorder {
        producer, writers, ..
    } = recorder;
    drop(producer);
    // Its socket is closed.
    machine.until_buffered(&mut consumer);
    let trace = machine.read(&mut consumer);
    assert_eq!(texts(&trace), ["one", "two", "three"]);
    drop(writers);
}

#[test]
fn a_config_that_is_refused_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut consumer = machine.consumer();
    let mut nonsense = config();
    nonsense.data_sources[0]
        .config
        .get_or_insert_default()
        .target_buffer = Some(7);
    let call = consumer.enable_tracing(&nonsense.encode_to_vec(), None);
    let Ok(ConsumerReply::TracingDisabled { error: Some(error) }) = machine.reply(&mut consumer, call) else {
        panic!("not refused");
    };
    assert!(error.contains("buffer"), "{error}");
    let call = consumer.enable_tracing(&[0xff], None);
    let Err(CallError::Host(error)) = machine.reply(&mut consumer, call) else {
        panic!("not rejected");
    };
    assert!(error.contains("EnableTracing"), "{error}");
}

#[test]
fn a_session_writes_into_a_file_and_a_clone_of_it_into_another() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    config.unique_session_name = Some("streams".into());
    config.file_write_period_ms = Some(100);
    let mut file = tempfile::tempfile().unwrap();
    let passed = file.try_clone().unwrap().into();
    consumer
        .enable_tracing(&config.encode_to_vec(), Some(passed))
        .unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (!recorder.writers.is_empty()).then_some(())
    });
    recorder.write("early");

    let mut copy = tempfile::tempfile().unwrap();
    let mut cloner = machine.consumer();
    let request = CloneSessionRequest {
        selector: Some(Selector::UniqueSessionName("streams".into())),
        ..Default::default()
    };
    let clone = cloner
        .clone_session(&request, Some(copy.try_clone().unwrap().into()))
        .unwrap();
    let cloned = machine.until("the clone", || {
        recorder.turn();
        std::iter::from_fn(|| heard(&mut cloner)).find_map(|event| match event {
            ConsumerEvent::Reply { request, reply, .. } if request == clone => Some(reply),
            _ => None,
        })
    });
    let Ok(ConsumerReply::SessionCloned(cloned)) = cloned else {
        panic!("{cloned:?}");
    };
    assert_eq!(
        (cloned.success, cloned.was_write_into_file),
        (Some(true), Some(true))
    );

    recorder.write("late");
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert_eq!(texts(&contents(&mut file)), ["early", "late"]);
    assert_eq!(texts(&contents(&mut copy)), ["early"]);
}

#[test]
fn a_packet_that_takes_many_turns_reaches_a_consumer_and_a_file() {
    // Flags in the header of a chunk.
    const CONTINUES_BEFORE: u16 = 1 << 10;
    const CONTINUES_AFTER: u16 = 2 << 10;
    for into_file in [false, true] {
        let mut machine = Machine::new();
        let mut recorder = Recorder::new(&mut machine, "p");
        let mut consumer = machine.consumer();
        let mut config = config();
        config.buffers[0].size_kb = Some(16 << 10);
        config.write_into_file = Some(into_file);
        let mut file = tempfile::tempfile().unwrap();
        let passed = into_file.then(|| file.try_clone().unwrap().into());
        consumer.enable_tracing(&config.encode_to_vec(), passed).unwrap();
        consumer.flush();
        machine.until("the start", || {
            recorder.turn();
            (!recorder.writers.is_empty()).then_some(())
        });
        // The memory that is shared does not hold it, so the chunks come in requests.
        let text = "0123456789".repeat(1 << 20);
        let event = TestEvent {
            str: Some(text.clone()),
            ..Default::default()
        };
        let packet = TracePacket {
            data: Some(trace_packet::Data::ForTesting(Box::new(event))),
            ..Default::default()
        }
        .encode_to_vec();
        let target = recorder.target.unwrap().0;
        let fragments: Vec<&[u8]> = packet.chunks(30_000).collect();
        for (id, fragment) in fragments.iter().enumerate() {
            let before = if id == 0 { 0 } else { CONTINUES_BEFORE };
            let after = if id + 1 == fragments.len() {
                0
            } else {
                CONTINUES_AFTER
            };
            let mut chunk = ferretto_wire::Writer::new();
            chunk.raw(&(id as u32).to_le_bytes());
            chunk.raw(&1000u16.to_le_bytes());
            chunk.raw(&(1 | before | after).to_le_bytes());
            chunk.varint(fragment.len() as u64);
            chunk.raw(fragment);
            let commit = CommitDataRequest {
                chunks_to_move: vec![ChunksToMove {
                    target_buffer: Some(target.into()),
                    data: Some(chunk.as_slice().to_vec()),
                    ..Default::default()
                }],
                ..Default::default()
            };
            recorder.producer.commit(commit, CommitReply::Unwanted).unwrap();
            recorder.producer.flush();
            machine.turn();
        }
        recorder.write("after");
        consumer.disable_tracing().unwrap();
        assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
        let trace = match into_file {
            false => machine.read(&mut consumer),
            true => contents(&mut file),
        };
        assert!(texts(&trace) == [&text, "after"], "into a file: {into_file}");
    }
}

#[test]
fn a_file_that_takes_nothing_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    consumer
        .enable_tracing(&config.encode_to_vec(), Some(full.into()))
        .unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (!recorder.writers.is_empty()).then_some(())
    });
    consumer.disable_tracing().unwrap();
    let error = ended(&mut machine, &mut consumer, &mut recorder).unwrap();
    assert!(error.contains("No space left"), "{error}");
}

#[test]
fn the_end_of_the_process_completes_files() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    config.output_path = Some(path.to_string_lossy().into_owned());
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("kept");
    drop(std::mem::take(&mut recorder.writers));
    recorder.commit();
    machine.until_buffered(&mut consumer);
    machine.host.end(|| PATIENCE);
    let trace = Trace::decode_from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(texts(&trace), ["kept"]);
}

#[test]
fn a_session_is_detached_and_attached_by_another_consumer() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut first = machine.consumer();
    start(&mut machine, &mut first, &mut recorder, &config());
    let call = first.detach("key");
    assert!(matches!(machine.reply(&mut first, call), Ok(ConsumerReply::Done)));
    drop(first);

    let mut second = machine.consumer();
    let call = second.attach("nothing");
    let Err(CallError::Host(error)) = machine.reply(&mut second, call) else {
        panic!("attached to nothing");
    };
    assert!(error.contains("no session"), "{error}");
    let attach = second.attach("key");
    let Ok(ConsumerReply::Attached { trace_config }) = machine.reply(&mut second, attach) else {
        panic!("not attached");
    };
    assert_eq!(trace_config, config().encode_to_vec());
    recorder.write("seen by the second");
    second.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut second, &mut recorder), None);
    assert_eq!(texts(&machine.read(&mut second)), ["seen by the second"]);
}

#[test]
fn questions_are_answered() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "asked.about");
    let mut consumer = machine.consumer();
    let call = consumer.trace_stats();
    assert!(matches!(
        machine.reply(&mut consumer, call),
        Err(CallError::Rejected)
    ));
    let observe = consumer
        .observe_events(&[Observed::TYPE_ALL_DATA_SOURCES_STARTED])
        .unwrap();
    consumer.enable_tracing(&config().encode_to_vec(), None).unwrap();
    machine.until("the news", || {
        recorder.turn();
        std::iter::from_fn(|| heard(&mut consumer)).find(|event| {
            matches!(event, ConsumerEvent::Reply { request, reply: Ok(ConsumerReply::Observed(events)), .. }
                if *request == observe && events.all_data_sources_started == Some(true))
        })
    });
    let call = consumer.trace_stats();
    let Ok(ConsumerReply::TraceStats(stats)) = machine.reply(&mut consumer, call) else {
        panic!("no statistics");
    };
    assert_eq!(
        (stats.producers_connected, stats.tracing_sessions),
        (Some(1), Some(1))
    );
    let call = consumer.query_service_state(StateScope::Everything);
    let Ok(ConsumerReply::ServiceState { state, encoded }) = machine.reply(&mut consumer, call) else {
        panic!("no state");
    };
    assert_eq!(state.producers[0].name.as_deref(), Some("asked.about"));
    assert_eq!(state.data_sources.len(), 1);
    assert_eq!(state.encode_to_vec().len(), encoded.len());
    let call = consumer.query_capabilities();
    let Ok(ConsumerReply::Capabilities(capabilities)) = machine.reply(&mut consumer, call) else {
        panic!("no capabilities");
    };
    assert_eq!(capabilities.has_clone_session, Some(true));
}

#[test]
fn sync_and_triggers_arrive() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let call = recorder.producer.sync().unwrap();
    machine.until("the answer", || {
        recorder.producer.flush();
        recorder.producer.on_readable();
        std::iter::from_fn(|| recorder.producer.next_event())
            .any(|event| matches!(event, ProducerEvent::Synced(synced) if synced == call))
            .then_some(())
    });
    let mut consumer = machine.consumer();
    let mut config = config();
    let trigger = Trigger {
        name: Some("now".into()),
        ..Default::default()
    };
    let triggers = config.trigger_config.get_or_insert_default();
    triggers.trigger_mode = Some(TriggerMode::STOP_TRACING);
    triggers.triggers = vec![trigger];
    triggers.trigger_timeout_ms = Some(60_000);
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("before the trigger");
    recorder.producer.activate_triggers(&["now"]).unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert_eq!(texts(&machine.read(&mut consumer)), ["before the trigger"]);
}

#[test]
fn a_priority_that_cannot_be_had_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    let boost = config.priority_boost.get_or_insert_default();
    boost.policy = Some(priority_boost_config::BoostPolicy::POLICY_SCHED_FIFO);
    boost.priority = Some(1);
    consumer.enable_tracing(&config.encode_to_vec(), None).unwrap();
    let error = ended(&mut machine, &mut consumer, &mut recorder).unwrap();
    assert!(error.contains("tests have their priority"), "{error}");
}

#[test]
fn timers_of_the_service_are_kept() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config
        .incremental_state_config
        .get_or_insert_default()
        .clear_period_ms = Some(10);
    // Long enough for a few of a hundred periods, also where this hardly gets to run.
    config.duration_ms = Some(1000);
    let begun = Instant::now();
    start(&mut machine, &mut consumer, &mut recorder, &config);
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert!(begun.elapsed() >= Duration::from_millis(1000));
    assert!(recorder.cleared >= 5, "{}", recorder.cleared);
}
