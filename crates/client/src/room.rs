//! Lists behind locks that grow without the lock.
//!
//! For locks that events may wait for, anywhere in the program. The application's allocator may trace, and hold a lock of its own meanwhile. If the
//! thread that holds the SDK's lock called that allocator, each would wait for the other.

use std::ops::DerefMut;

/// Takes the lock at a moment when `list` has room for `more` values. Neither allocates nor frees while it holds the lock.
pub fn lock_with_room<G: DerefMut, T>(
    lock: impl Fn() -> G,
    list: impl Fn(&mut G::Target) -> &mut Vec<T>,
    more: usize,
) -> G {
    let mut spare = Vec::new();
    loop {
        let mut guard = lock();
        let current = list(&mut guard);
        let needed = current.len() + more;
        if current.capacity() >= needed && spare.capacity() == 0 {
            return guard;
        }
        if current.capacity() < needed && spare.capacity() >= needed {
            spare.append(current);
            std::mem::swap(current, &mut spare);
        }
        let has_room = current.capacity() >= needed;
        drop(guard);
        // This frees the previous spare list, or the list that another thread's growth has made superfluous.
        spare = match has_room {
            true => Vec::new(),
            false => Vec::with_capacity(needed.next_power_of_two().max(16)),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[test]
    fn there_is_room_whenever_the_lock_is_held_and_nothing_is_lost() {
        const THREADS: usize = 4;
        const EACH: usize = 1000;
        static LIST: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for value in 0..EACH {
                        let lock = || LIST.lock().unwrap_or_else(PoisonError::into_inner);
                        let mut list = lock_with_room(lock, |list| list, 1);
                        let before = list.capacity();
                        assert!(before > list.len());
                        list.push(thread * EACH + value);
                        assert_eq!(list.capacity(), before);
                    }
                });
            }
        });
        let mut values = std::mem::take(&mut *LIST.lock().unwrap_or_else(PoisonError::into_inner));
        values.sort_unstable();
        assert!(values.into_iter().eq(0..THREADS * EACH));
    }
}
