//! The default permissions of the sockets of root's daemons: on a machine that has the group [`GROUP`], everybody offers data, and the members
//! of the group record. On others, the umask decides, as upstream.
//!
//! The daemons ask when they make their sockets. Sockets that were handed over, and those with a flag of their own, are not affected.

use ferretto_ipc::Address;
use ferretto_ipc::transport::{PermissionsError, SocketPermissions};

use crate::log;

/// The group of those who may record.
pub const GROUP: &str = "ferretto";

/// The users of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// Programs that offer data, or may be profiled.
    Everybody,
    /// The users who see the activity of all processes.
    Members,
}

/// The permissions of a socket with this name, if it is one of root's and the machine has the group.
pub(crate) fn permissions(address: &Address, users: Users) -> Option<SocketPermissions> {
    if address.path().is_none() || !rustix::process::geteuid().is_root() {
        return None;
    }
    match format!("{GROUP}:0660").parse::<SocketPermissions>() {
        Ok(members) => Some(match users {
            Users::Members => members,
            Users::Everybody => "-1:0666".parse().ok()?,
        }),
        Err(PermissionsError::NoSuchGroup(_)) => None,
        Err(error) => {
            log::warning(format_args!("{error}; the umask decides who may use {address}"));
            None
        }
    }
}
