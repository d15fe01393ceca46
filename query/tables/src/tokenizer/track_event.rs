//! Makes events of track events, and takes in descriptions of tracks.

use std::io;

use super::Packet;
use super::ftrace::To;
use super::sequence::Sequence;
use crate::context::Context;

pub(super) fn tokenize(
    _event: &[u8],
    _packet: &Packet<'_>,
    _ts: i64,
    _sequence: &mut Sequence,
    _to: &mut To<'_>,
    _context: &mut Context<'_>,
) -> io::Result<()> {
    Ok(())
}

pub(super) fn descriptor(
    _descriptor: &[u8],
    _packet: &Packet<'_>,
    _ts: i64,
    _sequence: &mut Sequence,
    _context: &mut Context<'_>,
) -> bool {
    true
}
