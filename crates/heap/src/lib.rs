//! Heap profiles for Linux: the data source `android.heapprofd`, as upstream's `heapprofd` offers it.
//!
//! Programs carry a client, `ferretto-heap-client`, which samples their allocations. It connects to the daemon when the program starts, or when the daemon
//! asks it to. Then it writes each sample with registers and a copy of the stack into a ring in shared memory. The daemon unwinds samples and keeps the books
//! of the holdings of each process.
//!
//! | module | has |
//! |---|---|
//! | `config`, `targets` | what a config asks for |
//! | `listener`, `handshake`, `process`, `sessions`, `room`, `marked` | how processes become clients of a session, and how many |
//! | `warnings` | what the log is told of refused clients |
//! | `memory`, `feed`, `records` | what comes from a client |
//! | `profile`, `books`, `histogram` | what is known of a process and of a heap |
//! | `collector`, `shares`, `dump` | from records to books, and from books to packets |
//! | `client`, `thread`, `reading`, `successions` | when what is read and dumped |
//! | `source`, `producer`, `pidfd` | the data source, the producer of the daemon, and system calls about processes |
//!
//! Guarantees that no client holds up another one or the daemon, that whatever a client writes costs nothing but its own profile, and that memory is bounded
//! for each client and for all together. The losses of a profile are counted, and the trace says so.
#![deny(unsafe_code)]

pub mod books;
pub mod client;
pub mod collector;
pub mod config;
pub mod dump;
pub mod feed;
mod handshake;
mod histogram;
pub mod listener;
mod marked;
pub mod memory;
mod pidfd;
mod process;
pub mod producer;
pub mod profile;
mod reading;
pub(crate) mod records;
mod room;
pub mod sessions;
mod shares;
pub(crate) mod source;
mod successions;
pub(crate) mod targets;
mod thread;
mod waking;
mod warnings;
