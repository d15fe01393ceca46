//! A producer against a service that answers as the test wants.

use ferretto_ipc::host::Reply;
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_wire::Writer;

use super::*;
use crate::fake_service::{Asked, FakeService};

static PRODUCERS: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];

fn options() -> ProducerOptions {
    ProducerOptions {
        name: "a.producer".into(),
        sdk_version: "v1".into(),
        ..Default::default()
    }
}

fn take_events(endpoint: &mut ProducerEndpoint) -> Vec<ProducerEvent> {
    endpoint.on_readable();
    let events = std::iter::from_fn(|| endpoint.next_event()).collect();
    endpoint.flush();
    events
}

/// An endpoint whose service has seen the handshake and answered it with `features`.
struct Connected {
    endpoint: ProducerEndpoint,
    service: FakeService,
    commands: ferretto_ipc::host::ReplyTo,
    initialize: Asked,
}

fn connected(options: ProducerOptions, response: InitializeConnectionResponse) -> Connected {
    let (mut service, stream) = FakeService::new(&PRODUCERS);
    let mut endpoint = ProducerEndpoint::over(stream, options).unwrap();
    endpoint.flush();
    assert!(
        service.asked().is_empty(),
        "nothing can be called before the methods are known"
    );
    assert!(take_events(&mut endpoint).is_empty());
    let [initialize, commands]: [Asked; 2] = service.asked().try_into().unwrap();
    assert_eq!(
        (initialize.method, commands.method),
        ("InitializeConnection", "GetAsyncCommand")
    );
    service.reply(initialize.reply_to, Reply::last(response.encode_to_vec()));
    let events = take_events(&mut endpoint);
    assert!(matches!(events[..], [ProducerEvent::Connected(_)]), "{events:?}");
    Connected {
        endpoint,
        service,
        commands: commands.reply_to,
        initialize,
    }
}

fn simply_connected() -> Connected {
    connected(options(), InitializeConnectionResponse::default())
}

impl Connected {
    /// Sends a command and takes the resulting events.
    fn command(
        &mut self,
        number: u32,
        fill: impl FnOnce(&mut Writer),
        fd: Option<OwnedFd>,
    ) -> Vec<ProducerEvent> {
        let mut message = Writer::new();
        message.nested(number, fill);
        let reply = Reply::more(message.as_slice().to_vec());
        let reply = match fd {
            Some(fd) => reply.with_fd(fd),
            None => reply,
        };
        self.service.reply(self.commands, reply);
        take_events(&mut self.endpoint)
    }

    fn asked(&mut self) -> Vec<Asked> {
        self.endpoint.flush();
        self.service.asked()
    }
}

fn some_fd() -> OwnedFd {
    tempfile::tempfile().unwrap().into()
}

#[test]
fn it_introduces_itself_as_upstreams_producers_do() {
    let connected = connected(
        ProducerOptions {
            page_size_hint: 4096,
            shared_memory_size_hint: 1 << 20,
            scraping: Scraping::Enabled,
            ..options()
        },
        InitializeConnectionResponse {
            direct_smb_patching_supported: Some(true),
            ..Default::default()
        },
    );
    let request = InitializeConnectionRequest::decode_from_slice(&connected.initialize.payload).unwrap();
    assert_eq!(
        request,
        InitializeConnectionRequest {
            producer_name: Some("a.producer".into()),
            sdk_version: Some("v1".into()),
            shared_memory_page_size_hint_bytes: Some(4096),
            shared_memory_size_hint_bytes: Some(1 << 20),
            smb_scraping_mode: Some(ProducerSMBScrapingMode::SMB_SCRAPING_ENABLED),
            ..Default::default()
        }
    );
    assert!(connected.initialize.fd.is_none());
    let features = connected.endpoint.features().unwrap();
    assert!(features.direct_patching && !features.uses_our_shared_memory);
}

#[test]
fn its_own_shared_memory_goes_along_and_is_used_when_the_service_adopts_it() {
    let mut connected = connected(
        ProducerOptions {
            shared_memory: Some(some_fd()),
            page_size_hint: 4096,
            ..options()
        },
        InitializeConnectionResponse {
            using_shmem_provided_by_producer: Some(true),
            ..Default::default()
        },
    );
    assert!(connected.initialize.fd.is_some());
    let request = InitializeConnectionRequest::decode_from_slice(&connected.initialize.payload).unwrap();
    assert_eq!(request.producer_provided_shmem, Some(true));
    let events = connected.command(3, |_| {}, None);
    let expected = |events: &[ProducerEvent]| {
        matches!(
            events,
            [ProducerEvent::Command(ProducerCommand::SetupTracing(
                SharedMemoryOffer::Ours
            ))]
        )
    };
    assert!(expected(&events), "{events:?}");
}

#[test]
fn the_services_shared_memory_comes_with_its_page_size() {
    let mut connected = simply_connected();
    let events = connected.command(3, |setup| setup.varint_field(1, 32), Some(some_fd()));
    let [
        ProducerEvent::Command(ProducerCommand::SetupTracing(SharedMemoryOffer::FromService {
            page_size,
            ..
        })),
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(page_size, 32 * 1024);
}

#[test]
fn tracing_set_up_without_any_memory_ends_the_connection() {
    let mut connected = simply_connected();
    let events = connected.command(3, |setup| setup.varint_field(1, 4), None);
    assert!(
        matches!(events[..], [ProducerEvent::Disconnected(Disconnect::Nonsense(_))]),
        "{events:?}"
    );
}

#[test]
fn where_memory_cannot_be_shared_commits_are_to_carry_the_data() {
    let mut connected = connected(
        options(),
        InitializeConnectionResponse {
            use_shmem_emulation: Some(true),
            ..Default::default()
        },
    );
    let events = connected.command(3, |setup| setup.varint_field(1, 8), None);
    let emulated = matches!(
        events[..],
        [ProducerEvent::Command(ProducerCommand::SetupTracing(
            SharedMemoryOffer::Emulated { page_size: 8192 }
        ))]
    );
    assert!(emulated, "{events:?}");
}

/// A config with a field that no schema knows.
fn config_of_the_future() -> Vec<u8> {
    let mut config = Writer::new();
    config.bytes_field(1, b"a.source");
    config.varint_field(2, 1);
    config.bytes_field(9_999, b"tomorrow");
    config.as_slice().to_vec()
}

#[test]
fn a_config_arrives_byte_for_byte() {
    let mut connected = simply_connected();
    let config = config_of_the_future();
    for number in [6, 1] {
        let fill = |setup: &mut Writer| {
            setup.varint_field(1, 77);
            setup.bytes_field(2, &config);
        };
        let events = connected.command(number, fill, None);
        let setup = match &events[..] {
            [ProducerEvent::Command(ProducerCommand::SetupDataSource(setup))] if number == 6 => setup,
            [ProducerEvent::Command(ProducerCommand::StartDataSource(setup))] if number == 1 => setup,
            other => panic!("{other:?}"),
        };
        assert_eq!(setup.instance, DataSourceInstanceId(77));
        assert_eq!(setup.encoded_config, config);
        assert_eq!(setup.config.name.as_deref(), Some("a.source"));
    }
}

#[test]
fn a_start_without_setup_from_an_old_service_is_preceded_by_one() {
    let mut connected = simply_connected();
    let start = |start: &mut Writer| start.varint_field(1, 5);
    let is_setup_and_start = |events: &[ProducerEvent]| {
        matches!(
            events,
            [
                ProducerEvent::Command(ProducerCommand::SetupDataSource(_)),
                ProducerEvent::Command(ProducerCommand::StartDataSource(_))
            ]
        )
    };
    let events = connected.command(1, start, None);
    assert!(is_setup_and_start(&events), "{events:?}");
    let events = connected.command(2, |stop| stop.varint_field(1, 5), None);
    let stopped = matches!(
        events[..],
        [ProducerEvent::Command(ProducerCommand::StopDataSource(
            DataSourceInstanceId(5)
        ))]
    );
    assert!(stopped, "{events:?}");
    let events = connected.command(1, start, None);
    assert!(
        is_setup_and_start(&events),
        "an instance that was stopped is forgotten: {events:?}"
    );
}

#[test]
fn flushes_and_clearings_name_their_instances_and_unknown_commands_are_passed_over() {
    let mut connected = simply_connected();
    let fill = |flush: &mut Writer| {
        flush.varint_field(1, 3);
        flush.varint_field(1, 300);
        flush.varint_field(2, 42);
        flush.varint_field(3, 9);
    };
    let events = connected.command(5, fill, None);
    let [ProducerEvent::Command(ProducerCommand::Flush(flush))] = &events[..] else {
        panic!("{events:?}")
    };
    let instances = vec![DataSourceInstanceId(3), DataSourceInstanceId(300)];
    assert_eq!(
        *flush,
        Flush {
            id: FlushRequestId(42),
            instances: instances.clone(),
            flags: 9
        }
    );

    let fill = |clear: &mut Writer| clear.packed_field(1, [3, 300]);
    let events = connected.command(7, fill, None);
    let [ProducerEvent::Command(ProducerCommand::ClearIncrementalState(cleared))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*cleared, instances);

    assert!(connected.command(99, |_| {}, None).is_empty());
}

#[test]
fn requests_leave_in_order_and_await_a_reply_only_if_it_matters() {
    let mut connected = simply_connected();
    let endpoint = &mut connected.endpoint;
    let descriptor = DataSourceDescriptor {
        name: Some("a.source".into()),
        id: Some(1),
        ..Default::default()
    };
    endpoint.register_data_source(descriptor.clone()).unwrap();
    endpoint.update_data_source(descriptor).unwrap();
    endpoint
        .send(Request::RegisterTraceWriter(WriterId(1), BufferId(2)))
        .unwrap();
    let commit = CommitDataRequest {
        chunks_to_move: vec![ChunksToMove {
            page: Some(1),
            ..Default::default()
        }],
        ..Default::default()
    };
    endpoint.send(Request::CommitData(commit)).unwrap();
    endpoint.acknowledge_flush(FlushRequestId(8)).unwrap();
    endpoint
        .notify_data_source_started(DataSourceInstanceId(1))
        .unwrap();
    endpoint
        .notify_data_source_stopped(DataSourceInstanceId(1))
        .unwrap();
    endpoint.activate_triggers(&["a", "b"]).unwrap();
    endpoint
        .send(Request::UnregisterTraceWriter(WriterId(1)))
        .unwrap();
    endpoint.unregister_data_source("a.source").unwrap();
    let sync = endpoint.sync().unwrap();
    let asked = connected.asked();
    let seen: Vec<_> = asked
        .iter()
        .map(|asked| (asked.method, asked.awaits_reply()))
        .collect();
    assert_eq!(
        seen,
        [
            ("RegisterDataSource", true),
            ("UpdateDataSource", true),
            ("RegisterTraceWriter", false),
            ("CommitData", false),
            ("CommitData", false),
            ("NotifyDataSourceStarted", false),
            ("NotifyDataSourceStopped", false),
            ("ActivateTriggers", false),
            ("UnregisterTraceWriter", false),
            ("UnregisterDataSource", false),
            ("Sync", true),
        ]
    );
    let acknowledgement = CommitDataRequest::decode_from_slice(&asked[4].payload).unwrap();
    assert_eq!(acknowledgement.flush_request_id, Some(8));
    connected
        .service
        .reply(asked[10].reply_to, Reply::last(Vec::new()));
    let events = take_events(&mut connected.endpoint);
    assert!(
        matches!(events[..], [ProducerEvent::Synced(call)] if call == sync),
        "{events:?}"
    );
}

#[test]
fn a_refused_data_source_is_reported_with_the_services_words() {
    let mut connected = simply_connected();
    connected
        .endpoint
        .register_data_source(DataSourceDescriptor::default())
        .unwrap();
    let [asked]: [Asked; 1] = connected.asked().try_into().unwrap();
    let response = RegisterDataSourceResponse {
        error: Some("too many".into()),
        ..Default::default()
    };
    connected
        .service
        .reply(asked.reply_to, Reply::last(response.encode_to_vec()));
    let events = take_events(&mut connected.endpoint);
    let [
        ProducerEvent::RequestFailed {
            method: ProducerMethod::RegisterDataSource,
            reason,
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*reason, RequestError::DataSource("too many".into()));
}

#[test]
fn a_commit_can_ask_to_be_acknowledged() {
    let mut connected = simply_connected();
    let commit = connected
        .endpoint
        .commit(CommitDataRequest::default(), CommitReply::Wanted)
        .unwrap()
        .unwrap();
    let [asked]: [Asked; 1] = connected.asked().try_into().unwrap();
    connected.service.reply(asked.reply_to, Reply::last(Vec::new()));
    let events = take_events(&mut connected.endpoint);
    assert!(
        matches!(events[..], [ProducerEvent::Committed(call)] if call == commit),
        "{events:?}"
    );
}

#[test]
fn a_commit_larger_than_a_frame_is_sent_in_parts_and_the_flush_is_acknowledged_last() {
    let chunks: Vec<ChunksToMove> = (0..30_000)
        .map(|page| ChunksToMove {
            page: Some(page),
            chunk: Some(3),
            target_buffer: Some(1),
            ..Default::default()
        })
        .collect();
    let request = CommitDataRequest {
        chunks_to_move: chunks.clone(),
        flush_request_id: Some(6),
        ..Default::default()
    };
    let parts = split_commit(request);
    assert!(parts.len() > 1);
    for (position, part) in parts.iter().enumerate() {
        assert!(part.encoded_len() <= MAX_PAYLOAD);
        let expected = (position + 1 == parts.len()).then_some(6);
        assert_eq!(part.flush_request_id, expected);
    }
    let joined: Vec<ChunksToMove> = parts.into_iter().flat_map(|part| part.chunks_to_move).collect();
    assert_eq!(joined, chunks);
}

#[test]
fn an_older_service_lacks_methods_and_the_connection_goes_on() {
    static OLD: ServiceDescriptor = ServiceDescriptor {
        name: "ProducerPort",
        methods: &["InitializeConnection", "GetAsyncCommand"],
    };
    static OLD_PRODUCERS: [&ServiceDescriptor; 1] = [&OLD];
    let (mut service, stream) = FakeService::new(&OLD_PRODUCERS);
    let mut endpoint = ProducerEndpoint::over(stream, options()).unwrap();
    let sync = endpoint.sync().unwrap();
    endpoint.activate_triggers(&["a"]).unwrap();
    endpoint.flush();
    service.asked();
    let events = take_events(&mut endpoint);
    let [
        ProducerEvent::Synced(call),
        ProducerEvent::RequestFailed { method, reason },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*call, *method), (sync, ProducerMethod::ActivateTriggers));
    assert!(reason.to_string().contains("too old"), "{reason}");
    assert_eq!(service.asked().len(), 2);
}

#[test]
fn a_rejected_producer_and_one_at_the_wrong_socket_learn_it() {
    let (mut service, stream) = FakeService::new(&PRODUCERS);
    let mut endpoint = ProducerEndpoint::over(stream, options()).unwrap();
    endpoint.flush();
    service.asked();
    take_events(&mut endpoint);
    let asked = service.asked();
    service.reply(asked[0].reply_to, Reply::rejected());
    let events = take_events(&mut endpoint);
    assert!(
        matches!(events[..], [ProducerEvent::Disconnected(Disconnect::Rejected)]),
        "{events:?}"
    );

    static NOTHING: [&ServiceDescriptor; 0] = [];
    let (mut service, stream) = FakeService::new(&NOTHING);
    let mut endpoint = ProducerEndpoint::over(stream, options()).unwrap();
    endpoint.flush();
    service.asked();
    let events = take_events(&mut endpoint);
    let no_such_service = matches!(
        events[..],
        [ProducerEvent::Disconnected(Disconnect::NoSuchService(
            "ProducerPort"
        ))]
    );
    assert!(no_such_service, "{events:?}");
}

#[test]
fn the_end_of_the_service_is_reported_once() {
    let mut connected = simply_connected();
    connected.endpoint.sync().unwrap();
    drop(connected.service);
    let events = take_events(&mut connected.endpoint);
    assert!(
        matches!(events[..], [ProducerEvent::Disconnected(Disconnect::Closed)]),
        "{events:?}"
    );
    assert_eq!(connected.endpoint.interest(), Interest::None);
    assert!(take_events(&mut connected.endpoint).is_empty());
}
