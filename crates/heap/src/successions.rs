//! How long the rest of a process's records is read while its successor waits, and all other clients with it.
//!
//! A process has a successor when it runs another program, or another process gets its id. [`thread`](crate::thread) then reads what is left at once,
//! because both have the same id, and samples are looked up by it. Clients can come again and again. So each user has a stock of time for that, which
//! comes back slowly; beyond it a predecessor has a turn like any other client.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::reading::{TURN, Until};

/// A user's stock: for so long records are unwound.
const MOST: Duration = Duration::from_secs(2);

/// How many times as long it takes until spent time has come back.
const RECOVERY: u32 = 4;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Successions {
    /// When the stocks of users are full again; of those only that are not.
    full_at: HashMap<u32, Instant>,
    /// Nothing is read from then on.
    end: Option<Instant>,
}

impl Successions {
    /// The session ends: no predecessor is read after this.
    pub(crate) fn end_at(&mut self, end: Instant) {
        self.end = Some(end);
    }

    /// Until when the predecessor of a process of this user is read.
    pub(crate) fn until(&self, user: u32, now: Instant) -> Until {
        let full_at = self.full_at.get(&user).copied().unwrap_or(now);
        let spent = full_at.saturating_duration_since(now) / RECOVERY;
        let left = MOST.saturating_sub(spent).max(TURN);
        let before_end = |until: Instant| self.end.map_or(until, |end| until.min(end));
        Until {
            unwinding: before_end(now + left),
            reading: before_end(now + left + left / 2),
        }
    }

    /// One was read for so long. Turns cost nothing.
    pub(crate) fn charge(&mut self, user: u32, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began).saturating_sub(TURN);
        self.full_at.retain(|_, full_at| *full_at > now);
        if !took.is_zero() {
            *self.full_at.entry(user).or_insert(now) += took * RECOVERY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_processes_are_replaced_again_and_again_takes_a_quarter_of_the_time() {
        let mut successions = Successions::default();
        let began = Instant::now();
        let (mut now, mut beyond_turns) = (began, Duration::ZERO);
        // Each predecessor is read for as long as it may.
        while now - began < Duration::from_secs(100) {
            let until = successions.until(1, now);
            assert!(until.unwinding - now <= MOST);
            successions.charge(1, now, until.reading);
            beyond_turns += (until.reading - now).saturating_sub(TURN);
            // Others have their turns.
            now = until.reading + Duration::from_millis(3);
        }
        assert!(
            beyond_turns < Duration::from_secs(100 / 4 + 5),
            "{beyond_turns:?}"
        );
        assert!(successions.until(1, now).unwinding < now + MOST / 4);
        // Others have theirs, and a turn is always there.
        assert_eq!(successions.until(2, now).unwinding, now + MOST);
        assert!(successions.until(1, now).unwinding >= now + TURN);
        let later = now + MOST * 2 * RECOVERY;
        assert_eq!(successions.until(1, later).unwinding, later + MOST);
        successions.charge(2, later, later + TURN);
        assert!(successions.full_at.is_empty());
    }

    #[test]
    fn when_the_session_ends_predecessors_leave_time_for_others() {
        let mut successions = Successions::default();
        let now = Instant::now();
        let end = now + MOST / 2;
        successions.end_at(end);
        for now in [now, end + TURN] {
            let until = successions.until(1, now);
            assert_eq!((until.unwinding, until.reading), (end, end));
        }
    }
}
