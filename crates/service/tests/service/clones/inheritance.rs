//! The state that a clone takes over from its original: counts, clocks and pending notes.

use super::*;

/// `CLOCK_MONOTONIC_RAW`, which drifts from the other clocks in these tests.
const MONOTONIC_RAW: u32 = 5;

/// The time of that clock in each clock snapshot, in ms.
fn snapshots(packets: &[TracePacket]) -> Vec<u64> {
    let clocks = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::ClockSnapshot(snapshot)) => Some(&snapshot.clocks),
        _ => None,
    });
    let raw = clocks.filter_map(|clocks| clocks.iter().find(|clock| clock.clock_id == Some(MONOTONIC_RAW)));
    raw.map(|clock| clock.timestamp.expect("a time") / 1_000_000)
        .collect()
}

#[test]
fn a_clone_counts_on_from_the_counts_of_its_original() {
    const TRUSTED_UID: &[u8] = &[3 << 3, 7];
    let mut scene = Scene::with(&TraceConfig {
        flush_timeout_ms: Some(10),
        ..config(&["d"])
    });
    let target = scene.world.target(scene.producer);
    scene
        .world
        .commit(scene.producer, 1, target, &[TRUSTED_UID, &packet("one")]);
    scene.world.read(scene.owner);
    let now = scene.world.now;
    for token in 0..3 {
        scene.world.service.flush(scene.owner, token, 0, 0, &now);
        scene.world.run();
        // The first flush times out.
        if token == 0 {
            scene.world.advance(10);
        }
        scene.world.acknowledge_flushes(scene.producer);
    }
    scene.clone();
    let packets = scene.world.read(scene.cloner);
    let stats = stats(&packets);
    assert_eq!(stats.invalid_packets, Some(1));
    assert_eq!(
        (
            stats.flushes_requested,
            stats.flushes_succeeded,
            stats.flushes_failed
        ),
        (Some(4), Some(3), Some(1))
    );
    // From now on, each session counts its own flushes.
    let of_original = scene.world.service.trace_stats(scene.owner).unwrap();
    assert_eq!(of_original.flushes_requested, Some(4));
    scene.clone_by_another();
    let of_clone = scene.world.service.trace_stats(scene.cloner).unwrap();
    assert_eq!(of_clone.flushes_requested, Some(4));
}

#[test]
fn a_clone_has_the_clocks_of_the_start_of_the_request_and_of_its_making() {
    let mut scene = Scene::new();
    let start = scene.world.now.realtime;
    let drift = |scene: &mut Scene| {
        scene.world.advance(100);
        scene.world.now.monotonic_raw += 1_000_000_000;
    };
    drift(&mut scene);
    scene
        .world
        .try_clone(scene.cloner, request(scene.session))
        .unwrap();
    drift(&mut scene);
    scene.world.acknowledge_flushes(scene.producer);
    drift(&mut scene);
    let clone = scene.world.read(scene.cloner);
    // The first interval begins with the session, so its snapshot repeats the one of the start.
    let [started, first, requested, made] = snapshots(&clone)[..] else {
        panic!("{:?}", snapshots(&clone))
    };
    assert_eq!(
        (started, requested - started, made - requested),
        (first, 1000, 1000)
    );
    assert_eq!(
        snapshots(&scene.world.read(scene.owner)),
        [started, first, requested, made],
        "the clone took none away"
    );
    let state = scene.world.state(scene.cloner, StateScope::Sessions);
    let since: Vec<_> = state
        .tracing_sessions
        .iter()
        .map(|s| s.start_realtime_ns)
        .collect();
    assert_eq!(since, [Some(start as i64); 2]);
}

#[test]
fn a_clone_of_a_session_that_has_not_started_has_the_clocks_of_its_making() {
    let mut scene = Scene::with(&TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    });
    let ms = |scene: &Scene| scene.world.now.monotonic_raw / 1_000_000;
    scene.world.now.monotonic_raw += 7_000_000_000;
    let made = ms(&scene);
    scene.clone();
    scene.world.now.monotonic_raw += 1_000_000_000;
    let (started, now) = (ms(&scene), scene.world.now);
    scene.world.service.start_deferred(scene.owner, &now);
    scene.world.run();
    assert_eq!(snapshots(&scene.world.read(scene.cloner)), [made]);
    assert_eq!(snapshots(&scene.world.read(scene.owner)), [started, started]);
}

#[test]
fn a_clone_does_not_repeat_events_that_were_read_from_its_original() {
    let mut scene = Scene::new();
    let before = scene.world.read(scene.owner);
    assert_eq!(snapshots(&before).len(), 2);
    assert_eq!(times_of(TRACING_STARTED, &before).len(), 1);
    scene.world.advance(50);
    scene.clone();
    let clone = scene.world.read(scene.cloner);
    assert_eq!(snapshots(&clone).len(), 1, "that of the request");
    assert_eq!(times_of(TRACING_STARTED, &clone), Vec::<u64>::new());
}

#[test]
fn a_clone_of_a_compressed_session_is_compressed() {
    let mut scene = Scene::with(&TraceConfig {
        compression_type: Some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE),
        ..config(&["d"])
    });
    scene.write(&["one"]);
    scene.clone();
    let packets = scene.world.read_encoded(scene.cloner, 1 << 20);
    let decode = |packet: &Vec<u8>| TracePacket::decode_from_slice(packet).expect("a packet");
    let bare: Vec<TracePacket> = packets.iter().map(decode).collect();
    assert!(texts(&bare).is_empty());
    let inside: Vec<TracePacket> = crate::world::expanded(packets).iter().map(decode).collect();
    assert_eq!(texts(&inside), ["one"]);
}
