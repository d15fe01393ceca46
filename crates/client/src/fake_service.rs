//! A service with scripted answers, at the other end of a socket pair.

use std::os::fd::OwnedFd;

use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply, ReplyTo, ReplyWanted};
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_ipc::{HostConnection, PassedFd, Stream};

/// A request that owns its payload.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) payload: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) reply_to: ReplyTo,
}

impl Asked {
    pub(crate) fn awaits_reply(&self) -> bool {
        self.reply_to.wanted() == ReplyWanted::Yes
    }
}

pub(crate) struct FakeService {
    stream: Stream,
    host: HostConnection,
}

/// A program that a test beside this one starts has a copy of the socket until it runs. It keeps no connection open that has ended.
impl Drop for FakeService {
    fn drop(&mut self) {
        self.stream.end_output();
        self.stream.end_input();
    }
}

impl FakeService {
    /// Makes the service, and the stream to it.
    pub(crate) fn new(services: &'static [&'static ServiceDescriptor]) -> (FakeService, Stream) {
        let (ours, theirs) = Stream::pair().unwrap();
        (FakeService::over(ours, services), theirs)
    }

    /// Makes the service on a connection that it has accepted.
    pub(crate) fn over(stream: Stream, services: &'static [&'static ServiceDescriptor]) -> FakeService {
        let host = HostConnection::new(services, PeerIdentitySource::Kernel, HostLimits::default());
        FakeService { stream, host }
    }

    /// All requests that have arrived; binding is answered on the way.
    pub(crate) fn asked(&mut self) -> Vec<Asked> {
        self.stream
            .read_into(&mut self.host, &mut vec![0; 65536])
            .unwrap();
        self.host.begin_turn();
        let mut asked = Vec::new();
        while let Some(request) = self.host.next_request().unwrap() {
            asked.push(Asked {
                method: request.method,
                payload: request.payload.to_vec(),
                fd: request.fd.map(PassedFd::into_inner),
                reply_to: request.reply_to,
            });
        }
        self.stream.flush(self.host.outgoing()).unwrap();
        asked
    }

    pub(crate) fn reply(&mut self, to: ReplyTo, reply: Reply) {
        self.host.reply(to, reply).unwrap();
        self.flush();
    }

    /// Sends waiting frames, as far as the socket takes them.
    pub(crate) fn flush(&mut self) {
        self.stream.flush(self.host.outgoing()).unwrap();
    }
}
