//! Work that data sources have finished, on any thread, until the runtime takes notice of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_ipc::reactor::Waker;

use super::ProducerProgram;
use crate::data_source::Acknowledge;
use crate::producer::FlushRequestId;
use crate::room::lock_with_room;

/// The finished work of the instance with this serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Started(u32),
    Stopped(u32),
    Flushed(u32, FlushRequestId),
}

/// See the [module](self).
pub(super) struct Inbox {
    done: Mutex<Vec<Done>>,
    waker: Waker,
    program: Arc<dyn ProducerProgram>,
}

impl Inbox {
    pub(super) fn new(program: Arc<dyn ProducerProgram>, waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            done: Mutex::default(),
            waker,
            program,
        })
    }

    /// Returns a value that posts `done` when it is dropped.
    pub(super) fn acknowledge(self: &Arc<Self>, done: Done) -> Acknowledge {
        let inbox = self.clone();
        Acknowledge::new(move || inbox.post(done))
    }

    /// Takes all finished work.
    pub(super) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.lock())
    }

    /// Takes `done` back, which does not apply.
    pub(super) fn retract(&self, done: Done) {
        self.lock().retain(|left| *left != done);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn post(&self, done: Done) {
        lock_with_room(|| self.lock(), |inbox| inbox, 1).push(done);
        // The thread itself looks before it sleeps.
        if !self.program.is_own_thread() {
            self.waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Done>> {
        // Nothing panics while it holds the lock.
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
