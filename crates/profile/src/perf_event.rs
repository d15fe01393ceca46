//! `perf_event_open`: events of one CPU, and the ring buffer into which the kernel writes their samples.
//!
//! [`cpu`](crate::cpu) opens them. This module has the crate's system calls and the memory that it shares with the kernel. It guarantees that a record is
//! read only while the kernel leaves it alone: the kernel never writes between `data_tail` and
//! `data_head`, and only [`Ring::consume`] moves `data_tail`.
//! Source of the layouts: `perf_event_open(2)` and the kernel's `uapi/linux/perf_event.h`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{self as perf, bindings as sys};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The description of an event for the kernel. Made by [`crate::attributes`].
pub(crate) type Attributes = sys::perf_event_attr;

/// Words of one read: more than the two for each follower that a config may have.
const MOST_WORDS: usize = 128;

/// Whose events are counted on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    EveryThread,
    /// Those of this thread, and if the attributes say so those of the threads and processes that it starts.
    Thread(i32),
    /// Those of this process's first thread.
    Own,
}

/// An open event, which counts on one CPU.
#[derive(Debug)]
pub(crate) struct PerfEvent(File);

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
impl From<File> for PerfEvent {
    fn from(file: File) -> PerfEvent {
        PerfEvent(file)
    }
}

impl PerfEvent {
    /// Opens an event for those threads when they run on `cpu`; with a leader it counts whenever the leader does.
    ///
    /// # Errors
    /// The errors of `perf_event_open(2)`.
    pub(crate) fn open(
        attributes: &Attributes,
        whose: Whose,
        cpu: u32,
        leader: Option<&PerfEvent>,
    ) -> io::Result<PerfEvent> {
        let thread = match whose {
            Whose::EveryThread => -1,
            Whose::Thread(tid) => tid,
            Whose::Own => rustix::process::getpid().as_raw_pid(),
        };
        let cpu = i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
        let leader = leader.map_or(-1, |leader| leader.0.as_raw_fd());
        let flags = libc::c_ulong::from(sys::PERF_FLAG_FD_CLOEXEC);
        // The kernel may write to it, if it expects another size.
        let mut attributes = *attributes;
        // SAFETY: `attributes` is a whole structure, which outlives the call. The requested event has no effect on this process's memory.
        let descriptor = unsafe { perf::perf_event_open(&mut attributes, thread, cpu, leader, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for the caller.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(PerfEvent(owned.into()))
    }

    /// Counts only where the filter holds; for tracepoints.
    ///
    /// # Errors
    /// If the kernel does not understand the filter.
    pub(crate) fn set_filter(&self, filter: &str) -> io::Result<()> {
        let filter = CString::new(filter)?;
        // SAFETY: the kernel reads the string, which ends with a zero and outlives the call, and nothing else.
        let result = unsafe { perf::ioctls::SET_FILTER(self.0.as_raw_fd(), filter.as_ptr().cast_mut()) };
        checked(result)
    }

    /// Has the kernel write what this event gives into the ring of `holder`, which is on the same CPU.
    ///
    /// # Errors
    /// The errors of the ioctl.
    pub(crate) fn write_into_ring_of(&self, holder: &PerfEvent) -> io::Result<()> {
        // SAFETY: the argument is a descriptor, which stays open during the call.
        checked(unsafe { perf::ioctls::SET_OUTPUT(self.0.as_raw_fd(), holder.0.as_raw_fd()) })
    }

    /// Counts from now on, and so do those that it leads.
    ///
    /// # Errors
    /// The errors of the ioctl.
    pub(crate) fn enable(&self) -> io::Result<()> {
        // SAFETY: without flags the call takes no argument.
        checked(unsafe { perf::ioctls::ENABLE(self.0.as_raw_fd(), 0) })
    }

    /// Counts no longer.
    ///
    /// # Errors
    /// The errors of the ioctl.
    pub(crate) fn disable(&self) -> io::Result<()> {
        // SAFETY: without flags the call takes no argument.
        checked(unsafe { perf::ioctls::DISABLE(self.0.as_raw_fd(), 0) })
    }

    /// Reads the counts of this event, and of those that it leads if it has `PERF_FORMAT_GROUP`: the words that its `read_format` asks for.
    ///
    /// # Errors
    /// If the event cannot be read, for example because it never got a hardware counter.
    pub(crate) fn read_words(&self, words: &mut Vec<u64>) -> io::Result<()> {
        words.clear();
        let mut bytes = [0; 8 * MOST_WORDS];
        let read = (&self.0).read(&mut bytes)?;
        let read = bytes[..read].as_chunks::<8>().0;
        if read.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        words.extend(read.iter().map(|word| u64::from_ne_bytes(*word)));
        Ok(())
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A ring buffer of the kernel, mapped: a page with positions, then a power of two of pages with records.
#[derive(Debug)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    page: usize,
    /// Bytes of records: a power of two.
    size: usize,
    /// The position up to which records were consumed. Only this process writes `data_tail`.
    tail: u64,
    /// A record that goes over the end of the memory, put together.
    whole: Vec<u8>,
}

// SAFETY: a `Ring` is the only one that refers to its memory in this process, and the memory may be used from any thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event: `pages` of memory pages.
    ///
    /// # Errors
    /// If there is no memory for it, or more than the kernel lets this user have.
    pub(crate) fn map(event: &PerfEvent, pages: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let size = pages * page;
        // With write access the kernel overwrites nothing that has not been consumed.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses addresses that nobody uses.
        let base = unsafe { mmap(ptr::null_mut(), size + page, access, MapFlags::SHARED, event, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut ring = Ring {
            base,
            page,
            size,
            tail: 0,
            whole: Vec::new(),
        };
        ring.tail = ring
            .position(std::mem::offset_of!(sys::perf_event_mmap_page, data_tail))
            .load(Ordering::Relaxed);
        Ok(ring)
    }

    /// Bytes of records that it holds at most.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// One of the positions in the first page.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped as long as `self` lives, has this layout, and is aligned. Both sides access positions as atomics only.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// The next record with its header, which stays until it is [consumed](Self::consume).
    pub(crate) fn next_record(&mut self) -> Option<&[u8]> {
        const HEADER: usize = size_of::<sys::perf_event_header>();
        let head = self
            .position(std::mem::offset_of!(sys::perf_event_mmap_page, data_head))
            .load(Ordering::Acquire);
        let unread = usize::try_from(head.wrapping_sub(self.tail)).ok()?;
        if unread < HEADER {
            return None;
        }
        let at = self.tail as usize & (self.size - 1);
        // Records are of whole words, so a header is never split.
        let header = self.bytes(at, HEADER)?;
        let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        if length < HEADER || length > unread {
            // The kernel writes no such record.
            return None;
        }
        let before_end = self.size - at;
        if length <= before_end {
            return self.bytes(at, length);
        }
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        whole.extend_from_slice(self.bytes(at, before_end)?);
        whole.extend_from_slice(self.bytes(0, length - before_end)?);
        self.whole = whole;
        Some(&self.whole)
    }

    /// Bytes between `data_tail` and `data_head`.
    fn bytes(&self, at: usize, length: usize) -> Option<&[u8]> {
        if at.checked_add(length)? > self.size {
            return None;
        }
        // SAFETY: within the mapping, behind its first page. The kernel does not write here before `data_tail` moves, which takes `&mut self`, and no
        // other process has the mapping.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.page + at), length) })
    }

    /// Gives the record of this length back to the kernel.
    pub(crate) fn consume(&mut self, length: usize) {
        self.tail = self.tail.wrapping_add(length as u64);
        self.position(std::mem::offset_of!(sys::perf_event_mmap_page, data_tail))
            .store(self.tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: nothing refers to this mapping any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.size + self.page) };
    }
}
