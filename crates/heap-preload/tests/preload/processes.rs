//! Children, threads that end, signals, other languages: programs run as they would without the library.

use std::process::Stdio;
use std::time::Duration;

use ferretto_heap_client::handshake::Reason;

use crate::daemon::{Daemon, Record, alive, samples};
use crate::{RING_WORDS, lossless, output, preloaded, program};

fn count(records: &[Record], size: u64) -> usize {
    samples(records).filter(|sample| sample.size == size).count()
}

/// Runs a program in one session, in which nothing may be lost.
fn run(arguments: &[&str], interval: u64) -> Option<Vec<Record>> {
    let daemon = Daemon::new();
    let child = program(arguments, &daemon)?.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(interval), RING_WORDS);
    assert_eq!(client.reason, Reason::Startup);
    let records = client.until_exit();
    output(child);
    assert_eq!(client.lost(), [0; 4]);
    Some(records)
}

#[test]
fn a_forked_child_asks_for_a_session_of_its_own() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["forks"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut parent = daemon.accept(&lossless(50_000), RING_WORDS);
    let mut forked = daemon.accept(&lossless(50_000), RING_WORDS);
    assert_eq!((parent.reason, forked.reason), (Reason::Startup, Reason::Fork));
    assert_ne!(parent.pid, forked.pid);
    let forked = forked.until_exit();
    let parent = parent.until_exit();
    output(child);
    // The child's first allocation asks, and is no sample itself.
    assert_eq!((count(&forked, 50_001), count(&forked, 50_002)), (0, 0));
    assert!(samples(&forked).next().is_some());
    assert_eq!((count(&parent, 50_001), count(&parent, 50_002)), (0, 1));
    alive(&forked);
    alive(&parent);
}

#[test]
fn a_child_that_is_refused_runs_on() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["forks"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut parent = daemon.accept(&lossless(50_000), RING_WORDS);
    let (connection, hello) = daemon.hello();
    assert_eq!(hello.reason, Reason::Fork);
    drop(connection);
    parent.until_exit();
    output(child);
}

#[test]
fn a_child_of_clone_reports_nothing_and_one_of_vfork_what_its_parent_keeps() {
    let Some(records) = run(&["clones"], 50_000) else {
        return;
    };
    let counts = [50_001, 50_002, 50_003, 50_004, 50_005].map(|size| count(&records, size));
    assert_eq!(counts, [1, 1, 0, 1, 1]);
    let alive = alive(&records);
    let sizes = alive.values().map(|sample| sample.size);
    let mut left: Vec<u64> = sizes.filter(|size| (50_001..50_006).contains(size)).collect();
    left.sort_unstable();
    assert_eq!(left, [50_002, 50_005]);
}

#[test]
fn a_program_that_a_child_executes_starts_anew() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["execs"], &daemon) else {
        return;
    };
    let child = program.stdout(Stdio::null()).spawn().expect("a program");
    let mut parent = daemon.accept(&lossless(50_000), RING_WORDS);
    let mut executed = daemon.accept(&lossless(50_000), RING_WORDS);
    assert_eq!(executed.reason, Reason::Startup);
    assert!(samples(&executed.until_exit()).next().is_some());
    let parent = parent.until_exit();
    output(child);
    assert_eq!((count(&parent, 50_001), count(&parent, 50_002)), (1, 1));
}

#[test]
fn allocations_before_and_after_main_and_in_ends_of_threads_are_reported() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["thread_ends"], &daemon) else {
        return;
    };
    let child = program.env("EDGES", "1").spawn().expect("a program");
    let mut client = daemon.accept(&lossless(60_000), RING_WORDS);
    let records = client.until_exit();
    output(child);
    let counts = [60_001, 60_002, 60_003, 60_004].map(|size| count(&records, size));
    assert_eq!(counts, [1, 200, 1, 200]);
    let mut left: Vec<u64> = alive(&records)
        .into_values()
        .map(|sample| sample.size)
        .filter(|size| (60_000..60_010).contains(size))
        .collect();
    left.sort_unstable();
    assert_eq!(left, [60_001, 60_003]);
}

#[test]
fn signal_handlers_on_stacks_of_their_own_are_sampled() {
    let Some(records) = run(&["signals"], 1) else {
        return;
    };
    assert_eq!(count(&records, 70_001), 200);
    let handler = samples(&records)
        .find(|sample| sample.size == 70_001)
        .expect("a sample");
    assert!(!handler.stack.is_empty());
    assert_eq!(
        alive(&records)
            .values()
            .filter(|sample| sample.size == 70_001)
            .count(),
        0
    );
}

#[test]
fn a_program_may_close_all_descriptors() {
    let Some(records) = run(&["closes"], 50_000) else {
        return;
    };
    assert_eq!((count(&records, 50_001), count(&records, 50_002)), (1, 1));
}

#[test]
fn a_program_without_memory_gets_null() {
    // Nothing is sampled while there is no session, and a session changes nothing.
    run(&["exhausts"], 1 << 20);
    let daemon = Daemon::new();
    if let Some(mut program) = program(&["exhausts"], &daemon) {
        drop(daemon);
        output(program.spawn().expect("a program"));
    }
}

#[test]
fn libraries_come_and_go() {
    let Some(records) = run(&["loads"], 50_000) else {
        return;
    };
    assert_eq!(count(&records, 50_001), 20);
    assert_eq!(
        alive(&records)
            .values()
            .filter(|sample| sample.size == 50_001)
            .count(),
        0
    );
}

#[test]
fn programs_in_other_languages_run_as_ever() {
    let daemon = Daemon::new();
    let programs: [(&str, &[&str], &str); 3] = [
        (
            "python3",
            &[
                "-c",
                "import json, threading\nprint(len(json.dumps([str(i) for i in range(100000)])))",
            ],
            "888890\n",
        ),
        (
            "perl",
            &[
                "-e",
                "my %h; $h{$_} = 'x' x 100 for 1..20000; print scalar(keys %h), \"\\n\"",
            ],
            "20000\n",
        ),
        (
            "bash",
            &["-c", "for i in 1 2 3; do echo $(echo $i | cat); done"],
            "1\n2\n3\n",
        ),
    ];
    for (name, arguments, expected) in programs {
        let mut command = preloaded(name, &daemon);
        let Ok(child) = command.args(arguments).spawn() else {
            println!("skipped: there is no {name}");
            continue;
        };
        let pid = child.id();
        let mut clients = Vec::new();
        // Wrappers and children connect too.
        let output = std::thread::scope(|scope| {
            let output = scope.spawn(|| output(child));
            while !output.is_finished() {
                if let Some(connection) = daemon.connection(Duration::from_millis(20)) {
                    clients.extend(daemon.grant(connection, &lossless(4096), RING_WORDS));
                }
                for client in &mut clients {
                    while client.next().is_some() {}
                }
            }
            output.join().expect("no panic")
        });
        assert_eq!(output, expected, "{name}");
        assert!(
            clients.iter().any(|client| client.pid == pid),
            "{name} has connected"
        );
    }
}
