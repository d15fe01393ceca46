//! The `traced_probes` applet: this machine's data sources as a daemon.
//!
//! `ferretto-probes` has the data sources, and the runtime of `ferretto-client` connects them with the service. This module has the flags, the event
//! loop and the repair of tracefs at the start.

use std::error::Error;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use clap::{CommandFactory, Parser};
use ferretto_client::data_source::ConnectionId;
use ferretto_client::runtime::daemon::ServiceSocket;
use ferretto_client::runtime::{Event, ProducerProgram, Runtime};
use ferretto_ipc::reactor::{Events, Interest, Token};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;
use ferretto_ipc::{Address, Reactor, socket_names};
use ferretto_probes::ftrace::instances::TracefsPolicy;
use ferretto_probes::ftrace::restore::{JournalDir, hard_reset, replay};
use ferretto_probes::producer;
use ferretto_proto::messages::PriorityBoostConfig;

use crate::daemon::{self, Daemon, Startup};
use crate::log;
use crate::open_files;
use crate::priority::Boosts;

/// The only connection.
const SERVICE: ConnectionId = ConnectionId(0);

const SOCKET: Token = Token(0);
/// The kernel's buffers.
const WATERMARKS: Token = Token(1);

/// The data sources of this machine, for a tracing service: linux.frozen_ftrace, linux.ftrace, linux.inode_file_map,
/// linux.process_stats, linux.sys_stats, linux.sysfs_power, linux.system_info, linux.systemd_journald, perfetto.metatrace.
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
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub fn run(words: Vec<OsString>) -> u8 {
    daemon::run::<Args>(words)
}

impl Daemon for Args {
    const NAME: &'static str = "traced_probes";
    const NOTIFY: &'static str = "TRACED_PROBES_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        crate::starter::end_with_starter()?;
        // linux.ftrace has one for each CPU, and linux.sys_stats for each file that it polls.
        open_files::most_descriptors();
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
        // A writer that waits for the service does not see the loop's signals, so it checks this flag.
        let ending = Arc::new(AtomicBool::new(false));
        for signal in signals {
            signal_hook::flag::register(signal.number(), Arc::clone(&ending))?;
        }
        let journal_dir = journals();
        startup.started()?;
        serve(address, &mut reactor, &ending, journal_dir, startup)
    }
}

fn reset() -> Result<(), Box<dyn Error>> {
    // First restore the settings that a crashed daemon had found, wherever its journal is. This also removes the journal, so that a later start does
    // not overwrite settings that somebody else has made since.
    journals();
    let root = hard_reset()?;
    log::info(format_args!("reset ftrace at {}", root.display()));
    Ok(())
}

/// Records for the service, whenever the service is there, until a signal comes.
fn serve(
    address: Address,
    reactor: &mut Reactor,
    ending: &Arc<AtomicBool>,
    journal_dir: Option<JournalDir>,
    startup: &mut Startup,
) -> Result<(), Box<dyn Error>> {
    let program: Arc<dyn ProducerProgram> = Arc::new(ProbesDaemon {
        ending: Arc::clone(ending),
        boosts: Mutex::new(Boosts::of_this_thread()),
        thread: std::thread::current().id(),
    });
    let tracefs = match std::env::var_os(crate::starter::MOUNT_TRACEFS) {
        Some(_) => TracefsPolicy::MountIfMissing,
        None => TracefsPolicy::AsFound,
    };
    let mut runtime = Runtime::new(program.clone(), reactor.waker());
    runtime.add_connection(producer::connection(SERVICE, crate::VERSION));
    // With the runtime go the settings that sessions have changed in tracefs.
    let ftrace = producer::add_sources(&mut runtime, &program, journal_dir, tracefs);
    let mut service = ServiceSocket::new(SERVICE, address, SOCKET);
    if let Some(watermarks) = ftrace.watermarks() {
        reactor.register(watermarks, WATERMARKS, Interest::Readable)?;
    }
    let mut events = Events::new();
    loop {
        if events.ready().iter().any(|event| event.token == WATERMARKS) {
            ftrace.on_watermark();
        }
        let waiting = format!("waiting for the service at {}", service.address());
        service.turn(&mut runtime, reactor, &events, |runtime, event| match event {
            Event::Connected(_) => {
                log::info(format_args!("connected to the service"));
                // The answer comes after the data sources were registered.
                let _ = runtime.sync(SERVICE);
            }
            Event::Synced(..) => startup.ready("the service knows all data sources"),
            Event::CannotConnect(_, reason) => log::info(format_args!("{waiting}: {reason}")),
            Event::Disconnected { news, .. } => {
                let reason = news.as_deref().unwrap_or("as before");
                log::warning(format_args!("disconnected from the service: {reason}"));
            }
            // The probes have no startup sessions.
            Event::StartupEnded(..) => {}
        });
        reactor.wait(&mut events, runtime.deadlines())?;
        if !events.signals().is_empty() {
            return Ok(());
        }
    }
}

/// Undoes the changes that crashed predecessors left in tracefs, and returns the folder where this daemon notes its own changes.
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

struct ProbesDaemon {
    /// Set by a signal's handler.
    ending: Arc<AtomicBool>,
    boosts: Mutex<Boosts>,
    /// The one that gives the runtime its turns. Data sources have others.
    thread: ThreadId,
}

impl ProducerProgram for ProbesDaemon {
    fn info(&self, line: &str) {
        log::info(format_args!("{line}"));
    }

    fn warning(&self, line: &str) {
        log::warning(format_args!("{line}"));
    }

    fn is_own_thread(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn raise_priority(&self, instance: u32, config: &PriorityBoostConfig) -> Result<(), String> {
        let mut boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        boosts.add(instance.into(), config)
    }

    fn join_instance(&self, instance: u32) {
        let boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = boosts.apply_to_this_thread(instance.into()) {
            log::warning(format_args!("priority_boost: {error}"));
        }
    }

    fn lower_priority(&self, instance: u32) {
        let mut boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        boosts.remove(instance.into());
    }
}
