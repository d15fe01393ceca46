//! The `traced_relay` applet: takes the producers of this machine to the tracing service of another one.
//!
//! On a machine whose producers are recorded elsewhere, the relay listens where `traced` would. `relay` is its event loop, `forward` carries the bytes
//! of producers, `clocks` describes the machine and compares clocks, and `destination` finds the service. This module has flags and environment.

mod clocks;
mod forward;
mod policy;
mod relay;

use std::error::Error;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

use clap::{CommandFactory, Parser};
use ferretto_host::Port;
use ferretto_ipc::frame::MAX_IDENTITY_TEXT;
use ferretto_ipc::socket_names::{self, PRODUCER_SOCK_NAME, RELAY_SOCK_NAME};
use ferretto_ipc::transport::SocketPermissions;
use ferretto_ipc::{Address, Listener, Reactor};
use ferretto_service::MachineId;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::daemon::{self, Daemon, Startup};
use crate::destination::Destination;
use crate::socket_groups::{self, Users};
use crate::traced::listeners::sockets_of_systemd;
use crate::traced::program::local_time_offset;
use crate::{inherited, log};
use relay::{Relay, ThisMachine};

/// The socket of Android's init, whose variable upstream heeds everywhere.
const OF_INIT: &str = "ANDROID_SOCKET_traced_producer";
/// The name of this machine, by which a config may pick it.
const MACHINE_NAME: &str = "PERFETTO_MACHINE_NAME";

/// Takes the producers of this machine to the tracing service of another one.
///
/// Listens where the producers look for a service, so no traced can run beside it. The service, traced --enable-relay-endpoint, records them with
/// its own, and knows the clocks of both machines. Waits for the service if it is not there, and for its successor if it goes away. On SIGINT, SIGTERM and
/// SIGHUP it takes to the service what producers have sent, for at most 5 seconds; a second signal ends it at once.
#[derive(Debug, Parser)]
#[command(name = "traced_relay", version = crate::VERSION, disable_version_flag = true, args_override_self = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    #[command(flatten)]
    common: daemon::Flags,
    /// Group and mode of the socket for producers, for example traced-producer:0660
    ///
    /// A group is a name or a number, a mode four octal digits. Nobody can connect before the socket has them. Without this, the umask decides; but
    /// root's socket is for everybody if the machine has the group ferretto.
    #[arg(long, value_name = "GROUP:MODE", allow_hyphen_values = true)]
    set_socket_permissions: Option<SocketPermissions>,
    /// The identity of this machine, instead of the kernel's boot id
    ///
    /// Any text that no other machine has. For machines with the same boot id: copies of a virtual machine that was running.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = machine_id)]
    machine_id: Option<String>,
}

fn machine_id(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("it is empty".to_owned()),
        length if length > MAX_IDENTITY_TEXT => Err(format!(
            "it has {length} bytes, the service takes at most {MAX_IDENTITY_TEXT}"
        )),
        _ => Ok(text.to_owned()),
    }
}

fn environment() -> String {
    daemon::environment(&[
        (
            RELAY_SOCK_NAME,
            "Where the service listens, must be set: host:port, vsock://cid:port, or the /a/path or\n          \
             @abstract-name of a tunnel's end",
        ),
        (
            PRODUCER_SOCK_NAME,
            "Where to listen for producers: /a/path, @abstract-name, host:port or vsock://cid:port,\n          \
             or several of them, separated by commas",
        ),
        (
            MACHINE_NAME,
            "The name of this machine for machine_name_filter, instead of that of its system, Linux",
        ),
        (
            Args::NOTIFY,
            "Number of a descriptor that gets the byte \"1\" once the socket listens",
        ),
        (
            "LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES",
            "Sockets that systemd hands over, named \"producer\"",
        ),
    ])
}

impl Daemon for Args {
    const NAME: &'static str = "traced_relay";
    const NOTIFY: &'static str = "TRACED_RELAY_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        let service = socket_names::relay_address()?.ok_or(RelayError::NoService)?;
        let machine = self.machine()?;
        let mut handed = Vec::new();
        for (fd, port, name) in sockets_of_systemd()? {
            match port {
                Port::Consumer => return Err(RelayError::Consumers(name).into()),
                Port::Producer | Port::ProducerOrRelay => handed.push((fd, name)),
            }
        }
        if let Some(fd) = inherited::named_by(OF_INIT)? {
            handed.push((fd, OF_INIT.to_owned()));
        }
        startup.go_into_background(&self.common)?;
        let service = service.absolute();
        let own = match handed.is_empty() {
            false => Vec::new(),
            true => socket_names::producer_addresses()?,
        };
        let (listeners, names) = match handed.is_empty() {
            false => self.take(handed)?,
            true => self.listen(&own, &service)?,
        };
        // Before the daemon leaves the folder in which it was started.
        let policy = policy::policy(&service, &own);
        let mut reactor = Reactor::new()?;
        reactor.watch_signals(&daemon::ending_signals())?;
        let status = format!("listening on {}, forwarding to {service}", names.join(" "));
        let destination = Destination::new(service, reactor.waker());
        let relay = Relay::new(reactor, listeners, machine, destination)?;
        startup.started()?;
        self.common.confine(policy);
        log::info(format_args!("traced_relay is {status}"));
        startup.ready(&status);
        Ok(relay.run()?)
    }
}

/// Why the relay cannot start.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error(
        "{RELAY_SOCK_NAME} names no service to forward to; set it to the address where traced --enable-relay-endpoint listens on the \
         other machine, such as 192.168.0.1:20001 or vsock://2:20001"
    )]
    NoService,
    #[error(
        "{RELAY_SOCK_NAME} and {PRODUCER_SOCK_NAME} are both {0}: the relay would forward to itself; the former is where the service of \
         the other machine listens"
    )]
    Itself(Address),
    #[error(
        "{0}, which systemd hands over, is called \"consumer\": a relay takes producers only; stop traced-consumer.socket on this machine"
    )]
    Consumers(String),
    #[error("{MACHINE_NAME} has {0} bytes, the service takes at most {MAX_IDENTITY_TEXT}")]
    LongName(usize),
}

impl Args {
    /// Takes over sockets that already listen.
    fn take(&self, handed: Vec<(OwnedFd, String)>) -> Result<(Vec<Listener>, Vec<String>), Box<dyn Error>> {
        if self.set_socket_permissions.is_some() {
            log::warning(format_args!(
                "--set-socket-permissions is not for sockets that were handed over: their group and mode stay as they are"
            ));
        }
        let mut listeners = Vec::new();
        let mut names = Vec::new();
        for (fd, name) in handed {
            listeners.push(Listener::from_fd(fd)?);
            names.push(name);
        }
        Ok((listeners, names))
    }

    /// Listens for producers. All or nothing.
    fn listen(
        &self,
        addresses: &[Address],
        service: &Address,
    ) -> Result<(Vec<Listener>, Vec<String>), Box<dyn Error>> {
        let mut listeners = Vec::new();
        for address in addresses {
            let permissions = match &self.set_socket_permissions {
                // Network addresses have none, as in upstream.
                Some(permissions) => Some(permissions.clone()).filter(|_| address.is_unix()),
                None => socket_groups::permissions(address, Users::Everybody),
            };
            let bound = match permissions {
                _ if address.clone().absolute() == *service => {
                    Err(RelayError::Itself(address.clone()).into())
                }
                Some(permissions) => {
                    Listener::bind_with(address, &permissions).map_err(Box::<dyn Error>::from)
                }
                None => Listener::bind(address).map_err(Box::<dyn Error>::from),
            };
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    listeners.into_iter().for_each(Listener::close);
                    return Err(error);
                }
            }
        }
        Ok((listeners, addresses.iter().map(Address::to_string).collect()))
    }

    fn machine(&self) -> Result<ThisMachine, RelayError> {
        let mut identity = ferretto_host::identity(crate::VERSION, MachineId::HOST);
        identity.system.timezone_offset_minutes = Some(local_time_offset());
        if identity.machine_name.len() > MAX_IDENTITY_TEXT {
            return Err(RelayError::LongName(identity.machine_name.len()));
        }
        let system = identity.system_info();
        let hint = self.machine_id.clone().or_else(boot_id);
        Ok(ThisMachine {
            hint: hint.unwrap_or_else(|| stand_in(identity.system.utsname.unwrap_or_default())),
            name: identity.machine_name,
            system,
        })
    }
}

/// Returns the kernel's boot id: another one for each machine, and after each start of it.
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim_end().to_owned()).filter(|id| !id.is_empty())
}

/// Returns what stands for the boot id where /proc is not there, from the same facts as upstream: when /dev was made, and the kernel's names.
fn stand_in(names: [String; 4]) -> String {
    let made = rustix::fs::statx(CWD, "/dev", AtFlags::empty(), StatxFlags::BTIME);
    let made = made.map(|dev| (dev.stx_btime.tv_sec, dev.stx_btime.tv_nsec));
    let mut text = format!("{:?} {}", made.unwrap_or_default(), names.join(" "));
    while text.len() > MAX_IDENTITY_TEXT {
        text.pop();
    }
    text
}

/// The definition of all flags.
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the applet with the words after its name; gives the exit code, upstream's.
pub fn run(words: Vec<OsString>) -> u8 {
    daemon::run::<Args>(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_and_what_stands_for_it_do_not_change_from_one_call_to_the_next() {
        assert_eq!(boot_id(), boot_id());
        let names = || ["a", "b", "c", "d"].map(|name| name.repeat(1000));
        assert_eq!(stand_in(names()), stand_in(names()));
        assert!(stand_in(names()).len() <= MAX_IDENTITY_TEXT);
    }

    #[test]
    fn a_machine_id_is_neither_empty_nor_too_long() {
        assert!(machine_id("").is_err());
        assert!(machine_id(&"x".repeat(MAX_IDENTITY_TEXT)).is_ok());
        assert!(machine_id(&"x".repeat(MAX_IDENTITY_TEXT + 1)).is_err());
    }
}
