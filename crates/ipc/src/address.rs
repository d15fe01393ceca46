//! Socket addresses as people type them in `PERFETTO_*_SOCK_NAME`.
//!
//! Called by [`crate::socket_names`] and by programs that take an address on the command line. The grammar is that of upstream's
//! `base::GetSockFamily`: `@name` is an abstract Unix socket, `vsock://cid:port` a vsock, anything that ends in `:<number>` is TCP (`[v6
//! address]:port` for IPv6), all else a path.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const VSOCK_PREFIX: &str = "vsock://";

/// The context id of the machine itself: `VMADDR_CID_LOCAL`.
const VSOCK_LOOPBACK: u32 = 1;

/// Longest path or abstract name in bytes: `sun_path` holds 108, one of them a NUL or the abstract marker.
pub const MAX_UNIX_NAME: usize = 107;

/// Where a socket listens or is connected to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket with a file name.
    Unix(PathBuf),
    /// A Unix socket in the abstract namespace; the name is without the leading `@`.
    Abstract(String),
    /// TCP. The host may be a name, which is looked up (blocking) when the address is used.
    Tcp {
        /// Host name or literal address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A socket between a virtual machine and its host.
    Vsock {
        /// Context id of the machine: 2 is the host, `u32::MAX` any.
        cid: u32,
        /// Port.
        port: u32,
    },
}

/// Why a socket name is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressError {
    /// The name has no characters.
    Empty,
    /// The name does not fit into a Unix socket address.
    TooLong {
        /// The name.
        name: String,
        /// Its length.
        len: usize,
    },
    /// The name is not text.
    NotUnicode(OsString),
    /// A NUL byte inside a path.
    ContainsNul(String),
    /// The number after the last colon is not a port.
    BadPort {
        /// The whole name.
        name: String,
        /// The text in the place of the port.
        port: String,
    },
    /// Something other than `host:port` or `[v6]:port` before a port.
    BadHost(String),
    /// `vsock://` without two numbers.
    BadVsock(String),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::Empty => f.write_str(
                "the socket name is empty: give a path, @abstract-name, host:port or vsock://cid:port",
            ),
            AddressError::TooLong { name, len } => write!(
                f,
                "the socket name {name:?} is {len} bytes long; a Unix socket name has at most {MAX_UNIX_NAME}"
            ),
            AddressError::NotUnicode(value) => {
                write!(f, "the socket name {value:?} is not UTF-8; choose another path")
            }
            AddressError::ContainsNul(value) => write!(f, "the socket path {value:?} contains a NUL byte"),
            AddressError::BadPort { name, port } => write!(
                f,
                "{name:?} ends in a number, so it is a TCP address, but {port} is not a port between 0 and 65535"
            ),
            AddressError::BadHost(value) => write!(
                f,
                "{value:?} is not a TCP address: write host:port, or [address]:port for IPv6"
            ),
            AddressError::BadVsock(value) => write!(
                f,
                "{value:?} is not a vsock address: write vsock://<context id>:<port>, both decimal numbers"
            ),
        }
    }
}

impl std::error::Error for AddressError {}

impl Address {
    /// The socket file, for sockets that have one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::Unix(path) => Some(path),
            _ => None,
        }
    }

    /// The same socket for a process that will change its folder.
    pub fn absolute(self) -> Address {
        match self {
            Address::Unix(path) => Address::Unix(std::path::absolute(&path).unwrap_or(path)),
            other => other,
        }
    }

    /// Whether the kernel vouches for the peer and passes descriptors (and so whether memory can be shared).
    pub fn is_unix(&self) -> bool {
        matches!(self, Address::Unix(_) | Address::Abstract(_))
    }

    /// Whether the socket can be another machine's. It cannot be if it is a Unix socket, or has the name or an address of the loopback.
    pub fn may_leave_machine(&self) -> bool {
        match self {
            Address::Unix(_) | Address::Abstract(_) => false,
            Address::Tcp { host, .. } => {
                host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Address::Vsock { cid, .. } => *cid != VSOCK_LOOPBACK,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(name: &str) -> Result<Self, AddressError> {
        if name.is_empty() {
            return Err(AddressError::Empty);
        }
        if let Some(abstract_name) = name.strip_prefix('@') {
            check_unix_length(name, abstract_name.len())?;
            return Ok(Address::Abstract(abstract_name.to_owned()));
        }
        if let Some(rest) = name.strip_prefix(VSOCK_PREFIX) {
            return parse_vsock(rest).ok_or_else(|| AddressError::BadVsock(name.to_owned()));
        }
        if let Some((host, port)) = name.rsplit_once(':')
            && port.parse::<i32>().is_ok()
        {
            return parse_tcp(name, host, port);
        }
        if name.contains('\0') {
            return Err(AddressError::ContainsNul(name.to_owned()));
        }
        check_unix_length(name, name.len())?;
        Ok(Address::Unix(PathBuf::from(name)))
    }
}

fn check_unix_length(name: &str, len: usize) -> Result<(), AddressError> {
    if len > MAX_UNIX_NAME {
        return Err(AddressError::TooLong {
            name: name.to_owned(),
            len,
        });
    }
    Ok(())
}

fn parse_vsock(rest: &str) -> Option<Address> {
    let (cid, port) = rest.split_once(':')?;
    Some(Address::Vsock {
        cid: cid.parse().ok()?,
        port: port.parse().ok()?,
    })
}

fn parse_tcp(name: &str, host: &str, port: &str) -> Result<Address, AddressError> {
    let port = port.parse().map_err(|_| AddressError::BadPort {
        name: name.to_owned(),
        port: port.to_owned(),
    })?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed
            .strip_suffix(']')
            .filter(|host| !host.contains(['[', ']'])),
        None => Some(host).filter(|host| !host.contains(':')),
    };
    match host {
        Some(host) if !host.is_empty() => Ok(Address::Tcp {
            host: host.to_owned(),
            port,
        }),
        _ => Err(AddressError::BadHost(name.to_owned())),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Abstract(name) => write!(f, "@{name}"),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Vsock { cid, port } => write!(f, "{VSOCK_PREFIX}{cid}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_can_be_another_machines_are_told_from_those_of_this_one() {
        for here in [
            "/run/x",
            "@x",
            "localhost:80",
            "127.9.9.9:80",
            "[::1]:80",
            "vsock://1:80",
        ] {
            assert!(!here.parse::<Address>().unwrap().may_leave_machine(), "{here}");
        }
        for there in [
            "192.0.2.1:80",
            "[2001:db8::1]:80",
            "build.example:80",
            "vsock://2:80",
        ] {
            assert!(there.parse::<Address>().unwrap().may_leave_machine(), "{there}");
        }
    }

    #[test]
    fn each_family_is_recognised_by_its_spelling_and_printed_back_the_same() {
        let cases = [
            (
                "/tmp/perfetto-producer",
                Address::Unix("/tmp/perfetto-producer".into()),
            ),
            ("relative", Address::Unix("relative".into())),
            ("/tmp/with:colon", Address::Unix("/tmp/with:colon".into())),
            ("@traced", Address::Abstract("traced".into())),
            ("@with:1234", Address::Abstract("with:1234".into())),
            (
                "127.0.0.1:32278",
                Address::Tcp {
                    host: "127.0.0.1".into(),
                    port: 32278,
                },
            ),
            (
                "localhost:80",
                Address::Tcp {
                    host: "localhost".into(),
                    port: 80,
                },
            ),
            (
                "[::1]:80",
                Address::Tcp {
                    host: "::1".into(),
                    port: 80,
                },
            ),
            ("vsock://2:30001", Address::Vsock { cid: 2, port: 30001 }),
            (
                "vsock://4294967295:7",
                Address::Vsock {
                    cid: u32::MAX,
                    port: 7,
                },
            ),
        ];
        for (name, expected) in cases {
            let address: Address = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(address, expected, "{name}");
            assert_eq!(address.to_string(), name);
        }
    }

    #[test]
    fn invalid_names_are_refused_with_a_hint() {
        let long = "x".repeat(108);
        assert_eq!("".parse::<Address>(), Err(AddressError::Empty));
        assert!(matches!(
            long.parse::<Address>(),
            Err(AddressError::TooLong { len: 108, .. })
        ));
        assert!(matches!(
            "host:70000".parse::<Address>(),
            Err(AddressError::BadPort { .. })
        ));
        assert!(matches!(
            "host:-1".parse::<Address>(),
            Err(AddressError::BadPort { .. })
        ));
        assert!(matches!(
            "::1:80".parse::<Address>(),
            Err(AddressError::BadHost(_))
        ));
        assert!(matches!(
            "[::1:80".parse::<Address>(),
            Err(AddressError::BadHost(_))
        ));
        assert!(matches!(":80".parse::<Address>(), Err(AddressError::BadHost(_))));
        let none = [
            "",
            "2",
            "2:",
            ":1",
            "a:1",
            "2:b",
            "-1:1",
            "2:-1",
            "2:1:3",
            "2:1 ",
            "0x2:1",
            "4294967296:1",
            "2:4294967296",
        ];
        for rest in none {
            let name = format!("vsock://{rest}");
            let error = name.parse::<Address>().unwrap_err();
            assert_eq!(error, AddressError::BadVsock(name.clone()));
            assert!(
                error.to_string().contains("vsock://<context id>:<port>"),
                "{error}"
            );
        }
        assert!(matches!(
            "a\0b".parse::<Address>(),
            Err(AddressError::ContainsNul(_))
        ));
    }
}
