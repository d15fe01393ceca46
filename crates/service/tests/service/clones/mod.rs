//! Clones: their contents, the contents that stay in the original, and the consequences when a client goes away meanwhile.

use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_stats::FinalFlushOutcome;
use ferretto_proto::messages::{Message, TraceConfig, TracePacket, TraceStats, Trigger, trace_config};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, CloneTrigger, Cloned, ClonedContent, ConsumerId,
    Identity, Original, ProducerCommand, ProducerId, Scraping, Service, SessionId, StateScope, SystemFacts,
};

mod files;
mod filters;
mod inheritance;
mod limits;
mod selection;
mod transfers;

use crate::world::{Disk, World, config, flushes, packet, starts, texts};

fn request(original: SessionId) -> CloneRequest {
    CloneRequest {
        original: Original::Id(original.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    }
}

fn by_name(name: &str) -> CloneRequest {
    CloneRequest {
        original: Original::Name(name.into()),
        ..request(SessionId(0))
    }
}

fn with_file(original: SessionId) -> CloneRequest {
    CloneRequest {
        file: CloneFile::Passed,
        ..request(original)
    }
}

/// A running session of one producer with one data source, and a consumer that wants it cloned.
struct Scene {
    world: World,
    producer: ProducerId,
    owner: ConsumerId,
    session: SessionId,
    cloner: ConsumerId,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(&config(&["d"]))
    }

    fn with(config: &TraceConfig) -> Scene {
        Scene::of(World::new(), config)
    }

    fn of(mut world: World, config: &TraceConfig) -> Scene {
        let producer = world.producer("p");
        world.offer(producer, "d");
        let owner = world.consumer();
        let session = world.enable(owner, config);
        let cloner = world.consumer();
        Scene {
            world,
            producer,
            owner,
            session,
            cloner,
        }
    }

    /// The producer writes packets with these texts and commits them.
    fn write(&mut self, lines: &[&str]) {
        let target = self.world.target(self.producer);
        let packets: Vec<Vec<u8>> = lines.iter().map(|text| packet(text)).collect();
        let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        self.world.commit(self.producer, 1, target, &packets);
    }

    /// Clones the session, with a producer that flushes at once.
    fn clone(&mut self) -> Cloned {
        self.clone_as(request(self.session))
    }

    fn clone_as(&mut self, request: CloneRequest) -> Cloned {
        self.world.try_clone(self.cloner, request).expect("no refusal");
        self.world.acknowledge_flushes(self.producer);
        self.world
            .cloned(self.cloner)
            .expect("an answer")
            .expect("a clone")
    }

    /// The same for another consumer, which does not use the clone.
    fn clone_by_another(&mut self) {
        let another = self.world.consumer();
        self.world
            .try_clone(another, request(self.session))
            .expect("no refusal");
        self.world.acknowledge_flushes(self.producer);
        self.world.lose_consumer(another);
    }

    fn texts(&mut self, consumer: ConsumerId) -> Vec<String> {
        texts(&self.world.read(consumer))
    }

    fn free(&mut self, consumer: ConsumerId) {
        self.world.free(consumer);
    }
}

/// Whether each packet of a producer says that something before it is missing, with its text.
fn marks(packets: &[TracePacket]) -> Vec<(String, bool)> {
    let marked = |packet: &TracePacket| packet.previous_packet_dropped.unwrap_or_default() != 0;
    let of_producers = packets
        .iter()
        .map(|packet| (texts(std::slice::from_ref(packet)), packet));
    of_producers
        .filter_map(|(texts, packet)| Some((texts.into_iter().next()?, marked(packet))))
        .collect()
}

/// The kinds and times of the service events among these packets.
fn events(packets: &[TracePacket]) -> Vec<(u32, u64)> {
    const SERVICE_EVENT: u32 = 69;
    let kind = |packet: &TracePacket| {
        let bytes = packet.encode_to_vec();
        let mut fields = ferretto_wire::Reader::new(&bytes).flatten();
        let event = fields
            .find(|field| field.number == SERVICE_EVENT)?
            .value
            .as_bytes()?;
        let field = ferretto_wire::Reader::new(event).flatten().next()?;
        Some((field.number, packet.timestamp.unwrap_or_default()))
    };
    packets.iter().filter_map(kind).collect()
}

/// Field numbers in `TracingServiceEvent`.
const TRACING_STARTED: u32 = 2;
const ALL_DATA_SOURCES_FLUSHED: u32 = 3;
const TRACING_DISABLED: u32 = 5;
const FLUSH_STARTED: u32 = 9;
const CLONE_STARTED: u32 = 10;
const BUFFER_CLONED: u32 = 11;

fn stats(packets: &[TracePacket]) -> &TraceStats {
    let stats = |packet: &'_ TracePacket| matches!(packet.data, Some(Data::TraceStats(_)));
    match packets
        .iter()
        .find(|packet| stats(packet))
        .map(|packet| &packet.data)
    {
        Some(Some(Data::TraceStats(stats))) => stats,
        _ => panic!("no stats"),
    }
}

fn trigger_of(packet: &TracePacket) -> Option<&Trigger> {
    match &packet.data {
        Some(Data::CloneSnapshotTrigger(trigger)) => Some(trigger),
        _ => None,
    }
}

fn times_of(kind: u32, packets: &[TracePacket]) -> Vec<u64> {
    let of_kind = events(packets).into_iter().filter(|(found, _)| *found == kind);
    of_kind.map(|(_, at)| at).collect()
}

#[test]
fn a_clone_holds_the_packets_so_far_and_the_original_goes_on() {
    let mut scene = Scene::new();
    scene.write(&["one", "two"]);
    let cloned = scene.clone();
    assert_eq!(cloned.content, ClonedContent::Buffers);
    scene.write(&["three"]);

    assert_eq!(scene.texts(scene.cloner), ["one", "two"]);
    assert_eq!(scene.texts(scene.cloner), Vec::<String>::new(), "read once");
    assert_eq!(scene.texts(scene.owner), ["one", "two", "three"]);
}

#[test]
fn a_clone_outlives_the_original_and_overwriting_of_its_buffers() {
    let mut scene = Scene::new();
    scene.write(&["kept"]);
    scene.clone();
    let large = "x".repeat(3000);
    for _ in 0..100 {
        scene.write(&[&large]);
    }
    assert!(!scene.texts(scene.owner).contains(&"kept".to_owned()));
    scene.free(scene.owner);
    assert_eq!(scene.texts(scene.cloner), ["kept"]);
}

#[test]
fn a_clone_has_a_new_name_that_ends_as_the_originals() {
    let mut scene = Scene::with(&TraceConfig {
        trace_uuid_msb: Some(3737),
        trace_uuid_lsb: Some(4242),
        ..config(&["d"])
    });
    let cloned = scene.clone();
    assert_eq!(cloned.uuid as u64, 4242);
    assert_ne!((cloned.uuid >> 64) as u64, 3737);
    let packets = scene.world.read(scene.cloner);
    let uuid = packets
        .iter()
        .find_map(|packet| match &packet.data {
            Some(Data::TraceUuid(uuid)) => Some(uuid),
            _ => None,
        })
        .expect("a uuid");
    assert_eq!(
        (uuid.msb, uuid.lsb),
        (Some((cloned.uuid >> 64) as i64), Some(4242))
    );
}

#[test]
fn producers_are_flushed_before_with_the_reason() {
    for (purpose, flags) in [(ClonePurpose::Snapshot, 0x13), (ClonePurpose::Bugreport, 0x113)] {
        let mut scene = Scene::new();
        let wanted = CloneRequest {
            purpose,
            ..request(scene.session)
        };
        scene.world.try_clone(scene.cloner, wanted).unwrap();
        let told: Vec<u64> = scene.world.producers[&scene.producer]
            .commands
            .iter()
            .filter_map(|command| match command {
                ProducerCommand::Flush { flags, .. } => Some(*flags),
                _ => None,
            })
            .collect();
        assert_eq!(told, [flags]);
        assert_eq!(scene.world.cloned(scene.cloner), None, "not before they have");
        // Packets that come with the flush are in the clone.
        scene.write(&["flushed"]);
        scene.world.acknowledge_flushes(scene.producer);
        assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
        assert_eq!(scene.texts(scene.cloner), ["flushed"]);
    }
}

#[test]
fn a_clone_of_what_its_owner_has_left_says_that_there_was_more() {
    for transferred in [false, true] {
        let mut config = config(&["d"]);
        config.buffers[0].transfer_on_clone = Some(transferred);
        let mut scene = Scene::with(&config);
        scene.write(&["read", "read, too"]);
        assert_eq!(scene.texts(scene.owner), ["read", "read, too"]);
        scene.write(&["left", "left, too"]);
        let target = scene.world.target(scene.producer);
        scene.world.commit(scene.producer, 2, target, &[&packet("new")]);
        scene.clone();
        let left = [("left", true), ("left, too", false), ("new", false)];
        let left = left.map(|(text, marked)| (text.to_owned(), marked));
        assert_eq!(marks(&scene.world.read(scene.cloner)), left);
        // Nothing is missing between the two reads of the owner.
        if !transferred {
            assert!(
                marks(&scene.world.read(scene.owner))
                    .iter()
                    .all(|(_, marked)| !marked)
            );
        }
    }
}

#[test]
fn uncommitted_chunks_are_in_the_clone() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    world.offer(producer, "d");
    let owner = world.consumer();
    let session = world.enable(owner, &config(&["d"]));
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    let _open = world.write_open(producer, 1, &[&packet("held"), &packet("growing")]);
    let cloner = world.consumer();
    world.try_clone(cloner, request(session)).unwrap();
    world.acknowledge_flushes(producer);
    assert_eq!(texts(&world.read(cloner)), ["held"]);
}

#[test]
fn a_producer_that_does_not_flush_delays_the_clone_by_the_flush_timeout_only() {
    let mut scene = Scene::with(&TraceConfig {
        flush_timeout_ms: Some(200),
        ..config(&["d"])
    });
    scene.write(&["early"]);
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    scene.world.advance(199);
    assert_eq!(scene.world.cloned(scene.cloner), None);
    scene.world.advance(1);
    assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
    let packets = scene.world.read(scene.cloner);
    assert_eq!(texts(&packets), ["early"]);
    let slow = packets.iter().filter(|packet| {
        const LAST_FLUSH_SLOW: u32 = 8;
        events(std::slice::from_ref(*packet))
            .first()
            .is_some_and(|(kind, _)| *kind == LAST_FLUSH_SLOW)
    });
    assert_eq!(slow.count(), 1, "the trace says who was slow");
    let stats = stats(&packets);
    assert_eq!(
        stats.final_flush_outcome,
        Some(FinalFlushOutcome::FINAL_FLUSH_FAILED)
    );
    assert_eq!(stats.flushes_failed, Some(1));
}

#[test]
fn a_clone_records_its_making_and_the_original_does_not() {
    let mut scene = Scene::new();
    let requested = scene.world.now.boot;
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    scene.world.advance(1000);
    scene.world.acknowledge_flushes(scene.producer);
    let made = scene.world.now.boot;
    let clone = scene.world.read(scene.cloner);
    assert_eq!(times_of(TRACING_STARTED, &clone).len(), 1);
    assert_eq!(times_of(FLUSH_STARTED, &clone), [requested]);
    assert_eq!(times_of(ALL_DATA_SOURCES_FLUSHED, &clone), [made]);
    assert_eq!(times_of(CLONE_STARTED, &clone), [requested]);
    assert_eq!(times_of(BUFFER_CLONED, &clone), [made]);
    assert_eq!(times_of(TRACING_DISABLED, &clone), [made]);
    let kinds: Vec<u32> = events(&clone).into_iter().map(|(kind, _)| kind).collect();
    let order = [ALL_DATA_SOURCES_FLUSHED, BUFFER_CLONED, TRACING_DISABLED];
    let places = order.map(|kind| kinds.iter().position(|found| *found == kind));
    assert!(places.is_sorted(), "in the order in which it happened: {kinds:?}");
    assert_eq!(
        clone
            .iter()
            .filter(|packet| matches!(packet.data, Some(Data::TraceConfig(_))))
            .count(),
        1
    );
    assert_eq!(
        clone
            .iter()
            .filter(|packet| matches!(packet.data, Some(Data::TraceStats(_))))
            .count(),
        1
    );
    let stats = stats(&clone);
    assert_eq!(
        stats.final_flush_outcome,
        Some(FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED)
    );

    let original = scene.world.read(scene.owner);
    for kind in [CLONE_STARTED, BUFFER_CLONED, TRACING_DISABLED] {
        assert_eq!(times_of(kind, &original), Vec::<u64>::new());
    }
    assert_eq!(
        times_of(TRACING_STARTED, &original).len(),
        1,
        "the clone took none away"
    );
}

#[test]
fn a_session_that_has_stopped_or_not_started_can_be_cloned() {
    let mut scene = Scene::new();
    scene.write(&["recorded"]);
    scene.world.disable(scene.owner);
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    assert!(
        scene.world.cloned(scene.cloner).unwrap().is_ok(),
        "there is nothing to flush"
    );
    assert_eq!(scene.texts(scene.cloner), ["recorded"]);

    let mut scene = Scene::with(&TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    });
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
    assert_eq!(scene.texts(scene.cloner), Vec::<String>::new());
}

#[test]
fn a_session_without_buffers_can_be_cloned() {
    let mut scene = Scene::with(&TraceConfig::default());
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
}

#[test]
fn a_detached_session_can_be_cloned() {
    let mut scene = Scene::new();
    scene.write(&["detached"]);
    scene.world.service.detach(scene.owner, "key").unwrap();
    scene.world.lose_consumer(scene.owner);
    scene.clone();
    assert_eq!(scene.texts(scene.cloner), ["detached"]);
}

#[test]
fn a_clone_can_be_cloned_by_id_but_has_no_name() {
    let mut scene = Scene::with(&TraceConfig {
        unique_session_name: Some("name".into()),
        ..config(&["d"])
    });
    scene.write(&["named"]);
    scene.clone_as(by_name("name"));
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    scene.free(scene.owner);

    let third = scene.world.consumer();
    let error = scene.world.try_clone(third, by_name("name")).unwrap_err();
    assert!(error.contains("not found"), "{error}");
    scene.world.try_clone(third, request(clone)).unwrap();
    assert!(scene.world.cloned(third).unwrap().is_ok());
    assert_eq!(scene.texts(third), ["named"]);
    // Another session may have the same name.
    let fourth = scene.world.consumer();
    let same_name = TraceConfig {
        unique_session_name: Some("name".into()),
        ..config(&["d"])
    };
    scene.world.enable(fourth, &same_name);
}

#[test]
fn a_clone_whose_consumer_went_away_is_not_made() {
    let mut scene = Scene::new();
    scene.write(&["one"]);
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    let before = scene.world.service.buffer_bytes();
    scene.world.lose_consumer(scene.cloner);
    scene.world.acknowledge_flushes(scene.producer);
    assert_eq!(scene.world.service.buffer_bytes(), before);
    assert_eq!(
        scene.world.state(scene.owner, StateScope::Sessions).num_sessions,
        Some(1)
    );
    assert_eq!(scene.texts(scene.owner), ["one"]);
}

#[test]
fn a_clone_of_a_session_that_ends_during_the_flush_fails() {
    let mut scene = Scene::new();
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    scene.world.lose_consumer(scene.owner);
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("original session ended"), "{error}");
    // The producer acknowledges too late, and nothing breaks.
    scene.world.acknowledge_flushes(scene.producer);
    scene.world.advance(60_000);
    assert!(scene.world.cloned(scene.cloner).is_some());
    assert_eq!(scene.world.service.buffer_bytes(), 0);
}

#[test]
fn a_clone_is_gone_with_its_consumer() {
    let mut scene = Scene::new();
    scene.clone();
    let with_clone = scene.world.service.buffer_bytes();
    scene.world.lose_consumer(scene.cloner);
    assert_eq!(scene.world.service.buffer_bytes(), with_clone / 2);
    assert_eq!(
        scene.world.state(scene.owner, StateScope::Sessions).num_sessions,
        Some(1)
    );
}

#[test]
fn nothing_makes_a_clone_record() {
    let mut scene = Scene::new();
    scene.write(&["one"]);
    scene.clone();
    let started = scene.world.count(scene.producer, starts);
    let now = scene.world.now;
    scene.world.service.start_deferred(scene.cloner, &now);
    scene.world.service.disable_tracing(scene.cloner, &now);
    scene.world.service.flush(scene.cloner, 1, 0, 0, &now);
    scene.world.run();
    let late = scene.world.producer("late");
    scene.world.offer(late, "d");
    assert_eq!(scene.world.count(scene.producer, starts), started);
    assert_eq!(scene.world.count(late, starts), 1, "for the original only");
    assert_eq!(scene.world.consumers[&scene.cloner].disabled, []);
    assert_eq!(scene.texts(scene.cloner), ["one"]);
}

#[test]
fn a_clone_can_be_detached_and_attached() {
    let mut scene = Scene::new();
    scene.write(&["one"]);
    scene.clone();
    scene.world.service.detach(scene.cloner, "clone").unwrap();
    scene.world.lose_consumer(scene.cloner);
    let other = scene.world.consumer();
    scene.world.service.attach(other, "clone").unwrap();
    assert_eq!(scene.texts(other), ["one"]);
}

#[test]
fn a_trigger_that_led_to_a_clone_is_noted_in_it_once() {
    let mut scene = Scene::new();
    let trigger = CloneTrigger {
        name: "trigger".into(),
        producer_name: "who".into(),
        producer_uid: 42,
        boot_time_ns: 456_789_123,
        delay_ms: 104,
    };
    scene.clone_as(CloneRequest {
        trigger: Some(trigger),
        ..request(scene.session)
    });
    let packets = scene.world.read(scene.cloner);
    let noted: Vec<_> = packets
        .iter()
        .filter_map(|packet| Some((packet.timestamp, trigger_of(packet)?)))
        .collect();
    let [(at, noted)] = noted.as_slice() else {
        panic!("{noted:?}")
    };
    assert_eq!(*at, Some(456_789_123));
    assert_eq!(noted.trigger_name.as_deref(), Some("trigger"));
    assert_eq!(noted.producer_name.as_deref(), Some("who"));
    assert_eq!(noted.trusted_producer_uid, Some(42));
    assert_eq!(noted.stop_delay_ms, Some(104));
    let has_trigger = |packets: Vec<TracePacket>| packets.iter().any(|packet| trigger_of(packet).is_some());
    assert!(!has_trigger(scene.world.read(scene.cloner)));
    assert!(!has_trigger(scene.world.read(scene.owner)));
}

#[test]
fn clones_number_writers_as_the_original_does() {
    let mut two = config(&["d", "d"]);
    two.buffers.push(two.buffers[0].clone());
    two.data_sources[1].config.get_or_insert_default().target_buffer = Some(1);
    let mut scene = Scene::with(&two);
    let target = scene.world.target(scene.producer);
    // The original numbers the writer into the second buffer first, and the clone numbers the writer into the first buffer first.
    scene
        .world
        .commit(scene.producer, 2, target + 1, &[&packet("second")]);
    scene.world.read(scene.owner);
    scene.world.commit(scene.producer, 1, target, &[&packet("first")]);
    scene
        .world
        .commit(scene.producer, 2, target + 1, &[&packet("second")]);
    scene.clone();
    let sequences = |packets: &[TracePacket]| {
        let mut sequences: Vec<_> = packets
            .iter()
            .filter(|packet| !texts(std::slice::from_ref(*packet)).is_empty())
            .map(|packet| {
                (
                    texts(std::slice::from_ref(packet)),
                    packet.optional_trusted_packet_sequence_id.clone(),
                )
            })
            .collect();
        sequences.sort_by_key(|(text, _)| text.clone());
        sequences
    };
    let original = sequences(&scene.world.read(scene.owner));
    assert_eq!(sequences(&scene.world.read(scene.cloner)), original);
}

#[test]
fn capabilities_include_clones() {
    assert_eq!(Service::query_capabilities().has_clone_session, Some(true));
}

#[test]
fn the_triggers_that_came_since_the_last_clone_are_in_the_next() {
    let mut scene = Scene::with(&TraceConfig {
        trigger_config: trace_config::TriggerConfig {
            trigger_mode: Some(trace_config::trigger_config::TriggerMode::CLONE_SNAPSHOT),
            trigger_timeout_ms: Some(60_000),
            triggers: vec![trace_config::trigger_config::Trigger {
                name: Some("t".into()),
                ..Default::default()
            }],
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    });
    scene.write(&["one"]);
    let mut triggers_of_clone = || {
        scene.world.activate(scene.producer, &["t"]);
        scene.clone();
        let packets = scene.world.read(scene.cloner);
        scene.free(scene.cloner);
        scene
            .world
            .consumers
            .get_mut(&scene.cloner)
            .unwrap()
            .clones
            .clear();
        assert_eq!(texts(&packets), ["one"]);
        let triggers = packets
            .iter()
            .filter(|packet| matches!(packet.data, Some(Data::Trigger(_))));
        triggers.count()
    };
    assert_eq!(triggers_of_clone(), 1);
    assert_eq!(triggers_of_clone(), 1);
    assert_eq!(
        scene.texts(scene.owner),
        Vec::<String>::new(),
        "only its clones are read"
    );
}
