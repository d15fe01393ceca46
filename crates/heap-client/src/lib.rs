//! The part of the heap profiler that a profiled program carries.
//!
//! The preloaded library and the global allocator report allocations here. This crate decides which are sampled, and writes samples into a ring in
//! shared memory. The daemon, `ferretto-heap`, makes that ring, reads it, and unwinds the stacks.
//!
//! Rust programs use [`HeapProfiled`] as their global allocator, and [`Heap`] for allocators of their own. Everything else is for the preloaded library and
//! for the daemon.
//!
//! | module | has |
//! |---|---|
//! | `handshake` | what a client and the daemon say to each other, once, over a socket |
//! | `layout` | where things are in the shared memory |
//! | `ring` | writing and reading records |
//! | `report` | the way of an allocation: sampled or not, into the ring |
//! | `session` | the life of a client: it begins, has sessions, forks, ends |
//! | `heaps`, `callbacks` | the program's heaps; telling them of sessions |
//! | `sampler`, `live` | which allocations are samples; which samples are alive |
//! | `registers`, `stack`, `thread` | what a sample needs to be unwound; the state of each thread |
//! | `state`, `connect`, `system` | the memory of a session and the right to use it; the client's side of the handshake; system calls |
//!
//! The daemon trusts nothing that a client writes. Clients trust a daemon that is their own user's or root's.
#![deny(unsafe_code)]

pub mod handshake;
pub mod layout;
pub mod ring;
mod sync;

mod allocator;
mod callbacks;
mod connect;
mod heaps;
mod live;
mod registers;
mod report;
mod sampler;
mod session;
mod stack;
mod state;
mod system;
mod thread;

pub use allocator::HeapProfiled;
pub use heaps::{
    DisableInfo, DisabledCallback, EnableInfo, EnabledCallback, GLOBAL_ALLOC, Heap, LIBRARY_FILE, MALLOC,
    MOST_HEAPS,
};
pub use report::{allocated, freed, may_be_sampled, report_allocation, report_free, report_sample};
pub use session::{begin, begin_with, finish};
pub use system::set_errno;
