//! A session's end of its connection: over a socket, or to the service in this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, StateScope};
use ferretto_ipc::client::{CallId, InvokeError};
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::CloneSessionRequest;
use ferretto_proto::messages::observable_events::Type as ObservableEventType;

#[cfg(feature = "in-process")]
use crate::in_process::Consumer;
use crate::process_hooks::KeptFromChildren;

/// Whether trace data is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// As much as there is.
    Open,
    /// None for now.
    Paused,
}

/// A consumer's end. Requests and events are those of [`ConsumerEndpoint`].
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// Over a socket.
    Ipc(Box<KeptFromChildren<ConsumerEndpoint>>, Flow),
    /// To the service in this process.
    #[cfg(feature = "in-process")]
    InProcess(Consumer),
}

/// The same request to either.
macro_rules! request {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        match $self {
            Endpoint::Ipc(endpoint, _) => endpoint.$method($($argument),*),
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(consumer) => Ok(consumer.$method($($argument),*)),
        }
    };
}

impl Endpoint {
    /// An end over a socket.
    pub(crate) fn over(endpoint: ConsumerEndpoint) -> Endpoint {
        Endpoint::Ipc(Box::new(KeptFromChildren::new(endpoint)), Flow::Open)
    }

    /// What to wait for, and on which descriptor.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        match self {
            Endpoint::Ipc(endpoint, flow) => {
                // What is not read fills the socket, until the service waits.
                let interest = match (flow, endpoint.interest()) {
                    (Flow::Paused, Interest::Readable) => Interest::None,
                    (Flow::Paused, Interest::Both) => Interest::Writable,
                    (_, interest) => interest,
                };
                Some((endpoint.as_fd(), interest))
            }
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(_) => None,
        }
    }

    /// Reads what has arrived. While no data is wanted that is when the connection is over: then what the socket holds is little.
    pub(super) fn on_readable(&mut self) {
        match self {
            Endpoint::Ipc(endpoint, _) => endpoint.on_readable(),
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(_) => {}
        }
    }

    /// Sends what waits, as far as it can be sent.
    pub(super) fn flush(&mut self) {
        match self {
            Endpoint::Ipc(endpoint, _) => endpoint.flush(),
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(_) => {}
        }
    }

    /// Whether trace data comes among the events. Over a socket nothing else does either while it is paused.
    pub(super) fn set_flow(&mut self, flow: Flow) {
        match self {
            Endpoint::Ipc(_, current) => *current = flow,
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(consumer) => consumer.set_flow(flow),
        }
    }

    pub(super) fn next_event(&mut self) -> Option<ConsumerEvent> {
        match self {
            Endpoint::Ipc(_, Flow::Paused) => None,
            Endpoint::Ipc(endpoint, Flow::Open) => endpoint.next_event(),
            #[cfg(feature = "in-process")]
            Endpoint::InProcess(consumer) => consumer.next_event(),
        }
    }

    pub(super) fn enable_tracing(
        &mut self,
        config: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<CallId, InvokeError> {
        request!(self, enable_tracing(config, file))
    }

    pub(super) fn start_tracing(&mut self) -> Result<CallId, InvokeError> {
        request!(self, start_tracing())
    }

    pub(super) fn change_trace_config(&mut self, config: &[u8]) -> Result<CallId, InvokeError> {
        request!(self, change_trace_config(config))
    }

    pub(super) fn disable_tracing(&mut self) -> Result<CallId, InvokeError> {
        request!(self, disable_tracing())
    }

    pub(super) fn flush_producers(&mut self, timeout_ms: u32, flags: u64) -> Result<CallId, InvokeError> {
        request!(self, flush_producers(timeout_ms, flags))
    }

    pub(super) fn read_buffers(&mut self) -> Result<CallId, InvokeError> {
        request!(self, read_buffers())
    }

    pub(super) fn free_buffers(&mut self) -> Result<CallId, InvokeError> {
        request!(self, free_buffers())
    }

    pub(super) fn detach(&mut self, key: &str) -> Result<CallId, InvokeError> {
        request!(self, detach(key))
    }

    pub(super) fn attach(&mut self, key: &str) -> Result<CallId, InvokeError> {
        request!(self, attach(key))
    }

    pub(super) fn trace_stats(&mut self) -> Result<CallId, InvokeError> {
        request!(self, trace_stats())
    }

    pub(super) fn observe_events(&mut self, types: &[ObservableEventType]) -> Result<CallId, InvokeError> {
        request!(self, observe_events(types))
    }

    pub(super) fn query_service_state(&mut self, scope: StateScope) -> Result<CallId, InvokeError> {
        request!(self, query_service_state(scope))
    }

    pub(super) fn query_capabilities(&mut self) -> Result<CallId, InvokeError> {
        request!(self, query_capabilities())
    }

    pub(super) fn clone_session(
        &mut self,
        request: &CloneSessionRequest,
        file: Option<OwnedFd>,
    ) -> Result<CallId, InvokeError> {
        request!(self, clone_session(request, file))
    }
}
