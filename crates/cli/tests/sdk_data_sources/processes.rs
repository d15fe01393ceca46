//! Services and applications that start late, end, and fork.

use std::collections::BTreeSet;

use super::application::Application;
use super::{CONFIG, assert_numbers, await_registration, events, numbers, registered, with_each_service};
use crate::support::{Program, Side};

#[test]
fn an_application_that_comes_first_is_recorded_when_the_service_comes_and_when_it_comes_again() {
    with_each_service(|system, side| {
        let mut application = Application::start(system);
        application.does("initialize");
        let status = loop {
            let status = application.does("status");
            if status != "starting" {
                break status;
            }
        };
        assert!(
            status.contains("not connected: cannot connect") && status.contains("producer"),
            "{status}"
        );
        for round in 0..3 {
            let traced = system.start(side, Program::Traced);
            await_registration(system);
            assert_eq!(
                application.does("status"),
                "system service: connected, no session records this process"
            );
            let recording = system.record(Side::Ours, CONFIG);
            application.does(&format!("write {round} 1"));
            assert_eq!(numbers(&recording.interrupt()), BTreeSet::from([round]));
            // The next recording ends with its service.
            let _recording = system.record(Side::Ours, CONFIG);
            application.does("await_active");
            application.does("write 5 10");
            system.end(traced);
            application.does("await_inactive");
            application.does("write 5 10");
        }
        application.ends();
    });
}

#[test]
fn data_of_an_application_that_ends_at_once_are_in_the_trace() {
    with_each_service(|system, side| {
        for ending in ["return", "exit", "abort"] {
            let mut application = registered(system, side);
            let recording = system.record(Side::Ours, CONFIG);
            application.does("write 0 1000");
            if ending == "abort" {
                // If the service does not know of the writer, its data are lost. After a flush it does.
                application.does("flush");
            }
            application.orders(&format!("write_and_end 1000 {ending}"));
            application.awaits_end();
            let trace = recording.interrupt();
            println!("{ending}");
            assert_numbers(&trace, 0..1010);
            system.end_all();
        }
    });
}

#[test]
fn a_forked_child_records_nothing_until_it_is_told_to_and_does_not_disturb_its_parent() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 10");
        // The child writes 1000 numbers and ends; then the parent goes on.
        application.does("fork");
        application.does("write 10 10");
        assert_numbers(&recording.interrupt(), 0..20);
        application.does("await_inactive");
        // This child sets up tracing for itself, and a session records it as well.
        application.does("fork_and_initialize");
        system.await_state(|state| {
            let named = |name: &str| {
                state
                    .producers
                    .iter()
                    .filter(|producer| producer.name.as_deref() == Some(name))
                    .count()
            };
            named("numbers") == 1 && named("child") == 1
        });
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 10");
        application.does("reap");
        let trace = recording.interrupt();
        assert_numbers(&trace, 0..20);
        assert_eq!(events(&trace).len(), 2, "sequences: one of each process");
        application.ends();
    });
}
