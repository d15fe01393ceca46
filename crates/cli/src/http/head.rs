//! The head of a request, within bounds, and the head of an answer.
//!
//! Called by [`server`](super::server) with the bytes that a connection brought, and by the applications, which look into heads and answer.
//! No I/O. `httparse` takes requests apart: no dependencies, strict, and what Rust's HTTP servers stand on.

use std::fmt::Display;

/// Bytes of a request's head. Browsers send less than one thousand, and with them the cookies of every program that serves pages on this
/// host, whatever its port.
pub(crate) const LONGEST_HEAD: usize = 16 << 10;
/// Fields of a request's head.
const MOST_FIELDS: usize = 64;
/// Characters of what a request says that are repeated to the user.
const LONGEST_QUOTE: usize = 80;

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The `x` of `HTTP/1.x`.
    pub(crate) minor_version: u8,
    fields: Vec<httparse::Header<'a>>,
    /// What has come behind it.
    pub(crate) rest: &'a [u8],
}

/// Why bytes are not the head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHead {
    Malformed,
    TooLong,
}

/// A field that may come once came twice: one end could heed the first, and the other end the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeated;

impl<'a> Head<'a> {
    /// The head that these bytes start with; `None` if it goes on.
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

    /// The values of a field.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self
            .fields
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    /// The value of a field that may come once.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&'a [u8]>, Repeated> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(Repeated),
        }
    }
}

impl BadHead {
    /// The answer.
    pub(super) fn response(self) -> Vec<u8> {
        match self {
            BadHead::Malformed => Response::new("400 Bad Request").text("This is no HTTP request.\n"),
            BadHead::TooLong => Response::new("431 Request Header Fields Too Large").text(""),
        }
    }
}

/// The head of an answer, the last on its connection.
#[derive(Debug)]
pub(crate) struct Response(String);

impl Response {
    /// Status and reason, and what each answer says: it is for those who may have it today, and as what it claims to be.
    pub(crate) fn new(status: &str) -> Response {
        Response(format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nVary: Origin\r\nCache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n"
        ))
    }

    /// With this field.
    pub(crate) fn with(self, name: &str, value: impl Display) -> Response {
        Response(self.0 + &format!("{name}: {value}\r\n"))
    }

    /// The whole of an answer whose body is text.
    pub(crate) fn text(self, body: &str) -> Vec<u8> {
        let answer = self
            .with("Content-Type", "text/plain; charset=utf-8")
            .with("Content-Length", body.len());
        format!("{}\r\n{body}", answer.0).into_bytes()
    }

    /// The head alone: there is no body, or it comes behind.
    pub(crate) fn head(self) -> Vec<u8> {
        (self.0 + "\r\n").into_bytes()
    }
}

/// What a stranger says, for a line on the terminal.
pub(crate) fn quoted(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let short: String = text.chars().take(LONGEST_QUOTE).collect();
    short.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
