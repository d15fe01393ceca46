//! The layout of the shared memory of a client and the daemon.
//!
//! The memory is a sealed memfd that the daemon makes for each client. It is an array of words of eight bytes, in the byte order of the machine. One
//! page of it is the header; the rest, a power of two, is the ring. Both sides access it by atomic loads and stores only.
//!
//! Positions in the ring count words from the beginning of the session and never wrap; their lowest bits are the place. A record is a head and its
//! payload, in one piece:
//!
//! | bits of the head | are |
//! |---|---|
//! | 0 to 31 | words of the record, the head included |
//! | 32 to 39 | the [`Kind`] |
//! | 62 | the space is taken |
//! | 63 | the record is complete |
//!
//! A head is zero until its space is taken: the daemon zeroes what it has read.

/// Words of the header: 4096 bytes.
pub const HEADER_WORDS: usize = 512;

/// The smallest ring: 8192 bytes, as upstream's.
pub const MIN_RING_WORDS: usize = 1024;

/// The largest ring: 256 MiB, the power of two below upstream's 500 MiB.
pub const MAX_RING_WORDS: usize = 32 << 20;

/// Places of words in the header. Words that different threads write are on different cache lines.
pub mod header {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// Words of the ring.
    pub const RING_WORDS: usize = 1;
    /// The daemon sets it to 1 when it takes no more records.
    pub const ENDED: usize = 2;
    /// The position after the last record that a writer has taken space for.
    pub const WRITE: usize = 8;
    /// The position up to which the daemon has read.
    pub const READ: usize = 16;
    /// Counts how often the daemon made space while a writer waited; its lower half is the futex that writers wait on.
    pub const SPACE: usize = 24;
    /// How many writers wait for space or for the daemon to catch up.
    pub const WAITING: usize = 25;
    /// Samples that found no space.
    pub const LOST_SAMPLES: usize = 32;
    /// Bytes that these samples stood for.
    pub const LOST_BYTES: usize = 33;
    /// Sampled allocations of which the release could not be told.
    pub const LOST_FREES: usize = 34;
    /// Samples that were left out because too many sampled allocations were alive.
    pub const UNTRACKED: usize = 35;
    /// Microseconds that writers have waited for space.
    pub const WAITED_US: usize = 36;
    /// Set to 1 by a client that gave up waiting for space.
    pub const TIMED_OUT: usize = 37;
    /// Set to 1 by a client that gave up when the ring was full, because nothing was read any more and it did not find the daemon: the daemon is gone, or
    /// the process no longer sees its socket, as after `chroot`.
    pub const OUT_OF_REACH: usize = 38;
}

/// The first word: `FERHEAP` and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FERHEAP\x01");

/// Bit of a head: the space is taken.
pub const TAKEN: u64 = 1 << 62;
/// Bit of a head: the record is complete.
pub const COMPLETE: u64 = 1 << 63;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing: the space before the end of the ring was too small.
    Padding = 1,
    /// A sampled allocation: [`allocation`] has its payload.
    Allocation = 2,
    /// A sampled allocation was given back: [`free`] has its payload.
    Free = 3,
    /// A heap is sampled from now on, or with another interval: [`heap`] has its payload.
    Heap = 4,
}

impl Kind {
    /// The kind with this number.
    pub(crate) const fn from_number(number: u8) -> Option<Kind> {
        match number {
            1 => Some(Kind::Padding),
            2 => Some(Kind::Allocation),
            3 => Some(Kind::Free),
            4 => Some(Kind::Heap),
            _ => None,
        }
    }
}

/// Words of the payload of an allocation, after the head.
pub mod allocation {
    /// `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub const TIMESTAMP: usize = 0;
    /// The address, or whatever number a custom heap gives its allocations.
    pub const ADDRESS: usize = 1;
    /// Bytes that were asked for.
    pub const SIZE: usize = 2;
    /// Bytes that the sample stands for.
    pub const SAMPLE_SIZE: usize = 3;
    /// The heap's number in the lower half, the thread's in the upper.
    pub const HEAP_AND_THREAD: usize = 4;
    /// Bytes of the stack in the lower half. In the upper, 1 if the copy ends before the stack does.
    pub const STACK_BYTES: usize = 5;
    /// The registers, in the order of the kernel's `perf_regs.h`: [`REGISTERS`](super::REGISTERS) of them. After them comes the stack, from the stack
    /// pointer on.
    pub const REGISTERS: usize = 6;
    /// Where the stack is.
    pub const STACK: usize = REGISTERS + super::REGISTERS;
}

/// Registers of an allocation: those of the bits in `Arch::perf_mask` of `ferretto-unwind`.
#[cfg(target_arch = "x86_64")]
pub const REGISTERS: usize = 20;
/// Registers of an allocation: those of the bits in `Arch::perf_mask` of `ferretto-unwind`.
#[cfg(target_arch = "aarch64")]
pub const REGISTERS: usize = 33;
/// No stack can be unwound on this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const REGISTERS: usize = 0;

/// Words of the payload of a free, after the head.
pub mod free {
    /// As in the allocation.
    pub const ADDRESS: usize = 0;
    /// The heap's number.
    pub const HEAP: usize = 1;
    /// Words of the payload.
    pub const WORDS: usize = 2;
}

/// Words of the payload of a heap, after the head.
pub mod heap {
    /// Its number.
    pub const HEAP: usize = 0;
    /// Bytes between two samples, on average.
    pub const INTERVAL: usize = 1;
    /// Its name, 64 bytes, with zeroes at the end.
    pub const NAME: usize = 2;
    /// Words of the payload.
    pub const WORDS: usize = 10;
}

/// Bytes of a stack that are copied at most.
pub(crate) const MOST_STACK_BYTES: usize = 64 << 10;

/// Words of a record at most.
pub const MOST_RECORD_WORDS: usize = 1 + allocation::STACK + MOST_STACK_BYTES / 8;
