//! Judges a browser's request by its head, without I/O.
//!
//! [`bridge`](super::bridge) calls it. Any web page can make its browser connect here, so the service is protected by the `Origin` header, which
//! pages cannot choose: it must be there exactly once, and on the list. It also exposes a page whose host name somebody's DNS server resolves to this
//! address, so `Host` is not checked (upstream does not check it either). Paths, the list and the status codes are those of upstream's
//! `websocket_bridge` and its HTTP server.

use tungstenite::handshake::derive_accept_key;

use crate::http::{Head, Response, quoted};

/// The origins of the UI: its public site, and a checkout of upstream's.
const UI_ORIGINS: [&str; 3] = [
    "http://localhost:10000",
    "http://127.0.0.1:10000",
    "https://ui.perfetto.dev",
];

/// The origins whose pages may connect.
#[derive(Debug)]
pub(super) struct Origins(Vec<String>);

impl Origins {
    /// Returns the UI's own origins and those in a comma-separated list.
    pub(super) fn with_additional(list: &str) -> Origins {
        let additional = list.split(',').filter(|origin| !origin.is_empty());
        Origins(
            UI_ORIGINS
                .into_iter()
                .chain(additional)
                .map(str::to_owned)
                .collect(),
        )
    }

    fn allow(&self, origin: &[u8]) -> bool {
        self.0
            .iter()
            .any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin))
    }
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The tracing service's consumer socket.
    Traced,
    /// The server of Android's debug bridge.
    Adb,
}

impl Target {
    fn of_path(path: &str) -> Option<Target> {
        match path {
            "/traced" => Some(Target::Traced),
            "/adb" => Some(Target::Adb),
            _ => None,
        }
    }
}

/// A request that may be granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Upgrade {
    pub(super) target: Target,
    /// Its origin, which is on the list.
    pub(super) origin: String,
    /// The answer to its `Sec-WebSocket-Key`.
    accept: String,
}

impl Upgrade {
    /// Returns the response that grants it.
    pub(super) fn grant(&self) -> Vec<u8> {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
            self.accept
        )
        .into_bytes()
    }

    /// Returns the response for a missing service or too many connections.
    pub(super) fn unavailable(&self, why: &str) -> Vec<u8> {
        response("503 Service Unavailable", Some(&self.origin)).text(why)
    }
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Connect the browser.
    Grant(Upgrade),
    /// Send this response and close.
    Respond(Vec<u8>),
    /// Send the response, close, and warn the user, who may wonder why a page cannot connect.
    RefuseOrigin {
        /// The origin in the request, if there is one.
        origin: Option<String>,
        response: Vec<u8>,
    },
}

/// Judges a request.
pub(super) fn judge(head: &Head<'_>, origins: &Origins) -> Verdict {
    let mut given = head.all("Origin");
    let origin = match (given.next(), given.next()) {
        (None, _) => None,
        (Some(origin), None) if origins.allow(origin) => std::str::from_utf8(origin).ok(),
        (Some(origin), _) => return refuse_origin(Some(origin)),
    };
    if head.method == "OPTIONS" && origin.is_some() {
        let allowed = |response: Response, (name, value): &(&str, &str)| response.with(name, value);
        let response = PREFLIGHT.iter().fold(response("204 No Content", origin), allowed);
        return Verdict::Respond(response.head());
    }
    let (Some(target), true) = (Target::of_path(head.path), asks_for_websocket(head)) else {
        return Verdict::Respond(response("404 Not Found", origin).text(NOTHING_HERE));
    };
    let Some(origin) = origin else {
        return refuse_origin(None);
    };
    if head.one("Sec-WebSocket-Version") != Ok(Some(b"13")) {
        // The status is upstream's; RFC 6455 requires the field with the supported version.
        let response = response("505 HTTP Version Not Supported", Some(origin));
        return Verdict::Respond(response.with("Sec-WebSocket-Version", 13).text(""));
    }
    match head.one("Sec-WebSocket-Key") {
        // 16 bytes in base64.
        Ok(Some(key)) if key.len() == 24 && !has_body(head) => Verdict::Grant(Upgrade {
            target,
            origin: origin.to_owned(),
            accept: derive_accept_key(key),
        }),
        _ => {
            let response = response("400 Bad Request", Some(origin));
            Verdict::Respond(response.text("This is no WebSocket handshake.\n"))
        }
    }
}

/// For users who type the address into a browser.
const NOTHING_HERE: &str = "This is websocket_bridge. To record from this machine, open https://ui.perfetto.dev/#!/record \
                            and choose Linux as the target.\n";

/// Lets an allowed page send more than a simple request, even from a public address to this private one. Upstream sends the same.
const PREFLIGHT: [(&str, &str); 4] = [
    ("Access-Control-Allow-Methods", "POST, GET, OPTIONS"),
    ("Access-Control-Allow-Headers", "*"),
    ("Access-Control-Max-Age", "86400"),
    ("Access-Control-Allow-Private-Network", "true"),
];

/// Whether a list field has this entry.
fn lists(head: &Head<'_>, name: &str, entry: &str) -> bool {
    head.all(name)
        .flat_map(|list| list.split(|byte| *byte == b','))
        .any(|listed| listed.trim_ascii().eq_ignore_ascii_case(entry.as_bytes()))
}

fn asks_for_websocket(head: &Head<'_>) -> bool {
    head.method == "GET"
        && head.minor_version == 1
        && lists(head, "Connection", "upgrade")
        && lists(head, "Upgrade", "websocket")
}

fn has_body(head: &Head<'_>) -> bool {
    head.all("Content-Length").any(|length| length != b"0") || head.all("Transfer-Encoding").next().is_some()
}

fn refuse_origin(origin: Option<&[u8]>) -> Verdict {
    Verdict::RefuseOrigin {
        origin: origin.map(quoted),
        response: response("403 Forbidden", None).text("Origin not allowed\n"),
    }
}

/// Returns the last response of a connection. Pages of an allowed origin may read it.
fn response(status: &str, origin: Option<&str>) -> Response {
    let response = Response::new(status);
    match origin {
        Some(origin) => response.with("Access-Control-Allow-Origin", origin),
        None => response,
    }
}

#[cfg(test)]
mod tests;
