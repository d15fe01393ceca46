//! Reads the kernel's small text files cheaply and repeatedly: descriptors kept open, one reusable buffer, `pread` from
//! the start, paths relative to an open directory.
//!
//! Called by the pollers of procfs and sysfs. Guarantees that no file makes a buffer grow beyond `LARGEST_FILE`. If a
//! file has vanished (a device unplugged, a process gone), that one read fails, and the next read tries again.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::path::Arg;

use crate::kernel_text::trimmed;

/// Bytes of one file that are read at most. The largest in practice are `/proc/slabinfo` and `/proc/stat` of large
/// machines (some hundred KiB) and command lines, whose length their process chooses.
pub(crate) const LARGEST_FILE: usize = 1 << 20;

/// Free room that a read starts with: above the size of almost every file, so that one call takes it whole.
const USUAL_FILE: usize = 16 << 10;

/// The mount points of the kernel's file systems. Tests put directories of their own here.
#[derive(Debug, Clone)]
pub struct KernelRoots {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
}

impl Default for KernelRoots {
    /// `/proc` and `/sys`.
    fn default() -> Self {
        Self {
            procfs: PathBuf::from("/proc"),
            sysfs: PathBuf::from("/sys"),
        }
    }
}

/// Opens a directory to open other files relative to it, or to list it.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    open_dir_at(CWD, path)
}

/// As [`open_dir`], relative to `dir`.
pub(crate) fn open_dir_at(dir: BorrowedFd<'_>, path: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| {
        openat(
            dir,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    })
}

/// Opens a file for reading, relative to `dir`.
pub(crate) fn open_file_at(dir: BorrowedFd<'_>, path: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    // Opened without blocking: somebody else could replace the file at the path by a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    retry_on_intr(|| openat(dir, path, flags, Mode::empty()))
}

/// How to recognise the end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// At the first read that returns nothing. Files of many records (`vmstat`, `slabinfo`) come a page at a time.
    OnEmptyRead,
    /// At the first read that leaves room in the buffer. Files of a single record, as all of `/proc/<pid>` are, come
    /// whole if they fit, which saves a call for each.
    OnShortRead,
}

/// Replaces the content of `buffer` with that of the file, cut off at [`LARGEST_FILE`].
pub(crate) fn read_from_start(file: impl AsFd, end: End, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.clear();
    loop {
        if buffer.len() == buffer.capacity() {
            if buffer.len() >= LARGEST_FILE {
                return Ok(());
            }
            buffer.reserve_exact(USUAL_FILE.max(buffer.len()).min(LARGEST_FILE - buffer.len()));
        }
        let offset = buffer.len();
        let read = retry_on_intr(|| pread(&file, spare_capacity(buffer), offset as u64))?;
        let short = buffer.len() < buffer.capacity();
        if read == 0 || (end == End::OnShortRead && short) {
            return Ok(());
        }
    }
}

/// Bytes that [`for_each_line`] reads at most. `/proc/cpuinfo` has some KiB for each CPU, `/proc/interrupts` a number for
/// each CPU on the line of each interrupt: tens of MiB on the largest machines.
const MOST_BYTES_BY_LINE: u64 = 64 << 20;

/// Calls `each` with every line of a file that grows with the machine. Only one line is in memory at a time. The file is
/// cut off at `MOST_BYTES_BY_LINE`. A last line without its end, such as one that is cut off, is skipped.
pub(crate) fn for_each_line(path: &Path, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let file = File::from(open_file_at(CWD, path)?);
    let mut file = BufReader::new(file.take(MOST_BYTES_BY_LINE));
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        if let Some(line) = line.strip_suffix(b"\n") {
            each(line);
        }
        line.clear();
    }
    Ok(())
}

/// Calls `each` with name and type of everything in the directory, from its start, in the kernel's order.
pub(crate) fn for_each_entry(dir: impl AsFd, mut each: impl FnMut(&[u8], FileType)) -> Result<(), Errno> {
    seek(&dir, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type());
        }
    }
    Ok(())
}

/// Whether a file's descriptor stays open between two reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It stays open: a read is one system call or two.
    Open,
    /// It does not stay open, because there may be more such files than descriptors.
    Closed,
}

/// One file that is read again and again.
#[derive(Debug)]
pub(crate) struct PolledFile {
    path: PathBuf,
    keep: Keep,
    open: Option<OwnedFd>,
}

impl PolledFile {
    /// The file at `path`, not opened yet.
    pub(crate) fn new(path: PathBuf, keep: Keep) -> Self {
        Self {
            path,
            keep,
            open: None,
        }
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The present content of the file.
    pub(crate) fn read<'buffer>(&mut self, buffer: &'buffer mut Vec<u8>) -> Result<&'buffer [u8], Errno> {
        let file = match self.open.take() {
            Some(file) => file,
            None => open_file_at(CWD, &*self.path)?,
        };
        // After an error the descriptor is not kept: the device may be gone, and another device may take its place.
        read_from_start(&file, End::OnEmptyRead, buffer)?;
        if self.keep == Keep::Open {
            self.open = Some(file);
        }
        Ok(buffer)
    }
}

/// The content of a file that is read once, without the blanks and line ends around it. `None` if it cannot be read.
pub(crate) fn read_once(path: PathBuf, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut file = PolledFile::new(path, Keep::Closed);
    file.read(buffer).ok().map(|text| trimmed(text).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_files::TempDir;

    #[test]
    fn a_kept_file_is_read_from_its_start_each_time() {
        let dir = TempDir::new("kept");
        dir.write("value", "1\n");
        let mut file = PolledFile::new(dir.path().join("value"), Keep::Open);
        let mut buffer = Vec::new();
        assert_eq!(file.read(&mut buffer), Ok(&b"1\n"[..]));
        dir.write("value", "23\n");
        assert_eq!(file.read(&mut buffer), Ok(&b"23\n"[..]));
    }

    #[test]
    fn only_a_kept_file_stays_the_same_when_its_name_goes_to_another() {
        for (keep, expected) in [(Keep::Open, &b"old"[..]), (Keep::Closed, b"new")] {
            let dir = TempDir::new("renamed");
            dir.write("value", "old");
            let mut file = PolledFile::new(dir.path().join("value"), keep);
            let mut buffer = Vec::new();
            assert_eq!(file.read(&mut buffer), Ok(&b"old"[..]));
            dir.remove("value");
            dir.write("value", "new");
            assert_eq!(file.read(&mut buffer), Ok(expected), "{keep:?}");
        }
    }

    #[test]
    fn a_missing_file_is_found_once_it_appears() {
        let dir = TempDir::new("appears");
        let mut file = PolledFile::new(dir.path().join("value"), Keep::Open);
        let mut buffer = Vec::new();
        assert_eq!(file.read(&mut buffer), Err(Errno::NOENT));
        dir.write("value", "7");
        assert_eq!(file.read(&mut buffer), Ok(&b"7"[..]));
    }

    #[test]
    fn a_file_larger_than_the_buffer_comes_whole_and_an_endless_one_is_cut() {
        let dir = TempDir::new("large");
        let large: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        dir.write("large", &large);
        for end in [End::OnEmptyRead, End::OnShortRead] {
            let mut buffer = Vec::new();
            let file = open_file_at(CWD, &dir.path().join("large")).unwrap();
            read_from_start(&file, end, &mut buffer).unwrap();
            assert_eq!(buffer, large.as_bytes(), "{end:?}");
            let endless = open_file_at(CWD, c"/dev/zero").unwrap();
            read_from_start(&endless, end, &mut buffer).unwrap();
            assert!(
                buffer.len() >= LARGEST_FILE && buffer.capacity() < 2 * LARGEST_FILE,
                "{end:?}"
            );
        }
    }

    #[test]
    fn lines_come_one_by_one_and_one_without_an_end_is_none() {
        let dir = TempDir::new("lines");
        let long = "x".repeat(100_000);
        dir.write("lines", format!("a\n\n{long}\nb c\ncut o"));
        let mut lines = Vec::new();
        for_each_line(&dir.path().join("lines"), |line| lines.push(line.to_vec())).unwrap();
        assert_eq!(lines, [&b"a"[..], b"", long.as_bytes(), b"b c"]);
        let missing = for_each_line(&dir.path().join("missing"), |_| panic!("there is no line"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_lists_the_same_twice() {
        let dir = TempDir::new("listing");
        for name in ["b", "a", "c"] {
            dir.write(name, "");
        }
        let listed = open_dir(dir.path()).unwrap();
        for _ in 0..2 {
            let mut names = Vec::new();
            for_each_entry(&listed, |name, kind| names.push((name.to_vec(), kind))).unwrap();
            names.sort_by(|left, right| left.0.cmp(&right.0));
            let expected = [b"a", b"b", b"c"].map(|name| (name.to_vec(), FileType::RegularFile));
            assert_eq!(names, expected);
        }
    }
}
