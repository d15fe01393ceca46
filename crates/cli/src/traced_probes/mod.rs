//! The `traced_probes` applet: this machine's data sources as a daemon.
//!
//! Connects to the service, waits for one if there is none, and connects again when it goes away. What the data sources
//! do is in `ferretto-probes`; here are flags, the event loop and the care for tracefs at start and end.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser};
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Signal, Token, boot_now};
use ferretto_ipc::{Reactor, socket_names};
use ferretto_probes::ftrace::restore::{JournalDir, hard_reset, replay};
use ferretto_probes::producer::{Backoff, Ended, Log, Probes, Progress, Setup, TracefsPolicy};
use signal_hook::consts::signal::{SIGINT, SIGTERM};

use crate::{daemon, log};

const SOCKET: Token = Token(0);
/// Tokens from here on are kernel buffers.
const FIRST_WATERMARK: u64 = 1;

/// The data sources of this machine: linux.ftrace, linux.process_stats, linux.sys_stats, linux.system_info.
///
/// Connects to the service on the socket that PERFETTO_PRODUCER_SOCK_NAME names, else on upstream's usual one.
#[derive(Debug, Parser)]
#[command(name = "traced_probes", disable_version_flag = true)]
struct Args {
    /// Go into the background and print the process id of the daemon.
    #[arg(long)]
    background: bool,
    /// Reset ftrace to an idle state and exit, whatever its state was; for a machine where a tracer has crashed.
    #[arg(long)]
    cleanup_after_crash: bool,
    /// Reset ftrace to an idle state before anything else.
    #[arg(long)]
    reset_ftrace: bool,
    /// Print the version and exit.
    #[arg(long)]
    version: bool,
}

/// The definition of all flags.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    daemon::run("traced_probes", words, |args: &Args| args.version, serve)
}

fn serve(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    crate::autostart::end_with_starter()?;
    if args.cleanup_after_crash || args.reset_ftrace {
        let root = hard_reset()?;
        log::info(format_args!("reset ftrace at {}", root.display()));
        if args.cleanup_after_crash {
            return Ok(());
        }
    }
    let address = socket_names::producer_address()?;
    if args.background {
        crate::background::become_daemon()?;
    }
    let journal_dir = journals();
    let mut reactor = Reactor::new()?;
    reactor.watch_signals(&[Signal::Interrupt, Signal::Terminate])?;
    // The same for whoever is kept from the loop, waiting for the service.
    let ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ending))?;
    }
    let mut backoff = Backoff::default();
    loop {
        let setup = Setup {
            sdk_version: crate::VERSION,
            journal_dir: journal_dir.clone(),
            tracefs: match std::env::var_os(crate::autostart::MOUNT_TRACEFS) {
                Some(_) => TracefsPolicy::MountIfMissing,
                None => TracefsPolicy::AsFound,
            },
            log: Box::new(DaemonLog),
            ending: Arc::clone(&ending),
        };
        match Probes::connect(&address, setup) {
            Ok(probes) => match serve_connection(&mut reactor, probes)? {
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

/// Undoes what a predecessor that crashed left in tracefs, and says where this one notes its own changes.
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
                log::info(format_args!(
                    "put back what a crashed daemon had changed in {}",
                    entry.tracefs.display()
                ));
                for error in entry.errors {
                    log::warning(format_args!("{error}"));
                }
            }
        }
        Err(error) => log::warning(format_args!("{error}")),
    }
    Some(dir)
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
fn serve_connection(reactor: &mut Reactor, mut probes: Probes) -> Result<Over, Box<dyn std::error::Error>> {
    let socket = probes.socket()?;
    reactor.register(&socket, SOCKET, probes.interest())?;
    let mut watched = Watched::default();
    let over = serve_until_over(reactor, &mut probes, &socket, &mut watched);
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
) -> Result<Over, Box<dyn std::error::Error>> {
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
                    Ok(Progress::Registered) => crate::inherited::notify("TRACED_PROBES_NOTIFY_FD")?,
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
