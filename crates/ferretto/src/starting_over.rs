//! When a sequence of packets starts over, that is, describes everything anew.
//!
//! A ring buffer overwrites the oldest packets, which have the descriptions, and leaves packets that nobody can read. Track events
//! (`track_event/sequence.rs`) and samples of call stacks (`stack_sample.rs`) start over at the times given here. Then a thread's packets are readable
//! if the buffer holds as many bytes of the thread.

/// Bytes after which a sequence starts over. Few enough for small buffers.
const AFTER: u64 = 128 << 10;

/// For each byte that describes something, a sequence starts over this many bytes later. Otherwise a thread that uses thousands of tracks in
/// turn would describe one before each event.
const LATER_FOR_EACH_BYTE_TOLD: u64 = 8;

/// It starts over after this many bytes at the latest, because some threads use new tracks all the time.
const AT_THE_LATEST_AFTER: u64 = 2 << 20;

/// The number of bytes that a sequence has written when it is due to start over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StartsOver {
    at: u64,
    /// The upper limit of `at`.
    by: u64,
}

impl StartsOver {
    /// Of a sequence that starts over now, after `written` bytes.
    pub(crate) fn again(written: u64) -> Self {
        Self {
            at: written + AFTER,
            by: written + AT_THE_LATEST_AFTER,
        }
    }

    /// Notes that something was described, in this many bytes.
    pub(crate) fn note_told(&mut self, bytes: usize) {
        self.at = (self.at + LATER_FOR_EACH_BYTE_TOLD * bytes as u64).min(self.by);
    }

    /// Whether the sequence is due, after `written` bytes.
    #[inline]
    pub(crate) fn is_due(&self, written: u64) -> bool {
        written >= self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_put_it_off_up_to_a_limit() {
        let mut plain = StartsOver::again(1000);
        assert!(!plain.is_due(1000 + AFTER - 1) && plain.is_due(1000 + AFTER));
        plain.note_told(100);
        assert!(!plain.is_due(1799 + AFTER) && plain.is_due(1800 + AFTER));
        plain.note_told(1 << 30);
        assert!(!plain.is_due(999 + AT_THE_LATEST_AFTER) && plain.is_due(1000 + AT_THE_LATEST_AFTER));
    }
}
