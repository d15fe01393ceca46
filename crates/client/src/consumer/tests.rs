//! A consumer against a service that answers as the test wants.

use ferretto_ipc::host::{Reply, ReplyTo};
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_proto::messages::{EnableTracingRequest, QueryServiceStateResponse, TracingServiceState};
use proptest::prelude::*;

use super::*;
use crate::fake_service::{Asked, FakeService};

static CONSUMERS: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];

struct Connected {
    endpoint: ConsumerEndpoint,
    service: FakeService,
}

fn connected() -> Connected {
    let (mut service, stream) = FakeService::new(&CONSUMERS);
    let mut endpoint = ConsumerEndpoint::over(stream).unwrap();
    endpoint.flush();
    service.asked();
    let mut connected = Connected { endpoint, service };
    let events = connected.events();
    assert!(matches!(events[..], [ConsumerEvent::Connected]), "{events:?}");
    connected
}

impl Connected {
    fn events(&mut self) -> Vec<ConsumerEvent> {
        let mut events = Vec::new();
        loop {
            // More than a socket holds takes turns.
            self.service.flush();
            self.endpoint.on_readable();
            let before = events.len();
            events.extend(std::iter::from_fn(|| self.endpoint.next_event()));
            if events.len() == before {
                break;
            }
        }
        self.endpoint.flush();
        events
    }

    /// The replies among the events that have arrived.
    fn replies(&mut self) -> Vec<(CallId, ConsumerReply)> {
        let reply = |event| match event {
            ConsumerEvent::Reply {
                request,
                reply: Ok(reply),
                ..
            } => (request, reply),
            other => panic!("{other:?}"),
        };
        self.events().into_iter().map(reply).collect()
    }

    /// The one request that was made.
    fn asked(&mut self) -> Asked {
        self.endpoint.flush();
        let [asked]: [Asked; 1] = self.service.asked().try_into().unwrap();
        asked
    }
}

/// A `ReadBuffersResponse`.
fn slices(slices: &[(&[u8], bool)]) -> Vec<u8> {
    let mut response = Writer::new();
    for (data, last) in slices {
        response.nested(2, |slice| {
            slice.bytes_field(1, data);
            slice.varint_field(2, u64::from(*last));
        });
    }
    response.as_slice().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packets_come_out_whole_however_they_were_sliced(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
        cuts in prop::collection::vec(1..30usize, 1..10),
        slices_per_reply in prop::collection::vec(1..5usize, 1..10),
    ) {
        let mut cuts = cuts.into_iter().cycle();
        let mut sliced: Vec<(&[u8], bool)> = Vec::new();
        for packet in &packets {
            let mut rest = packet.as_slice();
            loop {
                let (slice, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                rest = after;
                sliced.push((slice, rest.is_empty()));
                if rest.is_empty() {
                    break;
                }
            }
        }
        let mut connected = connected();
        connected.endpoint.read_buffers().unwrap();
        let to = connected.asked().reply_to;
        let mut counts = slices_per_reply.into_iter().cycle();
        let mut rest = sliced.as_slice();
        while !rest.is_empty() {
            let (some, after) = rest.split_at(counts.next().unwrap().min(rest.len()));
            rest = after;
            connected.service.reply(to, Reply::more(slices(some)));
        }
        connected.service.reply(to, Reply::last(Vec::new()));
        let mut received: Vec<Vec<u8>> = Vec::new();
        let mut ended = false;
        for (_, reply) in connected.replies() {
            let ConsumerReply::TraceData { packets, more } = reply else { panic!("{reply:?}") };
            prop_assert!(!ended);
            received.extend(packets.iter().map(<[u8]>::to_vec));
            ended = more == More::Last;
        }
        prop_assert!(ended);
        prop_assert_eq!(received, packets);
    }
}

#[test]
fn a_packet_whose_end_never_comes_does_not_spoil_the_next_read() {
    let mut connected = connected();
    for expected in [0, 1] {
        connected.endpoint.read_buffers().unwrap();
        let to = connected.asked().reply_to;
        connected
            .service
            .reply(to, Reply::last(slices(&[(b"packet", expected == 1)])));
        let replies = connected.replies();
        let [
            (
                _,
                ConsumerReply::TraceData {
                    packets,
                    more: More::Last,
                },
            ),
        ] = &replies[..]
        else {
            panic!("{replies:?}")
        };
        assert_eq!(packets.iter().collect::<Vec<_>>(), vec![b"packet"; expected]);
    }
}

#[test]
fn a_config_goes_out_byte_for_byte_with_the_file_and_the_end_is_reported() {
    let mut connected = connected();
    let config = [0xfa, 0xff, 0x3f, 3, b'n', b'e', b'w'];
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let enabled = connected.endpoint.enable_tracing(&config, Some(file)).unwrap();
    let asked = connected.asked();
    assert_eq!(asked.method, "EnableTracing");
    assert!(asked.fd.is_some());
    assert_eq!(asked.payload[2..], config);
    // disabled: true, error: "why"
    connected
        .service
        .reply(asked.reply_to, Reply::last(b"\x08\x01\x1a\x03why".to_vec()));
    let replies = connected.replies();
    let [(request, ConsumerReply::TracingDisabled { error: Some(error) })] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!((*request, error.as_str()), (enabled, "why"));
}

#[test]
fn a_state_in_parts_is_joined() {
    let mut connected = connected();
    connected
        .endpoint
        .query_service_state(StateScope::Everything)
        .unwrap();
    let to = connected.asked().reply_to;
    let part = |version: Option<&str>, sessions: Option<i32>| {
        let state = TracingServiceState {
            tracing_service_version: version.map(str::to_owned),
            num_sessions: sessions,
            ..Default::default()
        };
        let response = QueryServiceStateResponse {
            service_state: Some(state).into(),
            ..Default::default()
        };
        response.encode_to_vec()
    };
    connected.service.reply(to, Reply::more(part(Some("v1"), None)));
    assert!(connected.replies().is_empty());
    connected.service.reply(to, Reply::last(part(None, Some(4))));
    let replies = connected.replies();
    let [(_, ConsumerReply::ServiceState { state, encoded })] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(
        (state.tracing_service_version.as_deref(), state.num_sessions),
        (Some("v1"), Some(4))
    );
    assert_eq!(TracingServiceState::decode_from_slice(encoded).unwrap(), **state);
}

#[test]
fn attaching_asks_for_notice_of_the_end_too() {
    let mut connected = connected();
    connected.endpoint.attach("key").unwrap();
    let to = connected.asked().reply_to;
    connected
        .service
        .reply(to, Reply::last(b"\x0a\x02\x10\x01".to_vec()));
    let replies = connected.replies();
    let [(_, ConsumerReply::Attached { trace_config })] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(trace_config, b"\x10\x01");
    let asked = connected.asked();
    let request = EnableTracingRequest::decode_from_slice(&asked.payload).unwrap();
    assert_eq!(request.attach_notification_only, Some(true));
    connected
        .service
        .reply(asked.reply_to, Reply::last(b"\x08\x01".to_vec()));
    let events = connected.events();
    let told = matches!(
        events[..],
        [ConsumerEvent::Reply {
            method: ConsumerMethod::EnableTracing,
            reply: Ok(ConsumerReply::TracingDisabled { error: None }),
            ..
        }]
    );
    assert!(told, "{events:?}");
}

#[test]
fn observed_events_stream_until_the_service_ends_it() {
    let mut connected = connected();
    let types = [ObservableEventType::TYPE_ALL_DATA_SOURCES_STARTED];
    connected.endpoint.observe_events(&types).unwrap();
    let to = connected.asked().reply_to;
    // events { all_data_sources_started: true }
    connected
        .service
        .reply(to, Reply::more(b"\x0a\x02\x10\x01".to_vec()));
    connected.service.reply(to, Reply::last(Vec::new()));
    let replies = connected.replies();
    let [
        (_, ConsumerReply::Observed(events)),
        (_, ConsumerReply::ObservationEnded),
    ] = &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!(events.all_data_sources_started, Some(true));
}

#[test]
fn every_simple_request_gets_an_answer_of_its_own_kind() {
    type Make = fn(&mut ConsumerEndpoint) -> Result<CallId, InvokeError>;
    type Check = fn(&ConsumerReply) -> bool;
    let done: Check = |reply| matches!(reply, ConsumerReply::Done);
    let cases: [(&str, Make, Check); 9] = [
        ("StartTracing", |it| it.start_tracing(), done),
        ("ChangeTraceConfig", |it| it.change_trace_config(b""), done),
        ("DisableTracing", |it| it.disable_tracing(), done),
        ("Flush", |it| it.flush_producers(5, 0), done),
        ("FreeBuffers", |it| it.free_buffers(), done),
        ("Detach", |it| it.detach("key"), done),
        (
            "GetTraceStats",
            |it| it.trace_stats(),
            |reply| matches!(reply, ConsumerReply::TraceStats(_)),
        ),
        (
            "QueryCapabilities",
            |it| it.query_capabilities(),
            |reply| matches!(reply, ConsumerReply::Capabilities(_)),
        ),
        (
            "CloneSession",
            |it| it.clone_session(&CloneSessionRequest::default(), None),
            |reply| matches!(reply, ConsumerReply::SessionCloned(_)),
        ),
    ];
    let mut connected = connected();
    for (method, make, check) in cases {
        let request = make(&mut connected.endpoint).unwrap();
        let asked = connected.asked();
        assert_eq!(asked.method, method);
        connected.service.reply(asked.reply_to, Reply::last(Vec::new()));
        let replies = connected.replies();
        assert!(
            matches!(&replies[..], [(id, reply)] if *id == request && check(reply)),
            "{replies:?}"
        );
    }
}

fn reject(connected: &mut Connected, to: ReplyTo) -> Vec<ConsumerEvent> {
    connected.service.reply(to, Reply::rejected());
    connected.events()
}

#[test]
fn a_rejection_is_an_error_but_no_capabilities_are_none() {
    let mut connected = connected();
    connected.endpoint.flush_producers(0, 0).unwrap();
    let to = connected.asked().reply_to;
    let events = reject(&mut connected, to);
    let failed = matches!(
        events[..],
        [ConsumerEvent::Reply {
            reply: Err(CallError::Rejected),
            ..
        }]
    );
    assert!(failed, "{events:?}");

    connected.endpoint.query_capabilities().unwrap();
    let to = connected.asked().reply_to;
    let events = reject(&mut connected, to);
    let [
        ConsumerEvent::Reply {
            reply: Ok(ConsumerReply::Capabilities(capabilities)),
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(capabilities.has_query_capabilities, None);
}

#[test]
fn when_the_service_ends_every_request_fails_and_then_the_end_is_reported() {
    let mut connected = connected();
    let enabled = connected.endpoint.enable_tracing(b"", None).unwrap();
    let state = connected
        .endpoint
        .query_service_state(StateScope::SessionsOnly)
        .unwrap();
    connected.endpoint.flush();
    drop(std::mem::replace(
        &mut connected.service,
        FakeService::new(&CONSUMERS).0,
    ));
    let events = connected.events();
    let [
        ConsumerEvent::Reply {
            request: first,
            reply: Err(CallError::ConnectionLost),
            ..
        },
        ConsumerEvent::Reply {
            request: second,
            reply: Err(CallError::ConnectionLost),
            ..
        },
        ConsumerEvent::Disconnected(Disconnect::Closed),
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((*first, *second), (enabled, state));
    assert!(connected.events().is_empty());
}

#[test]
fn a_malformed_answer_ends_the_connection_and_is_named() {
    let mut connected = connected();
    connected.endpoint.trace_stats().unwrap();
    let to = connected.asked().reply_to;
    connected.service.reply(to, Reply::last(b"\x0a\x7f".to_vec()));
    let events = connected.events();
    let [ConsumerEvent::Disconnected(reason)] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(reason.to_string().contains("GetTraceStatsResponse"), "{reason}");
}
