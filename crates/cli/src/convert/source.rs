//! The input of a conversion: a trace, or another format that becomes one first.
//!
//! The first bytes say what a file is. Formats other than Perfetto's are turned into a trace in a file without a name.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

use clap::ValueEnum;
use ferretto_wire::push_varint;

use super::{ConvertError, NAME, import};
use crate::stderr;
use ferretto_trace_file::{Input, PACKET_TAG};

/// The bytes by which a format is recognised.
const HEAD: usize = 4096;

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A Perfetto trace
    #[value(alias = "trace")]
    Perfetto,
    /// Chrome's JSON
    #[value(alias = "chrome")]
    Json,
    /// A recording of perf
    #[value(alias = "perf.data")]
    Perf,
    /// Folded stacks
    #[value(alias = "collapsed")]
    Folded,
}

impl Kind {
    /// Returns the format of a file that begins with these bytes. A file of no other format is read as a trace.
    pub(super) fn of(head: &[u8]) -> Kind {
        let text = head
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(head)
            .trim_ascii_start();
        if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
            Kind::Perf
        } else if head.first() == Some(&PACKET_TAG) {
            Kind::Perfetto
        } else if text.starts_with(b"{") || text.starts_with(b"[") {
            Kind::Json
        } else if import::folded::is_folded(head) {
            Kind::Folded
        } else {
            Kind::Perfetto
        }
    }
}

/// A trace to be read, or something that was made one.
pub(super) struct Source {
    /// Its name in messages.
    pub(super) name: String,
    /// The bytes of the trace.
    pub(super) trace: Box<dyn Read>,
    /// The file, unless it is stdin.
    pub(super) file: Option<File>,
}

impl Source {
    /// Opens a file (`-` is stdin), and makes it a trace if it is none.
    ///
    /// # Errors
    /// If it cannot be opened or read, or is not in that format.
    pub(super) fn open(path: &OsStr, kind: Option<Kind>) -> Result<Source, ConvertError> {
        let input = Input::open(path).map_err(|source| ConvertError::Open {
            name: path.display().to_string(),
            source,
        })?;
        let name = input.name;
        let unreadable = |source| ConvertError::Read {
            name: name.clone(),
            source,
        };
        let mut source = input.source;
        let mut head = Vec::new();
        source
            .by_ref()
            .take(HEAD as u64)
            .read_to_end(&mut head)
            .map_err(unreadable)?;
        let kind = kind.unwrap_or_else(|| Kind::of(&head));
        let whole = io::Cursor::new(head).chain(source);
        let trace: Box<dyn Read> = match kind {
            Kind::Perfetto => Box::new(whole),
            Kind::Json | Kind::Perf | Kind::Folded => {
                let (trace, notes) = import(whole, kind).map_err(|problem| ConvertError::Import {
                    name: name.clone(),
                    problem,
                })?;
                for note in notes {
                    stderr::say(NAME, &format_args!("{name}: {note}"));
                }
                Box::new(trace)
            }
        };
        Ok(Source {
            name,
            trace,
            file: input.file,
        })
    }
}

/// Returns the trace that another format becomes, and its losses.
fn import(source: impl Read, kind: Kind) -> Result<(File, import::Notes), import::ImportError> {
    let mut trace = tempfile::tempfile().map_err(import::ImportError::Draft)?;
    let mut out = BufWriter::new(&mut trace);
    let mut head = Vec::new();
    let mut write = |packet: &[u8]| {
        head.clear();
        head.push(PACKET_TAG);
        push_varint(&mut head, packet.len() as u64);
        out.write_all(&head)
            .and_then(|()| out.write_all(packet))
            .map_err(import::ImportError::Draft)
    };
    let source = BufReader::new(source);
    let notes = match kind {
        Kind::Perfetto | Kind::Folded => import::folded::import(source, &mut write)?,
        Kind::Json => import::json::import(source, &mut write)?,
        Kind::Perf => {
            // Its header names places behind the records, so it has to be a file that can be read in any order.
            let mut recording = tempfile::tempfile().map_err(import::ImportError::Draft)?;
            let mut source = source;
            io::copy(&mut source, &mut recording)?;
            import::perf::import(BufReader::new(recording), &mut write)?
        }
    };
    out.flush().map_err(import::ImportError::Draft)?;
    drop(out);
    trace.rewind().map_err(import::ImportError::Draft)?;
    Ok((trace, notes))
}
