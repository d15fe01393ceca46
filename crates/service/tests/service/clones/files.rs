//! Clones of sessions that stream into a file.

use ferretto_service::limits;

use super::*;
use crate::large_packets::large;

fn streaming() -> TraceConfig {
    TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(100_000),
        ..config(&["d"])
    }
}

fn texts_of_file(file: &[u8]) -> Vec<String> {
    let packets: Vec<TracePacket> = ferretto_wire::Reader::new(file)
        .map(|field| field.expect("whole packets"))
        .filter_map(|field| {
            field
                .value
                .as_bytes()
                .map(|bytes| TracePacket::decode_from_slice(bytes).expect("a packet"))
        })
        .collect();
    texts(&packets)
}

#[test]
fn a_clone_of_a_streaming_session_is_a_file_with_everything() {
    let mut scene = Scene::with(&streaming());
    scene.write(&["in the file"]);
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    assert_eq!(texts_of_file(&scene.world.files[&scene.session]), ["in the file"]);
    scene.write(&["in the buffer"]);

    let cloned = scene.clone_as(with_file(scene.session));
    assert_eq!(cloned.content, ClonedContent::File);
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    assert!(
        scene.world.closed_files.contains(&clone),
        "complete before the answer"
    );
    assert_eq!(
        texts_of_file(&scene.world.files[&clone]),
        ["in the file", "in the buffer"]
    );
    assert_eq!(
        texts_of_file(&scene.world.files[&scene.session]),
        ["in the file"],
        "the original is not written for it"
    );
    // The consumer can only read the event that ends the read-back.
    let rest = scene.world.read(scene.cloner);
    const READ_TRACING_BUFFERS_COMPLETED: u32 = 4;
    assert_eq!(
        events(&rest).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [READ_TRACING_BUFFERS_COMPLETED]
    );
    assert_eq!(rest.len(), 1);

    scene.write(&["later"]);
    scene.world.disable(scene.owner);
    assert_eq!(
        texts_of_file(&scene.world.files[&scene.session]),
        ["in the file", "in the buffer", "later"]
    );
}

#[test]
fn a_file_of_a_clone_has_the_same_packets_as_a_clone_that_is_read() {
    let kinds = |packets: &[TracePacket]| {
        let mut kinds: Vec<u32> = events(packets).into_iter().map(|(kind, _)| kind).collect();
        kinds.sort_unstable();
        kinds
    };
    let mut read = Scene::new();
    read.clone();
    let read = read.world.read(read.cloner);
    let mut written = Scene::with(&streaming());
    written.clone_as(with_file(written.session));
    let clone = written.world.consumers[&written.cloner].clones[0].0;
    let file = &written.world.files[&clone];
    let written: Vec<TracePacket> = ferretto_wire::Reader::new(file)
        .map(|field| TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap())
        .collect();
    assert_eq!(kinds(&written), kinds(&read));
    assert!(kinds(&read).contains(&CLONE_STARTED));
}

#[test]
fn a_streaming_session_is_not_cloned_without_a_file() {
    let mut scene = Scene::with(&streaming());
    let error = scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap_err();
    assert!(error.contains("file descriptor"), "{error}");
}

#[test]
fn a_file_that_is_not_needed_stays_empty() {
    let mut scene = Scene::new();
    scene.write(&["one"]);
    let cloned = scene.clone_as(with_file(scene.session));
    assert_eq!(cloned.content, ClonedContent::Buffers);
    assert!(scene.world.files.is_empty());
    assert_eq!(scene.texts(scene.cloner), ["one"]);
}

#[test]
fn a_file_that_cannot_be_written_matters_only_if_the_session_streams() {
    let unusable = |session| CloneRequest {
        file: CloneFile::Unusable("open for reading only".into()),
        ..request(session)
    };
    let mut scene = Scene::new();
    scene.write(&["one"]);
    let cloned = scene.clone_as(unusable(scene.session));
    assert_eq!(cloned.content, ClonedContent::Buffers);
    assert_eq!(scene.texts(scene.cloner), ["one"]);

    let mut scene = Scene::with(&streaming());
    let request = unusable(scene.session);
    let error = scene.world.try_clone(scene.cloner, request).unwrap_err();
    assert_eq!(error, "open for reading only");
}

#[test]
fn data_on_its_way_to_a_slow_disk_is_in_the_clone_once() {
    let mut scene = Scene::with(&streaming());
    scene.world.disk = Disk::Slow;
    scene.write(&["one"]);
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene.write(&["two"]);
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    for _ in 0..20 {
        scene.world.disk_catches_up();
    }
    assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    assert_eq!(texts_of_file(&scene.world.files[&clone]), ["one", "two"]);
}

#[test]
fn a_large_packet_on_its_way_into_the_file_is_in_the_clone_once() {
    let large = large(4);
    let expected = texts(&[TracePacket::decode_from_slice(&large).unwrap()]);
    let expected = ["before", &expected[0], "after"];
    for writes in 0..8 {
        let mut config = streaming();
        config.buffers[0].size_kb = Some(8 << 10);
        let mut scene = Scene::with(&config);
        scene.world.disk = Disk::Slow;
        scene.write(&["before"]);
        let target = scene.world.target(scene.producer);
        scene
            .world
            .commit_in_fragments(scene.producer, 2, target, &large, 30_000);
        scene.write(&["after"]);
        scene.world.advance(100_000);
        scene.world.acknowledge_flushes(scene.producer);
        for _ in 0..writes {
            scene.world.finish_writes();
        }
        scene
            .world
            .try_clone(scene.cloner, with_file(scene.session))
            .unwrap();
        scene.world.acknowledge_flushes(scene.producer);
        for _ in 0..40 {
            scene.world.disk_catches_up();
        }
        assert!(scene.world.cloned(scene.cloner).unwrap().is_ok());
        let clone = scene.world.consumers[&scene.cloner].clones[0].0;
        for session in [clone, scene.session] {
            let texts = texts_of_file(&scene.world.files[&session]);
            let sizes: Vec<usize> = texts.iter().map(String::len).collect();
            assert!(texts == expected, "after {writes} writes {session} has {sizes:?}");
        }
    }
}

#[test]
fn data_written_into_the_file_while_another_buffer_is_flushed_is_in_the_clone_once() {
    let mut config = streaming();
    config.write_flush_mode = Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED);
    config.flush_timeout_ms = Some(200_000);
    config.buffers.push(trace_config::BufferConfig {
        size_kb: Some(64),
        transfer_on_clone: Some(true),
        ..Default::default()
    });
    config.data_sources.push(trace_config::DataSource {
        config: ferretto_proto::messages::DataSourceConfig {
            name: Some("e".into()),
            target_buffer: Some(1),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    });
    let mut world = World::new();
    let slow = world.producer("slow");
    world.offer(slow, "e");
    let mut scene = Scene::of(world, &config);
    scene.write(&["one"]);
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    scene.world.advance(100_000);
    assert_eq!(texts_of_file(&scene.world.files[&scene.session]), ["one"]);
    scene.world.acknowledge_flushes(slow);
    assert!(scene.world.cloned(scene.cloner).expect("an answer").is_ok());
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    assert_eq!(texts_of_file(&scene.world.files[&clone]), ["one"]);
}

#[test]
fn a_disk_that_takes_no_copy_fails_the_clone_only() {
    let mut scene = Scene::with(&streaming());
    scene.write(&["one"]);
    scene.world.disk = Disk::Full;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("no space left"), "{error}");
    let state = scene.world.state(scene.owner, StateScope::Sessions);
    assert_eq!(state.num_sessions, Some(1));
    scene.world.disk = Disk::Fast;
    scene.world.disable(scene.owner);
    assert_eq!(texts_of_file(&scene.world.files[&scene.session]), ["one"]);
}

#[test]
fn a_clone_whose_file_cannot_be_written_fails() {
    let mut scene = Scene::with(&streaming());
    scene.write(&["one"]);
    scene.world.disk = Disk::Slow;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    assert_eq!(scene.world.cloned(scene.cloner), None, "the copy takes its time");
    scene.world.disk = Disk::Full;
    scene.world.disk_catches_up();
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("no space left"), "{error}");
    assert_eq!(
        scene.world.state(scene.owner, StateScope::Sessions).num_sessions,
        Some(1)
    );
}

#[test]
fn a_consumer_that_leaves_while_its_file_is_copied_leaves_nothing_behind() {
    let mut scene = Scene::with(&streaming());
    scene.world.disk = Disk::Slow;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    scene.world.lose_consumer(scene.cloner);
    for _ in 0..20 {
        scene.world.disk_catches_up();
    }
    assert_eq!(
        scene.world.state(scene.owner, StateScope::Sessions).num_sessions,
        Some(1)
    );
}

#[test]
fn data_due_for_the_file_when_the_clone_is_made_are_in_the_clone_once() {
    let mut scene = Scene::with(&streaming());
    scene.write(&["one"]);
    scene.world.advance(100_000);
    assert_eq!(
        scene.world.count(scene.producer, flushes),
        1,
        "before the file is written"
    );
    // After one acknowledgement both go on, and the file goes first.
    scene.clone_as(with_file(scene.session));
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    assert_eq!(texts_of_file(&scene.world.files[&clone]), ["one"]);
    assert_eq!(texts_of_file(&scene.world.files[&scene.session]), ["one"]);
}

#[test]
fn a_clone_that_was_freed_while_its_file_takes_nothing_is_given_up_and_answered() {
    let mut scene = Scene::with(&streaming());
    scene.write(&["one"]);
    scene.world.disk = Disk::Slow;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    scene.free(scene.cloner);
    assert_eq!(scene.world.cloned(scene.cloner), None);
    scene
        .world
        .advance(limits::ABANDONED_FILE_PATIENCE.as_millis() as u64 + 1);
    let error = scene.world.cloned(scene.cloner).expect("an answer").unwrap_err();
    assert!(error.contains("took no data"), "{error}");
    assert_eq!(scene.world.consumers[&scene.cloner].disabled, []);
    // Nothing remains that would prevent another clone.
    scene.world.disk = Disk::Fast;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.disk_catches_up();
}

#[test]
fn a_file_that_is_full_before_the_clone_is_made_fails_the_clone() {
    for disk in [Disk::Fast, Disk::Slow] {
        let mut scene = Scene::with(&TraceConfig {
            max_file_size_bytes: Some(8000),
            flush_timeout_ms: Some(200_000),
            write_flush_mode: Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
            ..streaming()
        });
        let large = "x".repeat(3000);
        scene
            .world
            .try_clone(scene.cloner, with_file(scene.session))
            .unwrap();
        for _ in 0..4 {
            scene.write(&[&large]);
        }
        scene.world.disk = disk;
        scene.world.advance(100_000);
        while scene.world.closed_files.is_empty() {
            scene.world.finish_writes();
        }
        scene.world.acknowledge_flushes(scene.producer);
        // The buffers lack the packets that went into the file, so the clone would lack them too.
        let error = scene.world.cloned(scene.cloner).expect("an answer").unwrap_err();
        assert!(error.contains("file was completed"), "{error}");
    }
}

#[test]
fn by_name_the_session_that_records_is_cloned_and_not_one_that_only_completes_its_file() {
    let named = |config| TraceConfig {
        unique_session_name: Some("name".into()),
        ..config
    };
    let mut scene = Scene::with(&named(streaming()));
    scene.world.disk = Disk::Slow;
    scene.free(scene.owner);
    scene.world.enable(scene.owner, &named(config(&["d"])));
    let cloned = scene.clone_as(by_name("name"));
    assert_eq!(cloned.content, ClonedContent::Buffers);
    let third = scene.world.consumer();
    let error = scene
        .world
        .try_clone(third, with_file(scene.session))
        .unwrap_err();
    assert!(error.contains("not found"), "{error}");
}

#[test]
fn a_clone_of_a_session_that_is_freed_during_the_flush_fails_though_the_file_is_being_completed() {
    let mut scene = Scene::with(&streaming());
    scene.world.disk = Disk::Slow;
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.free(scene.owner);
    let error = scene.world.cloned(scene.cloner).expect("an answer").unwrap_err();
    assert!(error.contains("original session ended"), "{error}");
    scene.world.acknowledge_flushes(scene.producer);
    scene.world.disk_catches_up();
    scene.world.disk_catches_up();
    assert!(scene.world.cloned(scene.cloner).is_some(), "answered once");
    assert_eq!(scene.world.service.buffer_bytes(), 0);
}

#[test]
fn a_clone_is_not_made_if_the_last_batch_for_the_file_does_not_fit() {
    let mut scene = Scene::with(&TraceConfig {
        max_file_size_bytes: Some(2000),
        ..streaming()
    });
    scene.world.disk = Disk::Slow;
    for n in 0..20 {
        scene.write(&[&format!("{n} {}", "x".repeat(200))]);
    }
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene.write(&["later"]);
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    assert_eq!(scene.world.cloned(scene.cloner), None, "the file is being copied");
    for _ in 0..20 {
        scene.world.disk_catches_up();
    }
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("clone it again"), "{error}");
    let failed = scene.world.consumers[&scene.cloner].clones[0].0;
    assert_eq!(
        scene.world.abandoned_files,
        [failed],
        "nothing more is written into it"
    );
    let state = scene.world.state(scene.owner, StateScope::Sessions);
    assert_eq!(state.num_sessions, Some(1));
    scene.cloner = scene.world.consumer();
    scene.clone_as(with_file(scene.session));
    assert_eq!(scene.texts(scene.cloner).last().unwrap(), "later");
}

#[test]
fn a_file_of_another_session_that_is_full_fails_no_clone() {
    let mut scene = Scene::with(&streaming());
    scene.world.disk = Disk::Slow;
    let other = scene.world.consumer();
    let limited = TraceConfig {
        max_file_size_bytes: Some(100),
        write_flush_mode: Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
        ..streaming()
    };
    scene.world.enable(other, &limited);
    scene.write(&["one"]);
    // Batches of both sessions are on their way into their files. The other session's was first.
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    for _ in 0..20 {
        scene.world.disk_catches_up();
    }
    assert_eq!(scene.world.consumers[&other].disabled, [None], "it was full");
    assert!(scene.world.cloned(scene.cloner).expect("an answer").is_ok());
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    assert_eq!(texts_of_file(&scene.world.files[&clone]), ["one"]);
}

#[test]
fn a_clone_is_answered_though_the_file_it_is_to_begin_with_is_given_up() {
    let mut scene = Scene::with(&streaming());
    scene.world.disk = Disk::Slow;
    scene.write(&["one"]);
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene
        .world
        .try_clone(scene.cloner, with_file(scene.session))
        .unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    // The last write into the file hangs, and so does the copy behind it.
    scene.world.lose_consumer(scene.owner);
    scene
        .world
        .advance(limits::ABANDONED_FILE_PATIENCE.as_millis() as u64 + 1);
    assert!(scene.world.abandoned_files.contains(&scene.session));
    let error = scene.world.cloned(scene.cloner).expect("an answer").unwrap_err();
    assert!(error.contains("clone it again"), "{error}");
}

#[test]
fn a_clone_of_a_compressed_stream_is_compressed_to_its_end() {
    let mut scene = Scene::with(&TraceConfig {
        compression_type: Some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE),
        ..streaming()
    });
    scene.write(&["in the file"]);
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene.write(&["in the buffer"]);
    scene.clone_as(with_file(scene.session));
    let clone = scene.world.consumers[&scene.cloner].clones[0].0;
    let file = scene.world.files[&clone].clone();
    assert!(texts_of_file(&file).is_empty(), "nothing is bare");
    let packets = crate::world::expanded(crate::world::packets_of(&file));
    let decode = |packet: &Vec<u8>| TracePacket::decode_from_slice(packet).expect("a packet");
    let packets: Vec<TracePacket> = packets.iter().map(decode).collect();
    assert_eq!(texts(&packets), ["in the file", "in the buffer"]);
}

#[test]
fn a_bug_report_of_a_filtered_stream_has_the_file_as_it_is_and_the_rest_whole() {
    let mut scene = Scene::with(&TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(100_000),
        ..filters::filtered()
    });
    scene.write(&["filtered when it was written"]);
    scene.world.advance(100_000);
    scene.world.acknowledge_flushes(scene.producer);
    scene.write(&["in the buffer"]);
    for (wanted, texts) in [
        (
            filters::for_bugreport(Original::Id(scene.session.0)),
            &["in the buffer"][..],
        ),
        (request(scene.session), &[]),
    ] {
        scene.cloner = scene.world.consumer();
        scene.clone_as(CloneRequest {
            file: CloneFile::Passed,
            ..wanted
        });
        let clone = scene.world.consumers[&scene.cloner].clones[0].0;
        assert_eq!(texts_of_file(&scene.world.files[&clone]), texts);
    }
}
