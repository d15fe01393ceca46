//! A service on a real socket, for real clients, whose answers a test decides.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply, ReplyTo};
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::ReadEnd;
use ferretto_ipc::{Address, HostConnection, Listener, PassedFd};
use rustix::event::{PollFd, PollFlags};

use super::PATIENCE;

/// A call from a client.
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) payload: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) to: ReplyTo,
}

/// A socket to which a client may connect.
pub(crate) struct ScriptedService(Listener);

impl ScriptedService {
    pub(crate) fn listen(socket: &Path) -> ScriptedService {
        ScriptedService(Listener::bind(&Address::Unix(socket.to_owned())).unwrap())
    }

    /// Serves one client until it disconnects, or until `answer` returns `None`. `answer` gets each call, and returns replies to this call or to
    /// earlier ones.
    pub(crate) fn serve(
        &self,
        services: &'static [&'static ServiceDescriptor],
        mut answer: impl FnMut(Asked) -> Option<Vec<(ReplyTo, Reply)>>,
    ) {
        await_interest(&self.0, Interest::Readable);
        let mut stream = self.0.accept().unwrap().expect("a client is there");
        let mut host = HostConnection::new(services, PeerIdentitySource::Kernel, HostLimits::default());
        let mut scratch = vec![0; 1 << 17];
        loop {
            let end = stream.read_into(&mut host, &mut scratch);
            host.begin_turn();
            loop {
                let asked = match host.next_request().unwrap() {
                    None => break,
                    Some(request) => Asked {
                        method: request.method,
                        payload: request.payload.to_vec(),
                        fd: request.fd.map(PassedFd::into_inner),
                        to: request.reply_to,
                    },
                };
                let Some(replies) = answer(asked) else { return };
                for (to, reply) in replies {
                    host.reply(to, reply).unwrap();
                }
            }
            if stream.flush(host.outgoing()).is_err()
                || !matches!(end, Ok(ReadEnd::Drained | ReadEnd::Paused))
            {
                return;
            }
            await_interest(&stream, host.interest());
        }
    }
}

fn await_interest(fd: &impl AsFd, interest: Interest) {
    let flags = match interest {
        Interest::None => PollFlags::empty(),
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
        Interest::Both => PollFlags::IN | PollFlags::OUT,
    };
    let patience = PATIENCE.try_into().unwrap();
    let mut polled = [PollFd::new(fd, flags)];
    assert!(
        rustix::event::poll(&mut polled, Some(&patience)).unwrap() > 0,
        "the client says nothing"
    );
}
