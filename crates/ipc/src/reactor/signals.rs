//! Signals as events of the reactor, by `signal-hook` (feature `signals`). For daemons and the command line; the SDK must not touch
//! the signals of the program that it is in.

use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use super::{Events, Reactor, ReactorError, SIGNALS, Signal, TakeSignals};

/// `si_code` of signals that the kernel sends (`asm-generic/siginfo.h`).
const SI_KERNEL: i32 = 0x80;

const ALL: [Signal; 7] = [
    Signal::Interrupt,
    Signal::Terminate,
    Signal::HangUp,
    Signal::Child,
    Signal::User1,
    Signal::User2,
    Signal::WindowChange,
];

type Delivery = SignalDelivery<UnixStream, WithRawSiginfo>;

impl Reactor {
    /// From now on delivers `signals` as events instead of their default action. To be called once; the handlers stay for
    /// the life of the process, as those of `signal-hook` do.
    ///
    /// # Errors
    /// If the system refuses the handlers, or their descriptors.
    pub fn watch_signals(&mut self, signals: &[Signal]) -> Result<(), ReactorError> {
        let (read, write) = UnixStream::pair().map_err(ReactorError::Signals)?;
        read.set_nonblocking(true).map_err(ReactorError::Signals)?;
        write.set_nonblocking(true).map_err(ReactorError::Signals)?;
        let numbers = signals.iter().map(|signal| signal.number());
        let delivery =
            Delivery::with_pipe(read, write, WithRawSiginfo, numbers).map_err(ReactorError::Signals)?;
        epoll::add(
            &self.epoll,
            delivery.get_read(),
            EventData::new_u64(SIGNALS),
            EventFlags::IN,
        )
        .map_err(|source| ReactorError::Signals(source.into()))?;
        self.signals = Some(Box::new(delivery));
        Ok(())
    }
}

impl TakeSignals for Delivery {
    fn take(&mut self, events: &mut Events) {
        for info in self.pending() {
            let Some(signal) = ALL.into_iter().find(|signal| signal.number() == info.si_signo) else {
                continue;
            };
            events.signals.push(signal);
            if info.si_code == SI_KERNEL {
                events.of_kernel.push(signal);
            }
        }
    }
}
