//! The `traced_perf` applet: CPU profiles as a daemon.
//!
//! `ferretto-profile` has the data source, and the runtime of `ferretto-client` connects it with the service. This module has the flags.

use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use ferretto_client::runtime::{ProducerProgram, Runtime};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;
use ferretto_ipc::{Reactor, socket_names};
use ferretto_profile::producer;

use crate::daemon::{self, Daemon, Startup};
use crate::open_files;
use crate::producer_daemon::{self, ProducerDaemon, SERVICE};

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
    daemon::environment(&[
        (
            PRODUCER_SOCK_NAME,
            "Where the service listens: /a/path, @abstract-name, host:port or vsock://cid:port",
        ),
        (
            Args::NOTIFY,
            "Number of a descriptor that gets the byte \"1\" once the service knows the data source",
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
    const NAME: &'static str = "traced_perf";
    const NOTIFY: &'static str = "TRACED_PERF_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        crate::starter::end_with_starter()?;
        // Each event has one for each CPU, and each process that is sampled one.
        open_files::most_descriptors();
        startup.go_into_background(&self.common)?;
        // In the background, this process is about to change its folder.
        let address = socket_names::producer_address()?.absolute();
        let mut reactor = Reactor::new()?;
        let program: Arc<dyn ProducerProgram> = ProducerDaemon::new(&mut reactor)?;
        startup.started()?;
        let mut runtime = Runtime::new(program.clone(), reactor.waker());
        runtime.add_connection(producer::connection(SERVICE, crate::VERSION));
        producer::add_sources(&mut runtime, &program);
        producer_daemon::serve(address, &mut reactor, &mut runtime, startup, |_| {})
    }
}
