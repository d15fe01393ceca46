//! One of the two sockets between which a forwarder passes bytes, in its event loop. Called by `traced_relay` and `ferretto-tunnel`.

use std::os::fd::{AsFd, BorrowedFd};

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Interest, Reactor, Token, Watch};

/// See the [module](self).
#[derive(Debug)]
pub struct PairedSocket {
    /// The connection.
    pub stream: Stream,
    /// How the reactor watches it.
    pub watch: Watch,
    /// The peer has gone. The kernel reports that again and again.
    pub hung_up: bool,
}

impl PairedSocket {
    /// A socket that is not watched yet.
    pub fn new(stream: Stream, token: Token) -> PairedSocket {
        PairedSocket {
            stream,
            watch: Watch::new(token),
            hung_up: false,
        }
    }

    /// Has the reactor watch for input, for room for output, or for both. A peer that has gone is watched only for these.
    pub fn watch(&mut self, reactor: &Reactor, input: bool, output: bool) {
        if self.hung_up && !input && !output {
            self.watch.end(reactor, &self.stream);
        } else {
            let fd: BorrowedFd<'_> = self.stream.as_fd();
            self.watch
                .update(reactor, Some((fd, Interest::from_wants(input, output))));
        }
    }

    /// Ends the connection.
    pub fn close(mut self, reactor: &Reactor) {
        self.watch.end(reactor, &self.stream);
        self.stream.hang_up();
    }
}
