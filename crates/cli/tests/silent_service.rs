//! A program listens at the service's address, accepts, and says nothing: nobody waits for it without limit, and nobody is held up by it.

use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::{PATIENCE, Program, Programs, Running, Side, System, await_that};

const SAID: &str = "has not answered within 30 s";

/// Takes clients, and keeps them without a word. The thread ends with the test's process.
fn listen(path: &std::path::Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let mut kept: Vec<UnixStream> = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            kept.push(stream);
        }
    });
}

#[test]
fn consumers_and_producers_give_up_a_silent_service_and_say_so() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    listen(&system.consumer_socket());
    listen(&system.producer_socket());
    // All wait at the same time.
    let probes = system.program(Side::Ours, Program::TracedProbes);
    let mut probes = Running(system.command(&probes, "probes.log").spawn().unwrap());
    let mut consumers = Vec::new();
    for (log, words) in [
        (
            "record.log",
            &["-t", "1s", "-o", "trace", "sched/sched_switch"][..],
        ),
        ("attach.log", &["--attach", "key"]),
    ] {
        let mut command = system.command(&system.program(Side::Ours, Program::Perfetto), log);
        let child = command.current_dir(system.path("")).args(words).spawn();
        consumers.push((log, Running(child.unwrap())));
    }
    for (log, consumer) in &mut consumers {
        let status = consumer.wait(PATIENCE);
        let said = system.log(log);
        let status = status.unwrap_or_else(|| panic!("{log}: it goes on: {said}"));
        assert!(!status.success(), "{log}: {said}");
        assert!(said.contains(SAID), "{log}: {said}");
    }
    // The producer goes on trying.
    await_that("the probes say that nobody answers", || {
        system.log("probes.log").contains(SAID)
    });
    assert!(probes.0.try_wait().unwrap().is_none(), "the probes have ended");
}
