//! How many clients there may be, of all users and of each, and how much memory their rings may take.
//!
//! [`Sessions`](crate::sessions::Sessions) takes room when a process is claimed, before it has a ring, and gives it back when the claim is dropped. So
//! clients that wait for their session's thread count like those that it reads.

use std::collections::HashMap;

/// Clients of all sessions at a time. Each has a ring and descriptors.
const MOST_CLIENTS: usize = 1024;

/// Bytes of all rings.
const MOST_RING_BYTES: usize = 16 << 30;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Room {
    most: Share,
    most_of_user: Share,
    taken: Share,
    of_users: HashMap<u32, Share>,
}

/// A part of the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    clients: usize,
    ring_bytes: usize,
}

impl Share {
    fn has_room_for(self, ring_bytes: usize, most: Share) -> bool {
        self.clients < most.clients && self.ring_bytes.saturating_add(ring_bytes) <= most.ring_bytes
    }
}

/// Whether the daemon has clients of several users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// It is root's.
    Any,
    /// It is a user's, who may have all the room.
    One,
}

impl Users {
    /// Whether this daemon has.
    pub(crate) fn of_this_daemon() -> Users {
        match rustix::process::geteuid().is_root() {
            true => Users::Any,
            false => Users::One,
        }
    }
}

impl Room {
    /// All of it is free.
    pub(crate) fn new(users: Users) -> Room {
        let most = Share {
            clients: MOST_CLIENTS,
            ring_bytes: MOST_RING_BYTES,
        };
        Room {
            most,
            most_of_user: match users {
                Users::One => most,
                // As for connections to the service: one user leaves half of it to others.
                Users::Any => Share {
                    clients: most.clients / 2,
                    ring_bytes: most.ring_bytes / 2,
                },
            },
            taken: Share::default(),
            of_users: HashMap::new(),
        }
    }

    /// Takes room for one client of this user.
    ///
    /// # Errors
    /// If there is none: a clause that says so.
    pub(crate) fn take(&mut self, user: u32, ring_bytes: usize) -> Result<(), String> {
        let of_user = self.of_users.get(&user).copied().unwrap_or_default();
        let (whose, taken) = match (
            of_user.has_room_for(ring_bytes, self.most_of_user),
            self.taken.has_room_for(ring_bytes, self.most),
        ) {
            (true, true) => {
                self.taken.clients += 1;
                self.taken.ring_bytes += ring_bytes;
                let of_user = self.of_users.entry(user).or_default();
                of_user.clients += 1;
                of_user.ring_bytes += ring_bytes;
                return Ok(());
            }
            (false, _) => (format!("{} processes of uid {user}", of_user.clients), of_user),
            (true, false) => (format!("{} processes", self.taken.clients), self.taken),
        };
        Err(format!(
            "{whose} are already, with {} MiB of shared memory, and there is no room for {} KiB more; a smaller shmem_size_bytes leaves room for more",
            taken.ring_bytes >> 20,
            ring_bytes >> 10
        ))
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, user: u32, ring_bytes: usize) {
        self.taken.clients = self.taken.clients.saturating_sub(1);
        self.taken.ring_bytes = self.taken.ring_bytes.saturating_sub(ring_bytes);
        if let Some(of_user) = self.of_users.get_mut(&user) {
            of_user.clients = of_user.clients.saturating_sub(1);
            of_user.ring_bytes = of_user.ring_bytes.saturating_sub(ring_bytes);
            if of_user.clients == 0 {
                self.of_users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(room: &mut Room, user: u32, ring_bytes: usize) -> usize {
        (0..).take_while(|_| room.take(user, ring_bytes).is_ok()).count()
    }

    #[test]
    fn one_user_leaves_half_of_the_room_to_others() {
        let mut room = Room::new(Users::Any);
        assert_eq!(fill(&mut room, 1, 8192), MOST_CLIENTS / 2);
        let refused = room.take(1, 8192).expect_err("there is no room");
        assert!(
            refused.starts_with("512 processes of uid 1 are already"),
            "{refused}"
        );
        assert_eq!(fill(&mut room, 2, 8192), MOST_CLIENTS / 2);
        let refused = room.take(3, 8192).expect_err("there is no room");
        assert!(refused.starts_with("1024 processes are already"), "{refused}");
        room.give_back(1, 8192);
        assert_eq!(room.take(3, 8192), Ok(()));
    }

    #[test]
    fn rings_have_room_by_their_bytes() {
        let mut room = Room::new(Users::One);
        assert_eq!(fill(&mut room, 1, 256 << 20), 64);
        for _ in 0..64 {
            room.give_back(1, 256 << 20);
        }
        assert_eq!(room.taken, Share::default());
        assert!(room.of_users.is_empty());
        assert_eq!(fill(&mut room, 1, 8192), MOST_CLIENTS);
    }
}
