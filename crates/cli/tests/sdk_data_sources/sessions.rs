//! The data of sessions: everything written from the start of the data source until its stop.

use std::collections::BTreeSet;

use super::application::Application;
use super::{
    CONFIG, STALL, assert_numbers, await_registration, config_with, events, numbers, registered, texts,
    with_each_service,
};
use crate::support::address::free_address;
use crate::support::{Program, Recording, Side};

#[test]
fn data_of_ended_and_running_threads_are_in_the_trace() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        application.does("write 100000 10");
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 8 5000");
        application.does("write 40000 1000");
        let trace = recording.interrupt();
        assert_numbers(&trace, 0..41000);
        let events = events(&trace);
        assert_eq!(events.len(), 9, "sequences: a thread each");
        for sequence in events.values() {
            assert_eq!(sequence[0].str.as_deref(), Some("introduction"));
            let counters: Vec<u64> = sequence[1..].iter().map(|event| event.counter.unwrap()).collect();
            assert_eq!(counters, (1..=counters.len() as u64).collect::<Vec<_>>());
        }
        application.ends();
    });
}

#[test]
fn each_session_gets_the_data_written_while_it_ran() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let first = system.record(Side::Ours, CONFIG);
        application.does("write 0 100");
        let second = system.record(Side::Ours, CONFIG);
        application.does("write 100 100");
        let first = first.interrupt();
        application.does("write 200 100");
        let second = second.interrupt();
        application.does("await_inactive");
        application.does("write 300 100");
        let third = system.record(Side::Ours, CONFIG);
        application.does("write 400 100");
        let third = third.interrupt();
        assert_numbers(&first, 0..200);
        assert_numbers(&second, 100..300);
        assert_numbers(&third, 400..500);
        application.ends();
    });
}

#[test]
fn there_is_room_for_eight_instances_and_sessions_do_not_wait_for_a_ninth() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let sources: String = (0..9)
            .map(|number| {
                format!(
                    r#"data_sources {{ config {{ name: "ferretto.test.numbers" legacy_config: "{number}" }} }}"#
                )
            })
            .collect();
        let recording = system.record(Side::Ours, &format!("buffers {{ size_kb: 1024 }} {sources}"));
        application.does("write 7 1");
        let trace = recording.interrupt();
        let events = events(&trace);
        assert_eq!(events.len(), 8);
        assert!(events.values().all(|sequence| sequence.len() == 2), "{events:?}");
        // The threads' writers have been released.
        application.does("await_inactive");
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 1");
        assert_numbers(&recording.interrupt(), 0..1);
        application.ends();
    });
}

#[test]
fn data_written_while_stopping_are_in_the_trace() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = system.record(Side::Ours, &config_with(r#"legacy_config: "says goodbye""#));
        assert_eq!(texts(&recording.interrupt()), ["introduction", "goodbye"][1..]);
        // The service waits for the stop, however late the application gets a processor.
        let config = config_with(r#"legacy_config: "stops late""#) + " data_source_stop_timeout_ms: 120000";
        let recording = system.record(Side::Ours, &config);
        application.does("write 0 1");
        recording_signal(&recording);
        application.does("await_held");
        application.does("write 1 1");
        application.does("flush");
        application.does("release");
        assert_eq!(numbers(&recording.finish()), BTreeSet::from([0, 1]));
        application.ends();
    });
}

fn recording_signal(recording: &Recording) {
    let pid = rustix::process::Pid::from_raw(recording.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn a_session_starts_when_the_data_source_says_so_and_though_it_panics() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = std::thread::scope(|scope| {
            let config = config_with(r#"legacy_config: "starts late""#);
            let system = &*system;
            let recording = scope.spawn(move || system.record(Side::Ours, &config));
            application.does("await_held");
            assert!(!recording.is_finished());
            application.does("release");
            recording.join().unwrap()
        });
        drop(recording);
        let recording = system.record(Side::Ours, &config_with(r#"legacy_config: "panics""#));
        application.does("write 0 5");
        assert_eq!(numbers(&recording.interrupt()).len(), 5);
        application.ends();
    });
}

#[test]
fn a_config_may_have_the_application_wait_for_room() {
    with_each_service(|system, side| {
        system.start(side, Program::Traced);
        let mut application = Application::start(system);
        application.does("small_memory");
        await_registration(system);
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 4 50000");
        assert_numbers(&recording.interrupt(), 0..200_000);
        application.ends();
    });
}

#[test]
fn incremental_state_begins_anew_when_the_service_clears_it() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let config = format!("{CONFIG} incremental_state_config {{ clear_period_ms: 100 }}");
        let recording = system.record(Side::Ours, &config);
        application.does("await_introductions 4");
        let trace = recording.interrupt();
        let introductions = texts(&trace).len();
        assert!(introductions >= 4, "{introductions}");
        application.ends();
    });
}

#[test]
fn a_trigger_reaches_a_session_though_the_application_is_not_connected_yet() {
    with_each_service(|system, side| {
        system.start(side, Program::Traced);
        let config = format!(
            "{CONFIG} trigger_config {{ trigger_mode: STOP_TRACING trigger_timeout_ms: 60000 \
             triggers {{ name: \"enough\" stop_delay_ms: 1 }} }}"
        );
        let recording = system.record(Side::Ours, &config);
        let mut application = Application::start(system);
        application.does("initialize");
        application.does("trigger enough");
        recording.finish();
        application.ends();
    });
}

#[test]
fn a_data_source_that_is_withdrawn_stops_and_is_gone_from_the_service() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 10");
        application.does("unregister");
        application.does("await_inactive");
        application.does("write 10 10");
        system.await_state(|state| {
            !state
                .data_sources
                .iter()
                .any(|source| source.ds_descriptor.name.as_deref() == Some("ferretto.test.numbers"))
        });
        assert_numbers(&recording.interrupt(), 0..10);
        application.ends();
    });
}

#[test]
fn the_sdks_own_thread_may_wait_for_room_as_any_other() {
    with_each_service(|system, side| {
        system.start(side, Program::Traced);
        let mut application = Application::start(system);
        application.does("small_memory");
        await_registration(system);
        let config = config_with(&format!(r#"{STALL} legacy_config: "has much to say at last""#));
        let recording = system.record(Side::Ours, &config);
        assert_numbers(&recording.interrupt(), 0..50_000);
        application.ends();
    });
}

#[test]
fn where_no_memory_can_be_shared_packets_go_over_the_network() {
    with_each_service(|system, side| {
        let address = free_address();
        let sockets = format!("{},{address}", system.producer_socket().display());
        system.start_at(side, Program::Traced, &sockets);
        let mut application = Application::start(system);
        application.does(&format!("connect_to {address}"));
        await_registration(system);
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 4 20000");
        assert_numbers(&recording.interrupt(), 0..80_000);
        application.ends();
    });
}
