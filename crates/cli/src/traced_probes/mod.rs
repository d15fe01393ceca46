//! The `traced_probes` applet: this machine's data sources as a daemon.
//!
//! Connects to the service, waits for one if there is none, and connects again when it goes away. What the data sources
//! do is in `ferretto-probes`; here are flags, the event loop and the care for tracefs at start and end.

use std::error::Error;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser};
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Token, boot_now};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;
use ferretto_ipc::{Address, Reactor, socket_names};
use ferretto_probes::ftrace::restore::{JournalDir, hard_reset, replay};
use ferretto_probes::producer::{Backoff, Ended, Log, Priority, Probes, Progress, Setup, TracefsPolicy};
use ferretto_proto::messages::PriorityBoostConfig;

use crate::daemon::{self, Daemon, Startup};
use crate::log;
use crate::priority::Boosts;

const SOCKET: Token = Token(0);
/// Tokens from here on are kernel buffers.
const FIRST_WATERMARK: u64 = 1;

/// The data sources of this machine, for a tracing service: linux.ftrace, linux.process_stats, linux.sys_stats, linux.system_info.
///
/// Waits for the service if there is none, and for its successor if it goes away. Ends in good order on SIGINT, SIGTERM and SIGHUP: what
/// it has changed in ftrace is put back.
#[derive(Debug, Parser)]
#[command(name = "traced_probes", version = crate::VERSION, disable_version_flag = true, args_override_self = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    #[command(flatten)]
    common: daemon::Flags,
    /// Reset ftrace to an idle state and exit, whatever its state was; for a machine where a tracer has crashed
    #[arg(long)]
    cleanup_after_crash: bool,
    /// Reset ftrace to an idle state before anything else
    #[arg(long)]
    reset_ftrace: bool,
}

fn environment() -> String {
    daemon::environment(&[
        (
            PRODUCER_SOCK_NAME,
            "Where the service listens: /a/path, @abstract-name, host:port or vsock://cid:port",
        ),
        (
            Args::NOTIFY,
            "Number of a descriptor that gets the byte \"1\" once the service knows all data sources",
        ),
    ])
}

/// The definition of all flags.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    daemon::run::<Args>(words)
}

impl Daemon for Args {
    const NAME: &'static str = "traced_probes";
    const NOTIFY: &'static str = "TRACED_PROBES_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, mut startup: Startup) -> Result<(), Box<dyn Error>> {
        crate::autostart::end_with_starter()?;
        if self.cleanup_after_crash {
            return reset();
        }
        if self.reset_ftrace
            && let Err(error) = reset()
        {
            // As upstream: other data sources need no ftrace.
            log::error(format_args!("cannot reset ftrace: {error}"));
        }
        startup.go_into_background(&self.common)?;
        // In the background, this process is about to change its folder.
        let address = socket_names::producer_address()?.absolute();
        let mut reactor = Reactor::new()?;
        let signals = daemon::ending_signals();
        reactor.watch_signals(&signals)?;
        // The same for whoever is kept from the loop, waiting for the service.
        let ending = Arc::new(AtomicBool::new(false));
        for signal in signals {
            signal_hook::flag::register(signal.number(), Arc::clone(&ending))?;
        }
        let journal_dir = journals();
        startup.started()?;
        serve_connections(
            &address,
            &mut reactor,
            &ending,
            journal_dir.as_ref(),
            &mut startup,
        )
    }
}

fn reset() -> Result<(), Box<dyn Error>> {
    // First what a daemon that crashed had found, wherever that was; and its journal goes, lest a later start puts back
    // what is then somebody else's.
    journals();
    let root = hard_reset()?;
    log::info(format_args!("reset ftrace at {}", root.display()));
    Ok(())
}

/// Serves one connection after another, until a signal comes.
fn serve_connections(
    address: &Address,
    reactor: &mut Reactor,
    ending: &Arc<AtomicBool>,
    journal_dir: Option<&JournalDir>,
    startup: &mut Startup,
) -> Result<(), Box<dyn Error>> {
    let mut backoff = Backoff::default();
    loop {
        let setup = Setup {
            sdk_version: crate::VERSION,
            journal_dir: journal_dir.cloned(),
            tracefs: match std::env::var_os(crate::autostart::MOUNT_TRACEFS) {
                Some(_) => TracefsPolicy::MountIfMissing,
                None => TracefsPolicy::AsFound,
            },
            log: Box::new(DaemonLog),
            priority: Box::new(Boosts::of_this_thread()),
            ending: Arc::clone(ending),
        };
        match Probes::connect(address, setup) {
            Ok(probes) => match serve_connection(reactor, probes, startup)? {
                Over::Signal => return Ok(()),
                Over::Connection(reason) => {
                    log::warning(format_args!("disconnected from the service: {reason}"));
                    backoff = Backoff::default();
                }
            },
            Err(error) => log::info(format_args!("waiting for the service at {address}: {error}")),
        }
        let mut events = Events::new();
        reactor.wait(&mut events, Some(Deadline::after(backoff.next_delay())))?;
        if !events.signals().is_empty() {
            return Ok(());
        }
    }
}

/// Undoes what predecessors that crashed left in tracefs, and says where this one notes its own changes.
fn journals() -> Option<JournalDir> {
    let dir = match JournalDir::system() {
        Ok(dir) => dir,
        Err(error) => {
            log::warning(format_args!(
                "{error}; changes to ftrace will not be undone after a crash"
            ));
            return None;
        }
    };
    match replay(&dir) {
        Ok(replayed) => {
            for entry in replayed {
                let place = entry.tracefs.display();
                match &entry.somebody_else {
                    None => log::info(format_args!(
                        "put back what a crashed daemon had changed in {place}"
                    )),
                    Some(sign) => log::warning(format_args!(
                        "somebody else traces in {place} by now ({sign}): what a crashed daemon had changed there stays as it is"
                    )),
                }
                for error in entry.errors {
                    log::warning(format_args!("{error}"));
                }
            }
        }
        Err(error) => log::warning(format_args!("{error}")),
    }
    Some(dir)
}

impl Priority for Boosts {
    fn raise(&mut self, instance: u64, config: &PriorityBoostConfig) -> Result<(), String> {
        self.add(instance, config)
    }

    fn lower(&mut self, instance: u64) {
        self.remove(instance);
    }
}

struct DaemonLog;

impl Log for DaemonLog {
    fn info(&self, line: &str) {
        log::info(format_args!("{line}"));
    }

    fn warning(&self, line: &str) {
        log::warning(format_args!("{line}"));
    }
}

enum Over {
    Signal,
    Connection(Ended),
}

/// Descriptors in the reactor's watch, besides the socket. Copies, since the probes may close theirs at any call.
#[derive(Default)]
struct Watched(Vec<OwnedFd>);

impl Watched {
    /// Watches what the probes have now, if that has changed in number.
    fn update(&mut self, reactor: &Reactor, probes: &Probes) -> Result<(), ReactorError> {
        let wanted = probes.watermark_fds().count();
        if wanted == self.0.len() {
            return Ok(());
        }
        self.clear(reactor)?;
        for fd in probes.watermark_fds() {
            // Without a copy there is no early drain; the periodic one goes on.
            let Ok(fd) = fd.try_clone_to_owned() else {
                return Ok(());
            };
            reactor.register(
                &fd,
                Token(FIRST_WATERMARK + self.0.len() as u64),
                Interest::Readable,
            )?;
            self.0.push(fd);
        }
        Ok(())
    }

    fn clear(&mut self, reactor: &Reactor) -> Result<(), ReactorError> {
        for (fd, token) in self.0.drain(..).zip(FIRST_WATERMARK..) {
            reactor.deregister(&fd, Token(token))?;
        }
        Ok(())
    }
}

/// Serves one connection until it ends.
fn serve_connection(
    reactor: &mut Reactor,
    mut probes: Probes,
    startup: &mut Startup,
) -> Result<Over, Box<dyn Error>> {
    let socket = probes.socket()?;
    reactor.register(&socket, SOCKET, probes.interest())?;
    let mut watched = Watched::default();
    let over = serve_until_over(reactor, &mut probes, &socket, &mut watched, startup);
    watched.clear(reactor)?;
    reactor.deregister(&socket, SOCKET)?;
    // With the probes go the settings that they have changed in tracefs.
    drop(probes);
    over
}

fn serve_until_over(
    reactor: &mut Reactor,
    probes: &mut Probes,
    socket: &OwnedFd,
    watched: &mut Watched,
    startup: &mut Startup,
) -> Result<Over, Box<dyn Error>> {
    let mut events = Events::new();
    let mut interest = probes.interest();
    loop {
        reactor.wait(&mut events, probes.next_deadline().map(Deadline::Boot))?;
        if !events.signals().is_empty() {
            return Ok(Over::Signal);
        }
        let now = boot_now();
        for event in events.ready() {
            if event.token == SOCKET {
                match probes.on_socket(now) {
                    Ok(Progress::Served) => {}
                    Ok(Progress::Registered) => startup.ready("the service knows all data sources"),
                    Err(ended) => return Ok(Over::Connection(ended)),
                }
            } else {
                probes.on_watermark(now);
            }
        }
        probes.on_deadline(now);
        watched.update(reactor, probes)?;
        let wanted = probes.interest();
        if wanted != interest {
            interest = wanted;
            reactor.reregister(socket.as_fd(), SOCKET, interest)?;
        }
    }
}
