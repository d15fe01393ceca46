//! The messages of daemons, and their format on different outputs.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::daemons::{daemon, run, unread_pipe};
use crate::support::{Program, Programs, Side, System};

#[test]
fn a_daemon_runs_without_a_reader_of_its_log() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.stderr(unread_pipe());
    });
    system.state();
    system.assert_running();
}

#[test]
fn each_line_of_a_log_has_a_time_and_a_level() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with(Side::Ours, Program::Traced, |command| {
        command.arg("word");
    });
    let second = run(&system, daemon(&system, Side::Ours, Program::Traced, &[]));
    let log = system.log("traced.log");
    let levels = |text: &str| -> Vec<char> {
        let level = |line: &str| {
            let (time, rest) = line
                .strip_prefix('[')
                .and_then(|line| line.split_once("] "))
                .unwrap();
            let (seconds, milliseconds) = time.split_once('.').unwrap();
            assert!(seconds.len() >= 5 && milliseconds.len() == 3, "{line}");
            assert!(
                time.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()),
                "{line}"
            );
            assert_eq!(rest.as_bytes()[1], b' ', "{line}");
            rest.chars().next().unwrap()
        };
        text.lines().map(level).collect()
    };
    assert_eq!(levels(&log), ['W', 'I'], "{log}");
    assert_eq!(levels(&second.stderr), ['E'], "{second:?}");
    assert!(
        second.stderr.contains("] E traced: cannot listen on"),
        "{second:?}"
    );
}

#[test]
fn a_quiet_daemon_logs_no_information() {
    let programs = Programs::ours();
    let cases: [(&[&str], Option<&str>, &[&str]); 6] = [
        (&[], None, &["W", "I"]),
        (&["--quiet"], None, &["W"]),
        (&["--q"], Some("info"), &["W"]),
        (&[], Some("warning"), &["W"]),
        (&[], Some("error"), &[]),
        (&[], Some("loud"), &["W", "W", "I"]),
    ];
    for (words, variable, expected) in cases {
        let mut system = System::new(&programs);
        system.start_with(Side::Ours, Program::Traced, |command| {
            command.arg("word").args(words);
            if let Some(level) = variable {
                command.env("FERRETTO_LOG", level);
            }
        });
        let log = system.log("traced.log");
        let levels: Vec<&str> = log.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(levels, expected, "{words:?} {variable:?}: {log}");
    }
}

#[test]
fn the_journal_gets_levels_and_no_times() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let log = File::create(system.path("journal")).unwrap();
    let identity = log.metadata().unwrap();
    system.start_with(Side::Ours, Program::Traced, |command| {
        command
            .arg("word")
            .env("JOURNAL_STREAM", format!("{}:{}", identity.dev(), identity.ino()))
            .stderr(log);
    });
    let said = system.log("journal");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("<4>traced: "), "{said}");
    assert!(lines[1].starts_with("<6>traced is listening on "), "{said}");
}
