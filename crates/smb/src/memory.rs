//! The mapping behind a shared memory buffer: making it, adopting a peer's, and the only accesses to it there are.
//!
//! A memfd sealed against resizing cannot be shrunk under us, so that touching it never faults (`SIGBUS`). The service accepts only such files from
//! producers. System calls are the C library's: a crate around them would take longer to compile than all the rest here, and mapping memory is no
//! safer through one.

use ferretto_wire::bulk;
use std::ffi::CStr;
use std::fmt;
use std::fs::{File, FileType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, compiler_fence};

#[cfg(test)]
mod tests;

/// A buffer's size is a multiple of this many bytes.
const GRANULARITY: usize = 4096;

/// The seals that keep the size, and this list itself, from changing.
const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The name in `/proc/PID/maps`, the same as upstream's so that tools which look for it there find it.
const MEMFD_NAME: &CStr = c"perfetto_shmem";

/// Memory of up to this size is looked at as if all of it had been touched: that takes no longer than to find out.
const SMALL: usize = 1 << 20;

/// Which pages of shared memory have memory behind them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// All of them, or it is not worth asking.
    All,
    /// The pages whose byte is odd.
    Pages(Vec<u8>),
    /// Some are swapped out, or reserved and empty: each has to be read to find out.
    Unknown,
}

/// The sender of a descriptor, which decides what has to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A producer, which the service does not trust: the file must be sealed.
    Producer,
    /// The service, which a producer trusts. Where the kernel has no memfd, the service shares an unlinked file without seals.
    Service,
}

/// Why there is no shared memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The size asked for, or that of the file received, is not possible.
    Size {
        /// In bytes.
        size: u64,
        /// The most bytes that are accepted.
        max: u64,
    },
    /// The descriptor is not of a file in memory.
    NotAFile {
        /// The kind of the descriptor, in a word.
        kind: &'static str,
    },
    /// The peer could resize the file at any time.
    NotSealed,
    /// The memory is of huge pages. There are only so many of them, and the peer can give back the pages behind the file, seals or not: touching it
    /// then would kill this process.
    HugePages,
    /// A system call failed.
    System {
        /// The operation that failed.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedMemoryError::Size { size, max } => write!(f, "cannot share {size} bytes: the size must be a multiple of {GRANULARITY}, not 0 and at most {max}"),
            SharedMemoryError::NotAFile { kind } => write!(f, "cannot attach to the shared memory received: descriptor is of a {kind}, not of a regular file"),
            SharedMemoryError::NotSealed => f.write_str("cannot attach to the shared memory received: it is not a memfd sealed against shrinking, growing and unsealing"),
            SharedMemoryError::HugePages => f.write_str("cannot attach to the shared memory received: it is of huge pages, which may not be there when it is read"),
            SharedMemoryError::System { doing, .. } => write!(f, "cannot {doing} the shared memory"),
        }
    }
}

impl std::error::Error for SharedMemoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SharedMemoryError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> SharedMemoryError {
    move |source| SharedMemoryError::System { doing, source }
}

/// Memory mapped here and, possibly, in another process that may write it at any time. Starts zeroed, which is a valid
/// buffer with all pages free. Unmapped when dropped.
pub struct SharedMemory {
    /// Start of the mapping, page-aligned, valid for `size` bytes as long as `self` lives.
    base: NonNull<u8>,
    size: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread. All access to it is through the methods below, by atomics and raw copies, which have
// to cope with concurrent writers in another process anyway.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("size", &self.size)
            .field("fd", &self.fd)
            .finish()
    }
}

impl SharedMemory {
    /// Makes `size` bytes of zeroed shared memory, sealed so that no peer can resize it.
    ///
    /// # Errors
    /// If the size is none that such memory can have, or the system refuses the memory.
    pub fn create(size: usize) -> Result<Self, SharedMemoryError> {
        let size = checked_size(size as u64, usize::MAX)?;
        let file = create_memfd(MEMFD_NAME).map_err(system("create"))?;
        file.set_len(size as u64).map_err(system("size"))?;
        add_seals(&file, SIZE_SEALS).map_err(system("seal"))?;
        Self::map(file.into(), size)
    }

    /// Maps the memory that `peer` sent, if it passes all checks and is not larger than `max_size` bytes. Before that, a producer's descriptor is not
    /// even duplicated: closing it may take as long as the producer likes.
    ///
    /// # Errors
    /// If it is no memory of an allowed size, a producer could still resize it, or the system refuses to map it.
    pub fn attach(fd: impl AsFd, peer: Peer, max_size: usize) -> Result<Self, SharedMemoryError> {
        // Seals first: they keep the size below from changing.
        if peer == Peer::Producer {
            // Only files in memory have seals to get, and only files of `memfd_create` can have these.
            let seals = seals(&fd).map_err(|_| SharedMemoryError::NotSealed)?;
            if seals & SIZE_SEALS != SIZE_SEALS {
                return Err(SharedMemoryError::NotSealed);
            }
            if is_of_huge_pages(&fd).map_err(system("look at"))? {
                return Err(SharedMemoryError::HugePages);
            }
        }
        let file = File::from(fd.as_fd().try_clone_to_owned().map_err(system("keep"))?);
        let metadata = file.metadata().map_err(system("look at"))?;
        if !metadata.is_file() {
            let kind = kind(metadata.file_type());
            return Err(SharedMemoryError::NotAFile { kind });
        }
        let size = checked_size(metadata.len(), max_size)?;
        Self::map(file.into(), size)
    }

    fn map(fd: OwnedFd, size: usize) -> Result<Self, SharedMemoryError> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(system("map")(io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
            .map_err(system("map"))?;
        Ok(Self { base, size, fd })
    }

    /// Bytes mapped.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Has the kernel provide the pages of the first `len` bytes now. Otherwise the first access to each costs a writer about a microsecond. Only an
    /// optimisation: where the kernel cannot (before 5.14), nothing happens.
    pub fn populate(&self, len: usize) {
        // SAFETY: the range lies in the mapping, and making its pages present changes nothing that it holds.
        unsafe {
            libc::madvise(
                self.base.as_ptr().cast(),
                len.min(self.size),
                libc::MADV_POPULATE_WRITE,
            );
        }
    }

    /// Which pages have memory behind them. The others were never touched and are zero, but to read them where they are mapped would have
    /// the kernel provide memory for each.
    pub(crate) fn touched(&self) -> Touched {
        if self.size <= SMALL {
            return Touched::All;
        }
        let (Ok(allocated), Some(resident)) = (self.allocated(), self.resident()) else {
            return Touched::All;
        };
        let page = page_size();
        let count = resident.iter().filter(|page| **page & 1 != 0).count();
        if allocated >= self.size {
            Touched::All
        } else if count * page == allocated {
            Touched::Pages(resident)
        } else {
            Touched::Unknown
        }
    }

    /// Whether the page that begins at `offset` may hold something else than zeros, as `touched` says.
    ///
    /// Nothing here takes a lock that is held while a program writes to the file by system calls: such a program may be copying from a file of a
    /// program that never answers. (`lseek` with `SEEK_DATA`, which would answer the whole question, does.)
    pub(crate) fn is_touched(&self, touched: &Touched, offset: usize) -> bool {
        match touched {
            Touched::All => true,
            Touched::Pages(resident) => resident
                .get(offset / page_size())
                .is_some_and(|page| page & 1 != 0),
            Touched::Unknown => {
                let mut word = [0; 4];
                let at = offset as libc::off_t;
                // SAFETY: `word` has room for the bytes that the kernel writes.
                let read =
                    unsafe { libc::pread(self.fd.as_raw_fd(), word.as_mut_ptr().cast(), word.len(), at) };
                read != word.len() as isize || word != [0; 4]
            }
        }
    }

    /// Bytes of memory behind the file, swapped-out ones included.
    fn allocated(&self) -> io::Result<usize> {
        let mut of = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `of` has room for the bytes that the kernel writes.
        if unsafe { libc::fstat(self.fd.as_raw_fd(), of.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, and so has written all of it.
        let blocks = unsafe { of.assume_init() }.st_blocks;
        usize::try_from(blocks)
            .map(|blocks| blocks.saturating_mul(512))
            .map_err(io::Error::other)
    }

    /// For each page, whether it is in memory: the lowest bit of a byte. All are said to be of a file that is not ours to write.
    fn resident(&self) -> Option<Vec<u8>> {
        let mut resident = vec![0; self.size.div_ceil(page_size())];
        // SAFETY: the range is the mapping, and the kernel writes a byte for each of its pages.
        let result = unsafe { libc::mincore(self.base.as_ptr().cast(), self.size, resident.as_mut_ptr()) };
        (result == 0).then_some(resident)
    }

    /// The address of `len` mapped bytes at `offset`.
    ///
    /// # Panics
    /// If they do not lie in the mapping. Positions come from private geometry, never from shared memory.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(
            offset <= self.size && len <= self.size - offset,
            "position outside the shared memory"
        );
        // SAFETY: `offset` is within the mapping, or one past its end when `len` is 0.
        unsafe { self.base.add(offset) }
    }

    /// The atomic word at `offset`, which must be a multiple of four.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: the four bytes lie in the mapping, which lives as long as `self`, and are aligned as the mapping is. In
        // this process these bytes are only accessed as atomics.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).as_ptr().cast()) }
    }

    /// The atomic half-word at `offset`, which must be even.
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2));
        // SAFETY: as in `word`.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).as_ptr().cast()) }
    }

    /// Replaces the contents of `out` by a copy of `len` bytes at `offset`. The bytes are read once: all decisions about them are made on the copy.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let from = self.at(offset, len);
        out.clear();
        out.reserve(len);
        // SAFETY: `from` is valid for `len` bytes, `out` has room for them and is memory of its own. Whatever the peer writes meanwhile, the bytes
        // copied are initialised.
        unsafe {
            bulk::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), len);
            out.set_len(len);
        }
        // The compiler could otherwise prove a copy of the copy equal to a second copy of the original, and make it that.
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies `bytes` to `offset`.
    #[cfg(test)]
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `to` is valid for the bytes' length. They cannot overlap, because no slice is ever made of the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }
}

impl AsFd for SharedMemory {
    /// The file behind the mapping, to be sent to the peer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everything that points into it borrows from `self` or owns a share of it. The
        // call cannot fail for a mapping that exists.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.size);
        }
    }
}

/// A new file in memory that seals can be put on.
fn create_memfd(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is a string that ends with a zero, and outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so this is its only owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn add_seals(file: &impl AsFd, seals: i32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn seals(file: &impl AsFd) -> io::Result<i32> {
    // SAFETY: takes no pointers.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) } {
        seals @ 0.. => Ok(seals),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes of the kernel's pages.
fn page_size() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .unwrap_or(GRANULARITY)
}

/// Whether a file in memory is made of huge pages.
fn is_of_huge_pages(file: &impl AsFd) -> io::Result<bool> {
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    let mut of = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `of` has room for the bytes that the kernel writes.
    let result = unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), of.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and so has written all of it.
    let of = unsafe { of.assume_init() };
    Ok(of.f_type as u32 == HUGETLBFS_MAGIC)
}

/// Returns the kind of a file that is not regular, in a word.
fn kind(of: FileType) -> &'static str {
    if of.is_fifo() {
        "pipe"
    } else if of.is_socket() {
        "socket"
    } else if of.is_dir() {
        "directory"
    } else {
        "device"
    }
}

fn checked_size(size: u64, max: usize) -> Result<usize, SharedMemoryError> {
    // A Rust object, and with it every offset into the mapping, spans at most `isize::MAX` bytes.
    let max = max.min(isize::MAX as usize);
    match usize::try_from(size) {
        Ok(bytes) if bytes > 0 && bytes <= max && bytes.is_multiple_of(GRANULARITY) => Ok(bytes),
        _ => Err(SharedMemoryError::Size {
            size,
            max: max as u64,
        }),
    }
}
