//! Files that only their owner may read: traces, and what is made of them, tell what ran on a machine.
//!
//! Called by every command that writes a file. Whatever the umask, a file made here has the mode 0600. A file that was there
//! keeps its mode, owner and, until the caller empties it, its content.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o600;

/// Where a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// We made it.
    Created,
    /// It was there.
    Found,
}

/// Makes a file, to be used as `options` say.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if there is one, or a link of that name.
pub(crate) fn create_new(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.clone().create_new(true).mode(MODE).open(path)?;
    // The umask may have taken the owner's own rights. Some filesystems have no modes: then it stays as it is.
    let _ = file.set_permissions(Permissions::from_mode(MODE));
    give_to_who_used_sudo(&file);
    Ok(file)
}

/// Makes a file, or opens the one that is there without touching what is in it.
///
/// # Errors
/// If it can be neither made nor opened.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<(File, Origin)> {
    match create_new(options, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // `create` for links that point nowhere yet, which `create_new` takes for files.
            let mut options = options.clone();
            let file = options.create(true).truncate(false).mode(MODE).open(path)?;
            Ok((file, Origin::Found))
        }
        created => Ok((created?, Origin::Created)),
    }
}

/// Empties what [`open`] found, for what is to be written instead. Devices and pipes cannot be emptied, nor have they to be.
///
/// # Errors
/// If that fails.
pub(crate) fn empty(file: &File) -> io::Result<()> {
    match file.metadata()?.is_file() {
        true => file.set_len(0),
        false => Ok(()),
    }
}

/// Recording the kernel needs root, looking at the trace does not: a file that was made under `sudo` is its user's, who could not even
/// read it otherwise. Only files made here are given away.
fn give_to_who_used_sudo(file: &File) {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if let (true, Some(user), Some(group)) = (
        rustix::process::geteuid().is_root(),
        id("SUDO_UID"),
        id("SUDO_GID"),
    ) {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        // Some filesystems have no owners: then it stays as it is.
        let _ = rustix::fs::fchown(file, Some(user), Some(group));
    }
}
