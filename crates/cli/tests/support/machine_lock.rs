//! Locks for resources that a machine has once. One test at a time holds a lock, among all processes and users, or several share it.
//!
//! [`tracefs`](super::tracefs) and [`ui_port`](super::ui_port) use it.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The lock, which is held while the file is open.
pub(crate) type MachineLock = File;

/// Waits for the lock.
pub(crate) fn lock(what: &str) -> MachineLock {
    let file = open(what);
    let locked = file.lock();
    locked.unwrap_or_else(|error| panic!("the lock of {what}: {error}"));
    file
}

/// Waits until nobody holds the lock, but for others that share it.
pub(crate) fn share(what: &str) -> MachineLock {
    let file = open(what);
    let locked = file.lock_shared();
    locked.unwrap_or_else(|error| panic!("the lock of {what}: {error}"));
    file
}

/// Opens the file of a lock. It is always at the same place, because tests with different folders for temporary files share the machine nevertheless.
fn open(what: &str) -> File {
    let path = PathBuf::from(format!("/tmp/ferretto-tests.{what}.lock"));
    // Locking needs no permission to write, so it does not matter which user created the file.
    let opened = loop {
        match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => break opened,
        }
        // Whatever the umask, everybody may open the file as soon as it has its name.
        let new = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        new.as_file()
            .set_permissions(Permissions::from_mode(0o644))
            .unwrap();
        match new.persist_noclobber(&path) {
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {}
            made => break made.map_err(|error| error.error),
        }
    };
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
