//! A connection to a service, as shared by the SDK's thread and the writers that have it woken.
//!
//! The thread does all I/O. Other threads only say when there will be something to send; the thread itself, when it runs a data
//! source's code and that finds no room, sends what would make some. So the lock is held for single operations, and never while
//! foreign code runs.

mod due;

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferretto_client::arbiter::{Arbiter, EMULATED_SMB_SIZE, Notify, Wake};
use ferretto_ipc::reactor::{Waker, monotonic_now};

use super::on_own_thread;
use super::producer::ProducerLink;
use due::Due;

/// Bytes of requests that arbiters may come to have: all of the memory, where it is emulated, and the rest generously.
const ROOM_FOR_REQUESTS: usize = 2 * EMULATED_SMB_SIZE;

/// The way to a service. Shared by the backend and the arbiters of one connection.
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// When the arbiters' requests are to be sent.
    due: Due,
    waker: Waker,
}

#[derive(Default)]
struct State {
    producer: Option<ProducerLink>,
    /// Whether the service has taken the memory into use: before, it knows nothing of chunks.
    memory: Memory,
    arbiter: Weak<Arbiter>,
    /// As long as anybody writes through them, or has what they hold sent.
    startup: Vec<Arc<Arbiter>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Memory {
    #[default]
    Unknown,
    InUse,
}

impl Link {
    /// A link that leads nowhere yet.
    pub(super) fn new(waker: Waker) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            due: Due::new(),
            waker,
        }))
    }

    /// Connects it.
    pub(super) fn attach(&self, producer: ProducerLink) {
        self.lock().producer = Some(producer);
    }

    /// Ends the connection. Writers may hold on to the link.
    pub(super) fn detach(&self) {
        let (producer, startup) = {
            let mut state = self.lock();
            (state.producer.take(), std::mem::take(&mut state.startup))
        };
        drop((producer, startup));
    }

    /// From now on sends the requests of `arbiter`.
    pub(super) fn use_memory(&self, arbiter: &Arc<Arbiter>) {
        let mut state = self.lock();
        state.arbiter = Arc::downgrade(arbiter);
        state.memory = Memory::InUse;
        drop(state);
        self.0.due.bring_forward(0);
    }

    /// Also sends the requests of an arbiter for startup.
    pub(super) fn add_startup(&self, arbiter: &Arc<Arbiter>) {
        self.lock().startup.push(arbiter.clone());
    }

    /// Does something with the producer, if there is one. `work` calls no foreign code.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut ProducerLink) -> R) -> Option<R> {
        self.lock().producer.as_mut().map(work)
    }

    /// Sends what is due, as far as the socket takes it.
    pub(super) fn pump(&self) {
        if self.0.due.when().is_some_and(|at| at <= monotonic_now()) {
            self.send_requests(&mut self.lock());
        } else {
            self.with(ProducerLink::flush);
        }
    }

    /// Sends what there is, without waiting for the end of a batch.
    pub(super) fn pump_now(&self) {
        self.send_requests(&mut self.lock());
    }

    /// When [`Link::pump`] has something to do that no readiness announces.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.0.due.when().filter(|_| self.lock().can_send())
    }

    /// Whether everything was sent.
    pub(super) fn is_idle(&self) -> bool {
        let due = self.0.due.when();
        let state = self.lock();
        let pending = due.is_some() && state.memory == Memory::InUse;
        let outgoing = state.producer.as_ref().is_some_and(ProducerLink::has_output);
        !pending && !outgoing
    }

    fn send_requests(&self, state: &mut State) {
        let State {
            producer: Some(producer),
            ..
        } = state
        else {
            return;
        };
        producer.flush();
        // Where there is no room now the socket is full, and will say when it no longer is.
        if !state.can_send() {
            return;
        }
        self.0.due.take();
        let State {
            producer: Some(producer),
            startup,
            arbiter,
            ..
        } = state
        else {
            return;
        };
        startup.retain(|arbiter| {
            // Nobody adds anything to what only this list has.
            let is_shared = Arc::strong_count(arbiter) > 1;
            fence(Ordering::Acquire);
            for request in arbiter.take_requests() {
                producer.send(request);
            }
            is_shared
        });
        // The main one comes last, for it acknowledges flushes of all.
        if let Some(arbiter) = arbiter.upgrade() {
            for request in arbiter.take_requests() {
                producer.send(request);
            }
        }
        producer.flush();
    }

    /// A writer on the SDK's own thread waits for the service: sends what would help, and ends the wait if there is nothing to
    /// wait for.
    fn help_own_writer(&self) {
        let mut state = self.lock();
        self.send_requests(&mut state);
        if state.is_hung_up() {
            for arbiter in state.startup.iter().chain(&state.arbiter.upgrade()) {
                arbiter.close();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn can_send(&self) -> bool {
        self.memory == Memory::InUse
            && self
                .producer
                .as_ref()
                .is_some_and(|producer| producer.outgoing_room() >= ROOM_FOR_REQUESTS)
    }

    /// Whether the service has closed its end. What it said before stays to be read.
    fn is_hung_up(&self) -> bool {
        self.producer.as_ref().is_none_or(ProducerLink::is_hung_up)
    }
}

impl Notify for Link {
    fn wake(&self, wake: Wake) {
        let own = on_own_thread();
        let due = match wake {
            Wake::HalfFull if own => return self.send_requests(&mut self.lock()),
            Wake::Stalled if own => return self.help_own_writer(),
            Wake::Now | Wake::HalfFull | Wake::Stalled => 0,
            Wake::Within(time) => monotonic_now().saturating_add(time.as_nanos() as u64),
        };
        // The thread itself looks before it sleeps.
        if self.0.due.bring_forward(due) && !own {
            self.0.waker.wake();
        }
    }
}
