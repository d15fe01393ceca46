//! Whether the UI's site answers, before a browser is started on it: without it the page stays empty, and says nothing of the trace.
//!
//! Called by [`run`](super::run). Nothing is sent there.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use super::link::Ui;

/// So long it may take to find its address and to connect.
const PATIENCE: Duration = Duration::from_secs(4);
/// Who names one goes through another machine, as the browser may.
const PROXIES: [&str; 6] = [
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// Connects, and hangs up; fails with the reason.
pub(super) fn look(ui: &Ui) -> Result<(), String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if PROXIES.iter().any(|name| set(name)) {
        return Ok(());
    }
    let host = ui.host_and_port();
    let (answer, answered) = mpsc::channel();
    // The resolver has no time limit of its own that could be set.
    std::thread::spawn(move || {
        // Nobody listens after the time is over.
        let _ = answer.send(connect(&host));
    });
    answered
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
}

fn connect((host, port): &(String, u16)) -> Result<(), String> {
    let addresses = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    let mut last = Err("it has no address".to_owned());
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = Err(error.to_string()),
        }
    }
    last
}
