//! Perfetto's IPC: frames, descriptors passed beside them, RPC client and host, transports and the reactor.
//!
//! Upstream's `protos/perfetto/ipc/wire_protocol.proto` defines the bytes on the socket: each frame is a 4-byte little-endian length and one
//! `IPCFrame` message. This crate knows how calls travel and which methods each port lists ([`ports`]). The crates above give the methods their
//! meaning.
//!
//! The parts, from the kernel upwards:
//! - [`address`], [`socket_names`]: where a service listens;
//! - [`transport`]: non-blocking stream sockets that also carry descriptors and identify the peer;
//! - [`passed_fd`]: descriptors from peers, which take as long to close as a peer likes;
//! - [`frame`], [`outgoing`]: bytes to frames and back, both bounded;
//! - [`host`], [`client`]: the two ends of a connection as state machines without I/O;
//! - [`reactor`]: the one event loop that daemons, command line and SDK run on;
//! - [`channel`]: values from thread to thread;
//! - [`retry`]: the waits between attempts to connect.
//!
//! A service's loop, for one client:
//!
//! ```no_run
//! use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply};
//! use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
//! use ferretto_ipc::reactor::{Events, Interest, Reactor, Token};
//! use ferretto_ipc::transport::ReadEnd;
//! use ferretto_ipc::{HostConnection, Listener, socket_names};
//!
//! static SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
//! let listener = Listener::bind(&socket_names::consumer_address()?)?;
//! let mut reactor = Reactor::new()?;
//! let mut events = Events::new();
//! let mut scratch = vec![0; ferretto_ipc::frame::MAX_FRAME];
//!
//! reactor.register(&listener, Token(0), Interest::Readable)?;
//! reactor.wait(&mut events, None)?;
//! let mut stream = listener.accept()?.expect("the listener was readable");
//! let mut host = HostConnection::new(&SERVICES, PeerIdentitySource::Kernel, HostLimits::default());
//! reactor.register(&stream, Token(1), host.interest())?;
//! loop {
//!     // When a turn was not enough, the rest must not wait for the socket.
//!     let deadline = host.turn_is_over().then_some(ferretto_ipc::reactor::Deadline::Monotonic(0));
//!     reactor.wait(&mut events, deadline)?;
//!     let end = stream.read_into(&mut host, &mut scratch)?;
//!     host.begin_turn();
//!     while let Some(request) = host.next_request()? {
//!         println!("{} with {} bytes", request.method, request.payload.len());
//!         let to = request.reply_to;
//!         host.reply(to, Reply::last(Vec::new()))?;
//!     }
//!     if end == ReadEnd::Closed {
//!         break;
//!     }
//!     stream.flush(host.outgoing())?;
//!     reactor.reregister(&stream, Token(1), host.interest())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod address;
pub mod channel;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod client;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod frame;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod host;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod outgoing;
#[cfg(test)]
mod pair;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod passed_fd;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod ports;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod reactor;
pub mod retry;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod socket_names;
#[cfg_attr(
    not(all(target_endian = "little", any(target_os = "linux", target_os = "android"))),
    path = "std_time.rs"
)]
pub mod time;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub mod transport;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
mod wire_protocol;

pub use address::Address;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use client::ClientConnection;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use host::HostConnection;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use passed_fd::PassedFd;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use reactor::Reactor;
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use transport::{Listener, Stream};
