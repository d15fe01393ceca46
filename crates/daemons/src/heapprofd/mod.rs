//! The `heapprofd` applet: heap profiles as a daemon.
//!
//! `ferretto-heap` has the data source and the socket for programs that carry the client, and the runtime of `ferretto-client` connects them with the
//! service. This module has the flags.

mod policy;

use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use ferretto_client::runtime::MemoryOptions;
use ferretto_heap::listener::{self, ClientSocket};
use ferretto_heap::producer;
use ferretto_heap::sessions::Sessions;
use ferretto_heap_client::handshake::HEAP_SOCK_NAME;
use ferretto_ipc::transport::SocketPermissions;

use crate::daemon::{self, Daemon, Startup};
use crate::producer_daemon::{self, Recorder};
use crate::socket_groups::{self, Users};

/// Heap profiles of programs on this machine, for a tracing service: the data source android.heapprofd.
///
/// Programs that carry the client connect when they start, and are profiled if a recording asks for it. Waits for the service if there is none, and for its
/// successor if it goes away. Ends in good order on SIGINT, SIGTERM and SIGHUP.
#[derive(Debug, Parser)]
#[command(name = "heapprofd", version = crate::VERSION, disable_version_flag = true, args_override_self = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    /// Gives the socket for programs this group and mode, such as ferretto:0660
    ///
    /// Otherwise the umask decides; but root's socket is for everybody if the machine has the group ferretto.
    #[arg(long, value_name = "GROUP:MODE")]
    set_socket_permissions: Option<SocketPermissions>,

    #[command(flatten)]
    common: daemon::Flags,
}

fn environment() -> String {
    let clients = (
        HEAP_SOCK_NAME,
        "Where this program listens for programs to profile: /a/path or @abstract-name",
    );
    producer_daemon::environment(&[clients], Args::NOTIFY, "the data source")
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
    const NAME: &'static str = "heapprofd";
    const NOTIFY: &'static str = "HEAPPROFD_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        // Before this process goes into the background, so that its starter hears of a name that is taken.
        let heap_address = listener::address()?.absolute();
        let permissions = self
            .set_socket_permissions
            .clone()
            .or_else(|| socket_groups::permissions(&heap_address, Users::Everybody));
        let socket = ClientSocket::bind(&heap_address, permissions.as_ref())?;
        let mut recorder = Recorder::new(&self.common, startup)?;
        startup.started()?;
        self.common.confine(policy::policy(&recorder.address));
        let sessions = Arc::new(Sessions::default());
        let clients = socket.serve(recorder.program.clone(), sessions.clone())?;
        let mut runtime = recorder.runtime(producer::PRODUCER_NAME, MemoryOptions::default());
        producer::add_sources(&mut runtime, &recorder.program, &sessions);
        let served = recorder.serve(&mut runtime, startup, |_| {});
        clients.close();
        served
    }
}
