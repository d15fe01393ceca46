//! `websocket_bridge`: lets the Perfetto UI in a browser record from this machine.
//!
//! [`applet`](crate::applet) calls it. A browser can only open WebSockets, and the tracing service listens on a Unix socket; the bridge connects the
//! two, byte for byte. Port, paths, origins and answers are those of upstream's program of the same name, for which the UI is made. Under that name
//! it starts no service, and answers 503 as long as there is none. As `ferretto websocket_bridge` it starts a service if none is listening when it
//! begins, as `ferretto` does for a recording.
//!
//! The parts: [`request`] decides which pages may connect, [`bridge`] connects them, [`session`] moves bytes, and [`http`](crate::http) has the event
//! loop.
//!
//! The origin protects the service against web pages, see [`request`]. Programs on this machine can claim any origin, so every user who may connect to the
//! port has this process's access to the consumer socket. Upstream's bridge has the same property by design.

mod bridge;
mod request;
mod session;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;

use clap::{CommandFactory, FromArgMatches, Parser};
use ferretto_ipc::Address;

use crate::http::Server;
use crate::perfetto::Program;
use crate::service::{FindService, Service};
use crate::stderr;
use crate::usage;
use bridge::{Bridge, Stage, Targets};
use ferretto_daemons::log;
use request::Origins;

const NAME: &str = "websocket_bridge";
/// The only port at which the UI looks for a bridge by itself, and one of three to which its content security policy lets it connect.
pub(crate) const UI_PORT: u16 = 8037;
/// The variable with the address of the debug bridge's server, as in Android's own tools.
const ADB_SERVER_SOCKET: &str = "ADB_SERVER_SOCKET";

/// Lets the Perfetto UI in a browser on this machine record from it.
///
/// Listens on ws://127.0.0.1:8037, where the UI looks for the target "Linux" (/traced), and for Android devices behind the server of
/// the debug bridge (/adb; ADB_SERVER_SOCKET=tcp:HOST:PORT says where that is, if not at 127.0.0.1:5037). The tracing service is
/// the one that PERFETTO_CONSUMER_SOCK_NAME names, else the one on upstream's usual socket.
///
/// Open https://ui.perfetto.dev/#!/record and choose Linux as the target. If the browser asks whether the page may reach programs on
/// this machine, or the local network, let it.
///
/// To record from another machine, run this there, and forward the port: ssh -L 8037:localhost:8037 MACHINE websocket_bridge.
#[derive(Debug, Parser)]
// These comments are help texts.
#[allow(rustdoc::bare_urls)]
#[command(name = NAME, disable_version_flag = true, infer_long_args = true)]
struct Args {
    /// Let pages of these origins connect, too, for example http://localhost:8080. Always let in are https://ui.perfetto.dev,
    /// http://localhost:10000 and http://127.0.0.1:10000.
    #[arg(
        long,
        value_name = "ORIGIN1,ORIGIN2,...",
        overrides_with = "http_additional_cors_origins"
    )]
    http_additional_cors_origins: Option<String>,
    /// Listen on another port, 0 for any that is free. The UI of https://ui.perfetto.dev may connect to 8037, 9001 and 9167 only.
    #[arg(long, default_value_t = UI_PORT)]
    port: u16,
}

/// Returns the definition of all flags.
pub(crate) fn command(program: Program) -> clap::Command {
    let without_service = match program {
        Program::Perfetto => "As long as no service is listening, pages that connect are answered 503.",
        Program::Ferretto => {
            "If no service is listening when this begins, it starts one of its own, which ends with it."
        }
    };
    Args::command().after_help(without_service)
}

/// Runs with the arguments after the program's name; returns the exit code: 0 after a signal, 1 if it could not begin.
pub(crate) fn run(program: Program, words: Vec<OsString>, find_service: FindService<'_>) -> u8 {
    let words = std::iter::once(NAME.into()).chain(words);
    let args = command(program)
        .try_get_matches_from(words)
        .and_then(|matches| Args::from_arg_matches(&matches));
    let args = match args {
        Ok(args) => args,
        Err(message) => {
            usage::print(NAME, &message);
            return u8::from(message.use_stderr());
        }
    };
    match serve(&args, find_service) {
        Ok(()) => 0,
        Err(error) => {
            stderr::say(NAME, &error);
            1
        }
    }
}

fn serve(args: &Args, find_service: FindService<'_>) -> Result<(), Box<dyn Error>> {
    let origins = Origins::with_additional(args.http_additional_cors_origins.as_deref().unwrap_or_default());
    let adb = adb_server(std::env::var_os(ADB_SERVER_SOCKET))?;
    // The server also watches signals, so it must exist before anything that must be ended.
    let server = listen(args.port)?;
    let service = find_service()?;
    let targets = Targets {
        traced: service.consumer_socket.clone(),
        adb,
    };
    greet(server.port(), &service);
    server.serve(&mut Bridge::new(origins, targets))?;
    Ok(())
}

/// Prints instructions for the user.
fn greet(port: u16, service: &Service) {
    let target = match port {
        UI_PORT => "choose Linux as the target".to_owned(),
        port => format!("connect a new Linux device: 127.0.0.1:{port}"),
    };
    let own = match service.started {
        Some(_) => ", served by a tracing service of its own since none was listening",
        None => "",
    };
    // If stderr is closed, nobody can be told.
    let _ = writeln!(
        io::stderr(),
        "{NAME}: ready on port {port}{own}. Open https://ui.perfetto.dev/#!/record and {target}; Ctrl-C ends this"
    );
}

/// Listens on both loopback addresses. If `[::1]` fails, 127.0.0.1 remains, which the UI itself uses.
fn listen(port: u16) -> Result<Server<Stage>, String> {
    let mut server = Server::bind(port).map_err(|error| unusable(port, &error))?;
    if let Err(error) = server.bind_ipv6() {
        let port = server.port();
        log::warning(format_args!(
            "only 127.0.0.1:{port} is listened on, and not [::1]:{port}: {error}"
        ));
    }
    Ok(server)
}

fn unusable(port: u16, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => format!(
            "port {port} of 127.0.0.1 is in use, perhaps by another {NAME}: end the program that `ss -ltnp 'sport = :{port}'` shows, \
             and start this again; the UI looks at port {UI_PORT} only"
        ),
        _ => format!("cannot listen on 127.0.0.1:{port}: {error}"),
    }
}

/// Returns the address of the debug bridge's server, from the value of its variable.
fn adb_server(variable: Option<OsString>) -> Result<Address, String> {
    let Some(variable) = variable else {
        return Ok(Address::Tcp {
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: 5037,
        });
    };
    let value = variable.to_string_lossy();
    match value.strip_prefix("tcp:").map(str::parse) {
        Some(Ok(address @ Address::Tcp { .. })) => Ok(address),
        _ => Err(format!(
            "{ADB_SERVER_SOCKET}={value:?} names no server: write tcp:HOST:PORT, or unset it for 127.0.0.1:5037"
        )),
    }
}

#[cfg(test)]
mod tests;
