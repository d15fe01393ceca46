//! Sessions that triggers have cloned.

use super::*;

fn config() -> TraceConfig {
    let triggers = [trigger("t1", 10), trigger("t2", 10), trigger("t3", 0)];
    triggered(TriggerMode::CLONE_SNAPSHOT, DAY, &triggers)
}

fn observing(world: &mut World, consumer: ConsumerId) {
    let now = world.now;
    world.service.observe_events(consumer, CLONE_TRIGGER_HIT, &now);
    world.run();
}

fn due(world: &World, consumer: ConsumerId) -> Vec<String> {
    let snapshots = world.consumers[&consumer].snapshots_due.iter();
    snapshots
        .map(|hit| hit.trigger_name.clone().unwrap_or_default())
        .collect()
}

#[test]
fn the_consumer_is_notified_when_a_snapshot_is_due_with_its_trigger() {
    let (mut world, _, consumer) = world();
    observing(&mut world, consumer);
    let session = world.enable(consumer, &config());
    let sender = world.producer_of(77_777, "sender", ferretto_service::Scraping::Disabled);
    world.activate(sender, &["t1"]);
    let at = world.now.boot;
    world.advance(9);
    assert_eq!(due(&world, consumer).len(), 0);
    world.advance(1);
    let expected = observable_events::CloneTriggerHit {
        tracing_session_id: Some(session.0 as i64),
        trigger_name: Some("t1".into()),
        producer_name: Some("sender".into()),
        producer_uid: Some(77_777),
        boot_time_ns: Some(at),
        trigger_delay_ms: Some(10),
        ..Default::default()
    };
    assert_eq!(world.consumers[&consumer].snapshots_due, [expected]);
    // The session goes on.
    world.activate(sender, &["t1"]);
    world.advance(10);
    assert_eq!(due(&world, consumer), ["t1", "t1"]);
    assert!(!is_over(&world, consumer));
}

#[test]
fn snapshots_that_are_due_together_are_each_reported() {
    let (mut world, producer, consumer) = world();
    observing(&mut world, consumer);
    world.enable(consumer, &config());
    world.activate(producer, &["t1", "t2"]);
    world.jump(10);
    assert_eq!(due(&world, consumer), ["t1", "t2"]);
}

#[test]
fn consumers_that_do_not_observe_or_are_gone_hear_nothing() {
    let (mut world, producer, consumer) = world();
    world.enable(consumer, &config());
    world.activate(producer, &["t1"]);
    world.advance(10);
    assert_eq!(due(&world, consumer).len(), 0);
    observing(&mut world, consumer);
    world.activate(producer, &["t1"]);
    world.service.detach(consumer, "key").unwrap();
    world.advance(10);
    world.service.attach(consumer, "key").unwrap();
    assert_eq!(due(&world, consumer).len(), 0);
    world.activate(producer, &["t1"]);
    // The world panics if an output names the consumer after this.
    world.lose_consumer(consumer);
    world.advance(10);
}

#[test]
fn the_session_itself_is_never_read() {
    let (mut world, producer, consumer) = world();
    world.enable(consumer, &config());
    world.commit(producer, 1, world.target(producer), &[&packet("data")]);
    assert!(world.read(consumer).is_empty());
    world.activate(producer, &["t3"]);
    world.advance(1);
    assert!(world.read(consumer).is_empty());
    world.advance(DAY.into());
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer), "the timeout is its duration");
    assert!(world.read(consumer).is_empty());
}

#[test]
fn the_flag_for_older_services_means_the_same() {
    let (mut world, producer, consumer) = world();
    observing(&mut world, consumer);
    let mut config = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 0)]);
    config
        .trigger_config
        .get_or_insert_default()
        .use_clone_snapshot_if_available = Some(true);
    world.enable(consumer, &config);
    world.activate(producer, &["t"]);
    world.advance(1);
    assert_eq!(due(&world, consumer), ["t"]);
    assert_eq!(world.count(producer, flushes), 0, "it does not stop");
}

#[test]
fn no_more_snapshots_wait_than_the_limit() {
    let (mut world, producer, consumer) = world();
    observing(&mut world, consumer);
    world.enable(consumer, &config());
    let many = vec!["t1"; limits::MAX_PENDING_SNAPSHOTS + 1];
    world.activate(producer, &many);
    assert!(world.log.iter().any(|line| line.contains("too many snapshots")));
    world.advance(10);
    assert_eq!(due(&world, consumer).len(), limits::MAX_PENDING_SNAPSHOTS);
    world.activate(producer, &["t1"]);
    world.advance(10);
    assert_eq!(due(&world, consumer).len(), limits::MAX_PENDING_SNAPSHOTS + 1);
    // There was room in between, so the log mentions the next lack of room again.
    world.activate(producer, &many);
    let told = world
        .log
        .iter()
        .filter(|line| line.contains("too many snapshots"));
    assert_eq!(told.count(), 2);
}

#[test]
fn the_service_says_that_it_can_tell() {
    let events = ferretto_service::Service::query_capabilities().observable_events;
    assert!(events.contains(&observable_events::Type::TYPE_CLONE_TRIGGER_HIT));
}
