//! `ferretto-tunnel`: TLS between `traced_relay` and the tracing service of another machine.
//!
//! Both ends are this program. On a guest it listens where the relay connects to; on the host it connects to the service. Both show certificates of the
//! fleet's own authority, and nothing passes before each has checked the other's. It is a program of its own, so that neither the relay nor the service
//! holds a key, or code that reads what strangers send before anybody knows them. `tunnel` is its event loop, `pair` carries bytes, `identity` reads the
//! certificates, `policy` says which rights it keeps. This module has flags.
#![forbid(unsafe_code)]

mod identity;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails in a test fails the test")]
mod manual;
mod pair;
mod policy;
mod tunnel;

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use ferretto_daemons::daemon::{self, Daemon, Startup};
use ferretto_daemons::destination::Destination;
use ferretto_daemons::log;
use ferretto_ipc::transport::SocketPermissions;
use ferretto_ipc::{Address, Listener, Reactor};
use rustls_pki_types::ServerName;

use identity::Files;
use tunnel::{End, Tunnel};

/// TLS between traced_relay and the tracing service of another machine.
///
/// On a guest, traced_relay connects to it: PERFETTO_RELAY_SOCK_NAME is what --listen says there. On the host, it connects to the service, traced
/// --enable-relay-endpoint. Each end shows its certificate, and takes only those of an authority in --tls-ca. SIGHUP has all files read anew.
#[derive(Debug, Parser)]
#[command(name = "ferretto-tunnel", version = ferretto_daemons::VERSION, disable_version_flag = true)]
#[command(infer_long_args = true, after_long_help = environment())]
struct Args {
    /// Which end this is
    end: Word,
    /// Where to listen: for relays on a guest, for guests on the host
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    listen: Address,
    /// Where to connect to: the host's end on a guest, the service on the host
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    to: Address,
    /// The authorities whose certificates the other end may show, in PEM
    #[arg(long, value_name = "FILE")]
    tls_ca: PathBuf,
    /// This end's certificate, and those between it and its authority, in PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: PathBuf,
    /// The key of this end's certificate, in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: PathBuf,
    /// The certificates that the authorities have revoked, in PEM: a list of each authority, none of them expired
    #[arg(long, value_name = "FILE")]
    tls_crl: Option<PathBuf>,
    /// The name in the certificate of the host's end, instead of the host in --to; for guests
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Group and mode of the socket, if it is a file, for example traced:0660
    ///
    /// Nobody can connect before the socket has them. Without this, only its owner can.
    #[arg(long, value_name = "GROUP:MODE", allow_hyphen_values = true)]
    set_socket_permissions: Option<SocketPermissions>,
    #[command(flatten)]
    common: daemon::Flags,
}

/// The ends by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Word {
    /// Where the relay is.
    Guest,
    /// Where the service is.
    Host,
}

fn environment() -> String {
    daemon::environment(&[(
        Args::NOTIFY,
        "Number of a descriptor that gets the byte \"1\" once the socket listens",
    )])
}

/// Why the tunnel cannot start.
#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error(
        "{0} names no host, which the certificate of the host's end would have to name: say its name with --tls-name"
    )]
    NoName(Address),
    #[error("{0:?} is no name that a certificate can have: give a host's name or address with --tls-name")]
    BadName(String),
    #[error(
        "--tls-name is for a guest's end: the host's end checks no names, but who issued a guest's certificate"
    )]
    NameOfGuest,
    #[error("--listen and --to are both {0}: the tunnel would connect to itself")]
    Itself(Address),
}

impl Args {
    fn end(&self, files: &Files) -> Result<End, Box<dyn Error>> {
        if self.listen.clone().absolute() == self.to.clone().absolute() {
            return Err(TunnelError::Itself(self.to.clone()).into());
        }
        Ok(match (self.end, &self.tls_name) {
            (Word::Guest, _) => {
                let name = self.server_name()?;
                End::Guest(files.guest(&name)?, name)
            }
            (Word::Host, Some(_)) => return Err(TunnelError::NameOfGuest.into()),
            (Word::Host, None) => End::Host(files.host()?),
        })
    }

    fn server_name(&self) -> Result<ServerName<'static>, TunnelError> {
        let name = match (&self.tls_name, &self.to) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp { host, .. }) => host.clone(),
            (None, other) => return Err(TunnelError::NoName(other.clone())),
        };
        match name.parse::<IpAddr>() {
            Ok(address) => Ok(ServerName::from(address)),
            Err(_) => ServerName::try_from(name.clone()).map_err(|_| TunnelError::BadName(name)),
        }
    }

    fn listener(&self) -> Result<Listener, Box<dyn Error>> {
        if !self.listen.is_unix() || self.listen.path().is_none() {
            return Ok(match &self.set_socket_permissions {
                Some(permissions) => Listener::bind_with(&self.listen, permissions)?,
                None => Listener::bind(&self.listen)?,
            });
        }
        let permissions = match &self.set_socket_permissions {
            Some(permissions) => permissions.clone(),
            None => "-1:0600".parse()?,
        };
        Ok(Listener::bind_with(&self.listen, &permissions)?)
    }
}

impl Daemon for Args {
    const NAME: &'static str = "ferretto-tunnel";
    const NOTIFY: &'static str = "FERRETTO_TUNNEL_NOTIFY_FD";

    fn flags(&self) -> &daemon::Flags {
        &self.common
    }

    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>> {
        startup.go_into_background(&self.common)?;
        // Before anything else, for until then a SIGHUP ends the program.
        let mut reactor = Reactor::new()?;
        let mut signals = daemon::ending_signals();
        // Also one whose starter ignores it: a manager that has the files read anew means it.
        if !signals.contains(&tunnel::RELOAD) {
            signals.push(tunnel::RELOAD);
        }
        reactor.watch_signals(&signals)?;
        let files = Files {
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            crl: self.tls_crl.clone(),
        }
        .absolute();
        let end = self.end(&files)?;
        let to = self.to.clone().absolute();
        let listener = self.listener()?;
        let policy = policy::policy(&self.listen, &to, files.folders());
        let status = format!("listening on {}, connecting to {to}, as {files}", self.listen);
        let destination = Destination::new(to, reactor.waker());
        let tunnel = Tunnel::new(reactor, listener, end, files, destination)?;
        startup.started()?;
        self.common.confine(policy);
        log::info(format_args!("ferretto-tunnel is {status}"));
        startup.ready(&status);
        Ok(tunnel.run()?)
    }
}

fn main() -> ExitCode {
    daemon::run::<Args>(std::env::args_os().skip(1).collect()).into()
}
