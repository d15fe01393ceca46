//! Handles the signals that end a recording, and passes them on to recordings on other threads.
//!
//! [`record`](super::record) and the code that starts recordings call it. SIGINT and SIGTERM are upstream's. SIGHUP, on which upstream dies and
//! leaves an empty file, also ends a recording when its terminal is closed; not under `nohup`, which makes the process ignore it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferretto_ipc::reactor::{Events, Reactor, ReactorError, Signal, Waker};
use signal_hook::consts::signal::SIGXFSZ;

use ferretto_daemons::inherited;

/// Signals of one kind within this time count as one: `timeout` signals its child and then the child's process group.
pub(super) const SAME_INTERRUPT: Duration = Duration::from_millis(300);

/// The signals so far that asked for the end. Programs that end others often send several kinds in turn (a shell SIGINT, then systemd or a CI runner
/// SIGTERM), which all mean the same. Only a repetition of the same signal means that it takes too long.
#[derive(Debug, Default)]
pub(super) struct Wishes(Vec<(Signal, Duration)>);

/// The meaning of a signal, given the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// To end the recording.
    First,
    /// The same as before.
    Known,
    /// To end at once, even with work left.
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

/// The sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The kernel, because of a key on the terminal. It signals every process in the terminal's foreground.
    Kernel,
    /// A process, to this one or to its group.
    Process,
}

impl Sender {
    /// Returns the sender of a signal in `events`.
    pub(super) fn of(signal: Signal, events: &Events) -> Sender {
        match events.is_of_kernel(signal) {
            true => Sender::Kernel,
            false => Sender::Process,
        }
    }
}

/// Signals that ask to stop, for code that does not wait in the reactor. Reading them resets them.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupted(Vec<(Signal, Arc<AtomicBool>)>);

impl Interrupted {
    /// Returns the signals since the last call.
    pub(super) fn take(&self) -> impl Iterator<Item = Signal> {
        let came = self
            .0
            .iter()
            .filter(|(_, came)| came.swap(false, Ordering::Relaxed));
        came.map(|(signal, _)| *signal)
    }

    /// Makes one that a test can raise.
    #[cfg(test)]
    pub(super) fn by(signal: Signal) -> (Interrupted, Arc<AtomicBool>) {
        let came = Arc::<AtomicBool>::default();
        (Interrupted(vec![(signal, Arc::clone(&came))]), came)
    }
}

/// The handling of signals that end a recording.
#[derive(Debug, Clone)]
pub(super) enum Signals {
    /// The recording handles them.
    Taken,
    /// The recording that contains this one handles them, and passes them on.
    Relayed(Relay),
    /// They have their default effect and end the process.
    LeftAlone,
}

/// Makes the reactor report signals. Returns the same signals for code that waits for a pipe's reader outside the reactor.
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
    // Makes reaching a file size limit (RLIMIT_FSIZE) an error of `write`, instead of a signal that ends the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(ReactorError::Signals)?;
    Ok(interrupted)
}

/// Returns the name by which the user knows a signal.
pub(super) fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Interrupt => "Ctrl-C",
        Signal::HangUp => "SIGHUP",
        _ => "SIGTERM",
    }
}

/// Ends the process by the signal's default action, so that the shell sees the cause.
pub(super) fn die_of(signal: Signal) {
    // It returns only on failure; the exit code then has to suffice.
    let _ = signal_hook::low_level::emulate_default_handler(signal.number());
}

/// Passes a signal on to recordings on other threads, to present and future ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Relay(Arc<Mutex<Relayed>>);

#[derive(Debug, Default)]
struct Relayed {
    signal: Option<Signal>,
    /// Wakes the present recording.
    listener: Option<Waker>,
}

impl Relay {
    /// Passes a signal on.
    pub(super) fn pass_on(&self, signal: Signal) {
        let mut relayed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        relayed.signal = Some(signal);
        if let Some(listener) = &relayed.listener {
            listener.wake();
        }
    }

    /// Makes a signal wake this recording.
    pub(super) fn wake(&self, listener: Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).listener = Some(listener);
    }

    /// Returns the signal, if one came.
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
