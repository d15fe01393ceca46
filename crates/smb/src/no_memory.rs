//! In the place of `memory.rs` on systems that have no memfd: there is no shared memory, and no value of its type.
//!
//! So the compiler knows that no code with shared memory runs here.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32};

/// Shared memory, which this system lacks.
#[derive(Debug)]
pub enum SharedMemory {}

/// There is no shared memory.
#[derive(Debug)]
pub struct SharedMemoryError;

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot create shared memory: it is made by Linux and Android only")
    }
}

impl std::error::Error for SharedMemoryError {}

/// Which pages have memory behind them.
#[derive(Debug)]
pub(crate) struct Touched;

impl SharedMemory {
    /// There is none.
    pub fn create(_size: usize) -> Result<Self, SharedMemoryError> {
        Err(SharedMemoryError)
    }

    /// Bytes mapped.
    pub fn size(&self) -> usize {
        match *self {}
    }

    /// Has the kernel provide the pages of the first `len` bytes now.
    pub fn populate(&self, _len: usize) {
        match *self {}
    }

    pub(crate) fn touched(&self) -> Touched {
        match *self {}
    }

    pub(crate) fn is_touched(&self, _touched: &Touched, _offset: usize) -> bool {
        match *self {}
    }

    pub(crate) fn at(&self, _offset: usize, _len: usize) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn word(&self, _offset: usize) -> &AtomicU32 {
        match *self {}
    }

    pub(crate) fn half_word(&self, _offset: usize) -> &AtomicU16 {
        match *self {}
    }

    pub(crate) fn copy_out(&self, _offset: usize, _len: usize, _out: &mut Vec<u8>) {
        match *self {}
    }
}
