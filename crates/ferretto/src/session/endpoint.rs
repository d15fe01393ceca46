//! A session's end of its connection.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent};
use ferretto_ipc::reactor::Interest;

use crate::process_hooks::KeptFromChildren;

/// Whether trace data is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataFlow {
    /// As much as there is.
    Open,
    /// None for now.
    Paused,
}

/// Has a service let trace data come or hold it back.
pub(crate) type Valve = Box<dyn Fn(DataFlow) + Send>;

/// A [`ConsumerEndpoint`] whose reader may pause. Without a valve nothing at all is read during a pause, so the service's other messages wait behind
/// the trace data.
pub(crate) struct Endpoint {
    inner: Box<KeptFromChildren<ConsumerEndpoint>>,
    valve: Option<Valve>,
    /// Of the socket.
    flow: DataFlow,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.inner).finish()
    }
}

impl Endpoint {
    pub(crate) fn over(endpoint: ConsumerEndpoint, valve: Option<Valve>) -> Endpoint {
        Endpoint {
            inner: Box::new(KeptFromChildren::new(endpoint)),
            valve,
            flow: DataFlow::Open,
        }
    }

    /// The descriptor to wait for, and for what. Unread data fills the socket until the service waits.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, Interest) {
        let interest = match (self.flow, self.inner.interest()) {
            (DataFlow::Paused, Interest::Readable) => Interest::None,
            (DataFlow::Paused, Interest::Both) => Interest::Writable,
            (_, interest) => interest,
        };
        (self.inner.as_fd(), interest)
    }

    pub(super) fn set_flow(&mut self, flow: DataFlow) {
        match &self.valve {
            Some(valve) => valve(flow),
            None => self.flow = flow,
        }
    }

    /// Whether nothing is read now.
    pub(super) fn is_blocked(&self) -> bool {
        self.flow == DataFlow::Paused
    }

    pub(super) fn next_event(&mut self) -> Option<ConsumerEvent> {
        match self.flow {
            DataFlow::Paused => None,
            DataFlow::Open => self.inner.next_event(),
        }
    }
}

impl Deref for Endpoint {
    type Target = ConsumerEndpoint;

    fn deref(&self) -> &ConsumerEndpoint {
        &self.inner
    }
}

impl DerefMut for Endpoint {
    fn deref_mut(&mut self) -> &mut ConsumerEndpoint {
        &mut self.inner
    }
}
