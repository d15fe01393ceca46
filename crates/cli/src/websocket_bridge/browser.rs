//! A browser's connection as something to read from and write to, a bounded amount at a time.
//!
//! Called by [`server`](super::server), and by `tungstenite` under a [`Session`](super::session::Session). Guarantees that no call
//! waits, and that no more than a share of bytes is read in one turn of the event loop, however long the caller goes on: a message
//! can come in fragments without end.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::Received;
use rustix::net::{SendFlags, Shutdown};

/// Bytes that are read from one connection before the others have their turn.
const SHARE: usize = 256 * 1024;

/// The connection.
#[derive(Debug)]
pub(super) struct Browser {
    stream: Stream,
    /// The response to its request, or what of it the socket has not taken yet. Goes out before anything else.
    response: Vec<u8>,
    /// Bytes that may still be read in this turn.
    share: usize,
    /// The peer was told that nothing more will come.
    finished: bool,
}

impl Browser {
    pub(super) fn new(stream: Stream) -> Browser {
        Browser {
            stream,
            response: Vec::new(),
            share: SHARE,
            finished: false,
        }
    }

    /// To be called at the start of a turn.
    pub(super) fn begin_turn(&mut self) {
        self.share = SHARE;
    }

    /// Whether reading stopped because others have their turn, and not because there was nothing.
    pub(super) fn turn_is_over(&self) -> bool {
        self.share == 0
    }

    /// Sends this first.
    pub(super) fn respond(&mut self, response: Vec<u8>) {
        self.response = response;
    }

    /// One turn of taking leave: sends what is left of the response, says that nothing more will come, and reads what the peer
    /// still sends, or the end of the connection would overtake the response.
    ///
    /// # Errors
    /// When it is over, because the peer has closed its end or because the socket has failed.
    pub(super) fn leave(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        self.begin_turn();
        let waits = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        };
        if !self.finished {
            if let Err(error) = self.flush() {
                return waits(error);
            }
            rustix::net::shutdown(&self.stream, Shutdown::Write)?;
            self.finished = true;
        }
        loop {
            match self.read(scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return waits(error),
            }
        }
    }

    /// What to wait for when taking leave.
    pub(super) fn interest_in_leaving(&self) -> Interest {
        Interest::from_wants(true, !self.finished)
    }
}

impl Read for Browser {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.share);
        if most == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        // No descriptors come over TCP.
        match self.stream.recv(&mut buffer[..most], &mut None) {
            Ok(Received::Bytes(count)) => {
                self.share -= count;
                Ok(count)
            }
            Ok(Received::Closed) => Ok(0),
            Ok(Received::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(io::Error::other(error)),
        }
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
pub(super) fn send(stream: &Stream, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| rustix::net::send(stream, bytes, SendFlags::NOSIGNAL))
}
