//! Reads the head of a request, within bounds, and writes the head of an answer.
//!
//! [`server`](super::server) calls it with the bytes of a connection; the applications look into heads and answer. It does no I/O. `httparse` parses
//! requests: it has no dependencies, is strict, and Rust's HTTP servers use it.

use std::fmt::Display;

/// The most bytes of a request's head. Browsers send less than one thousand, plus the cookies of all programs that serve pages on this host, on any
/// port.
pub(crate) const LONGEST_HEAD: usize = 16 << 10;
/// The most fields of a request's head.
const MOST_FIELDS: usize = 64;
/// The most characters of a request that are shown to the user.
const LONGEST_QUOTE: usize = 80;

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The `x` of `HTTP/1.x`.
    pub(crate) minor_version: u8,
    fields: Vec<httparse::Header<'a>>,
    /// The bytes after it.
    pub(crate) rest: &'a [u8],
}

/// The reason why bytes are not the head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHead {
    Malformed,
    TooLong,
}

/// A field that may occur once occurred twice. The two ends of a connection might then use different values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeated;

impl<'a> Head<'a> {
    /// Parses the head at the start of these bytes; `None` if it is incomplete.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Option<Head<'a>>, BadHead> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(size)) if size <= LONGEST_HEAD => Ok(Some(Head {
                method: request.method.unwrap_or_default(),
                path: request.path.unwrap_or_default(),
                minor_version: request.version.unwrap_or_default(),
                fields: request.headers.to_vec(),
                rest: &bytes[size..],
            })),
            Ok(httparse::Status::Partial) if bytes.len() < LONGEST_HEAD => Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(BadHead::TooLong),
            Err(_) => Err(BadHead::Malformed),
        }
    }

    /// Returns the values of a field.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self
            .fields
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    /// Returns the value of a field that may occur once.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&'a [u8]>, Repeated> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(Repeated),
        }
    }
}

impl BadHead {
    /// Returns the answer to a bad head.
    pub(super) fn response(self) -> Vec<u8> {
        match self {
            BadHead::Malformed => Response::new("400 Bad Request").text("This is no HTTP request.\n"),
            BadHead::TooLong => Response::new("431 Request Header Fields Too Large").text(""),
        }
    }
}

/// The head of an answer, which is the last one on its connection.
#[derive(Debug)]
pub(crate) struct Response(String);

impl Response {
    /// Starts an answer with its status and the fields that all answers have. These keep caches from serving it to others, and keep browsers from
    /// guessing its type.
    pub(crate) fn new(status: &str) -> Response {
        Response(format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nVary: Origin\r\nCache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n"
        ))
    }

    /// Adds a field.
    pub(crate) fn with(self, name: &str, value: impl Display) -> Response {
        Response(self.0 + &format!("{name}: {value}\r\n"))
    }

    /// Returns the whole answer, with this text as its body.
    pub(crate) fn text(self, body: &str) -> Vec<u8> {
        let answer = self
            .with("Content-Type", "text/plain; charset=utf-8")
            .with("Content-Length", body.len());
        format!("{}\r\n{body}", answer.0).into_bytes()
    }

    /// Returns the head alone. The body follows separately, if there is one.
    pub(crate) fn head(self) -> Vec<u8> {
        (self.0 + "\r\n").into_bytes()
    }
}

/// Quotes a value from a stranger for a line on the terminal.
pub(crate) fn quoted(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let short: String = text.chars().take(LONGEST_QUOTE).collect();
    short.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
