//! The file that a profile is written into, and its format.
//!
//! The flags of `ferretto profile` and `ferretto heap` make it.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::convert::{Format, Packing, is_named_as_perf_recording};
use crate::figures::Word;

/// A format that a profile is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileFormat {
    /// A trace with everything, for `ferretto open`
    Perfetto,
    /// A pprof profile
    Pprof,
    /// Folded stacks
    Folded,
    /// A flame graph in SVG
    Flamegraph,
    /// A profile for the Firefox profiler
    Firefox,
}

impl ProfileFormat {
    /// Returns the format as `ferretto convert` has it.
    pub(crate) fn format(self) -> Format {
        match self {
            ProfileFormat::Perfetto => Format::Perfetto,
            ProfileFormat::Pprof => Format::Pprof,
            ProfileFormat::Folded => Format::Folded,
            ProfileFormat::Flamegraph => Format::Flamegraph,
            ProfileFormat::Firefox => Format::Firefox,
        }
    }

    /// Returns the ending of names of such files.
    fn ending(self) -> &'static str {
        match self {
            ProfileFormat::Perfetto => "pftrace",
            ProfileFormat::Pprof => "pb.gz",
            ProfileFormat::Folded => "folded",
            ProfileFormat::Flamegraph => "svg",
            ProfileFormat::Firefox => "firefox.json",
        }
    }
}

/// A file that no profile can be written into.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GoalError {
    #[error(
        "{0}: profiles have no format for this ending; use .pftrace, .pb.gz, .folded, .svg or .json (for the Firefox profiler), or choose one with --format"
    )]
    Format(String),
    #[error(
        "{0}: the trace is not compressed while it is recorded; leave .gz out, and compress it afterwards"
    )]
    CompressedTrace(String),
    #[error(
        "{0}: this would be a Perfetto trace, which perf does not read; name it trace.pftrace, or use `perf record`"
    )]
    PerfData(String),
    #[error("a profile needs a file: name one with -o, or leave -o out")]
    Stdout,
}

/// The destination of the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Goal {
    pub(crate) format: ProfileFormat,
    /// `None` for a name that nothing has.
    pub(crate) file: Option<PathBuf>,
}

impl Goal {
    /// Returns the goal of the flags: a file, and a format.
    ///
    /// # Errors
    /// If there is no such format for the file.
    pub(crate) fn of(file: Option<&Path>, format: Option<ProfileFormat>) -> Result<Goal, GoalError> {
        Ok(Goal {
            format: match file {
                Some(file) => format_of(file, format)?,
                None => format.unwrap_or(ProfileFormat::Perfetto),
            },
            file: file.map(Path::to_owned),
        })
    }

    /// Returns the file for a profile whose trace would have this name by default.
    pub(crate) fn file_beside(&self, trace: PathBuf) -> PathBuf {
        self.file
            .clone()
            .unwrap_or_else(|| trace.with_extension(self.format.ending()))
    }

    /// Says how to look at the file.
    pub(crate) fn shown_by(&self, file: &Path) -> String {
        let path = file.to_string_lossy();
        let name = Word(&path);
        match self.format {
            ProfileFormat::Perfetto => format!(
                "`ferretto open {name}` shows it; `ferretto convert -o profile.svg {name}` makes a flame graph of it"
            ),
            ProfileFormat::Pprof => format!("wrote {name}; `go tool pprof -http=: {name}` shows it"),
            ProfileFormat::Flamegraph => format!("wrote {name}; browsers show it"),
            ProfileFormat::Firefox => format!("wrote {name}; https://profiler.firefox.com shows it"),
            ProfileFormat::Folded => format!("wrote {name}"),
        }
    }
}

/// Returns the format for this file.
fn format_of(file: &Path, asked: Option<ProfileFormat>) -> Result<ProfileFormat, GoalError> {
    if file.as_os_str() == "-" {
        return Err(GoalError::Stdout);
    }
    let name = || file.display().to_string();
    let format = match (asked, Format::of_file(file)) {
        (Some(format), _) => format,
        (None, None) if is_named_as_perf_recording(file) => return Err(GoalError::PerfData(name())),
        (None, None) => ProfileFormat::Perfetto,
        // Chrome's JSON has no samples; samply gives Firefox's this ending.
        (None, Some(Format::Json)) => ProfileFormat::Firefox,
        (None, Some(by_name)) => {
            let mut formats = ProfileFormat::value_variants().iter().copied();
            formats
                .find(|format| format.format() == by_name)
                .ok_or_else(|| GoalError::Format(name()))?
        }
    };
    match (format, format.format().packing(file)) {
        (ProfileFormat::Perfetto, Packing::Gzip) => Err(GoalError::CompressedTrace(name())),
        _ => Ok(format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_the_file_says_the_format() {
        let goal = |file: &str| Goal::of(Some(Path::new(file)), None);
        for (file, format) in [
            ("a.pftrace", ProfileFormat::Perfetto),
            ("a", ProfileFormat::Perfetto),
            ("a.pb.gz", ProfileFormat::Pprof),
            ("a.svg", ProfileFormat::Flamegraph),
            ("a.folded.gz", ProfileFormat::Folded),
            // samply and its readers know no other.
            ("a.json", ProfileFormat::Firefox),
            ("a.json.gz", ProfileFormat::Firefox),
            ("a.firefox.json", ProfileFormat::Firefox),
        ] {
            assert_eq!(goal(file).unwrap().format, format, "{file}");
        }
        for (file, said) in [
            ("a.txt", "--format"),
            ("a.pftrace.gz", "leave .gz out"),
            ("perf.data", "perf record"),
            ("-", "name one with -o"),
        ] {
            let error = goal(file).unwrap_err().to_string();
            assert!(error.contains(said), "{file}: {error}");
        }
    }
}
