//! The client's side of the handshake: from a socket to the ring of a session.
//!
//! `session` calls this in constructors, in a signal handler, and in a forked child. All of it is async-signal-safe, waits for at most about a second,
//! and takes little stack. It trusts a daemon only if that runs as the same user or as root.

use core::sync::atomic::AtomicU64;

use crate::handshake::{Hello, RUN_SOCKET, Reason, TMP_SOCKET, Welcome};
use crate::layout::{HEADER_WORDS, MAX_RING_WORDS, MIN_RING_WORDS, REGISTERS};
use crate::system::{self, SocketName};

/// How long one step of the handshake may take.
const PATIENCE_MS: u32 = 1000;

static RUN: Option<SocketName> = SocketName::new(RUN_SOCKET.as_bytes());
static TMP: Option<SocketName> = SocketName::new(TMP_SOCKET.as_bytes());

/// Where the daemon listens if the environment does not say.
pub(crate) fn usual_socket() -> Option<SocketName> {
    if system::may_enter(c"/run/perfetto") {
        RUN
    } else {
        TMP
    }
}

/// The daemon's grant.
pub(crate) struct Granted {
    /// The daemon's process; 0 if it is in another pid namespace.
    pub(crate) daemon: i32,
    /// The mapped memory of the ring, which is initialized.
    pub(crate) memory: *mut AtomicU64,
    /// Words of this memory.
    pub(crate) words: usize,
}

/// Asks the daemon for a session. `None` if nobody listens, nobody trustworthy does, or the process is not to be profiled. The message is received in
/// `buffer` and decoded into `welcome`, which nobody else uses meanwhile.
pub(crate) fn ask(
    name: &SocketName,
    reason: Reason,
    buffer: &mut [u8; Welcome::MOST_BYTES],
    welcome: &mut Welcome,
) -> Option<Granted> {
    let socket = system::connect(name, PATIENCE_MS)?;
    let peer = system::peer(&socket)?;
    if peer.uid != 0 && peer.uid != system::user() {
        return None;
    }
    let hello = Hello {
        reason,
        registers: REGISTERS as u32,
    };
    if !system::send(&socket, &hello.encode()) {
        return None;
    }
    let (received, file) = system::receive(&socket, buffer)?;
    if !welcome.decode_from(buffer.get(..received)?) {
        return None;
    }
    let words = system::sealed_size(&file)? / 8;
    let ring_words = words.checked_sub(HEADER_WORDS)?;
    if !ring_words.is_power_of_two() || !(MIN_RING_WORDS..=MAX_RING_WORDS).contains(&ring_words) {
        return None;
    }
    Some(Granted {
        daemon: peer.pid,
        memory: system::map_shared(&file, words)?,
        words,
    })
}
