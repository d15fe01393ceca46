//! The signals that end a recording: who takes them, and how they reach recordings on other threads.
//!
//! Called by [`record`](super::record) and by who starts recordings. SIGINT and SIGTERM are upstream's. SIGHUP, of which upstream dies
//! and leaves an empty file, ends a recording too when its terminal is closed; not under `nohup`, which has it ignored.

use std::sync::{Arc, Mutex, PoisonError};

use ferretto_ipc::reactor::{Reactor, ReactorError, Signal, Waker};
use signal_hook::consts::signal::SIGXFSZ;

use super::pipe::Interrupted;
use crate::inherited;

/// Who takes the signals that end a recording.
#[derive(Debug, Clone)]
pub(super) enum Signals {
    /// The recording does.
    Taken,
    /// The recording that this one is a part of does, and passes them on.
    Relayed(Relay),
    /// Nobody: they end the process.
    LeftAlone,
}

/// Has the reactor tell of signals. What waits for the reader of a pipe, and so not in the reactor, is told by what this gives.
pub(super) fn watch(reactor: &mut Reactor) -> Result<Interrupted, ReactorError> {
    let mut watched = vec![Signal::Interrupt, Signal::Terminate];
    if !inherited::ignores(Signal::HangUp) {
        watched.push(Signal::HangUp);
    }
    reactor.watch_signals(&watched)?;
    let interrupted = Interrupted::default();
    for signal in watched {
        signal_hook::flag::register(signal.number(), Arc::clone(&interrupted))
            .map_err(ReactorError::Signals)?;
    }
    // An output that may not grow any more (RLIMIT_FSIZE) is an error of a write then, and not the end.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(ReactorError::Signals)?;
    Ok(interrupted)
}

/// What the user knows it by.
pub(super) fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Interrupt => "Ctrl-C",
        Signal::HangUp => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Ends the process the way the signal does by default, so that the shell sees what happened.
pub(super) fn die_of(signal: Signal) {
    // It returns only if it cannot; then an exit code has to do.
    let _ = signal_hook::low_level::emulate_default_handler(signal.number());
}

/// Passes a signal on to recordings on other threads, those that have begun and those that are still to begin.
#[derive(Debug, Clone, Default)]
pub(super) struct Relay(Arc<Mutex<Relayed>>);

#[derive(Debug, Default)]
struct Relayed {
    signal: Option<Signal>,
    /// The recording that is under way.
    listener: Option<Waker>,
}

impl Relay {
    /// Passes it on.
    pub(super) fn pass_on(&self, signal: Signal) {
        let mut relayed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        relayed.signal = Some(signal);
        if let Some(listener) = &relayed.listener {
            listener.wake();
        }
    }

    /// Has this woken when a signal comes.
    pub(super) fn wake(&self, listener: Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).listener = Some(listener);
    }

    /// The signal, if one came.
    pub(super) fn signal(&self) -> Option<Signal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).signal
    }
}
