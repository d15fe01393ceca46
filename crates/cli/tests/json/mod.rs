//! JSON for scripts: the output of each command matches its schema in `docs/schema`, and `docs/json.md` describes the same fields.

use std::path::Path;
use std::process::Output;

use crate::support::schema::{self, docs, table};
use crate::support::{Program, Programs, Side, System, file_stems};
use serde_json::Value;

/// The mark before the table of a schema's fields, followed by the schema's name.
const TABLE: &str = "<!-- fields of ";
const END: &str = "<!-- end of fields -->\n";

#[test]
fn the_documentation_has_the_fields_of_every_schema() {
    let path = docs().join("json.md");
    let now = std::fs::read_to_string(&path).unwrap();
    let (mut fresh, mut documented) = (String::new(), Vec::new());
    let mut rest = now.as_str();
    while let Some((before, after)) = rest.split_once(TABLE) {
        let (name, after) = after.split_once(" -->\n").unwrap();
        let (_, after) = after.split_once(END).unwrap();
        fresh += &format!("{before}{TABLE}{name} -->\n{}{END}", table(name));
        documented.push(name.to_owned());
        rest = after;
    }
    fresh += rest;
    if std::env::var_os("FERRETTO_WRITE_JSON_DOCS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    assert!(
        fresh == std::fs::read_to_string(&path).unwrap(),
        "docs/json.md is out of date: run this test with FERRETTO_WRITE_JSON_DOCS=1"
    );
    let schemas = file_stems(&docs().join("schema"));
    documented.sort();
    assert!(
        documented.iter().eq(&schemas),
        "each schema has a section in docs/json.md"
    );
}

fn ferretto(system: &System<'_>, words: &[&str]) -> Output {
    let program = system
        .program(Side::Ours, Program::Perfetto)
        .with_file_name("ferretto");
    let mut command = system.command(Path::new(&program), "ferretto.log");
    command.args(words);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command.output().unwrap()
}

fn names(of: &Value) -> Vec<&str> {
    let names = of.as_array().unwrap().iter();
    names.map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn the_state_of_any_service_is_printed() {
    let upstreams = Programs::of_both();
    let ours = Programs::ours();
    let services = upstreams
        .as_ref()
        .map(|programs| (programs, Side::Upstream))
        .into_iter()
        .chain([(&ours, Side::Ours)]);
    for (programs, service) in services {
        let system = System::with_daemons(programs, service, Side::Ours);
        let recording = system.record(
            Side::Ours,
            "buffers { size_kb: 64 } buffers { size_kb: 128 } unique_session_name: \"mine\" bugreport_score: 7\n\
             data_sources { config { name: \"linux.sys_stats\" } } duration_ms: 600000",
        );
        let output = ferretto(&system, &["--query", "--json"]);
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), &b""[..])
        );
        let state = schema::check("query", &output.stdout);
        assert!(
            state["service"].as_str().unwrap().starts_with("Perfetto v"),
            "{state}"
        );
        assert_eq!(
            (&state["session_count"], &state["started_session_count"]),
            (&1.into(), &1.into())
        );
        assert!(
            names(&state["producers"]).contains(&"perfetto.traced_probes"),
            "{state}"
        );
        assert!(
            names(&state["data_sources"]).contains(&"linux.sys_stats"),
            "{state}"
        );
        let session = &state["sessions"][0];
        assert_eq!(session["name"], "mine");
        assert_eq!(session["state"], "STARTED");
        assert_eq!(session["buffers"], serde_json::json!([65_536, 131_072]));
        assert_eq!(session["duration_ms"], 600_000);
        assert_eq!(session["bugreport_score"], 7);
        recording.interrupt();
    }
}

#[test]
fn without_a_service_it_is_the_one_that_ferretto_starts() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let output = ferretto(&system, &["--query", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let state = schema::check("query", &output.stdout);
    assert_eq!(state["sessions"], serde_json::json!([]));
    assert!(said.contains("no tracing service is running"), "{said}");
}

#[test]
fn json_belongs_to_a_query_of_ferretto() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for (words, said) in [
        (&["--json", "-o", "x", "-t", "1s"][..], "--query"),
        (&["--query-raw", "--json"], "--query-raw"),
    ] {
        let output = ferretto(&system, words);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(1), &b""[..])
        );
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            complaint.contains("--json") && complaint.contains(said),
            "{complaint}"
        );
    }
    // Upstream's program has no such flag, and abbreviations of its flags keep their meaning.
    let perfetto = system.program(Side::Ours, Program::Perfetto);
    let output = system
        .command(&perfetto, "perfetto.log")
        .args(["--query", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn doctor_has_the_same_findings_for_scripts_and_people() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let for_people = ferretto(&system, &["doctor"]);
    let output = ferretto(&system, &["doctor", "--json"]);
    assert_eq!(output.status.code(), for_people.status.code());
    let found = schema::check("doctor", &output.stdout);
    assert_eq!(found["recording_works"], output.status.success());
    let text = String::from_utf8(for_people.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    assert!(findings.len() > 5, "{found:#}");
    // Other programs may use ftrace meanwhile, so its findings may differ.
    for finding in findings.iter().filter(|finding| finding["topic"] != "ftrace") {
        let head = format!(
            "{:<8}{:<11}",
            finding["mark"].as_str().unwrap(),
            finding["topic"].as_str().unwrap()
        );
        assert!(text.lines().any(|line| line.starts_with(&head)), "{head}: {text}");
        for command in finding["mend"].as_array().unwrap() {
            assert!(text.contains(command.as_str().unwrap()), "{command}: {text}");
        }
    }
}

#[test]
fn a_command_that_fails_prints_nothing_for_scripts_to_trip_over() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let trace = system.path("no.pftrace");
    std::fs::write(&trace, "no trace").unwrap();
    for words in [
        &["info", "--json", trace.to_str().unwrap()][..],
        &["info", "--json", "/missing"],
        &["--query-raw", "--json"],
    ] {
        let output = ferretto(&system, words);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(1), &b""[..]),
            "{words:?}"
        );
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
}
