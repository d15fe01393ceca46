//! Whether a browser may have what it asks for: heads in, verdicts out, without I/O.
//!
//! Called by [`bridge`](super::bridge). Whoever can open a web page can make it connect here, so what protects the service is the
//! `Origin` header, which pages cannot choose: it must be there, once, and on the list. A name that was bound to this address
//! by somebody else's DNS server shows in it as well, which is why `Host` is not looked at (nor does upstream). Paths, the list and
//! the status codes are those of upstream's `websocket_bridge` and the HTTP server under it.

use tungstenite::handshake::derive_accept_key;

use crate::http::{Head, Response, quoted};

/// Where the UI is served from: its public place, and a checkout of upstream's.
const UI_ORIGINS: [&str; 3] = [
    "http://localhost:10000",
    "http://127.0.0.1:10000",
    "https://ui.perfetto.dev",
];

/// The origins whose pages may connect.
#[derive(Debug)]
pub(super) struct Origins(Vec<String>);

impl Origins {
    /// The UI's own, and those of a list with commas.
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

/// Whom a path leads to.
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
    /// One of the allowed.
    pub(super) origin: String,
    /// What answers its `Sec-WebSocket-Key`.
    accept: String,
}

impl Upgrade {
    /// The response that grants it.
    pub(super) fn grant(&self) -> Vec<u8> {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
            self.accept
        )
        .into_bytes()
    }

    /// The response that says that there is nobody to connect to, or no room.
    pub(super) fn unavailable(&self, why: &str) -> Vec<u8> {
        response("503 Service Unavailable", Some(&self.origin)).text(why)
    }
}

/// What to do about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Connect it.
    Grant(Upgrade),
    /// Send this and close.
    Respond(Vec<u8>),
    /// Likewise; somebody may wonder why their page cannot connect.
    RefuseOrigin {
        /// What it says, or nothing.
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
        // Upstream's status; the field is how RFC 6455 tells what would be understood.
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

/// For whoever types the address into a browser.
const NOTHING_HERE: &str = "This is websocket_bridge. To record from this machine, open https://ui.perfetto.dev/#!/record \
                            and choose Linux as the target.\n";

/// That an allowed page may send more than a simple request, even from a public address to this private one. Upstream's.
const PREFLIGHT: [(&str, &str); 4] = [
    ("Access-Control-Allow-Methods", "POST, GET, OPTIONS"),
    ("Access-Control-Allow-Headers", "*"),
    ("Access-Control-Max-Age", "86400"),
    ("Access-Control-Allow-Private-Network", "true"),
];

/// Whether a field that is a list has this entry.
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

/// The last response of a connection. Pages of an allowed origin may read it.
fn response(status: &str, origin: Option<&str>) -> Response {
    let response = Response::new(status);
    match origin {
        Some(origin) => response.with("Access-Control-Allow-Origin", origin),
        None => response,
    }
}

#[cfg(test)]
mod tests;
