//! A packet that is too large for one turn. The session takes it out of its buffer at once, then copies and checks a part of it each time it is read.
//! When all of it has been checked, it goes out whole, in memory of its own.
//!
//! Meanwhile the packet stays as it was, although writers go on: the buffer copies what they change. No byte leaves before the last one has been
//! checked, because it may forge a field that only the service may write.

use ferretto_proto::write::Trace;
use ferretto_wire::{Writer, bulk};

use super::Session;
use super::readout::Framing;
use crate::limits;
use crate::packet_validator::{InvalidPacket, PacketValidator};
use crate::trace_buffer::{KeptPacket, LossReasons, SequenceInfo, TraceBuffer};

/// What is known of a packet besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provenance {
    /// The index of its buffer in the config.
    pub(super) buffer: usize,
    pub(super) sequence: SequenceInfo,
    /// The losses that it is marked with.
    pub(super) losses: LossReasons,
}

/// A packet on its way out.
pub(crate) struct LargePacket {
    packet: KeptPacket,
    from: Provenance,
    /// Its size in the buffer.
    size: usize,
    /// The number of fragments that have been copied.
    copied: usize,
    /// The bytes of its framing.
    head: usize,
    bytes: Vec<u8>,
    validator: PacketValidator,
    /// The fields that the service adds.
    trusted: Vec<u8>,
}

impl LargePacket {
    /// Takes the packet that was read last, which has `size` bytes. `None` if there is no memory for it.
    pub(super) fn take(
        buffer: &mut TraceBuffer,
        from: Provenance,
        size: usize,
        trusted: &Writer,
        framing: Framing,
    ) -> Option<Box<LargePacket>> {
        let packet = buffer.keep_packet().ok()?;
        let mut head = Writer::new();
        if framing == Framing::Trace {
            head.bytes_field_head(Trace::PACKET, size + trusted.len());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(head.len() + size + trusted.len()).ok()?;
        bytes.extend_from_slice(head.as_slice());
        Some(Box::new(LargePacket {
            packet,
            from,
            size,
            copied: 0,
            head: head.len(),
            bytes,
            validator: PacketValidator::default(),
            trusted: trusted.as_slice().to_vec(),
        }))
    }

    /// The same packet from its beginning, for a clone of the session: to copy what there is of it could take long. `None` if there is no memory for it.
    fn for_clone(&self) -> Option<Box<LargePacket>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.bytes.capacity()).ok()?;
        bytes.extend_from_slice(&self.bytes[..self.head]);
        Some(Box::new(LargePacket {
            packet: self.packet.clone(),
            from: self.from,
            size: self.size,
            copied: 0,
            head: self.head,
            bytes,
            validator: PacketValidator::default(),
            trusted: self.trusted.clone(),
        }))
    }

    pub(super) fn provenance(&self) -> &Provenance {
        &self.from
    }

    /// Its size in the buffer, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Copies and checks the next part. Returns whether that was the last one.
    ///
    /// # Errors
    /// The rule that the packet breaks.
    pub(crate) fn advance(&mut self) -> Result<bool, InvalidPacket> {
        let until = self.bytes.len() + limits::LARGE_PACKET;
        for fragment in self.packet.fragments(self.copied) {
            self.validator.push_fragment(fragment)?;
            bulk::extend(&mut self.bytes, fragment);
            self.copied += 1;
            if self.bytes.len() >= until {
                return Ok(false);
            }
        }
        self.validator.finish()?;
        Ok(true)
    }

    /// The packet with the fields that the service adds, and framed, if that was asked for.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&self.trusted);
        self.bytes
    }
}

impl Session {
    /// The large packet that is on its way into the file, for a clone with a file of its own: it is in no buffer any more, and not yet in the file.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn large_packet_for_clone(&self) -> Result<Option<Box<LargePacket>>, String> {
        let Some(large) = &self.large_packet else {
            return Ok(None);
        };
        let copy = large.for_clone().ok_or_else(|| {
            format!(
                "no memory for a packet of {} bytes that is on its way into the file; clone the session again",
                large.size
            )
        })?;
        Ok(Some(copy))
    }
}
