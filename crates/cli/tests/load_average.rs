//! The example of a daemon with one data source, with our service and upstream's.

use std::time::Instant;

use ferretto_proto::messages::TracingServiceState;

use crate::support::example::example_of;
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

const CONFIG: &str = r#"buffers { size_kb: 1024 }
    data_sources { config { name: "example.load_average" legacy_config: "20" } }
    duration_ms: 400"#;

fn is_offered(state: &TracingServiceState) -> bool {
    let mut names = state.data_sources.iter().map(|source| &source.ds_descriptor.name);
    names.any(|name| name.as_deref() == Some("example.load_average"))
}

fn start(system: &System<'_>) -> Option<Running> {
    let program = example_of("client", "load_average")?;
    Some(Running(system.command(&program, "example.log").spawn().unwrap()))
}

#[test]
fn a_daemon_of_one_data_source_serves_any_service_and_its_successor() {
    let (Some(programs), Some(processor)) = (Programs::of_both(), TraceProcessor::find()) else {
        return;
    };
    let mut system = System::new(&programs);
    let Some(mut daemon) = start(&system) else { return };
    let until = Instant::now() + PATIENCE;
    while !system.log("example.log").contains("waiting for the service at ") {
        assert!(Instant::now() < until, "it does not say that it waits");
        std::thread::yield_now();
    }
    for side in [Side::Ours, Side::Upstream, Side::Ours] {
        let traced = system.start(side, Program::Traced);
        system.await_state(is_offered);
        // Two simultaneous sessions are two instances.
        let recordings = [0, 1].map(|_| system.record(side, CONFIG));
        for recording in recordings {
            let trace = recording.finish();
            let [losses, samples] = processor.query(
                &trace,
                [
                    LOSSES,
                    "select count(*), min(value) >= 0 from counter join counter_track t on t.id = track_id
                        where t.name = 'load average'",
                ],
            );
            assert_eq!(losses, Rows::new());
            let [count, is_sensible] = numbers(&samples);
            // The first sample is recorded at once and the last one at the stop, even on a busy machine.
            assert!(count >= 2 && is_sensible == 1, "{side:?}: {samples:?}");
        }
        system.end(traced);
    }
    assert!(daemon.0.try_wait().unwrap().is_none(), "it has ended");
}

#[test]
fn a_config_that_a_data_source_cannot_carry_out_is_named_and_stops_at_once() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let Some(_daemon) = start(&system) else { return };
    system.start(Side::Ours, Program::Traced);
    system.await_state(is_offered);
    let began = Instant::now();
    let (recording, started) = system.begin(
        &programs.path(Side::Ours, Program::Perfetto),
        &[],
        r#"buffers { size_kb: 1024 }
        data_sources { config { name: "example.load_average" legacy_config: "often" } }
        duration_ms: 100
        data_source_stop_timeout_ms: 60000"#,
    );
    assert_ne!(started, 0, "perfetto says that all data sources have started");
    recording.finish();
    assert!(began.elapsed().as_secs() < 60, "the service waits for the stop");
    let log = system.log("example.log");
    assert!(
        log.contains(
            "warning: example.load_average could not be set up: legacy_config: \"often\" is not a period in milliseconds"
        ),
        "{log}"
    );
}
