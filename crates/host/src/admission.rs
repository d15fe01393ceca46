//! Limits the number of clients, of all users and of each.
//!
//! The host and relays call this for every connection that begins or ends. Descriptors run out first: every connection costs one, and can come to cost more. So
//! the number of connections is bounded by the number of descriptors, less some for trace files, for the memory of producers and for other uses of
//! the host. One user gets at most a part of them.

use ferretto_service::ledger::Ledger;
use ferretto_service::limits;
use ferretto_service::ordered::OrderedSet;

/// The number of connections, of all users and of each, and their limits.
#[derive(Debug)]
pub struct Admission {
    most: usize,
    most_per_user: usize,
    /// Connections of each user.
    connected: Ledger<u32>,
    /// Bytes that the host holds for the connections of each user.
    held: Ledger<u32>,
    /// Users that the log knows to have had connections turned away; until half of their connections are gone, because a client that comes and goes
    /// at the limit would fill the log.
    turned_away: OrderedSet<u32>,
}

/// Whether the host holds more for a user's connections than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It does not.
    Fine,
    /// It does: close the connection.
    TooMuch,
}

/// A connection that is not taken.
#[derive(Debug, PartialEq, Eq)]
pub struct TurnedAway {
    /// A line for the log, if this is the first since the user had half as many connections.
    pub line: Option<String>,
}

impl Admission {
    /// The limits for a process that may have this many descriptors.
    pub fn for_descriptors(count: usize) -> Admission {
        let reserved = limits::RESERVED_DESCRIPTORS.min(count / 2);
        let most =
            ((count - reserved) / limits::DESCRIPTORS_PER_CONNECTION).clamp(2, limits::MAX_CONNECTIONS);
        Admission {
            most,
            most_per_user: (most / 2).min(limits::MAX_CONNECTIONS_PER_UID),
            connected: Ledger::new(),
            held: Ledger::new(),
            turned_away: OrderedSet::new(),
        }
    }

    /// Whether no client can be accepted for now: new clients wait in the queue of the socket.
    pub fn is_full(&self) -> bool {
        self.connected.total() >= self.most
    }

    /// Takes a connection of this user.
    ///
    /// # Errors
    /// If the user has as many as one user may have. Then close the connection, because clients behind it in the queue may belong to other users.
    pub fn enter(&mut self, uid: u32) -> Result<(), TurnedAway> {
        if !self.connected.has_room(&uid, 1, self.most_per_user) {
            let first = self.turned_away.insert(uid);
            return Err(TurnedAway {
                line: first.then(|| {
                    format!(
                        "clients of uid {uid} are turned away: it has {} connections, which is as many as one user may have",
                        self.most_per_user
                    )
                }),
            });
        }
        self.connected.take(uid, 1);
        Ok(())
    }

    /// Notes that the host now holds `now` bytes for a connection of this user, after `before` earlier.
    pub fn holds(&mut self, uid: u32, before: usize, now: usize) -> Holding {
        self.held.replace(uid, before, now);
        if now > before && self.held.of(&uid) > limits::MAX_HELD_BYTES_PER_UID {
            Holding::TooMuch
        } else {
            Holding::Fine
        }
    }

    /// A connection that was taken has ended.
    pub fn leave(&mut self, uid: u32) {
        self.connected.give_back(uid, 1);
        if self.connected.of(&uid) <= self.most_per_user / 2 {
            self.turned_away.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_gets_more_than_half_of_the_connections() {
        let mut admission = Admission::for_descriptors(1024);
        let taken = (0..).take_while(|_| admission.enter(1).is_ok()).count();
        assert_eq!(
            taken,
            (1024 - limits::RESERVED_DESCRIPTORS) / limits::DESCRIPTORS_PER_CONNECTION / 2
        );
        assert!(!admission.is_full());
        let others = (0..).take_while(|_| admission.enter(2).is_ok()).count();
        assert_eq!(others, taken);
        assert!(admission.is_full());
        let descriptors = (taken + others) * limits::DESCRIPTORS_PER_CONNECTION;
        assert!(descriptors + limits::RESERVED_DESCRIPTORS <= 1024);
    }

    #[test]
    fn however_many_descriptors_there_are_connections_are_bounded() {
        let mut admission = Admission::for_descriptors(usize::MAX);
        for uid in [1, 2] {
            let taken = (0..).take_while(|_| admission.enter(uid).is_ok()).count();
            assert_eq!(taken, limits::MAX_CONNECTIONS_PER_UID);
        }
        assert_eq!(admission.connected.total(), limits::MAX_CONNECTIONS);
        assert!(admission.is_full());
    }

    #[test]
    fn the_log_has_one_line_until_half_of_the_connections_are_gone() {
        let mut admission = Admission::for_descriptors(256);
        while admission.enter(7).is_ok() {}
        // Coming and going at the limit is no news.
        admission.leave(7);
        admission.enter(7).unwrap();
        assert_eq!(admission.enter(7), Err(TurnedAway { line: None }));
        (0..admission.most_per_user.div_ceil(2)).for_each(|_| admission.leave(7));
        while admission.connected.of(&7) < admission.most_per_user {
            admission.enter(7).unwrap();
        }
        let line = admission.enter(7).unwrap_err().line.unwrap();
        assert!(line.contains("uid 7"), "{line}");
        assert_eq!(admission.enter(7), Err(TurnedAway { line: None }));
    }

    #[test]
    fn a_user_whose_connections_have_ended_leaves_nothing_behind() {
        let mut admission = Admission::for_descriptors(1024);
        for uid in 0..50 {
            admission.enter(uid).unwrap();
        }
        (0..50).for_each(|uid| admission.leave(uid));
        assert!(admission.connected.is_empty() && admission.held.is_empty());
    }

    #[test]
    fn the_bytes_held_for_the_connections_of_a_user_are_bounded() {
        const MOST: usize = limits::MAX_HELD_BYTES_PER_UID;
        let mut admission = Admission::for_descriptors(1024);
        for uid in [1, 1, 2] {
            admission.enter(uid).unwrap();
        }
        assert_eq!(admission.holds(1, 0, MOST / 2), Holding::Fine);
        assert_eq!(admission.holds(1, 0, MOST / 2), Holding::Fine);
        assert_eq!(admission.holds(2, 0, MOST), Holding::Fine);
        assert_eq!(admission.holds(1, MOST / 2, MOST / 2 + 1), Holding::TooMuch);
        // A connection that gives memory back is never the one that holds too much.
        assert_eq!(admission.holds(1, MOST / 2 + 1, MOST / 2), Holding::Fine);
        assert_eq!(admission.holds(1, MOST / 2, 0), Holding::Fine);
        assert_eq!(admission.holds(1, 0, MOST / 2), Holding::Fine);
    }

    #[test]
    fn however_few_descriptors_there_are_two_clients_can_connect() {
        let mut admission = Admission::for_descriptors(0);
        admission.enter(1).unwrap();
        assert!(admission.enter(1).is_err());
        admission.enter(2).unwrap();
        assert!(admission.is_full());
    }
}
