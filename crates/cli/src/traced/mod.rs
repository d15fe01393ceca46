//! The `traced` applet: the tracing service as a daemon.
//!
//! Flags, socket permissions and the notification descriptor are upstream's; what the daemon does is in [`shell`].

mod admission;
mod bounds;
mod clocks;
mod connection;
mod consumer_port;
mod descriptors;
mod files;
mod freed_memory;
mod priority;
mod producer_port;
mod repair;
mod shell;
mod system;
mod trace_file;
mod tsc;

use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use ferretto_ipc::transport::SocketPermissions;
use ferretto_ipc::{Address, Listener, socket_names};
use signal_hook::consts::SIGXFSZ;

use crate::daemon;
use shell::{Port, Shell};

/// The tracing service: buffers and sessions, between producers and consumers.
///
/// Listens on the sockets that PERFETTO_PRODUCER_SOCK_NAME (a comma-separated list) and PERFETTO_CONSUMER_SOCK_NAME
/// name, else on upstream's usual ones. FERRETTO_EXTENSION_DESCRIPTORS lists files with descriptors of extensions, which
/// go into every trace.
#[derive(Debug, Parser)]
#[command(name = "traced", disable_version_flag = true)]
struct Args {
    /// Go into the background and print the process id of the daemon.
    #[arg(long)]
    background: bool,
    /// Print the version and exit.
    #[arg(long)]
    version: bool,
    /// Group and mode of the sockets: <producer group>:<mode>:<consumer group>:<mode>, modes in octal.
    #[arg(long, value_name = "PERMISSIONS", value_parser = parse_permissions)]
    set_socket_permissions: Option<(SocketPermissions, SocketPermissions)>,
}

fn parse_permissions(text: &str) -> Result<(SocketPermissions, SocketPermissions), String> {
    let parts: Vec<&str> = text.split(':').collect();
    let &[producer_group, producer_mode, consumer_group, consumer_mode] = parts.as_slice() else {
        return Err("expected four parts, for example traced-producer:0660:traced-consumer:0660".into());
    };
    let parse = |group: &str, mode: &str| {
        format!("{group}:{mode}")
            .parse::<SocketPermissions>()
            .map_err(|error| error.to_string())
    };
    Ok((
        parse(producer_group, producer_mode)?,
        parse(consumer_group, consumer_mode)?,
    ))
}

/// The definition of all flags.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    daemon::run("traced", words, |args: &Args| args.version, serve)
}

fn serve(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    crate::autostart::end_with_starter()?;
    let producers = socket_names::producer_addresses()?;
    let consumers = socket_names::consumer_address()?;
    let mut listeners = Vec::new();
    for address in &producers {
        listeners.push((Listener::bind(address)?, Port::Producer));
    }
    listeners.push((Listener::bind(&consumers)?, Port::Consumer));
    if let Some((for_producers, for_consumers)) = &args.set_socket_permissions {
        for path in producers.iter().filter_map(Address::path) {
            for_producers.apply(path)?;
        }
        if let Some(path) = consumers.path() {
            for_consumers.apply(path)?;
        }
    }
    if args.background {
        crate::background::become_daemon()?;
    }
    // A trace file that may not grow any more (RLIMIT_FSIZE) is an error of a write then, not the end of the daemon.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let shell = Shell::new(listeners)?;
    crate::inherited::notify("TRACED_NOTIFY_FD")?;
    let names: Vec<String> = producers
        .iter()
        .chain([&consumers])
        .map(ToString::to_string)
        .collect();
    crate::log::info(format_args!("traced is listening on {}", names.join(" ")));
    Ok(shell.run()?)
}
