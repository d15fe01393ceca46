//! The folder of sealed files.
//!
//! Beside the files there are `.lock`, which the running recorder has locked, `state.json`, and drafts: files that are being written, whose names
//! begin with `.draft-`. A draft gets its final name when it is complete and on the disk. Files of others are neither counted nor touched.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ferretto_recorder::FileName;

use crate::private_file;

const LOCK: &str = ".lock";
const STATE: &str = "state.json";
const DRAFT: &str = ".draft-";

/// The folder of the running recorder, see the [module](self).
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked as long as the recorder runs. The kernel unlocks it when the recorder ends in any way.
    _lock: File,
}

impl Folder {
    /// Makes the folder, unless it is there, and locks it. Deletes the drafts of a recorder that was killed.
    ///
    /// # Errors
    /// If another recorder has it, or it cannot be written.
    pub(super) fn open(path: &Path) -> Result<Folder, String> {
        let failed = |error: io::Error| format!("cannot use the folder {}: {error}", path.display());
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed)?;
        let (lock, _) = private_file::open(File::options().write(true), &path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!(
                    "another recorder writes into {}: stop it, or give this one another folder in its settings",
                    path.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().as_encoded_bytes().starts_with(DRAFT.as_bytes()) {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(Folder {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Returns the path of a sealed file.
    pub(super) fn path(&self, file: &FileName) -> PathBuf {
        self.path.join(file.to_string())
    }

    /// Starts a file under a name of its own.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn draft(&self, name: &str) -> io::Result<Draft> {
        let path = self.path.join(format!("{DRAFT}{name}"));
        let file = private_file::create_new(File::options().write(true), &path)?;
        Ok(Draft {
            file,
            path: Some(path),
            target: self.path.join(name),
        })
    }

    /// Replaces the state file. It survives the end of any process, but perhaps not a loss of power: the loop that saves must not wait for the disk.
    ///
    /// # Errors
    /// If it cannot be written; the old one is there then.
    pub(super) fn save(&self, state: &[u8]) -> io::Result<()> {
        let mut draft = self.draft(STATE)?;
        draft.file.write_all(state)?;
        draft.rename()
    }
}

/// The disk of the folder, of which the recorder leaves some bytes free. Clones share this number.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    folder: PathBuf,
    leave_free: Arc<AtomicU64>,
}

impl Disk {
    /// The disk of this folder.
    pub(super) fn of(folder: &Path, leave_free: u64) -> Disk {
        Disk {
            folder: folder.to_owned(),
            leave_free: Arc::new(leave_free.into()),
        }
    }

    /// Returns the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Changes how many bytes stay free.
    pub(super) fn set_leave_free(&self, bytes: u64) {
        self.leave_free.store(bytes, Relaxed);
    }

    /// Returns the bytes that the recorder may still write.
    pub(super) fn free(&self) -> u64 {
        let free = match rustix::fs::statvfs(&self.folder) {
            // Some network filesystems do not report it.
            Ok(disk) if disk.f_blocks > 0 => disk.f_bavail.saturating_mul(disk.f_frsize),
            _ => u64::MAX,
        };
        free.saturating_sub(self.leave_free.load(Relaxed))
    }
}

/// A file that is being written. Unless it is [kept](Draft::keep), it is deleted.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) file: File,
    /// Its present path, until it has its final one.
    path: Option<PathBuf>,
    target: PathBuf,
}

impl Draft {
    /// Gives the complete file its final name. It is on the disk then.
    ///
    /// # Errors
    /// If the disk did not take it.
    pub(super) fn keep(mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.rename()?;
        if let Some(folder) = self.target.parent() {
            // The name is there in any case; some filesystems cannot tell when it is on the disk.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(())
    }
}

impl Draft {
    /// Gives it its final name.
    fn rename(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            std::fs::rename(path, &self.target)?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // If deleting fails, the next start tries again.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the sealed files in a folder, with their sizes.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn sealed_files(folder: &Path) -> io::Result<Vec<(FileName, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str().and_then(FileName::parse) {
            // It may be gone by now.
            files.extend(entry.metadata().ok().map(|metadata| (name, metadata.len())));
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the state file; `None` if there is none.
///
/// # Errors
/// If it cannot be read.
pub(super) fn state(folder: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(folder.join(STATE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Whether a recorder runs that writes into this folder.
///
/// # Errors
/// If that cannot be said.
pub(super) fn is_in_use(folder: &Path) -> io::Result<bool> {
    let lock = match File::open(folder.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NAME: &str = "20261126T215617.123Z-a-b.pftrace";

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_when_it_is_complete_and_drafts_are_swept_away() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/er");
        let folder = Folder::open(&path).unwrap();
        let mut draft = folder.draft(NAME).unwrap();
        draft.file.write_all(b"12345").unwrap();
        assert_eq!(sealed_files(&path).unwrap(), []);
        draft.keep().unwrap();
        let expected = (FileName::parse(NAME).unwrap(), 5);
        assert_eq!(sealed_files(&path).unwrap(), std::slice::from_ref(&expected));
        let mode = std::fs::metadata(path.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(folder.draft("given-up").unwrap());
        // As one leaves that is killed.
        std::mem::forget(folder.draft("killed").unwrap());
        std::fs::write(path.join("of-others"), "x").unwrap();
        assert_eq!(names(&path), [".draft-killed", ".lock", NAME, "of-others"]);

        assert!(is_in_use(&path).unwrap());
        assert!(Folder::open(&path).unwrap_err().contains("another recorder"));
        drop(folder);
        assert!(!is_in_use(&path).unwrap());
        let _folder = Folder::open(&path).unwrap();
        assert_eq!(names(&path), [".lock", NAME, "of-others"]);
        assert_eq!(sealed_files(&path).unwrap(), [expected]);
    }
}
