//! What a program carries to have its heap profiled.
//!
//! The preloaded library and the global allocator report allocations here. This crate decides which are sampled, and writes samples into a ring in
//! shared memory. The daemon, `ferretto-heap`, makes that ring, reads it, and unwinds the stacks.
//!
//! | module | has |
//! |---|---|
//! | `handshake` | what a client and the daemon say to each other, once, over a socket |
//! | `layout` | where things are in the shared memory |
//! | `ring` | writing and reading records |
//!
//! The daemon trusts nothing that a client writes. Clients trust a daemon that is their own user's or root's.

pub mod handshake;
pub mod layout;
pub mod ring;
mod sync;
