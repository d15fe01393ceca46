//! Finds the programs that write to the files of a tracefs directory, as fanotify(7) tells: a write between two looks
//! leaves no other trace.
//!
//! One fanotify group holds marks on the files that matter and on the directories of recorded events. The tracefs directory
//! itself has no mark, because a mark there would slow down every write to `trace_marker`. The group reports the directory
//! and the name of a file (`FAN_REPORT_DFID_NAME`) instead of an open descriptor, because opening `trace` has effects.
//! Tracefs supports that since Linux 6.8. To groups made without CAP_SYS_ADMIN the kernel reports writes but not the writing
//! process, so a daemon [reserves] groups before it gives up the capability. If the kernel reports nothing at all, there are no
//! `Writers`.
//!
//! [reserves]: reserve
//!
//! Costs one `read` per call of `Writers::written`, and a descriptor for each directory of events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::look::{FileUser, name_of_process};
use crate::ftrace::tracefs::EventName;

/// Events whose directories are watched, at most: each costs a descriptor.
const MOST_EVENTS: usize = 100;
/// Files in an event's directory that change what is recorded.
const EVENT_FILES: [&str; 2] = ["enable", "filter"];
/// Room for the result of one `read`; a record has at most about 350 bytes.
const READ_BYTES: usize = 16 << 10;
const LONGEST_RECORD: usize = 512;
/// Reads in a row, at most, so that a program that writes all the time does not keep this loop busy. The kernel merges
/// repeated writes.
const MOST_READS: usize = 16;

/// The inode of a directory and the name of a file in it.
type FileId = (u64, String);

/// Notices writes to the files of one tracefs directory.
#[derive(Debug)]
pub(crate) struct Writers {
    group: Group,
    root: PathBuf,
    files: BTreeMap<FileId, String>,
    event_dirs: BTreeMap<String, EventDir>,
}

/// A directory below `events`. While it is open the kernel keeps its inode, and so the mark, even when memory is short.
#[derive(Debug)]
struct EventDir {
    inode: u64,
    opened: OwnedFd,
}

/// Groups for the [`Writers`] that are there at once, at most: those of the sessions' tracefs directories.
const RESERVE: usize = 8;

/// Groups that nobody uses.
static RESERVED: Mutex<Vec<Fanotify>> = Mutex::new(Vec::new());

/// Makes groups, for later `Writers` of this process. To be called while it has CAP_SYS_ADMIN.
pub fn reserve() {
    let mut reserved = reserved();
    while reserved.len() < RESERVE {
        let Some(group) = make() else { break };
        reserved.push(group);
    }
}

fn reserved() -> MutexGuard<'static, Vec<Fanotify>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make() -> Option<Fanotify> {
    let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
    let names = InitFlags::from_bits_retain(libc::FAN_REPORT_DFID_NAME);
    Fanotify::init(flags | names, EventFFlags::O_RDONLY).ok()
}

/// A group that goes back to the reserve, if it comes from there.
#[derive(Debug)]
struct Group {
    /// `Some` until it is dropped.
    fanotify: Option<Fanotify>,
    is_reserved: bool,
}

impl Group {
    fn take() -> Option<Group> {
        let reserved = reserved().pop();
        let is_reserved = reserved.is_some();
        let fanotify = Some(reserved.or_else(make)?);
        Some(Group {
            fanotify,
            is_reserved,
        })
    }
}

impl Deref for Group {
    type Target = Fanotify;

    fn deref(&self) -> &Fanotify {
        self.fanotify.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.fanotify.take().filter(|_| self.is_reserved) else {
            return;
        };
        // A group without marks reports nothing more. Its reports so far are nothing to its next user.
        let forgotten = group.mark(MarkFlags::FAN_MARK_FLUSH, MaskFlags::empty(), CWD, None::<&Path>);
        let mut buffer = [0; READ_BYTES];
        let last = std::iter::repeat_with(|| rustix::io::read(&group, &mut buffer))
            .find(|read| !matches!(read, Ok(1..) | Err(Errno::INTR)));
        if forgotten.is_ok() && matches!(last, Some(Err(Errno::AGAIN))) {
            reserved().push(group);
        }
    }
}

impl Writers {
    /// Watches the existing ones of `files` in the directory `root`; `None` if this kernel or this user cannot.
    pub(crate) fn new(root: &Path, files: impl IntoIterator<Item = String>) -> Option<Writers> {
        let mut writers = Writers {
            group: Group::take()?,
            root: root.to_owned(),
            files: BTreeMap::new(),
            event_dirs: BTreeMap::new(),
        };
        for file in files {
            writers.watch_file(file);
        }
        (!writers.files.is_empty()).then_some(writers)
    }

    fn watch_file(&mut self, file: String) -> Option<()> {
        let path = self.root.join(&file);
        let name = path.file_name()?.to_str()?.to_owned();
        let inode = rustix::fs::stat(path.parent()?).ok()?.st_ino;
        let (add, modified) = (MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_MODIFY);
        self.group.mark(add, modified, CWD, Some(&path)).ok()?;
        self.files.insert((inode, name), file);
        Some(())
    }

    /// Watches the switches and filters of these events and their groups, and of no others.
    pub(crate) fn follow_events(&mut self, events: &BTreeSet<EventName>) {
        let mut wanted = BTreeSet::from(["events".to_owned()]);
        wanted.extend(events.iter().map(|event| format!("events/{}", event.group)));
        wanted.extend(
            events
                .iter()
                .take(MOST_EVENTS)
                .map(|event| format!("events/{event}")),
        );
        let on_files = MaskFlags::FAN_MODIFY | MaskFlags::FAN_EVENT_ON_CHILD;
        let group = &self.group;
        let mark = |how, opened: &OwnedFd| group.mark(how, on_files, opened, Some("."));
        self.event_dirs.retain(|path, dir| {
            let is_wanted = wanted.remove(path);
            if !is_wanted {
                // Nobody uses the events of a mark that cannot be removed.
                let _ = mark(MarkFlags::FAN_MARK_REMOVE, &dir.opened);
            }
            is_wanted
        });
        for path in wanted {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(opened) = rustix::fs::open(self.root.join(&path), flags, Mode::empty()) else {
                continue;
            };
            let Ok(stat) = rustix::fs::fstat(&opened) else {
                continue;
            };
            if mark(MarkFlags::FAN_MARK_ADD, &opened).is_ok() {
                let inode = stat.st_ino;
                self.event_dirs.insert(path, EventDir { inode, opened });
            }
        }
    }

    /// The programs that wrote since the last call, once for each file, without this process. The kernel keeps some ten
    /// thousand writers; if there are more, the first ones are enough.
    pub(crate) fn written(&self) -> BTreeSet<FileUser> {
        let mut written = BTreeSet::new();
        let mut names: BTreeMap<u32, String> = BTreeMap::new();
        let mut buffer = [0; READ_BYTES];
        for _ in 0..MOST_READS {
            let length = match rustix::io::read(&*self.group, &mut buffer) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            for record in records(&buffer[..length]) {
                let Some(file) = self.file_of(&record).filter(|_| record.pid != std::process::id()) else {
                    continue;
                };
                let name = names
                    .entry(record.pid)
                    .or_insert_with(|| name_of_process(record.pid));
                written.insert(FileUser {
                    pid: record.pid,
                    name: name.clone(),
                    file,
                });
            }
            if length + LONGEST_RECORD < READ_BYTES {
                break;
            }
        }
        written
    }

    /// Path below the directory; `None` if the file is of no interest.
    fn file_of(&self, record: &Record<'_>) -> Option<String> {
        let inode = record.directory?;
        if let Some(file) = self.files.get(&(inode, record.name.to_owned())) {
            return Some(file.clone());
        }
        let (path, _) = self.event_dirs.iter().find(|(_, dir)| dir.inode == inode)?;
        EVENT_FILES
            .contains(&record.name)
            .then(|| format!("{path}/{}", record.name))
    }
}

/// One record of a group that reports directories and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record<'a> {
    /// 0 if the kernel does not tell.
    pid: u32,
    /// Its inode.
    directory: Option<u64>,
    name: &'a str,
}

/// The records in the bytes of a read: `struct fanotify_event_metadata` and, after each, the parts that make it up to its
/// length.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let length = number::<4>(bytes, 0)? as usize;
        let head_length = number::<2>(bytes, 6)? as usize;
        let (record, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let mut parsed = Record {
            pid: u32::try_from(number::<4>(record, 20)?).ok()?,
            directory: None,
            name: "",
        };
        let mut parts = record.get(head_length..)?;
        // `struct fanotify_event_info_header`: kind, padding and length.
        while let Some(length) = number::<2>(parts, 2).filter(|length| *length >= 4) {
            let Some((part, rest)) = parts.split_at_checked(length as usize) else {
                break;
            };
            if part[0] == libc::FAN_EVENT_INFO_TYPE_DFID_NAME
                && let Some((directory, name)) = directory_and_name(part)
            {
                parsed.directory = Some(directory);
                parsed.name = name;
            }
            parts = rest;
        }
        Some(parsed)
    })
}

/// Parses `struct fanotify_event_info_fid`: the header, 8 bytes for the file system, `struct file_handle`, a name with a
/// NUL. The file system defines the content of a handle. Tracefs defines none, so the kernel makes handles of the kind
/// `FILEID_INO64_GEN` (`exportfs_encode_ino64_fid`): 8 bytes of inode number, then 4 of generation.
fn directory_and_name(part: &[u8]) -> Option<(u64, &str)> {
    const INODE_AND_GENERATION: u64 = 0x81;
    const HANDLE: usize = 12 + 8;
    let handle_length = number::<4>(part, 12)? as usize;
    if number::<4>(part, 16)? != INODE_AND_GENERATION || handle_length < 8 {
        return None;
    }
    let name = part
        .get(HANDLE + handle_length..)?
        .split(|byte| *byte == 0)
        .next()?;
    Some((number::<8>(part, HANDLE)?, std::str::from_utf8(name).ok()?))
}

/// The unsigned number of `SIZE` bytes at `offset`, in the byte order of this machine.
fn number<const SIZE: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let mut number = [0; 8];
    let at = if cfg!(target_endian = "big") { 8 - SIZE } else { 0 };
    number[at..at + SIZE].copy_from_slice(bytes.get(offset..offset + SIZE)?);
    Some(u64::from_ne_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as this kernel would write it for `name` in the directory with this inode.
    fn record(pid: u32, handle_kind: u32, inode: u64, name: &str) -> Vec<u8> {
        let mut part = vec![libc::FAN_EVENT_INFO_TYPE_DFID_NAME, 0];
        let mut named = [name.as_bytes(), &[0]].concat();
        named.resize(named.len().next_multiple_of(4), 0);
        part.extend((32 + named.len() as u16).to_ne_bytes());
        part.extend([0xff; 8]);
        part.extend(12_u32.to_ne_bytes());
        part.extend(handle_kind.to_ne_bytes());
        part.extend(inode.to_ne_bytes());
        part.extend([0; 4]);
        part.extend(named);
        let mut record = (24 + part.len() as u32).to_ne_bytes().to_vec();
        record.extend([3, 0]);
        record.extend(24_u16.to_ne_bytes());
        record.extend(libc::FAN_MODIFY.to_ne_bytes());
        record.extend((-1_i32).to_ne_bytes());
        record.extend(pid.to_ne_bytes());
        record.extend(part);
        record
    }

    #[test]
    fn records_are_read_up_to_the_first_that_is_none() {
        let expected = |pid, directory, name| Record { pid, directory, name };
        let other_kind = record(8, 1, 5, "x");
        let bytes = [record(7, 0x81, 1 << 40, "tracing_on"), other_kind].concat();
        let both = [expected(7, Some(1 << 40), "tracing_on"), expected(8, None, "")];
        assert_eq!(records(&bytes).collect::<Vec<_>>(), both);
        for length in 0..bytes.len() {
            let complete = usize::from(length >= bytes.len() - record(8, 1, 5, "x").len());
            assert_eq!(records(&bytes[..length]).collect::<Vec<_>>(), both[..complete]);
        }
        // Without this check, a length of zero would make the loop endless.
        assert_eq!(records(&[0; 64]).count(), 0);
    }
}
