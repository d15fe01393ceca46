//! The journal of changes to tracefs: a file in a private directory, written ahead of each change by
//! [`super::Restorer`] and read by [`super::replay`] after a crash.
//!
//! Text, one record a line, fields separated by tabs, appended with one `write` each. A last line without its newline is not a
//! record: the change that it would announce had not been made. The owner holds an exclusive `flock` for as long as it lives, so
//! a journal that can be locked has no owner any more. A journal is valid for one boot only, as tracefs's settings are; the boot
//! id identifies the boot.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::ftrace::tracefs::{EventName, Setting};

const HEADER: &str = "ferretto ftrace journal 1";
/// Time between two attempts to lock the directory.
const LOCK_POLL: Duration = Duration::from_millis(5);
/// A journal lists each of a machine's few thousand events at most a few times. A longer file is no journal of this program.
const LONGEST_JOURNAL: u64 = 8 << 20;

/// Why the journal cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Others than this user can write to the directory.
    #[error(
        "{} is no safe place for the journal of ftrace changes: {reason}. Remove it; ftrace will not be put back after a crash until then", path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its mistake.
        reason: &'static str,
    },
    /// Another process has held the directory for too long.
    #[error(
        "cannot put back what a crashed daemon may have changed in ftrace: another process is at it, and {} has been locked for \
         {} s. `fuser -v {}` names it; if it hangs, end it and start traced_probes again", path.display(), patience.as_secs(), path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
        /// How long this process waited.
        patience: Duration,
    },
    /// A file operation failed.
    #[error(
        "cannot {doing} {}: {source}. Ftrace will be put back on exit, but not after a crash", path.display()
    )]
    Io {
        /// "create", "write to", …
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { doing, path, source }
}

/// One step as the journal lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The value of a setting before its first change.
    Found(Setting, String),
    /// A setting is about to be changed.
    Changing(Setting),
    /// The value of a setting after a change.
    Left(Setting, String),
    /// Events that were on before the first change.
    EventsThere(Vec<EventName>),
    /// Events that were on and are about to be switched off.
    EventsFound(Vec<EventName>),
    /// Events that are about to be switched on.
    EventsOn(Vec<EventName>),
    /// An event that was switched off again.
    EventOff(EventName),
    /// A probe that is about to be made.
    KprobeAdded(EventName),
}

impl Record {
    fn to_line(&self) -> String {
        let list = |events: &[EventName]| {
            events
                .iter()
                .map(|event| format!("{}:{}", event.group, event.name))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let (word, first, second) = match self {
            Record::Found(setting, value) => ("found", setting.file(), escape(value)),
            Record::Changing(setting) => ("changing", setting.file(), String::new()),
            Record::Left(setting, value) => ("left", setting.file(), escape(value)),
            Record::EventsThere(events) => ("events-there", list(events), String::new()),
            Record::EventsFound(events) => ("events-found", list(events), String::new()),
            Record::EventsOn(events) => ("events-on", list(events), String::new()),
            Record::EventOff(event) => ("event-off", list(std::slice::from_ref(event)), String::new()),
            Record::KprobeAdded(event) => ("kprobe", list(std::slice::from_ref(event)), String::new()),
        };
        format!("{word}\t{first}\t{second}\n")
    }

    /// `None` for a line of a later version or of another program. So only known records are undone, and only files that
    /// [`Setting`] knows are ever written.
    fn from_line(line: &str) -> Option<Record> {
        let mut fields = line.split('\t');
        let (word, first, second) = (fields.next()?, fields.next()?, fields.next()?);
        let setting = || Setting::from_file(first);
        let events = || {
            first
                .split_ascii_whitespace()
                .map(EventName::from_set_event)
                .collect::<Option<Vec<_>>>()
        };
        let event = || EventName::from_set_event(first);
        Some(match word {
            "found" => Record::Found(setting()?, unescape(second)),
            "changing" => Record::Changing(setting()?),
            "left" => Record::Left(setting()?, unescape(second)),
            "events-there" => Record::EventsThere(events()?),
            "events-found" => Record::EventsFound(events()?),
            "events-on" => Record::EventsOn(events()?),
            "event-off" => Record::EventOff(event()?),
            "kprobe" => Record::KprobeAdded(event()?),
            _ => return None,
        })
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\t', "\\t")
}

fn unescape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('t')) => plain.push('\t'),
            ('\\', Some(other)) => plain.push(other),
            (c, _) => plain.push(c),
        }
    }
    plain
}

/// A directory for journals that nobody but this user can write to.
#[derive(Clone, Debug)]
pub struct JournalDir {
    path: PathBuf,
}

impl JournalDir {
    /// The first of this user's [`places`](JournalDir::places) that can be made.
    ///
    /// # Errors
    /// If the first place exists but is not safe, or no place can be made.
    pub fn system() -> Result<JournalDir, JournalError> {
        let [runtime, temporary] = JournalDir::places(rustix::process::geteuid().as_raw());
        JournalDir::at(runtime).or_else(|error| match error {
            JournalError::Io { .. } => JournalDir::at(temporary),
            JournalError::Unsafe { .. } | JournalError::Busy { .. } => Err(error),
        })
    }

    /// The places of a user's journals: `/run/ferretto` for root, `/run/user/<uid>/ferretto` for others, and
    /// `/tmp/ferretto-<uid>` if that cannot be made.
    pub fn places(uid: u32) -> [PathBuf; 2] {
        let runtime = match uid {
            0 => "/run/ferretto".to_owned(),
            uid => format!("/run/user/{uid}/ferretto"),
        };
        [runtime, format!("/tmp/ferretto-{uid}")].map(PathBuf::from)
    }

    /// The process that keeps, or kept, the journal in the file of this name; `None` if the name is no journal's.
    pub fn keeper(file_name: &str) -> Option<i32> {
        let (pid, _) = file_name
            .strip_prefix("ftrace-")?
            .strip_suffix(".journal")?
            .split_once('-')?;
        pid.parse().ok()
    }

    /// Opens `path`. Makes it if it is missing, and checks it otherwise.
    ///
    /// # Errors
    /// If it cannot be made, or is no directory to which this user alone can write.
    pub fn at(path: impl Into<PathBuf>) -> Result<JournalDir, JournalError> {
        let path = path.into();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error("create", &path)(error));
            }
            _ => {}
        }
        JournalDir::check(path)
    }

    /// Opens `path` if it exists and nobody else can write to it.
    ///
    /// # Errors
    /// If it is not there, or is no directory to which this user alone can write.
    pub fn check(path: impl Into<PathBuf>) -> Result<JournalDir, JournalError> {
        let path = path.into();
        let metadata = fs::symlink_metadata(&path).map_err(io_error("inspect", &path))?;
        let reason = if !metadata.is_dir() {
            Some("it is not a directory")
        } else if metadata.uid() != rustix::process::geteuid().as_raw() {
            Some("it belongs to another user")
        } else if metadata.mode() & 0o022 != 0 {
            Some("other users may write to it")
        } else {
            None
        };
        match reason {
            Some(reason) => Err(JournalError::Unsafe { path, reason }),
            None => Ok(JournalDir { path }),
        }
    }

    /// Makes a file in the directory that only this user can read and write, whatever the umask. The caller writes it from its
    /// start on.
    ///
    /// # Errors
    /// If the file exists already, or the system refuses to make it.
    pub fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(self.path.join(name))
    }

    /// Waits until nobody else is putting anything back, but no longer than `patience`. Nobody else can start to put back while
    /// the returned file lives.
    pub(super) fn lock(&self, patience: Duration) -> Result<File, JournalError> {
        let folder = File::open(&self.path).map_err(io_error("open", &self.path))?;
        let until = Instant::now() + patience;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(folder),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    let path = self.path.clone();
                    return Err(JournalError::Busy { path, patience });
                }
                Err(errno) => return Err(io_error("lock", &self.path)(errno.into())),
            }
        }
    }

    /// Journals whose owners are gone, each locked until it is dropped.
    pub(super) fn orphans(&self) -> Result<Vec<Orphan>, JournalError> {
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io_error("list", &self.path))? {
            let path = entry.map_err(io_error("list", &self.path))?.path();
            let is_journal = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| JournalDir::keeper(name).is_some());
            if is_journal && let Some(orphan) = Orphan::open(path) {
                orphans.push(orphan);
            }
        }
        orphans.sort_by_key(|orphan| std::cmp::Reverse(orphan.modified));
        Ok(orphans)
    }
}

/// The journal of a living daemon.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    pub(super) fn create(dir: &JournalDir, root: &Path) -> Result<Journal, JournalError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = format!("ftrace-{}-{number}.journal", std::process::id());
            let path = dir.path.join(&name);
            let file = match dir.create(&name) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(io_error("create", &path)(error)),
            };
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| io_error("lock", &path)(errno.into()))?;
            // Another daemon that is just starting may have taken the new file for an orphan.
            if file.metadata().map_err(io_error("inspect", &path))?.nlink() == 0 {
                continue;
            }
            let mut journal = Journal { file, path };
            journal.write(&format!(
                "{HEADER}\t{}\t{}\n",
                boot_id(),
                escape(&root.to_string_lossy())
            ))?;
            return Ok(journal);
        }
    }

    pub(super) fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        self.write(&record.to_line())
    }

    fn write(&mut self, line: &str) -> Result<(), JournalError> {
        self.file
            .write_all(line.as_bytes())
            .map_err(io_error("write to", &self.path))
    }

    /// Deletes the journal, because everything is put back. If the file stays, replaying it will find nothing to do.
    pub(super) fn delete(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The journal of a daemon that is gone.
#[derive(Debug)]
pub(super) struct Orphan {
    /// Holds the lock.
    _file: File,
    path: PathBuf,
    text: String,
    root: PathBuf,
    modified: Option<std::time::SystemTime>,
}

impl Orphan {
    /// `None` if its owner lives, or if it is no journal.
    fn open(path: PathBuf) -> Option<Orphan> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&path)
            .ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let mut text = String::new();
        (&file).take(LONGEST_JOURNAL).read_to_string(&mut text).ok()?;
        let header = text.split_once('\n').map_or("", |(header, _)| header);
        let mut fields = header.split('\t');
        if fields.next() != Some(HEADER) {
            if text.is_empty() {
                // The owner died before it wrote the first record.
                let _ = fs::remove_file(&path);
            }
            return None;
        }
        let root = PathBuf::from(unescape(fields.nth(1)?));
        Some(Orphan {
            _file: file,
            path,
            root,
            modified: metadata.modified().ok(),
            text,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn is_of_this_boot(&self) -> bool {
        let header = self.text.lines().next().unwrap_or_default();
        header.split('\t').nth(1) == Some(boot_id().as_str())
    }

    /// The records, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let whole = self.text.rfind('\n').map_or("", |end| &self.text[..end]);
        whole.lines().skip(1).filter_map(Record::from_line)
    }

    pub(super) fn delete(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Identifies this boot of the kernel; empty where `/proc` is not mounted.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
