//! The ids under which writers appear in a session's trace (`trusted_packet_sequence_id`).
//!
//! Read-back asks for the id of each packet's writer, the statistics for each writer's. A writer keeps its id as long as the trace may still mention
//! it. The ids of other writers are forgotten after a read-back, because a session may last for weeks while producers come and go.

use std::collections::HashMap;

use crate::ids::{IdHasher, ProducerId, WriterId};

/// The id of the packets that the service itself writes.
pub(crate) const SERVICE_SEQUENCE_ID: u32 = 1;

/// This many ids are kept without a check whether they are needed, because the check takes time.
const KEPT: usize = 1 << 16;

/// The ids of a session's writers.
#[derive(Clone, Debug)]
pub(crate) struct SequenceIds {
    ids: HashMap<(ProducerId, WriterId), u32, IdHasher>,
    /// The last result: packets come out of the buffer in long rows of one sequence.
    asked_last: Option<((ProducerId, WriterId), u32)>,
    last: u32,
    /// The number of ids from which on it is worth while to look for unneeded ones.
    full_at: usize,
}

impl Default for SequenceIds {
    fn default() -> SequenceIds {
        SequenceIds {
            ids: HashMap::default(),
            asked_last: None,
            last: SERVICE_SEQUENCE_ID,
            full_at: KEPT,
        }
    }
}

impl SequenceIds {
    /// The id of a writer, the same each time it is asked for.
    pub(crate) fn of(&mut self, producer: ProducerId, writer: WriterId) -> u32 {
        let key = (producer, writer);
        if let Some((last, id)) = self.asked_last
            && last == key
        {
            return id;
        }
        let id = *self.ids.entry(key).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        self.asked_last = Some((key, id));
        id
    }

    /// Forgets the writers that are not needed, if there are many.
    pub(crate) fn forget(&mut self, is_needed: impl Fn(ProducerId, WriterId) -> bool) {
        if self.ids.len() < self.full_at {
            return;
        }
        self.asked_last = None;
        self.ids
            .retain(|(producer, writer), _| is_needed(*producer, *writer));
        self.ids.shrink_to(2 * self.ids.len());
        self.full_at = (2 * self.ids.len()).max(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_writer_has_an_id_of_its_own_that_is_not_the_services() {
        let mut ids = SequenceIds::default();
        let first = ids.of(ProducerId(1), WriterId(1));
        let others =
            [(1, 2), (2, 1)].map(|(producer, writer)| ids.of(ProducerId(producer), WriterId(writer)));
        assert_eq!([first, others[0], others[1]], [2, 3, 4]);
        assert_eq!(ids.of(ProducerId(1), WriterId(1)), first);
    }

    #[test]
    fn writers_that_are_gone_are_forgotten_once_there_are_many_and_their_ids_are_not_given_again() {
        let mut ids = SequenceIds::default();
        let stays = |producer: ProducerId, _| producer.0 <= 10;
        let mut largest = 0;
        let first = ids.of(ProducerId(1), WriterId(1));
        for producer in 2..3 * KEPT as u32 {
            let id = ids.of(ProducerId(producer), WriterId(1));
            assert!(id > first + (producer - 2), "{id} was given before");
            largest = largest.max(ids.ids.len());
            ids.forget(stays);
        }
        assert_eq!(largest, KEPT);
        assert_eq!(ids.of(ProducerId(1), WriterId(1)), first);
        let last = ids.of(ProducerId(3 * KEPT as u32 - 1), WriterId(1));
        assert_eq!(last, 3 * KEPT as u32, "it is still known");
    }

    #[test]
    fn needed_ids_are_not_searched_again_and_again() {
        let mut ids = SequenceIds::default();
        let looks = std::cell::Cell::new(0);
        for producer in 0..4 * KEPT as u32 {
            ids.of(ProducerId(producer), WriterId(1));
            ids.forget(|_, _| {
                looks.set(looks.get() + 1);
                true
            });
        }
        assert!(looks.get() < 8 * KEPT, "{}", looks.get());
    }
}
