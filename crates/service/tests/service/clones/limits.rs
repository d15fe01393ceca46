//! Limits on the number of clones, and on their memory.

use ferretto_service::limits;

use super::*;

#[test]
fn sixty_clones_of_one_session_are_no_trouble() {
    let mut scene = Scene::new();
    scene.write(&["one"]);
    let cloners: Vec<ConsumerId> = (0..60).map(|_| scene.world.consumer()).collect();
    for cloner in &cloners {
        scene.world.try_clone(*cloner, request(scene.session)).unwrap();
    }
    scene.world.acknowledge_flushes(scene.producer);
    for cloner in &cloners {
        assert!(scene.world.cloned(*cloner).unwrap().is_ok());
        assert_eq!(scene.texts(*cloner), ["one"]);
    }
    // The clones do not prevent other recordings.
    let another = scene.world.consumer();
    scene.world.enable(another, &config(&["d"]));
    for cloner in cloners {
        scene.world.lose_consumer(cloner);
    }
    assert_eq!(
        scene.world.state(another, StateScope::Sessions).num_sessions,
        Some(2)
    );
}

#[test]
fn the_clones_of_one_user_are_limited() {
    let mut scene = Scene::new();
    // Some clones are complete, and some still wait for their flushes.
    for made in 0..limits::MAX_CLONES_PER_UID {
        let cloner = scene.world.consumer();
        scene.world.try_clone(cloner, request(scene.session)).unwrap();
        if made % 2 == 0 {
            scene.world.acknowledge_flushes(scene.producer);
        }
    }
    let error = scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap_err();
    assert!(error.contains("the limit is 64"), "{error}");
    let root = scene.world.consumer_of(0);
    scene.world.try_clone(root, request(scene.session)).unwrap();
}

#[test]
fn clones_of_one_user_take_three_eighths_of_the_memory_and_no_more() {
    let world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 40 * 1024),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut scene = Scene::of(world, &config(&["d"]));
    let large = "x".repeat(3000);
    scene.write(&[&large]);
    let mut made = 0;
    let error = loop {
        // Memory that clones share would count once.
        scene.write(&["a little"]);
        let cloner = scene.world.consumer();
        match scene.world.try_clone(cloner, request(scene.session)) {
            Ok(_) => scene.world.acknowledge_flushes(scene.producer),
            Err(error) => break error,
        }
        made += 1;
        assert!(made <= limits::MAX_CLONES_PER_UID, "no limit");
    };
    assert!(error.contains("all of them may have 30 KB"), "{error}");
    assert!(
        (7..10).contains(&made),
        "{made}: each takes a little more than 3000 bytes"
    );
}

#[test]
fn copies_count_before_the_clone_is_made_and_not_after_its_consumer_left() {
    let world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 16 * 1024),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut scene = transfers::TransferScene::of(world, false);
    let large = "x".repeat(3000);
    for _ in 0..3 {
        scene.write(scene.fast, &large);
    }
    let [first, second] = [scene.world.consumer(), scene.world.consumer()];
    scene.world.try_clone(first, request(scene.session)).unwrap();
    // One buffer has been copied, and the other one still waits for its flush.
    scene.world.acknowledge_flushes(scene.fast);
    assert_eq!(scene.world.cloned(first), None);
    // The second clone would not have the same memory.
    scene.write(scene.fast, "a little");
    let error = scene.world.try_clone(second, request(scene.session)).unwrap_err();
    assert!(
        error.contains("9 KB that clones of uid 1000 have already"),
        "{error}"
    );
    scene.world.lose_consumer(first);
    scene.world.try_clone(second, request(scene.session)).unwrap();
    scene.world.acknowledge_flushes(scene.fast);
    scene.world.acknowledge_flushes(scene.slow);
    assert_eq!(texts(&scene.world.read(second)).len(), 4);
}

#[test]
fn what_clones_share_counts_once() {
    let world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 40 * 1024),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut scene = Scene::of(world, &config(&["d"]));
    scene.write(&[&"x".repeat(3000)]);
    let cloners: Vec<ConsumerId> = (0..40).map(|_| scene.world.consumer()).collect();
    for cloner in &cloners {
        scene.world.try_clone(*cloner, request(scene.session)).unwrap();
        scene.world.acknowledge_flushes(scene.producer);
    }
    scene.write(&["after the clones"]);
    for cloner in cloners {
        assert_eq!(scene.texts(cloner).len(), 1);
    }
    assert_eq!(scene.texts(scene.owner).len(), 2);
}

#[test]
fn a_buffer_that_outgrows_the_memory_of_clones_during_the_flush_fails_the_clone() {
    let world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 8192),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut scene = Scene::of(world, &config(&["d"]));
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    let large = "x".repeat(3000);
    for _ in 0..10 {
        scene.write(&[&large]);
    }
    scene.world.acknowledge_flushes(scene.producer);
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("may have 6 KB"), "{error}");
    assert_eq!(scene.texts(scene.owner).len(), 10, "the original goes on");
}

#[test]
fn copies_of_a_clone_count_when_its_other_buffers_are_handed_over() {
    let world = World::with_identity(Identity {
        system: SystemFacts {
            ram_bytes: Some(2 * 16 * 1024),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut scene = transfers::TransferScene::of(world, false);
    let cloner = scene.world.consumer();
    scene.world.try_clone(cloner, request(scene.session)).unwrap();
    let large = "x".repeat(3000);
    for producer in [scene.fast, scene.slow] {
        // Each buffer alone stays below the limit.
        for _ in 0..3 {
            scene.write(producer, &large);
        }
        assert_eq!(scene.world.cloned(cloner), None);
        scene.world.acknowledge_flushes(producer);
    }
    let error = scene.world.cloned(cloner).unwrap().unwrap_err();
    assert!(error.contains("may have 12 KB"), "{error}");
}
