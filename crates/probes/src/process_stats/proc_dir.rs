//! Access to the processes under one procfs mount: their ids and files.
//!
//! Used by the process tree and the counters. All paths are relative to one open descriptor of the mount, so the mount
//! stays the same even if its path changes. Names are built on the stack, and contents go into the caller's buffer.

use std::ffi::CStr;
use std::io::Write;
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, readlinkat_raw};
use rustix::io::Errno;

use crate::kernel_files::{End, for_each_entry, open_dir, open_dir_at, open_file_at, read_from_start};
use crate::kernel_text::{task_id, whole_u64};

/// A file of `/proc/<pid>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskFile {
    Status,
    Stat,
    Cmdline,
    OomScoreAdj,
    SmapsRollup,
    DmabufRss,
}

impl TaskFile {
    fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Stat => "stat",
            Self::Cmdline => "cmdline",
            Self::OomScoreAdj => "oom_score_adj",
            Self::SmapsRollup => "smaps_rollup",
            Self::DmabufRss => "dmabuf_rss",
        }
    }
}

/// An open procfs mount.
#[derive(Debug)]
pub(crate) struct ProcDir {
    root: OwnedFd,
}

impl ProcDir {
    /// Opens the mount at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        Ok(Self {
            root: open_dir(path)?,
        })
    }

    /// Puts the ids of all processes into `pids`, replacing what it held.
    pub(crate) fn processes(&self, pids: &mut Vec<i32>) -> Result<(), Errno> {
        task_dirs(&self.root, pids)
    }

    /// Puts the ids of all threads of `pid` into `tids`, replacing its content; `tids` is empty if the process is
    /// gone.
    pub(crate) fn threads(&self, pid: i32, tids: &mut Vec<i32>) {
        tids.clear();
        if let Ok(tasks) = open_dir_at(
            self.root.as_fd(),
            PathBuffer::new(format_args!("{pid}/task")).as_c_str(),
        ) {
            // If the process ends meanwhile, the threads seen so far remain.
            let _ = task_dirs(&tasks, tids);
        }
    }

    /// The content of a file of `pid`, in `buffer`. Empty if it cannot be read: processes come and go, and only
    /// privileged users may read some files.
    pub(crate) fn read<'buffer>(
        &self,
        pid: i32,
        file: TaskFile,
        buffer: &'buffer mut Vec<u8>,
    ) -> &'buffer [u8] {
        let path = PathBuffer::new(format_args!("{pid}/{}", file.name()));
        let read = open_file_at(self.root.as_fd(), path.as_c_str())
            .and_then(|open| read_from_start(&open, End::OnShortRead, buffer));
        if read.is_err() {
            buffer.clear();
        }
        buffer
    }

    /// Puts the numbers of all files that `pid` holds open into `numbers`, replacing what it held.
    pub(crate) fn open_files(&self, pid: i32, numbers: &mut Vec<u64>) {
        numbers.clear();
        if let Ok(dir) = open_dir_at(
            self.root.as_fd(),
            PathBuffer::new(format_args!("{pid}/fd")).as_c_str(),
        ) {
            let _ = for_each_entry(&dir, |name, kind| {
                if kind == FileType::Symlink {
                    numbers.extend(whole_u64(name));
                }
            });
        }
    }

    /// The target of file number `fd` of `pid`, cut off at the length of `buffer`; `None` if it is closed by now.
    pub(crate) fn open_file<'buffer>(
        &self,
        pid: i32,
        fd: u64,
        buffer: &'buffer mut [u8; LONGEST_LINK],
    ) -> Option<&'buffer [u8]> {
        let path = PathBuffer::new(format_args!("{pid}/fd/{fd}"));
        let length = readlinkat_raw(&self.root, path.as_c_str(), &mut buffer[..]).ok()?;
        Some(&buffer[..length])
    }
}

/// Bytes of a link's target that are recorded, at most.
pub(crate) const LONGEST_LINK: usize = 256;

fn task_dirs(dir: &OwnedFd, ids: &mut Vec<i32>) -> Result<(), Errno> {
    ids.clear();
    for_each_entry(dir, |name, kind| {
        if kind == FileType::Directory {
            ids.extend(task_id(name));
        }
    })
}

/// A short path with its closing NUL, on the stack.
struct PathBuffer {
    bytes: [u8; 64],
}

impl PathBuffer {
    /// The longest path here is two numbers and a word of at most 13 letters, which leaves room.
    fn new(path: std::fmt::Arguments<'_>) -> Self {
        let mut bytes = [0; 64];
        let mut room = &mut bytes[..63];
        let written = room.write_fmt(path);
        debug_assert!(written.is_ok(), "paths of procfs are short");
        Self { bytes }
    }

    fn as_c_str(&self) -> &CStr {
        // The last byte is never written, so there is a NUL.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}
