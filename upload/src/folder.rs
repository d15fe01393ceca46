//! Files that are stored in a folder.
//!
//! [`store`](crate::store) calls it. A file has its name once it is whole and on the disk, so that neither a kill nor a crash of the machine leaves a half
//! one. Until then it is beside its place, as `NAME#1`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ferretto_recorder::FileName;

/// The end of the name of a file that is not whole.
const UNFINISHED: &str = "#1";

/// A file that is being stored.
pub(crate) struct Draft {
    file: File,
    path: PathBuf,
    beside: PathBuf,
}

impl Draft {
    /// Begins a file, also the folder for it. A file that a killed uploader has left there is begun anew.
    pub(crate) fn create(path: PathBuf) -> Result<Draft, String> {
        let mut beside = path.clone().into_os_string();
        beside.push(UNFINISHED);
        let beside = PathBuf::from(beside);
        let file = path
            .parent()
            .map_or(Ok(()), make)
            .and_then(|()| File::create(&beside));
        match file {
            Ok(file) => Ok(Draft { file, path, beside }),
            Err(error) => Err(format!("cannot write {}: {error}", beside.display())),
        }
    }

    pub(crate) fn write(&mut self, content: &[u8]) -> Result<(), String> {
        let written = self.file.write_all(content);
        written.map_err(|error| self.failed(&error))
    }

    /// Gives the file its name.
    pub(crate) fn finish(self) -> Result<(), String> {
        let finished = self
            .file
            .sync_all()
            .and_then(|()| fs::rename(&self.beside, &self.path))
            .and_then(|()| self.path.parent().map_or(Ok(()), sync));
        finished.map_err(|error| self.failed(&error))
    }

    /// Gives back its room, and returns what went wrong.
    fn failed(&self, error: &io::Error) -> String {
        let _ = fs::remove_file(&self.beside);
        format!("cannot write {}: {error}", self.beside.display())
    }
}

/// Makes a folder that a crash of the machine leaves there, with those above it.
fn make(folder: &Path) -> io::Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists()).count();
    fs::create_dir_all(folder)?;
    folder.ancestors().skip(1).take(missing).try_for_each(sync)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Deletes what a killed uploader has left unfinished in a folder.
///
/// # Errors
/// If that fails.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if is_unfinished(&entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Earlier versions also wrote other numbers.
fn is_unfinished(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.rsplit_once('#'));
    parts.is_some_and(|(file, number)| {
        FileName::parse(file).is_some() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
