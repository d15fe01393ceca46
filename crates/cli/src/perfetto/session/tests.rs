//! Whole recordings: the events in order, and the expected calls.

use super::Call::*;
use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn parameters() -> Parameters {
    let config = TraceConfig {
        duration_ms: Some(10_000),
        ..Default::default()
    };
    Parameters::from_config(
        Purpose::Record,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    )
}

fn steps(session: &mut Session) -> Vec<Step> {
    std::iter::from_fn(|| session.next_step()).collect()
}

fn calls(session: &mut Session) -> Vec<Call> {
    let calls = steps(session).into_iter();
    calls
        .filter_map(|step| {
            if let Step::Call(call) = step {
                Some(call)
            } else {
                None
            }
        })
        .collect()
}

fn ending(session: &mut Session) -> Option<Ending> {
    steps(session).into_iter().find_map(|step| {
        if let Step::Finish(ending) = step {
            Some(ending)
        } else {
            None
        }
    })
}

/// A session that has been recording since second 0.
fn recording(parameters: Parameters) -> Session {
    let mut session = Session::new(parameters, Duration::ZERO);
    assert_eq!(steps(&mut session), [Step::Connect]);
    session.connected(Duration::ZERO);
    assert!(calls(&mut session).ends_with(&[EnableTracing, GetTraceStats]));
    session.trace_stats(Some(TraceStats::default()), Duration::ZERO);
    assert_eq!(steps(&mut session), []);
    session
}

fn reading_back() -> Session {
    let mut session = recording(parameters());
    session.tracing_disabled(None, seconds(10));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    session
}

#[test]
fn a_recording_ends_by_itself_and_is_read_back() {
    let mut session = recording(parameters());
    assert_eq!(session.recorded(seconds(4)), seconds(4));
    session.tracing_disabled(None, seconds(15));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    session.packets_read(seconds(16));
    session.all_packets_read(seconds(17));
    assert_eq!(calls(&mut session), [GetTraceStats]);
    session.trace_stats(Some(TraceStats::default()), seconds(17));
    assert_eq!(ending(&mut session), Some(Ending::Complete));
    assert_eq!(session.recorded(seconds(99)), seconds(10));
    assert_eq!(session.stats(), Some(&TraceStats::default()));
    assert_eq!(session.next_deadline(), None);
}

#[test]
fn data_that_the_service_wrote_are_not_read_back() {
    let config = TraceConfig {
        write_into_file: Some(true),
        ..Default::default()
    };
    let mut session = recording(Parameters::from_config(
        Purpose::Record,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    ));
    session.tracing_disabled(None, seconds(10));
    assert_eq!(calls(&mut session), [GetTraceStats]);
    session.trace_stats(None, seconds(10));
    assert_eq!(ending(&mut session), Some(Ending::Complete));
}

#[test]
fn data_that_the_service_cannot_write_are_read_meanwhile() {
    let config = TraceConfig {
        write_into_file: Some(true),
        ..Default::default()
    };
    let parameters = Parameters::from_config(
        Purpose::Record,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    );
    let mut session = Session::new(parameters, Duration::ZERO);
    steps(&mut session);
    session.read_meanwhile(seconds(5));
    assert_eq!(session.writer(), Writer::Us);
    session.connected(Duration::ZERO);
    assert!(calls(&mut session).ends_with(&[EnableTracing, GetTraceStats]));
    assert_eq!(session.next_deadline(), Some(seconds(5)));
    session.handle_timeout(seconds(5));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    // Not again before the answer is complete.
    session.packets_read(seconds(7));
    session.handle_timeout(seconds(20));
    assert_eq!(calls(&mut session), []);
    session.all_packets_read(seconds(20));
    assert!(session.is_recording());
    assert_eq!(session.next_deadline(), Some(seconds(25)));
    // A refusal loses nothing until the end.
    session.handle_timeout(seconds(25));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    session.read_failed("busy".to_owned());
    assert_eq!(steps(&mut session), []);
}

#[test]
fn the_last_of_two_reads_ends_a_recording() {
    let mut session = Session::new(parameters(), Duration::ZERO);
    steps(&mut session);
    session.read_meanwhile(seconds(5));
    session.connected(Duration::ZERO);
    session.handle_timeout(seconds(5));
    assert!(calls(&mut session).ends_with(&[ReadBuffers]));
    session.tracing_disabled(None, seconds(6));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    session.all_packets_read(seconds(7));
    assert_eq!(steps(&mut session), []);
    session.packets_read(seconds(8));
    session.all_packets_read(seconds(9));
    assert_eq!(calls(&mut session), [GetTraceStats]);
}

#[test]
fn a_signal_flushes_stops_and_keeps_the_data() {
    let mut session = recording(parameters());
    session.interrupted(Signal::Interrupt, seconds(3));
    assert_eq!(
        steps(&mut session),
        [Step::Tell(Notice::Stopping(Signal::Interrupt)), Step::Call(Flush)]
    );
    session.flushed(Ok(()));
    assert_eq!(steps(&mut session), [Step::Call(DisableTracing)]);
    session.tracing_disabled(None, seconds(4));
    assert_eq!(calls(&mut session), [ReadBuffers]);
    session.all_packets_read(seconds(4));
    session.trace_stats(None, seconds(4));
    assert_eq!(ending(&mut session), Some(Ending::Complete));
    assert_eq!(session.recorded(seconds(99)), seconds(3));
}

#[test]
fn a_failed_flush_stops_all_the_same() {
    let mut session = recording(parameters());
    session.interrupted(Signal::Terminate, seconds(3));
    steps(&mut session);
    session.flushed(Err(()));
    assert_eq!(
        steps(&mut session),
        [Step::Tell(Notice::FlushFailed), Step::Call(DisableTracing)]
    );
}

#[test]
fn a_recording_that_ends_while_it_is_flushed_is_read_back_once() {
    let mut session = recording(parameters());
    session.interrupted(Signal::Interrupt, seconds(10));
    session.tracing_disabled(None, seconds(10));
    assert_eq!(calls(&mut session), [Flush, ReadBuffers]);
    session.flushed(Ok(()));
    assert_eq!(steps(&mut session), []);
}

#[test]
fn that_the_service_took_the_config_shows_in_that_it_has_stats() {
    let awaited = || {
        let mut session = Session::new(
            Parameters {
                acceptance: Acceptance::Awaited,
                ..parameters()
            },
            Duration::ZERO,
        );
        steps(&mut session);
        session.connected(Duration::ZERO);
        assert_eq!(calls(&mut session), [EnableTracing, GetTraceStats]);
        session
    };
    let stats = || Some(TraceStats::default());
    let mut session = awaited();
    session.trace_stats(None, seconds(0));
    assert_eq!(steps(&mut session), [], "a config that is refused has none");
    session.tracing_disabled(Some("refused".into()), seconds(0));
    assert_eq!(ending(&mut session), Some(Ending::ServiceError("refused".into())));

    let mut session = awaited();
    session.trace_stats(stats(), seconds(0));
    assert_eq!(steps(&mut session), [Step::Tell(Notice::Accepted)]);
    session.trace_stats(stats(), seconds(1));
    assert_eq!(steps(&mut session), [Step::ShowProgress], "it is told once");
}

#[test]
fn a_recording_that_is_given_up_ends_at_once() {
    let mut session = reading_back();
    session.give_up(Signal::Interrupt);
    assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Interrupt)));
    session.give_up(Signal::Interrupt);
    assert_eq!(steps(&mut session), []);

    let mut session = reading_back();
    session.all_packets_read(seconds(10));
    steps(&mut session);
    session.give_up(Signal::Interrupt);
    assert_eq!(
        ending(&mut session),
        Some(Ending::Complete),
        "there is nothing left to give up"
    );
}

#[test]
fn a_signal_delivered_twice_at_once_is_one_wish() {
    let mut session = recording(parameters());
    session.interrupted(Signal::Interrupt, seconds(3));
    steps(&mut session);
    session.interrupted(Signal::Interrupt, seconds(3) + Duration::from_millis(299));
    assert_eq!(steps(&mut session), []);
    session.interrupted(Signal::Interrupt, seconds(3) + Duration::from_millis(300));
    assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Interrupt)));
}

#[test]
fn a_second_signal_gives_up() {
    let mut session = recording(parameters());
    session.interrupted(Signal::Interrupt, seconds(3));
    steps(&mut session);
    session.interrupted(Signal::Interrupt, seconds(4));
    assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Interrupt)));

    let mut session = reading_back();
    session.interrupted(Signal::Interrupt, seconds(11));
    assert_eq!(steps(&mut session), [Step::Tell(Notice::AlreadyEnding)]);
    session.interrupted(Signal::Terminate, seconds(12));
    assert_eq!(steps(&mut session), [], "somebody else's, for the same end");
    session.interrupted(Signal::Terminate, seconds(13));
    assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Terminate)));
}

#[test]
fn the_first_signal_after_the_end_of_the_command_does_not_give_up() {
    let mut flushing = recording(parameters());
    flushing.nothing_more_to_record(seconds(3));
    let mut disabling = recording(parameters());
    disabling.nothing_more_to_record(seconds(3));
    disabling.flushed(Ok(()));
    for mut session in [flushing, disabling] {
        steps(&mut session);
        session.interrupted(Signal::Interrupt, seconds(3));
        assert_eq!(steps(&mut session), [Step::Tell(Notice::AlreadyEnding)]);
        session.interrupted(Signal::Interrupt, seconds(4));
        assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Interrupt)));
    }
}

#[test]
fn a_signal_before_the_recording_began_gives_up() {
    let mut session = Session::new(parameters(), Duration::ZERO);
    steps(&mut session);
    session.interrupted(Signal::Interrupt, Duration::ZERO);
    assert_eq!(ending(&mut session), Some(Ending::Abandoned(Signal::Interrupt)));
}

#[test]
fn a_refusal_by_the_service_ends_with_its_words() {
    let mut session = recording(parameters());
    session.tracing_disabled(Some("no buffers".to_owned()), seconds(1));
    assert_eq!(
        ending(&mut session),
        Some(Ending::ServiceError("no buffers".to_owned()))
    );
    session.disconnected();
    assert_eq!(ending(&mut session), None, "a session ends once");
}

#[test]
fn a_lost_service_is_reported_by_stage() {
    let mut session = Session::new(parameters(), Duration::ZERO);
    session.disconnected();
    assert_eq!(
        ending(&mut session),
        Some(Ending::Disconnected(Stage::Connecting))
    );
    let mut session = recording(parameters());
    session.disconnected();
    assert_eq!(ending(&mut session), Some(Ending::Disconnected(Stage::Recording)));
    let mut session = reading_back();
    session.disconnected();
    assert_eq!(
        ending(&mut session),
        Some(Ending::Disconnected(Stage::ReadingBack))
    );
    let mut session = reading_back();
    session.all_packets_read(seconds(11));
    session.disconnected();
    assert_eq!(
        ending(&mut session),
        Some(Ending::Complete),
        "everything had been read"
    );
}

#[test]
fn a_hung_service_is_given_up_after_duration_allowances_and_a_minute() {
    let config = TraceConfig {
        duration_ms: Some(10_000),
        flush_timeout_ms: Some(2_000),
        data_source_stop_timeout_ms: Some(3_000),
        ..Default::default()
    };
    let mut session = recording(Parameters::from_config(
        Purpose::Record,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    ));
    assert_eq!(session.next_deadline(), Some(seconds(75)));
    session.handle_timeout(seconds(74));
    assert_eq!(ending(&mut session), None);
    session.handle_timeout(seconds(75));
    assert_eq!(ending(&mut session), Some(Ending::TimedOut));
}

#[test]
fn an_endless_recording_is_given_up_only_after_a_signal() {
    let mut session = recording(Parameters {
        duration: None,
        ..parameters()
    });
    assert_eq!(session.next_deadline(), None);
    session.interrupted(Signal::Interrupt, seconds(1000));
    assert_eq!(session.next_deadline(), Some(seconds(1060)));
}

#[test]
fn silence_in_the_middle_of_reading_ends_it() {
    let mut session = reading_back();
    session.packets_read(seconds(12));
    assert_eq!(session.next_deadline(), Some(seconds(18)));
    session.handle_timeout(seconds(18));
    assert_eq!(ending(&mut session), Some(Ending::ReadTimedOut));
}

#[test]
fn stats_that_never_come_do_not_hold_up_a_complete_trace() {
    let mut session = reading_back();
    session.all_packets_read(seconds(11));
    session.handle_timeout(seconds(13));
    assert_eq!(ending(&mut session), Some(Ending::Complete));
}

#[test]
fn an_output_that_fails_ends_it() {
    let mut session = reading_back();
    session.output_failed("disk full".to_owned());
    assert_eq!(
        ending(&mut session),
        Some(Ending::OutputFailed("disk full".to_owned()))
    );
}

#[test]
fn the_start_is_delayed_as_the_config_asks() {
    let mut session = Session::new(
        Parameters {
            start_delay: seconds(5),
            ..parameters()
        },
        seconds(1),
    );
    assert_eq!(steps(&mut session), []);
    assert_eq!(session.next_deadline(), Some(seconds(6)));
    session.handle_timeout(seconds(6));
    assert_eq!(steps(&mut session), [Step::Connect]);
}

#[test]
fn waiting_processes_are_told_of_the_start() {
    let mut session = Session::new(
        Parameters {
            observer: Observer::Present,
            ..parameters()
        },
        Duration::ZERO,
    );
    session.connected(Duration::ZERO);
    assert_eq!(calls(&mut session), [Observe, EnableTracing, GetTraceStats]);
    session.all_data_sources_started();
    assert_eq!(steps(&mut session), [Step::ReportStarted]);
}

#[test]
fn progress_is_polled_one_answer_at_a_time() {
    let period = Some(Duration::from_millis(500));
    let mut session = recording(Parameters {
        progress_period: period,
        duration: None,
        ..parameters()
    });
    assert_eq!(session.next_deadline(), Some(Duration::from_millis(500)));
    session.handle_timeout(seconds(1));
    session.handle_timeout(seconds(2));
    assert_eq!(
        calls(&mut session),
        [GetTraceStats],
        "the first has not been answered"
    );
    session.trace_stats(Some(TraceStats::default()), seconds(3));
    assert_eq!(steps(&mut session), [Step::ShowProgress]);
    assert_eq!(session.next_deadline(), Some(Duration::from_millis(3500)));
    session.handle_timeout(seconds(4));
    session.trace_stats(None, seconds(4));
    assert_eq!(
        session.next_deadline(),
        None,
        "a service that has no stats is not asked again"
    );
}

#[test]
fn triggers_make_up_the_duration_of_a_config_without_one() {
    use ferretto_proto::messages::trace_config::{TriggerConfig, trigger_config::Trigger};
    let trigger = |ms| Trigger {
        stop_delay_ms: Some(ms),
        ..Default::default()
    };
    let triggers = TriggerConfig {
        trigger_timeout_ms: Some(60_000),
        triggers: vec![trigger(1_000), trigger(5_000)],
        ..Default::default()
    };
    let config = TraceConfig {
        trigger_config: triggers.into(),
        ..Default::default()
    };
    let parameters = Parameters::from_config(
        Purpose::Record,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    );
    assert_eq!(parameters.duration, Some(seconds(65)));
}

fn with_purpose(purpose: Purpose) -> Session {
    let config = TraceConfig {
        write_into_file: Some(true),
        ..Default::default()
    };
    let parameters = Parameters::from_config(
        purpose,
        &config,
        Duration::ZERO,
        Observer::Absent,
        None,
        Acceptance::Assumed,
    );
    let mut session = Session::new(parameters, Duration::ZERO);
    assert_eq!(steps(&mut session), [Step::Connect]);
    session.connected(Duration::ZERO);
    session
}

fn attached(purpose: Purpose) -> Session {
    let mut session = with_purpose(purpose);
    assert_eq!(calls(&mut session), [Attach]);
    session.attached(
        Ok(TraceConfig {
            write_into_file: Some(true),
            ..Default::default()
        }),
        seconds(1),
    );
    session
}

#[test]
fn a_detached_session_goes_on_by_itself() {
    let mut session = with_purpose(Purpose::StartAndDetach);
    assert_eq!(calls(&mut session), [EnableTracing, Detach]);
    session.detached(Ok(()));
    assert_eq!(ending(&mut session), Some(Ending::Detached));

    let mut session = with_purpose(Purpose::StartAndDetach);
    session.tracing_disabled(Some("no".to_owned()), seconds(1));
    session.detached(Err(()));
    assert_eq!(
        ending(&mut session),
        Some(Ending::ServiceError("no".to_owned())),
        "the reason is what helps"
    );

    let mut session = with_purpose(Purpose::StartAndDetach);
    session.detached(Err(()));
    assert_eq!(ending(&mut session), Some(Ending::DetachFailed));
}

#[test]
fn an_attached_session_is_recorded_to_its_end_or_stopped() {
    let mut session = attached(Purpose::Attach);
    assert_eq!(steps(&mut session), []);
    session.tracing_disabled(None, seconds(9));
    assert_eq!(calls(&mut session), [GetTraceStats], "the service wrote the file");

    let mut session = attached(Purpose::Attach);
    session.interrupted(Signal::Interrupt, seconds(3));
    assert_eq!(calls(&mut session), [Flush]);

    let mut session = attached(Purpose::AttachAndStop);
    assert_eq!(calls(&mut session), [Flush]);
    session.flushed(Ok(()));
    assert_eq!(calls(&mut session), [DisableTracing]);
    session.tracing_disabled(None, seconds(4));
    session.trace_stats(None, seconds(4));
    assert_eq!(ending(&mut session), Some(Ending::Complete));
}

#[test]
fn asking_for_a_detached_session_leaves_it_as_it_is() {
    let mut session = attached(Purpose::Probe);
    assert_eq!(calls(&mut session), [Detach]);
    session.detached(Ok(()));
    assert_eq!(ending(&mut session), Some(Ending::Detached));

    let mut session = with_purpose(Purpose::Probe);
    session.attached(Err(()), seconds(1));
    assert_eq!(ending(&mut session), Some(Ending::NotAttached));
}

#[test]
fn a_clone_is_read_unless_the_service_wrote_it() {
    let mut session = with_purpose(Purpose::Clone);
    assert_eq!(calls(&mut session), [CloneSession]);
    session.cloned(Ok(Writer::Us), seconds(1));
    assert_eq!(calls(&mut session), [ReadBuffers]);

    let mut session = with_purpose(Purpose::Clone);
    session.cloned(Ok(Writer::Service), seconds(1));
    assert_eq!(calls(&mut session), [CloneSession, GetTraceStats]);

    let mut session = with_purpose(Purpose::Clone);
    session.cloned(Err("no session 7".to_owned()), seconds(1));
    assert_eq!(
        ending(&mut session),
        Some(Ending::ServiceError("no session 7".to_owned()))
    );

    let mut session = with_purpose(Purpose::Clone);
    session.handle_timeout(seconds(30));
    assert_eq!(ending(&mut session), Some(Ending::CloneTimedOut));
}
