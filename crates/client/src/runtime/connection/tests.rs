//! A connection without a runtime: when it reconnects, and what it keeps until then.

use std::sync::atomic::{AtomicUsize, Ordering};

use ferretto_ipc::reactor::Reactor;
use ferretto_ipc::retry::{FIRST, GOOD_CONNECTION, LAST};

use super::*;

struct Nobody;

impl ProducerProgram for Nobody {
    fn info(&self, _line: &str) {}

    fn warning(&self, _line: &str) {}

    fn is_own_thread(&self) -> bool {
        true
    }
}

fn waiting() -> Connection {
    let options = ConnectionOptions {
        id: ConnectionId(0),
        name: "service".to_owned(),
        producer_name: "test".to_owned(),
        sdk_version: String::new(),
        memory: MemoryOptions {
            size: 0,
            page_size: 0,
            batch_commits: Duration::ZERO,
        },
    };
    let waker = Reactor::new().expect("a reactor").waker();
    Connection::new(options, Arc::new(Nobody), waker)
}

/// Tries in vain to connect; returns the error to report.
fn fail(connection: &mut Connection, reason: &str) -> Option<String> {
    connection.connect(|_| Err(reason.to_owned()))
}

/// How long it waits now.
fn pause(connection: &Connection, since: u64) -> Duration {
    Duration::from_nanos(connection.retry_at().expect("it waits") - since)
}

#[test]
fn each_wait_for_a_service_is_twice_as_long_as_the_last_up_to_a_limit() {
    let mut connection = waiting();
    assert_eq!(connection.retry_at(), Some(0), "at once");
    let mut expected = FIRST;
    for _ in 0..100 {
        let before = monotonic_now();
        fail(&mut connection, "refused");
        let waits = pause(&connection, before);
        let late = Duration::from_nanos(monotonic_now() - before);
        assert!(
            expected <= waits && waits <= expected + late,
            "{waits:?} instead of {expected:?}"
        );
        expected = (expected * 2).min(LAST);
    }
    assert_eq!(expected, LAST);
    connection.retry_soon();
    assert_eq!(connection.retry_at(), Some(0));
    // A connection that ends soon changes nothing, one that has lasted does.
    for (lasted, expected) in [(GOOD_CONNECTION / 2, LAST), (GOOD_CONNECTION, FIRST)] {
        let before = monotonic_now();
        connection.phase = Phase::Connected {
            since: before.saturating_sub(lasted.as_nanos() as u64),
        };
        assert_eq!(connection.retry_at(), None);
        connection.lost("over".to_owned());
        let late = Duration::from_nanos(monotonic_now() - before);
        let waits = pause(&connection, before);
        assert!(
            expected <= waits && waits <= expected + late,
            "{waits:?} after {lasted:?}"
        );
    }
}

#[test]
fn the_reason_for_no_service_is_reported_once_and_again_when_it_changes() {
    let mut connection = waiting();
    let told: Vec<_> = ["refused", "refused", "absent", "absent", "refused"]
        .iter()
        .map(|reason| fail(&mut connection, reason))
        .collect();
    let news = |reason: &str| Some(reason.to_owned());
    assert_eq!(
        told,
        [news("refused"), None, news("absent"), None, news("refused")]
    );
}

#[test]
fn triggers_wait_for_the_service_until_they_expire_the_latest_of_them() {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let mut connection = waiting();
    let activate = |connection: &mut Connection, expiry| {
        let name = format!("trigger {}", SERIAL.fetch_add(1, Ordering::Relaxed));
        connection.activate_triggers(&[name], expiry);
    };
    for expiry in [100, 50, 101, 0, u64::MAX] {
        activate(&mut connection, expiry);
    }
    let waiting = connection.take_waiting_triggers(100);
    assert_eq!(
        waiting,
        ["trigger 2", "trigger 4"],
        "what expires now is too late"
    );
    assert!(connection.take_waiting_triggers(0).is_empty(), "once");
    for _ in 0..MAX_WAITING_TRIGGERS + 2 {
        activate(&mut connection, 1);
    }
    let waiting = connection.take_waiting_triggers(0);
    assert_eq!(waiting.len(), MAX_WAITING_TRIGGERS);
    assert_eq!(waiting[0], "trigger 7", "the oldest go");
}
