//! A connection to a service, as shared by the runtime's thread and the writers that wake it.
//!
//! The thread does all I/O. Other threads only say when there will be something to send. If the thread itself finds no room while it runs a data
//! source's code, it sends the requests that make room. So the lock is held for single operations. Under it, only the service of this process is
//! called, which never calls back.

mod due;

use std::ops::DerefMut;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferretto_ipc::client::InvokeError;
use ferretto_ipc::reactor::{Interest, Waker, monotonic_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ProducerProgram;
use crate::arbiter::{Arbiter, EMULATED_SMB_SIZE, Notify, Wake};
use crate::producer::ProducerEndpoint;
use due::Due;

/// Bytes of requests that arbiters may come to have: all of the memory, where it is emulated, and the rest generously.
const ROOM_FOR_REQUESTS: usize = 3 * EMULATED_SMB_SIZE;

/// A producer's end of a connection. The program may wrap the endpoint, as the SDK does to keep it from forked children.
pub type Producer = Box<dyn DerefMut<Target = ProducerEndpoint> + Send>;

/// Gives a turn to the service of this process, if that lives on the thread that waits for it.
pub type Help = Box<dyn Fn() + Send>;

/// The way to a service. Shared by the connection and its arbiters.
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

struct Shared {
    program: Arc<dyn ProducerProgram>,
    state: Mutex<State>,
    /// When the arbiters' requests are to be sent.
    due: Due,
    waker: Waker,
}

#[derive(Default)]
struct State {
    producer: Option<Producer>,
    help: Option<Help>,
    /// Whether the service has taken the memory into use: before, it knows nothing of chunks.
    memory: Memory,
    arbiter: Weak<Arbiter>,
    /// Kept until no writer uses them, and all that they hold is sent.
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
    pub(super) fn new(program: Arc<dyn ProducerProgram>, waker: Waker) -> Self {
        Self(Arc::new(Shared {
            program,
            state: Mutex::default(),
            due: Due::new(),
            waker,
        }))
    }

    /// Connects it.
    pub(super) fn attach(&self, producer: Producer, help: Option<Help>) {
        let mut state = self.lock();
        state.producer = Some(producer);
        state.help = help;
    }

    /// Ends the connection, and gives it back. Writers may hold on to the link.
    pub(super) fn detach(&self) -> Option<Producer> {
        let (producer, help, startup) = {
            let mut state = self.lock();
            let startup = std::mem::take(&mut state.startup);
            (state.producer.take(), state.help.take(), startup)
        };
        drop((help, startup));
        producer
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
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut ProducerEndpoint) -> R) -> Option<R> {
        self.lock().producer.as_mut().map(|producer| work(producer))
    }

    /// Makes a request, if there is a producer. One that is too large, or finds thousands waiting, is dropped with a line in the log.
    pub(super) fn request(&self, make: impl FnOnce(&mut ProducerEndpoint) -> Result<(), InvokeError>) {
        if let Some(Err(error)) = self.with(make) {
            let line = format!("a request is dropped: {error}");
            self.0.program.warning(&line);
        }
    }

    /// Sends due requests, as far as the socket takes them.
    pub(super) fn pump(&self) {
        if self.0.due.when().is_some_and(|at| at <= monotonic_now()) {
            self.send_requests(&mut self.lock());
        } else {
            self.with(ProducerEndpoint::flush);
        }
    }

    /// Sends all requests, without waiting for the end of a batch.
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
        let outgoing = state
            .producer
            .as_deref()
            .is_some_and(|producer| has_output(producer));
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
            // An arbiter that only this list holds gets no more requests.
            let is_shared = Arc::strong_count(arbiter) > 1;
            fence(Ordering::Acquire);
            for request in arbiter.take_requests() {
                // There is room: `can_send` has looked.
                let _ = producer.send(request);
            }
            is_shared
        });
        // The main one comes last, for it acknowledges flushes of all.
        if let Some(arbiter) = arbiter.upgrade() {
            for request in arbiter.take_requests() {
                let _ = producer.send(request);
            }
        }
        producer.flush();
    }

    /// The runtime's own thread writes: sends all requests, and has a service in this process take them.
    fn send_to_service(&self, state: &mut State) {
        self.send_requests(state);
        if let (Some(help), Some(producer)) = (&state.help, &mut state.producer) {
            help();
            // The service reads nothing more from a client that does not read its replies.
            producer.on_readable();
            help();
        }
    }

    /// A writer on the runtime's own thread waits for the service. Sends all requests, and ends the wait if there is no service to wait for.
    fn help_own_writer(&self) {
        let mut state = self.lock();
        self.send_to_service(&mut state);
        let is_over = match state.producer.as_deref() {
            Some(producer) => is_hung_up(producer),
            None => true,
        };
        if is_over || self.0.program.is_ending() {
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
}

/// Whether something waits to be sent.
fn has_output(producer: &ProducerEndpoint) -> bool {
    matches!(producer.interest(), Interest::Writable | Interest::Both)
}

/// Whether the service has closed its end. Its earlier messages can still be read.
fn is_hung_up(producer: &ProducerEndpoint) -> bool {
    let mut polled = [PollFd::new(producer, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

impl Notify for Link {
    fn wake(&self, wake: Wake) {
        let program = &self.0.program;
        let own = program.is_own_thread();
        let due = match wake {
            Wake::HalfFull if own => {
                return program.send_for_writer(&mut || self.send_to_service(&mut self.lock()));
            }
            Wake::Stalled if own => return program.send_for_writer(&mut || self.help_own_writer()),
            Wake::Now | Wake::HalfFull | Wake::Stalled => 0,
            Wake::Within(time) => monotonic_now().saturating_add(time.as_nanos() as u64),
        };
        // The thread itself looks before it sleeps.
        if self.0.due.bring_forward(due) && !own {
            self.0.waker.wake();
        }
    }
}
