//! The memory of a trace buffer, in pieces that the buffer and its clones share until the buffer writes to them.
//!
//! Used by the ring of records only, which never asks for bytes on both sides of a border between pieces.
//!
//! The memory is reserved at once and touched as it is first written, so a fresh buffer of 1 GiB costs address space only. A clone copies no byte.
//! Afterwards the buffer copies each piece once, before its first change there, which may be a chunk, a patch, or a mark that a chunk was read.
//! So the memory of all clones together is that of the pieces which were changed between them. The address space for these copies is
//! reserved when the clone is made: a change never fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferretto_wire::bulk;

use super::TraceBufferError;

/// Size of a piece, in bytes. Copying one takes a fraction of a millisecond. Chunks do not cross borders, so what is left before a border stays
/// empty: half a chunk on average, which with chunks of 4 KB is a five-hundredth of the buffer.
pub(super) const PIECE: u32 = 1 << 20;

/// Memory of a fixed capacity that is in use up to a high-water mark.
#[derive(Debug)]
pub(super) struct Memory {
    /// Pieces behind the high-water mark are empty.
    pieces: Vec<Piece>,
    /// The size of a piece is two to the power of this.
    shift: u32,
    capacity: u32,
    used: u32,
    /// Empty memory for copies: at least as many as there are shared pieces.
    spares: Vec<Vec<u8>>,
}

#[derive(Debug)]
enum Piece {
    /// Nobody else has it.
    Own(Vec<u8>),
    /// Clones have it as well, or had it.
    Shared(Arc<Vec<u8>>),
}

impl Piece {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }

    fn shared(&self) -> Option<&Arc<Vec<u8>>> {
        match self {
            Piece::Own(_) => None,
            Piece::Shared(bytes) => Some(bytes),
        }
    }

    /// Makes the piece the caller's own: the memory itself if nobody else has it any more, otherwise a copy in a spare.
    #[cold]
    fn take_over(&mut self, spares: &mut Vec<Vec<u8>>) -> &mut Vec<u8> {
        let mut spare = spares.pop().unwrap_or_default();
        if let Piece::Shared(shared) = self {
            let own = Arc::try_unwrap(std::mem::take(shared)).unwrap_or_else(|shared| {
                bulk::extend(&mut spare, &shared);
                spare
            });
            *self = Piece::Own(own);
        }
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(shared) => Arc::make_mut(shared),
        }
    }
}

fn reserve(bytes: usize) -> Result<Vec<u8>, TraceBufferError> {
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(bytes)
        .map_err(|_| TraceBufferError::OutOfMemory { bytes: bytes as u64 })?;
    Ok(memory)
}

impl Memory {
    /// Reserves `capacity` bytes, in pieces of `piece` bytes, which is a power of two.
    pub(super) fn with_capacity(capacity: u32, piece: u32) -> Result<Self, TraceBufferError> {
        debug_assert!(piece.is_power_of_two());
        let starts = (0..capacity).step_by(piece as usize);
        let pieces = starts.map(|start| reserve(piece.min(capacity - start) as usize).map(Piece::Own));
        Ok(Self {
            pieces: pieces
                .collect::<Result<_, _>>()
                .map_err(|_| TraceBufferError::OutOfMemory {
                    bytes: capacity.into(),
                })?,
            shift: piece.trailing_zeros(),
            capacity,
            used: 0,
            spares: Vec::new(),
        })
    }

    /// The same contents again. The clone cannot grow.
    pub(super) fn share(&mut self) -> Result<Self, TraceBufferError> {
        let in_use = self.used.div_ceil(self.piece()) as usize;
        while self.spares.len() < in_use {
            let size = self.piece().min(self.capacity) as usize;
            self.spares.push(reserve(size)?);
        }
        let pieces = self.pieces.iter_mut().take(in_use).map(|piece| {
            if let Piece::Own(bytes) = piece {
                *piece = Piece::Shared(Arc::new(std::mem::take(bytes)));
            }
            piece.shared().map(Arc::clone).unwrap_or_default()
        });
        Ok(Self {
            pieces: pieces.map(Piece::Shared).collect(),
            shift: self.shift,
            capacity: self.capacity,
            used: self.used,
            spares: Vec::new(),
        })
    }

    /// Keeps the pieces at these places as they are now. The buffer copies such a piece before it changes it, while it is kept.
    pub(super) fn keep(&mut self, places: impl Iterator<Item = u32>) -> Result<KeptPieces, TraceBufferError> {
        let mut kept = KeptPieces {
            pieces: BTreeMap::new(),
            shift: self.shift,
        };
        let mut last = None;
        for at in places {
            let (index, _) = self.locate(at);
            if last.replace(index) != Some(index) && !kept.pieces.contains_key(&index) {
                kept.pieces.insert(index, self.share_piece(index)?);
            }
        }
        Ok(kept)
    }

    fn share_piece(&mut self, index: usize) -> Result<Arc<Vec<u8>>, TraceBufferError> {
        if let Some(shared) = self.pieces[index].shared() {
            return Ok(Arc::clone(shared));
        }
        let shared = self.pieces.iter().filter(|piece| piece.shared().is_some());
        if self.spares.len() <= shared.count() {
            self.spares
                .push(reserve(self.piece().min(self.capacity) as usize)?);
        }
        let piece = &mut self.pieces[index];
        let shared = match piece {
            Piece::Own(bytes) => Arc::new(std::mem::take(bytes)),
            Piece::Shared(shared) => Arc::clone(shared),
        };
        *piece = Piece::Shared(Arc::clone(&shared));
        Ok(shared)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// High-water mark: bytes that were ever written.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Bytes from `at` to the end of its piece, or of the memory.
    pub(super) fn room(&self, at: u32) -> u32 {
        (self.piece() - at % self.piece()).min(self.capacity - at)
    }

    fn piece(&self) -> u32 {
        1 << self.shift
    }

    /// The index of the piece with `at`, and the place in it.
    #[inline(always)]
    fn locate(&self, at: u32) -> (usize, usize) {
        ((at >> self.shift) as usize, (at & (self.piece() - 1)) as usize)
    }

    /// The bytes in use from `at` on, up to the next border.
    #[inline]
    pub(super) fn from(&self, at: u32) -> &[u8] {
        let (index, start) = self.locate(at);
        let piece = self.pieces.get(index).map(Piece::bytes);
        piece.and_then(|bytes| bytes.get(start..)).unwrap_or_default()
    }

    /// These bytes, all in use.
    #[inline(always)]
    pub(super) fn bytes(&self, at: u32, len: usize) -> &[u8] {
        let (index, start) = self.locate(at);
        &self.pieces[index].bytes()[start..start + len]
    }

    /// These bytes, to be overwritten.
    #[inline(always)]
    pub(super) fn bytes_mut(&mut self, at: u32, len: usize) -> &mut [u8] {
        let (index, start) = self.locate(at);
        &mut self.own(index)[start..start + len]
    }

    /// Appends at the high-water mark, in front of the next border.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            // The mark may be at the border.
            return;
        }
        let (index, _) = self.locate(self.used);
        bulk::extend(self.own(index), bytes);
        self.used += bytes.len() as u32;
    }

    /// Moves the high-water mark up to `end`, over zeros, within one piece.
    pub(super) fn extend_to(&mut self, end: u32) {
        let more = end.saturating_sub(self.used) as usize;
        if more > 0 {
            let (index, start) = self.locate(self.used);
            self.own(index).resize(start + more, 0);
            self.used = end;
        }
    }

    /// The piece with this index, as one that nobody else has.
    #[inline(always)]
    fn own(&mut self, index: usize) -> &mut Vec<u8> {
        let piece = &mut self.pieces[index];
        match piece {
            Piece::Own(bytes) => bytes,
            Piece::Shared(_) => piece.take_over(&mut self.spares),
        }
    }

    /// For each piece in use, its address, if others may have it too, and its bytes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (Option<usize>, u64)> {
        let in_use = self.pieces.iter().filter(|piece| !piece.bytes().is_empty());
        in_use.map(|piece| {
            let address = piece.shared().map(|shared| shared.as_ptr().addr());
            (address, piece.bytes().len() as u64)
        })
    }
}

/// Pieces of a buffer as they were at some moment, whatever has been written there since.
#[derive(Clone, Debug)]
pub(super) struct KeptPieces {
    pieces: BTreeMap<usize, Arc<Vec<u8>>>,
    shift: u32,
}

impl KeptPieces {
    /// These bytes, which lie in one piece; none, if it was not kept.
    pub(super) fn bytes(&self, at: u32, len: usize) -> &[u8] {
        let start = (at & ((1 << self.shift) - 1)) as usize;
        let piece = self.pieces.get(&((at >> self.shift) as usize));
        piece
            .and_then(|bytes| bytes.get(start..start + len))
            .unwrap_or_default()
    }
}
