//! The private folder in which a service started by `ferretto` listens. Also removes the folders of runs that were killed.
//!
//! [`autostart`](super) calls it. The owner holds a lock on a file in the folder as long as it lives; the kernel releases the lock however the owner
//! ends. So if this user's folder has a free lock, nobody uses it, and the next start removes it. It touches nothing else: it opens folders without
//! following links, and removes only files that this module and its daemons make.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferretto_ipc::address::MAX_UNIX_NAME;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, unlinkat};

const PREFIX: &str = "ferretto-";
/// The file that is locked, and its name before it is locked.
const OWNER: &str = "owner";
const NEW_OWNER: &str = "owner.new";
/// The sockets of the service.
const CONSUMER: &str = "consumer";
const PRODUCER: &str = "producer";
/// The socket of the heap profiler.
const HEAP: &str = "heap";
/// The length that the longest name of a socket adds to the parent folder: `/ferretto-XXXXXX/consumer`.
const ADDED: usize = 25;

/// A folder, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFolder {
    folder: tempfile::TempDir,
    /// Holds the lock while it is open.
    _owner: File,
}

impl SocketFolder {
    /// Makes a folder in the one for temporary files, or in `/tmp` if the name of that is too long. First removes abandoned folders there.
    pub(super) fn new() -> io::Result<SocketFolder> {
        let parent = parent(std::path::absolute(std::env::temp_dir())?);
        // A folder that cannot be removed does no harm.
        let _ = remove_left_behind(&parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        if rustix::process::geteuid().is_root() {
            // Programs that root starts may go on as other users, and have to reach the heap profiler's socket. Each socket has a mode of its own.
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711))?;
        }
        let new = folder.path().join(NEW_OWNER);
        let owner = File::create_new(&new)?;
        owner.try_lock()?;
        // The file gets its name after the lock is taken, so nobody else can lock it.
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

    pub(super) fn heap_socket(&self) -> PathBuf {
        self.folder.path().join(HEAP)
    }
}

/// Returns the parent of such folders: `temporary`, or `/tmp` if a socket's address has no room for that name.
pub(crate) fn parent(temporary: PathBuf) -> PathBuf {
    const LONGEST: usize = MAX_UNIX_NAME - ADDED;
    match temporary.as_os_str().len() {
        0..=LONGEST => temporary,
        _ => PathBuf::from("/tmp"),
    }
}

/// Removes folders whose owner has ended.
fn remove_left_behind(parent: &Path) -> io::Result<()> {
    let names = std::fs::read_dir(parent)?
        .flatten()
        .map(|entry| entry.file_name());
    let ours = |name: &OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    let parent = File::open(parent)?;
    for name in names.filter(|name| ours(name)) {
        // An error means that the folder belongs to another user or is in use.
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
    // Holds the lock until everything is removed, so that only one process cleans up.
    let owner = File::from(owner);
    owner.try_lock()?;
    for file in [CONSUMER, PRODUCER, HEAP, OWNER] {
        match unlinkat(&folder, file, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Fails unless the folder is empty now.
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
