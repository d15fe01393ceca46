//! The `traced_probes` applet: this machine's data sources as a daemon.
//!
//! `ferretto-probes` has the data sources, and the runtime of `ferretto-client` connects them with the service. This module has the flags, the event
//! loop and the repair of tracefs at the start.

use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use ferretto_client::runtime::{ProducerProgram, Runtime};
use ferretto_ipc::reactor::{Interest, Token};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;
use ferretto_ipc::{Address, Reactor, socket_names};
use ferretto_probes::ftrace::instances::TracefsPolicy;
use ferretto_probes::ftrace::restore::{JournalDir, hard_reset, replay};
use ferretto_probes::producer;

use crate::daemon::{self, Daemon, Startup};
use crate::log;
use crate::open_files;
use crate::producer_daemon::{self, ProducerDaemon, SERVICE};

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
        let program: Arc<dyn ProducerProgram> = ProducerDaemon::new(&mut reactor)?;
        let journal_dir = journals();
        startup.started()?;
        serve(address, &mut reactor, &program, journal_dir, startup)
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
    program: &Arc<dyn ProducerProgram>,
    journal_dir: Option<JournalDir>,
    startup: &mut Startup,
) -> Result<(), Box<dyn Error>> {
    let tracefs = match std::env::var_os(crate::starter::MOUNT_TRACEFS) {
        Some(_) => TracefsPolicy::MountIfMissing,
        None => TracefsPolicy::AsFound,
    };
    let mut runtime = Runtime::new(program.clone(), reactor.waker());
    runtime.add_connection(producer::connection(SERVICE, crate::VERSION));
    // With the runtime go the settings that sessions have changed in tracefs.
    let ftrace = producer::add_sources(&mut runtime, program, journal_dir, tracefs);
    if let Some(watermarks) = ftrace.watermarks() {
        reactor.register(watermarks, WATERMARKS, Interest::Readable)?;
    }
    producer_daemon::serve(address, reactor, &mut runtime, startup, |events| {
        if events.ready().iter().any(|event| event.token == WATERMARKS) {
            ftrace.on_watermark();
        }
    })
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
