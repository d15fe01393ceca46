//! A browser's connection as something to read from and write to, a bounded amount at a time.
//!
//! Called by [`server`](super::server), by the applications, and by `tungstenite` under a WebSocket. Guarantees that no call waits, and
//! that no more than a share of bytes is read in one turn of the event loop, however long the caller goes on: a message of a WebSocket can
//! come in fragments without end.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;
use std::time::Duration;

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Interest, monotonic_now};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// Bytes that are read from one connection before the others have their turn.
const SHARE: usize = 256 * 1024;
/// How long a browser has for its request, and at the end to take what is left in the kernel's buffers and to close its end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The connection.
#[derive(Debug)]
pub(crate) struct Browser {
    stream: Stream,
    /// The response to its request, or what of it the socket has not taken yet. Goes out before anything else.
    response: Vec<u8>,
    /// Bytes that may still be read in this turn.
    share: usize,
    /// When the patience with it ends, on the monotonic clock.
    deadline: Option<u64>,
    /// The peer was told that nothing more will come.
    finished: bool,
}

impl Browser {
    /// One that has connected just now.
    pub(super) fn new(stream: Stream) -> Browser {
        Browser {
            stream,
            response: Vec::new(),
            share: SHARE,
            deadline: Some(after(PATIENCE)),
            finished: false,
        }
    }

    /// To be called at the start of a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.share = SHARE;
    }

    /// Whether reading stopped because others have their turn, and not because there was nothing.
    pub(crate) fn turn_is_over(&self) -> bool {
        self.share == 0
    }

    /// Gives it so long from now, or any time. It has a turn when that is over, see [`is_late`](Browser::is_late).
    pub(crate) fn allow(&mut self, time: Option<Duration>) {
        self.deadline = time.map(after);
    }

    /// Whether its time is over.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= monotonic_now())
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Sends this first.
    pub(crate) fn respond(&mut self, response: Vec<u8>) {
        self.response = response;
    }

    /// One turn of taking leave: sends what is left of the response, says that nothing more will come, and reads what the peer still
    /// sends. A connection that is closed before it has been read empty is reset, and the reset overtakes what was sent. It is over when
    /// the peer has closed its end or its time is over, and fails with the socket.
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

    /// What to wait for when taking leave.
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
        // Unlike `Stream::recv`, this tells a connection that was reset from one that was closed.
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

/// Sends what the socket takes at once.
pub(crate) fn send(stream: &Stream, bytes: &[u8]) -> rustix::io::Result<usize> {
    retry_on_intr(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL))
}

/// A time from now, on the monotonic clock.
pub(super) fn after(duration: Duration) -> u64 {
    monotonic_now().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
