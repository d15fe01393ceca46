//! The shared memory of a client's ring, and the futex in it.
//!
//! `handshake` makes it for a client that is to be profiled. It is a memfd sealed against resizing, so that touching it never faults.
//! It is only accessed through atomics.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_heap_client::layout::{HEADER_WORDS, header};
use ferretto_heap_client::ring::Ring;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// See the [module](self). Unmapped when dropped.
#[derive(Debug)]
pub struct RingMemory {
    /// Valid for `words` words as long as this lives, and aligned to a page.
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only accessed through atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// A ring of so many words, which is [possible](Ring::new), and the file to be sent to the client.
    ///
    /// # Errors
    /// If the system has no memory or no descriptor for it.
    pub fn new(ring_words: usize) -> io::Result<(RingMemory, OwnedFd)> {
        let words = HEADER_WORDS + ring_words;
        let file = memfd_create(
            c"heapprofd_ringbuf",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, 8 * words as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = RingMemory::map(file.as_fd(), words)?;
        match memory.ring() {
            Some(ring) => ring.initialize(),
            None => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok((memory, file))
    }

    /// The other end: a mapping of the file of a ring of so many words. Tests and benches play the client with it.
    ///
    /// # Errors
    /// If the system cannot map it.
    pub fn of(file: &OwnedFd, ring_words: usize) -> io::Result<RingMemory> {
        RingMemory::map(file.as_fd(), HEADER_WORDS + ring_words)
    }

    fn map(file: BorrowedFd<'_>, words: usize) -> io::Result<RingMemory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                8 * words,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(RingMemory { base, words })
    }

    /// The ring in it. It always is one; the type says what the client crate can tell.
    pub fn ring(&self) -> Option<Ring<'_>> {
        // SAFETY: the mapping is `words` words long, lives as long as the borrow of `self`, and is sealed against shrinking. Atomics may be changed by
        // anybody at any time, also by another process.
        let memory = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) };
        Ring::new(memory)
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everything that points into it borrows from `self`.
        // The call cannot fail for a mapping that exists.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), 8 * self.words) };
    }
}

/// Tells threads of the client that wait for space or for the daemon that it has read: so many of them, those first that have waited longest.
pub(crate) fn wake(ring: Ring<'_>, count: u32) {
    let space = ring.header(header::SPACE);
    space.fetch_add(1, Ordering::AcqRel);
    // The lower half, where waiters wait.
    let word = space
        .as_ptr()
        .cast::<u32>()
        .wrapping_add(usize::from(cfg!(target_endian = "big")));
    // SAFETY: the address is in the mapping, which `ring` borrows. The kernel only looks up who waits there.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAKE,
            i32::try_from(count).unwrap_or(i32::MAX),
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_heap_client::layout::{Kind, MIN_RING_WORDS};
    use ferretto_heap_client::ring::{Next, Reader};

    #[test]
    fn another_mapping_of_the_file_is_the_other_end_and_nobody_can_resize_it() {
        let (memory, file) = RingMemory::new(MIN_RING_WORDS).expect("there is memory");
        let other = RingMemory::of(&file, MIN_RING_WORDS).expect("it can be mapped");
        let (ring, client) = (memory.ring().expect("a ring"), other.ring().expect("a ring"));
        assert!(client.is_initialized());
        let space = client.take(Kind::Free, 2).expect("there is space");
        space.write(0, 7);
        space.write(1, 1);
        space.complete();
        let mut payload: Vec<u64> = Vec::new();
        assert_eq!(Reader::new().next(ring, &mut payload), Next::Record(Kind::Free));
        assert_eq!(payload, [7, 1]);
        assert!(ftruncate(&file, 0).is_err());
        wake(ring, 1);
        assert_eq!(client.header(header::SPACE).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_size_that_is_no_ring_is_refused() {
        assert!(RingMemory::new(MIN_RING_WORDS + 512).is_err());
    }
}
