//! Limits of the service, each at its value and past it. `refusals` tests limits of configs that are simply refused, `admission` the limits of
//! guardrails and boosts, `events` the limits of events, and `budgets` the limits of all clients of a user.

use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceDescriptor, Message, TraceConfig, TracePacket, TracingServiceState,
    commit_data_request, trace_config,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, Credentials, FlushOutcome, Introduction, Original,
    ProducerCommand, Service, StateScope, limits,
};

use crate::world::{Disk, World, config, flushes, packet, starts, texts};

const KB: usize = 1024;

/// The shared memory that a producer gets, given its own wish and the config's.
fn shared_memory(hints: (usize, usize), wish_kb: (u32, u32)) -> (usize, usize) {
    let mut world = World::new();
    let who = Introduction {
        name: "p".into(),
        smb_size_hint: hints.0,
        smb_page_size_hint: hints.1,
        ..Default::default()
    };
    let producer = world.introduce(1000, who);
    world.offer(producer, "d");
    let consumer = world.consumer();
    let mut sized = config(&["d"]);
    sized.producers = vec![trace_config::ProducerConfig {
        producer_name: Some("p".into()),
        shm_size_kb: Some(wish_kb.0),
        page_size_kb: Some(wish_kb.1),
        ..Default::default()
    }];
    world.enable(consumer, &sized);
    match world.producers[&producer].commands[0] {
        ProducerCommand::CreateSharedMemory { size, page_size } => (size, page_size),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn shared_memory_is_granted_up_to_its_limits() {
    let most = (limits::MAX_SMB_SIZE, limits::MAX_SMB_PAGE_SIZE);
    let in_kb = |(size, page): (usize, usize)| ((size / KB) as u32, (page / KB) as u32);
    assert_eq!(shared_memory(most, (0, 0)), most);
    assert_eq!(shared_memory((0, 0), in_kb(most)), most);
    // Producers and configs may wish for more, and get the maximum.
    let more = (2 * most.0, 2 * most.1);
    assert_eq!(shared_memory(more, (0, 0)), most);
    assert_eq!(shared_memory((0, 0), in_kb(more)), most);
    // The config's wish takes precedence.
    assert_eq!(
        shared_memory((512 * KB, 8 * KB), (1024, 16)),
        (1024 * KB, 16 * KB)
    );
    assert_eq!(shared_memory((512 * KB, 8 * KB), (0, 0)), (512 * KB, 8 * KB));
    let default = (limits::DEFAULT_SMB_SIZE, limits::DEFAULT_SMB_PAGE_SIZE);
    assert_eq!(shared_memory((0, 0), (0, 0)), default);
    // These sizes are smaller than a page of the ABI, or not a multiple of one.
    assert_eq!(
        shared_memory((256 * KB, limits::MIN_SMB_PAGE_SIZE / 2), (0, 0)),
        default
    );
    assert_eq!(shared_memory((18 * KB, 0), (0, 0)), default);
    let smallest = (512 * KB, limits::MIN_SMB_PAGE_SIZE);
    assert_eq!(shared_memory(smallest, (0, 0)), smallest);
}

#[test]
fn memory_that_producers_offer_keeps_the_same_limits() {
    let (size, page) = (limits::MAX_SMB_SIZE, limits::MAX_SMB_PAGE_SIZE);
    assert!(Service::would_adopt(size, page));
    assert!(!Service::would_adopt(size + page, page));
    assert!(!Service::would_adopt(size, 2 * page));
}

#[test]
fn so_many_producers_are_connected_at_once_and_none_has_the_id_of_an_earlier_one() {
    let mut world = World::new();
    let connect = |world: &mut World| {
        let nobody = Credentials { uid: 1, pid: None };
        world.service.connect_producer(nobody, Introduction::default())
    };
    let mut last = None;
    for _ in 0..limits::MAX_PRODUCERS {
        last = connect(&mut world);
        assert!(last.is_some());
    }
    assert_eq!(connect(&mut world), None);
    let now = world.now;
    world.service.disconnect_producer(last.unwrap(), &now);
    assert!(connect(&mut world) > last);
}

#[test]
fn a_producer_registers_as_many_data_sources_as_the_limit() {
    let mut world = World::new();
    let producer = world.producer("p");
    for n in 0..limits::MAX_DATA_SOURCES_PER_PRODUCER {
        world.offer(producer, &format!("d{n}"));
    }
    assert!(world.log.is_empty());
    world.offer(producer, "one too many");
    assert!(world.log.iter().any(|line| line.contains("one too many")));
    let root = world.consumer_of(0);
    let registered = world.state(root, StateScope::Everything).data_sources.len();
    assert_eq!(registered, limits::MAX_DATA_SOURCES_PER_PRODUCER);
}

#[test]
fn descriptors_of_a_producer_fit_exactly() {
    let mut world = World::new();
    let producer = world.producer("p");
    let sized = |name: &str, size: usize| {
        let mut descriptor = DataSourceDescriptor {
            name: Some(name.into()),
            ..Default::default()
        }
        .encode_to_vec();
        // An unknown field makes the config as large as needed.
        let room = size - descriptor.len() - 2;
        let length = room - if room > 1 << 21 { 4 } else { 3 };
        let mut filler = ferretto_wire::Writer::new();
        filler.bytes_field(1000, &vec![0; length]);
        descriptor.extend_from_slice(filler.as_slice());
        assert_eq!(descriptor.len(), size);
        descriptor
    };
    let now = world.now;
    let most = limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER;
    let mut register = |name, size| {
        world
            .service
            .register_data_source(producer, &sized(name, size), &now);
    };
    register("a", most - 20_001);
    register("b", 20_002);
    register("c", 20_001);
    let root = world.consumer_of(0);
    let state = world.state(root, StateScope::Everything);
    let names = state.data_sources.iter();
    let names: Vec<_> = names
        .map(|source| source.ds_descriptor.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["a", "c"]);
}

#[test]
fn the_config_of_a_data_source_fits_into_a_message() {
    let sized = |size: usize| {
        let mut sized = config(&["d"]);
        let source = sized.data_sources[0].config.get_or_insert_default();
        let rest = source.encoded_len();
        // The tag and the length of a field of this size.
        source.legacy_config = Some("x".repeat(size - rest - 2 - 3));
        assert_eq!(source.encoded_len(), size);
        sized
    };
    let mut world = World::new();
    let consumer = world.consumer();
    let most = limits::MAX_DATA_SOURCE_CONFIG_SIZE;
    let error = world.try_enable(consumer, &sized(most + 1)).unwrap_err();
    assert!(error.contains("producers could not be sent it"), "{error}");
    world.enable(consumer, &sized(most));
}

#[test]
fn expressions_are_compiled_up_to_a_length() {
    let filtered = |length: usize| {
        let mut filtered = config(&["d"]);
        filtered.data_sources[0].producer_name_regex_filter = vec!["x".repeat(length)];
        filtered
    };
    let mut world = World::new();
    let consumer = world.consumer();
    world
        .try_enable(consumer, &filtered(limits::MAX_REGEX_LENGTH + 1))
        .unwrap_err();
    world.enable(consumer, &filtered(limits::MAX_REGEX_LENGTH));
}

#[test]
fn so_many_flushes_are_under_way_at_once() {
    let mut world = World::new();
    let producer = world.producer("silent");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let most = limits::MAX_PENDING_FLUSHES as u64;
    for token in 0..=most {
        world.flush(consumer, token, 0);
    }
    // Like upstream's, the check lets one more in.
    assert_eq!(world.count(producer, flushes) as u64, most + 1);
    assert!(world.consumers[&consumer].flushes.is_empty());
    world.flush(consumer, 9999, 0);
    assert_eq!(world.consumers[&consumer].flushes, [(9999, FlushOutcome::Failed)]);
    assert_eq!(world.count(producer, flushes) as u64, most + 1);
    world.acknowledge_flushes(producer);
    assert_eq!(world.consumers[&consumer].flushes.len() as u64, most + 2);
}

#[test]
fn so_many_clock_snapshots_wait_for_a_read_back() {
    let snapshots = |drifts: usize| {
        let mut world = World::new();
        let consumer = world.consumer();
        let mut drifting = config(&[]);
        drifting
            .builtin_data_sources
            .get_or_insert_default()
            .snapshot_interval_ms = Some(10);
        world.enable(consumer, &drifting);
        world.read(consumer);
        for _ in 0..drifts {
            world.now.realtime += 1_000_000_000;
            world.advance(10);
        }
        let packets = world.read(consumer);
        let of_clocks = packets
            .iter()
            .filter(|packet| matches!(packet.data, Some(Data::ClockSnapshot(_))));
        of_clocks.count()
    };
    let most = limits::MAX_PENDING_CLOCK_SNAPSHOTS;
    assert_eq!(snapshots(most - 1), most - 1);
    assert_eq!(snapshots(most), most);
    assert_eq!(snapshots(most + 5), most);
}

#[test]
fn clocks_are_read_every_ten_seconds_unless_the_config_says() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&[]));
    world.read(consumer);
    let seconds = 50;
    for _ in 0..seconds {
        // Snapshots that tell nothing new would be left out.
        world.now.realtime += 1_000_000_000;
        world.advance(1000);
    }
    let packets = world.read(consumer);
    let of_clocks = packets
        .iter()
        .filter(|packet| matches!(packet.data, Some(Data::ClockSnapshot(_))));
    let interval = limits::DEFAULT_SNAPSHOT_INTERVAL.as_secs();
    assert_eq!((of_clocks.count() as u64, interval), (seconds / interval, 10));
}

#[test]
fn the_writers_in_the_statistics_of_a_session_are_limited() {
    const WRITERS_PER_PRODUCER: u16 = 0x7fff;
    let mut world = World::new();
    let consumer = world.consumer();
    // A single buffer also counts no more writers.
    let mut two = config(&["first", "second"]);
    two.buffers[0].size_kb = Some(4 * 1024);
    two.buffers.push(two.buffers[0].clone());
    two.data_sources[1].config.get_or_insert_default().target_buffer = Some(1);
    world.enable(consumer, &two);
    let told = |world: &mut World| world.service.trace_stats(consumer).unwrap().writer_stats.len();
    // Each writer commits a packet without bytes, inside the request.
    let all = |target: u16| {
        let chunk = |writer: u16| commit_data_request::ChunksToMove {
            target_buffer: Some(target.into()),
            data: Some([&[0; 4][..], &writer.to_le_bytes(), &[1, 0, 0]].concat()),
            ..Default::default()
        };
        CommitDataRequest {
            chunks_to_move: (1..=WRITERS_PER_PRODUCER).map(chunk).collect(),
            ..Default::default()
        }
    };
    let mut join = |source: &str| {
        let producer = world.producer("p");
        world.offer(producer, source);
        let request = all(world.target(producer));
        let now = world.now;
        world.service.commit(producer, &request, &now);
        world.run();
        told(&mut world)
    };
    let each = usize::from(WRITERS_PER_PRODUCER);
    assert_eq!(["first", "first"].map(&mut join), [each, 2 * each]);
    assert_eq!(join("second"), limits::MAX_WRITERS_IN_STATS);
}

#[test]
fn files_are_written_no_more_often_than_the_shortest_period() {
    let shortest = limits::MIN_FILE_WRITE_PERIOD.as_millis() as u32;
    let default = limits::DEFAULT_FILE_WRITE_PERIOD.as_millis() as u32;
    for (asked, period) in [
        (1, shortest),
        (shortest - 1, shortest),
        (shortest, shortest),
        (shortest + 1, shortest + 1),
        (0, default),
    ] {
        let mut world = World::new();
        let consumer = world.consumer();
        let mut streaming = TraceConfig {
            write_into_file: Some(true),
            file_write_period_ms: Some(asked),
            ..config(&[])
        };
        let builtin = streaming.builtin_data_sources.get_or_insert_default();
        builtin.snapshot_interval_ms = Some(3_600_000);
        let session = world.enable(consumer, &streaming);
        // Every write ends with the event that the buffers were read.
        let mut writes = 0;
        let mut size = world.files[&session].len();
        let periods = 10;
        // The first write comes at the first multiple of the period.
        for _ in 0..periods * period + period {
            world.advance(1);
            let now = world.files[&session].len();
            writes += u32::from(now != size);
            size = now;
        }
        assert!(
            (periods..=periods + 1).contains(&writes),
            "{asked} ms: {writes} writes"
        );
    }
}

#[test]
fn the_patches_of_a_chunk_in_one_request_are_limited() {
    let discarded = |count: usize| {
        let (mut world, producer, consumer) = World::offering();
        world.enable(consumer, &config(&["d"]));
        let target = world.target(producer);
        let request = CommitDataRequest {
            chunks_to_patch: vec![commit_data_request::ChunkToPatch {
                target_buffer: Some(target.into()),
                writer_id: Some(1),
                chunk_id: Some(0),
                patches: vec![
                    commit_data_request::chunk_to_patch::Patch {
                        offset: Some(0),
                        data: Some(vec![0; 4]),
                        ..Default::default()
                    };
                    count
                ],
                ..Default::default()
            }],
            ..Default::default()
        };
        let now = world.now;
        world.service.commit(producer, &request, &now);
        world.service.trace_stats(consumer).unwrap().patches_discarded
    };
    let most = limits::MAX_PATCHES_PER_CHUNK;
    assert_eq!(
        discarded(most),
        Some(0),
        "the buffer counts them as failed: there is no such chunk"
    );
    assert_eq!(discarded(most + 1), Some(most as u64 + 1));
}

#[test]
fn so_many_ended_sessions_may_still_write_into_their_files() {
    let mut world = World::new();
    world.disk = Disk::Slow;
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let leave_a_file = |world: &mut World, uid: usize| {
        let consumer = world.consumer_of(uid as u32);
        let session = world.try_enable(consumer, &streaming).map(drop);
        world.lose_consumer(consumer);
        session
    };
    let of_one = limits::MAX_COMPLETING_SESSIONS_PER_UID;
    for count in 0..limits::MAX_COMPLETING_SESSIONS {
        leave_a_file(&mut world, count / of_one).unwrap();
        if count + 1 == of_one {
            let error = leave_a_file(&mut world, 0).unwrap_err();
            assert!(error.contains("of uid 0 still write"), "{error}");
        }
    }
    let error = leave_a_file(&mut world, 999).unwrap_err();
    assert!(error.contains("still write"), "{error}");
    world.disk_catches_up();
    world.disk_catches_up();
    leave_a_file(&mut world, 0).unwrap();
}

#[test]
fn clones_that_still_write_into_their_files_keep_no_session_from_recording() {
    let mut world = World::new();
    let consumer = world.consumer();
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let original = world.enable(consumer, &streaming);
    world.disk = Disk::Slow;
    for _ in 0..=limits::MAX_COMPLETING_SESSIONS {
        let cloner = world.consumer();
        let request = CloneRequest {
            original: Original::Id(original.0),
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: CloneFile::Passed,
        };
        world.try_clone(cloner, request).unwrap();
        world.free(cloner);
    }
    let another = world.consumer();
    world.enable(another, &config(&[]));
}

/// Only the size of its buffer limits a packet: it has as many fragments as it needs.
#[test]
fn a_packet_may_be_larger_than_any_message() {
    let (mut world, producer, consumer) = World::offering();
    let mut large = config(&["d"]);
    large.buffers[0].size_kb = Some(1024);
    large.producers = vec![trace_config::ProducerConfig {
        producer_name: Some("p".into()),
        page_size_kb: Some(32),
        shm_size_kb: Some(1024),
        ..Default::default()
    }];
    world.enable(consumer, &large);
    let target = world.target(producer);
    let text = "x".repeat(300 * KB);
    let whole = packet(&text);
    world.commit_in_fragments(producer, 1, target, &whole, 30 * KB);
    let packets: Vec<TracePacket> = world.read(consumer);
    assert_eq!(texts(&packets), [text]);
}

#[test]
fn the_instances_of_a_producer_in_a_session_are_limited_and_others_are_not_kept_out() {
    const NAMES: usize = 16;
    let each_wanted = limits::MAX_INSTANCES_PER_PRODUCER / NAMES;
    let mut world = World::new();
    let (greedy, other) = (world.producer("greedy"), world.producer("other"));
    for _ in 0..NAMES {
        world.offer(greedy, "d");
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&vec!["d"; each_wanted]));
    let count = |world: &World| {
        world.state(consumer, StateScope::Sessions).tracing_sessions[0]
            .num_data_sources
            .unwrap_or_default() as usize
    };
    assert_eq!(count(&world), limits::MAX_INSTANCES_PER_PRODUCER);
    world.offer(greedy, "d");
    assert_eq!(count(&world), limits::MAX_INSTANCES_PER_PRODUCER);
    let told = |line: &&String| line.contains("by registering names more than once");
    assert_eq!(world.log.iter().filter(told).count(), 1, "not for each of them");
    world.offer(other, "d");
    assert_eq!(count(&world), limits::MAX_INSTANCES_PER_PRODUCER + each_wanted);
    // Another session has a limit of its own.
    let second = world.consumer();
    world.enable(second, &config(&["d"]));
    assert_eq!(world.count(other, starts), each_wanted + 1);
    assert_eq!(
        world.count(greedy, starts),
        limits::MAX_INSTANCES_PER_PRODUCER + NAMES + 1
    );
}

#[test]
fn names_of_producers_are_cut_between_characters() {
    let whole = "\u{20ac}".repeat(limits::MAX_PRODUCER_NAME / 3);
    for (name, kept) in [
        (whole.clone(), whole.len()),
        (whole.clone() + "xyz", whole.len() + 1),
    ] {
        let mut world = World::new();
        let who = Introduction {
            name: name.clone(),
            sdk_version: name.clone(),
            ..Default::default()
        };
        world.introduce(1000, who);
        let root = world.consumer_of(0);
        let state = world.state(root, StateScope::Everything);
        assert_eq!(state.producers[0].name.as_deref(), Some(&name[..kept]));
        assert_eq!(state.producers[0].sdk_version.as_deref(), Some(&name[..kept]));
    }
}

#[test]
fn the_descriptors_of_a_user_are_bounded_in_all() {
    const EACH: usize = 4 * 1024 * 1024;
    let mut world = World::new();
    let named = |name: &str| Introduction {
        name: name.into(),
        ..Default::default()
    };
    // The descriptor only needs to be as large as the limit. Its contents do not matter.
    let descriptor = |size: usize| {
        let mut descriptor = ferretto_wire::Writer::new();
        descriptor.bytes_field(1, b"d");
        let rest = size - descriptor.len() - 7;
        descriptor.bytes_field(9999, &vec![0; rest]);
        assert_eq!(descriptor.len(), size);
        descriptor.as_slice().to_vec()
    };
    let exact = descriptor(EACH);
    let now = world.now;
    let mut producers = Vec::new();
    for _ in 0..limits::MAX_DESCRIPTOR_BYTES_PER_UID / exact.len() {
        let producer = world.introduce(1000, named("p"));
        world.service.register_data_source(producer, &exact, &now);
        producers.push(producer);
    }
    let root = world.consumer_of(0);
    let count = |world: &World| {
        let parts = world.service.query_state(root, StateScope::Everything, 1000);
        let states = parts
            .iter()
            .map(|part| TracingServiceState::decode_from_slice(part).unwrap());
        states.map(|state| state.data_sources.len()).sum::<usize>()
    };
    let all = producers.len();
    assert_eq!(count(&world), all);
    let late = world.introduce(1000, named("late"));
    world.service.register_data_source(late, &exact, &now);
    assert_eq!(count(&world), all, "one too many of this user");
    let other = world.introduce(1001, named("other"));
    world.service.register_data_source(other, &exact, &now);
    assert_eq!(count(&world), all + 1, "another user has room of its own");
    // When a data source is withdrawn or a producer disconnects, there is room for another.
    world.service.unregister_data_source(producers[0], "d", &now);
    world.service.disconnect_producer(producers[1], &now);
    for _ in 0..3 {
        world.service.register_data_source(late, &exact, &now);
    }
    assert_eq!(count(&world), all + 1);
}

#[test]
fn a_descriptor_that_was_updated_counts_as_it_is_now() {
    const MOST: usize = limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER;
    const HALF: usize = MOST / 2;
    let sized = |name: &str, id: u64, size: usize| {
        let mut descriptor = ferretto_wire::Writer::new();
        descriptor.bytes_field(1, name.as_bytes());
        descriptor.varint_field(7, id);
        let rest = size - descriptor.len() - 7;
        descriptor.bytes_field(9999, &vec![0; rest]);
        assert_eq!(descriptor.len(), size);
        descriptor.into_vec()
    };
    let mut world = World::new();
    let now = world.now;
    let producer = world.producer("p");
    let root = world.consumer_of(0);
    let sizes = |world: &World| {
        let state = world.state(root, StateScope::Everything);
        let sources = state.data_sources.iter();
        let sizes = sources.map(|source| source.ds_descriptor.encoded_len() / KB);
        sizes.collect::<Vec<_>>()
    };
    let large = sized("d", 1, MOST);
    world.service.register_data_source(producer, &large, &now);
    // In total, these are more than all producers of a user may have at once.
    for _ in 0..=limits::MAX_DESCRIPTOR_BYTES_PER_UID / MOST {
        world.service.update_data_source(producer, &large);
    }
    let other = world.producer("other");
    world
        .service
        .register_data_source(other, &sized("other", 1, MOST), &now);
    assert_eq!(sizes(&world), [MOST / KB; 2]);
    world
        .service
        .update_data_source(producer, &sized("d", 1, MOST + 4 * KB));
    assert_eq!(sizes(&world), [MOST / KB; 2], "there is no room for it");
    world.service.update_data_source(producer, &sized("d", 1, HALF));
    world
        .service
        .register_data_source(producer, &sized("e", 2, MOST - HALF), &now);
    assert_eq!(sizes(&world), [HALF / KB, HALF / KB, MOST / KB]);
}
