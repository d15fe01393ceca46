//! The event loop of a process that can open nothing more. A program of its own, because all of it is out of descriptors meanwhile.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ferretto_ipc::Reactor;
use ferretto_ipc::reactor::{Deadline, Events, boot_now};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn deadlines_pass_without_descriptors_for_their_timers() {
    let (mut reactor, mut events) = (Reactor::new().unwrap(), Events::new());
    let usual = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..usual
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let at = boot_now() + 20_000_000;
    let far = Deadline::after(Duration::from_secs(60));
    let mut waits = Vec::new();
    while boot_now() < at && waits.iter().all(Result::is_ok) {
        let deadlines = ferretto_ipc::reactor::Deadlines {
            boot: Some(at),
            ..far.into()
        };
        waits.push(
            reactor
                .wait(&mut events, deadlines)
                .map_err(|error| error.to_string()),
        );
    }
    setrlimit(Resource::Nofile, usual).unwrap();
    assert!(waits.iter().all(Result::is_ok), "{waits:?}");
    assert!(waits.len() < 10, "it did not sleep: {}", waits.len());

    // With descriptors again there is a timer.
    let at = boot_now() + 20_000_000;
    reactor.wait(&mut events, Deadline::Boot(at)).unwrap();
    assert!(boot_now() >= at);
}
