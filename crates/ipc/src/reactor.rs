//! One event loop for daemons, command line and the SDK's thread: descriptors, a deadline, signals, wake-ups from
//! other threads.
//!
//! Called by the owner of a loop: `reactor.wait(&mut events, deadline)` sleeps until something happens and reports it; nothing calls back. Readiness
//! is level-triggered: it is reported again until it is dealt with.
//!
//! The clock of a deadline matters when the machine sleeps: [`Deadline::Monotonic`] stands still meanwhile (upstream's delayed tasks do),
//! [`Deadline::Boot`] goes on (trace durations do, by default). Waiting on a boot-time deadline needs a timer descriptor, since the timeout of
//! `epoll_wait` counts monotonic time only. A monotonic deadline that is waited for again gets one too: neither we nor the kernel then look at a
//! clock or set a timer for each wait.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::time::{self, Clock, Timer};
pub use watch::Watch;

#[cfg(feature = "signals")]
mod signals;
mod watch;

#[cfg(test)]
mod tests;

/// Events taken from the kernel at once.
const BATCH: usize = 64;

const WAKER: u64 = u64::MAX;
const SIGNALS: u64 = u64::MAX - 1;
const MONOTONIC_ALARM: u64 = u64::MAX - 2;
const BOOT_ALARM: u64 = u64::MAX - 3;

/// The number of a registered descriptor in [`Events`]. Take numbers from a counter and use none twice: an event of a descriptor removed a moment ago
/// may still be in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The readiness to wait for on a descriptor. Errors and hang-ups are reported whatever the interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Errors and hang-ups only.
    None,
    /// Bytes, connections or the end of the stream.
    Readable,
    /// Room to write.
    Writable,
    /// Either.
    Both,
}

impl Interest {
    /// The interest of an endpoint that wants input, or has output, or both.
    pub fn from_wants(input: bool, output: bool) -> Interest {
        match (input, output) {
            (false, false) => Interest::None,
            (true, false) => Interest::Readable,
            (false, true) => Interest::Writable,
            (true, true) => Interest::Both,
        }
    }

    fn flags(self) -> EventFlags {
        match self {
            Interest::None => EventFlags::empty(),
            Interest::Readable => EventFlags::IN,
            Interest::Writable => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        }
    }
}

/// A descriptor is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub token: Token,
    /// There is something to read, or the end of the stream.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The peer closed or the descriptor failed; a read or write tells more.
    pub hung_up: bool,
}

/// A signal to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGINT`, Ctrl-C.
    Interrupt,
    /// `SIGTERM`.
    Terminate,
    /// `SIGHUP`.
    HangUp,
    /// `SIGCHLD`.
    Child,
    /// `SIGUSR1`.
    User1,
    /// `SIGUSR2`.
    User2,
    /// `SIGWINCH`: the terminal changed its size.
    WindowChange,
}

impl Signal {
    /// Its number, as the kernel and `kill` know it.
    pub fn number(self) -> i32 {
        match self {
            Signal::Interrupt => libc::SIGINT,
            Signal::Terminate => libc::SIGTERM,
            Signal::HangUp => libc::SIGHUP,
            Signal::Child => libc::SIGCHLD,
            Signal::User1 => libc::SIGUSR1,
            Signal::User2 => libc::SIGUSR2,
            Signal::WindowChange => libc::SIGWINCH,
        }
    }
}

/// A point in time, in nanoseconds of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// `CLOCK_MONOTONIC`: stands still while the machine sleeps.
    Monotonic(u64),
    /// `CLOCK_BOOTTIME`: goes on meanwhile, and wakes us right after.
    Boot(u64),
}

impl Deadline {
    /// The deadline after this duration, in time during which the machine is awake.
    pub fn after(duration: Duration) -> Deadline {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Deadline::Monotonic(monotonic_now().saturating_add(nanos))
    }
}

/// The latest end of a wait, on either clock: whichever comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// On `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic: Option<u64>,
    /// On `CLOCK_BOOTTIME`, in nanoseconds.
    pub boot: Option<u64>,
}

impl From<Deadline> for Deadlines {
    fn from(deadline: Deadline) -> Deadlines {
        let (monotonic, boot) = match deadline {
            Deadline::Monotonic(at) => (Some(at), None),
            Deadline::Boot(at) => (None, Some(at)),
        };
        Deadlines { monotonic, boot }
    }
}

impl From<Option<Deadline>> for Deadlines {
    fn from(deadline: Option<Deadline>) -> Deadlines {
        deadline.map_or_else(Deadlines::default, Deadlines::from)
    }
}

/// Now on `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_now() -> u64 {
    time::now(Clock::Monotonic)
}

/// Now on `CLOCK_BOOTTIME`, in nanoseconds.
pub fn boot_now() -> u64 {
    time::now(Clock::Boot)
}

/// A failure in the event loop.
#[derive(Debug)]
pub enum ReactorError {
    /// The kernel gave us no descriptor.
    Create {
        /// The object that could not be made.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A token that the reactor uses itself.
    ReservedToken(Token),
    /// A descriptor could not be watched.
    Watch {
        /// Its token.
        token: Token,
        /// Why.
        source: Errno,
    },
    /// A signal could not be watched.
    Signals(std::io::Error),
    /// The timer could not be set.
    Timer(io::Error),
    /// Waiting failed.
    Wait(Errno),
}

impl fmt::Display for ReactorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReactorError::Create { what, source } => {
                write!(f, "cannot create the {what} of the event loop: {source}")
            }
            ReactorError::ReservedToken(token) => write!(
                f,
                "the token {} is reserved for the event loop; use a smaller one",
                token.0
            ),
            ReactorError::Watch { token, source } => {
                write!(f, "cannot watch descriptor {}: {source}", token.0)
            }
            ReactorError::Signals(value) => write!(f, "cannot watch for signals: {value}"),
            ReactorError::Timer(source) => write!(f, "cannot set the timer of the event loop: {source}"),
            ReactorError::Wait(source) => write!(f, "cannot wait for events: {source}"),
        }
    }
}

impl std::error::Error for ReactorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReactorError::Create { source, .. } => Some(source),
            ReactorError::Watch { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The results of one [`Reactor::wait`]; reuse it.
#[derive(Debug, Default)]
pub struct Events {
    ready: Vec<Event>,
    signals: Vec<Signal>,
    /// The signals that the kernel sent, among `signals`.
    of_kernel: Vec<Signal>,
    woken: bool,
    deadline_passed: bool,
}

impl Events {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The descriptors that are ready.
    pub fn ready(&self) -> &[Event] {
        &self.ready
    }

    /// The signals that arrived; several of one kind may count as one.
    pub fn signals(&self) -> &[Signal] {
        &self.signals
    }

    /// Whether the kernel sent this signal, as for the keys of a terminal, and no process did.
    pub fn is_of_kernel(&self, signal: Signal) -> bool {
        self.of_kernel.contains(&signal)
    }

    /// Whether another thread used a [`Waker`].
    pub fn woken(&self) -> bool {
        self.woken
    }

    /// Whether one of the deadlines is known to have passed. It may have passed without this being known yet; the next wait reports it then.
    pub fn deadline_passed(&self) -> bool {
        self.deadline_passed
    }

    fn clear(&mut self) {
        self.ready.clear();
        self.signals.clear();
        self.of_kernel.clear();
        self.woken = false;
        self.deadline_passed = false;
    }
}

/// Wakes a reactor from any thread (not from a signal handler).
#[derive(Debug, Clone)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// Makes the current or the next [`Reactor::wait`] return. Many wake-ups before that count as one.
    pub fn wake(&self) {
        // It fails only with EAGAIN, when 2^64-2 wake-ups are pending: then the reactor wakes anyway.
        let _ = rustix::io::write(&*self.eventfd, &1u64.to_ne_bytes());
    }
}

/// A source of signals. A trait, so that the reactor compiles without the feature `signals`.
trait TakeSignals: Send {
    /// Adds the signals that have arrived.
    fn take(&mut self, events: &mut Events);
}

/// An event loop over epoll, see the [module](self).
pub struct Reactor {
    epoll: OwnedFd,
    eventfd: Arc<OwnedFd>,
    signals: Option<Box<dyn TakeSignals>>,
    monotonic: Alarm,
    boot: Alarm,
    /// The monotonic deadline of the last wait.
    last_deadline: Option<u64>,
}

/// A timer for a deadline.
#[derive(Debug)]
struct Alarm {
    clock: Clock,
    /// Reported when it goes off.
    token: u64,
    /// Made when it is first set, unless it was before.
    timer: Option<Timer>,
    /// The time at which it goes off.
    at: Option<u64>,
}

impl Alarm {
    const fn new(clock: Clock, token: u64) -> Alarm {
        Alarm {
            clock,
            token,
            timer: None,
            at: None,
        }
    }

    /// Whether it is set to go off at this time.
    fn is_set_to(&self, at: u64) -> bool {
        self.at == Some(at)
    }

    /// Has it go off once at `at`, which is not 0. Fails if there is no descriptor to be had for it.
    fn set(&mut self, at: u64, epoll: &OwnedFd) -> io::Result<()> {
        self.make(epoll)?;
        if let Some(timer) = &self.timer {
            timer.set(at)?;
            self.at = Some(at);
        }
        Ok(())
    }

    /// Makes the timer, if there is none yet.
    fn make(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        if self.timer.is_none() {
            let timer = Timer::new(self.clock)?;
            epoll::add(epoll, &timer, EventData::new_u64(self.token), EventFlags::IN)?;
            self.timer = Some(timer);
        }
        Ok(())
    }

    /// Disarms the timer.
    fn disarm(&mut self) -> Result<(), ReactorError> {
        if let (Some(_), Some(timer)) = (self.at, &self.timer) {
            timer.set(0).map_err(ReactorError::Timer)?;
            self.at = None;
        }
        Ok(())
    }

    /// It went off.
    fn take(&mut self) {
        if let Some(timer) = &self.timer {
            let _ = rustix::io::read(timer, &mut [0u8; 8]);
        }
        self.at = None;
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor")
            .field("epoll", &self.epoll)
            .finish_non_exhaustive()
    }
}

impl AsFd for Reactor {
    /// Readable while a wait would report something at once, except for deadlines, so that another loop can watch this one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Reactor {
    /// A loop that watches nothing yet.
    ///
    /// # Errors
    /// If the system gives no descriptor for the loop.
    pub fn new() -> Result<Reactor, ReactorError> {
        let create = |what| {
            move |source: Errno| ReactorError::Create {
                what,
                source: source.into(),
            }
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(create("epoll descriptor"))?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(create("wake-up descriptor"))?;
        epoll::add(&epoll, &eventfd, EventData::new_u64(WAKER), EventFlags::IN)
            .map_err(create("wake-up watch"))?;
        // Made now and not at the first use, so that a program always has the same descriptors.
        let mut monotonic = Alarm::new(Clock::Monotonic, MONOTONIC_ALARM);
        monotonic.make(&epoll).map_err(ReactorError::Timer)?;
        Ok(Reactor {
            epoll,
            eventfd: Arc::new(eventfd),
            signals: None,
            monotonic,
            boot: Alarm::new(Clock::Boot, BOOT_ALARM),
            last_deadline: None,
        })
    }

    /// Starts watching a descriptor. Deregister it before it is closed.
    ///
    /// # Errors
    /// If the token is the loop's own, or the system cannot watch the descriptor.
    pub fn register(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), ReactorError> {
        if token.0 >= BOOT_ALARM {
            return Err(ReactorError::ReservedToken(token));
        }
        epoll::add(&self.epoll, fd, EventData::new_u64(token.0), interest.flags())
            .map_err(|source| ReactorError::Watch { token, source })
    }

    /// Changes the readiness to wait for on a watched descriptor.
    ///
    /// # Errors
    /// If the descriptor is not watched.
    pub fn reregister(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), ReactorError> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.0), interest.flags())
            .map_err(|source| ReactorError::Watch { token, source })
    }

    /// Stops watching a descriptor.
    ///
    /// # Errors
    /// If the descriptor is not watched.
    pub fn deregister(&self, fd: impl AsFd, token: Token) -> Result<(), ReactorError> {
        epoll::delete(&self.epoll, fd).map_err(|source| ReactorError::Watch { token, source })
    }

    /// A handle with which other threads wake this loop.
    pub fn waker(&self) -> Waker {
        Waker {
            eventfd: Arc::clone(&self.eventfd),
        }
    }

    /// Sleeps until something happens or one of the deadlines has passed, and reports in `events` what happened. When only a deadline has passed,
    /// there are no events.
    ///
    /// # Errors
    /// If the system refuses to set the timer or to wait.
    pub fn wait(&mut self, events: &mut Events, deadlines: impl Into<Deadlines>) -> Result<(), ReactorError> {
        events.clear();
        let Deadlines { monotonic, boot } = deadlines.into();
        let limits = [self.await_monotonic(monotonic)?, self.await_boot(boot)?];
        let timeout = limits.into_iter().flatten().min();
        events.deadline_passed = timeout == Some(0);
        let mut buffer = [const { MaybeUninit::uninit() }; BATCH];
        let batch = match epoll::wait(&self.epoll, &mut buffer, timeout.map(timespec).as_ref()) {
            Ok((batch, _)) => batch,
            // A signal that is not watched; the caller sees no events and looks at its deadlines.
            Err(Errno::INTR) => return Ok(()),
            Err(source) => return Err(ReactorError::Wait(source)),
        };
        if batch.is_empty() {
            events.deadline_passed = true;
        }
        for raw in batch {
            let (data, flags) = (raw.data, raw.flags);
            match data.u64() {
                WAKER => {
                    events.woken = true;
                    let _ = rustix::io::read(&*self.eventfd, &mut [0u8; 8]);
                }
                SIGNALS => {
                    if let Some(signals) = &mut self.signals {
                        signals.take(events);
                    }
                }
                MONOTONIC_ALARM => {
                    self.monotonic.take();
                    events.deadline_passed = true;
                }
                BOOT_ALARM => {
                    self.boot.take();
                    events.deadline_passed = true;
                }
                token => events.ready.push(Event {
                    token: Token(token),
                    readable: flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR),
                    writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
                    hung_up: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                }),
            }
        }
        Ok(())
    }

    /// Makes the next wait end at this monotonic time. Returns the longest duration of the wait, in nanoseconds, if no timer ends it.
    fn await_monotonic(&mut self, deadline: Option<u64>) -> Result<Option<u64>, ReactorError> {
        let Some(at) = deadline else {
            self.monotonic.disarm()?;
            return Ok(None);
        };
        if self.monotonic.is_set_to(at) {
            return Ok(None);
        }
        let left = at.saturating_sub(monotonic_now());
        // A deadline that is waited for again is worth a timer.
        if left != 0
            && self.last_deadline.replace(at) == Some(at)
            && self.monotonic.set(at, &self.epoll).is_ok()
        {
            return Ok(None);
        }
        self.monotonic.disarm()?;
        Ok(Some(left))
    }

    /// The same for a boot time.
    fn await_boot(&mut self, deadline: Option<u64>) -> Result<Option<u64>, ReactorError> {
        let Some(at) = deadline else {
            self.boot.disarm()?;
            return Ok(None);
        };
        if self.boot.is_set_to(at) {
            return Ok(None);
        }
        let left = at.saturating_sub(boot_now());
        // There may be no descriptor for the timer. In monotonic time the wait is as long, unless the machine sleeps.
        if left != 0 && self.boot.set(at, &self.epoll).is_ok() {
            return Ok(None);
        }
        Ok(Some(left))
    }
}

fn timespec(nanos: u64) -> Timespec {
    Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    }
}
