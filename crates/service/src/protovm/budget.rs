//! The budget of a program: memory for its state, and work. Every part of the machine that allocates or loops asks here first.
//!
//! Memory is counted as upstream counts it, so that a limit means the same: a fixed amount per node, and the bytes of strings and of messages that
//! were not taken apart. Nodes really take about that much or less (see [`super::map`]).

use super::machine::Reason;
use crate::limits;

/// Bytes that an entry of a map counts: upstream takes a node for the place in the map and one for the value, of 48 each.
pub(super) const ENTRY: u64 = 96;

/// Counters of one machine.
#[derive(Debug)]
pub(super) struct Budget {
    memory_limit: u64,
    memory_used: u64,
    work: u64,
    /// The part of `work` that may be used for now.
    at_once: u64,
}

impl Budget {
    /// For a state of this many bytes.
    pub(super) fn new(memory_limit: u64) -> Self {
        Self {
            memory_limit,
            memory_used: 0,
            work: limits::MAX_PROTOVM_WORK,
            at_once: u64::MAX,
        }
    }

    /// Earns work for an overwritten packet: a producer that writes little has little done for it. Unused work is kept, up to a limit, for packets
    /// that need more.
    pub(super) fn earn(&mut self, packet_bytes: usize) {
        let earned = limits::PROTOVM_WORK_PER_BYTE.saturating_mul(packet_bytes as u64);
        let work = self
            .work
            .saturating_add(limits::PROTOVM_WORK_PER_PACKET)
            .saturating_add(earned);
        self.work = work.min(limits::MAX_PROTOVM_WORK);
    }

    /// Takes this much work: a unit is an instruction, a step of a path, a field looked at, or [`Budget::COPIED`] bytes copied.
    #[inline]
    pub(super) fn work(&mut self, units: u64) -> Result<(), Reason> {
        let Some(left) = self.work.checked_sub(units) else {
            self.work = 0;
            return Err(Reason::TooMuchWork);
        };
        let Some(at_once) = self.at_once.checked_sub(units) else {
            self.at_once = 0;
            return Err(Reason::TooMuchWork);
        };
        (self.work, self.at_once) = (left, at_once);
        Ok(())
    }

    /// Limits the work until the next call.
    pub(super) fn restrict(&mut self, at_once: u64) {
        self.at_once = at_once;
    }

    /// The rest of the work that may be used for now.
    pub(super) fn left_at_once(&self) -> u64 {
        self.at_once
    }

    /// Bytes that are copied for one unit of work.
    const COPIED: usize = 64;

    /// Takes memory for bytes, and the work to copy them.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Result<Box<[u8]>, Reason> {
        self.work((bytes.len() / Self::COPIED) as u64)?;
        self.take(bytes.len() as u64)?;
        Ok(bytes.into())
    }

    /// Takes memory.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Reason> {
        let used = self.memory_used.saturating_add(bytes);
        if used > self.memory_limit {
            return Err(Reason::OutOfMemory {
                limit: self.memory_limit,
            });
        }
        self.memory_used = used;
        Ok(())
    }

    /// Gives back memory that was taken.
    pub(super) fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.memory_used);
        self.memory_used = self.memory_used.saturating_sub(bytes);
    }

    /// Bytes taken.
    pub(super) fn memory_used(&self) -> u64 {
        self.memory_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = limits::MAX_PROTOVM_WORK;

    #[test]
    fn work_is_saved_up_to_a_limit_and_a_request_for_more_than_that_gets_nothing() {
        let mut budget = Budget::new(0);
        budget.earn(usize::MAX);
        assert_eq!(budget.work(MOST - 10), Ok(()));
        assert_eq!(budget.work(11), Err(Reason::TooMuchWork));
        // The small rest would let a program that does too much begin again and again.
        assert_eq!(budget.work(1), Err(Reason::TooMuchWork));
        budget.earn(1);
        let earned = limits::PROTOVM_WORK_PER_PACKET + limits::PROTOVM_WORK_PER_BYTE;
        assert_eq!(budget.work(earned), Ok(()));
        assert_eq!(budget.work(1), Err(Reason::TooMuchWork));
    }

    #[test]
    fn copying_takes_memory_and_work() {
        let bytes = [7; 10 * Budget::COPIED];
        let mut budget = Budget::new(bytes.len() as u64);
        budget.work(MOST - 10).expect("there is as much");
        assert_eq!(budget.copy(&bytes), Ok(bytes.into()));
        assert_eq!(budget.memory_used(), bytes.len() as u64);
        assert_eq!(budget.work(1), Err(Reason::TooMuchWork));
    }
}
