//! Listens to systemd's journal for the triggers of the settings.
//!
//! [`run`](super::run) starts it if there is such a trigger. It has a thread of its own, because the library that reads the journal reads files, and a
//! slow disk may take any time. The thread judges the entries, so a flood of them costs the recorder's loop nothing. Without a journal the recorder
//! records all the same: the log says why, and the thread tries again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferretto_daemons::log;
use ferretto_ipc::reactor::{Deadline, Events, Interest, Reactor, ReactorError, Token, Waker, monotonic_now};
use ferretto_probes::journald::{Error, FollowError, Journal, follow};
use ferretto_recorder::{Condition, Entry, Lines};

use super::NAME;

/// The entries that are read in one turn, before it is time to look whether all is over.
const TURN: usize = 1000;
/// When to try again after the journal could not be read.
const RETRY: Duration = Duration::from_secs(10);
const JOURNAL: Token = Token(0);

/// See the [module](self). Its end ends the thread.
#[derive(Debug)]
pub(super) struct Listener {
    shared: Arc<Shared>,
    waker: Waker,
}

#[derive(Debug)]
struct Shared {
    lines: Mutex<Lines>,
    is_over: AtomicBool,
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        // Each method leaves the lines whole, also if its thread panics afterwards.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Why the journal is not read any more.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Library(#[from] Error),
    #[error(transparent)]
    Loop(#[from] ReactorError),
}

impl Listener {
    /// Starts to listen. Sends each condition that is met, and wakes the receiver.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(lines: Lines, met: Sender<Condition>, receiver: Waker) -> Result<Listener, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot listen to the journal: {error}");
        let reactor = Reactor::new().map_err(|error| failed(&error))?;
        let waker = reactor.waker();
        let shared = Arc::new(Shared {
            lines: Mutex::new(lines),
            is_over: AtomicBool::new(false),
        });
        let ear = Ear {
            shared: shared.clone(),
            reactor,
            met,
            receiver,
        };
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || ear.run())
            .map_err(|error| failed(&error))?;
        Ok(Listener { shared, waker })
    }

    /// Listens for these instead, without missing an entry.
    pub(super) fn replace(&self, conditions: &[Condition]) {
        self.shared.lines().replace(conditions);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// The thread.
struct Ear {
    shared: Arc<Shared>,
    reactor: Reactor,
    met: Sender<Condition>,
    receiver: Waker,
}

impl Ear {
    fn run(mut self) {
        let mut told = String::new();
        while !self.shared.is_over() {
            let Err(trouble) = self.listen(&mut told) else {
                return;
            };
            let trouble = trouble.to_string();
            if trouble != told {
                log::warning(format_args!(
                    "triggers by the journal do not work, and are tried again and again: {trouble}"
                ));
                told = trouble;
            }
            let retry = Some(Deadline::after(RETRY));
            if self.reactor.wait(&mut Events::new(), retry).is_err() {
                return;
            }
        }
    }

    /// Listens until all is over.
    fn listen(&mut self, told: &mut String) -> Result<(), Trouble> {
        let (mut journal, remark) = follow(NAME, [])?;
        if let Some(remark) = remark
            .map(|remark| remark.to_string())
            .filter(|remark| remark != told)
        {
            log::warning(format_args!("triggers by the journal: {remark}"));
            *told = remark;
        }
        self.reactor
            .register(journal.watch()?, JOURNAL, Interest::Readable)?;
        log::info(format_args!("listens to the journal"));
        let mut events = Events::new();
        while !self.shared.is_over() {
            if self.read(&mut journal)? == TURN {
                continue;
            }
            let deadline = journal.deadline()?;
            self.reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
        }
        Ok(())
    }

    /// Reads the entries that have come, for one turn; returns their number.
    fn read(&self, journal: &mut Journal) -> Result<usize, Error> {
        journal.process()?;
        let mut count = 0;
        while count < TURN && journal.next_entry()? {
            count += 1;
            let mut entry = Entry::default();
            // An entry that is damaged, or deleted meanwhile, meets nothing.
            if journal.for_each_field(|field| entry.take(field)).is_err() {
                continue;
            }
            let now = Duration::from_nanos(monotonic_now());
            for condition in self.shared.lines().hear(now, &entry) {
                // Without a receiver the recorder is at its end.
                let _ = self.met.send(condition);
                self.receiver.wake();
            }
        }
        Ok(count)
    }
}
