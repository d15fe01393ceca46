//! The sockets on which the service listens: those that its starter (systemd or Android's init) handed over, else those that the environment names,
//! else upstream's usual ones.
//!
//! Called once, when the daemon starts. All or nothing: after an error, sockets that were already bound are removed again.

use std::error::Error;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ferretto_host::Port;
use ferretto_ipc::socket_names::{self, CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME};
use ferretto_ipc::transport::{PermissionsError, SocketPermissions, TransportError};
use ferretto_ipc::{Address, Listener};

use crate::socket_groups::{self, Users};
use crate::{inherited, log};

/// The first descriptor that systemd hands over, sd_listen_fds(3).
const LISTEN_FDS_START: i32 = 3;

/// Group and mode of the sockets of either kind.
#[derive(Debug, Clone)]
pub(super) struct Permissions {
    producers: SocketPermissions,
    consumers: SocketPermissions,
}

impl FromStr for Permissions {
    type Err = PermissionsError;

    /// Parses `group:mode:group:mode`. Colons too many do not matter, as upstream.
    fn from_str(text: &str) -> Result<Permissions, PermissionsError> {
        let parts: Vec<&str> = text.split(':').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            [for_producers, producers, for_consumers, consumers] => Ok(Permissions {
                producers: format!("{for_producers}:{producers}").parse()?,
                consumers: format!("{for_consumers}:{consumers}").parse()?,
            }),
            _ => Err(PermissionsError::Parts(parts.len())),
        }
    }
}

/// Which of the sockets for producers relays of other machines may use, too.
#[derive(Debug)]
pub(super) struct Relays {
    /// All sockets, except one that Android's init made: that is for this machine, as in upstream.
    pub(super) everywhere: bool,
    /// The sockets with these names.
    pub(super) at: Vec<Address>,
}

impl Relays {
    /// Returns the clients that may use a producers' socket of this name; systemd's have none.
    fn port(&self, name: Option<&Address>) -> Port {
        if self.everywhere || name.is_some_and(|name| self.at.contains(name)) {
            Port::ProducerOrRelay
        } else {
            Port::Producer
        }
    }

    /// The chosen names that are none of these.
    fn stray(&self, names: &[Address]) -> Option<&Address> {
        self.at.iter().find(|name| !names.contains(name))
    }
}

/// Why the service cannot listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error("LISTEN_FDS={0} is no number of sockets")]
    Count(String),
    #[error("LISTEN_FDNAMES has {names} names for the {fds} sockets of LISTEN_FDS: {NAMING}")]
    Names { names: usize, fds: i32 },
    #[error("a socket that was handed over is called {name:?}: {NAMING}")]
    Name { name: String },
    #[error("{0}, which was handed over as a socket, cannot be used: {1}")]
    Descriptor(String, Box<dyn Error>),
    #[error(
        "{0} is set and {1} is not: sockets are handed over for producers and for consumers, or for neither"
    )]
    Half(&'static str, &'static str),
    #[error(
        "--enable-relay-endpoint-on {0}: the service does not listen for producers there; the flag picks among the names in \
         {PRODUCER_SOCK_NAME}"
    )]
    NoSuchSocket(Address),
    #[error("two sockets would have the name {address}: see {PRODUCER_SOCK_NAME} and {CONSUMER_SOCK_NAME}")]
    Twice { address: Address },
    #[error(transparent)]
    Environment(#[from] socket_names::SocketNameError),
    #[error(transparent)]
    Variable(#[from] inherited::InheritedError),
    #[error(transparent)]
    Bind(#[from] TransportError),
}

const NAMING: &str = "say FileDescriptorName=producer or FileDescriptorName=consumer in each socket unit";

/// Sockets that were handed over, and their names for the log.
#[derive(Debug, Default)]
pub(super) struct Handed(Vec<(OwnedFd, Port, String)>);

impl Handed {
    /// Takes the sockets that the environment names. To be called before the process opens descriptors that it keeps, and before it forks.
    pub(super) fn take(relays: &Relays) -> Result<Handed, ListenError> {
        let mut handed = Handed::default();
        handed.take_from_systemd(relays)?;
        handed.take_from_init()?;
        Ok(handed)
    }

    fn take_from_systemd(&mut self, relays: &Relays) -> Result<(), ListenError> {
        for (fd, port, name) in sockets_of_systemd()? {
            let port = match port {
                Port::Producer => relays.port(None),
                port => port,
            };
            self.0.push((fd, port, name));
        }
        Ok(())
    }

    /// Takes the sockets of Android's init, whose variables upstream heeds everywhere.
    fn take_from_init(&mut self) -> Result<(), ListenError> {
        const PRODUCER: &str = "ANDROID_SOCKET_traced_producer";
        const CONSUMER: &str = "ANDROID_SOCKET_traced_consumer";
        let given = |variable| std::env::var_os(variable).is_some();
        match (given(PRODUCER), given(CONSUMER)) {
            (false, false) => return Ok(()),
            (true, false) => return Err(ListenError::Half(PRODUCER, CONSUMER)),
            (false, true) => return Err(ListenError::Half(CONSUMER, PRODUCER)),
            (true, true) => {}
        }
        for (variable, port) in [(PRODUCER, Port::Producer), (CONSUMER, Port::Consumer)] {
            if let Some(fd) = inherited::named_by(variable)? {
                self.0.push((fd, port, variable.to_owned()));
            }
        }
        Ok(())
    }

    fn has_producers(&self) -> bool {
        self.0.iter().any(|(_, port, _)| *port != Port::Consumer)
    }

    fn has_consumers(&self) -> bool {
        self.0.iter().any(|(_, port, _)| *port == Port::Consumer)
    }
}

/// Takes the sockets that systemd hands over, with a name for the log. To be called before the process opens descriptors that it keeps, and before it
/// forks.
pub(crate) fn sockets_of_systemd() -> Result<Vec<(OwnedFd, Port, String)>, ListenError> {
    // Variables that stayed in the environment of a child are not for it.
    let us = std::process::id().to_string();
    let (true, Ok(count)) = (
        std::env::var("LISTEN_PID").is_ok_and(|pid| pid == us),
        std::env::var("LISTEN_FDS"),
    ) else {
        return Ok(Vec::new());
    };
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let sockets = named_sockets(&count, &names)?.into_iter();
    let taken = sockets.map(|(number, port)| {
        let name = format!("descriptor {number}");
        match inherited::take(number) {
            Ok(fd) => Ok((fd, port, name)),
            Err(error) => Err(ListenError::Descriptor(name, error.into())),
        }
    });
    taken.collect()
}

/// Reads `LISTEN_FDS` and `LISTEN_FDNAMES`.
fn named_sockets(count: &str, names: &str) -> Result<Vec<(i32, Port)>, ListenError> {
    let fds: i32 = count
        .parse()
        .ok()
        .filter(|count| (0..1024).contains(count))
        .ok_or_else(|| ListenError::Count(count.to_owned()))?;
    let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
    if usize::try_from(fds) != Ok(names.len()) {
        return Err(ListenError::Names {
            names: names.len(),
            fds,
        });
    }
    let port = |name: &str| match name {
        "producer" => Ok(Port::Producer),
        "consumer" => Ok(Port::Consumer),
        other => Err(ListenError::Name {
            name: other.to_owned(),
        }),
    };
    (LISTEN_FDS_START..)
        .zip(names)
        .map(|(fd, name)| Ok((fd, port(name)?)))
        .collect()
}

/// The sockets of a service that listens.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    pub(super) sockets: Vec<(Listener, Port)>,
    /// For the log.
    pub(super) names: Vec<String>,
    /// The folders of sockets that are files, which the service removes at its end.
    pub(super) folders: Vec<PathBuf>,
}

impl Listeners {
    fn push(&mut self, listener: Listener, port: Port, name: &dyn Display) {
        self.sockets.push((listener, port));
        self.names.push(name.to_string());
    }
}

/// Listens. Where no socket for producers or consumers was handed over, they find the service under the names in the environment. `permissions` are
/// for sockets that are files; network addresses for producers have none, as in upstream.
pub(super) fn listen(
    handed: Handed,
    permissions: Option<&Permissions>,
    relays: &Relays,
) -> Result<Listeners, ListenError> {
    let mut listeners = Listeners::default();
    match bind_all(handed, permissions, relays, &mut listeners) {
        Ok(()) => Ok(listeners),
        Err(error) => {
            listeners
                .sockets
                .into_iter()
                .for_each(|(listener, _)| listener.close());
            Err(error)
        }
    }
}

fn bind_all(
    handed: Handed,
    permissions: Option<&Permissions>,
    relays: &Relays,
    listeners: &mut Listeners,
) -> Result<(), ListenError> {
    let mut for_producers = Vec::new();
    if !handed.has_producers() {
        for_producers = socket_names::producer_addresses()?;
    }
    if let Some(stray) = relays.stray(&for_producers) {
        return Err(ListenError::NoSuchSocket(stray.clone()));
    }
    let mut wanted: Vec<(Address, Port)> = for_producers
        .into_iter()
        .map(|address| {
            let port = relays.port(Some(&address));
            (address, port)
        })
        .collect();
    if !handed.has_consumers() {
        wanted.push((socket_names::consumer_address()?, Port::Consumer));
    }
    for (position, (address, _)) in wanted.iter().enumerate() {
        if wanted[..position].iter().any(|(earlier, _)| earlier == address) {
            return Err(ListenError::Twice {
                address: address.clone(),
            });
        }
    }
    if permissions.is_some() && !handed.0.is_empty() {
        log::warning(format_args!(
            "--set-socket-permissions is not for sockets that were handed over: their group and mode stay as they are"
        ));
    }
    for (fd, port, name) in handed.0 {
        let listener =
            Listener::from_fd(fd).map_err(|error| ListenError::Descriptor(name.clone(), error.into()))?;
        listeners.push(listener, port, &name);
    }
    for (address, port) in wanted {
        let permissions = match (permissions, port) {
            (Some(permissions), Port::Producer | Port::ProducerOrRelay) => {
                Some(permissions.producers.clone()).filter(|_| address.is_unix())
            }
            (Some(permissions), Port::Consumer) => Some(permissions.consumers.clone()),
            (None, Port::Producer | Port::ProducerOrRelay) => {
                socket_groups::permissions(&address, Users::Everybody)
            }
            (None, Port::Consumer) => socket_groups::permissions(&address, Users::Members),
        };
        let listener = match permissions {
            Some(permissions) => Listener::bind_with(&address, &permissions)?,
            None => Listener::bind(&address)?,
        };
        listeners.push(listener, port, &address);
        let path = address.path().and_then(|path| std::path::absolute(path).ok());
        listeners
            .folders
            .extend(path.as_deref().and_then(Path::parent).map(Path::to_owned));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_two_groups_and_two_modes() {
        let parsed: Permissions = "-1:0600:7:0666".parse().unwrap();
        assert_eq!(parsed.producers, "-1:0600".parse().unwrap());
        assert_eq!(parsed.consumers, "7:0666".parse().unwrap());
        assert!(":0:0600::1:0600:".parse::<Permissions>().is_ok());
        for (text, parts) in [("", 0), ("a:b", 2), ("0::0:0660", 3), ("0:0660:0:0660:0", 5)] {
            let error = text.parse::<Permissions>().unwrap_err();
            assert!(
                matches!(error, PermissionsError::Parts(count) if count == parts),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn sockets_of_systemd_are_recognised_by_their_names() {
        let sockets = named_sockets("3", "consumer:producer:producer").unwrap();
        assert_eq!(
            sockets,
            [(3, Port::Consumer), (4, Port::Producer), (5, Port::Producer)]
        );
        assert_eq!(named_sockets("0", "").unwrap(), []);
        for count in ["", "-1", "x", "1024", "99999999999"] {
            assert!(
                matches!(named_sockets(count, ""), Err(ListenError::Count(_))),
                "{count}"
            );
        }
        for names in ["", "producer", "a:b:c"] {
            let error = named_sockets("2", names).unwrap_err();
            assert!(
                matches!(error, ListenError::Names { fds: 2, .. }),
                "{names}: {error}"
            );
        }
        let error = named_sockets("2", "producer:traced.socket").unwrap_err();
        assert!(
            error.to_string().contains("FileDescriptorName=consumer"),
            "{error}"
        );
    }
}
