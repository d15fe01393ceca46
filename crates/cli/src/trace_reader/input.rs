//! Where a trace comes from: a file or stdin, expanded if it is compressed as a whole.
//!
//! Called by every command that reads trace files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};

use super::expand::{Compression, Expanding};

/// A trace that can be read, once and from its beginning.
pub(crate) struct Input {
    /// What to call it.
    pub(crate) name: String,
    /// Its bytes, expanded.
    pub(crate) source: Box<dyn Read>,
    /// How the file is compressed, if it is.
    pub(crate) compression: Option<Compression>,
    /// The file, unless it is stdin.
    pub(crate) file: Option<File>,
}

impl Input {
    /// Opens a file; `-` is stdin.
    ///
    /// # Errors
    /// If there is no such file that may be read.
    pub(crate) fn open(path: &OsStr) -> io::Result<Input> {
        if path == "-" {
            return Input::new("stdin".to_owned(), Box::new(io::stdin().lock()), None);
        }
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let source = Box::new(file.try_clone()?);
        Input::new(path.display().to_string(), source, Some(file))
    }

    fn new(name: String, source: Box<dyn Read>, file: Option<File>) -> io::Result<Input> {
        let (compression, source) = expanded(source)?;
        Ok(Input {
            name,
            source,
            compression,
            file,
        })
    }

    /// The size of the file in bytes, unless it is something else.
    pub(crate) fn file_size(&self) -> Option<u64> {
        let metadata = self.file.as_ref()?.metadata().ok()?;
        metadata.is_file().then_some(metadata.len())
    }
}

/// What `source` gives, expanded if its first bytes say that it is compressed, and how.
///
/// # Errors
/// If these cannot be read.
pub(crate) fn expanded<'a>(
    mut source: impl Read + 'a,
) -> io::Result<(Option<Compression>, Box<dyn Read + 'a>)> {
    let mut head = Vec::new();
    source
        .by_ref()
        .take(Compression::LONGEST_MAGIC as u64)
        .read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = io::Cursor::new(head).chain(source);
    let source: Box<dyn Read + 'a> = match compression {
        None => Box::new(whole),
        Some(compression) => expanding(compression, whole)?,
    };
    Ok((compression, source))
}

/// What a source of this compression expands to.
///
/// # Errors
/// If there is no memory for that.
pub(crate) fn expanding<'a>(
    compression: Compression,
    source: impl Read + 'a,
) -> io::Result<Box<dyn Read + 'a>> {
    Ok(Box::new(Expanding::new(compression, source)?))
}
