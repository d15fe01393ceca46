//! Reads the entries that the journal receives after the start, and counts them.
//!
//! Called by the thread of an instance. Guarantees that a turn writes little more than its limit, and that an entry that cannot be
//! read is counted.

use ferretto_client::runtime::probe::PacketSink;
use ferretto_ipc::reactor::boot_now;
use ferretto_proto::messages::BuiltinClock;
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::entry::{Taken, copy_field, encode};
use super::libsystemd::{Error, Journal};

/// How far a turn came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The turn reached the end of the journal.
    CaughtUp,
    /// There is more. The turn has read all entries that the journal received before this time of the monotonic clock, in
    /// nanoseconds.
    UpTo(u64),
}

impl Progress {
    /// Whether the turn has read every entry that the journal had received by `time`.
    pub(super) fn has_reached(self, time: u64) -> bool {
        match self {
            Progress::CaughtUp => true,
            Progress::UpTo(reached) => reached > time,
        }
    }
}

/// See the [module](self).
pub(super) struct Reader {
    journal: Journal,
    packet: Writer,
    total: u64,
    failed: u64,
    cut: u64,
}

impl Reader {
    /// Reads on in a journal that is [followed](super::follow()).
    pub(super) fn new(journal: Journal) -> Reader {
        Reader {
            journal,
            packet: Writer::default(),
            total: 0,
            failed: 0,
            cut: 0,
        }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The number of entries so far that had a field too long to be recorded whole.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// Writes new entries until they make `most` bytes of packets.
    ///
    /// # Errors
    /// If the library fails to give more entries. The failure counts as one entry that could not be read.
    pub(super) fn read(&mut self, most: usize, sink: &mut dyn PacketSink) -> Result<Progress, Error> {
        self.read_some(most, sink).inspect_err(|_| self.failed += 1)
    }

    fn read_some(&mut self, most: usize, sink: &mut dyn PacketSink) -> Result<Progress, Error> {
        self.journal.process()?;
        let mut written = 0;
        let mut reached = 0;
        while written < most {
            if !self.journal.next_entry()? {
                return Ok(Progress::CaughtUp);
            }
            match self.encode_entry() {
                Ok(received) => {
                    reached = received;
                    self.total += 1;
                    written += self.packet.as_slice().len();
                    sink.write_packet(self.packet.as_slice());
                }
                Err(_) => {
                    self.failed += 1;
                    // A failed entry counts too, so that a turn ends even if all entries fail.
                    written += 1;
                }
            }
        }
        Ok(Progress::UpTo(reached))
    }

    /// Makes the packet of the current entry. Returns when the journal received the entry, in nanoseconds of the monotonic clock.
    fn encode_entry(&mut self) -> Result<u64, Error> {
        let Reader { journal, packet, .. } = self;
        let usec = journal.monotonic_usec()?;
        let mut taken = Taken::default();
        let mut result = Ok(());
        encode(packet, usec, |event| {
            result = journal.for_each_field(|field| copy_field(field, &mut taken, event));
        });
        result?;
        self.cut += u64::from(taken.is_cut);
        Ok(usec.saturating_mul(1000))
    }

    /// Writes how many entries were recorded so far, and how many could not be read.
    pub(super) fn write_statistics(&mut self, sink: &mut dyn PacketSink) {
        self.packet.clear();
        write::TracePacket::new(&mut self.packet)
            .timestamp(boot_now())
            .timestamp_clock_id(BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32)
            .journald_event(|event| {
                event.num_total(self.total).num_failed(self.failed);
            });
        sink.write_packet(self.packet.as_slice());
    }
}
