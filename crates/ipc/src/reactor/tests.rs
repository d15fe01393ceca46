//! The events that wake a reactor, and others that do not.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;

fn reactor() -> (Reactor, Events) {
    (Reactor::new().unwrap(), Events::new())
}

/// Far enough away that a test that hits it is broken.
fn never() -> Option<Deadline> {
    Some(Deadline::after(Duration::from_secs(60)))
}

/// The deadline after this duration, sleep included.
fn after_boot(duration: Duration) -> Deadline {
    Deadline::Boot(boot_now() + duration.as_nanos() as u64)
}

fn now() -> Option<Deadline> {
    Some(Deadline::Monotonic(0))
}

#[test]
fn a_descriptor_is_reported_for_the_watched_readiness() {
    let (mut reactor, mut events) = reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let token = Token(7);
    reactor.register(&ours, token, Interest::Readable).unwrap();
    reactor.wait(&mut events, now()).unwrap();
    assert!(events.ready().is_empty());

    theirs.write_all(b"x").unwrap();
    reactor.wait(&mut events, never()).unwrap();
    let expected = Event {
        token,
        readable: true,
        writable: false,
        hung_up: false,
    };
    assert_eq!(events.ready(), [expected]);

    reactor.reregister(&ours, token, Interest::Both).unwrap();
    reactor.wait(&mut events, never()).unwrap();
    assert_eq!(
        events.ready(),
        [Event {
            writable: true,
            ..expected
        }]
    );

    reactor.reregister(&ours, token, Interest::None).unwrap();
    reactor.wait(&mut events, now()).unwrap();
    assert!(events.ready().is_empty());

    drop(theirs);
    reactor.wait(&mut events, never()).unwrap();
    assert!(
        events.ready()[0].hung_up,
        "a hang-up is reported whatever the interest"
    );

    reactor.deregister(&ours, token).unwrap();
    reactor.wait(&mut events, now()).unwrap();
    assert!(events.ready().is_empty());
}

#[test]
fn another_thread_wakes_it_and_many_wakes_count_as_one() {
    let (mut reactor, mut events) = reactor();
    let waker = reactor.waker();
    let other = thread::spawn(move || {
        waker.wake();
        waker.wake();
    });
    reactor.wait(&mut events, never()).unwrap();
    assert!(events.woken());
    other.join().unwrap();
    // The second wake-up may have come after the first wait.
    reactor.wait(&mut events, now()).unwrap();
    reactor.wait(&mut events, now()).unwrap();
    assert!(!events.woken());
}

#[test]
fn a_deadline_ends_the_wait_on_either_clock_and_not_too_early() {
    let (mut reactor, mut events) = reactor();
    let wait = Duration::from_millis(3);
    for _ in 0..3 {
        let start = monotonic_now();
        reactor.wait(&mut events, Some(Deadline::after(wait))).unwrap();
        assert!(monotonic_now() - start >= 3_000_000);

        let deadline = after_boot(wait);
        let start = monotonic_now();
        reactor.wait(&mut events, Some(deadline)).unwrap();
        assert!(monotonic_now() - start >= 2_900_000);
        assert!(events.ready().is_empty());
    }
}

#[test]
fn a_boot_time_deadline_given_up_does_not_fire_later() {
    let (mut reactor, mut events) = reactor();
    let waker = reactor.waker();
    waker.wake();
    reactor
        .wait(&mut events, Some(after_boot(Duration::from_millis(2))))
        .unwrap();
    assert!(events.woken());
    let start = monotonic_now();
    reactor
        .wait(&mut events, Some(Deadline::after(Duration::from_millis(10))))
        .unwrap();
    assert!(
        monotonic_now() - start >= 10_000_000,
        "the old deadline woke the new wait"
    );
}

#[test]
fn a_deadline_that_is_waited_for_again_ends_the_wait_and_one_given_up_does_not() {
    let (mut reactor, mut events) = reactor();
    let waker = reactor.waker();
    let wait = 5_000_000;
    let given_up = monotonic_now() + wait;
    let deadline = given_up + wait;
    for _ in 0..3 {
        waker.wake();
        reactor
            .wait(&mut events, Some(Deadline::Monotonic(given_up)))
            .unwrap();
        assert!(events.woken());
    }
    for _ in 0..2 {
        waker.wake();
        reactor
            .wait(&mut events, Some(Deadline::Monotonic(deadline)))
            .unwrap();
        assert!(events.woken());
    }
    while !events.deadline_passed() {
        reactor
            .wait(&mut events, Some(Deadline::Monotonic(deadline)))
            .unwrap();
    }
    assert!(monotonic_now() >= deadline, "the old deadline woke the new wait");
    // It stays passed, and others come after it.
    for at in [deadline, 0, deadline] {
        reactor.wait(&mut events, Some(Deadline::Monotonic(at))).unwrap();
        assert!(events.deadline_passed());
    }
    waker.wake();
    reactor.wait(&mut events, never()).unwrap();
    assert!(events.woken() && !events.deadline_passed());
}

#[test]
fn deadlines_pass_however_much_happens_meanwhile() {
    let (mut reactor, mut events) = reactor();
    let waker = reactor.waker();
    for deadline in [
        Deadline::after(Duration::from_millis(3)),
        after_boot(Duration::from_millis(3)),
    ] {
        while !{
            waker.wake();
            reactor.wait(&mut events, Some(deadline)).unwrap();
            events.deadline_passed()
        } {}
        let now = match deadline {
            Deadline::Monotonic(at) => (at, monotonic_now()),
            Deadline::Boot(at) => (at, boot_now()),
        };
        assert!(now.0 <= now.1);
    }
}

#[test]
fn of_two_deadlines_the_first_ends_the_wait() {
    let (mut reactor, mut events) = reactor();
    let soon = 3_000_000;
    let late = 60_000_000_000;
    for (monotonic, boot) in [(soon, late), (late, soon), (soon, late)] {
        let start = monotonic_now();
        let deadlines = Deadlines {
            monotonic: Some(start + monotonic),
            boot: Some(boot_now() + boot),
        };
        reactor.wait(&mut events, deadlines).unwrap();
        let waited = monotonic_now() - start;
        assert!((2_900_000..30_000_000_000).contains(&waited), "{waited} ns");
        assert!(events.ready().is_empty());
    }
}

#[test]
fn signals_are_events() {
    let (mut reactor, mut events) = reactor();
    reactor
        .watch_signals(&[Signal::User1, Signal::WindowChange])
        .unwrap();
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::USR1).unwrap();
    while events.signals().is_empty() {
        reactor.wait(&mut events, never()).unwrap();
    }
    assert_eq!(events.signals(), [Signal::User1]);
    reactor.wait(&mut events, now()).unwrap();
    assert!(events.signals().is_empty());
}

#[test]
fn its_own_tokens_are_refused() {
    let (reactor, _) = reactor();
    let (socket, _other) = UnixStream::pair().unwrap();
    for token in [WAKER, SIGNALS, MONOTONIC_ALARM, BOOT_ALARM] {
        let error = reactor
            .register(&socket, Token(token), Interest::Readable)
            .unwrap_err();
        assert!(matches!(error, ReactorError::ReservedToken(_)));
    }
}
