//! A backend without the SDK's thread: when it connects again, and what it keeps until then.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferretto_ipc::reactor::{Reactor, Token};

use super::*;

/// One whose transport fails with what is here.
fn failing(reason: &'static Mutex<&'static str>) -> BackendState {
    let transport = |_: Port| Err(io::Error::other(*reason.lock().expect("a reason")));
    let transport: Box<dyn Transport> = Box::new(transport);
    let memory = MemoryOptions {
        size: 0,
        page_size: 0,
        batch_commits: Duration::ZERO,
    };
    let waker = Reactor::new().expect("a reactor").waker();
    BackendState::new(
        BackendOptions::Custom(transport),
        memory,
        Watch::new(Token(1)),
        waker,
    )
}

/// How long it waits now.
fn pause(backend: &BackendState, since: u64) -> Duration {
    Duration::from_nanos(backend.retry_at().expect("it waits") - since)
}

#[test]
fn each_wait_for_a_service_is_twice_as_long_as_the_last_up_to_a_limit() {
    static REASON: Mutex<&str> = Mutex::new("refused");
    let mut backend = failing(&REASON);
    assert_eq!(backend.retry_at(), Some(0), "at once");
    let mut expected = FIRST_RETRY;
    for _ in 0..100 {
        let before = monotonic_now();
        backend.connect("test");
        let waits = pause(&backend, before);
        let late = Duration::from_nanos(monotonic_now() - before);
        assert!(
            expected <= waits && waits <= expected + late,
            "{waits:?} instead of {expected:?}"
        );
        expected = (expected * 2).min(LAST_RETRY);
    }
    assert_eq!(expected, LAST_RETRY);
    backend.retry_soon();
    assert_eq!(backend.retry_at(), Some(0));
    // A connection that ends soon changes nothing, one that has lasted does.
    for (lasted, expected) in [(GOOD_CONNECTION / 2, LAST_RETRY), (GOOD_CONNECTION, FIRST_RETRY)] {
        let before = monotonic_now();
        backend.phase = Phase::Connected {
            since: before.saturating_sub(lasted.as_nanos() as u64),
        };
        assert_eq!(backend.retry_at(), None);
        backend.lost("over".to_owned());
        let late = Duration::from_nanos(monotonic_now() - before);
        let waits = pause(&backend, before);
        assert!(
            expected <= waits && waits <= expected + late,
            "{waits:?} after {lasted:?}"
        );
    }
}

#[test]
fn why_there_is_no_service_is_told_once_and_again_when_it_changes() {
    static REASON: Mutex<&str> = Mutex::new("refused");
    let mut backend = failing(&REASON);
    let told: Vec<_> = ["refused", "refused", "absent", "absent", "refused"]
        .iter()
        .map(|reason| {
            *REASON.lock().expect("a reason") = reason;
            backend.connect("test")
        })
        .collect();
    let news = |reason: &str| Some(reason.to_owned());
    assert_eq!(
        told,
        [news("refused"), None, news("absent"), None, news("refused")]
    );
}

#[test]
fn triggers_wait_for_the_service_until_they_expire_the_latest_of_them() {
    static REASON: Mutex<&str> = Mutex::new("refused");
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let mut backend = failing(&REASON);
    let activate = |backend: &mut BackendState, expiry| {
        let name = format!("trigger {}", SERIAL.fetch_add(1, Ordering::Relaxed));
        backend.activate_triggers(&[name], expiry);
    };
    for expiry in [100, 50, 101, 0, u64::MAX] {
        activate(&mut backend, expiry);
    }
    let waiting = backend.take_waiting_triggers(100);
    assert_eq!(
        waiting,
        ["trigger 2", "trigger 4"],
        "what expires now is too late"
    );
    assert!(backend.take_waiting_triggers(0).is_empty(), "once");
    for _ in 0..MAX_WAITING_TRIGGERS + 2 {
        activate(&mut backend, 1);
    }
    let waiting = backend.take_waiting_triggers(0);
    assert_eq!(waiting.len(), MAX_WAITING_TRIGGERS);
    assert_eq!(waiting[0], "trigger 7", "the oldest go");
}
