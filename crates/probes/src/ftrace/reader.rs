//! Takes raw pages out of the kernel's per-CPU ring buffers. Used by [`super::data_source`], which hands the pages to
//! the sessions' encoders.
//!
//! A `trace_pipe_raw` file gives exactly one page (sub-buffer) per read of that size. A full page is taken out of the
//! ring whole. The page that the kernel is writing is copied up to the present position and filled with zeroes. One
//! `readv` with a page-sized part for each page of the [`PagePool`] makes the kernel repeat that until it has nothing
//! more. Measured on Linux 6.18 with 3,125 full pages, CPU time for a page including touching each of its cache lines:
//! 0.98 µs with `read`, 0.77 µs with `readv` of 32 pages, 1.08 µs with `splice` into a pipe and `read` out of it.
//!
//! The memory is aligned to pages, as the kernel's own is: see [`ferretto_wire::bulk`].
//!
//! Nothing here waits. A CPU that is switched off has no data. Its file works again when the CPU comes back, so buffers
//! are opened for all CPUs that are plugged in.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferretto_wire::bulk::PageAligned;
use rustix::io::Errno;

use super::page::{LENGTH_MASK, ParseStatus};
use super::tracefs::{Tracefs, TracefsError};

/// Pages assumed for the buffer of a CPU that does not tell its size: 64 MiB.
pub(super) const ASSUMED_PAGES: usize = 16 << 10;
/// Pages of one batch. The cost of system calls is small with so many pages. Their 128 KiB stay in a core's cache until
/// every session has parsed them.
pub(crate) const BATCH_PAGES: usize = 32;

/// Offset of the length in a page's header: after a 64-bit time stamp.
const LENGTH_OFFSET: usize = 8;

/// Memory that pages are read into, aligned to the machine's pages. Shared by all CPUs and sessions.
#[derive(Debug)]
pub(crate) struct PagePool {
    page_bytes: usize,
    pages: PageAligned,
}

impl PagePool {
    /// Room for [`BATCH_PAGES`] pages of `page_bytes` each.
    pub(crate) fn new(page_bytes: usize) -> PagePool {
        PagePool {
            page_bytes,
            pages: PageAligned::new(page_bytes * BATCH_PAGES),
        }
    }
}

/// Why a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// The batch has as many pages as were asked for: there may be more.
    Limit,
    /// The last page was mostly empty, or there was none: the reader has caught up with the kernel.
    CaughtUp,
    /// A read returned less than a page, which the kernel should never do.
    PartialPage,
    /// A read failed for a temporary reason: memory is short, the buffer is being resized, or the CPU is off.
    NotNow,
    /// A read failed for another reason.
    Failed(Errno),
}

impl BatchEnd {
    /// The error's name in the statistics; `None` if it is no error.
    pub(super) fn parse_error(self) -> Option<ParseStatus> {
        match self {
            BatchEnd::Limit | BatchEnd::CaughtUp | BatchEnd::NotNow => None,
            BatchEnd::PartialPage => Some(ParseStatus::PartialPageRead),
            BatchEnd::Failed(_) => Some(ParseStatus::UnexpectedReadError),
        }
    }
}

/// Pages as they came from one CPU, in order.
#[derive(Debug)]
pub(crate) struct Batch<'p> {
    /// Whole pages, one after the other.
    pub pages: &'p [u8],
    /// Number of them.
    pub count: usize,
    /// Why the batch has no more pages.
    pub end: BatchEnd,
}

/// The raw buffer of one CPU, open for reading.
#[derive(Debug)]
pub(crate) struct CpuBuffer {
    cpu: u32,
    fd: OwnedFd,
}

impl CpuBuffer {
    /// Opens the buffer of one CPU. As long as it is open, `current_tracer` cannot change.
    ///
    /// # Errors
    /// If the buffer cannot be opened.
    pub(crate) fn open(tracefs: &Tracefs, cpu: u32) -> Result<CpuBuffer, TracefsError> {
        let fd = tracefs.open_raw_buffer(cpu)?;
        Ok(CpuBuffer { cpu, fd })
    }

    /// The CPU.
    pub(crate) fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Takes up to `limit` pages, and never more than [`BATCH_PAGES`], into `pool`.
    pub(crate) fn read<'p>(&self, pool: &'p mut PagePool, limit: usize) -> Batch<'p> {
        let page_bytes = pool.page_bytes;
        let memory = &mut *pool.pages;
        let wanted = limit.min(BATCH_PAGES);
        let mut count = 0;
        let end = loop {
            if count == wanted {
                break match is_mostly_empty(last_page(memory, page_bytes, count)) {
                    true => BatchEnd::CaughtUp,
                    false => BatchEnd::Limit,
                };
            }
            let free = &mut memory[count * page_bytes..wanted * page_bytes];
            match read_pages(self.fd.as_fd(), free, page_bytes) {
                Ok(0) => break BatchEnd::CaughtUp,
                Ok(bytes) => {
                    count += bytes / page_bytes;
                    if bytes % page_bytes != 0 {
                        break BatchEnd::PartialPage;
                    }
                    if is_mostly_empty(last_page(memory, page_bytes, count)) {
                        break BatchEnd::CaughtUp;
                    }
                    // Fewer pages than asked for, all full: in today's kernels the buffer was empty then, but a kernel
                    // that gave one page at a time would look the same.
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break BatchEnd::CaughtUp,
                Err(Errno::NOMEM | Errno::BUSY | Errno::NODEV) => break BatchEnd::NotNow,
                Err(errno) => break BatchEnd::Failed(errno),
            }
        };
        Batch {
            pages: &memory[..count * page_bytes],
            count,
            end,
        }
    }
}

fn read_pages(fd: BorrowedFd<'_>, memory: &mut [u8], page_bytes: usize) -> rustix::io::Result<usize> {
    let mut pages = memory.chunks_exact_mut(page_bytes);
    let count = pages.len();
    let mut parts: [IoSliceMut<'_>; BATCH_PAGES] =
        std::array::from_fn(|_| IoSliceMut::new(pages.next().unwrap_or_default()));
    rustix::io::readv(fd, &mut parts[..count])
}

fn last_page(memory: &[u8], page_bytes: usize, count: usize) -> &[u8] {
    &memory[count.saturating_sub(1) * page_bytes..count * page_bytes]
}

/// Whether less than half of `page` is events. The kernel ends a page early only for an event that no longer fits. So a
/// mostly empty page is nearly always the one that the kernel is writing, and reading on would chase it in ever smaller
/// steps.
fn is_mostly_empty(page: &[u8]) -> bool {
    let Some(length) = page.get(LENGTH_OFFSET..).and_then(|rest| rest.first_chunk()) else {
        return true;
    };
    ((u32::from_ne_bytes(*length) & LENGTH_MASK) as usize) < page.len() / 2
}

impl AsFd for CpuBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
