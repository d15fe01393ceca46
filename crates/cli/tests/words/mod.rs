//! The subcommands of `ferretto` that answer questions, for users and scripts: the real program, with real services and producers.

mod config_new;
mod list;
mod status;
mod tables;
mod tracebox;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::peers::{Producer, introduction};
use crate::support::wire::registration_of;
use crate::support::{Programs, System};
use ferretto_proto::messages::{DataSourceDescriptor, TrackEventCategory, TrackEventDescriptor};

/// Runs `ferretto` with these arguments and this system's sockets.
fn ferretto(system: &System<'_>, words: &[&str]) -> Output {
    system
        .command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "ferretto.log")
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs `ferretto` with a subcommand and an unknown flag.
fn assert_refuses_flags(system: &System<'_>, words: &[&str]) {
    let (printed, said, code) = outcome(&ferretto(system, &[words, &["--gibberish"]].concat()));
    assert_eq!((printed.as_str(), code), ("", Some(2)), "{said}");
    let name = words[0];
    assert!(
        said.starts_with(&format!("ferretto {name}: unrecognized option '--gibberish': ")),
        "{said}"
    );
}

/// Returns stdout, stderr and the exit code.
fn outcome(output: &Output) -> (String, String, Option<i32>) {
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

/// Returns the [`outcome`] of a command that starts with `setpriv`. `None`, after saying that the test is skipped, if that is impossible.
fn outcome_as_another_user(command: &mut Command) -> Option<(String, String, Option<i32>)> {
    let Ok(output) = command.output() else {
        println!("skipped: setpriv is not installed");
        return None;
    };
    let (printed, said, code) = outcome(&output);
    if said.starts_with("setpriv:") {
        println!("skipped: {said}");
        return None;
    }
    Some((printed, said, code))
}

/// A program that has registered these categories: names, tags, descriptions.
fn program(system: &System<'_>, name: &str, categories: &[(&str, &[&str], &str)]) -> Producer {
    let mut producer = Producer::new(system, &introduction(name), None);
    offer(&mut producer, "track_event", categories);
    producer
}

/// Registers a data source with these categories.
fn offer(producer: &mut Producer, source: &str, categories: &[(&str, &[&str], &str)]) {
    let categories = categories
        .iter()
        .map(|(name, tags, description)| TrackEventCategory {
            name: Some((*name).to_owned()),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            description: (!description.is_empty()).then(|| (*description).to_owned()),
            ..Default::default()
        });
    let descriptor = DataSourceDescriptor {
        name: Some(source.to_owned()),
        handles_incremental_state_clear: Some(true),
        track_event_descriptor: TrackEventDescriptor {
            available_categories: categories.collect(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    let request = registration_of(descriptor);
    producer.client.call("RegisterDataSource", &request);
    producer.sync();
}

#[test]
fn profilers_exit_with_2_if_the_flags_are_wrong_and_with_1_if_the_machine_lacks_something() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let cases: [(&[&str], i32, &str); 11] = [
        (&["heap"], 2, "whose memory?"),
        (&["heap", "-i", "0", "--all"], 2, "at least 1 byte"),
        (&["heap", "-d", "10", "--all"], 2, "10s or 10ms"),
        (&["heap", "-o", "a.json", "--all"], 2, ".pb.gz"),
        (&["heap", "android"], 2, "heap_profile android"),
        (&["heap", "-p", "2147483647"], 1, "no such process"),
        (&["profile", "-F", "0"], 2, "-F"),
        (&["profile", "-e", "cpu-clok"], 2, "there is no event"),
        (&["profile", "-d", "five"], 2, "--duration"),
        (&["profile", "-o", "a.txt"], 2, "--format"),
        (&["profile", "-p", "2147483647"], 1, "no such process"),
    ];
    for (words, expected, why) in cases {
        let (printed, said, code) = outcome(&ferretto(&system, words));
        assert_eq!(
            (printed.as_str(), code),
            ("", Some(expected)),
            "{words:?}: {said}"
        );
        assert!(said.contains(why), "{words:?}: {said}");
    }
}
