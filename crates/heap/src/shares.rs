//! The parts that users have of what all clients of an instance share: live allocations, and interned data.
//!
//! As for [`room`](crate::room), one user leaves half to others where the daemon has clients of several. [`Collector`](crate::collector::Collector) charges
//! each record to the client's user.

use std::collections::HashMap;

use ferretto_profile::interning::Limits;

use crate::room::Users;

/// One user's part, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Live allocations.
    pub(crate) live: usize,
    /// The interned data that exist because of the user's clients.
    pub(crate) interned: Limits,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Shares {
    most: Share,
    /// Of those who have any.
    of_users: foldhash::HashMap<u32, Share>,
}

impl Shares {
    /// Nothing is taken of all that there is.
    pub(crate) fn new(users: Users, all: Share) -> Shares {
        let part = match users {
            Users::One => 1,
            Users::Any => 2,
        };
        Shares {
            most: Share {
                live: all.live / part,
                interned: all.interned.with(all.interned, |all, _| all / part),
            },
            of_users: foldhash::HashMap::default(),
        }
    }

    fn of(&self, user: u32) -> Share {
        self.of_users.get(&user).copied().unwrap_or_default()
    }

    /// How many more allocations of this user's clients may be live.
    pub(crate) fn room_for_live(&self, user: u32) -> usize {
        self.most.live.saturating_sub(self.of(user).live)
    }

    /// Whether this user's clients may cause more interned data.
    pub(crate) fn may_grow(&self, user: u32) -> bool {
        !self.most.interned.is_reached_by(self.of(user).interned)
    }

    /// Whether some user's clients may not.
    pub(crate) fn is_any_full(&self) -> bool {
        self.of_users.keys().any(|user| !self.may_grow(*user))
    }

    /// A client of this user has caused interned data, and changed how many of its allocations are live.
    pub(crate) fn charge(&mut self, user: u32, interned: Limits, live_before: usize, live: usize) {
        let share = self.of_users.entry(user).or_default();
        share.interned = share.interned.with(interned, usize::saturating_add);
        share.live = (share.live + live).saturating_sub(live_before);
        if *share == Share::default() {
            self.of_users.remove(&user);
        }
    }

    /// Only so much of the interned data was kept, and the clients of users have these parts of their call stacks. Nobody is charged for more than before.
    pub(crate) fn keep(&mut self, kept: Limits, stacks_of_users: &HashMap<u32, usize>) {
        let all = stacks_of_users.values().sum::<usize>().max(1);
        for (user, share) in &mut self.of_users {
            let stacks = stacks_of_users.get(user).copied().unwrap_or(0);
            let part = |kept: usize| (kept as u128 * stacks as u128 / all as u128) as usize;
            share.interned = share.interned.with(kept, |caused, kept| caused.min(part(kept)));
        }
        self.of_users.retain(|_, share| *share != Share::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Share = Share {
        live: 100,
        interned: Limits::HEAP_PROFILE,
    };

    fn stacks(callstacks: usize) -> Limits {
        Limits {
            callstacks,
            ..Limits::default()
        }
    }

    #[test]
    fn one_user_leaves_half_of_what_all_share_to_others() {
        let mut shares = Shares::new(Users::Any, ALL);
        let half = ALL.interned.callstacks / 2;
        shares.charge(1, stacks(half - 1), 0, 40);
        assert!(shares.may_grow(1) && !shares.is_any_full());
        shares.charge(1, stacks(1), 40, 50);
        assert!(!shares.may_grow(1) && shares.is_any_full());
        assert_eq!(shares.room_for_live(1), 0);
        assert!(shares.may_grow(2));
        assert_eq!(shares.room_for_live(2), 50);
        let mut shares = Shares::new(Users::One, ALL);
        shares.charge(1, stacks(half), 0, 50);
        assert!(shares.may_grow(1));
        assert_eq!(shares.room_for_live(1), 50);
    }

    #[test]
    fn what_is_forgotten_is_room_again() {
        let mut shares = Shares::new(Users::Any, ALL);
        let half = ALL.interned.callstacks / 2;
        shares.charge(1, stacks(half), 0, 1);
        shares.charge(2, stacks(10), 0, 1);
        shares.charge(3, stacks(half), 0, 0);
        // All of the third's clients have ended.
        shares.keep(stacks(1000), &HashMap::from([(1, 30), (2, 70)]));
        assert_eq!(shares.of(1).interned, stacks(300));
        // It has caused no more.
        assert_eq!(shares.of(2).interned, stacks(10));
        assert!(!shares.of_users.contains_key(&3));
    }
}
