//! The budgets that the clients of one user share, so that some is left for others, and the bounds of one request, so that there is time for others.
//! `limits` has the limits of a single client.

use std::sync::Arc;

use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{
    CommitDataRequest, Message, ProtoVmConfig, TraceConfig, TracingServiceState, trace_config, trace_packet,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConsumerId, Credentials, Identity, Introduction,
    Machine, MachineId, MemorySharing, Original, OtherMachine, ProducerCommand, ProducerId, Scraping,
    SmbOrigin, StateScope, SystemFacts, limits,
};
use ferretto_smb::{
    ChunkId, FirstPacket, NewChunk, PageLayout, PageSize, ProducerSmb, ServiceSmb, SharedMemory, WriteChunk,
    WriterId,
};

use crate::scraping::scraped;
use crate::world::{World, config, packet, texts};

const KB: usize = 1024;

fn named(name: &str) -> Introduction {
    Introduction {
        name: name.into(),
        ..Default::default()
    }
}

/// The number of instances in the first session.
fn instances(world: &World, consumer: ConsumerId) -> usize {
    let state: TracingServiceState = world.state(consumer, StateScope::Sessions);
    state.tracing_sessions[0].num_data_sources.unwrap_or_default() as usize
}

#[test]
fn the_instances_of_the_producers_of_a_user_in_a_session_are_limited() {
    const EACH: usize = limits::MAX_INSTANCES_PER_PRODUCER;
    let mut world = World::new();
    let crowd: Vec<ProducerId> = (0..limits::MAX_INSTANCES_PER_UID / EACH + 1)
        .map(|_| world.introduce(7, named("crowd")))
        .collect();
    let other = world.introduce(8, named("other"));
    for producer in crowd.iter().chain([&other]) {
        world.offer(*producer, "d");
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&vec!["d"; EACH]));
    assert_eq!(instances(&world, consumer), limits::MAX_INSTANCES_PER_UID + EACH);
    let told = |world: &World| world.log.iter().filter(|line| line.contains("of uid 7")).count();
    // The log has this only once.
    for _ in 0..3 {
        let late = world.introduce(7, named("late"));
        world.offer(late, "d");
    }
    assert_eq!(instances(&world, consumer), limits::MAX_INSTANCES_PER_UID + EACH);
    assert_eq!(told(&world), 1, "{:?}", world.log);
    // When a producer disconnects, there is room for another.
    world.lose_producer(crowd[0]);
    let late = world.introduce(7, named("late"));
    world.offer(late, "d");
    assert_eq!(instances(&world, consumer), limits::MAX_INSTANCES_PER_UID + EACH);
}

#[test]
fn the_configs_that_go_to_the_producers_of_a_user_are_bounded() {
    const SIZE: usize = 100 * KB;
    let mut world = World::new();
    let most = limits::MAX_INSTANCE_BYTES_PER_UID / SIZE;
    let join = |world: &mut World| {
        let producer = world.introduce(7, named("crowd"));
        world.offer(producer, "d");
        producer
    };
    let first = join(&mut world);
    for _ in 1..most + 5 {
        join(&mut world);
    }
    let other = world.introduce(8, named("other"));
    world.offer(other, "d");
    let mut large = config(&["d"]);
    large.data_sources[0].config.get_or_insert_default().legacy_config = Some("x".repeat(SIZE));
    let consumer = world.consumer();
    world.enable(consumer, &large);
    assert_eq!(instances(&world, consumer), most + 1);
    // When a producer disconnects, there is room for another.
    world.lose_producer(first);
    assert_eq!(instances(&world, consumer), most);
    join(&mut world);
    assert_eq!(instances(&world, consumer), most + 1);
}

#[test]
fn the_data_sources_of_the_producers_of_a_user_are_limited() {
    let mut world = World::new();
    let count = |world: &World| {
        let mut query = ferretto_service::StateQuery::new(StateScope::Everything);
        let root = ConsumerId(1);
        std::iter::from_fn(|| world.service.next_state(root, &mut query, KB))
            .map(|part| {
                TracingServiceState::decode_from_slice(&part)
                    .unwrap()
                    .data_sources
                    .len()
            })
            .sum::<usize>()
    };
    world.consumer_of(0);
    let now = world.now;
    let register = |world: &mut World, producer| {
        // The descriptor has a name, and nothing else.
        world.service.register_data_source(producer, b"\x0a\x01d", &now);
        while world.service.poll().is_some() {}
    };
    let mut last = ProducerId(0);
    for _ in 0..limits::MAX_DATA_SOURCES_PER_UID / limits::MAX_DATA_SOURCES_PER_PRODUCER {
        last = world.introduce(7, named("p"));
        for _ in 0..limits::MAX_DATA_SOURCES_PER_PRODUCER {
            register(&mut world, last);
        }
    }
    let late = world.introduce(7, named("late"));
    register(&mut world, late);
    assert_eq!(count(&world), limits::MAX_DATA_SOURCES_PER_UID);
    let other = world.introduce(8, named("other"));
    register(&mut world, other);
    assert_eq!(count(&world), limits::MAX_DATA_SOURCES_PER_UID + 1);
    world.service.unregister_data_source(last, "d", &now);
    register(&mut world, late);
    assert_eq!(count(&world), limits::MAX_DATA_SOURCES_PER_UID + 1);
}

#[test]
fn offers_of_a_name_are_compared_up_to_a_number() {
    let mut world = World::new();
    let offers = limits::MAX_OFFERS_COMPARED / limits::MAX_DATA_SOURCES_PER_CONFIG;
    let now = world.now;
    let mut producers = Vec::new();
    for number in 0..offers + 1 {
        if number % limits::MAX_DATA_SOURCES_PER_PRODUCER == 0 {
            producers.push(world.introduce(7, named("p")));
        }
        let producer = producers[producers.len() - 1];
        world.service.register_data_source(producer, b"\x0a\x01d", &now);
    }
    let mut filtered = config(&["d"]);
    // The filter matches no producer, but all have to be tried.
    filtered.data_sources[0].producer_name_filter = vec!["nobody".into()];
    filtered.data_sources = vec![filtered.data_sources[0].clone(); limits::MAX_DATA_SOURCES_PER_CONFIG];
    let consumer = world.consumer();
    world.enable(consumer, &filtered);
    let told = |world: &World| {
        let lines = world.log.iter();
        lines
            .filter(|line| line.contains("than can be looked at"))
            .count()
    };
    assert_eq!(told(&world), 1);
    // The service did not look at the other producers, so it does not know which of them match.
    let lacked = |world: &mut World, consumer| {
        world.service.disable_tracing(consumer, &now);
        let packets = world.read(consumer);
        packets.iter().any(|packet| match &packet.data {
            Some(trace_packet::Data::ServiceEvent(event)) => {
                matches!(event.event_type, Some(EventType::DataSourcesNotOffered(_)))
            }
            _ => false,
        })
    };
    assert!(!lacked(&mut world, consumer));
    world.service.unregister_data_source(producers[0], "d", &now);
    let consumer = world.consumer();
    world.enable(consumer, &filtered);
    assert_eq!(told(&world), 1);
    assert!(lacked(&mut world, consumer));
}

#[test]
fn producers_from_networks_do_not_use_up_the_budgets_of_users_they_claim_to_be() {
    let mut world = World::new();
    let remote = |uid: u32, machine: &str| {
        let credentials = Credentials { uid, pid: Some(1) };
        let machine = OtherMachine {
            id: MachineId::from_hint(machine.as_bytes()),
            name: machine.into(),
        };
        let who = Introduction {
            machine: Machine::Other(machine.into()),
            sharing: MemorySharing::Impossible,
            ..named("remote")
        };
        (credentials, who)
    };
    let mut descriptor = ferretto_wire::Writer::new();
    descriptor.bytes_field(1, b"d");
    descriptor.bytes_field(9999, &vec![0; limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER - 10]);
    let now = world.now;
    let count = limits::MAX_DESCRIPTOR_BYTES_PER_UID / limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER;
    for number in 0..2 * count {
        // The producers belong to any users and to any machines.
        let (credentials, who) = remote(1000 + number as u32 % 2, ["a", "b"][number % 2]);
        let id = world
            .service
            .connect_producer(credentials, who)
            .expect("admitted");
        world
            .service
            .register_data_source(id, descriptor.as_slice(), &now);
    }
    let root = world.consumer_of(0);
    let sources = |world: &World| world.state(root, StateScope::Everything).data_sources.len();
    assert_eq!(sources(&world), count, "all of them share what one user may have");
    let local = world.introduce(1000, named("local"));
    world
        .service
        .register_data_source(local, descriptor.as_slice(), &now);
    assert_eq!(sources(&world), count + 1);
}

#[test]
fn the_shared_memory_of_a_user_is_bounded_and_all_get_some() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let granted = |world: &mut World, uid: u32| {
        let who = Introduction {
            smb_size_hint: limits::MAX_SMB_SIZE,
            ..named("p")
        };
        let producer = world.introduce(uid, who);
        world.offer(producer, "d");
        match world.producers[&producer].commands[0] {
            ProducerCommand::CreateSharedMemory { size, .. } => (producer, size),
            ref other => panic!("{other:?}"),
        }
    };
    let mut producers = Vec::new();
    for _ in 0..limits::MIN_SHARED_MEMORY_PER_UID / limits::MAX_SMB_SIZE {
        let (producer, size) = granted(&mut world, 7);
        assert_eq!(size, limits::MAX_SMB_SIZE);
        producers.push(producer);
    }
    let (late, size) = granted(&mut world, 7);
    assert_eq!(size, limits::DEFAULT_SMB_SIZE);
    let check = |world: &World, size: usize| world.service.check_shared_memory(late, size);
    let refusal = check(&world, limits::MAX_SMB_SIZE).unwrap_err();
    assert!(
        refusal.contains("the producers of uid 7 would have more than"),
        "{refusal}"
    );
    for small in [4 * KB, limits::DEFAULT_SMB_SIZE] {
        assert_eq!(check(&world, small), Ok(()));
    }
    assert_eq!(granted(&mut world, 8).1, limits::MAX_SMB_SIZE, "another user");
    world.lose_producer(late);
    world.lose_producer(producers[0]);
    assert_eq!(granted(&mut world, 7).1, limits::MAX_SMB_SIZE);
    assert_eq!(
        limits::shared_memory_per_uid(Some(64 << 30)),
        16 << 30,
        "large machines"
    );
    assert_eq!(
        limits::shared_memory_per_uid(Some(1 << 30)),
        limits::MIN_SHARED_MEMORY_PER_UID
    );
}

#[test]
fn shared_memory_that_producers_bring_counts_like_that_which_is_made_for_them() {
    let mut world = World::new();
    let page_size = PageSize::new(limits::DEFAULT_SMB_PAGE_SIZE).unwrap();
    let bring = |world: &mut World| {
        let producer = world.introduce(7, named("p"));
        let has_room = world
            .service
            .check_shared_memory(producer, limits::MAX_SMB_SIZE)
            .is_ok();
        if has_room {
            // The test does not touch the memory, so it takes no space.
            let memory = Arc::new(SharedMemory::create(limits::MAX_SMB_SIZE).unwrap());
            let smb = ServiceSmb::new(memory, page_size).unwrap();
            world
                .service
                .attach_shared_memory(producer, smb, SmbOrigin::Producer);
            world.run();
        }
        has_room.then_some(producer)
    };
    let most = limits::MIN_SHARED_MEMORY_PER_UID / limits::MAX_SMB_SIZE;
    let brought: Vec<_> = (0..most).map(|_| bring(&mut world).expect("room")).collect();
    assert_eq!(bring(&mut world), None);
    world.lose_producer(brought[0]);
    bring(&mut world).expect("room again");
    assert_eq!(bring(&mut world), None);
}

#[test]
fn the_memory_of_a_user_that_a_flush_scrapes_is_limited() {
    const PAGE: usize = limits::MAX_SMB_PAGE_SIZE;
    let mut world = World::new();
    let consumer = world.consumer();
    let mut large = config(&["d"]);
    large.buffers[0].size_kb = Some(256 * 1024);
    world.enable(consumer, &large);
    let text = "x".repeat(PAGE - 100);
    let hoard = |world: &mut World, uid: u32, bytes: usize| {
        let who = Introduction {
            smb_size_hint: limits::MAX_SMB_SIZE,
            smb_page_size_hint: PAGE,
            scraping: Scraping::Enabled,
            ..named("p")
        };
        let producer = world.introduce(uid, who);
        world.offer(producer, "d");
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 1, target.into());
        for _ in 0..bytes / PAGE {
            let _ = world.write(producer, 1, target, &[&packet(&text)]);
        }
        producer
    };
    let producers: Vec<ProducerId> = (0..3)
        .map(|_| hoard(&mut world, 7, limits::MAX_SMB_SIZE))
        .collect();
    let other = hoard(&mut world, 8, 10 * PAGE);
    world.flush(consumer, 1, 0);
    for producer in producers.iter().chain([&other]) {
        world.acknowledge_flushes(*producer);
    }
    let written = |world: &mut World| {
        let stats = world.service.trace_stats(consumer).unwrap();
        stats.buffer_stats[0].chunks_written.unwrap() as usize
    };
    let most = limits::MAX_SCRAPED_PER_UID / PAGE;
    let scraped = written(&mut world) - 10;
    assert!((most..most + 2).contains(&scraped), "{scraped} of {most}");
    let told = |line: &&String| line.contains("the producers of uid 7 have left more than");
    world.flush(consumer, 2, 0);
    for producer in producers.iter().chain([&other]) {
        world.acknowledge_flushes(*producer);
    }
    assert_eq!(world.log.iter().filter(told).count(), 1, "once");
    // A lost producer's leftovers are scraped all the same.
    producers
        .iter()
        .for_each(|producer| world.lose_producer(*producer));
    assert_eq!(written(&mut world), 3 * limits::MAX_SMB_SIZE / PAGE + 10);
}

#[test]
fn the_pages_of_a_user_that_a_flush_looks_at_are_limited() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    // All producers share one memory, because separate ones would take a gigabyte. Its pages are full of an unregistered writer's chunks, so there is
    // nothing to scrape.
    let page_size = PageSize::new(limits::MIN_SMB_PAGE_SIZE).unwrap();
    let memory = Arc::new(SharedMemory::create(limits::MAX_SMB_SIZE).unwrap());
    let writes = Arc::new(ProducerSmb::new(memory.clone(), page_size).unwrap());
    let of_stranger = |chunk| NewChunk {
        writer: WriterId(2),
        chunk: ChunkId(chunk),
        first: FirstPacket::Whole,
    };
    let pages = (0..).map_while(|chunk| writes.take_chunk(PageLayout::Div1, of_stranger(chunk)));
    let pages = pages.map(WriteChunk::complete).count();
    assert_eq!(pages, limits::MAX_SMB_SIZE / limits::MIN_SMB_PAGE_SIZE);
    let join = |world: &mut World, uid: u32| {
        let producer = world.producer_of(uid, "p", Scraping::Enabled);
        world.offer(producer, "d");
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 1, target.into());
        let smb = ServiceSmb::new(memory.clone(), page_size).unwrap();
        world
            .service
            .attach_shared_memory(producer, smb, SmbOrigin::Service);
        producer
    };
    let mut producers: Vec<ProducerId> = (0..limits::MAX_PAGES_SCRAPED_PER_UID / pages)
        .map(|_| join(&mut world, 7))
        .collect();
    producers.push(join(&mut world, 8));
    let told = |world: &mut World, producers: &[ProducerId]| {
        world.flush(consumer, 1, 0);
        for producer in producers {
            world.acknowledge_flushes(*producer);
        }
        let lines = world.log.iter();
        lines
            .filter(|line| line.contains("uid 7") && line.contains("filled more than"))
            .count()
    };
    assert_eq!(told(&mut world, &producers), 0);
    producers.push(join(&mut world, 7));
    assert_eq!(told(&mut world, &producers), 1);
}

fn cloning(id: u64) -> CloneRequest {
    CloneRequest {
        original: Original::Id(id),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    }
}

#[test]
fn the_clones_of_one_user_leave_memory_for_those_of_others() {
    let mut world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 40 * KB as u64),
            ..Default::default()
        },
        ..Default::default()
    });
    let producer = world.producer("p");
    world.offer(producer, "d");
    let owners = [1, 2].map(|uid| {
        let owner = world.consumer_of(uid);
        (uid, world.enable(owner, &config(&["d"])))
    });
    let targets = world.instances(producer).into_iter();
    let targets: Vec<u16> = targets
        .map(|(_, config)| config.target_buffer.unwrap() as u16)
        .collect();
    for target in &targets {
        world.commit(producer, *target, *target, &[&packet(&"x".repeat(3000))]);
    }
    let clones = |world: &mut World, (uid, session): (u32, ferretto_service::SessionId)| {
        let mut made = 0;
        loop {
            // Memory that clones share would count once.
            for target in &targets {
                world.commit(producer, *target, *target, &[&packet("a little")]);
            }
            let cloner = world.consumer_of(uid);
            match world.try_clone(cloner, cloning(session.0)) {
                Ok(_) => world.acknowledge_flushes(producer),
                Err(error) => break (made, error),
            }
            made += 1;
        }
    };
    let (first, why) = clones(&mut world, owners[0]);
    assert!(
        why.contains("clones of uid 1 have already") && why.contains("may have 30 KB"),
        "{why}"
    );
    let (second, why) = clones(&mut world, owners[1]);
    assert!(why.contains("may have 40 KB"), "{why}");
    assert!(
        (7..10).contains(&first) && (2..4).contains(&second),
        "{first} and {second}: each takes a little more than 3000 bytes"
    );
    // A machine that does not report its memory is taken for a small one.
    assert_eq!(limits::clone_memory(None), limits::DEFAULT_CLONE_MEMORY);
    assert_eq!(limits::DEFAULT_CLONE_MEMORY, 1 << 30);
}

#[test]
fn guarded_sessions_of_one_user_do_not_keep_those_of_others_from_beginning() {
    let mut world = World::new();
    let mut start = |uid: u32, name: usize| {
        let consumer = world.consumer_of(uid);
        let guarded = TraceConfig {
            enable_extra_guardrails: Some(true),
            unique_session_name: Some(format!("s{name}")),
            ..config(&[])
        };
        let result = world.try_enable(consumer, &guarded).map(drop);
        world.lose_consumer(consumer);
        world.advance(1);
        result
    };
    for name in 0..limits::MAX_GUARDED_STARTS_PER_UID {
        start(7, name).unwrap();
    }
    assert!(start(7, 9999).unwrap_err().contains("limit"));
    start(8, 9999).unwrap();
}

#[test]
fn the_writers_in_statistics_are_limited() {
    let (mut world, producer, consumer) = World::offering();
    let mut two = config(&["d", "d"]);
    two.buffers.push(two.buffers[0].clone());
    two.data_sources[1].config.get_or_insert_default().target_buffer = Some(1);
    world.enable(consumer, &two);
    for (_, source) in world.instances(producer) {
        let target = source.target_buffer.unwrap() as u16;
        for writer in 1..=10 {
            world.commit(producer, writer, target, &[&packet("x")]);
        }
    }
    let mut told = |most| {
        let stats = world.service.trace_stats_up_to(consumer, most).unwrap();
        stats.writer_stats.len()
    };
    assert_eq!([0, 7, 13, 20, 1000].map(&mut told), [0, 7, 13, 20, 20]);
}

#[test]
fn the_states_of_programs_of_a_config_are_bounded_in_all() {
    let mut world = World::new();
    let mut try_with = |kb: [u32; 2]| {
        let mut config = config(&["a", "b"]);
        for (source, kb) in config.data_sources.iter_mut().zip(kb) {
            source.config.get_or_insert_default().protovm_config = ProtoVmConfig {
                memory_limit_kb: Some(kb),
                ..Default::default()
            }
            .into();
        }
        let consumer = world.consumer();
        let result = world.try_enable(consumer, &config).map(drop);
        world.lose_consumer(consumer);
        result
    };
    let most = limits::MAX_PROTOVM_MEMORY_KB_PER_SESSION;
    try_with([most / 2, most / 2]).unwrap();
    let error = try_with([most / 2, most / 2 + 1]).unwrap_err();
    assert!(error.contains("of all data sources"), "{error}");
}

#[test]
fn flushes_that_complete_together_all_scrape_the_uncommitted_chunks() {
    let (mut world, producer, consumer) = scraped();
    let target = world.target(producer);
    let now = world.now;
    for token in 0..5 {
        world.service.flush(consumer, token, 100, 0, &now);
    }
    let _open = world.write_open(producer, 1, &[&packet("one"), &packet("unfinished")]);
    world.advance(100);
    assert_eq!(world.consumers[&consumer].flushes.len(), 5);
    assert_eq!(texts(&world.read(consumer)), ["one"]);
    let now = world.now;
    for token in 5..10 {
        world.service.flush(consumer, token, 0, 0, &now);
    }
    let _ = world.write(producer, 2, target, &[&packet("unregistered")]);
    world.service.register_trace_writer(producer, 2, target.into());
    let all = CommitDataRequest {
        flush_request_id: Some(u64::MAX),
        ..Default::default()
    };
    world.service.commit(producer, &all, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].flushes.len(), 10);
    assert_eq!(texts(&world.read(consumer)), ["unregistered"]);
}

#[test]
fn flushes_that_complete_together_are_served_by_one_scrape() {
    for acknowledged in [true, false] {
        let mut world = World::new();
        let producer = world.producer_with("p", Scraping::Enabled);
        world.offer(producer, "d");
        let consumer = world.consumer();
        let mut discarding = config(&["d"]);
        discarding.buffers[0].size_kb = Some(4);
        discarding.buffers[0].fill_policy = Some(trace_config::buffer_config::FillPolicy::DISCARD);
        world.enable(consumer, &discarding);
        let target = world.target(producer);
        world.service.register_trace_writer(producer, 1, target.into());
        let large = packet(&"x".repeat(3000));
        world.commit(producer, 1, target, &[&large]);
        let _ = world.write(producer, 1, target, &[&large]);
        let now = world.now;
        for token in 0..5 {
            world.service.flush(consumer, token, 100, 0, &now);
        }
        world.run();
        if acknowledged {
            world.acknowledge_flushes(producer);
        }
        world.advance(100);
        assert_eq!(world.consumers[&consumer].flushes.len(), 5);
        // The buffer counts each chunk that does not fit.
        let stats = world.service.trace_stats(consumer).unwrap();
        assert_eq!(stats.buffer_stats[0].chunks_discarded, Some(1));
    }
}

/// Matching this name with [`LONG`] takes much work.
fn long_name() -> String {
    "b".repeat(4000)
}

const LONG: &str = "a{0,150}b*";

/// A number of matches that takes too much work.
const TOO_OFTEN: usize = 100;

#[test]
fn names_of_one_user_that_take_much_work_to_match_leave_some_for_those_of_others() {
    let mut world = World::new();
    let name = long_name();
    let crowd: Vec<ProducerId> = (0..TOO_OFTEN).map(|_| world.introduce(7, named(&name))).collect();
    let honest = world.introduce(8, named("honest"));
    for producer in crowd.iter().chain([&honest]) {
        world.offer(*producer, "d");
    }
    let consumer = world.consumer();
    let mut filtered = config(&["d", "d"]);
    for source in &mut filtered.data_sources {
        source.producer_name_regex_filter = vec![format!("{LONG}|honest")];
    }
    world.enable(consumer, &filtered);
    let set_up = |producer: &ProducerId| world.instances(*producer).len();
    assert_eq!(set_up(&honest), 2);
    let of_crowd: usize = crowd.iter().map(set_up).sum();
    assert!((1..TOO_OFTEN).contains(&of_crowd), "{of_crowd}");
    let told = |line: &&String| line.contains("take too much work to be matched");
    assert_eq!(world.log.iter().filter(told).count(), 1);
}

#[test]
fn each_session_is_scraped_for_when_flushes_of_several_complete_together() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    world.offer(producer, "d");
    let consumers = [world.consumer(), world.consumer()];
    for consumer in consumers {
        world.enable(consumer, &config(&["d"]));
    }
    for (writer, (_, source)) in (1..).zip(world.instances(producer)) {
        let target = source.target_buffer.unwrap() as u16;
        world
            .service
            .register_trace_writer(producer, writer.into(), target.into());
        let _ = world.write(producer, writer, target, &[&packet(&format!("of {writer}"))]);
    }
    let now = world.now;
    for token in 0..2 {
        for consumer in consumers {
            world.service.flush(consumer, token, 0, 0, &now);
        }
    }
    world.run();
    world.acknowledge_flushes(producer);
    for (writer, consumer) in (1..).zip(consumers) {
        assert_eq!(world.consumers[&consumer].flushes.len(), 2);
        assert_eq!(texts(&world.read(consumer)), [format!("of {writer}")]);
    }
}

#[test]
fn the_work_to_match_producers_names_when_a_data_source_comes_is_limited() {
    let mut world = World::new();
    const SESSIONS: usize = 10;
    let mut filtered = config(&["d"; TOO_OFTEN / SESSIONS]);
    for source in &mut filtered.data_sources {
        source.producer_name_regex_filter = vec![LONG.into()];
    }
    for uid in 0..SESSIONS as u32 {
        let consumer = world.consumer_of(uid);
        world.enable(consumer, &filtered);
    }
    let producer = world.introduce(7, named(&long_name()));
    world.offer(producer, "d");
    let matched = world.instances(producer).len();
    assert!((1..TOO_OFTEN).contains(&matched), "{matched}");
    world.offer(producer, "d");
    assert_eq!(world.instances(producer).len(), 2 * matched);
}

#[test]
fn the_work_to_match_producers_names_when_triggers_come_is_limited() {
    let mut world = World::new();
    let names: Vec<String> = (0..TOO_OFTEN).map(|number| format!("t{number}")).collect();
    let trigger = |name: &String| Trigger {
        name: Some(name.clone()),
        producer_name_regex: Some(LONG.into()),
        stop_delay_ms: Some(1000),
        ..Default::default()
    };
    let consumer = world.consumer();
    let triggered = TraceConfig {
        trigger_config: trace_config::TriggerConfig {
            trigger_mode: Some(TriggerMode::STOP_TRACING),
            trigger_timeout_ms: Some(10_000),
            triggers: names.iter().map(trigger).collect(),
            ..Default::default()
        }
        .into(),
        ..config(&[])
    };
    world.enable(consumer, &triggered);
    let producer = world.introduce(7, named(&long_name()));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.activate(producer, &names);
    let packets = world.read(consumer);
    let triggers = packets
        .iter()
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::Trigger(_))));
    let matched = triggers.count();
    assert!((1..TOO_OFTEN).contains(&matched), "{matched}");
}
