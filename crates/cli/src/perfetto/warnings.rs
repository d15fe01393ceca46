//! Prints advice about a config just before it is recorded.
//!
//! [`record`](super::record) calls it. It queries the service's state before it sends the config, over the same connection, so the query costs the
//! recording no time, and a service that does not know the query changes nothing. Nobody reads the messages of a recording in the background, so for
//! that the query is made in the foreground, before the fork. No failure here ends a recording.

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

/// The time that a service has to answer before a fork.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints the advice about a config that will be recorded in the background.
pub(super) fn warn_before_fork(program: Program, written: &WrittenConfig, console: &mut Console) {
    let answer = consumer_address()
        .map_err(|error| error.to_string())
        .and_then(|socket| ask_within(PATIENCE, &socket, StateScope::Everything));
    let offers = match (answer, program) {
        (Ok((state, _)), _) => Some(Offers::of(&state)),
        (Err(_), Program::Perfetto) => None,
        // `ferretto` will start a service of its own.
        (Err(_), _) => Some(Offers::of_own_probes()),
    };
    say(written, offers, console);
}

/// Prints the advice about a config. `state` is the service's, if it can report it.
pub(super) fn warn(written: &WrittenConfig, state: Option<&TracingServiceState>, console: &mut Console) {
    say(written, state.map(Offers::of), console);
}

fn say(written: &WrittenConfig, service: Option<Offers>, console: &mut Console) {
    let surroundings = Surroundings {
        service,
        // This user may be unable to read tracefs, although the service can; then there is no advice about the kernel.
        kernel: Kernel::look(&written.config).ok().flatten(),
        machine: RecordedMachine::look(),
    };
    for advice in advise(&written.config, &written.origin, &surroundings) {
        console.notice(advice.line(&written.origin));
    }
}
