//! Files of abandoned sessions that take no data: the service gives them up after a while.

use ferretto_proto::messages::TraceConfig;
use ferretto_service::{ConsumerId, ProducerId, SessionId, StateScope, limits};

use crate::world::{Disk, World, config, packet, texts};

const PATIENCE: u64 = limits::ABANDONED_FILE_PATIENCE.as_millis() as u64;

/// A session whose file takes a first batch, and does not report when it is written.
fn stuck() -> (World, ProducerId, ConsumerId, SessionId) {
    let (mut world, producer, consumer) = World::offering();
    let into_file = TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(200),
        ..config(&["d"])
    };
    let session = world.enable(consumer, &into_file);
    world.disk = Disk::Slow;
    let target = world.target(producer);
    for n in 0..10 {
        let text = format!("{n} {}", "x".repeat(3000));
        world.commit(producer, 1, target, &[&packet(&text)]);
    }
    world.advance(200);
    (world, producer, consumer, session)
}

fn sessions(world: &mut World) -> usize {
    let anybody = world.consumer_of(0);
    world.state(anybody, StateScope::Sessions).tracing_sessions.len()
}

#[test]
fn a_file_that_takes_nothing_after_its_consumer_left_is_given_up() {
    let (mut world, _, consumer, session) = stuck();
    world.lose_consumer(consumer);
    world.advance(PATIENCE - 1);
    assert!(world.abandoned_files.is_empty());
    assert_eq!(sessions(&mut world), 1);
    world.advance(2);
    assert_eq!(world.abandoned_files, [session]);
    assert!(world.log.iter().any(|line| line.contains("took no data")));
    assert_eq!(sessions(&mut world), 0);
    assert_eq!(world.service.buffer_bytes(), 0);
    assert_eq!(world.service.next_deadline(), None);
    // Later reports of the driver about the file make no difference.
    world.disk_catches_up();
    assert!(world.closed_files.is_empty());
}

#[test]
fn a_file_that_cannot_be_closed_is_given_up_too() {
    let (mut world, _, consumer, session) = stuck();
    world.lose_consumer(consumer);
    while world.closed_files.is_empty() {
        world.finish_writes();
    }
    world.advance(PATIENCE + 1);
    assert_eq!(world.abandoned_files, [session]);
    assert_eq!(sessions(&mut world), 0);
}

#[test]
fn a_file_that_is_slow_but_takes_data_is_completed() {
    let (mut world, _, consumer, session) = stuck();
    world.lose_consumer(consumer);
    for _ in 0..20 {
        world.advance(PATIENCE * 3 / 4);
        world.disk_catches_up();
    }
    assert!(world.abandoned_files.is_empty());
    assert_eq!(world.closed_files, [session]);
    let packets = crate::world::packets_of(&world.files[&session]);
    let decode =
        |packet: &Vec<u8>| ferretto_proto::messages::Message::decode_from_slice(packet).expect("a packet");
    assert_eq!(texts(&packets.iter().map(decode).collect::<Vec<_>>()).len(), 10);
    assert_eq!(sessions(&mut world), 0);
}

#[test]
fn a_consumer_that_freed_its_session_and_stayed_is_told_that_its_file_was_given_up() {
    let (mut world, _, consumer, session) = stuck();
    world.free(consumer);
    world.advance(PATIENCE + 1);
    assert_eq!(world.abandoned_files, [session]);
    assert_eq!(world.consumers[&consumer].ended, [session]);
    let told = world.consumers[&consumer].disabled[0].as_deref();
    assert!(
        told.is_some_and(|error| error.contains("took no data")),
        "{told:?}"
    );
}

#[test]
fn a_file_is_not_given_up_while_its_consumer_waits_or_may_come_back() {
    let (mut world, _, consumer, _) = stuck();
    world.disable(consumer);
    world.advance(10 * PATIENCE);
    assert!(world.abandoned_files.is_empty());
    assert!(world.service.detach(consumer, "key").is_ok());
    world.lose_consumer(consumer);
    world.advance(10 * PATIENCE);
    assert!(world.abandoned_files.is_empty());
    let returned = world.consumer();
    assert!(world.service.attach(returned, "key").is_ok());
    world.disk = Disk::Fast;
    world.disk_catches_up();
    assert_eq!(world.closed_files.len(), 1);
}
