use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use ferretto_client::atomic_word::model::{Modelled, check};

/// Counts the handling of each mark.
#[derive(Default)]
struct Done(Vec<u32>);

impl Marked for Done {
    fn take_care_of(&mut self, mark: u32) {
        self.0.push(mark);
    }
}

#[test]
fn the_holder_of_a_turn_takes_care_of_marks_before_it_lets_go() {
    let turn = Turn::new((), Done::default());
    let held = Turn::try_take(&turn).ok().unwrap();
    assert!(Turn::try_take(&turn).is_err());
    assert!(Turn::take_or_mark(&turn, 3).is_none());
    assert!(Turn::take_or_mark(&turn, 62).is_none());
    drop(held);
    let held = Turn::take_or_mark(&turn, 5).unwrap();
    assert_eq!(held.0, [62, 3]);
}

#[test]
fn no_mark_is_lost_among_threads() {
    const MARKS_EACH: u32 = 20_000;
    let turn = Arc::new(Turn::new((), Done::default()));
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (turn, inside) = (&turn, &inside);
            scope.spawn(move || {
                for _ in 0..MARKS_EACH {
                    if let Some(mut held) = Turn::take_or_mark(&**turn, thread) {
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        held.0.push(thread);
                        inside.store(false, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let held = Turn::try_take(&*turn).ok().unwrap();
    for thread in 0..3 {
        let own = held.0.iter().filter(|&&mark| mark == thread).count();
        // A mark that is there already stands for both.
        assert!(own > 0 && own <= MARKS_EACH as usize);
    }
}

#[test]
fn in_any_order_one_thread_has_the_turn_and_each_mark_is_handled_once() {
    check(|| {
        let shared = loom::sync::Arc::new((Modelled::new(0), loom::cell::UnsafeCell::new(0)));
        let use_turn = |(word, cares): &(Modelled, loom::cell::UnsafeCell<u32>), mark: u32| {
            if !take_or_mark(word, mark) {
                return;
            }
            word.fetch_and(!(1 << mark), Ordering::Relaxed);
            // SAFETY: loom fails the test if anything else accesses the cell at this moment.
            cares.with_mut(|cares| unsafe { *cares += 1 << (8 * mark) });
            while let Some(marks) = let_go(word) {
                for mark in (0..3).filter(|mark| marks & 1 << mark != 0) {
                    // SAFETY: as above.
                    cares.with_mut(|cares| unsafe { *cares += 1 << (8 * mark) });
                }
            }
        };
        let threads = [1, 2].map(|mark| {
            let shared = shared.clone();
            loom::thread::spawn(move || use_turn(&shared, mark))
        });
        use_turn(&shared, 0);
        for thread in threads {
            thread.join().unwrap();
        }
        // SAFETY: the threads have ended.
        let cares = shared.1.with(|cares| unsafe { *cares });
        assert_eq!(cares, 0x01_01_01);
        assert_eq!(shared.0.load(Ordering::Relaxed), 0);
    });
}
