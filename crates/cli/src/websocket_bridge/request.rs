//! What a browser asks for in its first bytes, and whether it may have it: HTTP heads in, verdicts out, without I/O.
//!
//! Called by [`server`](super::server). Whoever can open a web page can make it connect here, so what protects the service is the
//! `Origin` header, which pages cannot choose: it must be there, once, and on the list. A name that was bound to this address
//! by somebody else's DNS server shows in it as well, which is why `Host` is not looked at (nor does upstream). Paths, the list and
//! the status codes are those of upstream's `websocket_bridge` and the HTTP server under it.

use tungstenite::handshake::derive_accept_key;

/// Bytes of a request. Browsers send some 600.
pub(super) const MAX_REQUEST: usize = 8 * 1024;
/// Header fields of a request.
const MAX_HEADERS: usize = 64;

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

    fn allow(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
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
    /// `Sec-WebSocket-Key`.
    key: String,
    /// Bytes of the request; what follows belongs to the WebSocket.
    pub(super) size: usize,
}

impl Upgrade {
    /// The response that grants it.
    pub(super) fn grant(&self) -> Vec<u8> {
        let accept = derive_accept_key(self.key.as_bytes());
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes()
    }

    /// The response that says that there is nobody to connect to, or no room.
    pub(super) fn unavailable(&self, why: &str) -> Vec<u8> {
        response("503 Service Unavailable", Some(&self.origin), &[], why)
    }
}

/// What to do about the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is not complete.
    Wait,
    /// Connect it.
    Grant(Upgrade),
    /// Send this and close.
    Respond(Vec<u8>),
    /// Likewise; somebody may wonder why their page cannot connect.
    RefuseOrigin {
        /// As it came, or nothing.
        origin: Option<String>,
        response: Vec<u8>,
    },
}

/// Judges the bytes that have arrived.
pub(super) fn judge(received: &[u8], origins: &Origins) -> Verdict {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let size = match request.parse(received) {
        Ok(httparse::Status::Complete(size)) if size <= MAX_REQUEST => size,
        Ok(httparse::Status::Partial) if received.len() < MAX_REQUEST => return Verdict::Wait,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return refuse("431 Request Header Fields Too Large", None, "");
        }
        Err(_) => return refuse("400 Bad Request", None, "This is no HTTP request.\n"),
    };
    let head = Head(&request);

    let mut given = head.values("origin").filter(|origin| !origin.is_empty());
    let origin = match (given.next(), given.next()) {
        (None, _) => None,
        (Some(origin), None) if origins.allow(origin) => Some(origin),
        (Some(origin), _) => return refuse_origin(Some(origin)),
    };
    if request.method == Some("OPTIONS") && origin.is_some() {
        return Verdict::Respond(response("204 No Content", origin, &PREFLIGHT, ""));
    }
    let target = request.path.and_then(Target::of_path);
    let (Some(target), true) = (target, head.asks_for_websocket()) else {
        return refuse("404 Not Found", origin, NOTHING_HERE);
    };
    let Some(origin) = origin else {
        return refuse_origin(None);
    };
    if head.value("sec-websocket-version") != Some("13") {
        // Upstream's status; the header is how RFC 6455 tells what would be understood.
        let headers = ["Sec-WebSocket-Version: 13"];
        return Verdict::Respond(response(
            "505 HTTP Version Not Supported",
            Some(origin),
            &headers,
            "",
        ));
    }
    match head.value("sec-websocket-key") {
        // 16 bytes in base64.
        Some(key) if key.len() == 24 && !head.has_body() => Verdict::Grant(Upgrade {
            target,
            origin: origin.to_owned(),
            key: key.to_owned(),
            size,
        }),
        _ => refuse(
            "400 Bad Request",
            Some(origin),
            "This is no WebSocket handshake.\n",
        ),
    }
}

/// For whoever types the address into a browser.
const NOTHING_HERE: &str = "This is websocket_bridge. To record from this machine, open https://ui.perfetto.dev/#!/record \
                            and choose Linux as the target.\n";

/// That an allowed page may send more than a simple request, even from a public address to this private one. Upstream's.
const PREFLIGHT: [&str; 4] = [
    "Access-Control-Allow-Methods: POST, GET, OPTIONS",
    "Access-Control-Allow-Headers: *",
    "Access-Control-Max-Age: 86400",
    "Access-Control-Allow-Private-Network: true",
];

struct Head<'a>(&'a httparse::Request<'a, 'a>);

impl<'a> Head<'a> {
    /// The values of a header, as text: what is none can match nothing here.
    fn values(&self, name: &'static str) -> impl Iterator<Item = &'a str> + use<'a> {
        let named = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.0
            .headers
            .iter()
            .filter(named)
            .map(|header| std::str::from_utf8(header.value).unwrap_or("(not text)"))
    }

    fn value(&self, name: &'static str) -> Option<&'a str> {
        self.values(name).next()
    }

    /// Whether a header that is a list has this entry.
    fn lists(&self, name: &'static str, entry: &str) -> bool {
        self.values(name)
            .flat_map(|list| list.split(','))
            .any(|listed| listed.trim().eq_ignore_ascii_case(entry))
    }

    fn asks_for_websocket(&self) -> bool {
        self.0.method == Some("GET")
            && self.0.version == Some(1)
            && self.lists("connection", "upgrade")
            && self.lists("upgrade", "websocket")
    }

    fn has_body(&self) -> bool {
        self.values("content-length").any(|length| length != "0") || self.value("transfer-encoding").is_some()
    }
}

fn refuse(status: &str, origin: Option<&str>, why: &str) -> Verdict {
    Verdict::Respond(response(status, origin, &[], why))
}

fn refuse_origin(origin: Option<&str>) -> Verdict {
    let response = response("403 Forbidden", None, &[], "Origin not allowed\n");
    Verdict::RefuseOrigin {
        origin: origin.map(str::to_owned),
        response,
    }
}

/// The last response of a connection. Pages of an allowed origin may read it.
fn response(status: &str, origin: Option<&str>, headers: &[&str], body: &str) -> Vec<u8> {
    let mut lines = vec![format!("HTTP/1.1 {status}")];
    lines.extend(headers.iter().map(|&header| header.to_owned()));
    if let Some(origin) = origin {
        lines.push(format!("Access-Control-Allow-Origin: {origin}"));
        lines.push("Vary: Origin".to_owned());
    }
    lines.push("Content-Type: text/plain; charset=utf-8".to_owned());
    lines.push(format!("Content-Length: {}", body.len()));
    lines.push("Connection: close".to_owned());
    format!("{}\r\n\r\n{body}", lines.join("\r\n")).into_bytes()
}

#[cfg(test)]
mod tests;
