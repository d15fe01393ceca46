//! Sessions that end, daemons that vanish, programs that are killed, rings that are full.

use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use ferretto_heap_client::handshake::{MARK, Reason, SIGNAL, WhenFull};
use ferretto_heap_client::layout::header;
use rustix::net::RecvFlags;

use crate::daemon::{Daemon, PATIENCE, Record, alive, samples};
use crate::{RING_WORDS, lossless, of_malloc, output, program};

fn signal(child: &Child) {
    // SAFETY: sends a signal to a child of ours that was not waited for.
    let result = unsafe { libc::kill(child.id() as i32, SIGNAL) };
    assert_eq!(result, 0);
}

#[test]
fn nobody_listens_and_nothing_happens() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["classes", "1"], &daemon) else {
        return;
    };
    drop(daemon);
    output(program.spawn().expect("a program"));
}

#[test]
fn a_session_ends_and_a_signal_starts_another() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["until_told"], &daemon) else {
        return;
    };
    let mut child = program.spawn().expect("a program");
    let mut first = daemon.accept(&lossless(4096), RING_WORDS);
    alive(&first.until(|record| matches!(record, Record::Free { .. })));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("maps");
    assert!(maps.contains(&format!("/memfd:{MARK} ")), "{maps}");
    // A signal during a session changes nothing.
    signal(&child);
    first.until(|record| matches!(record, Record::Free { .. }));
    // If nobody has read for a second, it looks whether the daemon is there, and says nothing.
    while let Some(connection) = daemon.connection(Duration::ZERO) {
        let (said, _) = rustix::net::recv(&connection, &mut [0; 64][..], RecvFlags::empty()).expect("an end");
        assert_eq!(said, 0, "it has a session");
    }
    for _ in 0..3 {
        first.end();
        signal(&child);
        let mut next = daemon.accept(&lossless(1000), RING_WORDS);
        assert_eq!(next.reason, Reason::Signal);
        let mut releases = 0;
        let records = next.until(|record| {
            releases += usize::from(matches!(record, Record::Free { .. }));
            releases == 1000
        });
        // No release of an allocation of the session before.
        alive(&records);
        first = next;
    }
    drop(child.stdin.take());
    first.until_exit();
    output(child);
}

#[test]
fn a_refused_program_may_be_asked_again() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["until_told"], &daemon) else {
        return;
    };
    let mut child = program.spawn().expect("a program");
    let (connection, hello) = daemon.hello();
    assert_eq!(hello.reason, Reason::Startup);
    drop(connection);
    // The signal is lost if it comes while the program still asks.
    let mut next = loop {
        signal(&child);
        if let Some(connection) = daemon.connection(Duration::from_millis(100)) {
            break daemon
                .grant(connection, &lossless(4096), RING_WORDS)
                .expect("a client");
        }
    };
    assert_eq!(next.reason, Reason::Signal);
    next.until(|record| matches!(record, Record::Allocation(_)));
    drop(child.stdin.take());
    next.until_exit();
    output(child);
}

#[test]
fn a_program_that_is_killed_leaves_a_readable_ring() {
    let daemon = Daemon::new();
    let seed = std::env::var("FERRETTO_HEAP_KILL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("FERRETTO_HEAP_KILL_SEED={seed}");
    let mut random = seed;
    for _ in 0..40 {
        let Some(mut program) = program(&["endless"], &daemon) else {
            return;
        };
        let mut child = program.spawn().expect("a program");
        let mut client = daemon.accept(&lossless(200), RING_WORDS);
        random = u64::wrapping_mul(random, 6364136223846793005).wrapping_add(1442695040888963407);
        let mut count = 200 + random % 20_000;
        client.until(|_| {
            count -= 1;
            count == 0
        });
        child.kill().expect("killed");
        let rest = client.until_exit();
        assert!(rest.len() < RING_WORDS);
        child.wait().expect("dead");
    }
}

#[test]
fn the_daemon_vanishes_and_the_program_runs_on() {
    for when_full in [WhenFull::Lose, WhenFull::Wait { at_most_us: 0 }] {
        let daemon = Daemon::new();
        let Some(mut program) = program(&["fills", "20000"], &daemon) else {
            return;
        };
        let child = program.spawn().expect("a program");
        let client = daemon.accept(&of_malloc(1000, when_full), 1 << 14);
        drop(daemon);
        let began = Instant::now();
        assert_eq!(output(child), "done\n");
        assert!(began.elapsed() < PATIENCE);
        drop(client);
    }
}

#[test]
fn a_full_ring_loses_samples_and_counts_them() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "20000"], &daemon) else {
        return;
    };
    let mut child = program.spawn().expect("a program");
    let mut client = daemon.accept(&of_malloc(1000, WhenFull::Lose), 1 << 14);
    let mut line = [0; 5];
    child
        .stdout
        .as_mut()
        .expect("a pipe")
        .read_exact(&mut line)
        .expect("its word");
    let records = client.until_exit();
    output(child);
    let [lost, bytes, frees, untracked] = client.lost();
    let seen = samples(&records).filter(|sample| sample.size == 20_000).count() as u64;
    let lost_of_ours = bytes / 20_000;
    assert!(lost > 0 && seen > 0);
    assert!(
        (20_000..=20_000 + 5).contains(&(seen + lost_of_ours)),
        "{seen} seen, {lost_of_ours} lost"
    );
    assert_eq!(
        (frees, untracked),
        (0, 0),
        "a release finds space when a sample does not"
    );
    alive(&records);
}

#[test]
fn a_program_waits_for_space_if_the_session_wants_that() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "3000"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(1000), 1 << 12);
    let began = Instant::now();
    while client.header(header::WAITING) == 0 {
        assert!(began.elapsed() < PATIENCE, "the program does not wait");
        std::thread::yield_now();
    }
    let records = client.until_exit();
    output(child);
    assert_eq!(
        samples(&records).filter(|sample| sample.size == 20_000).count(),
        3000
    );
    assert_eq!(client.lost(), [0; 4]);
    assert_eq!(client.header(header::TIMED_OUT), 0);
    assert_ne!(client.header(header::WAITED_US), 0);
}

#[test]
fn a_program_that_has_waited_too_long_gives_up_and_says_so() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "3000"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let when_full = WhenFull::Wait { at_most_us: 50_000 };
    let client = daemon.accept(&of_malloc(1000, when_full), 1 << 12);
    assert_eq!(output(child), "done\n");
    assert_eq!(client.header(header::TIMED_OUT), 1);
    assert!(client.header(header::WAITED_US) >= 50_000);
}

#[test]
fn a_ring_that_is_none_is_refused() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["classes", "1"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let (connection, hello) = daemon.hello();
    let client = daemon.prepare(&connection, hello, RING_WORDS);
    client
        .ring()
        .header(header::MAGIC)
        .store(0, std::sync::atomic::Ordering::SeqCst);
    client.welcome(&connection, &lossless(1));
    output(child);
    assert_eq!(client.header(header::WRITE), 0);
}
