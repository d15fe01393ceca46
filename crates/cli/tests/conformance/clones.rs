//! Stories of clones: their content, their notes about themselves, the content of the original, and requests that are refused.

use std::fs::File;
use std::os::fd::OwnedFd;

use ferretto_client::consumer::ConsumerReply;
use ferretto_client::producer::CommitReply;
use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{
    BufferConfig, BuiltinDataSource, CompressionType, DataSource, TraceFilter, TriggerConfig, WriteFlushMode,
};
use ferretto_proto::messages::{
    CloneSessionRequest, CloneSessionResponse, DataSourceConfig, Message, TraceConfig, TracePacket,
    trace_packet,
};

use crate::conformance::data::{buffer, chunk, seen};
use crate::conformance::parties::{
    Consumer, NO_PERIOD_MS, Producer, Service, alike, config, plain, skeleton, steady,
};
use crate::filter_bytecode::{Rule, bytecode};
use crate::support::{Programs, Side};

/// A session with a producer, and a consumer that wants to clone it.
struct Scene {
    producer: Producer,
    owner: Consumer,
    cloner: Consumer,
    session: u64,
    chunks: u32,
}

/// A config without clock snapshots, because their number depends on the time that steps take.
fn recorded() -> TraceConfig {
    TraceConfig {
        builtin_data_sources: BuiltinDataSource {
            disable_clock_snapshotting: Some(true),
            ..steady()
        }
        .into(),
        buffers: vec![buffer(64, FillPolicy::RING_BUFFER)],
        trace_uuid_msb: Some(1),
        trace_uuid_lsb: Some(2),
        unique_session_name: Some("name".into()),
        ..config("d")
    }
}

fn by_id(id: u64) -> CloneSessionRequest {
    CloneSessionRequest {
        selector: Some(Selector::SessionId(id)),
        ..Default::default()
    }
}

fn by_name(name: &str) -> CloneSessionRequest {
    CloneSessionRequest {
        selector: Some(Selector::UniqueSessionName(name.into())),
        ..Default::default()
    }
}

impl Scene {
    fn new(service: &Service<'_>, config: &TraceConfig) -> Scene {
        Scene::with_file(service, config, None)
    }

    fn with_file(service: &Service<'_>, config: &TraceConfig, file: Option<&File>) -> Scene {
        let mut producer = service.producer("p");
        let source = config.data_sources[0].config.name.as_deref().unwrap();
        producer.register(plain(source));
        let mut owner = service.consumer();
        let fd = file.map(|file| OwnedFd::from(file.try_clone().unwrap()));
        owner
            .endpoint
            .enable_tracing(&config.encode_to_vec(), fd)
            .unwrap();
        owner.state();
        let session = owner.state().tracing_sessions.last().unwrap().id.unwrap();
        producer.settle();
        producer.log.clear();
        Scene {
            producer,
            owner,
            cloner: service.consumer(),
            session,
            chunks: 0,
        }
    }

    /// Makes the producer commit a packet into this buffer of the session.
    fn write(&mut self, text: &str, buffer: usize) {
        let target = self.producer.configs[buffer].target_buffer.unwrap();
        let request = chunk(1 + buffer as u16, self.chunks).whole(text).request(target);
        self.producer
            .endpoint
            .commit(request, CommitReply::Unwanted)
            .unwrap();
        self.producer.settle();
        self.chunks += 1;
    }

    /// Acknowledges the flushes that have arrived.
    fn acknowledge(&mut self) {
        self.producer.settle();
        for flush in std::mem::take(&mut self.producer.flushes) {
            self.producer.endpoint.acknowledge_flush(flush).unwrap();
        }
        self.producer.settle();
    }

    fn clone(&mut self, request: &CloneSessionRequest) -> String {
        self.clone_into(request, None)
    }

    /// Clones the session while its producer flushes at once; returns the outcome.
    fn clone_into(&mut self, request: &CloneSessionRequest, file: Option<&File>) -> String {
        let fd = file.map(|file| OwnedFd::from(file.try_clone().unwrap()));
        let call = self.cloner.endpoint.clone_session(request, fd).unwrap();
        self.cloner.state();
        self.acknowledge();
        outcome(self.cloner.answer(call))
    }

    /// Returns the commands to the producer since the last call.
    fn heard(&mut self) -> String {
        self.producer.settle();
        let told: Vec<String> = self.producer.log.drain(..).collect();
        told.join(", ")
    }
}

fn outcome(answer: Result<ConsumerReply, String>) -> String {
    let Ok(ConsumerReply::SessionCloned(cloned)) = answer else {
        return format!("{answer:?}");
    };
    let CloneSessionResponse {
        success,
        uuid_msb,
        uuid_lsb,
        was_write_into_file,
        ..
    } = *cloned;
    if success != Some(true) {
        // Each service has its own words for the reason.
        return "refused".into();
    }
    let file = was_write_into_file.unwrap_or_default();
    format!(
        "cloned, uuid new: {}, {uuid_lsb:?}; into a file: {file}",
        uuid_msb != Some(1)
    )
}

/// Reads everything: producers' packets as a reader sees them, the service's packets by their fields, statistics and triggers with their content.
fn read(consumer: &mut Consumer) -> Vec<String> {
    let packets = consumer.read();
    let mut told: Vec<String> = packets.iter().flat_map(|packet| said(packet)).collect();
    told.retain(|line| !line.contains(FLUSHED));
    told.push("read".into());
    told
}

fn said(packet: &[u8]) -> Vec<String> {
    let mut told = vec![seen(packet).unwrap_or_else(|| skeleton(packet))];
    match TracePacket::decode_from_slice(packet).unwrap().data {
        Some(trace_packet::Data::TraceStats(stats)) => {
            told.push(format!(
                "{:?} sessions, {:?} buffers, last flush {:?}, filtered: {}",
                stats.tracing_sessions,
                stats.total_buffers,
                stats.final_flush_outcome,
                stats.filter_stats.is_set()
            ));
            told.push(format!(
                "flushes: {:?} of {:?} succeeded, {:?} failed",
                stats.flushes_succeeded, stats.flushes_requested, stats.flushes_failed
            ));
            for buffer in &stats.buffer_stats {
                let written = buffer.chunks_written.unwrap_or_default();
                let read = buffer.chunks_read.unwrap_or_default();
                told.push(format!("{written} chunks written, {read} read"));
            }
        }
        Some(trace_packet::Data::Trigger(trigger) | trace_packet::Data::CloneSnapshotTrigger(trigger)) => {
            told.push(format!("{trigger:?}"));
        }
        _ => {}
    }
    told
}

/// Returns the listed sessions, by state.
fn sessions(consumer: &mut Consumer) -> String {
    let state = consumer.state();
    let states: Vec<&str> = state
        .tracing_sessions
        .iter()
        .filter_map(|session| session.state.as_deref())
        .collect();
    format!(
        "{:?} sessions, {:?} started: {states:?}",
        state.num_sessions, state.num_sessions_started
    )
}

/// Upstream also flushes for the buffers with `transfer_on_clone`, even if there are none, and counts this flush.
const ANOTHER_FLUSH: &str = "flushes: ";
/// Upstream also notes the end of that flush in the trace.
const FLUSHED: &str = "69 (3)";

#[test]
fn a_clone_and_its_original_hold_and_tell_the_same() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut scene = Scene::new(service, &recorded());
        scene.write("one", 0);
        scene.write("two", 0);
        let wanted = by_id(scene.session);
        told.push(scene.clone(&wanted));
        told.push(scene.heard());
        told.push(sessions(&mut scene.cloner));
        scene.write("three", 0);
        told.extend(read(&mut scene.cloner));
        told.extend(read(&mut scene.cloner));
        told.extend(read(&mut scene.owner));
        // Clones again, and frees the original before reading the clone.
        scene.cloner.endpoint.free_buffers().unwrap();
        told.push(scene.clone(&by_name("name")));
        scene.owner.endpoint.free_buffers().unwrap();
        scene.owner.until_told("disabled");
        told.push(sessions(&mut scene.cloner));
        told.extend(read(&mut scene.cloner));
        let stats = scene.cloner.stats();
        told.push(format!("{:?} packets invalid", stats.invalid_packets));
        told
    };
    alike(story, &[ANOTHER_FLUSH]);
}

#[test]
fn buffers_are_cleared_and_transferred_alike() {
    let of = |transfer: bool, clear: bool| BufferConfig {
        transfer_on_clone: Some(transfer),
        clear_before_clone: Some(clear),
        ..buffer(64, FillPolicy::RING_BUFFER)
    };
    let source = |buffer: u32| DataSource {
        config: DataSourceConfig {
            name: Some("d".into()),
            target_buffer: Some(buffer),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    let config = TraceConfig {
        buffers: vec![of(false, false), of(true, false), of(false, true), of(true, true)],
        data_sources: (0..4).map(source).collect(),
        ..recorded()
    };
    let story = |service: &Service<'_>| {
        let mut scene = Scene::new(service, &config);
        let mut told = Vec::new();
        for round in 0..3 {
            for buffer in 0..4 {
                scene.write(&format!("{round} before, into {buffer}"), buffer);
            }
            let call = scene
                .cloner
                .endpoint
                .clone_session(&by_id(scene.session), None)
                .unwrap();
            scene.cloner.state();
            scene.producer.settle();
            for buffer in 0..4 {
                scene.write(&format!("{round} with the flush, into {buffer}"), buffer);
            }
            scene.acknowledge();
            told.push(outcome(scene.cloner.answer(call)));
            let mut heard: Vec<String> = scene.producer.log.drain(..).collect();
            heard.sort();
            told.push(heard.join(", "));
            told.extend(read(&mut scene.cloner));
            scene.cloner.endpoint.free_buffers().unwrap();
        }
        told.extend(read(&mut scene.owner));
        // Upstream numbers the writers of a list in no particular order.
        let unnumbered = |line: &String| line.split(" by ").next().unwrap_or_default().to_owned();
        told.iter().map(unnumbered).collect()
    };
    alike(story, &[]);
}

#[test]
fn sessions_are_cloned_alike_in_each_of_their_states() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for state in [
            "configured",
            "started",
            "stopping",
            "disabled",
            "detached",
            "read before",
            "waiting for its trigger",
        ] {
            told.push(format!("{state}:"));
            let mut config = TraceConfig {
                deferred_start: Some(state == "configured"),
                ..recorded()
            };
            if state == "waiting for its trigger" {
                config.trigger_config = TriggerConfig {
                    trigger_mode: Some(TriggerMode::STOP_TRACING),
                    trigger_timeout_ms: Some(600_000),
                    triggers: vec![Trigger {
                        name: Some("never".into()),
                        stop_delay_ms: Some(1),
                        ..Default::default()
                    }],
                    ..Default::default()
                }
                .into();
            }
            let mut scene = Scene::new(service, &config);
            scene.write("one", 0);
            match state {
                "disabled" => {
                    scene.owner.endpoint.disable_tracing().unwrap();
                    scene.owner.until_told("disabled");
                }
                "detached" => {
                    let call = scene.owner.endpoint.detach("key").unwrap();
                    scene.owner.answer(call).unwrap();
                }
                "read before" => told.extend(read(&mut scene.owner)),
                _ => {}
            }
            let wanted = by_id(scene.session);
            told.push(scene.clone(&wanted));
            told.push(scene.heard());
            told.push(sessions(&mut scene.cloner));
            // The clone, and a clone of the clone.
            let clone = scene.cloner.state().tracing_sessions.last().unwrap().id.unwrap();
            let mut again = service.consumer();
            let call = again.endpoint.clone_session(&by_id(clone), None).unwrap();
            told.push(outcome(again.answer(call)));
            told.extend(read(&mut again));
            told.extend(read(&mut scene.cloner));
            if state == "detached" {
                let call = scene.owner.endpoint.attach("key").unwrap();
                scene.owner.answer(call).unwrap();
            }
            drop((scene, again));
            service.await_quiet();
        }
        told
    };
    alike(story, &[ANOTHER_FLUSH]);
}

#[test]
fn a_producer_that_does_not_flush_is_reported_alike() {
    let config = TraceConfig {
        flush_timeout_ms: Some(1),
        ..recorded()
    };
    let story = |service: &Service<'_>| {
        let mut scene = Scene::new(service, &config);
        scene.write("one", 0);
        let call = scene
            .cloner
            .endpoint
            .clone_session(&by_id(scene.session), None)
            .unwrap();
        let mut told = vec![outcome(scene.cloner.answer(call))];
        told.extend(read(&mut scene.cloner));
        told
    };
    alike(story, &[ANOTHER_FLUSH]);
}

#[test]
fn a_bug_report_is_made_of_the_same_session_and_is_whole() {
    const PACKET: u32 = 1;
    const UUID: u32 = 89;
    // The filter keeps only the name of the trace.
    let scored = |name: &str, score| TraceConfig {
        data_sources: config(name).data_sources,
        bugreport_score: Some(score),
        unique_session_name: Some(name.into()),
        trace_filter: TraceFilter {
            bytecode_v2: Some(bytecode(&[&[Rule::Nested(PACKET, 1)], &[Rule::Keep(UUID)]])),
            ..Default::default()
        }
        .into(),
        ..recorded()
    };
    let whole = |request: CloneSessionRequest| CloneSessionRequest {
        for_bugreport: Some(true),
        skip_trace_filter: Some(true),
        ..request
    };
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut nobody = service.consumer();
        let call = nobody.endpoint.clone_session(&by_id(u64::MAX), None).unwrap();
        told.push(format!("none to choose from: {}", outcome(nobody.answer(call))));
        let mut unscored = Scene::new(service, &scored("unscored", 0));
        told.push(unscored.clone(&by_id(u64::MAX)));
        let mut others: Vec<Scene> = [("first", 3), ("second", 2), ("third", 3)]
            .iter()
            .map(|(name, score)| Scene::new(service, &scored(name, *score)))
            .collect();
        let mut best = others.swap_remove(0);
        best.write("secret", 0);
        for request in [
            by_id(u64::MAX),
            by_name("first"),
            whole(by_id(best.session)),
            whole(by_name("first")),
            CloneSessionRequest {
                for_bugreport: Some(true),
                ..by_name("first")
            },
        ] {
            told.push(best.clone(&request));
            told.push(best.heard());
            // Upstream's statistics pass the filter since v58.
            let packets = best.cloner.read();
            told.extend(packets.iter().filter_map(|packet| seen(packet)));
            let config = packets.iter().any(|packet| skeleton(packet).contains("33"));
            told.push(format!("with the config: {config}"));
            best.cloner.endpoint.free_buffers().unwrap();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn the_same_requests_for_clones_are_refused() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut scene = Scene::new(service, &recorded());
        for request in [
            by_id(0),
            by_id(99),
            by_name(""),
            by_name("other"),
            CloneSessionRequest::default(),
        ] {
            told.push(format!("{:?}: {}", request.selector, scene.clone(&request)));
        }
        // A consumer that has a session cannot clone another one.
        let call = scene
            .owner
            .endpoint
            .clone_session(&by_id(scene.session), None)
            .unwrap();
        scene.owner.state();
        scene.acknowledge();
        told.push(outcome(scene.owner.answer(call)));
        told.push(sessions(&mut scene.owner));
        scene.heard();
        // The session ends while producers are being flushed for the clone.
        let call = scene
            .cloner
            .endpoint
            .clone_session(&by_id(scene.session), None)
            .unwrap();
        scene.cloner.state();
        scene.owner.endpoint.free_buffers().unwrap();
        told.push(outcome(scene.cloner.answer(call)));
        scene.acknowledge();
        told.push(sessions(&mut scene.cloner));
        told.push(scene.heard());
        told
    };
    alike(story, &[]);
}

#[test]
fn a_clone_tells_of_the_trigger_that_led_to_it() {
    let config = TraceConfig {
        trigger_config: TriggerConfig {
            trigger_mode: Some(TriggerMode::CLONE_SNAPSHOT),
            trigger_timeout_ms: Some(600_000),
            triggers: ["t", "u"]
                .map(|name| Trigger {
                    name: Some(name.into()),
                    ..Default::default()
                })
                .to_vec(),
            ..Default::default()
        }
        .into(),
        ..recorded()
    };
    let wanted = |session| CloneSessionRequest {
        clone_trigger_name: Some("t".into()),
        clone_trigger_producer_name: Some("p".into()),
        clone_trigger_trusted_producer_uid: Some(-2),
        clone_trigger_boot_time_ns: Some(77),
        clone_trigger_delay_ms: Some(5),
        ..by_id(session)
    };
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut scene = Scene::new(service, &config);
        scene.write("one", 0);
        for triggers in [&["t"][..], &["u", "t"], &[]] {
            if !triggers.is_empty() {
                scene.producer.endpoint.activate_triggers(triggers).unwrap();
                scene.producer.settle();
            }
            let wanted = wanted(scene.session);
            told.push(scene.clone(&wanted));
            told.extend(read(&mut scene.cloner));
            told.extend(read(&mut scene.owner));
            scene.cloner.endpoint.free_buffers().unwrap();
        }
        // Without a trigger's name there was no trigger, whatever the other fields say.
        told.push(scene.clone(&CloneSessionRequest {
            clone_trigger_name: None,
            ..wanted(scene.session)
        }));
        told.extend(read(&mut scene.cloner));
        told
    };
    alike(story, &[ANOTHER_FLUSH]);
}

#[test]
fn a_clone_of_a_compressed_session_is_compressed() {
    let config = TraceConfig {
        compression_type: Some(CompressionType::COMPRESSION_TYPE_DEFLATE),
        ..recorded()
    };
    let story = |service: &Service<'_>| {
        let mut scene = Scene::new(service, &config);
        scene.write("one", 0);
        let wanted = by_id(scene.session);
        let mut told = vec![scene.clone(&wanted)];
        told.extend(scene.cloner.read().iter().map(|packet| skeleton(packet)));
        told
    };
    alike(story, &[]);
}

#[test]
fn a_clone_of_a_stream_is_a_file_that_holds_and_tells_the_same() {
    let streaming = TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(NO_PERIOD_MS),
        write_flush_mode: Some(WriteFlushMode::WRITE_FLUSH_DISABLED),
        ..recorded()
    };
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let [original, clone] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let mut scene = Scene::with_file(service, &streaming, Some(&original));
        scene.write("one", 0);
        let wanted = by_id(scene.session);
        told.push(scene.clone(&wanted));
        told.push(scene.clone_into(&wanted, Some(&clone)));
        told.push(format!(
            "{} bytes in the original",
            original.metadata().unwrap().len()
        ));
        told.extend(written(&clone).iter().flat_map(|packet| said(packet)));
        told.extend(read(&mut scene.cloner));
        scene.write("two", 0);
        scene.owner.endpoint.disable_tracing().unwrap();
        scene.owner.until_told("disabled");
        told.extend(written(&original).iter().flat_map(|packet| said(packet)));
        told.retain(|line| !line.contains(FLUSHED));
        told
    };
    alike(story, &[ANOTHER_FLUSH]);
}

/// Returns the packets in a file.
fn written(file: &File) -> Vec<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let packets = ferretto_wire::Reader::new(&bytes).map(|field| field.expect("whole packets"));
    packets
        .filter_map(|field| field.value.as_bytes().map(<[u8]>::to_vec))
        .collect()
}

#[test]
fn sessions_tell_of_others_and_of_clones_alike() {
    let watching = |name: &str| TraceConfig {
        unique_session_name: Some(name.into()),
        builtin_data_sources: BuiltinDataSource {
            enable_concurrent_session_events: Some(true),
            ..steady()
        }
        .into(),
        ..recorded()
    };
    let events = |who: &str, consumer: &mut Consumer| -> Vec<String> {
        let event = |packet: Vec<u8>| match TracePacket::decode_from_slice(&packet).unwrap().data {
            Some(trace_packet::Data::ConcurrentSessionEvent(event)) => Some(format!(
                "{who} reads: {:?} {} {} of {} with {}",
                event.state.unwrap(),
                event.session_id.unwrap(),
                event.session_name.unwrap_or_default(),
                match event.consumer_uid.unwrap().cast_unsigned() == rustix::process::geteuid().as_raw() {
                    true => "us",
                    false => "others",
                },
                event.num_data_sources.unwrap()
            )),
            _ => None,
        };
        consumer.read().into_iter().filter_map(event).collect()
    };
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        let mut scene = Scene::new(service, &watching("a"));
        let mut deferred = service.consumer();
        deferred.enable(&TraceConfig {
            deferred_start: Some(true),
            ..watching("b")
        });
        let mut ended = service.consumer();
        ended.enable(&config("d"));
        ended.endpoint.disable_tracing().unwrap();
        ended.until_told("disabled");
        told.push(scene.clone(&by_name("a")));
        let mut last = service.consumer();
        last.enable(&watching("c"));
        told.extend(events("the clone", &mut scene.cloner));
        told.extend(events("the last", &mut last));
        scene.cloner.endpoint.free_buffers().unwrap();
        scene.cloner.state();
        deferred.endpoint.free_buffers().unwrap();
        deferred.state();
        // A session that has ended gets no more notifications.
        scene.owner.endpoint.disable_tracing().unwrap();
        scene.owner.until_told("disabled");
        last.endpoint.free_buffers().unwrap();
        last.state();
        told.extend(events("the first", &mut scene.owner));
        told
    };
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let ours = story(&Service::start(&programs, Side::Ours));
    // Upstream's service sends these since v58.
    let expected = [
        "cloned, uuid new: true, Some(2); into a file: false",
        "the clone reads: STATE_CONFIGURED 2 b of us with 1",
        "the clone reads: STATE_CONFIGURED 3  of us with 1",
        "the clone reads: STATE_STARTED 3  of us with 1",
        "the clone reads: STATE_DISABLED 3  of us with 1",
        "the clone reads: STATE_CLONED_READ_ONLY 4 a of us with 0",
        "the last reads: STATE_STARTED 1 a of us with 1",
        "the last reads: STATE_CONFIGURED 2 b of us with 1",
        "the last reads: STATE_DISABLED 3  of us with 1",
        "the last reads: STATE_CLONED_READ_ONLY 4 a of us with 0",
        "the first reads: STATE_CONFIGURED 2 b of us with 1",
        "the first reads: STATE_CONFIGURED 3  of us with 1",
        "the first reads: STATE_STARTED 3  of us with 1",
        "the first reads: STATE_DISABLED 3  of us with 1",
        "the first reads: STATE_CLONED_READ_ONLY 4 a of us with 0",
        "the first reads: STATE_CONFIGURED 5 c of us with 1",
        "the first reads: STATE_STARTED 5 c of us with 1",
        "the first reads: STATE_DISABLED 4 a of us with 0",
        "the first reads: STATE_DISABLED 2 b of us with 1",
    ];
    assert_eq!(ours, expected);
    let theirs = story(&Service::start(&programs, Side::Upstream));
    if theirs.iter().any(|line| line.contains(" reads: ")) {
        assert_eq!(theirs, ours);
    }
}
