use std::sync::atomic::{AtomicI32, Ordering};

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn of_annotations_that_are_kept_the_last_of_each_name_is_there(
        rounds in proptest::collection::vec(proptest::collection::btree_map(1u32..200, ".{0,200}", 0..4), 0..12)
    ) {
        let mut kept = KeptAnnotations::default();
        let mut model: Vec<(u32, String)> = Vec::new();
        for round in rounds {
            let mut new = EncodedAnnotations::new();
            for (&name, value) in &round {
                new.push(name, value.as_str());
            }
            kept.keep(&new);
            model.retain(|(name, _)| !round.contains_key(name));
            model.extend(round);
            let mut expected = EncodedAnnotations::new();
            for (name, value) in &model {
                expected.push(*name, value.as_str());
            }
            prop_assert_eq!(kept.as_bytes(), expected.as_bytes());
            prop_assert_eq!(kept.is_empty(), model.is_empty());
        }
    }
}

/// How often it is held.
static HOLDS: AtomicI32 = AtomicI32::new(0);

#[test]
fn a_forking_thread_holds_the_registered_locks_and_their_list() {
    hold_over_forks(ForkLocks {
        hold: || {
            assert!(FORK_LOCKS.try_lock().is_ok(), "the others are to be held first");
            HOLDS.fetch_add(1, Ordering::Relaxed);
        },
        release: || {
            HOLDS.fetch_sub(1, Ordering::Relaxed);
        },
    });
    let is_locked_for_others = || {
        let look = || FORK_LOCKS.try_lock().is_err();
        std::thread::scope(|scope| scope.spawn(look).join()).expect("it looks")
    };
    registry::hold_for_fork();
    assert_eq!((HOLDS.load(Ordering::Relaxed), is_locked_for_others()), (1, true));
    registry::release_after_fork();
    assert_eq!(
        (HOLDS.load(Ordering::Relaxed), is_locked_for_others()),
        (0, false)
    );
}
