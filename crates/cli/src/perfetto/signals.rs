//! The signals that end a recording: who takes them, and how they reach recordings on other threads.
//!
//! Called by [`record`](super::record) and by who starts recordings. SIGINT and SIGTERM are upstream's. SIGHUP, of which upstream dies
//! and leaves an empty file, ends a recording too when its terminal is closed; not under `nohup`, which has it ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferretto_ipc::reactor::{Events, Reactor, ReactorError, Signal, Waker};
use signal_hook::consts::signal::SIGXFSZ;

use ferretto_daemons::inherited;

/// Signals of one kind that come so close to each other are one: `timeout` signals its child and then the child's process group.
pub(super) const SAME_INTERRUPT: Duration = Duration::from_millis(300);

/// The signals that asked for the end so far. Who ends programs often sends one kind after another (a shell SIGINT, then systemd or a
/// CI runner SIGTERM): all of them are the same wish. Only the same signal once more says that it takes too long.
#[derive(Debug, Default)]
pub(super) struct Wishes(Vec<(Signal, Duration)>);

/// What a signal means after those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// To end.
    First,
    /// The one that is known already.
    Known,
    /// To end at once, whatever is left to do.
    Again,
}

impl Wishes {
    /// Takes in a signal that came at this time.
    pub(super) fn hear(&mut self, signal: Signal, now: Duration) -> Wish {
        let before = self.0.iter().find(|(known, _)| *known == signal);
        match before {
            Some((_, at)) if now < *at + SAME_INTERRUPT => Wish::Known,
            Some(_) => Wish::Again,
            None => {
                self.0.push((signal, now));
                if self.0.len() == 1 {
                    Wish::First
                } else {
                    Wish::Known
                }
            }
        }
    }
}

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The kernel, for the keys of a terminal: to every process of the terminal's foreground.
    Kernel,
    /// A process, to this one or to its group.
    Process,
}

impl Sender {
    /// Of a signal that is among `events`.
    pub(super) fn of(signal: Signal, events: &Events) -> Sender {
        match events.is_of_kernel(signal) {
            true => Sender::Kernel,
            false => Sender::Process,
        }
    }
}

/// Signals that ask to stop, for who cannot wait in the reactor. Whoever looks takes them back.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupted(Vec<(Signal, Arc<AtomicBool>)>);

impl Interrupted {
    /// Those that came since this was last asked.
    pub(super) fn take(&self) -> impl Iterator<Item = Signal> {
        let came = self
            .0
            .iter()
            .filter(|(_, came)| came.swap(false, Ordering::Relaxed));
        came.map(|(signal, _)| *signal)
    }

    /// One for a test to raise.
    #[cfg(test)]
    pub(super) fn by(signal: Signal) -> (Interrupted, Arc<AtomicBool>) {
        let came = Arc::<AtomicBool>::default();
        (Interrupted(vec![(signal, Arc::clone(&came))]), came)
    }
}

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
    let mut interrupted = Interrupted::default();
    for signal in watched {
        let came = Arc::<AtomicBool>::default();
        signal_hook::flag::register(signal.number(), Arc::clone(&came)).map_err(ReactorError::Signals)?;
        interrupted.0.push((signal, came));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_signal_once_more_is_another_wish() {
        let ms = Duration::from_millis;
        let mut wishes = Wishes::default();
        assert_eq!(wishes.hear(Signal::Interrupt, ms(1000)), Wish::First);
        assert_eq!(wishes.hear(Signal::Interrupt, ms(1299)), Wish::Known, "an echo");
        assert_eq!(wishes.hear(Signal::Terminate, ms(1300)), Wish::Known, "another's");
        assert_eq!(wishes.hear(Signal::HangUp, ms(9000)), Wish::Known);
        assert_eq!(wishes.hear(Signal::Terminate, ms(9001)), Wish::Again);
        assert_eq!(wishes.hear(Signal::Interrupt, ms(9002)), Wish::Again);
    }
}
