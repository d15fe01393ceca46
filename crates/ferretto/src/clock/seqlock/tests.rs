use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::SeqLock;
use ferretto_client::atomic_word::model::{Modelled, check};

#[test]
fn starts_with_zeros_and_holds_the_last_write() {
    let lock = SeqLock::<3>::new();
    let (version, words) = lock.read().expect("nobody writes");
    assert_eq!(words, [0; 3]);
    assert_eq!(lock.replace(version, || ([1, 2, 3], "written")), Some("written"));
    assert_eq!(lock.read().expect("nobody writes").1, [1, 2, 3]);
}

#[test]
fn a_state_is_replaced_once() {
    let lock = SeqLock::<1>::new();
    let (version, _) = lock.read().expect("nobody writes");
    assert!(lock.replace(version, || ([1], ())).is_some());
    assert!(
        lock.replace(version, || ([2], ())).is_none(),
        "that state is gone"
    );
    assert_eq!(lock.read().expect("nobody writes").1, [1]);
}

#[test]
fn nothing_is_read_or_replaced_during_a_write() {
    let lock = SeqLock::<1>::new();
    let (version, _) = lock.read().expect("nobody writes");
    lock.replace(version, || {
        assert!(lock.read().is_none());
        assert!(lock.replace(version, || ([9], ())).is_none());
        ([1], ())
    });
    assert_eq!(lock.read().expect("nobody writes").1, [1]);
}

#[test]
fn an_abandoned_write_leaves_zeros() {
    let lock = SeqLock::<2>::new();
    let (version, _) = lock.read().expect("nobody writes");
    lock.replace(version, || ([1, 2], ()));
    lock.abandon();
    let (version, words) = lock.read().expect("nobody writes");
    assert_eq!(words, [1, 2], "nobody was writing");

    lock.replace(version, || {
        lock.abandon();
        let (version, words) = lock.read().expect("the write was abandoned");
        assert_eq!(words, [0, 0]);
        assert!(lock.replace(version, || ([3, 4], ())).is_some());
        ([5, 6], ())
    });
}

#[test]
fn a_write_that_panics_has_not_happened() {
    let lock = SeqLock::<1>::new();
    let (version, _) = lock.read().expect("nobody writes");
    lock.replace(version, || ([1], ()));
    let (version, _) = lock.read().expect("nobody writes");
    let panicking = || lock.replace(version, || -> ([u64; 1], ()) { panic!("for this test") });
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).expect_err("it panics");
    assert_eq!(lock.read().expect("nobody writes any more").1, [1]);
    assert!(lock.replace(version, || ([2], ())).is_some());
    assert_eq!(lock.read().expect("nobody writes").1, [2]);
}

#[test]
fn all_words_that_are_read_come_from_one_write() {
    const WRITES_EACH: u64 = 20_000;
    const WRITERS: u64 = 2;
    let lock = SeqLock::<8>::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let Some((_, words)) = lock.read() else { continue };
                        assert!(
                            words.iter().all(|&word| word == words[0]),
                            "of several writes: {words:?}"
                        );
                        assert!(words[0] >= last, "{} after {last}", words[0]);
                        last = words[0];
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut written = 0;
                    while written < WRITES_EACH {
                        let Some((version, words)) = lock.read() else {
                            continue;
                        };
                        written += u64::from(lock.replace(version, || ([words[0] + 1; 8], ())).is_some());
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("a writer");
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("a reader");
        }
    });
    assert_eq!(
        lock.read().expect("nobody writes").1,
        [WRITERS * WRITES_EACH; 8],
        "each write counted once"
    );
}

/// A lock on loom's atomics.
fn modelled() -> loom::sync::Arc<SeqLock<2, Modelled>> {
    loom::sync::Arc::new(SeqLock {
        version: Modelled::new(0),
        words: [Modelled::new(0), Modelled::new(0)],
    })
}

#[test]
fn in_any_order_all_words_come_from_one_write() {
    check(|| {
        let lock = modelled();
        let writer = loom::thread::spawn({
            let lock = lock.clone();
            move || {
                let (version, _) = lock.read().expect("nobody else writes");
                assert!(lock.replace(version, || ([1; 2], ())).is_some());
            }
        });
        if let Some((_, words)) = lock.read() {
            assert!(words == [0; 2] || words == [1; 2], "{words:?}");
        }
        writer.join().expect("the writer");
        assert_eq!(lock.read().expect("nobody writes").1, [1; 2]);
    });
}

#[test]
fn in_any_order_no_write_is_based_on_replaced_words() {
    check(|| {
        let lock = modelled();
        let count_one = |lock: &SeqLock<2, Modelled>| {
            let Some((version, words)) = lock.read() else {
                return 0;
            };
            u64::from(lock.replace(version, || ([words[0] + 1; 2], ())).is_some())
        };
        let other = loom::thread::spawn({
            let lock = lock.clone();
            move || count_one(&lock)
        });
        let counted = count_one(&lock) + other.join().expect("the other");
        assert!(counted > 0, "one of them at least");
        assert_eq!(lock.read().expect("nobody writes").1, [counted; 2]);
    });
}
