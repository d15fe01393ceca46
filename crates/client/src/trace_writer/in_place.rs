//! Encodes a packet in its final place: in the chunk.
//!
//! Called by [`TraceWriter::packet`](super::TraceWriter::packet). It lends a chunk's
//! memory to the encoder, and takes it back before anything else happens to the chunk.
#![allow(unsafe_code)]

use super::OpenChunk;
use ferretto_wire::{Cursor, Finished, MAX_SHORT_LEN, ShortMessage, Writer};
use std::io::Write as _;
use std::ptr::NonNull;

/// Packets are not encoded into a chunk with less room than this, because most would spill, and be copied after all.
const MIN_ROOM: usize = 96;

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoded {
    /// In the chunk, and published.
    InPlace,
    /// In the encoder, because it did not fit.
    Elsewhere,
}

impl OpenChunk {
    #[inline]
    pub(super) fn may_encode_in_place(&self) -> bool {
        self.may_count_another() && self.room() >= MIN_ROOM
    }

    /// Has a packet of up to [`MAX_SHORT_LEN`] bytes encode itself, and publishes it. False if it does not fit.
    #[inline(always)]
    pub(super) fn encode_short(&mut self, packet: impl ShortMessage) -> bool {
        // One byte more than the packet takes, for the empty packet at the end of a chunk.
        if !self.may_count_another() || self.room() <= 1 + MAX_SHORT_LEN {
            return false;
        }
        let (window, _) = self.chunk.region(self.used);
        // SAFETY: this much room is left, and belongs to the chunk, which is borrowed during the call.
        let encoded = unsafe { Cursor::delimited(window, 1 + MAX_SHORT_LEN, packet) };
        let Some(total) = encoded else { return false };
        self.used += total;
        self.packets += 1;
        self.publish();
        true
    }

    /// Encodes a packet behind its size at the end of the used payload. The encoder always ends up on the heap, with the packet if it did not fit.
    #[inline]
    pub(super) fn encode_in_place<R>(
        &mut self,
        encoder: &mut Writer,
        fill: impl FnOnce(&mut Writer) -> R,
    ) -> (Encoded, R) {
        /// The encoder while it is over the chunk; takes it away from there when `fill` has returned or panicked.
        struct Lent<'a> {
            encoder: &'a mut Writer,
            region: NonNull<u8>,
        }
        impl Drop for Lent<'_> {
            #[inline]
            fn drop(&mut self) {
                if !self.encoder.was_lent(self.region) {
                    abort_for_stray_encoder();
                }
                self.encoder.take_back();
            }
        }

        let (region, room) = self.chunk.region(self.used);
        // SAFETY: the region belongs to the chunk, which is borrowed until this function has returned, and only the encoder writes there meanwhile.
        // It leaves the region in `Lent::drop`; if `fill` has put it elsewhere the process ends there. One byte is kept, for the empty packet at the
        // end of a chunk.
        unsafe { encoder.start_in_region(region, room - 1) };
        let lent = Lent { encoder, region };
        let mut len = 0;
        let result = lent.encoder.delimited(|packet| {
            let start = packet.len();
            let result = fill(packet);
            len = packet.len().saturating_sub(start);
            result
        });
        let spilled = match lent.encoder.finish() {
            Finished::InPlace(total) => {
                self.used += total;
                self.packets += 1;
                self.publish();
                return (Encoded::InPlace, result);
            }
            Finished::Spilled(delimited) => delimited[delimited.len() - len..].to_vec(),
        };
        drop(lent);
        encoder.raw(&spilled);
        (Encoded::Elsewhere, result)
    }
}

/// The encoder over the chunk was moved elsewhere (`std::mem::take` does that), and the chunk must not be written to any more.
#[cold]
fn abort_for_stray_encoder() -> ! {
    // Not `eprintln`, which panics where stderr is a closed pipe.
    let _ = writeln!(
        std::io::stderr(),
        "ferretto: the writer of a packet was moved out of the closure that writes it; it may only be used there"
    );
    std::process::abort()
}
