//! The parts of conversions that `ferretto profile`, `ferretto heap` and `ferretto symbolize` need: the packets of a trace that was recorded, and files for samples and packets.

use std::path::Path;

use super::destination::Destination;
use super::formats::{Format, SampleFormat, write};
use super::{ConvertError, Failure, check_not_empty, copy, each_packet};
use crate::samples::{EventId, Recording};
use ferretto_trace_file::Input;

/// Passes the packets of a trace to `visit`. Returns whether packets can be appended to the file: it is not compressed, and ends with a whole packet.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn each_packet_of(trace: &Path, mut visit: impl FnMut(&[u8])) -> Result<bool, ConvertError> {
    let Input {
        name,
        compression,
        source,
        ..
    } = open(trace)?;
    let read = each_packet(source, |packet| {
        visit(packet);
        Ok(())
    });
    match read {
        Ok(outcome) => {
            check_not_empty(&name, &outcome)?;
            let is_whole = outcome.end.cut.is_none() && outcome.damaged == 0;
            Ok(is_whole && compression.is_none())
        }
        Err(failure) => Err(failure.of(&name, &name)),
    }
}

/// Copies the packets of a trace into a file, out of all compression, and then other encoded packets.
///
/// # Errors
/// If the trace cannot be read, or the file not written.
pub(crate) fn copy_with(trace: &Path, packets: &[u8], file: &Path) -> Result<(), ConvertError> {
    let input = open(trace)?;
    let destination = Destination::new(Some(file), Format::Perfetto, input.file.as_ref())?;
    destination.fill(&input.name, |out| {
        copy(input.source, out)?;
        out.write_all(packets).map_err(Failure::Write)
    })
}

fn open(trace: &Path) -> Result<Input, ConvertError> {
    Input::open(trace.as_os_str()).map_err(|source| ConvertError::Open {
        name: trace.display().to_string(),
        source,
    })
}

/// Writes the samples of these events into a file, whole or not at all; of formats that have room for one event only those of the first.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_file(
    recording: &Recording,
    format: SampleFormat,
    events: &[EventId],
    file: &Path,
) -> Result<(), ConvertError> {
    let destination = Destination::new(Some(file), format.format(), None)?;
    destination.fill("the trace", |out| {
        write(recording, format, events, out).map_err(Failure::Write)
    })
}
