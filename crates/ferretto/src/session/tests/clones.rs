//! Clones of sessions.

use super::*;

#[test]
fn a_clone_is_a_snapshot_and_the_original_goes_on() {
    let _alone = alone();
    let recorder = Recorder::new();
    let original = started(&recorder.config().unique_session_name("original"));
    recorder.write("early");
    let by_name = Session::in_process();
    let cloned = by_name
        .clone_session(&CloneSource::Name("original".into()))
        .unwrap();
    assert!(!cloned.wrote_into_file);
    assert_ne!(cloned.uuid, 0);
    recorder.write("late");
    assert_eq!(texts(&by_name.read_to_end().unwrap()), ["early"]);

    let state = original
        .query_service_state(StateScope::SessionsOnly)
        .unwrap()
        .state;
    let id = state
        .tracing_sessions
        .iter()
        .find(|session| session.unique_session_name.as_deref() == Some("original"))
        .unwrap()
        .id
        .unwrap();
    let by_id = Session::in_process();
    let (sender, done) = mpsc::channel();
    by_id.clone_session_with(&CloneSource::Id(id), move |cloned| sender.send(cloned).unwrap());
    done.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(texts(&by_id.read_to_end().unwrap()), ["early", "late"]);

    original.stop_blocking().unwrap();
    assert_eq!(texts(&original.read_to_end().unwrap()), ["early", "late"]);
    let error = by_id
        .clone_session(&CloneSource::Name("nobody".into()))
        .unwrap_err();
    assert!(matches!(error, SessionError::NotCloned(_)), "{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
}

#[test]
fn a_clone_of_a_session_that_streams_is_a_file() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    let config = recorder
        .config()
        .unique_session_name("streams")
        .write_into_file(Duration::from_millis(100));
    session
        .setup_with_file(&config, tempfile::tempfile().unwrap())
        .unwrap();
    session.start_blocking().unwrap();
    recorder.write("in both files");
    let mut file = tempfile::tempfile().unwrap();
    let clone = Session::in_process();
    let cloned = clone
        .clone_session_into(&CloneSource::Name("streams".into()), file.try_clone().unwrap())
        .unwrap();
    assert!(cloned.wrote_into_file);
    assert_eq!(texts(&contents(&mut file)), ["in both files"]);
    assert!(matches!(
        clone.read_to_end().unwrap_err(),
        SessionError::WritesIntoFile
    ));
}

#[test]
fn a_trigger_asks_for_a_clone_each_time_and_the_session_goes_on() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    let hour = Duration::from_secs(3600);
    let config = recorder
        .config()
        .trigger(
            "clone-of-test",
            TriggerAction::Clone,
            Duration::from_millis(1),
            hour,
        )
        .trigger("another-of-test", TriggerAction::Clone, Duration::ZERO, hour);
    session.setup(&config).unwrap();
    let (hit, hits) = mpsc::channel();
    session.on_clone_trigger(move |trigger| hit.send(trigger).unwrap());
    session.start_blocking().unwrap();
    let mut expected = Vec::new();
    for name in ["clone-of-test", "another-of-test", "clone-of-test"] {
        recorder.write(name);
        expected.push(name);
        crate::activate_triggers(&[name], PATIENCE);
        let trigger = hits.recv_timeout(PATIENCE).unwrap();
        assert_eq!(trigger.name, name);
        let clone = Session::in_process();
        clone
            .clone_session(&CloneSource::Trigger(trigger.clone()))
            .unwrap();
        let trace = clone.read_to_end().unwrap();
        assert_eq!(texts(&trace), expected);
        let trace = Trace::decode_from_slice(&trace).unwrap();
        let said = trace.packet.iter().find_map(|packet| match &packet.data {
            Some(trace_packet::Data::CloneSnapshotTrigger(said)) => Some(said),
            _ => None,
        });
        let said = said.unwrap();
        assert_eq!(said.trigger_name.as_deref(), Some(name));
        assert_eq!(said.producer_name.as_deref(), Some(&*trigger.producer_name));
        assert_eq!(said.trusted_producer_uid, Some(trigger.producer_uid as i32));
        assert_eq!(said.stop_delay_ms, Some(trigger.delay.as_millis() as u64));
    }
    // Its trace is for clones alone, as in upstream's service.
    session.stop_blocking().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), [""; 0]);
}
