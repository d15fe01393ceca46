//! The source of a trace: a file or stdin, expanded if it is compressed as a whole.
//!
//! Every command that reads trace files uses it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};

use super::expand::{Compression, Expanding};

/// A trace that can be read once, from its beginning.
pub struct Input {
    /// Its name in messages.
    pub name: String,
    /// Its bytes, expanded.
    pub source: Box<dyn Read>,
    /// The compression of the whole file, if any.
    pub compression: Option<Compression>,
    /// The file, unless it is stdin.
    pub file: Option<File>,
}

impl Input {
    /// Opens a file; `-` is stdin.
    ///
    /// # Errors
    /// If the file does not exist or may not be read.
    pub fn open(path: &OsStr) -> io::Result<Input> {
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

    /// Returns the size of the file in bytes; `None` if it is no regular file.
    pub fn file_size(&self) -> Option<u64> {
        let metadata = self.file.as_ref()?.metadata().ok()?;
        metadata.is_file().then_some(metadata.len())
    }
}

/// Returns the contents of `source`, expanded if its first bytes show a compression, and that compression.
///
/// # Errors
/// If these bytes cannot be read.
pub fn expanded<'a>(mut source: impl Read + 'a) -> io::Result<(Option<Compression>, Box<dyn Read + 'a>)> {
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

/// Returns the expanded contents of a source of this compression.
///
/// # Errors
/// If there is not enough memory.
pub fn expanding<'a>(compression: Compression, source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(Box::new(Expanding::new(compression, source)?))
}
