//! `ferretto doctor`: checks everything that recording on this machine depends on; for everything missing, it names the consequences and the command
//! that fixes it.
//!
//! [`applet`](crate::applet) calls it. The checks are functions from a [`Machine`], or from the [`System`] with the facts already established, to
//! [`Finding`]s. Each stage of a recording has a module: [`kernel`], [`tracefs`], [`sources`],
//! [`profiles`], [`service`], [`resources`], [`ports`]. The doctor
//! changes nothing.
//!
//! Exit codes: 0 when something can be recorded, perhaps with notes about missing parts; 1 when a problem prevents every recording; 2 for a wrong
//! command line.

mod finding;
mod kernel;
mod ports;
mod profiles;
mod resources;
mod service;
mod sources;
mod tracefs;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::ffi::OsString;

use clap::Command;
use ferretto_proto::messages::TracingServiceState;

use finding::{Finding, Mark, json, report, worst};

use crate::machine::{Holder, Identity, Machine, ThisMachine, process_named};
use crate::stdout::{self, Screen};
use crate::usage;

/// The name in its messages.
const NAME: &str = "ferretto doctor";
const RECORDING_WORKS: u8 = 0;
const PROBLEMS: u8 = 1;

pub(crate) fn command() -> Command {
    Command::new("doctor")
        .about("Says what recording on this machine depends on, and how to mend what is missing")
        .long_about(
            "Looks at everything that recording on this machine depends on: kernel, tracefs, permissions, sockets and who listens, \
             memory, limits. For whatever is missing it says what that costs and which command mends it. It changes nothing.",
        )
        .arg(stdout::json_flag())
        .after_help(
            "Each line is marked ok, note (recording works, but something will be missing) or problem (nothing can be recorded).\n\
             Exits with 0 when recording works, 1 when there is a problem, 2 when a flag makes no sense.",
        )
}

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command().bin_name(NAME), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let findings = examine(&ThisMachine);
    let printed = match matches.get_flag("json") {
        true => stdout::print_json(&json(&findings)),
        false => {
            let screen = Screen::look();
            stdout::print(report(&findings, screen.width(), screen.style()).as_bytes())
        }
    };
    // The exit code shows the result even if the findings cannot be printed.
    let _ = printed;
    match worst(&findings) {
        Mark::Ok | Mark::Note => RECORDING_WORKS,
        Mark::Problem => PROBLEMS,
    }
}

/// The machine, with facts that several checks need.
struct System<'a> {
    machine: &'a dyn Machine,
    identity: Identity,
    /// The state of the service that recordings would go to.
    service: Option<Box<TracingServiceState>>,
}

impl System<'_> {
    /// Returns the process that offers a data source to the running service. It records that source regardless of this user's permissions.
    fn provider(&self, data_source: &str) -> Option<Holder> {
        let state = self.service.as_ref()?;
        let source = state
            .data_sources
            .iter()
            .find(|source| source.ds_descriptor.name.as_deref() == Some(data_source))?;
        let producer = state
            .producers
            .iter()
            .find(|producer| producer.id == source.producer_id)?;
        let pid = producer.pid.unwrap_or(0);
        Some(process_named(self.machine, pid).unwrap_or_else(|| Holder {
            name: producer.name.clone().unwrap_or_default(),
            pid,
        }))
    }

    /// Whether the service has a started session.
    fn is_recording(&self) -> bool {
        let state = self.service.as_ref();
        state.is_some_and(|state| state.num_sessions_started.unwrap_or(0) > 0)
    }
}

/// Runs all checks in the order of their dependencies.
fn examine(machine: &dyn Machine) -> Vec<Finding> {
    let identity = Identity::of(machine);
    let (service, of_service) = service::examine(machine, &identity);
    let system = System {
        machine,
        identity,
        service,
    };
    let mut findings = kernel::examine(&system);
    findings.extend(tracefs::examine(&system));
    findings.extend(sources::examine(&system));
    findings.push(profiles::examine(&system));
    findings.extend(of_service);
    findings.extend(resources::examine(&system));
    findings.extend(ports::examine(&system));
    findings
}
