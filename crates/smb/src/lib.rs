//! Perfetto's shared memory buffer ABI: pages, chunks, states, headers.
//!
//! A shared memory buffer (SMB) belongs to one producer and the service. It is a row of equal pages. The producer
//! partitions a free page into chunks, fills them with packets and marks them complete; the service copies complete
//! chunks out and frees them. A page whose chunks are all free is free itself and may be partitioned anew. One atomic
//! word at the start of each page holds its layout and the state of every chunk in it, and every right to touch a
//! chunk is won by changing that word:
//!
//! ```text
//!        producer            producer             service             service
//!  Free ----------> BeingWritten ----> Complete ----------> BeingRead ----------> Free
//! ```
//!
//! The layout of all this is a long-term ABI between processes of different versions. Its source is upstream's
//! `include/perfetto/ext/tracing/core/shared_memory_abi.h`.
//!
//! - [`SharedMemory`] is the mapping: a sealed memfd of our own, or one that a peer sent and that passed every check.
//! - [`ProducerSmb`] wins chunks for writing ([`WriteChunk`]) and completes them.
//! - [`ServiceSmb`] copies chunks out, of producers that it does not trust.
//!
//! This is the only crate that touches memory which another process can write. It does so through atomics and raw copies alone: no reference to such
//! memory is ever made, each number in it is read once into private memory and only then judged, and every position is computed from private
//! geometry. Whatever the peer writes, and whenever, both sides stay in bounds and never panic; a peer that breaks the rules can lose nothing but its
//! own data.
//!
//! The layout is that of little-endian machines. On others, and where the system is neither Linux nor Android, the crate compiles, and there is no
//! value of [`SharedMemory`]: crates that depend on it compile everywhere.

mod chunk;
#[cfg_attr(
    not(all(target_endian = "little", any(target_os = "linux", target_os = "android"))),
    path = "no_memory.rs"
)]
mod memory;
mod page;
mod pages;
mod prefetch;
mod producer;
mod service;
mod state;

pub use chunk::{
    ChunkFlags, ChunkHeader, ChunkId, DROPPED_PACKET_SIZE, MAX_PACKETS_PER_CHUNK, MAX_WRITER_ID, WriterId,
};
#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
pub use memory::Peer;
pub use memory::{SharedMemory, SharedMemoryError};
pub use page::{ChunkState, PageHeader, PageLayout, PageSize};
pub use pages::PagesError;
pub use prefetch::{prefetch_for_reading, prefetch_for_writing};
pub use producer::{ChunkWindow, FirstPacket, NewChunk, ProducerSmb, WriteChunk};
pub use service::{ChunkRefused, Completeness, MAX_PAYLOAD_LEN, ScrapableChunk, ServiceSmb};
