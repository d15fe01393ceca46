//! The `traced_perf` applet: CPU profiles as a daemon.
//!
//! `ferretto-profile` has the data source, and the runtime of `ferretto-client` connects it with the service. This module has the flags.

mod policy;

use std::error::Error;
use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use ferretto_client::runtime::MemoryOptions;
use ferretto_profile::producer;

use crate::daemon::{self, Daemon, Startup};
use crate::producer_daemon::{self, Recorder};
use crate::sandbox::{self, Capabilities};

/// CPU profiles of this machine, for a tracing service: the data source linux.perf.
///
/// Waits for the service if there is none, and for its successor if it goes away. Ends in good order on SIGINT, SIGTERM and SIGHUP.
#[derive(Debug, Parser)]
#[command(name = "traced_perf", version = crate::VERSION, disable_version_flag = true, args_override_self = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    #[command(flatten)]
    common: daemon::Flags,
}

fn environment() -> String {
    producer_daemon::environment(&[], Args::NOTIFY, "the data source")
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
    const NAME: &'static str = "traced_perf";
    const NOTIFY: &'static str = "TRACED_PERF_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        let mut recorder = Recorder::new(&self.common, startup)?;
        startup.started()?;
        if sandbox::held().contains(Capabilities::SYS_ADMIN) {
            producer_daemon::reserve_kernel_symbols();
        }
        self.common.confine(policy::policy(&recorder.address));
        let mut runtime = recorder.runtime(producer::PRODUCER_NAME, MemoryOptions::default());
        producer::add_sources(&mut runtime, &recorder.program);
        recorder.serve(&mut runtime, startup, |_| {})
    }
}
