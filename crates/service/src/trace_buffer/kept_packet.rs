//! A packet that was taken out of a trace buffer and stays as it was, while writers go on. Readers use it for packets that are too large for one turn.

use super::Span;
use super::memory::KeptPieces;

/// A packet that writers cannot change any more.
///
/// It shares the pieces of memory with the buffer in which its fragments lie. The buffer copies such a piece when it next writes there, so keep it for a
/// short time only.
#[derive(Clone, Debug)]
pub(crate) struct KeptPacket {
    pieces: KeptPieces,
    spans: Vec<Span>,
}

impl KeptPacket {
    pub(super) fn new(pieces: KeptPieces, spans: Vec<Span>) -> Self {
        Self { pieces, spans }
    }

    /// Its fragments from this one on, in order.
    pub(crate) fn fragments(&self, first: usize) -> impl Iterator<Item = &[u8]> {
        let spans = self.spans.get(first..).unwrap_or_default();
        spans
            .iter()
            .map(|span| self.pieces.bytes(span.start, span.size()))
    }
}
