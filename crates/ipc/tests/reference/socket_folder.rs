//! Folders for sockets in tests. A socket's address has 107 characters, and the folder for temporary files may leave no room in it.
//!
//! Included by unit tests and by tests of several crates.

use std::path::PathBuf;

/// A folder in which sockets can be made. Its name begins with `prefix`.
pub(crate) fn socket_folder(prefix: &str) -> tempfile::TempDir {
    let made = tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(parent_of_socket_folders());
    made.expect("a temporary folder")
}

/// Where they are made. Also for programs that make sockets below `$TMPDIR`.
pub(crate) fn parent_of_socket_folders() -> PathBuf {
    let usual = std::env::temp_dir();
    match usual.as_os_str().len() {
        0..=60 => usual,
        _ => PathBuf::from("/tmp"),
    }
}
