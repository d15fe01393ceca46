//! Reads the entries that the journal receives after the start, and counts them.
//!
//! Called by the thread of an instance. Guarantees that a turn writes little more than its limit, and that an entry that cannot be
//! read is counted.

use ferretto_client::runtime::probe::PacketSink;
use ferretto_ipc::reactor::{boot_now, monotonic_now};
use ferretto_proto::messages::BuiltinClock;
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::entry::{Filters, LONGEST_FIELD, Taken, copy_field, encode};
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
    /// Moves to the end of the journal. From there the reader sees new entries that `filters` let through.
    pub(super) fn new(mut journal: Journal, filters: &Filters) -> Result<Reader, Error> {
        // One byte more shows that a field is longer.
        journal.set_data_threshold(LONGEST_FIELD + 1)?;
        for condition in filters.matches() {
            journal.add_match(condition.as_bytes())?;
        }
        journal.seek_to_end()?;
        // The watch begins before the first look, so that no entry between the two goes unnoticed.
        journal.watch()?;
        Ok(Reader {
            journal,
            packet: Writer::default(),
            total: 0,
            failed: 0,
            cut: 0,
        })
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
            if !self.journal.next()? {
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

    /// When the next turn is due even if the journal's descriptor is not readable, in nanoseconds of the monotonic clock.
    pub(super) fn deadline(&self) -> Result<Option<u64>, Error> {
        let timeout = self.journal.timeout()?;
        // The library may say "now" by a time long past.
        Ok(timeout.map(|usec| usec.saturating_mul(1000).max(monotonic_now())))
    }
}
