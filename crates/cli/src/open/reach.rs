//! Checks whether the UI's site answers before a browser is started. Otherwise the page would stay empty without a message.
//!
//! [`run`](super::run) calls it. It connects, and sends nothing.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use super::link::Ui;

/// The time for finding the address and connecting.
const PATIENCE: Duration = Duration::from_secs(4);
/// Variables that name a proxy. With one of them the browser may have another way, so the check is omitted.
const PROXIES: [&str; 6] = [
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// Connects and hangs up; fails with the reason.
pub(super) fn look(ui: &Ui) -> Result<(), String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if PROXIES.iter().any(|name| set(name)) {
        return Ok(());
    }
    let host = ui.host_and_port();
    let (answer, answered) = mpsc::channel();
    // The resolver has no configurable time limit.
    std::thread::spawn(move || {
        // After the time limit nobody receives the result.
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
