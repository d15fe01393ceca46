//! Addresses: of the UI, of a page that fetches a trace, and of this machine as the browser sees it.
//!
//! [`run`](super::run) calls it. Its only I/O is reading the environment.

use std::fmt::Write;
use std::str::FromStr;

use super::request::TRACE_FOLDER;

/// The address of the public Perfetto UI.
pub(super) const PUBLIC_UI: &str = "https://ui.perfetto.dev";

/// A Perfetto UI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ui {
    /// Its address, without a slash at the end.
    base: String,
    /// The value of `Origin` that browsers send for its pages.
    origin: String,
}

impl Default for Ui {
    fn default() -> Ui {
        Ui {
            base: PUBLIC_UI.to_owned(),
            origin: PUBLIC_UI.to_owned(),
        }
    }
}

/// An error: the text is no address of a UI.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("write the address of a Perfetto UI, like {PUBLIC_UI} or http://localhost:10000")]
pub(super) struct NoUi;

impl FromStr for Ui {
    type Err = NoUi;

    /// Parses `scheme://host[:port][/folder]`. The origin is the part that browsers send, in their spelling (RFC 6454, section 6.1): in lower case,
    /// and without a port that the scheme implies.
    fn from_str(address: &str) -> Result<Ui, NoUi> {
        let base = address.trim_end_matches('/');
        // The text becomes part of a header, and of an address that continues with `/#!/`.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '#' | '?' | '@' | '\\' | '"' | '<' | '>');
        let (scheme, rest) = base.split_once("://").ok_or(NoUi)?;
        let authority = rest.split('/').next().unwrap_or_default();
        if !base.chars().all(plain) || authority.is_empty() || authority.starts_with(':') {
            return Err(NoUi);
        }
        let scheme = scheme.to_ascii_lowercase();
        let implied_port = match scheme.as_str() {
            "http" => ":80",
            "https" => ":443",
            _ => return Err(NoUi),
        };
        let authority = authority.to_ascii_lowercase();
        let authority = authority.strip_suffix(implied_port).unwrap_or(&authority);
        Ok(Ui {
            base: base.to_owned(),
            origin: format!("{scheme}://{authority}"),
        })
    }
}

impl Ui {
    /// Returns the value of `Origin` that browsers send for its pages.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether this is the public UI, whose content security policy is known.
    pub(super) fn is_public(&self) -> bool {
        self.origin == PUBLIC_UI
    }

    /// Returns its host and port for a connection.
    pub(super) fn host_and_port(&self) -> (String, u16) {
        let (scheme, authority) = self.origin.split_once("://").unwrap_or_default();
        let implied = if scheme == "http" { 80 } else { 443 };
        let (host, port) = match authority.rsplit_once(':') {
            // An IPv6 address has colons as well, inside brackets.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(implied)),
            _ => (authority, implied),
        };
        (host.trim_matches(['[', ']']).to_owned(), port)
    }

    /// Returns the address that makes the UI fetch the file of this name from this port of the browser's machine. For plain names it is the address
    /// of upstream's tools, which encode nothing.
    pub(super) fn address(&self, port: u16, file_name: &[u8]) -> String {
        format!(
            "{}/#!/?url=http://127.0.0.1:{port}/{}&referrer=open_trace_in_ui",
            self.base,
            encoded_twice_where_needed(file_name)
        )
    }
}

/// Returns the address that makes a copy of the UI on this port of the browser's machine fetch the file of this name beside it.
pub(super) fn address_of_copy(port: u16, file_name: &[u8]) -> String {
    format!(
        "http://127.0.0.1:{port}/#!/?url=http://127.0.0.1:{port}{TRACE_FOLDER}{}&referrer=open_trace_in_ui",
        encoded_twice_where_needed(file_name)
    )
}

/// Encodes a file name for the UI's argument `url`. The UI decodes the argument, shows the part after the last slash as the trace's name, and fetches
/// the whole as an address, for which the browser encodes most characters. So one level of encoding is enough and keeps the shown name readable.
/// Characters that have a meaning in addresses, or that browsers drop, need two levels.
fn encoded_twice_where_needed(file_name: &[u8]) -> String {
    const ONCE: &str = "%";
    const TWICE: &str = "%25";
    let mut out = String::with_capacity(file_name.len());
    for chunk in file_name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let bytes = &mut [0; 4];
            let bytes = c.encode_utf8(bytes).as_bytes();
            match c {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '_' | '~' => out.push(c),
                '#' | '?' | '%' | '\\' => push_percent(&mut out, TWICE, bytes),
                c if c.is_control() => push_percent(&mut out, TWICE, bytes),
                _ => push_percent(&mut out, ONCE, bytes),
            }
        }
        push_percent(&mut out, TWICE, chunk.invalid());
    }
    // Browsers remove spaces from the end of an address.
    let name = out.trim_end_matches("%20").len();
    let spaces = (out.len() - name) / "%20".len();
    out.truncate(name);
    out.push_str(&"%2520".repeat(spaces));
    out
}

fn push_percent(out: &mut String, escape: &str, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "{escape}{byte:02X}");
    }
}

/// Decodes the percent-encoding of a request's path. Malformed encodings remain as they are.
pub(super) fn decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let encoded = (bytes[at] == b'%')
            .then(|| path.get(at + 1..at + 3))
            .flatten()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match encoded {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

/// The ssh login of the user, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SshLogin {
    user: Option<String>,
    /// The address by which the client reached this machine; the user may have typed another one.
    host: String,
    port: Option<u16>,
}

impl SshLogin {
    /// Reads the login from the environment that `sshd` sets.
    pub(super) fn of_this_process() -> Option<SshLogin> {
        let variable = |name| std::env::var(name).ok();
        let connection = variable("SSH_CONNECTION")?;
        Some(SshLogin::from_variables(&connection, variable("USER")))
    }

    /// Parses `SSH_CONNECTION`, which has the client's address and port, then the server's (sshd(8), ENVIRONMENT).
    fn from_variables(connection: &str, user: Option<String>) -> SshLogin {
        let mut fields = connection.split_ascii_whitespace().skip(2);
        let host = fields.next().filter(|host| {
            host.bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'%' | b'-'))
        });
        let port = fields.next().and_then(|port| port.parse().ok());
        let user = user.filter(|user| {
            !user.is_empty()
                && user
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        });
        SshLogin {
            user,
            host: host.unwrap_or("HOST").to_owned(),
            port,
        }
    }

    /// Returns the command that forwards `near_port` of the browser's machine to `far_port` of this one.
    pub(super) fn tunnel(&self, near_port: u16, far_port: u16) -> String {
        let mut line = format!("ssh -L {near_port}:localhost:{far_port} ");
        if let Some(port) = self.port.filter(|port| *port != 22) {
            let _ = write!(line, "-p {port} ");
        }
        if let Some(user) = &self.user {
            let _ = write!(line, "{user}@");
        }
        line + &self.host
    }
}

#[cfg(test)]
mod tests;
