//! The names under which producers and consumers find the tracing service.
//!
//! Called by the daemons when they listen and by every client when it connects. The rules are those of
//! upstream's `default_socket.cc`: an environment variable wins; otherwise `/run/perfetto/` when that
//! directory may be entered, and `/tmp` when not; on Android the sockets that its `init` makes.

use std::env::{self, VarError};
use std::fmt;
use std::path::Path;

use crate::address::{Address, AddressError};

/// Overrides where producers connect; a service listens on each entry of a comma-separated list.
pub const PRODUCER_SOCK_NAME: &str = "PERFETTO_PRODUCER_SOCK_NAME";
/// Overrides where consumers connect.
pub const CONSUMER_SOCK_NAME: &str = "PERFETTO_CONSUMER_SOCK_NAME";
/// Where a relay finds the service of another machine.
pub const RELAY_SOCK_NAME: &str = "PERFETTO_RELAY_SOCK_NAME";

const RUN_DIRECTORY: &str = "/run/perfetto/";

/// A socket name from the environment that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketNameError {
    /// The variable.
    pub variable: &'static str,
    /// The error in its value.
    pub reason: AddressError,
}

impl fmt::Display for SocketNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variable, reason } = self;
        write!(
            f,
            "the environment variable {variable} holds no usable socket name: {reason}"
        )
    }
}

impl std::error::Error for SocketNameError {}

/// The place of sockets unless the environment says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The well-known directory.
    Run,
    /// The place if that directory cannot be used.
    Tmp,
    Android,
}

/// Every address on which a service awaits producers, in order; never empty.
///
/// # Errors
/// If an environment variable that names it holds no address.
pub fn producer_addresses() -> Result<Vec<Address>, SocketNameError> {
    resolve_producers(variable(PRODUCER_SOCK_NAME)?, place)
}

/// The address at which a producer looks for the service: the first of [`producer_addresses`].
///
/// # Errors
/// If an environment variable that names it holds no address.
pub fn producer_address() -> Result<Address, SocketNameError> {
    let mut addresses = producer_addresses()?;
    Ok(addresses.swap_remove(0))
}

/// The address on which a service awaits consumers and where they look for it.
///
/// # Errors
/// If an environment variable that names it holds no address.
pub fn consumer_address() -> Result<Address, SocketNameError> {
    resolve_consumer(variable(CONSUMER_SOCK_NAME)?, place)
}

/// The address at which a relay looks for the service of another machine; `None` if the environment names none.
///
/// # Errors
/// If the variable holds no address.
pub fn relay_address() -> Result<Option<Address>, SocketNameError> {
    let name = variable(RELAY_SOCK_NAME)?.filter(|name| !name.is_empty());
    name.map(|name| parse(RELAY_SOCK_NAME, &name)).transpose()
}

/// The address that a variable names, else the first of these paths if its folder `/run/perfetto` may be entered, else the second.
///
/// # Errors
/// If the variable holds no address.
pub fn address_or(variable_name: &'static str, run: &str, tmp: &str) -> Result<Address, SocketNameError> {
    match (variable(variable_name)?, place()) {
        (Some(name), _) => parse(variable_name, &name),
        (None, Place::Run) => Ok(Address::Unix(run.into())),
        (None, Place::Tmp | Place::Android) => Ok(Address::Unix(tmp.into())),
    }
}

fn variable(variable: &'static str) -> Result<Option<String>, SocketNameError> {
    match env::var(variable) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => Err(SocketNameError {
            variable,
            reason: AddressError::NotUnicode(value),
        }),
    }
}

fn place() -> Place {
    if cfg!(target_os = "android") {
        return Place::Android;
    }
    // The dot in a folder can only be found by processes that may search the folder.
    match Path::new(RUN_DIRECTORY).join(".").metadata() {
        Ok(_) => Place::Run,
        Err(_) => Place::Tmp,
    }
}

fn resolve_producers(
    from_environment: Option<String>,
    place: impl Fn() -> Place,
) -> Result<Vec<Address>, SocketNameError> {
    let Some(list) = from_environment else {
        return Ok(vec![Address::Unix(
            match place() {
                Place::Run => "/run/perfetto/traced-producer.sock",
                Place::Tmp => "/tmp/perfetto-producer",
                Place::Android => "/dev/socket/traced_producer",
            }
            .into(),
        )]);
    };
    let addresses = list
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| parse(PRODUCER_SOCK_NAME, name))
        .collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() {
        return Err(SocketNameError {
            variable: PRODUCER_SOCK_NAME,
            reason: AddressError::Empty,
        });
    }
    Ok(addresses)
}

fn resolve_consumer(
    from_environment: Option<String>,
    place: impl Fn() -> Place,
) -> Result<Address, SocketNameError> {
    match from_environment {
        Some(name) => parse(CONSUMER_SOCK_NAME, &name),
        None => Ok(Address::Unix(
            match place() {
                Place::Run => "/run/perfetto/traced-consumer.sock",
                Place::Tmp => "/tmp/perfetto-consumer",
                Place::Android => "/dev/socket/traced_consumer",
            }
            .into(),
        )),
    }
}

fn parse(variable: &'static str, name: &str) -> Result<Address, SocketNameError> {
    name.parse()
        .map_err(|reason| SocketNameError { variable, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &str) -> Address {
        Address::Unix(path.into())
    }

    #[test]
    fn without_a_variable_the_run_directory_is_preferred_to_tmp() {
        let usable = || Place::Run;
        let absent = || Place::Tmp;
        assert_eq!(
            resolve_producers(None, usable),
            Ok(vec![unix("/run/perfetto/traced-producer.sock")])
        );
        assert_eq!(
            resolve_producers(None, absent),
            Ok(vec![unix("/tmp/perfetto-producer")])
        );
        assert_eq!(
            resolve_consumer(None, usable),
            Ok(unix("/run/perfetto/traced-consumer.sock"))
        );
        assert_eq!(resolve_consumer(None, absent), Ok(unix("/tmp/perfetto-consumer")));
    }

    #[test]
    fn on_android_init_makes_the_sockets() {
        let android = || Place::Android;
        assert_eq!(
            resolve_producers(None, android),
            Ok(vec![unix("/dev/socket/traced_producer")])
        );
        assert_eq!(
            resolve_consumer(None, android),
            Ok(unix("/dev/socket/traced_consumer"))
        );
    }

    #[test]
    fn a_variable_may_list_several_producer_sockets_but_one_consumer_socket() {
        let untouched = || panic!("the run directory must not matter");
        assert_eq!(
            resolve_producers(Some("/a,,@b,127.0.0.1:1".into()), untouched),
            Ok(vec![
                unix("/a"),
                Address::Abstract("b".into()),
                Address::Tcp {
                    host: "127.0.0.1".into(),
                    port: 1
                }
            ])
        );
        assert_eq!(resolve_consumer(Some("/a,b".into()), untouched), Ok(unix("/a,b")));
    }

    #[test]
    fn an_unusable_variable_is_named() {
        let error = resolve_producers(Some(",".into()), place).unwrap_err();
        assert!(error.to_string().contains(PRODUCER_SOCK_NAME), "{error}");
        let error = resolve_consumer(Some("vsock://x".into()), place).unwrap_err();
        assert!(error.to_string().contains(CONSUMER_SOCK_NAME), "{error}");
    }
}
