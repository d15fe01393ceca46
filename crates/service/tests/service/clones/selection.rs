//! The choice of the session to clone: by id, by name, for a bug report; and the consumers that may have the clone.

use super::*;

#[test]
fn a_session_that_does_not_exist_cannot_be_cloned() {
    let mut scene = Scene::new();
    for wanted in [
        request(SessionId(99)),
        request(SessionId(0)),
        by_name("other"),
        by_name(""),
    ] {
        let error = scene.world.try_clone(scene.cloner, wanted).unwrap_err();
        assert!(error.contains("not found"), "{error}");
    }
    assert_eq!(scene.world.count(scene.producer, flushes), 0);
}

#[test]
fn only_the_owner_of_a_session_and_root_may_clone_it() {
    let mut scene = Scene::new();
    let stranger = scene.world.consumer_of(1234);
    let error = scene
        .world
        .try_clone(stranger, request(scene.session))
        .unwrap_err();
    assert!(error.contains("session from another UID"), "{error}");
    let root = scene.world.consumer_of(0);
    scene.world.try_clone(root, request(scene.session)).unwrap();
    scene.world.acknowledge_flushes(scene.producer);
    assert!(scene.world.cloned(root).unwrap().is_ok());
    // The clone is root's now, and not for the owner of the original to see.
    let visible = scene
        .world
        .state(scene.owner, StateScope::Sessions)
        .tracing_sessions;
    assert_eq!(
        visible.iter().map(|session| session.id).collect::<Vec<_>>(),
        [Some(scene.session.0)]
    );
    let visible = scene.world.state(root, StateScope::Sessions).tracing_sessions;
    let states: Vec<_> = visible
        .iter()
        .map(|session| session.state.as_deref().unwrap())
        .collect();
    assert_eq!(states, ["STARTED", "CLONED_READ_ONLY"]);
}

#[test]
fn a_bug_report_gets_the_running_session_with_the_highest_score() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let mut enable = |score, deferred| {
        let consumer = world.consumer();
        let config = TraceConfig {
            bugreport_score: Some(score),
            deferred_start: Some(deferred),
            ..config(&["d"])
        };
        world.enable(consumer, &config);
        let instances = world.instances(producer);
        let target = instances.last().unwrap().1.target_buffer.unwrap() as u16;
        let number = instances.len();
        let text = format!("session {number}");
        world.commit(producer, number as u16, target, &[&packet(&text)]);
    };
    enable(0, false);
    enable(3, false);
    enable(7, false);
    enable(7, false);
    enable(9, true);
    let wanted = CloneRequest {
        original: Original::BUGREPORT,
        ..request(SessionId(0))
    };
    let cloner = world.consumer_of(0);
    world.try_clone(cloner, wanted).unwrap();
    let last_flush = world.producers[&producer]
        .commands
        .iter()
        .rev()
        .find_map(|command| match command {
            ProducerCommand::Flush { flags, .. } => Some(*flags),
            _ => None,
        });
    assert_eq!(last_flush, Some(0x113));
    world.acknowledge_flushes(producer);
    assert_eq!(texts(&world.read(cloner)), ["session 3"], "the first of these");
}

#[test]
fn without_a_score_no_session_is_for_a_bug_report() {
    let mut scene = Scene::new();
    let wanted = CloneRequest {
        original: Original::BUGREPORT,
        ..request(SessionId(0))
    };
    let error = scene.world.try_clone(scene.cloner, wanted).unwrap_err();
    assert!(error.contains("bugreport_score"), "{error}");
}

#[test]
fn a_consumer_with_a_session_cannot_have_a_clone_too() {
    let mut scene = Scene::new();
    let error = scene
        .world
        .try_clone(scene.owner, request(scene.session))
        .unwrap_err();
    assert!(error.contains("already attached"), "{error}");
    assert_eq!(
        scene.world.count(scene.producer, flushes),
        0,
        "nobody is bothered for it"
    );

    // The same holds if the consumer gets a session while producers flush.
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    let error = scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap_err();
    assert!(error.contains("under way"), "{error}");
    scene.world.enable(scene.cloner, &config(&[]));
    scene.world.acknowledge_flushes(scene.producer);
    let error = scene.world.cloned(scene.cloner).unwrap().unwrap_err();
    assert!(error.contains("already attached"), "{error}");
}
