//! Asks the running tracing service for its state.
//!
//! [`list`](crate::list), [`status`](crate::status) and the code that starts a service if there is none call it. It starts nothing, and waits only
//! some seconds for an answer.

use ferretto_ipc::socket_names::consumer_address;
use ferretto_ipc::transport::PeerCredentials;
use ferretto_ipc::{Address, Stream};
use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::tracing_service_state::Producer;

use crate::machine::{Answer, Machine, ThisMachine};

/// The address at which recordings look for a service, and the answer there.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) address: Address,
    pub(crate) found: Found,
}

/// The answer at an address.
#[derive(Debug)]
pub(crate) enum Found {
    Service(Running),
    Nobody,
    /// A socket file remains of a service that has ended.
    LeftOver,
    /// A process listens there, but has not reported a state, for this reason.
    Silent(String),
}

/// A service that has reported its state.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) state: Box<TracingServiceState>,
    /// The process that listens, at the time when it began to.
    pub(crate) listener: Option<PeerCredentials>,
}

/// Whether a process listens at this address. Whether this user may connect to it is another question.
pub(crate) fn is_there(address: &Address) -> bool {
    !Stream::connect(address).is_err_and(|error| error.is_unreachable())
}

/// Asks the service at the usual address, or at the one in `PERFETTO_CONSUMER_SOCK_NAME`.
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

/// Asks a question that only a running service can answer.
///
/// # Errors
/// If no service listens, or none answers.
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
    /// Returns the producer with this id.
    pub(crate) fn producer(&self, id: Option<i32>) -> Option<&Producer> {
        let mut producers = self.state.producers.iter();
        producers.find(|producer| producer.id == id)
    }
}
