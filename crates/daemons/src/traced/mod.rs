//! The `traced` applet: the tracing service as a daemon.
//!
//! Flags, socket permissions and the notification descriptor are upstream's. `shell` and the crate `ferretto-host` do the work.

mod descriptors;
mod freed_memory;
pub(crate) mod listeners;
mod policy;
pub(crate) mod program;
mod shell;
pub mod tsc;

use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use ferretto_ipc::Address;
use ferretto_ipc::socket_names::{CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME};
use signal_hook::consts::SIGXFSZ;

use crate::daemon::{self, Daemon, Startup};
use crate::log;
use listeners::{Handed, Permissions, Relays};
use shell::Shell;

/// The tracing service: buffers and sessions, between producers and consumers.
///
/// Ends in good order on SIGINT, SIGTERM and SIGHUP: the sockets are removed, sessions are flushed and stopped, consumers read what their
/// buffers hold, and files are completed. That takes up to 15 seconds, and 8 more for files; a second signal ends the daemon at once, but for
/// the files.
#[derive(Debug, Parser)]
#[command(name = "traced", version = crate::VERSION, disable_version_flag = true, args_override_self = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    #[command(flatten)]
    common: daemon::Flags,
    /// Groups and modes of the sockets, for example traced-producer:0660:traced-consumer:0660
    ///
    /// Nobody can connect before the sockets have them. A group is a name or a number, a mode four octal digits. Without this,
    /// sockets have the daemon's group, and the umask decides about the mode. Root's sockets on a machine with the group ferretto are for everybody's
    /// data, and for that group's recordings.
    #[arg(long, value_name = "GROUP:MODE:GROUP:MODE", allow_hyphen_values = true)]
    set_socket_permissions: Option<Permissions>,
    /// Let relays of other machines connect to every producer socket
    ///
    /// A relay, traced_relay, forwards the producers of its machine and compares the machines' clocks, so that one recording spans
    /// several machines: with trace_all_machines or machine_name_filter in its config. Nobody vouches for what comes over a network:
    /// use addresses that only those machines can reach.
    #[arg(long)]
    enable_relay_endpoint: bool,
    /// Let relays of other machines connect to this producer socket
    ///
    /// One of those in PERFETTO_PRODUCER_SOCK_NAME. May be given several times.
    #[arg(long, value_name = "SOCKET", allow_hyphen_values = true)]
    enable_relay_endpoint_on: Vec<Address>,
}

fn environment() -> String {
    daemon::environment(&[
        (
            PRODUCER_SOCK_NAME,
            "Where to listen for producers: /a/path, @abstract-name, host:port or vsock://cid:port,\n          \
             or several of them, separated by commas",
        ),
        (
            CONSUMER_SOCK_NAME,
            "Where to listen for consumers. Without these, sockets are in /run/perfetto if there is\n          \
             such a folder, else in /tmp",
        ),
        (
            Args::NOTIFY,
            "Number of a descriptor that gets the byte \"1\" once the sockets listen",
        ),
        (
            "LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES",
            "Sockets that systemd hands over, named \"producer\" and \"consumer\"",
        ),
        (
            "FERRETTO_EXTENSION_DESCRIPTORS",
            "Files with descriptors of extensions, which go into every trace",
        ),
        (
            policy::OUTPUT_FOLDERS,
            "Folders, as in PATH, in which configs may have trace files made (output_path), besides those for\n          \
             temporary files. Without it, the folder in which the daemon is started, unless that is /",
        ),
    ])
}

impl Daemon for Args {
    const NAME: &'static str = "traced";
    const NOTIFY: &'static str = "TRACED_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        let relays = Relays {
            everywhere: self.enable_relay_endpoint,
            at: self.enable_relay_endpoint_on.clone(),
        };
        let handed = Handed::take(&relays)?;
        startup.go_into_background(&self.common)?;
        let listeners = listeners::listen(handed, self.set_socket_permissions.as_ref(), &relays)?;
        // A trace file that may not grow any more (RLIMIT_FSIZE) is an error of a write then, not the end of the daemon.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        let shell = Shell::new(listeners.sockets)?;
        let status = format!("listening on {}", listeners.names.join(" "));
        // Before the daemon leaves the folder in which it was started.
        let policy = policy::policy(listeners.folders);
        startup.started()?;
        self.common.confine(policy);
        log::info(format_args!("traced is {status}"));
        startup.ready(&status);
        Ok(shell.run()?)
    }
}

/// The definition of all flags.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub fn run(words: Vec<OsString>) -> u8 {
    daemon::run::<Args>(words)
}
