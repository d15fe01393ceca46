//! The subcommands of `ferretto` that answer questions, for users and scripts: the real program, with real services and producers.

mod config_new;
mod list;
mod status;
mod tracebox;

use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::System;
use crate::support::peers::{Producer, introduction};
use ferretto_proto::messages::{
    DataSourceDescriptor, Message, RegisterDataSourceRequest, TrackEventCategory, TrackEventDescriptor,
};

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
    let request = RegisterDataSourceRequest {
        data_source_descriptor: descriptor.into(),
        ..Default::default()
    };
    producer
        .client
        .call("RegisterDataSource", &request.encode_to_vec());
    producer.sync();
}
