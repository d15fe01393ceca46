//! One connection of a client, from its hello to its ring.
//!
//! [`listener`](crate::listener) calls it on a thread of its own, because a process whose command line has to be read can keep the reader waiting. The
//! kernel says who the client is; its own words only say why it comes.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferretto_heap_client::handshake::{Hello, Reason, Welcome};
use ferretto_heap_client::layout::REGISTERS;
use ferretto_ipc::transport::{PeerCredentials, Received, Stream};
use ferretto_profile::stacks::Met;
use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::client::{Arrived, Client};
use crate::memory::RingMemory;
use crate::process::{Accepted, PeerProcess, wait};
use crate::sessions::{Applicant, Sessions};

/// How long a client may take to say hello.
const HELLO: Duration = Duration::from_millis(500);

/// Serves a connection. Clients that are not to be profiled, and whatever else connects, are dismissed without a word, by closing it.
///
/// # Errors
/// If a client that is to be profiled gets no ring: a sentence for the log.
pub(crate) fn serve(
    mut stream: Stream,
    peer: PeerCredentials,
    accepted: Accepted,
    sessions: &Arc<Sessions>,
) -> Result<(), String> {
    // A process outside of this daemon's namespace has no id here, and no files to be found.
    let Some(pid) = peer.pid else { return Ok(()) };
    let Some(hello) = receive(&mut stream) else {
        return Ok(());
    };
    let failed = |error: io::Error| format!("cannot profile the heap of process {pid}: {error}");
    let process = match PeerProcess::of(&stream, pid, accepted) {
        // It has nothing to be profiled any more.
        Err(error) if is_gone(&error) => return Ok(()),
        process => process.map_err(failed)?,
    };
    let applicant = Applicant {
        pid,
        user: peer.uid,
        reason: hello.reason,
        is_there: &|| process.is_there(),
    };
    let refused = |reason| format!("the heap of process {pid} is not profiled: {reason}");
    let Some(claim) = sessions.claim(&applicant).map_err(refused)? else {
        return Ok(());
    };
    if hello.registers as usize != REGISTERS || REGISTERS == 0 {
        return Err(format!(
            "process {pid} runs on another architecture than this daemon, so its heap is not profiled"
        ));
    }
    let (memory, file) = RingMemory::new(claim.config.ring_words).map_err(failed)?;
    let arrived = Arrived::now();
    let config = claim.config.clone();
    let from_startup = hello.reason != Reason::Signal;
    let met = Met::open(pid).map_err(failed);
    if !process.is_there() {
        // The opened file may be another process's.
        return Ok(());
    }
    let process = process.into_descriptor();
    // The session has it before it can write, so that nothing that it writes is overlooked when the session ends.
    let slot = sessions.deliver(Client::new(claim, process, met?, memory, arrived, from_startup));
    if send(&stream, &config.welcome, file).is_err() {
        sessions.revoke(slot, pid);
    }
    Ok(())
}

/// Whether an error of [`PeerProcess::of`] says that the process has ended.
fn is_gone(error: &io::Error) -> bool {
    // `EINVAL` is what kernels before 6.16 say.
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL))
}

fn receive(stream: &mut Stream) -> Option<Hello> {
    let mut bytes = [0; Hello::BYTES + 1];
    wait(stream.as_fd(), PollFlags::IN, HELLO).ok()?;
    match stream.recv(&mut bytes, &mut None) {
        Ok(Received::Bytes(length)) => Hello::decode(&bytes[..length]),
        Ok(Received::WouldBlock | Received::Closed) | Err(_) => None,
    }
}

/// The answer fits into any socket's buffer, so this does not wait.
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
