//! The atomics of the ring.

pub(crate) use core::sync::atomic::AtomicU64;
