//! The concrete addresses that an [`Address`] stands for, which are tried one after the other.

use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{TransportError, sys};
use crate::address::Address;

/// One concrete address to try.
pub(super) enum Endpoint {
    Unix(SocketAddrUnix),
    Internet(std::net::SocketAddr),
    Vsock(sys::VsockAddress),
}

impl Endpoint {
    fn family(&self) -> AddressFamily {
        match self {
            Endpoint::Unix(_) => AddressFamily::UNIX,
            Endpoint::Internet(std::net::SocketAddr::V4(_)) => AddressFamily::INET,
            Endpoint::Internet(std::net::SocketAddr::V6(_)) => AddressFamily::INET6,
            Endpoint::Vsock(_) => AddressFamily::VSOCK,
        }
    }

    pub(super) fn bind(&self, fd: &OwnedFd) -> Result<(), Errno> {
        fn bind(fd: &OwnedFd, address: &impl SocketAddrArg) -> Result<(), Errno> {
            rustix::net::bind(fd, address)
        }
        match self {
            Endpoint::Unix(address) => bind(fd, address),
            Endpoint::Internet(address) => bind(fd, address),
            Endpoint::Vsock(address) => bind(fd, address),
        }
    }

    pub(super) fn connect(&self, fd: &OwnedFd) -> Result<(), Errno> {
        match self {
            Endpoint::Unix(address) => rustix::net::connect(fd, address),
            Endpoint::Internet(address) => rustix::net::connect(fd, address),
            Endpoint::Vsock(address) => rustix::net::connect(fd, address),
        }
    }
}

/// Makes a non-blocking socket and runs `action` on it, for each endpoint that `address` stands for until one
/// succeeds.
pub(super) fn on_each_endpoint(
    address: &Address,
    socket_type: SocketType,
    failed: impl Fn(Errno) -> TransportError,
    mut action: impl FnMut(&OwnedFd, &Endpoint) -> Result<(), Errno>,
) -> Result<OwnedFd, TransportError> {
    let mut last_error = Errno::ADDRNOTAVAIL;
    for endpoint in endpoints(address, &failed)? {
        let attempt = rustix::net::socket_with(
            endpoint.family(),
            socket_type,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .and_then(|fd| action(&fd, &endpoint).map(|()| fd));
        match attempt {
            Ok(fd) => return Ok(fd),
            Err(source) => last_error = source,
        }
    }
    Err(failed(last_error))
}

fn endpoints(
    address: &Address,
    failed: impl Fn(Errno) -> TransportError,
) -> Result<Vec<Endpoint>, TransportError> {
    Ok(match address {
        Address::Unix(path) => vec![Endpoint::Unix(
            SocketAddrUnix::new(path.as_path()).map_err(failed)?,
        )],
        Address::Abstract(name) => {
            vec![Endpoint::Unix(
                SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?,
            )]
        }
        Address::Vsock { cid, port } => vec![Endpoint::Vsock(sys::VsockAddress::new(*cid, *port))],
        Address::Tcp { .. } => {
            let found = internet_addresses(address)?.unwrap_or_default();
            found.into_iter().map(Endpoint::Internet).collect()
        }
    })
}

/// Looks up a TCP address. `None` for others.
pub(super) fn internet_addresses(
    address: &Address,
) -> Result<Option<Vec<std::net::SocketAddr>>, TransportError> {
    let Address::Tcp { host, port } = address else {
        return Ok(None);
    };
    match (host.as_str(), *port).to_socket_addrs() {
        Ok(found) => Ok(Some(found.collect())),
        Err(error) => Err(TransportError::Lookup {
            address: address.clone(),
            reason: error.to_string(),
        }),
    }
}

/// Looks up the host of a TCP address, which may take long. Returns an address with numbers for each of the host's, in the order in which to try them.
/// Others stand for themselves.
///
/// # Errors
/// If the host is not known.
pub fn look_up(address: &Address) -> Result<Vec<Address>, TransportError> {
    let source = |source| TransportError::Connect {
        address: address.clone(),
        source,
    };
    let found = endpoints(address, source)?
        .into_iter()
        .map(|endpoint| match endpoint {
            Endpoint::Internet(std::net::SocketAddr::V6(found)) if found.scope_id() != 0 => Address::Tcp {
                host: format!("{}%{}", found.ip(), found.scope_id()),
                port: found.port(),
            },
            Endpoint::Internet(found) => Address::Tcp {
                host: found.ip().to_string(),
                port: found.port(),
            },
            Endpoint::Unix(_) | Endpoint::Vsock(_) => address.clone(),
        });
    Ok(found.collect())
}
