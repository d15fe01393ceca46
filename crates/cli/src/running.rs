//! The tracing service that runs, asked what it has.
//!
//! Called by [`list`](crate::list), [`status`](crate::status) and whoever would start a service if there is none. Nothing is started for
//! the question, and a service that says nothing is waited for some seconds only.

use ferretto_ipc::socket_names::consumer_address;
use ferretto_ipc::transport::PeerCredentials;
use ferretto_ipc::{Address, Stream};
use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::tracing_service_state::Producer;

use crate::machine::{Answer, Machine, ThisMachine};

/// Where recordings look for a service, and what is there.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) address: Address,
    pub(crate) found: Found,
}

/// What listens there.
#[derive(Debug)]
pub(crate) enum Found {
    Service(Running),
    Nobody,
    /// The socket of a service that has ended.
    LeftOver,
    /// Somebody who told nothing, for this reason.
    Silent(String),
}

/// A service that has answered.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) state: Box<TracingServiceState>,
    /// Who listens, as of when it began to.
    pub(crate) listener: Option<PeerCredentials>,
}

/// Whether somebody listens at this address: who that is, and whether this user may connect, comes out when it is used.
pub(crate) fn is_there(address: &Address) -> bool {
    !Stream::connect(address).is_err_and(|error| error.is_unreachable())
}

/// Asks the service at the usual place, or where `PERFETTO_CONSUMER_SOCK_NAME` says.
///
/// # Errors
/// If the variable holds no address.
pub(crate) fn ask() -> Result<Asked, String> {
    let address = consumer_address().map_err(|error| error.to_string())?;
    let found = match ThisMachine.ask(&address) {
        Answer::Service { state, listener } => Found::Service(Running { state, listener }),
        Answer::Absent => Found::Nobody,
        Answer::Stale => Found::LeftOver,
        Answer::Denied => Found::Silent(format!(
            "this user may not connect to the tracing service at {address}; `ferretto doctor` says how to change that"
        )),
        Answer::Useless(reason) => Found::Silent(format!(
            "somebody listens at {address} but gave no answer that could be used: {reason}"
        )),
    };
    Ok(Asked { address, found })
}

/// Asks, where only a service knows the answer.
///
/// # Errors
/// If there is none, or none that answers.
pub(crate) fn ask_service() -> Result<Running, String> {
    let Asked { address, found } = ask()?;
    match found {
        Found::Service(running) => Ok(running),
        Found::Nobody | Found::LeftOver => Err(format!(
            "no tracing service listens at {address}. Start one with `ferretto traced &` and `ferretto traced_probes &`"
        )),
        Found::Silent(reason) => Err(reason),
    }
}

impl Running {
    /// The producer with this number.
    pub(crate) fn producer(&self, id: Option<i32>) -> Option<&Producer> {
        let mut producers = self.state.producers.iter();
        producers.find(|producer| producer.id == id)
    }
}
