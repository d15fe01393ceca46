//! Buffers that are handed over with a clone (`transfer_on_clone`), or emptied before (`clear_before_clone`).

use ferretto_service::{Introduction, MemorySharing, Scraping};

use super::*;

/// Two producers, each with its own buffer. The buffer of the second one is handed over when the session is cloned.
pub(super) struct TransferScene {
    pub(super) world: World,
    pub(super) fast: ProducerId,
    pub(super) slow: ProducerId,
    owner: ConsumerId,
    pub(super) session: SessionId,
}

impl TransferScene {
    fn new(clear: bool) -> TransferScene {
        TransferScene::of(World::new(), clear)
    }

    pub(super) fn of(mut world: World, clear: bool) -> TransferScene {
        let (fast, slow) = (world.producer("fast"), world.producer("slow"));
        world.offer(fast, "a");
        world.offer(slow, "b");
        let mut config = config(&["a", "b"]);
        config.buffers.push(trace_config::BufferConfig {
            size_kb: Some(64),
            transfer_on_clone: Some(true),
            clear_before_clone: Some(clear),
            ..Default::default()
        });
        config.data_sources[1]
            .config
            .get_or_insert_default()
            .target_buffer = Some(1);
        let owner = world.consumer();
        let session = world.enable(owner, &config);
        TransferScene {
            world,
            fast,
            slow,
            owner,
            session,
        }
    }

    pub(super) fn write(&mut self, producer: ProducerId, text: &str) {
        let target = self.world.target(producer);
        self.world.commit(producer, 1, target, &[&packet(text)]);
    }
}

#[test]
fn a_buffer_that_is_transferred_starts_empty_again() {
    let mut scene = TransferScene::new(false);
    scene.write(scene.fast, "persistent");
    for (round, written) in [(1, true), (2, true), (3, false)] {
        if written {
            scene.write(scene.slow, &format!("transferred {round}"));
        }
        let cloner = scene.world.consumer();
        scene.world.try_clone(cloner, request(scene.session)).unwrap();
        for producer in [scene.fast, scene.slow] {
            assert_eq!(
                scene.world.count(producer, flushes),
                round,
                "each is flushed for its own buffer"
            );
            scene.world.acknowledge_flushes(producer);
        }
        let mut expected = vec!["persistent".to_owned()];
        expected.extend(written.then(|| format!("transferred {round}")));
        assert_eq!(texts(&scene.world.read(cloner)), expected);
        scene.world.lose_consumer(cloner);
    }
    assert_eq!(texts(&scene.world.read(scene.owner)), ["persistent"]);
}

#[test]
fn a_writer_whose_earlier_packets_went_with_another_clone_or_were_cleared_is_marked() {
    for clear in [false, true] {
        let mut scene = TransferScene::new(clear);
        let slow = scene.slow;
        let target = scene.world.target(slow);
        let mut clones = Vec::new();
        for round in 1..=3 {
            let cloner = scene.world.consumer();
            scene.write(slow, &format!("before {round}"));
            scene.world.try_clone(cloner, request(scene.session)).unwrap();
            scene.write(slow, &format!("with flush {round}"));
            // The first packet of a writer.
            scene.world.commit(slow, 1 + round, target, &[&packet("new")]);
            for producer in [scene.fast, slow] {
                scene.world.acknowledge_flushes(producer);
            }
            clones.push(marks(&scene.world.read(cloner)));
            scene.world.lose_consumer(cloner);
        }
        let all = |round: usize, marked: bool| {
            let before = (format!("before {round}"), marked);
            let with_flush = (format!("with flush {round}"), clear);
            let new = ("new".to_owned(), false);
            match clear {
                true => vec![with_flush, new],
                false => vec![before, with_flush, new],
            }
        };
        assert_eq!(
            clones,
            [all(1, false), all(2, true), all(3, true)],
            "clear: {clear}"
        );
    }
}

#[test]
fn clones_whose_flushes_end_together_each_get_the_uncommitted_chunks() {
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    world.offer(producer, "d");
    let owner = world.consumer();
    let mut config = config(&["d"]);
    config.buffers[0].transfer_on_clone = Some(true);
    let session = world.enable(owner, &config);
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    let _open = world.write_open(producer, 1, &[&packet("left"), &packet("unfinished")]);
    let cloners = [world.consumer(), world.consumer()];
    for cloner in cloners {
        world.try_clone(cloner, request(session)).unwrap();
    }
    world.advance(5000);
    for cloner in cloners {
        assert_eq!(texts(&world.read(cloner)), ["left"]);
    }
}

#[test]
fn slow_writers_into_a_transferred_buffer_do_not_delay_the_copy_of_the_others() {
    let mut scene = TransferScene::new(false);
    scene.write(scene.fast, "fast, before");
    scene.write(scene.slow, "slow, before");
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    scene.world.acknowledge_flushes(scene.fast);
    let first = scene.world.now.boot;
    scene.write(scene.fast, "fast, after");
    scene.world.advance(1000);
    scene.write(scene.slow, "slow, after");
    assert_eq!(scene.world.cloned(cloner), None);
    scene.world.acknowledge_flushes(scene.slow);
    let second = scene.world.now.boot;
    assert!(scene.world.cloned(cloner).unwrap().is_ok());
    let packets = scene.world.read(cloner);
    assert_eq!(texts(&packets), ["fast, before", "slow, before", "slow, after"]);
    assert_eq!(times_of(BUFFER_CLONED, &packets), [first, second]);
    assert_eq!(times_of(FLUSH_STARTED, &packets).len(), 1);
}

#[test]
fn a_clone_says_that_a_flush_failed_whichever_of_them_did() {
    for fails in ["fast", "slow", "neither"] {
        let mut scene = TransferScene::new(false);
        let cloner = scene.world.consumer();
        scene.world.try_clone(cloner, request(scene.session)).unwrap();
        for (name, producer) in [("fast", scene.fast), ("slow", scene.slow)] {
            if name != fails {
                scene.world.acknowledge_flushes(producer);
            }
        }
        scene.world.advance(5000);
        let expected = match fails {
            "neither" => FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED,
            _ => FinalFlushOutcome::FINAL_FLUSH_FAILED,
        };
        let packets = scene.world.read(cloner);
        assert_eq!(stats(&packets).final_flush_outcome, Some(expected), "{fails}");
    }
}

#[test]
fn a_producer_flushes_only_instances_of_the_buffers_in_question() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "a");
    world.offer(producer, "b");
    let mut config = config(&["a", "b"]);
    config.buffers.push(trace_config::BufferConfig {
        size_kb: Some(64),
        transfer_on_clone: Some(true),
        ..Default::default()
    });
    config.data_sources[1]
        .config
        .get_or_insert_default()
        .target_buffer = Some(1);
    let owner = world.consumer();
    let session = world.enable(owner, &config);
    let cloner = world.consumer();
    world.try_clone(cloner, request(session)).unwrap();
    let instances: Vec<_> = world
        .instances(producer)
        .iter()
        .map(|(id, _)| vec![*id])
        .collect();
    let flushed: Vec<_> = world.producers[&producer]
        .commands
        .iter()
        .filter_map(|command| match command {
            ProducerCommand::Flush { instances, .. } => Some(instances.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(flushed, instances);
}

#[test]
fn a_producer_that_scrapes_itself_is_flushed_once_for_the_buffer_that_it_writes_into() {
    let mut scene = TransferScene::new(false);
    let remote = scene.world.introduce(
        1000,
        Introduction {
            name: "remote".into(),
            scraping: Scraping::Enabled,
            sharing: MemorySharing::Impossible,
            ..Default::default()
        },
    );
    scene.world.offer(remote, "a");
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    assert_eq!(scene.world.count(remote, flushes), 1);
}

#[test]
fn a_buffer_that_is_cleared_before_the_clone_holds_the_flushed_packets() {
    let mut scene = TransferScene::new(true);
    scene.write(scene.fast, "kept");
    scene.write(scene.slow, "stale");
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    scene.write(scene.slow, "fresh");
    scene.world.acknowledge_flushes(scene.fast);
    scene.world.acknowledge_flushes(scene.slow);
    assert_eq!(texts(&scene.world.read(cloner)), ["kept", "fresh"]);
}

#[test]
fn a_buffer_that_is_cleared_and_copied_is_the_originals_too() {
    let mut cleared = config(&["d"]);
    cleared.buffers[0].clear_before_clone = Some(true);
    let mut scene = Scene::with(&cleared);
    scene.write(&["stale"]);
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    scene.write(&["fresh"]);
    scene.world.acknowledge_flushes(scene.producer);
    for consumer in [scene.cloner, scene.owner] {
        assert_eq!(scene.texts(consumer), ["fresh"]);
    }
}

#[test]
fn a_buffer_is_not_transferred_to_a_consumer_that_went_away() {
    let mut scene = TransferScene::new(false);
    scene.write(scene.slow, "kept");
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    scene.world.lose_consumer(cloner);
    scene.world.acknowledge_flushes(scene.fast);
    scene.world.acknowledge_flushes(scene.slow);
    assert_eq!(texts(&scene.world.read(scene.owner)), ["kept"]);
}

#[test]
fn buffers_to_transfer_stay_if_the_clone_fails_in_the_end() {
    let mut scene = TransferScene::new(false);
    scene.write(scene.slow, "kept");
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    // The producer that writes into the transferred buffer acknowledges first.
    scene.world.acknowledge_flushes(scene.slow);
    scene.world.enable(cloner, &config(&[]));
    scene.world.acknowledge_flushes(scene.fast);
    let error = scene.world.cloned(cloner).expect("an answer").unwrap_err();
    assert!(error.contains("another tracing session"), "{error}");
    assert_eq!(texts(&scene.world.read(scene.owner)), ["kept"]);
}
