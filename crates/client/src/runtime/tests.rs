//! The runtime with a scripted service, and a data source that its config scripts.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use ferretto_ipc::Reactor;
use ferretto_ipc::host::{Reply, ReplyTo};
use ferretto_ipc::ports::{PRODUCER_PORT, ServiceDescriptor};
use ferretto_proto::messages::get_async_command_response::{
    Cmd, Flush, SetupDataSource, SetupTracing, StartDataSource, StopDataSource,
};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, GetAsyncCommandResponse,
    InitializeConnectionResponse, Message, NotifyDataSourceStartedRequest, NotifyDataSourceStoppedRequest,
};

use super::probe::{BootTime, PacketSink, Probe, Probes, standalone};
use super::*;
use crate::data_source::{Acknowledge, DataSource, Instance, Output, Slot, Trouble};
use crate::fake_service::FakeService;
use crate::trace_writer::TraceWriter;

static PRODUCERS: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];
const SERVICE: ConnectionId = ConnectionId(7);

/// A record of all calls, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl ProducerProgram for Diary {
    fn info(&self, line: &str) {
        self.note(format!("info: {line}"));
    }

    fn warning(&self, line: &str) {
        self.note(format!("warning: {line}"));
    }

    fn is_own_thread(&self) -> bool {
        true
    }

    fn raise_priority(&self, _instance: u32, _config: &PriorityBoostConfig) -> Result<(), String> {
        self.note("raise");
        Ok(())
    }
}

/// A data source whose config (`legacy_config`) says which calls fail, and which are acknowledged only when the test lets it.
#[derive(Default)]
struct Obedient {
    diary: Diary,
    configs: Mutex<BTreeMap<usize, String>>,
    writers: Mutex<BTreeMap<usize, TraceWriter>>,
    held: Mutex<Vec<Acknowledge>>,
}

impl Obedient {
    /// Whether the config of the instance in this slot contains this word.
    fn is_to(&self, slot: Slot, what: &str) -> bool {
        let configs = self.configs.lock().unwrap();
        configs
            .get(&slot.index())
            .is_some_and(|config| config.contains(what))
    }

    fn acknowledge(&self, slot: Slot, what: &str, acknowledge: Acknowledge) {
        if self.is_to(slot, &format!("hold {what}")) {
            self.held.lock().unwrap().push(acknowledge);
        }
    }

    fn let_go(&self) {
        self.held.lock().unwrap().clear();
    }
}

impl DataSource for Obedient {
    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some("obedient".to_owned()),
            ..Default::default()
        }
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        self.diary.note("set up");
        let config = instance.config.legacy_config.clone().unwrap_or_default();
        self.configs.lock().unwrap().insert(instance.slot.index(), config);
        match self.is_to(instance.slot, "fail in set_up") {
            true => Err("it is told to fail".to_owned()),
            false => Ok(()),
        }
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        self.diary.note("start");
        if self.is_to(instance.slot, "fail in start") {
            return Err("it is told to fail".to_owned());
        }
        let writer = output.create_trace_writer().unwrap();
        self.writers.lock().unwrap().insert(instance.slot.index(), writer);
        self.acknowledge(instance.slot, "start", started);
        Ok(())
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        self.diary.note("stop");
        if let Some(mut writer) = self.writers.lock().unwrap().remove(&slot.index()) {
            writer.write_packet(b"the last");
        }
        self.acknowledge(slot, "stop", stopped);
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        self.diary.note("flush");
        self.acknowledge(slot, "flush", flushed);
    }

    fn clear_incremental_state(&self, _slot: Slot) {}

    fn tell_trouble(&self, _output: &Output, trouble: &Trouble) {
        self.diary.note(format!("trace: {trouble}"));
    }
}

struct World<S = Obedient> {
    runtime: OutOfLine<Runtime>,
    _reactor: Reactor,
    diary: Diary,
    source: Arc<S>,
    source_id: SourceId,
    service: FakeService,
    commands: ReplyTo,
}

impl World {
    fn new() -> World {
        let diary = Diary::default();
        let source = Arc::new(Obedient {
            diary: diary.clone(),
            ..Default::default()
        });
        World::of(source, diary)
    }
}

impl<S: DataSource + 'static> World<S> {
    /// Connected, with the data source registered and memory set up.
    fn of(source: Arc<S>, diary: Diary) -> World<S> {
        let reactor = Reactor::new().unwrap();
        let mut runtime = Runtime::new(Arc::new(diary.clone()), reactor.waker());
        let source_id = runtime.add_source(None, source.clone());
        runtime.add_connection(ConnectionOptions {
            id: SERVICE,
            name: "the service".to_owned(),
            producer_name: "test".to_owned(),
            sdk_version: String::new(),
            memory: MemoryOptions {
                size: 0,
                page_size: 0,
                batch_commits: Duration::ZERO,
            },
        });
        let (service, commands) = connect(&mut runtime);
        World {
            runtime,
            _reactor: reactor,
            diary,
            source,
            source_id,
            service,
            commands,
        }
    }

    /// The calls that the service has received by now, acknowledgements with their numbers.
    fn asked(&mut self) -> Vec<String> {
        self.runtime.take_acknowledgements();
        self.runtime.on_readable(SERVICE);
        self.runtime.serve(SERVICE);
        self.runtime.settle();
        asked_of(&mut self.service)
    }

    fn command(&mut self, command: Cmd) -> Vec<String> {
        say(&mut self.service, self.commands, command);
        self.asked()
    }

    fn set_up(&mut self, id: u64, config: &str) -> Vec<String> {
        self.command(Cmd::SetupDataSource(Box::new(SetupDataSource {
            new_instance_id: Some(id),
            config: wanted(config).into(),
            ..Default::default()
        })))
    }

    fn start(&mut self, id: u64, config: &str) -> Vec<String> {
        self.command(Cmd::StartDataSource(Box::new(StartDataSource {
            new_instance_id: Some(id),
            config: wanted(config).into(),
            ..Default::default()
        })))
    }

    fn stop(&mut self, id: u64) -> Vec<String> {
        self.command(Cmd::StopDataSource(Box::new(StopDataSource {
            instance_id: Some(id),
            ..Default::default()
        })))
    }

    fn flush(&mut self, flush: u64, instances: &[u64]) -> Vec<String> {
        self.command(Cmd::Flush(Box::new(Flush {
            request_id: Some(flush),
            data_source_ids: instances.to_vec(),
            ..Default::default()
        })))
    }
}

fn wanted(config: &str) -> DataSourceConfig {
    DataSourceConfig {
        name: Some("obedient".to_owned()),
        target_buffer: Some(1),
        legacy_config: Some(config.to_owned()),
        priority_boost: PriorityBoostConfig::default().into(),
        ..Default::default()
    }
}

fn say(service: &mut FakeService, commands: ReplyTo, command: Cmd) {
    let response = GetAsyncCommandResponse {
        cmd: Some(command),
        ..Default::default()
    };
    service.reply(commands, Reply::more(response.encode_to_vec()));
}

/// Connects the runtime to a new service, as far as to its memory.
fn connect(runtime: &mut Runtime) -> (FakeService, ReplyTo) {
    let (mut service, stream) = FakeService::new(&PRODUCERS);
    let mut stream = Some(stream);
    runtime.retry_soon(SERVICE);
    runtime.connect_if_due(SERVICE, |options| {
        let stream = stream.take().ok_or("it is connected twice")?;
        let endpoint = ProducerEndpoint::over(stream, options).map_err(|error| error.to_string())?;
        Ok(Connected::new(endpoint))
    });
    let turn = |runtime: &mut Runtime| {
        runtime.on_readable(SERVICE);
        runtime.serve(SERVICE);
        runtime.settle();
    };
    turn(runtime);
    assert!(service.asked().is_empty());
    turn(runtime);
    let mut asked = service.asked().into_iter();
    let (initialize, commands) = (asked.next().unwrap(), asked.next().unwrap());
    let features = InitializeConnectionResponse {
        use_shmem_emulation: Some(true),
        ..Default::default()
    };
    service.reply(initialize.reply_to, Reply::last(features.encode_to_vec()));
    turn(runtime);
    assert_eq!(asked_of(&mut service), ["RegisterDataSource"]);
    let setup = SetupTracing {
        shared_buffer_page_size_kb: Some(4),
        ..Default::default()
    };
    say(
        &mut service,
        commands.reply_to,
        Cmd::SetupTracing(Box::new(setup)),
    );
    turn(runtime);
    assert!(asked_of(&mut service).is_empty());
    assert!(matches!(runtime.next_event(), Some(Event::Connected(SERVICE))));
    (service, commands.reply_to)
}

/// The calls that the service has received, without those about ids of writers.
fn asked_of(service: &mut FakeService) -> Vec<String> {
    let asked = service.asked().into_iter();
    let of_interest = asked.filter(|asked| !asked.method.ends_with("TraceWriter"));
    of_interest
        .map(|asked| match asked.method {
            "NotifyDataSourceStarted" => {
                let told = NotifyDataSourceStartedRequest::decode_from_slice(&asked.payload).unwrap();
                format!("started {}", told.data_source_id.unwrap())
            }
            "NotifyDataSourceStopped" => {
                let told = NotifyDataSourceStoppedRequest::decode_from_slice(&asked.payload).unwrap();
                format!("stopped {}", told.data_source_id.unwrap())
            }
            "CommitData" => {
                let commit = CommitDataRequest::decode_from_slice(&asked.payload).unwrap();
                match (commit.chunks_to_move.len(), commit.flush_request_id) {
                    (0, Some(flush)) => format!("flushed {flush}"),
                    (chunks, None) => format!("{chunks} chunks"),
                    (chunks, Some(flush)) => format!("{chunks} chunks, flushed {flush}"),
                }
            }
            method => method.to_owned(),
        })
        .collect()
}

#[test]
fn an_instance_is_set_up_started_flushed_and_stopped_and_its_data_come_first() {
    let mut world = World::new();
    assert!(world.set_up(1, "").is_empty());
    assert_eq!(world.diary.take(), ["set up", "raise"]);
    assert_eq!(world.start(1, ""), ["started 1"]);
    assert_eq!(world.runtime.instances_of(SERVICE), 1);
    assert_eq!(world.flush(5, &[1]), ["flushed 5"]);
    assert_eq!(world.stop(1), ["1 chunks", "stopped 1"]);
    assert_eq!(world.diary.take(), ["start", "flush", "stop"]);
    assert_eq!(world.runtime.instances_of(SERVICE), 0);
    // The service need not wait for an instance that is gone.
    assert_eq!(world.stop(1), ["stopped 1"]);
    assert!(world.diary.take().is_empty());
}

#[test]
fn a_late_acknowledgement_reaches_the_service() {
    let mut world = World::new();
    let config = "hold start, hold flush, hold stop";
    world.set_up(1, config);
    assert!(world.start(1, config).is_empty());
    world.source.let_go();
    assert_eq!(world.asked(), ["started 1"]);
    // The second flush is done already. Its acknowledgement would also count for the first flush, so it waits until that is done.
    assert!(world.flush(5, &[1]).is_empty());
    assert!(world.flush(6, &[]).is_empty());
    world.source.let_go();
    assert_eq!(world.asked(), ["flushed 6"]);
    let told = |asked: &[String], what: &str| asked.iter().any(|asked| asked == what);
    let asked = world.stop(1);
    assert!(!told(&asked, "stopped 1"), "{asked:?}");
    // The instance is stopping. It is told to stop only once.
    assert!(world.stop(1).is_empty());
    world.source.let_go();
    assert_eq!(world.asked(), ["stopped 1"]);
    assert_eq!(world.diary.take(), ["set up", "raise", "start", "flush", "stop"]);
}

/// A probe that still has to write so many packets of its start.
struct Starting(u32);

impl Probe for Starting {
    fn start(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {}

    fn next_deadline(&self) -> Option<BootTime> {
        self.is_starting().then_some(0)
    }

    fn on_deadline(&mut self, _now: BootTime, sink: &mut dyn PacketSink) {
        self.0 -= 1;
        sink.write_packet(b"of the start");
    }

    fn is_starting(&self) -> bool {
        self.0 > 0
    }
}

#[test]
fn a_flush_waits_for_the_start_of_a_probe() {
    let diary = Diary::default();
    let program = Arc::new(diary.clone());
    let source = Probes::new(standalone("obedient"), program, |_| Ok(Starting(20)));
    let mut world = World::of(Arc::new(source), diary);
    world.set_up(1, "");
    world.start(1, "");
    let is_flushed = |asked: Vec<String>| asked.iter().any(|asked| asked.ends_with("flushed 5"));
    let mut flushed = is_flushed(world.flush(5, &[1]));
    assert!(!flushed);
    while !flushed {
        let mut is_starting = false;
        world
            .source
            .for_session(0, |probe, _| is_starting = probe.is_starting());
        assert!(is_starting);
        world.source.on_deadline();
        flushed = is_flushed(world.asked());
    }
    assert_eq!(world.flush(6, &[1]), ["flushed 6"]);
}

#[test]
fn an_instance_that_ends_with_a_flush_to_do_holds_up_no_flush() {
    let mut world = World::new();
    world.set_up(1, "hold flush");
    world.start(1, "hold flush");
    assert!(world.flush(5, &[1]).is_empty());
    let asked = world.stop(1);
    assert_eq!(asked[asked.len() - 2..], ["stopped 1", "flushed 5"]);
    world.source.let_go();
    assert!(world.asked().is_empty());
}

#[test]
fn an_instance_that_cannot_be_set_up_is_never_reported_as_started() {
    let mut world = World::new();
    assert!(world.set_up(1, "fail in set_up").is_empty());
    let trouble = "obedient could not be set up: it is told to fail";
    assert_eq!(
        world.diary.take(),
        ["set up".to_owned(), format!("warning: {trouble}")]
    );
    assert!(world.start(1, "fail in set_up").is_empty());
    assert_eq!(world.diary.take(), [format!("trace: {trouble}")]);
    assert_eq!(world.runtime.instances_of(SERVICE), 0);
    assert_eq!(world.flush(5, &[1]), ["flushed 5"]);
    assert_eq!(world.stop(1), ["stopped 1"]);
    assert!(
        world.diary.take().is_empty(),
        "the data source knows nothing of it"
    );
}

#[test]
fn an_instance_that_cannot_be_started_is_treated_alike() {
    let mut world = World::new();
    world.set_up(1, "fail in start");
    assert!(world.start(1, "fail in start").is_empty());
    let trouble = "obedient could not be started: it is told to fail";
    let noted = world.diary.take();
    assert_eq!(noted[..2], ["set up", "raise"]);
    assert_eq!(
        noted[2..],
        [
            "start".to_owned(),
            format!("warning: {trouble}"),
            format!("trace: {trouble}")
        ]
    );
    assert_eq!(world.flush(5, &[1]), ["flushed 5"]);
    assert_eq!(world.stop(1), ["stopped 1"]);
    assert!(world.diary.take().is_empty());
    // The place is free again.
    world.set_up(2, "");
    assert_eq!(world.start(2, ""), ["started 2"]);
}

#[test]
fn a_start_that_fails_is_not_acknowledged_though_the_stop_comes_in_the_same_turn() {
    let mut world = World::new();
    world.set_up(1, "fail in start");
    let start = StartDataSource {
        new_instance_id: Some(1),
        config: wanted("fail in start").into(),
        ..Default::default()
    };
    say(
        &mut world.service,
        world.commands,
        Cmd::StartDataSource(Box::new(start)),
    );
    assert_eq!(world.stop(1), ["stopped 1"]);
}

#[test]
fn an_instance_that_starts_and_stops_in_one_turn_has_done_both() {
    let mut world = World::new();
    world.set_up(1, "");
    let start = StartDataSource {
        new_instance_id: Some(1),
        config: wanted("").into(),
        ..Default::default()
    };
    say(
        &mut world.service,
        world.commands,
        Cmd::StartDataSource(Box::new(start)),
    );
    assert_eq!(world.stop(1), ["started 1", "1 chunks", "stopped 1"]);
}

#[test]
fn an_instance_that_stops_keeps_its_slot_until_it_has_stopped() {
    let mut world = World::new();
    world.set_up(1, "hold stop");
    world.start(1, "hold stop");
    world.stop(1);
    world.set_up(2, "");
    world.start(2, "");
    let slots: Vec<usize> = world.source.configs.lock().unwrap().keys().copied().collect();
    assert_eq!(slots, [0, 1]);
    // Other reasons to stop have no further effect.
    world.runtime.withdraw_source(world.source_id);
    world.runtime.withdraw_source(world.source_id);
    assert!(!world.asked().contains(&"stopped 1".to_owned()));
    world.source.let_go();
    assert_eq!(world.asked(), ["stopped 1"]);
}

#[test]
fn startup_instances_count_only_while_they_record() {
    let mut world = World::new();
    let configs = ["fail in set_up", "fail in start", ""].map(|config| {
        let config = wanted(config);
        let encoded = config.encode_to_vec().into();
        (Arc::new(config), encoded)
    });
    let started = world.runtime.start_up(StartupRequest {
        number: 9,
        connection: SERVICE,
        timeout: None,
        configs: configs.to_vec(),
    });
    assert_eq!(started, Ok(1));
    assert_eq!(world.runtime.startup_of(SERVICE).len(), 1);
    world.set_up(1, "");
    assert_eq!(world.start(1, "").last().unwrap(), "started 1");
    let event = world.runtime.next_event();
    assert!(
        matches!(event, Some(Event::StartupEnded(9, StartupOutcome::Adopted))),
        "{event:?}"
    );
}

#[test]
fn a_silent_service_is_given_up_but_not_while_something_is_recorded_for_startup() {
    let mut world = World::new();
    let lose_service = |world: &mut World, service: FakeService| {
        world.service = service;
        world.runtime.on_readable(SERVICE);
        world.runtime.serve(SERVICE);
    };
    let (unused, _) = FakeService::new(&PRODUCERS);
    lose_service(&mut world, unused);
    let config = wanted("");
    let encoded = config.encode_to_vec().into();
    let started = world.runtime.start_up(StartupRequest {
        number: 9,
        connection: SERVICE,
        timeout: None,
        configs: vec![(Arc::new(config), encoded)],
    });
    assert_eq!(started, Ok(1));
    let (_silent, stream) = FakeService::new(&PRODUCERS);
    let mut stream = Some(stream);
    world.runtime.retry_soon(SERVICE);
    world.runtime.connect_if_due(SERVICE, |options| {
        let endpoint = ProducerEndpoint::over(stream.take().unwrap(), options).unwrap();
        Ok(Connected::new(endpoint))
    });
    let wait_in_vain = |world: &mut World| {
        world.runtime.end_silence(0, u64::MAX);
        world.runtime.serve(SERVICE);
        world.runtime.settle();
        world.runtime.state(SERVICE).unwrap()
    };
    assert_eq!(wait_in_vain(&mut world), ConnectionState::Connecting);
    assert_eq!(world.runtime.startup_of(SERVICE).len(), 1);
    assert_eq!(world.runtime.deadlines().monotonic, None);
    // Nothing more is lost with the connection.
    world.runtime.abort_startup(9);
    world.runtime.settle();
    assert!(world.runtime.deadlines().monotonic.is_some());
    let state = wait_in_vain(&mut world);
    assert!(matches!(state, ConnectionState::Waiting { .. }), "{state:?}");
}

#[test]
fn a_config_that_is_there_twice_is_recorded_twice_unless_data_sources_share_a_name() {
    let mut world = World::new();
    for instance in [1, 2] {
        world.set_up(instance, "");
        assert_eq!(world.start(instance, ""), [format!("started {instance}")]);
    }
    assert_eq!(world.runtime.instances_of(SERVICE), 2);
    world.runtime.withdraw_source(world.source_id);
    for id in [1, 2] {
        world.runtime.add_source(Some(id), world.source.clone());
    }
    world.asked();
    // Each of the two data sources gets one instance. There is none for the third.
    for instance in [3, 4, 5] {
        world.set_up(instance, "");
        assert_eq!(world.start(instance, ""), [format!("started {instance}")]);
    }
    assert_eq!(world.runtime.instances_of(SERVICE), 2);
}

#[test]
fn an_unknown_data_source_is_acknowledged_and_logged() {
    let mut world = World::new();
    let config = DataSourceConfig {
        name: Some("disobedient".to_owned()),
        ..Default::default()
    };
    world.command(Cmd::SetupDataSource(Box::new(SetupDataSource {
        new_instance_id: Some(3),
        config: config.clone().into(),
        ..Default::default()
    })));
    let asked = world.command(Cmd::StartDataSource(Box::new(StartDataSource {
        new_instance_id: Some(3),
        config: config.into(),
        ..Default::default()
    })));
    assert_eq!(asked, ["started 3"]);
    assert_eq!(
        world.diary.take(),
        ["warning: asked to record \"disobedient\", of which there is none"]
    );
}

#[test]
fn when_the_service_goes_away_its_instances_end_and_the_next_one_begins_anew() {
    let mut world = World::new();
    world.set_up(1, "hold stop");
    world.start(1, "hold stop");
    world.diary.take();
    // Storing another service drops the present one.
    let (unused, _) = FakeService::new(&PRODUCERS);
    world.service = unused;
    world.runtime.on_readable(SERVICE);
    world.runtime.serve(SERVICE);
    let event = world.runtime.next_event();
    let Some(Event::Disconnected {
        connection: SERVICE,
        news: Some(_),
        closed: Some(closed),
    }) = event
    else {
        panic!("{event:?}")
    };
    // The runtime leaves the descriptor open until the program that watches it has dropped it.
    assert!(rustix::io::fcntl_getfd(closed.as_fd()).is_ok());
    drop(closed);
    assert_eq!(world.diary.take(), ["stop"]);
    let deadlines = world.runtime.deadlines();
    assert!(
        deadlines.monotonic.is_some_and(|at| at > 0),
        "it tries again: {deadlines:?}"
    );

    let (service, commands) = connect(&mut world.runtime);
    (world.service, world.commands) = (service, commands);
    // The new service uses the same id as the old service did for an instance that has not stopped yet.
    world.set_up(1, "");
    assert_eq!(world.start(1, ""), ["started 1"]);
    world.source.let_go();
    assert!(
        world.asked().is_empty(),
        "the end of the old one is nobody's business"
    );
    assert_eq!(world.runtime.instances_of(SERVICE), 1);
    assert_eq!(world.stop(1).last().unwrap(), "stopped 1");
}

#[test]
fn a_data_source_that_is_withdrawn_stops() {
    let mut world = World::new();
    world.set_up(1, "");
    world.start(1, "");
    world.runtime.withdraw_source(world.source_id);
    let asked = world.asked();
    assert_eq!(asked[0], "UnregisterDataSource");
    assert_eq!(asked.last().unwrap(), "stopped 1");
    assert_eq!(world.runtime.offered().count(), 0);
    // New sessions get no instance of this data source any more.
    world.diary.take();
    world.set_up(2, "");
    assert_eq!(world.start(2, ""), ["started 2"]);
    assert!(!world.diary.take().contains(&"start".to_owned()));
}

#[test]
fn a_changed_descriptor_is_sent_once_a_little_later() {
    let mut world = World::new();
    world.runtime.source_changed(world.source_id);
    world.runtime.source_changed(world.source_id);
    let deadline = world.runtime.deadlines().monotonic.unwrap();
    while monotonic_now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(world.asked(), ["UpdateDataSource"]);
    assert!(world.asked().is_empty());
}
