//! Hands values from thread to thread, in order: commands for the SDK's thread, for the threads of trace files and for those that read the journal, and
//! the answers. For the SDK, hosts and probes.
//!
//! A queue behind a lock, on none of the hot paths. It stands in for the standard library's channels, which are compiled anew for each type of value,
//! 5000 lines of the compiler's each time: a sixth of the time that a build of the SDK took.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A channel without bound.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue {
            values: VecDeque::new(),
            senders: 1,
            has_receiver: true,
        }),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// There is a value, or the last sender is gone. One thread waits at most.
    changed: Condvar,
}

struct Queue<T> {
    values: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing panics while it holds the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// None has been sent yet.
    SoFar,
    /// There will be none: all senders are gone.
    EverAgain,
}

/// The sending end. Clones send into the same channel.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends a value.
    ///
    /// # Errors
    /// The value, if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut queue = self.0.lock();
        if !queue.has_receiver {
            return Err(value);
        }
        queue.values.push_back(value);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

/// The receiving end. Values that it has not taken are dropped with it.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// The next value, if there is one.
    ///
    /// # Errors
    /// If there is none.
    pub fn try_receive(&self) -> Result<T, Nothing> {
        Self::take(&mut self.0.lock())
    }

    /// The next value; waits for it. `None` if there will be none.
    pub fn receive(&self) -> Option<T> {
        let mut queue = self.0.lock();
        loop {
            match Self::take(&mut queue) {
                Ok(value) => return Some(value),
                Err(Nothing::EverAgain) => return None,
                Err(Nothing::SoFar) => {
                    queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// The next value; waits for it no longer than this.
    ///
    /// # Errors
    /// If none has come.
    pub fn receive_within(&self, at_most: Duration) -> Result<T, Nothing> {
        match self.try_receive() {
            Err(Nothing::SoFar) => {}
            // Without a look at the clock, which some systems that can record nothing have not.
            result => return result,
        }
        let begun = Instant::now();
        let mut queue = self.0.lock();
        loop {
            let left = at_most.saturating_sub(begun.elapsed());
            match Self::take(&mut queue) {
                Err(Nothing::SoFar) if !left.is_zero() => {
                    let waited = self.0.changed.wait_timeout(queue, left);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                result => return result,
            }
        }
    }

    fn take(queue: &mut Queue<T>) -> Result<T, Nothing> {
        match queue.values.pop_front() {
            Some(value) => Ok(value),
            None if queue.senders > 0 => Err(Nothing::SoFar),
            None => Err(Nothing::EverAgain),
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.has_receiver = false;
        let values = std::mem::take(&mut queue.values);
        drop(queue);
        // Not under the lock: values may hold senders of this channel.
        drop(values);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_then_the_end() {
        let (sender, receiver) = channel();
        let another = sender.clone();
        assert_eq!(receiver.try_receive(), Err(Nothing::SoFar));
        assert_eq!(sender.send(1), Ok(()));
        assert_eq!(another.send(2), Ok(()));
        drop((sender, another));
        assert_eq!(receiver.try_receive(), Ok(1));
        assert_eq!(receiver.receive(), Some(2));
        assert_eq!(receiver.receive(), None);
        assert_eq!(receiver.try_receive(), Err(Nothing::EverAgain));
        assert_eq!(receiver.receive_within(Duration::MAX), Err(Nothing::EverAgain));
    }

    #[test]
    fn without_receiver_values_come_back_and_queued_ones_are_dropped() {
        /// Holds a sender of its own channel.
        struct Cyclic {
            counted: Arc<()>,
            _sender: Sender<Cyclic>,
        }
        let (sender, receiver) = channel();
        let counted = Arc::new(());
        let value = || Cyclic {
            counted: Arc::clone(&counted),
            _sender: sender.clone(),
        };
        assert!(sender.send(value()).is_ok());
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(receiver);
        assert_eq!(Arc::strong_count(&counted), 1);
        let returned = sender.send(value());
        assert!(returned.is_err_and(|value| Arc::ptr_eq(&value.counted, &counted)));
    }

    #[test]
    fn each_value_and_the_end_wake_the_waiting_thread() {
        const VALUES: u32 = 1000;
        let (sender, receiver) = channel();
        let (answers, answered) = channel();
        let echo = std::thread::spawn(move || {
            while let Some(value) = receiver.receive() {
                assert_eq!(answers.send(value), Ok(()));
            }
        });
        for value in 0..VALUES {
            assert_eq!(sender.send(value), Ok(()));
            // Long enough to never be over.
            assert_eq!(answered.receive_within(Duration::MAX), Ok(value));
        }
        drop(sender);
        assert_eq!(answered.receive_within(Duration::MAX), Err(Nothing::EverAgain));
        echo.join().expect("the thread does not panic");
    }

    #[test]
    fn waiting_ends_when_its_time_is_over() {
        let (sender, receiver) = channel::<()>();
        let begun = Instant::now();
        let patience = Duration::from_millis(2);
        assert_eq!(receiver.receive_within(patience), Err(Nothing::SoFar));
        assert!(begun.elapsed() >= patience);
        drop(sender);
    }
}
