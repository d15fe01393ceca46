//! What `ferretto profile` needs of conversions: the packets of a trace that it has just recorded, and a file for its samples.

use std::path::Path;

use super::destination::Destination;
use super::formats::{SampleFormat, write_event};
use super::source::{Kind, Source};
use super::{ConvertError, Failure, each_packet};
use crate::samples::{EventId, Recording};

/// Passes the packets of a trace to `visit`.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn each_packet_of(trace: &Path, mut visit: impl FnMut(&[u8])) -> Result<(), ConvertError> {
    let source = Source::open(trace.as_os_str(), Some(Kind::Perfetto))?;
    let name = source.name;
    let read = each_packet(source.trace, |packet| {
        visit(packet);
        Ok(())
    });
    match read {
        Ok(_) => Ok(()),
        Err(Failure::Read(source) | Failure::Write(source)) => Err(ConvertError::Read { name, source }),
    }
}

/// Writes samples into a file, whole or not at all; of formats that have room for one event only those of `event`.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_file(
    recording: &Recording,
    format: SampleFormat,
    event: EventId,
    file: &Path,
) -> Result<(), ConvertError> {
    let destination = Destination::new(Some(file), None)?;
    destination.fill("the trace", |mut out| {
        write_event(recording, format, event, &mut out).map_err(Failure::Write)
    })
}
