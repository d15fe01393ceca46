//! Who may have what: what a request has to look like, and the heads of the answers.
//!
//! Called by [`server`](super::server) with the bytes that a connection brought. No I/O. Every page in this machine's browsers can
//! send requests here, and a name that leads to 127.0.0.1 makes a page believe that it is this server's own (DNS rebinding). So a
//! request counts only if its `Host` is a loopback address and its `Origin` is the UI's, which pages cannot choose; upstream's
//! server looks at neither. A copy of the UI that is served from here fetches from its own origin, and for that browsers say no
//! `Origin` but `Sec-Fetch-Site: same-origin`, which pages cannot choose either. The copy itself is no secret, but no other page may
//! put it into a frame. `httparse` takes requests apart: no dependencies, strict, and what Rust's HTTP servers stand on. A
//! server of `tiny_http`'s kind would bring threads and buffers of its own to one file.

use super::link::decoded;

/// Bytes of a request's head. That of a browser's `fetch` has less than one thousand.
pub(super) const LONGEST_HEAD: usize = 16 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 64;
/// Characters of what a request says that are repeated to the user.
const LONGEST_QUOTE: usize = 80;

/// The folder of the trace beside a copy of the UI.
pub(super) const TRACE_FOLDER: &str = "/trace/";

/// Whose pages may fetch the trace.
#[derive(Debug)]
pub(super) enum Audience {
    /// Those of this origin.
    PagesOf(String),
    /// Those of a copy of the UI that is served as well.
    OwnPages,
}

/// What is served, and to whom.
#[derive(Debug)]
pub(super) struct Policy {
    audience: Audience,
    file_name: Vec<u8>,
}

/// What a request is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The file.
    File,
    /// What the file's head would be.
    Head,
    /// A file of the UI's copy, by its decoded path.
    Page {
        /// See there.
        path: String,
        /// What of it.
        part: Part,
    },
    /// That its pages may fetch the file: asked by browsers before they let a public page talk to this machine.
    Permission {
        /// Whether that was asked for by name (`Access-Control-Request-Private-Network`).
        private_network: bool,
    },
    /// Nothing.
    Refused(Refusal),
}

/// What of a resource is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    Head,
}

/// Why a request gets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is no HTTP/1 request, or an ambiguous one.
    Malformed,
    /// Its head is too long.
    TooLong,
    /// It is not addressed to this machine but to this host.
    ForeignHost(String),
    /// It comes from a page of another origin, or from none.
    ForeignOrigin(Option<String>),
    /// It wants something done.
    Method,
    /// It is about something else.
    NoSuchFile,
}

impl Policy {
    /// Serves this audience the file of this name.
    pub(super) fn new(audience: Audience, file_name: &[u8]) -> Policy {
        Policy {
            audience,
            file_name: file_name.to_owned(),
        }
    }

    /// The answer to a request that starts with these bytes; `None` if its head goes on.
    pub(super) fn judge(&self, bytes: &[u8]) -> Option<Answer> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let answer = match request.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => self.answer(&request),
            Ok(httparse::Status::Partial) if bytes.len() < LONGEST_HEAD => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(Refusal::TooLong),
            Err(_) => Err(Refusal::Malformed),
        };
        Some(answer.unwrap_or_else(Answer::Refused))
    }

    fn answer(&self, request: &httparse::Request<'_, '_>) -> Result<Answer, Refusal> {
        let host = one(request, "Host")?.ok_or(Refusal::Malformed)?;
        if !is_loopback(host) {
            return Err(Refusal::ForeignHost(quoted(host)));
        }
        match &self.audience {
            Audience::PagesOf(ui) => self.answer_pages_of(ui, request),
            Audience::OwnPages => self.answer_own_pages(host, request),
        }
    }

    fn answer_pages_of(&self, ui: &str, request: &httparse::Request<'_, '_>) -> Result<Answer, Refusal> {
        match one(request, "Origin")? {
            Some(origin) if origin == ui.as_bytes() => {}
            other => return Err(Refusal::ForeignOrigin(other.map(quoted))),
        }
        let answer = match request.method {
            Some("GET") => Answer::File,
            Some("HEAD") => Answer::Head,
            Some("OPTIONS") => Answer::Permission {
                private_network: one(request, "Access-Control-Request-Private-Network")
                    .is_ok_and(|value| value == Some(b"true")),
            },
            _ => return Err(Refusal::Method),
        };
        let path = request.path.and_then(|path| path.strip_prefix('/'));
        match path {
            Some(path) if decoded(path) == self.file_name => Ok(answer),
            _ => Err(Refusal::NoSuchFile),
        }
    }

    fn answer_own_pages(&self, host: &[u8], request: &httparse::Request<'_, '_>) -> Result<Answer, Refusal> {
        let origin = one(request, "Origin")?;
        // `Host` is a name of this machine, with the port that the browser sees.
        if let Some(origin) = origin
            && origin.strip_prefix(b"http://") != Some(host)
        {
            return Err(Refusal::ForeignOrigin(Some(quoted(origin))));
        }
        let part = match request.method {
            Some("GET") => Part::All,
            Some("HEAD") => Part::Head,
            _ => return Err(Refusal::Method),
        };
        // Behind the question mark is what the UI says to itself.
        let path = request.path.unwrap_or_default();
        let path = decoded(path.split('?').next().unwrap_or_default());
        match path.strip_prefix(TRACE_FOLDER.as_bytes()) {
            Some(name) if name == self.file_name => {
                if origin.is_none() && one(request, "Sec-Fetch-Site")? != Some(b"same-origin") {
                    return Err(Refusal::ForeignOrigin(None));
                }
                Ok(match part {
                    Part::All => Answer::File,
                    Part::Head => Answer::Head,
                })
            }
            _ => {
                let path = String::from_utf8(path).map_err(|_| Refusal::NoSuchFile)?;
                Ok(Answer::Page { path, part })
            }
        }
    }

    /// The head of an answer, about something of this type and, if it is known before, size in bytes.
    pub(super) fn head(&self, answer: &Answer, media_type: &str, size: Option<u64>) -> Vec<u8> {
        let status = match answer {
            Answer::File | Answer::Head | Answer::Page { .. } => "200 OK",
            Answer::Permission { .. } => "204 No Content",
            Answer::Refused(refusal) => refusal.status(),
        };
        let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
        match answer {
            Answer::File | Answer::Head | Answer::Page { .. } => {
                let length = match size {
                    Some(size) => format!("Content-Length: {size}"),
                    None => "Transfer-Encoding: chunked".to_owned(),
                };
                head +=
                    &format!("Content-Type: {media_type}\r\n{length}\r\nX-Content-Type-Options: nosniff\r\n");
            }
            Answer::Permission { private_network } => {
                head += "Access-Control-Allow-Methods: GET, HEAD\r\n";
                if *private_network {
                    head += "Access-Control-Allow-Private-Network: true\r\n";
                }
            }
            Answer::Refused(refusal) => {
                if *refusal == Refusal::Method {
                    head += match self.audience {
                        Audience::PagesOf(_) => "Allow: GET, HEAD, OPTIONS\r\n",
                        Audience::OwnPages => "Allow: GET, HEAD\r\n",
                    };
                }
                head += "Content-Length: 0\r\n";
            }
        }
        // Whoever is not the UI is not told who is.
        let from_ui = !matches!(
            answer,
            Answer::Refused(
                Refusal::Malformed | Refusal::TooLong | Refusal::ForeignHost(_) | Refusal::ForeignOrigin(_)
            )
        );
        match &self.audience {
            Audience::PagesOf(origin) if from_ui => {
                head += &format!("Access-Control-Allow-Origin: {origin}\r\n");
            }
            Audience::PagesOf(_) => {}
            Audience::OwnPages => {
                head += "Content-Security-Policy: frame-ancestors 'none'\r\nCross-Origin-Resource-Policy: same-origin\r\n\
                         Referrer-Policy: no-referrer\r\n";
            }
        }
        head += "Vary: Origin\r\nCache-Control: no-cache\r\n\r\n";
        head.into_bytes()
    }
}

impl Refusal {
    fn status(&self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::TooLong => "431 Request Header Fields Too Large",
            Refusal::ForeignHost(_) | Refusal::ForeignOrigin(_) => "403 Forbidden",
            Refusal::Method => "405 Method Not Allowed",
            Refusal::NoSuchFile => "404 Not Found",
        }
    }
}

/// The value of a header that may come once: of two, this end could heed one and the other end mean the other.
fn one<'a>(request: &httparse::Request<'_, 'a>, name: &str) -> Result<Option<&'a [u8]>, Refusal> {
    let mut values = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(Refusal::Malformed),
    }
}

/// Whether a `Host` is this machine by a name that nobody else gives away. Any port: a tunnel may begin at another one.
fn is_loopback(host: &[u8]) -> bool {
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
        let (start, rest) = host.split_at(name.len().min(host.len()));
        let is_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
        start.eq_ignore_ascii_case(name.as_bytes())
            && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
    })
}

/// What a stranger says, for a line on the terminal.
fn quoted(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let short: String = text.chars().take(LONGEST_QUOTE).collect();
    short.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
