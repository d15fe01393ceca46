//! Descriptors that peers pass, and how they are closed: never by the thread that serves all peers.
//!
//! The peer that passes a descriptor decides how long closing it takes. The last one of a TCP socket with `SO_LINGER` waits until its peer has taken
//! all sent data, for up to eighteen hours; one of a network file system waits for its server, one of FUSE for a program of the peer's. So a thread
//! that does nothing else closes each [`PassedFd`] that was not taken. There is no such thread while there is nothing to close, and a few more if
//! closing takes long.
//!
//! Made by [`crate::transport`] for received descriptors; passed on by [`crate::frame`] and [`crate::host`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;

/// Threads that close at once. If all hang, the others wait for them.
const MAX_THREADS: usize = 8;
/// How long a thread waits for more to close before it ends.
const IDLE: Duration = Duration::from_secs(1);

static CLOSING: Closing<OwnedFd> = Closing::new();

/// A descriptor that a peer passed. When it is dropped, another thread closes it.
pub struct PassedFd(Option<OwnedFd>);

impl PassedFd {
    /// Takes the descriptor out, as an ordinary one: dropping it waits until it is closed.
    pub fn into_inner(mut self) -> OwnedFd {
        // Only `drop` leaves nothing behind.
        self.0.take().expect("it is there until it is dropped")
    }
}

impl From<OwnedFd> for PassedFd {
    fn from(fd: OwnedFd) -> PassedFd {
        PassedFd(Some(fd))
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl fmt::Debug for PassedFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PassedFd").field(&self.0).finish()
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            // Lingering would hold up a thread for nothing. Descriptors that are no sockets have no such option. A peer that shares the descriptor
            // may still turn it on again; then closing waits.
            let _ = sockopt::set_socket_linger(&fd, None);
            CLOSING.hand_over(fd);
        }
    }
}

/// The access for which a descriptor was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedFor {
    /// It can be read from.
    Reading,
    /// It can be written to.
    Writing,
    /// Both.
    Both,
    /// Neither: it stands for a place in the file system (`O_PATH`).
    Naming,
}

/// Returns the access for which a descriptor was opened.
///
/// # Errors
/// If the kernel does not tell.
#[allow(
    unsafe_code,
    reason = "the crate for system calls takes twice as long to compile with this one"
)]
pub fn opened_for(file: impl AsFd) -> io::Result<OpenedFor> {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => OpenedFor::Naming,
        libc::O_RDONLY => OpenedFor::Reading,
        libc::O_WRONLY => OpenedFor::Writing,
        _ => OpenedFor::Both,
    })
}

/// The items to be dropped, and the threads that drop them.
struct Closing<T> {
    queue: Mutex<Queue<T>>,
    work: Condvar,
}

struct Queue<T> {
    waiting: VecDeque<T>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
}

impl<T: Send> Closing<T> {
    const fn new() -> Closing<T> {
        Closing {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            work: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&'static self, item: T) {
        let mut queue = self.lock();
        queue.waiting.push_back(item);
        if queue.waiting.len() <= queue.idle {
            return self.work.notify_one();
        }
        if queue.threads < MAX_THREADS {
            let closer = std::thread::Builder::new().name("close".into());
            // If no thread can be made, the next thread closes this one as well.
            queue.threads += usize::from(closer.spawn(|| self.close_all()).is_ok());
        }
    }

    /// Drops items until there are none for a while: the work of a thread.
    fn close_all(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(item) = queue.waiting.pop_front() {
                drop(queue);
                drop(item);
                queue = self.lock();
                continue;
            }
            queue.idle += 1;
            let (woken, waited) = self
                .work
                .wait_timeout(queue, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A minute is longer than any test waits.
    const LONG: Duration = Duration::from_secs(60);

    /// A connected socket whose closing takes long, and its peer, which reads nothing.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while (&sender).write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&sender, Some(LONG)).unwrap();
        (sender, peer)
    }

    #[test]
    fn sockets_that_linger_are_closed_all_the_same() {
        let (sockets, _peers): (Vec<_>, Vec<_>) = (0..2 * MAX_THREADS).map(|_| lingering()).unzip();
        for socket in sockets {
            drop(PassedFd::from(OwnedFd::from(socket)));
        }
        let (pipe, other_end) = rustix::pipe::pipe().unwrap();
        drop(PassedFd::from(other_end));
        let mut polled = [rustix::event::PollFd::new(&pipe, rustix::event::PollFlags::IN)];
        let patience = (LONG / 2).try_into().unwrap();
        rustix::event::poll(&mut polled, Some(&patience)).unwrap();
        assert!(
            !polled[0].revents().is_empty(),
            "the other end of the pipe is still open"
        );
    }

    /// An object whose drop takes until the other end of the channel is gone, and is then reported.
    struct Hanging(Receiver<()>, Sender<usize>, usize);

    impl Drop for Hanging {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(self.2);
        }
    }

    #[test]
    fn handing_over_does_not_wait_and_a_hanging_close_holds_up_only_its_thread() {
        static HANGING: Closing<Hanging> = Closing::new();
        let (dropped, told) = channel();
        let mut holds = Vec::new();
        for number in 0..MAX_THREADS {
            let (hold, held) = channel();
            holds.push(hold);
            HANGING.hand_over(Hanging(held, dropped.clone(), number));
        }
        // All hang but the last, and so there is one thread for the rest.
        drop(holds.pop());
        assert_eq!(told.recv_timeout(LONG / 2), Ok(MAX_THREADS - 1));
        for number in 100..110 {
            let (_, held) = channel();
            HANGING.hand_over(Hanging(held, dropped.clone(), number));
            assert_eq!(told.recv_timeout(LONG / 2), Ok(number));
        }
        // Let go, they are all dropped, and the threads end.
        drop(holds);
        let mut rest: Vec<usize> = (1..MAX_THREADS)
            .map(|_| told.recv_timeout(LONG / 2).unwrap())
            .collect();
        rest.sort_unstable();
        assert!(rest.into_iter().eq(0..MAX_THREADS - 1));
        let until = std::time::Instant::now() + LONG / 2;
        while HANGING.lock().threads > 0 {
            assert!(
                std::time::Instant::now() < until,
                "threads that have nothing to do stay"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_that_is_taken_is_not_closed() {
        let (pipe, other_end) = rustix::pipe::pipe().unwrap();
        let taken = PassedFd::from(other_end).into_inner();
        assert_eq!(rustix::io::write(&taken, b"x"), Ok(1));
        assert_eq!(rustix::io::read(&pipe, &mut [0]), Ok(1));
    }
}
