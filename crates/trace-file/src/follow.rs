//! Reads a trace while it is being written, from where the last reading ended.
//!
//! `ferretto profile --top` follows the file that the service streams into, and a recording looks there for the reason why a data source does not start.
//! The file is opened anew, because its writer shares the offset of the descriptor that the service got. Each call reads a bounded part, and
//! passes on whole packets only.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;

use super::{Damage, MAX_PACKET, Piece, read};

/// The bytes that are read at once.
const PART: u64 = 1 << 20;

/// A trace that may grow.
#[derive(Debug)]
pub struct Follower {
    file: File,
    /// Where the first packet begins that has not been passed on.
    offset: u64,
}

/// Whether there may be more at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// All packets that are there were passed on.
    End,
    /// The caller's limit.
    Limit,
}

impl Follower {
    /// Follows this file from its beginning.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(trace: &Path) -> io::Result<Follower> {
        Ok(Follower {
            file: File::open(trace)?,
            offset: 0,
        })
    }

    /// Passes on the packets that have been written since the last call, also those inside compressed packets, as long as `may_go_on` says so. It is
    /// asked once for each part of about 1 MiB.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn advance(
        &mut self,
        mut may_go_on: impl FnMut() -> bool,
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<Reached> {
        let mut part = PART;
        while may_go_on() {
            self.file.seek(SeekFrom::Start(self.offset))?;
            let end = read((&self.file).take(part), |piece| {
                match piece {
                    Piece::Packet(packet) => visit(packet),
                    Piece::Damage(damage) => return ControlFlow::Break(damage),
                    Piece::CompressedStart(_) | Piece::CompressedEnd => {}
                }
                ControlFlow::Continue(())
            })?;
            let end = match end {
                ControlFlow::Continue(end) => end,
                ControlFlow::Break(damage) => return Err(damaged(&damage)),
            };
            let whole = end.cut.map_or(end.size, |cut| cut.offset);
            self.offset += whole;
            match (end.size < part, whole) {
                (true, _) => return Ok(Reached::End),
                // The packet is larger than the part.
                (false, 0) if part < 2 * MAX_PACKET as u64 => part *= 2,
                (false, _) => part = PART,
            }
        }
        Ok(Reached::Limit)
    }
}

fn damaged(damage: &Damage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, damage.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ferretto_proto::write::{Trace, TracePacket};
    use ferretto_wire::Writer;

    use super::*;

    /// A trace whose packets have these numbers, and these sizes at least.
    fn trace(packets: impl IntoIterator<Item = (u64, usize)>) -> Vec<u8> {
        let mut trace = Writer::new();
        for (number, size) in packets {
            trace.nested(Trace::PACKET, |packet| {
                packet.varint_field(TracePacket::TIMESTAMP, number);
                packet.varint_field(TracePacket::TRUSTED_PACKET_SEQUENCE_ID, 1);
                packet.bytes_field(TracePacket::SYNCHRONIZATION_MARKER, &vec![0; size]);
            });
        }
        trace.as_slice().to_vec()
    }

    fn numbers(follower: &mut Follower, mut parts: u32) -> (Vec<u64>, Reached) {
        let mut numbers = Vec::new();
        let may_go_on = || {
            parts = parts.saturating_sub(1);
            parts > 0
        };
        let reached = follower.advance(may_go_on, |packet| {
            let first = ferretto_wire::Reader::new(packet).next().unwrap().unwrap();
            match first.value {
                ferretto_wire::Value::Varint(number) => numbers.push(number),
                _ => panic!("no number"),
            }
        });
        (numbers, reached.unwrap())
    }

    #[test]
    fn packets_that_come_in_pieces_are_passed_on_once_and_whole() {
        let whole = trace((1..=40).map(|number| (number, 3 * number as usize)));
        for step in [1, 7, 100, whole.len()] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let mut follower = Follower::open(file.path()).unwrap();
            let mut seen = Vec::new();
            for piece in whole.chunks(step) {
                file.write_all(piece).unwrap();
                let (numbers, reached) = numbers(&mut follower, 100);
                assert_eq!(reached, Reached::End);
                seen.extend(numbers);
            }
            assert_eq!(seen, (1..=40).collect::<Vec<_>>(), "in steps of {step}");
        }
    }

    #[test]
    fn a_limit_only_delays_and_large_packets_are_passed_on() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let sizes = [10, 3 << 20, 10, 900 << 10, 900 << 10, 10];
        file.write_all(&trace((1..).zip(sizes))).unwrap();
        let mut follower = Follower::open(file.path()).unwrap();
        let mut seen = Vec::new();
        let mut calls = 0;
        loop {
            calls += 1;
            let (numbers, reached) = numbers(&mut follower, 4);
            seen.extend(numbers);
            if reached == Reached::End {
                break;
            }
        }
        assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
        assert!(calls > 1, "the limit was reached");
    }

    #[test]
    fn what_is_no_trace_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"no trace at all").unwrap();
        let mut follower = Follower::open(file.path()).unwrap();
        assert!(follower.advance(|| true, |_| {}).is_err());
    }
}
