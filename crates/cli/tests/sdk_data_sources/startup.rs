//! Startup tracing: data recorded before a session requests them.

use ferretto_ipc::host::Reply;
use ferretto_ipc::ports::{PRODUCER_PORT, ProducerMethod, ServiceDescriptor};
use ferretto_proto::messages::InitializeConnectionResponse;
use ferretto_proto::messages::Message;

use super::application::Application;
use super::{
    CONFIG, STALL, assert_numbers, await_registration, config_with, events, numbers, registered,
    with_each_service,
};
use crate::support::service::ScriptedService;
use crate::support::{Program, Programs, Side, System};

#[test]
fn startup_tracing_is_taken_over_by_the_session_that_asks_for_the_same() {
    with_each_service(|system, side| {
        let mut application = Application::start(system);
        application.does("initialize");
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("threads 4 100");
        application.does("write 400 100");
        system.start(side, Program::Traced);
        await_registration(system);
        let recording = system.record(Side::Ours, CONFIG);
        assert_eq!(application.does("startup_outcome"), "Adopted");
        application.does("write 500 100");
        let trace = recording.interrupt();
        assert_numbers(&trace, 0..600);
        assert_eq!(events(&trace).len(), 5, "sequences: those begun at startup go on");
        // The next session is an ordinary one.
        application.does("await_inactive");
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 7");
        assert_eq!(numbers(&recording.interrupt()).len(), 7);
        application.ends();
    });
}

#[test]
fn startup_tracing_with_a_connected_service_is_kept_apart_from_other_sessions() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        let other = system.record(Side::Ours, &config_with(r#"legacy_config: "other""#));
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("write 0 100");
        // A session with another config does not take over the startup session.
        assert_eq!(numbers(&other.interrupt()).len(), 100);
        assert!(!application.does("status").contains("the session that came"));
        let another = system.record(Side::Ours, &config_with(r#"legacy_config: "other""#));
        let status = application.does("status");
        let difference =
            "for startup (not for the session that came: `legacy_config` is set only by the session)";
        assert!(status.contains(difference), "{status}");
        another.interrupt();
        let recording = system.record(Side::Ours, CONFIG);
        assert_eq!(application.does("startup_outcome"), "Adopted");
        application.does("write 100 100");
        assert_numbers(&recording.interrupt(), 0..200);
        application.ends();
    });
}

#[test]
fn startup_data_are_discarded_if_their_session_never_comes() {
    with_each_service(|system, side| {
        let mut application = registered(system, side);
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("write 0 20000");
        application.does("startup_abort");
        assert_eq!(application.does("startup_outcome"), "Aborted");
        application.does("await_inactive");
        await_registration(system);
        // The startup session takes no memory that later sessions need.
        let recording = system.record(Side::Ours, CONFIG);
        application.does("write 0 5000");
        assert_eq!(numbers(&recording.interrupt()).len(), 5000);
        application.ends();
    });
}

#[test]
fn startup_data_discarded_before_a_service_came_take_none_of_its_memory() {
    with_each_service(|system, side| {
        let mut application = Application::start(system);
        application.does("initialize");
        assert_eq!(application.does(&format!("startup {CONFIG}")), "");
        application.does("threads 4 20000");
        application.does("startup_abort");
        assert_eq!(application.does("startup_outcome"), "Aborted");
        system.start(side, Program::Traced);
        await_registration(system);
        let recording = system.record(Side::Ours, &config_with(STALL));
        application.does("threads 4 20000");
        assert_numbers(&recording.interrupt(), 0..80_000);
        application.ends();
    });
}

#[test]
fn nothing_can_be_recorded_from_startup_on_for_a_data_source_that_there_is_none_of() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let mut application = Application::start(&system);
    application.does("initialize");
    let said = application.does(r#"startup data_sources { config { name: "another" } }"#);
    assert!(said.contains("no data source"), "{said}");
    application.ends();
}

#[test]
fn a_service_that_will_not_have_the_applications_memory_is_recorded_for_later() {
    static SERVICES: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = ScriptedService::listen(&system.producer_socket());
    let mut application = Application::start(&system);
    application.does("initialize");
    assert_eq!(application.does(&format!("startup {CONFIG}")), "");
    application.does("write 0 100");
    let mut offers = Vec::new();
    // The application may have been connected already; then it connects again with memory, and then without.
    while !offers.ends_with(&[true, false]) {
        service.serve(&SERVICES, |asked| {
            if asked.method != ProducerMethod::InitializeConnection.name() {
                return Some(Vec::new());
            }
            offers.push(asked.fd.is_some());
            let answer = InitializeConnectionResponse::default();
            let refused = offers.ends_with(&[true]);
            refused.then(|| vec![(asked.to, Reply::last(answer.encode_to_vec()))])
        });
    }
    assert_eq!(application.does("startup_outcome"), "Aborted");
    drop(service);
    std::fs::remove_file(system.producer_socket()).unwrap();
    system.start(Side::Ours, Program::Traced);
    await_registration(&system);
    let recording = system.record(Side::Ours, CONFIG);
    application.does("write 0 10");
    assert_numbers(&recording.interrupt(), 0..10);
    application.ends();
}
