//! Decides which requests are granted, and makes the heads of the answers.
//!
//! [`exhibition`](super::exhibition) calls it. It does no I/O. Every page in this machine's browsers can send requests here, and a host name that
//! resolves to 127.0.0.1 makes a page look like this server's own (DNS rebinding). So a request counts only if its `Host` is a loopback address and
//! its `Origin`, which pages cannot choose, is the UI's; upstream's server checks neither. A copy of the UI that is served here fetches from its own
//! origin. For such a request browsers send no `Origin` but `Sec-Fetch-Site: same-origin`, which pages cannot choose either. The copy itself is no
//! secret, but no other page may put it into a frame.

use super::link::decoded;
use crate::http::{Head, Repeated, Response, quoted};

/// The folder of the trace beside a copy of the UI.
pub(super) const TRACE_FOLDER: &str = "/trace/";

/// The pages that may fetch the trace.
#[derive(Debug)]
pub(super) enum Audience {
    /// The pages of this origin.
    PagesOf(String),
    /// The pages of a copy of the UI that is served here as well.
    OwnPages,
}

/// The audience and the file that it may fetch.
#[derive(Debug)]
pub(super) struct Policy {
    audience: Audience,
    file_name: Vec<u8>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The trace.
    Trace(Part),
    /// A file of the UI's copy, by its decoded path.
    Page(String, Part),
    /// Permission for its pages to fetch the file. Browsers request it before they let a public page talk to this machine.
    Permission {
        /// Whether the request named it (`Access-Control-Request-Private-Network`).
        private_network: bool,
    },
    /// A refusal.
    Refused(Refusal),
}

/// The requested part of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    Head,
}

/// The reason for a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request lacks a `Host`, or has a field twice that may occur once.
    Malformed,
    /// It is addressed to this host instead of this machine.
    ForeignHost(String),
    /// It comes from a page of another origin, or has no origin.
    ForeignOrigin(Option<String>),
    /// Its method would change something.
    Method,
    /// It is for another file.
    NoSuchFile,
    /// Too many requests are being answered.
    Busy,
}

impl From<Repeated> for Refusal {
    fn from(_: Repeated) -> Refusal {
        Refusal::Malformed
    }
}

impl Policy {
    /// Makes the policy that serves this audience the file of this name.
    pub(super) fn new(audience: Audience, file_name: &[u8]) -> Policy {
        Policy {
            audience,
            file_name: file_name.to_owned(),
        }
    }

    /// Returns the answer to a request.
    pub(super) fn answer(&self, request: &Head<'_>) -> Answer {
        self.judge(request).unwrap_or_else(Answer::Refused)
    }

    fn judge(&self, request: &Head<'_>) -> Result<Answer, Refusal> {
        let host = request.one("Host")?.ok_or(Refusal::Malformed)?;
        if !is_loopback(host) {
            return Err(Refusal::ForeignHost(quoted(host)));
        }
        match &self.audience {
            Audience::PagesOf(ui) => self.judge_pages_of(ui, request),
            Audience::OwnPages => self.judge_own_pages(host, request),
        }
    }

    fn judge_pages_of(&self, ui: &str, request: &Head<'_>) -> Result<Answer, Refusal> {
        match request.one("Origin")? {
            Some(origin) if origin == ui.as_bytes() => {}
            other => return Err(Refusal::ForeignOrigin(other.map(quoted))),
        }
        let answer = match request.method {
            "GET" => Answer::Trace(Part::All),
            "HEAD" => Answer::Trace(Part::Head),
            "OPTIONS" => Answer::Permission {
                private_network: request
                    .one("Access-Control-Request-Private-Network")
                    .is_ok_and(|value| value == Some(b"true")),
            },
            _ => return Err(Refusal::Method),
        };
        match request.path.strip_prefix('/') {
            Some(path) if decoded(path) == self.file_name => Ok(answer),
            _ => Err(Refusal::NoSuchFile),
        }
    }

    fn judge_own_pages(&self, host: &[u8], request: &Head<'_>) -> Result<Answer, Refusal> {
        let origin = request.one("Origin")?;
        // `Host` is a name of this machine, with the port that the browser sees.
        if let Some(origin) = origin
            && origin.strip_prefix(b"http://") != Some(host)
        {
            return Err(Refusal::ForeignOrigin(Some(quoted(origin))));
        }
        let part = match request.method {
            "GET" => Part::All,
            "HEAD" => Part::Head,
            _ => return Err(Refusal::Method),
        };
        // The UI's own arguments follow the question mark.
        let path = decoded(request.path.split('?').next().unwrap_or_default());
        match path.strip_prefix(TRACE_FOLDER.as_bytes()) {
            Some(name) if name == self.file_name => {
                if origin.is_none() && request.one("Sec-Fetch-Site")? != Some(b"same-origin") {
                    return Err(Refusal::ForeignOrigin(None));
                }
                Ok(Answer::Trace(part))
            }
            _ => {
                let path = String::from_utf8(path).map_err(|_| Refusal::NoSuchFile)?;
                Ok(Answer::Page(path, part))
            }
        }
    }

    /// Returns the head of an answer with this media type and, if known in advance, this size in bytes.
    pub(super) fn head(&self, answer: &Answer, media_type: &str, size: Option<u64>) -> Vec<u8> {
        let head = match answer {
            Answer::Trace(_) | Answer::Page(..) => {
                let head = Response::new("200 OK").with("Content-Type", media_type);
                match size {
                    Some(size) => head.with("Content-Length", size),
                    None => head.with("Transfer-Encoding", "chunked"),
                }
            }
            Answer::Permission { private_network } => {
                let head = Response::new("204 No Content").with("Access-Control-Allow-Methods", "GET, HEAD");
                match private_network {
                    true => head.with("Access-Control-Allow-Private-Network", true),
                    false => head,
                }
            }
            Answer::Refused(refusal) => {
                let head = Response::new(refusal.status()).with("Content-Length", 0);
                match (refusal, &self.audience) {
                    (Refusal::Method, Audience::PagesOf(_)) => head.with("Allow", "GET, HEAD, OPTIONS"),
                    (Refusal::Method, Audience::OwnPages) => head.with("Allow", "GET, HEAD"),
                    _ => head,
                }
            }
        };
        // The origin of the UI is revealed only to the UI.
        let from_ui = match answer {
            Answer::Refused(refusal) => matches!(refusal, Refusal::Method | Refusal::NoSuchFile),
            _ => true,
        };
        let head = match &self.audience {
            Audience::PagesOf(origin) if from_ui => head.with("Access-Control-Allow-Origin", origin),
            Audience::PagesOf(_) => head,
            Audience::OwnPages => head
                .with("Content-Security-Policy", "frame-ancestors 'none'")
                .with("Cross-Origin-Resource-Policy", "same-origin")
                .with("Referrer-Policy", "no-referrer"),
        };
        head.head()
    }
}

impl Refusal {
    fn status(&self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::ForeignHost(_) | Refusal::ForeignOrigin(_) => "403 Forbidden",
            Refusal::Method => "405 Method Not Allowed",
            Refusal::NoSuchFile => "404 Not Found",
            Refusal::Busy => "503 Service Unavailable",
        }
    }
}

/// Whether a `Host` is a name of this machine that no DNS server can assign. Any port is fine, because a tunnel may begin at another one.
pub(crate) fn is_loopback(host: &[u8]) -> bool {
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
        let (start, rest) = host.split_at(name.len().min(host.len()));
        let is_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
        start.eq_ignore_ascii_case(name.as_bytes())
            && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
    })
}

#[cfg(test)]
mod tests;
