use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::clock::Anchor;
use ferretto_client::atomic_word::model::{Modelled, check};

/// The number of lanes of one name that are reused.
const REUSED: usize = Numbers::<LANES>::REUSED as usize;

/// A lane without a parent.
fn take(lanes: &'static Lanes) -> Arc<Lane> {
    let mut taken = None;
    lanes.take_for(&mut taken);
    Arc::clone(&taken.unwrap().lane.turn.0)
}

#[test]
fn a_lane_is_used_again_only_when_it_is_free() {
    static LANES: Lanes = Lanes::new("reused");
    let (first, second) = (take(&LANES), take(&LANES));
    let (first_uuid, second_uuid) = (first.uuid(), second.uuid());
    assert_ne!(first_uuid, second_uuid);
    drop(first);
    let third = take(&LANES);
    assert_eq!(third.uuid(), first_uuid);
    assert_ne!(take(&LANES).uuid(), second_uuid);
    assert_eq!(third.parent_uuid(), ASYNC.uuid());
}

#[test]
fn lanes_of_one_name_differ_by_place() {
    static HERE: Lanes = Lanes::new("same");
    static THERE: Lanes = Lanes::new("same");
    assert_ne!(take(&HERE).uuid(), take(&THERE).uuid());
}

#[test]
fn lanes_beyond_the_reused_ones_are_new_each_time() {
    static LANES: Lanes = Lanes::new("many");
    let lanes: Vec<Arc<Lane>> = (0..REUSED + 3).map(|_| take(&LANES)).collect();
    let uuids: HashSet<u64> = lanes.iter().map(|lane| lane.uuid()).collect();
    assert_eq!(uuids.len(), lanes.len());
    drop(lanes);
    let again: HashSet<u64> = (0..REUSED).map(|_| take(&LANES).uuid()).collect();
    assert!(again.is_subset(&uuids));
    assert_eq!(again.len(), 1);
    // Lanes beyond this number are never reused.
    let lanes: Vec<Arc<Lane>> = (0..=REUSED).map(|_| take(&LANES)).collect();
    assert!(!uuids.contains(&lanes[REUSED].uuid()));
}

#[test]
fn no_two_threads_have_the_same_lane_at_the_same_time() {
    static LANES: Lanes = Lanes::new("contended");
    static HELD: [AtomicBool; REUSED] = [const { AtomicBool::new(false) }; REUSED];
    // Without the ordering, one turn in a million overlaps in release builds.
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
            let lane = take(&LANES);
            let begin = time();
            // The access is relaxed, because the lanes have to order it.
            assert!(!HELD[lane.0.shared.number as usize].swap(true, Ordering::Relaxed));
            HELD[lane.0.shared.number as usize].store(false, Ordering::Relaxed);
            held.push((lane.0.shared.number, begin, time()));
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
    assert!(
        LANES
            .numbers
            .taken
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    );
    assert_eq!(LANES.numbers.beyond.load(Ordering::Relaxed), 0);
}

#[test]
fn in_any_order_one_thread_at_a_time_has_a_bit_and_sees_the_writes_of_the_last() {
    check(|| {
        // All bits but one are taken.
        let shared = loom::sync::Arc::new((Modelled::new(!1), loom::cell::UnsafeCell::new(0)));
        let use_lane = |(word, uses): &(Modelled, loom::cell::UnsafeCell<u32>)| {
            let Some(bit) = take_bit(word) else { return 0 };
            // SAFETY: loom fails the test if anything else accesses the cell at this moment.
            #[allow(unsafe_code)]
            uses.with_mut(|uses| unsafe { *uses += 1 });
            give_back_bit(word, bit);
            1
        };
        let threads = [(); 2].map(|()| {
            let shared = shared.clone();
            loom::thread::spawn(move || use_lane(&shared))
        });
        let mut used = use_lane(&shared);
        for thread in threads {
            used += thread.join().unwrap();
        }
        // SAFETY: the threads have ended.
        #[allow(unsafe_code)]
        let uses = shared.1.with(|uses| unsafe { *uses });
        assert_eq!(uses, used);
        assert_eq!(shared.0.load(Ordering::Relaxed), !1, "it was given back");
    });
}
