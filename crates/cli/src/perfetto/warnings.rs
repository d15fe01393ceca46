//! What a config will disappoint with, said just before it is recorded.
//!
//! Called by [`record`](super::record), which asks the service for its state in front of the config, over the same connection: that
//! costs the recording no time, and a service that does not know the question changes nothing. A recording in the background has
//! nobody to read its lines, so for that the service is asked in the foreground, before the fork. Nothing here can fail a recording.

use std::time::Duration;

use ferretto_client::consumer::StateScope;
use ferretto_ipc::socket_names::consumer_address;
use ferretto_proto::messages::TracingServiceState;

use super::Program;
use super::console::Console;
use crate::ask::ask_within;
use crate::config::advice::advise;
use crate::config::config_source::WrittenConfig;
use crate::config::surroundings::{Kernel, Offers, RecordedMachine, Surroundings};

/// How long a service is waited for in front of a fork.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says what is to be said of a config to be recorded in the background.
pub(super) fn warn_before_fork(program: Program, written: &WrittenConfig, console: &mut Console) {
    let answer = consumer_address()
        .map_err(|error| error.to_string())
        .and_then(|socket| ask_within(PATIENCE, &socket, StateScope::Everything));
    let offers = match (answer, program) {
        (Ok((state, _)), _) => Some(Offers::of(&state)),
        (Err(_), Program::Perfetto) => None,
        // It will start its own.
        (Err(_), _) => Some(Offers::of_own_probes()),
    };
    say(written, offers, console);
}

/// Says what is to be said of a config, when the service has told its state, or cannot.
pub(super) fn warn(written: &WrittenConfig, state: Option<&TracingServiceState>, console: &mut Console) {
    say(written, state.map(Offers::of), console);
}

fn say(written: &WrittenConfig, service: Option<Offers>, console: &mut Console) {
    let surroundings = Surroundings {
        service,
        // Without tracefs, or the right to read it, the service may have both.
        kernel: Kernel::look(&written.config).ok().flatten(),
        machine: RecordedMachine::look(),
    };
    for advice in advise(&written.config, &written.origin, &surroundings) {
        console.notice(advice.line(&written.origin));
    }
}
