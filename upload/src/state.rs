//! The uploader's memory: a file, `state.json`, in a folder of its own.
//!
//! [`uploader`](crate::uploader) has the only writer: the folder is locked. `ferretto recorder status` reads the file. Without the file nothing is lost: the
//! uploader compares the files with the stored objects.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::stderr::say;

/// The version of the file's form.
const VERSION: u64 = 1;
const FILE: &str = "state.json";
const DRAFT: &str = ".draft-state.json";
const LOCK: &str = ".lock";

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    pub(crate) version: u64,
    /// The uploader that wrote it.
    pub(crate) pid: u32,
    /// The destination of files.
    pub(crate) url: String,
    /// The files that wait, and their bytes.
    pub(crate) waiting: u64,
    pub(crate) waiting_bytes: u64,
    /// Counts since the first start: uploaded files, files that the recorder's quota deleted before, and failures.
    pub(crate) uploaded: u64,
    pub(crate) uploaded_bytes: u64,
    pub(crate) missed: u64,
    pub(crate) failures: u64,
    /// The last failure, until all is well again.
    pub(crate) last_error: Option<Failure>,
    /// The files in the recorder's folder that were uploaded.
    pub(crate) done: BTreeSet<String>,
    /// The files that waited when somebody looked last.
    pub(crate) known: BTreeSet<String>,
    /// The upload in parts that is under way, or was when the uploader ended.
    pub(crate) parts: Option<Parts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parts {
    pub(crate) file: String,
    /// The store's name for the upload.
    pub(crate) id: String,
}

/// The state and its file.
#[derive(Debug)]
pub(crate) struct Memory {
    folder: PathBuf,
    pub(crate) state: State,
    /// The kernel unlocks it when the process ends in any way.
    _lock: File,
}

impl Memory {
    /// Makes the folder, unless it is there, locks it, and reads the file. Uploads to another place do not count.
    ///
    /// # Errors
    /// If another uploader has it, or it cannot be used.
    pub(crate) fn open(folder: &Path, url: &str) -> Result<Memory, String> {
        let failed = |error: io::Error| format!("cannot use the folder {}: {error}", folder.display());
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed)?;
        let mut options = File::options();
        let lock = options
            .write(true)
            .create(true)
            .mode(0o600)
            .open(folder.join(LOCK));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!(
                    "another uploader uses {}: stop it, or give this one another state in [upload]",
                    folder.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut state = match std::fs::read(folder.join(FILE)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                say(format_args!(
                    "the state file is of no use, so what is stored will be compared: {error}"
                ));
                State::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(failed(error)),
        };
        if state.url != url {
            if let Some(parts) = state.parts.take() {
                say(format_args!(
                    "an unfinished upload of {} stays at {}",
                    parts.file, state.url
                ));
            }
            state.done.clear();
            state.url = url.to_owned();
        }
        state.version = VERSION;
        state.pid = std::process::id();
        Ok(Memory {
            folder: folder.to_owned(),
            state,
            _lock: lock,
        })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If that fails; the old one is there then.
    pub(crate) fn save(&self) -> Result<(), String> {
        let draft = self.folder.join(DRAFT);
        let write = || {
            let mut options = File::options();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&serde_json::to_vec_pretty(&self.state)?)?;
            std::fs::rename(&draft, self.folder.join(FILE))
        };
        write().map_err(|error| {
            format!(
                "cannot write the state file in {}: {error}",
                self.folder.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_unless_files_go_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("deep/er");
        let mut memory = Memory::open(&folder, "s3://a").unwrap();
        memory.state.done.insert("x".to_owned());
        memory.state.uploaded = 1;
        memory.save().unwrap();
        assert!(
            Memory::open(&folder, "s3://a")
                .unwrap_err()
                .contains("another uploader")
        );
        let before = memory.state.clone();
        drop(memory);
        assert_eq!(Memory::open(&folder, "s3://a").unwrap().state, before);
        let elsewhere = Memory::open(&folder, "s3://b").unwrap().state;
        assert_eq!((elsewhere.done.len(), elsewhere.uploaded), (0, 1));
        std::fs::write(folder.join(FILE), "{ half").unwrap();
        assert_eq!(Memory::open(&folder, "s3://a").unwrap().state.uploaded, 0);
    }
}
