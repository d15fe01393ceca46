//! A producer's end, over a socket or of the service in this process.

use std::os::fd::{AsFd, BorrowedFd};

use ferretto_client::arbiter::Request;
use ferretto_client::producer::{DataSourceInstanceId, FlushRequestId, ProducerEndpoint, ProducerEvent};
use ferretto_ipc::client::CallId;
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::DataSourceDescriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[cfg(feature = "in-process")]
use crate::in_process;
use crate::process_hooks::KeptFromChildren;

/// Requests to a service, and its events. A request over a socket that cannot be queued is dropped: then the connection is over, of
/// which there is an event to come.
#[derive(Debug)]
pub(super) enum ProducerLink {
    Ipc(KeptFromChildren<Box<ProducerEndpoint>>),
    #[cfg(feature = "in-process")]
    InProcess(in_process::Producer),
}

impl ProducerLink {
    /// What to watch, and for what.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        match self {
            ProducerLink::Ipc(endpoint) => Some((endpoint.as_fd(), endpoint.interest())),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(_) => None,
        }
    }

    pub(super) fn on_readable(&mut self) {
        match self {
            ProducerLink::Ipc(endpoint) => endpoint.on_readable(),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(_) => {}
        }
    }

    /// Sends what waits, as far as it is taken.
    pub(super) fn flush(&mut self) {
        match self {
            ProducerLink::Ipc(endpoint) => endpoint.flush(),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(_) => {}
        }
    }

    pub(super) fn next_event(&mut self) -> Option<ProducerEvent> {
        match self {
            ProducerLink::Ipc(endpoint) => endpoint.next_event(),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.next_event(),
        }
    }

    /// Bytes that may be queued before requests are refused.
    pub(super) fn outgoing_room(&self) -> usize {
        match self {
            ProducerLink::Ipc(endpoint) => endpoint.outgoing_room(),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(_) => usize::MAX,
        }
    }

    /// Whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        matches!(self.interest(), Some((_, Interest::Writable | Interest::Both)))
    }

    /// Whether the service has closed its end. What it said before stays to be read.
    pub(super) fn is_hung_up(&self) -> bool {
        let Some((fd, _)) = self.interest() else {
            return false;
        };
        let mut polled = [PollFd::new(&fd, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    pub(super) fn register_data_source(&mut self, descriptor: &DataSourceDescriptor) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.register_data_source(descriptor.clone())),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.register_data_source(descriptor),
        }
    }

    pub(super) fn update_data_source(&mut self, descriptor: &DataSourceDescriptor) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.update_data_source(descriptor.clone())),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.update_data_source(descriptor),
        }
    }

    pub(super) fn unregister_data_source(&mut self, name: &str) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.unregister_data_source(name)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.unregister_data_source(name),
        }
    }

    /// Sends what an arbiter collected.
    pub(super) fn send(&mut self, request: Request) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.send(request)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.send(&request),
        }
    }

    pub(super) fn acknowledge_flush(&mut self, flush: FlushRequestId) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.acknowledge_flush(flush)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.acknowledge_flush(flush),
        }
    }

    pub(super) fn notify_data_source_started(&mut self, instance: DataSourceInstanceId) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.notify_data_source_started(instance)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.notify_data_source_started(instance),
        }
    }

    pub(super) fn notify_data_source_stopped(&mut self, instance: DataSourceInstanceId) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.notify_data_source_stopped(instance)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.notify_data_source_stopped(instance),
        }
    }

    /// Asks to be told when the service has seen all that came before. None if it cannot be asked.
    pub(super) fn sync(&mut self) -> Option<CallId> {
        match self {
            ProducerLink::Ipc(endpoint) => endpoint.sync().ok(),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => Some(producer.sync()),
        }
    }

    pub(super) fn activate_triggers(&mut self, names: &[String]) {
        match self {
            ProducerLink::Ipc(endpoint) => drop(endpoint.activate_triggers(names)),
            #[cfg(feature = "in-process")]
            ProducerLink::InProcess(producer) => producer.activate_triggers(names),
        }
    }
}
