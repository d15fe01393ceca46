use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::clock::Anchor;

#[test]
fn a_lane_is_used_again_only_when_it_is_free() {
    static LANES: Lanes = Lanes::new("reused");
    let (first, second) = (LANES.take(), LANES.take());
    let (first_uuid, second_uuid) = (first.uuid(), second.uuid());
    assert_ne!(first_uuid, second_uuid);
    drop(first);
    let third = LANES.take();
    assert_eq!(third.uuid(), first_uuid);
    assert_ne!(LANES.take().uuid(), second_uuid);
    assert_eq!(third.parent_uuid(), ASYNC.uuid());
}

#[test]
fn lanes_of_one_name_differ_by_place() {
    static HERE: Lanes = Lanes::new("same");
    static THERE: Lanes = Lanes::new("same");
    assert_ne!(HERE.take().uuid(), THERE.take().uuid());
}

#[test]
fn there_are_lanes_beyond_those_that_are_used_again() {
    static LANES: Lanes = Lanes::new("many");
    let lanes: Vec<Lane> = (0..MAX_REUSED + 3).map(|_| LANES.take()).collect();
    let uuids: HashSet<u64> = lanes.iter().map(Lane::uuid).collect();
    assert_eq!(uuids.len(), lanes.len());
    drop(lanes);
    let again: HashSet<u64> = (0..MAX_REUSED).map(|_| LANES.take().uuid()).collect();
    assert!(again.is_subset(&uuids));
    assert_eq!(again.len(), 1);
    // Those beyond are new each time.
    let lanes: Vec<Lane> = (0..=MAX_REUSED).map(|_| LANES.take()).collect();
    assert!(!uuids.contains(&lanes[MAX_REUSED].uuid()));
}

#[test]
fn no_two_threads_have_the_same_lane_at_the_same_time() {
    static LANES: Lanes = Lanes::new("contended");
    static HELD: [AtomicBool; MAX_REUSED] = [const { AtomicBool::new(false) }; MAX_REUSED];
    // Without the order in the processor, one in a million overlaps, in release builds.
    const TURNS: usize = if cfg!(debug_assertions) {
        200_000
    } else {
        3_000_000
    };
    let hold = || {
        let mut anchor = Anchor::EXPIRED;
        let mut last = 0;
        let mut time = || {
            last = anchor.now().unwrap_or_else(|| anchor.renew(last));
            last
        };
        let mut held = Vec::new();
        for _ in 0..TURNS {
            let lane = LANES.take();
            let begin = time();
            // Relaxed, for it is the lanes that are to order it.
            assert!(!HELD[lane.number as usize].swap(true, Ordering::Relaxed));
            HELD[lane.number as usize].store(false, Ordering::Relaxed);
            held.push((lane.number, begin, time()));
        }
        held
    };
    let mut held: Vec<(u32, u64, u64)> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(hold));
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    held.sort_unstable();
    for pair in held.windows(2) {
        let [(lane, _, end), (next_lane, begin, _)] = pair else {
            unreachable!()
        };
        assert!(lane != next_lane || begin >= end, "{pair:?} overlap");
    }
    assert!(LANES.taken.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    assert_eq!(LANES.beyond.load(Ordering::Relaxed), 0);
}
