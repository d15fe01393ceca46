//! The `traced_probes` applet: this machine's data sources as a daemon.
//!
//! `ferretto-probes` has the data sources, and the runtime of `ferretto-client` connects them with the service. This module has the flags, the event
//! loop and the repair of tracefs at the start.

mod policy;

use std::error::Error;
use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use ferretto_ipc::reactor::{Interest, Token};
use ferretto_probes::ftrace::instances::TracefsPolicy;
use ferretto_probes::ftrace::restore::{JournalDir, hard_reset, replay};
use ferretto_probes::ftrace::watch::writers;
use ferretto_probes::producer;

use crate::daemon::{self, Daemon, Startup};
use crate::log;
use crate::producer_daemon::{self, Recorder};
use crate::sandbox::{self, Capabilities};

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
    producer_daemon::environment(&[], Args::NOTIFY, "all data sources")
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
        if self.cleanup_after_crash {
            return reset();
        }
        if self.reset_ftrace
            && let Err(error) = reset()
        {
            // As upstream: other data sources need no ftrace.
            log::error(format_args!("cannot reset ftrace: {error}"));
        }
        let recorder = Recorder::new(&self.common, startup)?;
        let journal_dir = journals();
        let tracefs = match std::env::var_os(crate::starter::MOUNT_TRACEFS) {
            Some(_) => TracefsPolicy::MountIfMissing,
            None => TracefsPolicy::AsFound,
        };
        startup.started()?;
        // Others learn who writes, and see the kernel's functions everywhere, only as long as they have this capability.
        if sandbox::held().contains(Capabilities::SYS_ADMIN) {
            writers::reserve();
            producer_daemon::reserve_kernel_symbols();
        }
        self.common.confine(policy::policy(&recorder.address, tracefs));
        record(recorder, journal_dir, tracefs, startup)
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
fn record(
    mut recorder: Recorder,
    journal_dir: Option<JournalDir>,
    tracefs: TracefsPolicy,
    startup: &mut Startup,
) -> Result<(), Box<dyn Error>> {
    // Its data sources restore the settings that sessions have changed in tracefs when it is dropped.
    let mut runtime = recorder.runtime(producer::PRODUCER_NAME, producer::MEMORY);
    let ftrace = producer::add_sources(&mut runtime, &recorder.program, journal_dir, tracefs);
    if let Some(watermarks) = ftrace.watermarks() {
        recorder
            .reactor
            .register(watermarks, WATERMARKS, Interest::Readable)?;
    }
    recorder.serve(&mut runtime, startup, |events| {
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
                        "put back the changes of a crashed daemon in {place}"
                    )),
                    Some(sign) => log::warning(format_args!(
                        "somebody else traces in {place} by now ({sign}): the changes of a crashed daemon there stay as they are"
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
