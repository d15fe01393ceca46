//! The private folder in which a service started by `ferretto` listens. Also removes the folders of runs that were killed.
//!
//! Called by [`autostart`](super). The owner holds a lock on a file in the folder for as long as it lives, and the kernel lets go of that
//! however it ends. So a folder of this user's whose lock can be had is nobody's, and the next start removes it. Nothing else is touched:
//! folders are opened without following links, and only what this module and its daemons put there is removed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ferretto_ipc::address::MAX_UNIX_NAME;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, unlinkat};

const PREFIX: &str = "ferretto-";
/// What is locked, and what it is called before it is.
const OWNER: &str = "owner";
const NEW_OWNER: &str = "owner.new";
/// Where the service listens.
const CONSUMER: &str = "consumer";
const PRODUCER: &str = "producer";
/// What the longest name of a socket adds to that of the folder in which folders are made: `/ferretto-XXXXXX/consumer`.
const ADDED: usize = 25;

/// A folder, removed with this.
#[derive(Debug)]
pub(super) struct SocketFolder {
    folder: tempfile::TempDir,
    /// Held as long as it is open.
    _owner: File,
}

impl SocketFolder {
    /// Makes one in the folder for temporary files, or in `/tmp` if the name of the former is too long. Folders that others have left
    /// there are removed.
    pub(super) fn new() -> io::Result<SocketFolder> {
        let parent = parent(std::path::absolute(std::env::temp_dir())?);
        // A folder that stays does no harm.
        let _ = remove_left_behind(&parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let new = folder.path().join(NEW_OWNER);
        let owner = File::create_new(&new)?;
        owner.try_lock()?;
        // It has its name only now: whoever finds it cannot have the lock.
        std::fs::rename(&new, folder.path().join(OWNER))?;
        Ok(SocketFolder {
            folder,
            _owner: owner,
        })
    }

    pub(super) fn consumer_socket(&self) -> PathBuf {
        self.folder.path().join(CONSUMER)
    }

    pub(super) fn producer_socket(&self) -> PathBuf {
        self.folder.path().join(PRODUCER)
    }
}

/// Where folders are made, given the folder for temporary files: there, if a socket's address has room for the name.
pub(crate) fn parent(temporary: PathBuf) -> PathBuf {
    const LONGEST: usize = MAX_UNIX_NAME - ADDED;
    match temporary.as_os_str().len() {
        0..=LONGEST => temporary,
        _ => PathBuf::from("/tmp"),
    }
}

/// Removes folders whose owner is gone.
fn remove_left_behind(parent: &Path) -> io::Result<()> {
    let names = std::fs::read_dir(parent)?
        .flatten()
        .map(|entry| entry.file_name());
    let ours = |name: &OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    let parent = File::open(parent)?;
    for name in names.filter(|name| ours(name)) {
        // Of one that is somebody else's, or in use, that is the answer.
        let _ = remove_if_left(&parent, &name);
    }
    Ok(())
}

fn remove_if_left(parent: &File, name: &OsStr) -> io::Result<()> {
    let no_link = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | no_link,
        Mode::empty(),
    )?;
    is_mine(&folder, FileType::Directory)?;
    let owner = openat(
        &folder,
        OWNER,
        OFlags::RDWR | OFlags::NONBLOCK | no_link,
        Mode::empty(),
    )?;
    is_mine(&owner, FileType::RegularFile)?;
    // Held until all is gone, so that two who clean up do not meet.
    let owner = File::from(owner);
    owner.try_lock()?;
    for file in [CONSUMER, PRODUCER, OWNER] {
        match unlinkat(&folder, file, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Only if nothing else is in it.
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn is_mine(file: &OwnedFd, kind: FileType) -> io::Result<()> {
    let stat = fstat(file)?;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw();
    match mine && FileType::from_raw_mode(stat.st_mode) == kind {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}
