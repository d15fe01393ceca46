//! Files that only their owner may read, because traces and data from them show what ran on a machine.
//!
//! Every command that writes a file calls it. A new file has the mode 0600, whatever the umask. An existing file keeps its mode and owner, and also
//! its content until the caller empties it.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o600;

/// The origin of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was created here.
    Created,
    /// It existed before.
    Found,
}

/// Creates a file with these options.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if there is a file or a link of that name.
pub(crate) fn create_new(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.clone().create_new(true).mode(MODE).open(path)?;
    // The umask may have removed the owner's own rights. On filesystems without modes this fails, and the mode stays as it is.
    let _ = file.set_permissions(Permissions::from_mode(MODE));
    give_to_who_used_sudo(&file);
    Ok(file)
}

/// Creates a file, or opens the existing one without changing its content.
///
/// # Errors
/// If it can be neither created nor opened.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<(File, Origin)> {
    match create_new(options, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // `create` is for dangling links, which `create_new` treats as files.
            let mut options = options.clone();
            let file = options.create(true).truncate(false).mode(MODE).open(path)?;
            Ok((file, Origin::Found))
        }
        created => Ok((created?, Origin::Created)),
    }
}

/// Empties a file that [`open`] found. Devices and pipes cannot be emptied, and need not be.
///
/// # Errors
/// If that fails.
pub(crate) fn empty(file: &File) -> io::Result<()> {
    match file.metadata()?.is_file() {
        true => file.set_len(0),
        false => Ok(()),
    }
}

/// Gives a new file that was made under `sudo` to the user who called it. Recording the kernel needs root, but viewing the trace does not, and
/// otherwise the user could not even read it. Existing files keep their owner.
fn give_to_who_used_sudo(file: &File) {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if let (true, Some(user), Some(group)) = (
        rustix::process::geteuid().is_root(),
        id("SUDO_UID"),
        id("SUDO_GID"),
    ) {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        // On filesystems without owners this fails, and the owner stays as it is.
        let _ = rustix::fs::fchown(file, Some(user), Some(group));
    }
}
