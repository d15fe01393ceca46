//! The trace that is shown: opens it, checks that it is one, and delivers its bytes to the browser.
//!
//! [`run`](super::run) calls it. The UI loads everything before it reports an unreadable file, in a dialog full of the trace processor's internals.
//! So this module checks the beginning before anything is served. It also expands compressed traces: the UI reads gzip, and zstd since v58, but it
//! shows nothing of a damaged compressed file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ferretto_wire::Reader;

use super::body::{At, Contents, Resource};
use ferretto_trace_file::{self as trace_file, Compression, Foreign, Piece, Shown, expanded, nothing_read};

/// The bytes in which a packet must be found.
const LOOKED_AT: u64 = 64 << 20;

/// The reason why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSubject {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is not a file that can be served: save a trace that comes out of a pipe first, or name - for stdin", .0.display())]
    NotAFile(PathBuf),
    #[error("{} is empty: there is nothing to show (yet?)", .0.display())]
    Empty(PathBuf),
    #[error("{} ends inside its first packet: there is nothing to show yet", .0.display())]
    NothingYet(PathBuf),
    #[error("{} {reason}", path.display())]
    Foreign { path: PathBuf, reason: String },
    #[error(
        "{} is no Perfetto trace, nor anything else that the UI is known to read; with --force it is shown whatever it is",
        .0.display()
    )]
    Unknown(PathBuf),
    #[error("cannot keep stdin in a file, as browsers may ask for it twice: {0}; see $TMPDIR")]
    Spool(io::Error),
}

/// Whether the file must be a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    Beginning,
    Nothing,
}

/// The file that is shown.
#[derive(Debug)]
pub(super) struct Subject {
    file: Rc<File>,
    /// Its name in the UI.
    pub(super) name: Vec<u8>,
    pub(super) compression: Option<Compression>,
    /// Its format, if it is another one that the UI reads.
    pub(super) remark: Option<&'static str>,
}

impl Subject {
    /// Opens a file and checks that it can be shown; `-` is stdin.
    pub(super) fn open(path: &Path, check: Check) -> Result<Subject, NoSubject> {
        let (file, name) = match path == Path::new("-") {
            true => (
                spooled(io::stdin().lock()).map_err(NoSubject::Spool)?,
                b"stdin".to_vec(),
            ),
            false => opened(path)?,
        };
        let file = Rc::new(file);
        let failed = |source| NoSubject::Open {
            path: path.to_owned(),
            source,
        };
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(NoSubject::Empty(path.to_owned()));
        }
        let (compression, contents) = expanded(At::new(&file, 0)).map_err(failed)?;
        let remark = match check {
            Check::Beginning => looked_at(path, contents)?,
            Check::Nothing => None,
        };
        Ok(Subject {
            file,
            name,
            compression,
            remark,
        })
    }

    /// Returns the present size of the file in bytes.
    pub(super) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the present content for the browser.
    pub(super) fn resource(&self) -> io::Result<Resource> {
        let (size, contents) = match self.compression {
            None => (Some(self.size()?), Contents::Whole(self.file.clone())),
            Some(compression) => (None, Contents::Expanded(self.file.clone(), compression)),
        };
        Ok(Resource {
            media_type: "application/octet-stream",
            size,
            contents,
        })
    }
}

fn opened(path: &Path) -> Result<(File, Vec<u8>), NoSubject> {
    let failed = |source| NoSubject::Open {
        path: path.to_owned(),
        source,
    };
    // The type is checked first, because opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    match (metadata.is_file(), path.file_name().map(OsStr::as_bytes)) {
        (true, Some(name)) => Ok((File::open(path).map_err(failed)?, name.to_vec())),
        _ => Err(NoSubject::NotAFile(path.to_owned())),
    }
}

/// Copies everything into a file without a name.
fn spooled(mut source: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut source, &mut file)?;
    Ok(file)
}

/// Checks that the content begins like a trace. Returns the format if it is another one that the UI reads.
fn looked_at(path: &Path, contents: impl Read) -> Result<Option<&'static str>, NoSubject> {
    let mut first = None;
    let read = trace_file::read(contents.take(LOOKED_AT), |piece| match piece {
        // Many files that are no traces begin with bytes that could be the tag and the length of a packet.
        Piece::Packet(packet) if Reader::new(packet).all(|field| field.is_ok()) => ControlFlow::Break(()),
        Piece::Packet(_) | Piece::CompressedEnd => ControlFlow::Continue(()),
        Piece::CompressedStart(_) => ControlFlow::Break(()),
        Piece::Damage(damage) => {
            let known = Foreign::of(&damage).is_some();
            first.get_or_insert(damage);
            match known {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
    });
    let read = read.map_err(|source| NoSubject::Open {
        path: path.to_owned(),
        source,
    })?;
    let foreign = |reason| NoSubject::Foreign {
        path: path.to_owned(),
        reason,
    };
    match (read, &first) {
        (ControlFlow::Break(()), Some(damage)) => match Foreign::of(damage) {
            Some(format) if format.shown == Shown::ByUi => Ok(Some(format.what)),
            Some(_) => Err(foreign(nothing_read(damage))),
            None => Ok(None),
        },
        (ControlFlow::Break(()), None) => Ok(None),
        (ControlFlow::Continue(_), Some(damage)) if damage.is_broken() => Err(foreign(nothing_read(damage))),
        (ControlFlow::Continue(end), None) if end.cut.is_some() => {
            Err(NoSubject::NothingYet(path.to_owned()))
        }
        (ControlFlow::Continue(end), None) if end.size == 0 => Err(NoSubject::Empty(path.to_owned())),
        (ControlFlow::Continue(_), _) => Err(NoSubject::Unknown(path.to_owned())),
    }
}
