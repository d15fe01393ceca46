//! Threads of this process that read file systems. `linux.ftrace` ignores the files that they touch.
//!
//! The scans of [`inode_file_map`](crate::inode_file_map) and the readers of [`sysfs_power`](crate::sysfs_power) register here.
//! [`ftrace::metadata`](crate::ftrace::metadata) asks whether a thread is registered, because an inode that a scan itself has touched must not
//! start the next scan. The number of places bounds the number of such threads.

use std::sync::atomic::{AtomicI32, Ordering};

/// Most threads at once.
const PLACES: usize = 32;

/// Thread ids, zero where a place is free.
static THREADS: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

/// Runs `work` on a thread with this name, which holds a place until it ends.
///
/// # Errors
/// If there are too many such threads, or the system refuses another: a clause that says why.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let place = Place::take().ok_or("too many other threads of this program still wait for file systems")?;
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        place.occupy();
        work();
    });
    started.map(drop).map_err(|error| error.to_string())
}

/// A place for one thread, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(usize);

impl Place {
    /// Takes a place for a future thread; `None` if there are too many.
    pub(crate) fn take() -> Option<Place> {
        // Until the thread has its id, the place holds a number that no thread has.
        let free = |place: &AtomicI32| {
            place
                .compare_exchange(0, -1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        THREADS.iter().position(free).map(Place)
    }

    /// Assigns the place to the calling thread.
    pub(crate) fn occupy(&self) {
        THREADS[self.0].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        THREADS[self.0].store(0, Ordering::Relaxed);
    }
}

/// Whether thread `tid` has a place. Thread 0 and negative numbers are nobody's.
pub(crate) fn has_place(tid: i32) -> bool {
    tid > 0 && THREADS.iter().any(|place| place.load(Ordering::Relaxed) == tid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_from_when_it_occupies_its_place_until_it_gives_it_up() {
        let id = || rustix::thread::gettid().as_raw_nonzero().get();
        std::thread::spawn(move || {
            let place = Place::take().unwrap();
            assert!(!has_place(id()));
            place.occupy();
            assert!(has_place(id()));
            drop(place);
            assert!(!has_place(id()));
        })
        .join()
        .unwrap();
        assert!(!has_place(0) && !has_place(-1));
    }
}
