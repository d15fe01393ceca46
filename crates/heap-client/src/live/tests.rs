use std::collections::HashSet;
use std::sync::Barrier;

use proptest::prelude::*;

use super::*;

fn memory() -> (Box<[AtomicU8]>, Box<[Line]>, AtomicU8) {
    let filter = (0..FILTER_BYTES).map(|_| AtomicU8::new(0)).collect();
    let line = || Line {
        heaps: AtomicU64::new(0),
        members: [const { AtomicU64::new(0) }; MEMBERS],
    };
    (filter, (0..LINES).map(|_| line()).collect(), AtomicU8::new(0))
}

fn filter_says_no(live: Live<'_>, heap: u8, id: u64) -> bool {
    live.filter[live.grain.place_in(heap, id)].load(Relaxed) == 0
}

#[test]
fn a_grain_is_a_128th_of_the_interval_within_bounds() {
    for (interval, bytes) in [
        (0, 128),
        (1, 128),
        (4096, 128),
        (32 << 10, 256),
        (512 << 10, 4096),
        ((1 << 20) - 1, 4096),
        (2 << 20, 16384),
        (u64::MAX, 16384),
    ] {
        let grain = Grain::of(interval);
        assert_eq!(1_u64 << grain.shift(), bytes, "{interval}");
        assert_eq!(Grain::of_shift(grain.shift() + 0x7f00_0000_1000), grain);
        assert_eq!(grain.place(bytes - 1), 0);
        assert_eq!(grain.place(bytes), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Few ids, so that the same ones come back; some far apart, some that share a byte of the filter, some no addresses at all.
    #[test]
    fn it_has_exactly_what_was_inserted_and_not_removed(
        interval in prop::sample::select(vec![1_u64, 4096, 512 << 10, 1 << 30]),
        steps in prop::collection::vec((any::<bool>(), 1_u8..=255, 0_u64..600, 0_u32..3), 1..4000)
    ) {
        let (filter, lines, last) = memory();
        let live = Live::new(&filter, Grain::of(interval), &lines, &last).expect("memory of this size");
        let mut model = HashSet::new();
        for (inserts, heap, number, spread) in steps {
            let id = match spread {
                0 => 0x7f00_0000_0000 + number * 16,
                1 => number << 55,
                _ => number.wrapping_mul(0x1234_5678_9abc_def1),
            };
            let key = (heap, id);
            prop_assert_eq!(live.contains(heap, id), model.contains(&key));
            if inserts && !model.contains(&key) {
                prop_assert!(live.insert(heap, id));
                model.insert(key);
                prop_assert!(!filter_says_no(live, heap, id));
            } else if !inserts {
                prop_assert_eq!(live.remove(heap, id), model.remove(&key));
            }
        }
        for (heap, id) in model.drain() {
            prop_assert!(live.remove(heap, id));
        }
        prop_assert!(lines.iter().all(|line| line.heaps.load(Relaxed) == 0));
        let left = filter.iter().filter(|count| count.load(Relaxed) != 0);
        prop_assert!(left.count() <= 3, "only bytes that were full are not 0");
    }
}

#[test]
fn ids_that_count_have_bytes_of_their_own_and_addresses_share_those_of_their_grain() {
    let (filter, lines, last) = memory();
    let grain = Grain::of(512 << 10);
    let live = Live::new(&filter, grain, &lines, &last).expect("memory of this size");
    let (heap, address) = (ALLOCATOR + 1, 0x7f00_0000_0000);
    assert!(live.insert(heap, 1));
    assert!((2..10_000).all(|id| filter_says_no(live, heap, id)));
    assert!(live.insert(heap, address));
    assert!(!filter_says_no(live, heap, address + 16));
    assert!(live.insert(ALLOCATOR, 32));
    assert!(!filter_says_no(live, ALLOCATOR, 64));
    for (heap, id) in [(heap, 1), (heap, address), (ALLOCATOR, 32)] {
        assert!(live.remove(heap, id));
    }
    assert!(filter.iter().all(|count| count.load(Relaxed) == 0));
}

#[test]
fn it_takes_nearly_as_many_as_there_are_places_and_refuses_the_rest() {
    let (filter, lines, last) = memory();
    let live = Live::new(&filter, Grain::LEAST, &lines, &last).expect("memory of this size");
    let places = (LINES * MEMBERS) as u64;
    let ids = || (0..places).map(|number| 0x5555_0000_0000 + number * 4096);
    let mut refused = HashSet::new();
    for (count, id) in ids().enumerate() {
        if !live.insert(1, id) {
            assert!(
                count as u64 > places * 6 / 10,
                "refused after {count} of {places}"
            );
            refused.insert(id);
        }
    }
    assert!(!refused.is_empty());
    assert!((refused.len() as u64) < places / 10, "{} refused", refused.len());
    for id in ids() {
        assert_eq!(live.remove(1, id), !refused.contains(&id));
    }
}

#[test]
fn few_members_take_little_memory_and_more_are_found_in_all_tables() {
    let (filter, lines, last) = memory();
    let live = Live::new(&filter, Grain::LEAST, &lines, &last).expect("memory of this size");
    let id = |number: u64| 0x5555_0000_0000 + number * 48;
    let is_used = |line: &Line| line.heaps.load(Relaxed) != 0;
    (0..1000).for_each(|number| assert!(live.insert(1, id(number))));
    assert!(
        !lines[TABLES[0]..].iter().any(is_used),
        "some are beyond the first 16 KiB"
    );
    (1000..100_000).for_each(|number| assert!(live.insert(1, id(number))));
    assert!(lines[TABLES[0] + TABLES[1]..].iter().any(is_used));
    // Members in the first table stay there.
    (0..100_000).for_each(|number| assert!(live.contains(1, id(number)) && live.remove(1, id(number))));
    assert!(!lines.iter().any(is_used));
}

#[test]
fn threads_find_their_own_members_among_those_of_others() {
    let (filter, lines, last) = memory();
    // Few lines in use: the hashes of these ids fall into the same lines of the largest table, and so of all tables.
    let live = Live::new(&filter, Grain::LEAST, &lines, &last).expect("memory of this size");
    let largest = |id: u64| live.tables(1, id).last().expect("there are tables");
    let shared = largest(0).map(std::ptr::from_ref);
    let crowd: Vec<u64> = (0..40_000_000_u64)
        .filter(|id| {
            largest(*id)
                .iter()
                .any(|line| shared.contains(&std::ptr::from_ref(*line)))
        })
        .take(48)
        .collect();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for own in crowd.chunks(12) {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..3000 {
                    let inserted: Vec<u64> = own.iter().copied().filter(|id| live.insert(1, *id)).collect();
                    for id in own {
                        assert_eq!(live.contains(1, *id), inserted.contains(id));
                        assert_eq!(live.remove(1, *id), inserted.contains(id));
                    }
                }
            });
        }
    });
    assert!(lines.iter().all(|line| line.heaps.load(Relaxed) == 0));
}
