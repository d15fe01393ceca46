//! The destination of a conversion's result: a file that appears whole or not at all, or stdout.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::formats::{Format, Packing};
use super::{ConvertError, Failure};
use crate::private_file::{self, Origin};

/// The bytes that are collected before they are written.
const BUFFER: usize = 256 << 10;

/// The place for the result.
#[derive(Debug)]
pub(super) enum Destination {
    Stdout,
    File(PathBuf, File, Origin, Packing),
}

impl Destination {
    /// Opens the file that `path` names, without changing what it contains; `-` and no path are stdout. A file named `.gz` is compressed, unless its
    /// format is.
    ///
    /// # Errors
    /// If it cannot be opened, or is the input.
    pub(super) fn new(
        path: Option<&Path>,
        format: Format,
        input: Option<&File>,
    ) -> Result<Destination, ConvertError> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
            return Ok(Destination::Stdout);
        };
        let name = path.display().to_string();
        let failed = |source| ConvertError::Write {
            name: name.clone(),
            source,
        };
        let (file, origin) = private_file::open(File::options().write(true), path).map_err(failed)?;
        if let Some(input) = input {
            let (input, there) = (
                input.metadata().map_err(failed)?,
                file.metadata().map_err(failed)?,
            );
            if (input.dev(), input.ino()) == (there.dev(), there.ino()) {
                return Err(ConvertError::SameFile(name));
            }
        }
        Ok(Destination::File(
            path.to_owned(),
            file,
            origin,
            format.packing(path),
        ))
    }

    /// Has `write` produce the contents. A file is changed only after that, and one that was created for it is removed if that fails. `input` is the
    /// name of the input.
    ///
    /// # Errors
    /// The errors of `write`, or if the contents cannot be written.
    pub(super) fn fill<T>(
        self,
        input: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
    ) -> Result<T, ConvertError> {
        let (name, written) = match self {
            Destination::Stdout => ("stdout".to_owned(), buffered(io::stdout().lock(), write)),
            Destination::File(path, mut file, origin, packing) => {
                let written = fill_file(&path, &mut file, packing, write);
                if written.is_err() && origin == Origin::Created {
                    // It is empty, and its absence says more. The failure is reported anyway.
                    let _ = fs::remove_file(&path);
                }
                (path.display().to_string(), written)
            }
        };
        written.map_err(|failure| failure.of(input, &name))
    }

    /// Leaves the file as it was, or away if it was not there.
    pub(super) fn abandon(self) {
        if let Destination::File(path, _, Origin::Created, _) = self {
            let _ = fs::remove_file(path);
        }
    }
}

fn fill_file<T>(
    path: &Path,
    file: &mut File,
    packing: Packing,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // Beside the file there is room for it, if anywhere.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut draft = tempfile::tempfile_in(folder.unwrap_or(Path::new(".")))
        .or_else(|_| tempfile::tempfile())
        .map_err(Failure::Write)?;
    let value = match packing {
        Packing::None => buffered(&mut draft, write)?,
        Packing::Gzip => {
            let mut gzip = GzEncoder::new(&mut draft, Compression::default());
            let value = buffered(&mut gzip, write)?;
            gzip.finish().map_err(Failure::Write)?;
            value
        }
    };
    let copied = draft
        .rewind()
        .and_then(|()| private_file::empty(file))
        .and_then(|()| io::copy(&mut draft, file));
    copied.map_err(Failure::Write)?;
    Ok(value)
}

fn buffered<T>(
    out: impl Write,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let value = write(&mut out)?;
    out.flush().map_err(Failure::Write)?;
    Ok(value)
}
