//! What there is once on a machine, held by one test at a time: of other processes too, whoever runs them.
//!
//! Used by [`tracefs`](super::tracefs) and [`ui_port`](super::ui_port).

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Held as long as it is open.
pub(crate) type MachineLock = File;

/// Waits for its turn. The file is always at the same place: tests that were given different folders for temporary files share the
/// machine all the same.
pub(crate) fn lock(what: &str) -> MachineLock {
    let path = PathBuf::from(format!("/tmp/ferretto-tests.{what}.lock"));
    // To lock it, one need not write it: whoever made it, everybody can wait for it.
    let opened = loop {
        match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => break opened,
        }
        // Whatever the umask, everybody may open it as soon as it has its name.
        let new = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        new.as_file()
            .set_permissions(Permissions::from_mode(0o644))
            .unwrap();
        match new.persist_noclobber(&path) {
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {}
            made => break made.map_err(|error| error.error),
        }
    };
    let lock = opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock
}
