//! `ferretto status`.

use std::collections::HashSet;

use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
use serde_json::Value;

use super::{assert_refuses_flags, ferretto, outcome, program, text};
use crate::support::schema::check;
use crate::support::service::ScriptedService;
use crate::support::tracefs::Tracefs;
use crate::support::{Program, Programs, Side, System};

/// Returns the output for scripts, and the exit code.
fn status(system: &System<'_>) -> (Value, Option<i32>) {
    let output = ferretto(system, &["status", "--json"]);
    assert_eq!(text(&output.stderr), "");
    (check("status", &output.stdout), output.status.code())
}

#[test]
fn without_a_service_the_exit_code_is_that_of_service_managers() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let (value, code) = status(&system);
    assert_eq!(
        (&value["running"], &value["service"], code),
        (&false.into(), &Value::Null, Some(3))
    );
    assert_eq!(value["address"], system.consumer_socket().to_str().unwrap());

    // The socket of a killed service.
    let traced = system.start(Side::Ours, Program::Traced);
    system.end_with(traced, rustix::process::Signal::KILL);
    let (printed, said, code) = outcome(&ferretto(&system, &["status"]));
    assert!(
        printed.starts_with(&format!(
            "service    none listens at {}, only the socket of one that has ended\n",
            system.consumer_socket().display()
        )),
        "{printed}"
    );
    assert_eq!((said.as_str(), code), ("", Some(3)));
}

#[test]
fn a_listener_that_is_no_service_is_neither_running_nor_not() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    static PORTS: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
    let service = ScriptedService::listen(&system.consumer_socket());
    let (value, code) = std::thread::scope(|scope| {
        scope.spawn(|| service.serve(&PORTS, |_| None));
        status(&system)
    });
    assert_eq!((&value["running"], code), (&Value::Null, Some(4)));
    let problem = value["problem"].as_str().unwrap();
    assert!(
        problem.contains("gave no answer that could be used: "),
        "{problem}"
    );
}

#[test]
fn status_lists_a_services_clients_and_sessions() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let traced = system.start(Side::Ours, Program::Traced);
    let (value, code) = status(&system);
    assert_eq!((&value["running"], code), (&true.into(), Some(0)));
    assert_eq!(value["service"]["pid"], traced);
    assert_eq!(value["probes"], Value::Null);
    assert_refuses_flags(&system, &["status"]);
    let (printed, _, _) = outcome(&ferretto(&system, &["status"]));
    assert!(
        printed.contains("\nprobes     not connected: nobody offers linux.ftrace\n"),
        "{printed}"
    );
    assert!(printed.contains("\nsessions   none runs\n"), "{printed}");

    let probes = system.start(Side::Ours, Program::TracedProbes);
    let _program = program(&system, "com.example.game", &[("rendering", &[], "")]);
    let recording = system.record(
        Side::Ours,
        "unique_session_name: \"mine\" buffers { size_kb: 64 } data_sources { config { name: \"linux.system_info\" } }",
    );
    let (value, code) = status(&system);
    assert_eq!(code, Some(0));
    assert_eq!(value["probes"]["pid"], probes);
    assert_eq!(value["producers"][0]["sources"][0], "linux.frozen_ftrace");
    assert_eq!(value["producers"][1]["name"], "com.example.game");
    assert_eq!(value["sessions"][0]["name"], "mine");
    let strangers: HashSet<u64> = value["other_daemons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|daemon| daemon["pid"].as_u64().unwrap())
        .collect();
    assert!(
        strangers.is_disjoint(&HashSet::from([traced.into(), probes.into()])),
        "{value:#}"
    );

    let (printed, said, code) = outcome(&ferretto(&system, &["status"]));
    assert_eq!((said.as_str(), code), ("", Some(0)));
    for part in [
        format!("service    traced (pid {traced}) of "),
        format!("\nprobes     traced_probes (pid {probes})\n"),
        "\nproducers  2 processes connected\n".to_owned(),
        "\nsessions   these run:\n".to_owned(),
    ] {
        assert!(printed.contains(&part), "{part:?}\n{printed}");
    }
    recording.interrupt();
}

#[test]
fn upstreams_service_is_reported_as_well() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let mut system = System::new(&programs);
    let traced = system.start(Side::Upstream, Program::Traced);
    let recording = system.record(
        Side::Ours,
        "unique_session_name: \"mine\" buffers { size_kb: 64 }",
    );
    let (value, code) = status(&system);
    assert_eq!((&value["running"], code), (&true.into(), Some(0)));
    assert_eq!(value["service"]["pid"], traced);
    assert_eq!(value["sessions"][0]["buffers_used"], Value::Null);
    assert_eq!(value["sessions"][0]["name"], "mine");
    recording.interrupt();
}

#[test]
fn users_of_ftrace_are_listed() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let probes = system.start(Side::Ours, Program::TracedProbes);
    let recording = system.record(
        Side::Ours,
        "buffers { size_kb: 1024 } data_sources { config { name: \"linux.ftrace\" ftrace_config { ftrace_events: \
         \"sched/sched_switch\" } } }",
    );
    let (value, _) = status(&system);
    let ftrace = &value["ftrace"];
    let events = ftrace["events"].as_array().unwrap();
    assert!(events.contains(&"sched/sched_switch".into()), "{ftrace:#}");
    let readers = ftrace["readers"].as_array().unwrap();
    assert!(readers.iter().any(|reader| reader["pid"] == probes), "{ftrace:#}");
    // Other readers, which have instances of their own, may be listed before it.
    let (printed, _, _) = outcome(&ferretto(&system, &["status"]));
    assert!(
        printed.contains(&format!(
            " traced_probes (pid {probes}) reads the kernel's buffers\n"
        )),
        "{printed}"
    );
    recording.interrupt();
}
