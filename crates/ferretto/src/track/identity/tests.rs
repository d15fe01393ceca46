//! Uuids of processes against upstream's, and the caches that a forked child drops.

use std::sync::atomic::Ordering;

use ferretto_proto::messages::TrackDescriptor;

use super::{
    PROCESS_UUID, THREAD_ID, fnv1a, parse_start_time, process_id, process_uuid, reset_after_fork, thread_id,
    uuid_of_process,
};
use crate::track::tests::in_a_process_of_its_own;
use crate::track::{Track, TrackLike, registry, set_track_descriptor, track_descriptor};

#[test]
fn the_hash_is_fnv_1a() {
    // From the test vectors of the algorithm's authors (http://www.isthe.com/chongo/src/fnv/test_fnv.c).
    assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
}

/// The expected values are results of `FnvHasher::Combine` and `TrackRegistry::ComputeProcessUuid` in a C++ program with upstream's library as in the
/// crate `perfetto-sdk-sys` 1.4.0; the third is that of its own process.
#[test]
fn a_process_has_the_uuid_that_upstream_gives_it() {
    assert_eq!(uuid_of_process(123_456_789, 4242), 0x77d2_60d2_82f0_260b);
    assert_eq!(uuid_of_process(1, 1), 0xff1e_d942_1877_e875);
    let stat = b"534 (ref) S 532 532 425 0 -1 4194304 194 0 2 0 0 0 0 0 20 0 1 0 2272357 12324864 1207 18446744073709551615 \
        94155179261952 94155183190765 140724651650832 0 0 0 65536 6 0 1 0 0 17 0 0 0 0 0 0 94155185475720 94155185526536 \
        94155539243008 140724651653872 140724651653878 140724651653878 140724651655154 0\n";
    assert_eq!(
        uuid_of_process(parse_start_time(stat).unwrap(), 534),
        0xcd68_fd18_e0c9_0a36
    );
}

#[test]
fn the_start_time_is_found_behind_any_name() {
    let after = b" S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 1 18 7777 9";
    for name in ["(a)", "(a b)", "(a) S (b)", "(()", "())", "(a) )", "()"] {
        let stat = [b"42 ", name.as_bytes(), after].concat();
        assert_eq!(parse_start_time(&stat), Some(7777), "{name}");
    }
}

#[test]
fn a_start_time_that_is_no_number_is_none() {
    let short = b"42 (a) S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 1 18";
    let zero = b"42 (a) S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 1 18 0 9";
    let text = b"42 (a) S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 1 18 x 9";
    for stat in [&b""[..], b"42", b"42 (a", b"42 (a) ", short, zero, text] {
        assert_eq!(parse_start_time(stat), None, "{}", stat.escape_ascii());
    }
}

#[test]
fn this_process_has_a_uuid_from_its_start_time_and_number() {
    let stat = std::fs::read("/proc/self/stat").unwrap();
    assert_eq!(
        process_uuid(),
        uuid_of_process(parse_start_time(&stat).unwrap(), std::process::id() as i32)
    );
    assert_eq!(process_id(), std::process::id() as i32);
}

#[test]
fn each_thread_has_its_number() {
    let own = std::thread::spawn(|| {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let tid: u32 = stat.split(' ').next().unwrap().parse().unwrap();
        assert_eq!((thread_id(), thread_id()), (tid, tid));
        tid
    });
    assert_ne!(thread_id(), own.join().unwrap());
}

/// The test makes the state after a fork by hand: caches with the parent's values, and a registry whose lock is held by a thread that does not exist
/// any more.
#[test]
fn a_forked_child_has_an_identity_of_its_own() {
    in_a_process_of_its_own(
        "track::identity::tests::a_forked_child_has_an_identity_of_its_own",
        forget_a_parent,
    );
}

fn forget_a_parent() {
    let (process, thread) = (process_uuid(), thread_id());
    let global = Track::global(99);
    let named = |name: &str| TrackDescriptor {
        description: Some(name.to_owned()),
        ..Default::default()
    };
    for generation in ["child", "grandchild"] {
        set_track_descriptor(&global, named("of the parent"));
        PROCESS_UUID.store(1, Ordering::Relaxed);
        THREAD_ID.set(2);
        assert_eq!(Track::process().uuid(), 1);
        let (held, hold) = std::sync::mpsc::channel();
        std::thread::spawn(move || registry::hold_for_ever(move || held.send(()).unwrap()));
        hold.recv().unwrap();

        reset_after_fork();

        assert_eq!((process_uuid(), thread_id()), (process, thread), "{generation}");
        assert_eq!(track_descriptor(&global).description, None, "{generation}");
        set_track_descriptor(&global, named(generation));
        assert_eq!(track_descriptor(&global).description.as_deref(), Some(generation));
    }
}
