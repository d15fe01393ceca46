//! The place where clients connect: one socket for the whole daemon.
//!
//! [`ClientSocket::serve`] starts a thread that accepts connections. Each `handshake` has a thread of its own, because reading a client's command line can
//! block for as long as the client likes. There are `MOST_HANDSHAKES` at a time, and `MOST_OF_USER` of them are of one user; others wait, for as long as clients
//! do. So a user who keeps handshakes waiting keeps out nobody else. The log is told of clients that are refused, within the limits of `warnings`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferretto_client::runtime::ProducerProgram;
use ferretto_heap_client::handshake::{HEAP_SOCK_NAME, RUN_SOCKET, TMP_SOCKET};
use ferretto_ipc::channel::{Receiver, Sender, channel};
use ferretto_ipc::reactor::{Deadline, Events, Interest, Reactor, ReactorError, Token, Waker};
use ferretto_ipc::transport::{ACCEPTS_PER_TURN, PeerCredentials, SocketPermissions, Stream, TransportError};
use ferretto_ipc::{Address, Listener, socket_names};

use crate::handshake;
use crate::process::Accepted;
use crate::sessions::Sessions;
use crate::source::NAME;
use crate::warnings::Warnings;

/// Handshakes at a time.
const MOST_HANDSHAKES: usize = 256;

/// The most clients of one user.
const MOST_OF_USER: usize = 16;

/// Connections that wait for their handshake, and those of one user.
const MOST_WAITING: usize = 512;
const MOST_WAITING_OF_USER: usize = 256;

/// Clients have given up by then.
const WAIT: Duration = Duration::from_secs(1);

/// No connection is accepted for so long after there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

const SOCKET: Token = Token(0);

/// The address where clients look for the daemon.
///
/// # Errors
/// If the environment names none.
pub fn address() -> Result<Address, socket_names::SocketNameError> {
    socket_names::address_or(HEAP_SOCK_NAME, RUN_SOCKET, TMP_SOCKET)
}

/// See the [module](self).
#[derive(Debug)]
pub struct ClientSocket(Listener);

impl ClientSocket {
    /// Listens at this address. Without permissions the umask decides who may connect, as for the service's sockets.
    ///
    /// # Errors
    /// If another process does, or the address cannot be used.
    pub fn bind(
        address: &Address,
        permissions: Option<&SocketPermissions>,
    ) -> Result<ClientSocket, TransportError> {
        Listener::bind_packets(address, permissions).map(ClientSocket)
    }

    /// Starts to accept clients, until the result is closed.
    ///
    /// # Errors
    /// If the system has no thread or no event loop for it.
    pub fn serve(
        self,
        program: Arc<dyn ProducerProgram>,
        sessions: Arc<Sessions>,
    ) -> std::io::Result<Serving> {
        let reactor = Reactor::new().map_err(std::io::Error::other)?;
        let (done, served) = channel();
        let waker = reactor.waker();
        let is_closing = Arc::new(AtomicBool::new(false));
        let mut door = Door {
            warnings: Arc::new(Warnings::new(program.clone())),
            sessions,
            waker: waker.clone(),
            is_closing: is_closing.clone(),
            done,
            served,
            waiting: VecDeque::new(),
            waiting_of: HashMap::new(),
            running: 0,
            running_of: HashMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("heap_clients".to_owned())
            .spawn(move || {
                if let Err(error) = door.serve(&self.0, reactor) {
                    program.warning(&format!("{NAME}: no more processes can connect: {error}"));
                }
                self.0.close();
            })?;
        Ok(Serving {
            thread,
            waker,
            is_closing,
        })
    }
}

/// A socket on which clients are accepted.
#[derive(Debug)]
pub struct Serving {
    thread: JoinHandle<()>,
    waker: Waker,
    is_closing: Arc<AtomicBool>,
}

impl Serving {
    /// Accepts no more clients, and removes the socket's file.
    pub fn close(self) {
        self.is_closing.store(true, Ordering::Release);
        self.waker.wake();
        // The panic handler has reported any panic.
        let _ = self.thread.join();
    }
}

/// Connections and their handshakes.
struct Door {
    warnings: Arc<Warnings>,
    sessions: Arc<Sessions>,
    waker: Waker,
    is_closing: Arc<AtomicBool>,
    /// Users whose handshakes are done.
    done: Sender<u32>,
    served: Receiver<u32>,
    waiting: VecDeque<Waiting>,
    waiting_of: HashMap<u32, usize>,
    running: usize,
    running_of: HashMap<u32, usize>,
}

struct Waiting {
    stream: Stream,
    peer: PeerCredentials,
    accepted: Accepted,
    until: Instant,
}

impl Door {
    fn serve(&mut self, listener: &Listener, mut reactor: Reactor) -> Result<(), ReactorError> {
        reactor.register(listener, SOCKET, Interest::Readable)?;
        let mut events = Events::new();
        let mut is_paused = false;
        while !self.is_closing.load(Ordering::Acquire) {
            let until = is_paused.then(|| Deadline::after(PAUSE));
            reactor.wait(&mut events, until)?;
            if is_paused && events.deadline_passed() {
                is_paused = false;
                reactor.reregister(listener, SOCKET, Interest::Readable)?;
            }
            while let Ok(user) = self.served.try_receive() {
                self.running -= 1;
                decrease(&mut self.running_of, user);
            }
            if !is_paused && let Err(error) = self.accept(listener) {
                // It comes again after each pause.
                self.warnings.about_daemon(&error.to_string());
                reactor.reregister(listener, SOCKET, Interest::None)?;
                is_paused = true;
            }
            self.begin();
        }
        Ok(())
    }

    /// Takes the connections that wait, so many at most; the reactor tells of the others again.
    fn accept(&mut self, listener: &Listener) -> Result<(), TransportError> {
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.accept()? {
                Some(stream) => self.admit(stream),
                None => break,
            }
        }
        Ok(())
    }

    /// Has a connection wait for its handshake; dismisses it if it may not.
    fn admit(&mut self, stream: Stream) {
        let Ok(Some(peer)) = stream.peer_credentials() else {
            return;
        };
        let own = rustix::process::geteuid();
        let is_allowed = own.is_root() || own.as_raw() == peer.uid;
        let of_user = self.waiting_of.get(&peer.uid).copied().unwrap_or(0);
        if !is_allowed {
            return;
        }
        if self.waiting.len() >= MOST_WAITING || of_user >= MOST_WAITING_OF_USER {
            let line = format!(
                "a process of uid {} is not profiled: {} processes wait for an answer, {of_user} of them of this user",
                peer.uid,
                self.waiting.len()
            );
            self.warnings.about_client_of(peer.uid, &line);
            return;
        }
        *self.waiting_of.entry(peer.uid).or_default() += 1;
        self.waiting.push_back(Waiting {
            stream,
            peer,
            accepted: Accepted::now(),
            until: Instant::now() + WAIT,
        });
    }

    /// Begins as many handshakes as there may be.
    fn begin(&mut self) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let user = waiting.peer.uid;
            if now > waiting.until {
                decrease(&mut self.waiting_of, user);
                continue;
            }
            let of_user = self.running_of.get(&user).copied().unwrap_or(0);
            if self.running >= MOST_HANDSHAKES || of_user >= MOST_OF_USER {
                self.waiting.push_back(waiting);
                continue;
            }
            decrease(&mut self.waiting_of, user);
            self.shake_hands(waiting);
        }
    }

    fn shake_hands(&mut self, waiting: Waiting) {
        let Waiting {
            stream,
            peer,
            accepted,
            ..
        } = waiting;
        let user = peer.uid;
        let finish = Finish {
            user,
            done: self.done.clone(),
            waker: self.waker.clone(),
        };
        let (warnings, sessions) = (self.warnings.clone(), self.sessions.clone());
        let thread = std::thread::Builder::new().name("heap_handshake".to_owned());
        // However it ends, the thread takes itself off again.
        self.running += 1;
        *self.running_of.entry(user).or_default() += 1;
        let started = thread.spawn(move || {
            let _finish = finish;
            if let Err(error) = handshake::serve(stream, peer, accepted, &sessions) {
                warnings.about_client_of(user, &error);
            }
        });
        if let Err(error) = started {
            let line = format!("there is no thread for a client: {error}");
            self.warnings.about_client_of(user, &line);
        }
    }
}

/// Says that a handshake is over, however it ends.
struct Finish {
    user: u32,
    done: Sender<u32>,
    waker: Waker,
}

impl Drop for Finish {
    fn drop(&mut self) {
        if self.done.send(self.user).is_ok() {
            self.waker.wake();
        }
    }
}

fn decrease(counts: &mut HashMap<u32, usize>, user: u32) {
    if let Some(count) = counts.get_mut(&user) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ferretto_client::data_source::Slot;
    use ferretto_heap_client::handshake::{Hello, Reason};
    use ferretto_heap_client::layout::REGISTERS;
    use ferretto_proto::messages::HeapprofdConfig;
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

    use super::*;
    use crate::config::HeapConfig;
    use crate::sessions::News;

    /// How long something may take that must happen.
    const PATIENCE: Duration = Duration::from_secs(30);

    struct Program;

    impl ProducerProgram for Program {
        fn info(&self, _line: &str) {}

        fn warning(&self, _line: &str) {}

        fn is_own_thread(&self) -> bool {
            false
        }
    }

    fn connect(path: &Path) -> Option<rustix::fd::OwnedFd> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a socket");
        let address = SocketAddrUnix::new(path).expect("a short path");
        rustix::net::connect(&socket, &address).ok().map(|()| socket)
    }

    #[test]
    fn those_that_connect_and_leave_keep_out_no_honest_client_and_hold_up_no_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("heapprofd");
        let socket = ClientSocket::bind(&Address::Unix(path.clone()), None).expect("a socket");
        let sessions = Arc::new(Sessions::default());
        let config = HeapprofdConfig {
            sampling_interval_bytes: Some(4096),
            pid: vec![std::process::id().into()],
            ..Default::default()
        };
        let config = Arc::new(HeapConfig::of(&config).expect("it is good"));
        let reactor = Reactor::new().expect("a reactor");
        let (news, receiver) = channel();
        let slot = Slot::first(1).next().expect("it is one");
        sessions.open(slot, config, news, reactor.waker());
        let serving = socket
            .serve(Arc::new(Program), sessions.clone())
            .expect("a thread");
        let is_over = Arc::new(AtomicBool::new(false));
        let crowd = [(); 8].map(|()| {
            let (path, is_over) = (path.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop(connect(&path));
                }
            })
        });
        let began = Instant::now();
        let hello = Hello {
            reason: Reason::Startup,
            registers: REGISTERS as u32,
        };
        // It is refused while too many of its user wait, and comes again.
        let mut has_arrived = false;
        while !has_arrived && began.elapsed() < PATIENCE {
            let connection = connect(&path);
            if let Some(connection) = &connection {
                let _ = rustix::net::send(connection, &hello.encode(), SendFlags::NOSIGNAL);
            }
            std::thread::sleep(Duration::from_millis(20));
            has_arrived = matches!(receiver.try_receive(), Ok(News::Arrived(_)));
        }
        let (closed, has_closed) = channel();
        std::thread::spawn(move || {
            serving.close();
            let _ = closed.send(());
        });
        while has_closed.try_receive().is_err() && began.elapsed() < 2 * PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        for thread in crowd {
            thread.join().expect("no panic");
        }
        assert!(has_arrived);
        assert!(took < 2 * PATIENCE, "{took:?}");
    }
}
