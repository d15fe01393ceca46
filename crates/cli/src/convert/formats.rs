//! The formats that are written, their names and the endings of their files.
//!
//! [`convert`](super) and `ferretto profile` call it.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;

use super::{firefox, flame_graph, folded, pprof};
use crate::samples::{EventId, Keep, Recording};

/// A format that is written. Upstream's words for the same are understood too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A Perfetto trace
    #[value(alias = "trace", alias = "pftrace")]
    Perfetto,
    /// Samples for pprof
    #[value(alias = "profile")]
    Pprof,
    /// Samples as folded stacks
    #[value(alias = "collapsed")]
    Folded,
    /// Samples as a flame graph in SVG
    #[value(alias = "flame-graph", alias = "svg")]
    Flamegraph,
    /// Samples for the Firefox profiler
    Firefox,
    /// Track events as Chrome's JSON
    #[value(alias = "chrome")]
    Json,
    /// Kernel events as text
    #[value(alias = "ftrace")]
    Systrace,
    /// All packets as text
    Text,
}

impl Format {
    /// Returns the format that the ending of a file's name stands for, whether or not `.gz` follows.
    pub(crate) fn of_file(path: &Path) -> Option<Format> {
        /// Longer endings come before those that they end with.
        const ENDINGS: [(&str, Format); 16] = [
            (".pb.gz", Format::Pprof),
            (".pprof", Format::Pprof),
            (".perfetto-trace", Format::Perfetto),
            (".pftrace", Format::Perfetto),
            (".perfetto", Format::Perfetto),
            (".pb", Format::Perfetto),
            (".folded", Format::Folded),
            (".collapsed", Format::Folded),
            (".svg", Format::Flamegraph),
            (".firefox.json", Format::Firefox),
            (".json", Format::Json),
            (".systrace", Format::Systrace),
            (".ftrace", Format::Systrace),
            (".txt", Format::Text),
            (".textproto", Format::Text),
            (".pbtxt", Format::Text),
        ];
        let name = path.file_name().and_then(OsStr::to_str)?.to_ascii_lowercase();
        let of = |name: &str| {
            let mut endings = ENDINGS.iter();
            let found = endings.find(|(ending, _)| name.ends_with(ending));
            found.map(|(_, format)| *format)
        };
        of(&name).or_else(|| of(name.strip_suffix(".gz")?))
    }

    /// Returns how a file of this format and name is compressed.
    pub(crate) fn packing(self, path: &Path) -> Packing {
        let is_gz = path
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("gz"));
        match self {
            // The format itself is compressed.
            Format::Pprof => Packing::None,
            _ if is_gz => Packing::Gzip,
            _ => Packing::None,
        }
    }

    /// Returns the format of samples that it is, if it is one.
    pub(crate) fn of_samples(self) -> Option<SampleFormat> {
        match self {
            Format::Pprof => Some(SampleFormat::Pprof),
            Format::Folded => Some(SampleFormat::Folded),
            Format::Flamegraph => Some(SampleFormat::FlameGraph),
            Format::Firefox => Some(SampleFormat::Firefox),
            Format::Perfetto | Format::Json | Format::Systrace | Format::Text => None,
        }
    }
}

/// The compression around a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Gzip,
}

/// Whether a file has the name of recordings of `perf`, which are read and not written.
pub(crate) fn is_named_as_perf_recording(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("perf.data"))
}

/// A format for samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleFormat {
    Pprof,
    Folded,
    FlameGraph,
    Firefox,
}

impl SampleFormat {
    /// Returns the same among all formats.
    pub(super) fn format(self) -> Format {
        match self {
            SampleFormat::Pprof => Format::Pprof,
            SampleFormat::Folded => Format::Folded,
            SampleFormat::FlameGraph => Format::Flamegraph,
            SampleFormat::Firefox => Format::Firefox,
        }
    }

    /// Returns what a recording has to keep for it.
    pub(crate) fn keep(self) -> Keep {
        match self {
            SampleFormat::Firefox => Keep::Samples,
            SampleFormat::Pprof | SampleFormat::Folded | SampleFormat::FlameGraph => Keep::Totals,
        }
    }

    /// Whether it has the samples of one event only.
    pub(super) fn is_of_one_event(self) -> bool {
        self != SampleFormat::Pprof
    }
}

/// Writes the samples of these events. Formats that have room for one event get those of the first.
///
/// # Errors
/// The errors of `out`; [`io::ErrorKind::InvalidData`] if there are no events.
pub(super) fn write(
    recording: &Recording,
    format: SampleFormat,
    events: &[EventId],
    out: &mut dyn Write,
) -> io::Result<()> {
    let out = &mut BufWriter::new(out);
    let Some(&event) = events.first() else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "there are no samples with call stacks",
        ));
    };
    match format {
        SampleFormat::Pprof => pprof::write(recording, events, out),
        SampleFormat::Folded => folded::write(recording, event, out),
        SampleFormat::FlameGraph => flame_graph::write(recording, event, out),
        SampleFormat::Firefox => firefox::write(recording, event, out),
    }
}
