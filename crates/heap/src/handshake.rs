//! One connection of a client, from its hello to its ring.
//!
//! [`listener`](crate::listener) calls it on a thread of its own, because a process whose command line has to be read can keep the reader waiting. The
//! kernel says who the client is; its own words only say why it comes.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferretto_heap_client::handshake::{Hello, Reason, Welcome};
use ferretto_heap_client::layout::REGISTERS;
use ferretto_ipc::transport::{PeerCredentials, Received, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::client::{Arrived, Client};
use crate::memory::RingMemory;
use crate::sessions::Sessions;

/// How long a client may take to say hello.
const HELLO: Duration = Duration::from_millis(500);

/// Serves a connection. Clients that are not to be profiled, and whatever else connects, are dismissed without a word, by closing it.
///
/// # Errors
/// If a client that is to be profiled gets no ring: a sentence for the log.
pub(crate) fn serve(
    mut stream: Stream,
    peer: PeerCredentials,
    sessions: &Arc<Sessions>,
) -> Result<(), String> {
    // A process outside of this daemon's namespace has no id here, and no files to be found.
    let Some(pid) = peer.pid else { return Ok(()) };
    let Some(hello) = receive(&mut stream) else {
        return Ok(());
    };
    if hello.registers as usize != REGISTERS || REGISTERS == 0 {
        return Err(format!(
            "process {pid} runs on another architecture than this daemon, so its heap is not profiled"
        ));
    }
    let Some(claim) = sessions.claim(pid, hello.reason) else {
        return Ok(());
    };
    let failed = |error: io::Error| format!("cannot profile the heap of process {pid}: {error}");
    let process = open(&stream, pid).map_err(failed)?;
    let (memory, file) = RingMemory::new(claim.config.ring_words).map_err(failed)?;
    let arrived = Arrived::now();
    // If the client is gone by now, its claim ends with this function.
    if send(&stream, &claim.config.welcome, file).is_ok() {
        let from_startup = hello.reason != Reason::Signal;
        sessions.deliver(Client::new(claim, process, memory, arrived, from_startup));
    }
    Ok(())
}

/// A descriptor of the process that is connected.
fn open(stream: &Stream, pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // If it were another process, the one that has connected would be dead, and its end of the connection closed.
    match wait(stream.as_fd(), PollFlags::RDHUP, Duration::ZERO)? {
        Waited::InVain => Ok(process),
        Waited::Ready => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

fn receive(stream: &mut Stream) -> Option<Hello> {
    let mut bytes = [0; Hello::BYTES + 1];
    wait(stream.as_fd(), PollFlags::IN, HELLO).ok()?;
    match stream.recv(&mut bytes, &mut None) {
        Ok(Received::Bytes(length)) => Hello::decode(&bytes[..length]),
        Ok(Received::WouldBlock | Received::Closed) | Err(_) => None,
    }
}

/// The answer is shorter than what any socket holds, so this does not wait.
fn send(stream: &Stream, welcome: &Welcome, file: OwnedFd) -> io::Result<()> {
    let mut bytes = [0; Welcome::MOST_BYTES];
    let length = welcome.encode(&mut bytes);
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let message = [IoSlice::new(&bytes[..length])];
    sendmsg(stream, &message, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// See [`wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Ready,
    InVain,
}

fn wait(fd: BorrowedFd<'_>, what: PollFlags, at_most: Duration) -> io::Result<Waited> {
    let timeout = Timespec {
        tv_sec: at_most.as_secs() as i64,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, what)];
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? {
        0 => Ok(Waited::InVain),
        _ => Ok(Waited::Ready),
    }
}
