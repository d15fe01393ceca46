//! A browser's connection, with bounded reading and writing.
//!
//! [`server`](super::server), the applications, and `tungstenite` under a WebSocket use it. No call waits. In one turn of the event loop a connection
//! yields at most a share of bytes, even if the caller reads on, because a WebSocket message can consist of endless fragments.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;
use std::time::Duration;

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Interest, monotonic_now};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// The bytes that one connection may read before the others get their turn.
const SHARE: usize = 256 * 1024;
/// The time that a browser has for its request, and again at the end to take the rest of the data and close its end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A browser's connection.
#[derive(Debug)]
pub(crate) struct Browser {
    stream: Stream,
    /// The part of the response that the socket has not taken yet. It goes out before anything else.
    response: Vec<u8>,
    /// The bytes that may still be read in this turn.
    share: usize,
    /// The time at which the browser is late, on the monotonic clock.
    deadline: Option<u64>,
    /// Whether the sending direction has been shut down.
    finished: bool,
}

impl Browser {
    /// Wraps a new connection.
    pub(super) fn new(stream: Stream) -> Browser {
        Browser {
            stream,
            response: Vec::new(),
            share: SHARE,
            deadline: Some(after(PATIENCE)),
            finished: false,
        }
    }

    /// Begins a turn with a full share. To be called at the start of each turn.
    pub(crate) fn begin_turn(&mut self) {
        self.share = SHARE;
    }

    /// Whether reading stopped because the share is used up, and not for lack of data.
    pub(crate) fn turn_is_over(&self) -> bool {
        self.share == 0
    }

    /// Sets a deadline that far from now, or removes it. The connection gets a turn at the deadline; see [`is_late`](Browser::is_late).
    pub(crate) fn allow(&mut self, time: Option<Duration>) {
        self.deadline = time.map(after);
    }

    /// Whether its deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= monotonic_now())
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Sets the response, which goes out before anything else.
    pub(crate) fn respond(&mut self, response: Vec<u8>) {
        self.response = response;
    }

    /// Takes one turn of closing: sends the rest of the response, shuts down the sending direction, and reads what the peer still sends. If a
    /// connection is closed with unread data, the kernel resets it, and the reset overtakes the data that were sent. It is ready when the peer has
    /// closed its end or the deadline has passed, and fails with the socket.
    pub(crate) fn leave(&mut self) -> Poll<io::Result<()>> {
        self.deadline.get_or_insert_with(|| after(PATIENCE));
        self.begin_turn();
        match self.try_leave() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => match self.is_late() {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            },
            end => Poll::Ready(end),
        }
    }

    fn try_leave(&mut self) -> io::Result<()> {
        if !self.finished {
            self.flush()?;
            rustix::net::shutdown(&self.stream, Shutdown::Write)?;
            self.finished = true;
        }
        while self.read(&mut [0; 4096])? > 0 {}
        Ok(())
    }

    /// Returns the events to wait for while closing.
    pub(crate) fn interest_in_leaving(&self) -> Interest {
        Interest::from_wants(self.finished, !self.finished)
    }
}

impl Read for Browser {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.share);
        if most == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        // Unlike `Stream::recv`, this distinguishes a reset connection from a closed one.
        let receive = || rustix::net::recv(&self.stream, &mut buffer[..most], RecvFlags::empty());
        let (count, _) = retry_on_intr(receive)?;
        self.share -= count;
        Ok(count)
    }
}

impl Write for Browser {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        Ok(send(&self.stream, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.response.is_empty() {
            let sent = send(&self.stream, &self.response)?;
            self.response.drain(..sent);
        }
        Ok(())
    }
}

impl AsFd for Browser {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sends as much as the socket takes at once.
pub(crate) fn send(stream: &Stream, bytes: &[u8]) -> rustix::io::Result<usize> {
    retry_on_intr(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL))
}

/// Returns a time that far from now, on the monotonic clock.
pub(super) fn after(duration: Duration) -> u64 {
    monotonic_now().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
