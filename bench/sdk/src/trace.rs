//! Counts what a trace holds, by its wire format: `Trace.packet` is field 1, `TracePacket.track_event` 11 (perfetto/trace/trace.proto,
//! trace_packet.proto). Independent of every library that is compared.

use std::fs;
use std::path::Path;

/// The contents of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Of the whole file.
    pub(crate) bytes: u64,
    /// Track events of every kind.
    pub(crate) events: u64,
}

pub(crate) fn count(path: &Path) -> Result<Contents, String> {
    let trace = fs::read(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    count_in(&trace).ok_or_else(|| format!("{} is not a trace", path.display()))
}

fn count_in(trace: &[u8]) -> Option<Contents> {
    const PACKET: u64 = 1;
    const TRACK_EVENT: u64 = 11;
    let mut contents = Contents {
        bytes: trace.len() as u64,
        events: 0,
    };
    let mut rest = trace;
    while !rest.is_empty() {
        let (number, packet) = field(&mut rest)?;
        if number != PACKET {
            continue;
        }
        let mut packet = packet?;
        while !packet.is_empty() {
            let (number, _) = field(&mut packet)?;
            contents.events += u64::from(number == TRACK_EVENT);
        }
    }
    Some(contents)
}

/// Takes a field off the front: its number and, if it is a length and bytes, those.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Option<&'a [u8]>)> {
    let tag = varint(rest)?;
    let length = match tag & 7 {
        0 => {
            varint(rest)?;
            return Some((tag >> 3, None));
        }
        1 => 8,
        2 => usize::try_from(varint(rest)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some((tag >> 3, (tag & 7 == 2).then_some(bytes)))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn track_events_are_counted_and_other_packets_are_not() {
        // Two packets: one with a timestamp (field 8) and a track event, one with a timestamp alone.
        let trace = [10, 5, 8 << 3, 1, 11 << 3 | 2, 1, 0, 10, 2, 8 << 3, 1];
        assert_eq!(count_in(&trace), Some(Contents { bytes: 11, events: 1 }));
    }

    #[test]
    fn what_is_cut_off_is_no_trace() {
        assert_eq!(count_in(&[10, 5, 8 << 3, 1]), None);
        assert_eq!(count_in(&[0x80]), None);
    }
}
