//! The process at the other end of a connection: that one, and no other that gets its id.
//!
//! `handshake` finds it before it reads anything by the process's id, and asks afterwards [whether it is there still](PeerProcess::is_there). The kernel
//! gives the id to another process only after this one is gone. If it is there still, everything read in between belonged to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ferretto_ipc::reactor::boot_now;
use ferretto_ipc::transport::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::pidfd;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct PeerProcess(OwnedFd);

/// When a connection was accepted, in nanoseconds since boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted(u64);

impl Accepted {
    /// Now.
    pub(crate) fn now() -> Accepted {
        Accepted(boot_now())
    }
}

impl PeerProcess {
    /// The process that has made this connection, which the kernel says has this id. It may have handed the connection on to others and be gone.
    ///
    /// # Errors
    /// If it is gone, or cannot be told from another one.
    pub(crate) fn of(stream: &Stream, pid: i32, accepted: Accepted) -> io::Result<PeerProcess> {
        let process = match pidfd::of_peer(stream.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                PeerProcess::by_id(stream, pid, accepted)?
            }
            found => PeerProcess(found?),
        };
        match process.is_there() {
            true => Ok(process),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The same for kernels before 6.5. If another process had the id by now, it would have begun since: before the connection was accepted only
    /// if the one that connected had handed its end on to others, because the connection is open.
    fn by_id(stream: &Stream, pid: i32, accepted: Accepted) -> io::Result<PeerProcess> {
        let id = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let process = PeerProcess(pidfd_open(id, PidfdFlags::empty())?);
        let began = began_at(pid).ok_or(io::ErrorKind::NotFound)?;
        match wait(stream.as_fd(), PollFlags::RDHUP, Duration::ZERO)? {
            Waited::InVain if began <= accepted.0 => Ok(process),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether it has not ended.
    pub(crate) fn is_there(&self) -> bool {
        wait(self.0.as_fd(), PollFlags::IN, Duration::ZERO).is_ok_and(|waited| waited == Waited::InVain)
    }

    /// Its descriptor, which is readable when the process has ended.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        self.0
    }
}

/// When a process began, in nanoseconds since boot, rounded down to a tick of the kernel's clock.
fn began_at(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have anything in it. It is the second field, and the time is field 22.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    ticks.checked_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

/// See [`wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Ready,
    InVain,
}

/// Waits for at most so long until a descriptor is ready.
///
/// # Errors
/// If the kernel cannot wait for it.
pub(crate) fn wait(fd: BorrowedFd<'_>, what: PollFlags, at_most: Duration) -> io::Result<Waited> {
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use ferretto_ipc::{Address, Listener};

    use super::*;

    /// A process that connects, hands its connection on to its child, and ends. The child keeps it until it is told to end.
    const HANDS_ON: &str = "
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
if os.fork():
    sys.stdin.readline()
    os._exit(0)
sys.stdin.close()
connection.recv(1)
";

    /// A connection of such a process, which waits for a line before it ends.
    fn connected() -> Option<(Child, Stream, tempfile::TempDir)> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = Listener::bind_packets(&Address::Unix(path.clone()), None).expect("it listens");
        let child = Command::new("python3")
            .args(["-c", HANDS_ON])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: there is no python3");
            return None;
        };
        loop {
            wait(listener.as_fd(), PollFlags::IN, Duration::from_secs(30)).expect("poll");
            match listener.accept().expect("it accepts") {
                Some(stream) => return Some((child, stream, folder)),
                None => assert!(child.try_wait().expect("it runs").is_none(), "it did not connect"),
            }
        }
    }

    fn by_either_way(stream: &Stream, pid: i32) -> [io::Result<PeerProcess>; 2] {
        let accepted = Accepted::now();
        [
            PeerProcess::of(stream, pid, accepted),
            PeerProcess::by_id(stream, pid, accepted),
        ]
    }

    #[test]
    fn the_process_that_has_connected_is_found_and_not_the_one_that_has_its_connection() {
        let Some((mut child, stream, _folder)) = connected() else {
            return;
        };
        let pid = child.id().cast_signed();
        let found = by_either_way(&stream, pid).map(|found| found.expect("it is there"));
        assert!(found.iter().all(PeerProcess::is_there));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(!found.iter().any(PeerProcess::is_there));
        // Its child keeps the connection open, so that alone says nothing.
        let is_open = wait(stream.as_fd(), PollFlags::RDHUP, Duration::ZERO).expect("poll");
        assert_eq!(is_open, Waited::InVain);
        assert!(by_either_way(&stream, pid).iter().all(Result::is_err));
    }

    #[test]
    fn without_help_of_the_kernel_a_process_that_began_after_the_connection_is_another_one() {
        let Some((mut child, stream, _folder)) = connected() else {
            return;
        };
        let pid = child.id().cast_signed();
        let began = began_at(pid).expect("it runs");
        assert!(PeerProcess::by_id(&stream, pid, Accepted(began)).is_ok());
        assert!(PeerProcess::by_id(&stream, pid, Accepted(began - 1)).is_err());
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }
}
