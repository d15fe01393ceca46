//! The order of connections when there is no time for all of them: a user with a thousand connections is no more important than a user with
//! one, and the same holds for processes.
//!
//! The host uses this for rounds after one that took too long, both to serve connections and to close them. The first connection of every user
//! comes first, then the second of each, and so on. Among the connections of one user, the processes take turns in the same way. Within each
//! level, the one that was not served for longest comes first.

use std::collections::HashMap;
use std::time::Duration;

use ferretto_ipc::reactor::Token;
use ferretto_ipc::time::{self, Clock};

/// The duration of a round. After it, the host looks for new input; connections that were not served come next.
const TIME_PER_ROUND: Duration = Duration::from_millis(20);

/// The end of a round that begins now, by the coarse clock: the precise one would cost as much as a small commit.
pub(crate) fn end_of_round() -> u64 {
    time::now(Clock::MonotonicCoarse) + TIME_PER_ROUND.as_nanos() as u64
}

/// A connection that may get its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) token: Token,
    pub(crate) uid: u32,
    pub(crate) pid: Option<i32>,
    /// The round in which it was last served.
    pub(crate) served: u64,
}

/// When the connections of each user and process were last served.
#[derive(Clone, Debug, Default)]
struct LastServed {
    users: HashMap<u32, u64>,
    processes: HashMap<(u32, Option<i32>), u64>,
}

impl LastServed {
    fn note(&mut self, it: &Candidate) {
        let user = self.users.entry(it.uid).or_default();
        *user = it.served.max(*user);
        let process = self.processes.entry((it.uid, it.pid)).or_default();
        *process = it.served.max(*process);
    }

    fn user(&self, of: &Candidate) -> u64 {
        self.users.get(&of.uid).copied().unwrap_or_default()
    }

    fn process(&self, of: &Candidate) -> u64 {
        self.processes.get(&(of.uid, of.pid)).copied().unwrap_or_default()
    }
}

/// Whether there was time for all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Crowded {
    #[default]
    No,
    Yes,
}

/// The rounds, and the data of earlier rounds that decide whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    round: u64,
    /// The last round.
    was: Crowded,
    /// This one.
    is: Crowded,
    /// When closed connections were last served, since there was time for all. With this, a client that reconnects does not count as new.
    gone: LastServed,
}

impl Turns {
    /// Begins a round; returns its number.
    pub(crate) fn begin_round(&mut self) -> u64 {
        self.round += 1;
        self.was = std::mem::take(&mut self.is);
        if self.was == Crowded::No {
            self.gone = LastServed::default();
        }
        self.round
    }

    /// Notes that there was no time for all in this round.
    pub(crate) fn note_crowded(&mut self) {
        self.is = Crowded::Yes;
    }

    /// Notes that this connection was closed in this round.
    pub(crate) fn note_closed(&mut self, it: &Candidate) {
        // Usually there is time for all.
        if (self.was, self.is) != (Crowded::No, Crowded::No) {
            self.gone.note(&Candidate {
                served: self.round,
                ..*it
            });
        }
    }

    /// Sorts the waiting connections, which are in the order of their tokens, into the order in which to serve them, if there was no time for all in
    /// the last round. `connections` are all connections, because one that does not wait may have been served just now.
    pub(crate) fn put_in_turn(&self, waiting: &mut Vec<Token>, connections: impl Iterator<Item = Candidate>) {
        if self.was == Crowded::Yes {
            put_in_turn(waiting, connections, self.gone.clone());
        }
    }

    /// The same for connections that are to be closed: first the user and process whose last one was closed longest ago.
    pub(crate) fn put_in_turn_to_close(
        &self,
        waiting: &mut Vec<Token>,
        connections: impl Iterator<Item = Candidate>,
    ) {
        // The times of their service do not matter any more.
        self.put_in_turn(waiting, connections.map(|it| Candidate { served: 0, ..it }));
    }
}

fn put_in_turn(waiting: &mut Vec<Token>, connections: impl Iterator<Item = Candidate>, mut last: LastServed) {
    let mut ranked: Vec<(usize, Candidate)> = Vec::with_capacity(waiting.len());
    for it in connections {
        last.note(&it);
        if waiting.binary_search(&it.token).is_ok() {
            ranked.push((0, it));
        }
    }
    let uid = |it: &Candidate| u64::from(it.uid);
    let pid = |it: &Candidate| it.pid.map_or(0, |pid| 1 + u64::from(pid as u32));
    sort(&mut ranked, &|(_, it)| {
        [uid(it), pid(it), 0, it.served, it.token.0]
    });
    rank(&mut ranked, |it| (it.uid, it.pid));
    sort(&mut ranked, &|(nth, it)| {
        [uid(it), *nth as u64, last.process(it), it.served, it.token.0]
    });
    rank(&mut ranked, |it| (it.uid, None));
    sort(&mut ranked, &|(nth, it)| {
        [*nth as u64, last.user(it), 0, it.served, it.token.0]
    });
    waiting.clear();
    waiting.extend(ranked.into_iter().map(|(_, it)| it.token));
}

/// Sorts by a key. The key is a trait object, because each sort with a type of its own takes 1,600 lines of the compiler's.
fn sort(ranked: &mut [(usize, Candidate)], key: &dyn Fn(&(usize, Candidate)) -> [u64; 5]) {
    ranked.sort_unstable_by_key(key);
}

/// Numbers the members of each group, which are adjacent.
fn rank(ranked: &mut [(usize, Candidate)], group: impl Fn(&Candidate) -> (u32, Option<i32>)) {
    let mut last = None;
    let mut nth = 0;
    for (place, it) in ranked {
        let group = Some(group(it));
        nth = if group == last { nth + 1 } else { 0 };
        last = group;
        *place = nth;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(token: u64, uid: u32, pid: i32, served: u64) -> Candidate {
        Candidate {
            token: Token(token),
            uid,
            pid: Some(pid),
            served,
        }
    }

    /// The order of these waiting connections beside this idle one.
    fn order_beside(idle: Candidate, waiting: impl IntoIterator<Item = Candidate>) -> Vec<u64> {
        let mut connections: Vec<Candidate> = waiting.into_iter().collect();
        connections.sort_by_key(|it| it.token);
        let mut order: Vec<Token> = connections.iter().map(|it| it.token).collect();
        connections.push(idle);
        put_in_turn(&mut order, connections.into_iter(), LastServed::default());
        order.into_iter().map(|token| token.0).collect()
    }

    fn order(waiting: impl IntoIterator<Item = Candidate>) -> Vec<u64> {
        order_beside(connection(9999, 99, 99, 0), waiting)
    }

    #[test]
    fn every_user_comes_before_the_second_connection_of_any() {
        let crowd = (0..1000).map(|token| connection(token, 1, 10, 4));
        let others = [(2000, 2, 20), (2001, 2, 20), (2002, 3, 30)];
        let others = others.map(|(token, uid, pid)| connection(token, uid, pid, 5));
        let order = order(crowd.chain(others));
        assert_eq!(order[..6], [0, 2000, 2002, 1, 2001, 2]);
        assert_eq!(order.len(), 1003);
    }

    #[test]
    fn every_process_of_a_user_comes_before_the_second_connection_of_any() {
        let crowd = (0..1000).map(|token| connection(token, 1, 10, 4));
        let other = [connection(2000, 1, 20, 5), connection(2001, 1, 20, 5)];
        assert_eq!(order(crowd.chain(other))[..4], [0, 2000, 1, 2001]);
    }

    #[test]
    fn the_connection_that_waited_longest_comes_first() {
        let crowd = [(1, 9), (2, 7), (3, 8)];
        assert_eq!(
            order(crowd.map(|(token, served)| connection(token, 1, 1, served))),
            [2, 3, 1]
        );
        // So do processes with one connection each, and users.
        let processes = crowd.map(|(token, served)| connection(token, 1, token as i32, served));
        assert_eq!(order(processes), [2, 3, 1]);
        let users = crowd.map(|(token, served)| connection(token, token as u32, 1, served));
        assert_eq!(order(users), [2, 3, 1]);
    }

    #[test]
    fn a_crowd_of_which_one_was_served_just_now_waits_for_others_if_there_is_time_for_one_only() {
        // It has nothing more to say.
        let served = connection(500, 1, 10, 6);
        for (uid, pid) in [(1, 20), (2, 20)] {
            let crowd = (0..100).map(|token| connection(token, 1, 10, 1));
            let other = connection(2000, uid, pid, 5);
            assert_eq!(order_beside(served, crowd.chain([other]))[0], 2000);
        }
    }

    #[test]
    fn a_client_that_reconnects_is_not_new_while_there_is_no_time_for_all() {
        let next = |turns: &Turns| {
            let mut order = vec![Token(1), Token(2)];
            let waiting = [connection(1, 1, 10, 0), connection(2, 2, 20, 5)];
            turns.put_in_turn(&mut order, waiting.into_iter());
            order[0]
        };
        let closed_next = |turns: &Turns| {
            let mut order = vec![Token(1), Token(2)];
            // When they were served does not count.
            let waiting = [connection(1, 1, 10, 99), connection(2, 2, 20, 5)];
            turns.put_in_turn_to_close(&mut order, waiting.into_iter());
            order[0]
        };
        let mut turns = Turns::default();
        turns.note_crowded();
        turns.round = 6;
        turns.begin_round();
        assert_eq!(next(&turns), Token(1));
        assert_eq!(closed_next(&turns), Token(1));
        turns.note_closed(&connection(9, 1, 10, 0));
        turns.note_crowded();
        turns.begin_round();
        assert_eq!(
            next(&turns),
            Token(2),
            "another of the first one's was closed just now"
        );
        assert_eq!(closed_next(&turns), Token(2));
        turns.begin_round();
        assert_eq!(turns.gone.users.len() + turns.gone.processes.len(), 0);
        turns.note_closed(&connection(9, 1, 10, 0));
        assert_eq!(turns.gone.users.len(), 0, "there was time for all");
    }
}
