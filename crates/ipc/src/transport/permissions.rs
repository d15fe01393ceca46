//! Group and mode of a socket file, as `traced --set-socket-permissions group:mode:…` asks for.
//!
//! Called by [`Listener`](super::Listener) between binding and listening, so that no client connects before. Upstream never changes modes unasked:
//! without this, the umask decides.

use std::ffi::CString;
use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use rustix::io::Errno;

use super::sys;

/// A group and mode bits for one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPermissions {
    /// The group as it was given.
    group: String,
    /// `None`: the socket keeps the group that it was made with.
    gid: Option<u32>,
    /// Its bits.
    mode: u32,
}

/// Why a socket did not get its permissions.
#[derive(Debug)]
pub enum PermissionsError {
    /// The text is not `group:mode`.
    Syntax(String),
    /// The text is for two kinds of sockets, and has this many parts instead of four.
    Parts(usize),
    /// The mode is not of four octal digits.
    Mode(String),
    /// No such group.
    NoSuchGroup(String),
    /// The groups cannot be read.
    Groups {
        /// The group looked for.
        group: String,
        /// Why.
        source: Errno,
    },
    /// `chown` failed.
    ChangeGroup {
        /// The socket.
        path: String,
        /// The group.
        group: String,
        /// Why.
        source: std::io::Error,
    },
    /// `chmod` failed.
    ChangeMode {
        /// The socket.
        path: String,
        /// The mode bits.
        mode: u32,
        /// Why.
        source: std::io::Error,
    },
}

impl fmt::Display for PermissionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PermissionsError::Syntax(value) => write!(
                f,
                "{value:?} are no socket permissions: write <group>:<octal mode>, for example traced-consumer:0660"
            ),
            PermissionsError::Parts(count) => write!(
                f,
                "there are {count} parts where four are expected: <group of the producer sockets>:<mode>:<group of the consumer \
         socket>:<mode>, for example traced-producer:0660:traced-consumer:0660"
            ),
            PermissionsError::Mode(value) => write!(
                f,
                "{value:?} is no mode: write four octal digits, for example 0660"
            ),
            PermissionsError::NoSuchGroup(value) => write!(
                f,
                "there is no group {value:?}; create it (groupadd), or give another name or a number"
            ),
            PermissionsError::Groups { group, source } => {
                write!(f, "cannot look up the group {group:?}: {source}")
            }
            PermissionsError::ChangeGroup { path, group, source } => write!(
                f,
                "cannot give {path} to the group {group:?}: {source}; only root may choose a group that the daemon is not in"
            ),
            PermissionsError::ChangeMode { path, mode, source } => {
                write!(f, "cannot change the mode of {path} to {mode:#o}: {source}")
            }
        }
    }
}

impl std::error::Error for PermissionsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PermissionsError::Groups { source, .. } => Some(source),
            PermissionsError::ChangeGroup { source, .. } => Some(source),
            PermissionsError::ChangeMode { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl FromStr for SocketPermissions {
    type Err = PermissionsError;

    /// Parses `group:mode`. The group is a name, a number, or -1 for the one that the socket is made with; the mode is four octal
    /// digits. All as upstream.
    fn from_str(text: &str) -> Result<Self, PermissionsError> {
        let syntax = || PermissionsError::Syntax(text.to_owned());
        let (group, mode) = text.split_once(':').ok_or_else(syntax)?;
        if group.is_empty() || mode.is_empty() {
            return Err(syntax());
        }
        let digits = mode.len() == 4 && mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let bits = u32::from_str_radix(mode, 8).ok().filter(|_| digits);
        Ok(SocketPermissions {
            group: group.to_owned(),
            gid: group_id(group)?,
            mode: bits.ok_or_else(|| PermissionsError::Mode(mode.to_owned()))?,
        })
    }
}

impl SocketPermissions {
    /// Gives the socket file `path` this group and mode.
    ///
    /// # Errors
    /// If there is no such group, or the system refuses to change the group or the mode.
    pub fn apply(&self, path: &Path) -> Result<(), PermissionsError> {
        std::os::unix::fs::chown(path, None, self.gid).map_err(|source| PermissionsError::ChangeGroup {
            path: path.display().to_string(),
            group: self.group.clone(),
            source,
        })?;
        let mode = Permissions::from_mode(self.mode);
        std::fs::set_permissions(path, mode).map_err(|source| PermissionsError::ChangeMode {
            path: path.display().to_string(),
            mode: self.mode,
            source,
        })
    }
}

fn group_id(group: &str) -> Result<Option<u32>, PermissionsError> {
    if group == "-1" {
        return Ok(None);
    }
    let no_such_group = || PermissionsError::NoSuchGroup(group.to_owned());
    let found = match group.parse() {
        Ok(number) => Some(number),
        Err(_) => {
            let name = CString::new(group).map_err(|_| no_such_group())?;
            sys::group_id(&name).map_err(|source| PermissionsError::Groups {
                group: group.to_owned(),
                source,
            })?
        }
    };
    // The kernel's value for "unchanged".
    found
        .filter(|id| *id != u32::MAX)
        .map(Some)
        .ok_or_else(no_such_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_a_group_and_four_octal_digits() {
        let parsed = |text: &str| {
            text.parse::<SocketPermissions>()
                .map(|permissions| (permissions.gid, permissions.mode))
        };
        assert_eq!(parsed("root:0660").unwrap(), (Some(0), 0o660));
        assert_eq!(parsed("1234:7777").unwrap(), (Some(1234), 0o7777));
        assert_eq!(parsed("-1:0600").unwrap(), (None, 0o600));
        for wrong in ["", "root", ":0660", "root:"] {
            assert!(
                matches!(parsed(wrong), Err(PermissionsError::Syntax(_))),
                "{wrong}"
            );
        }
        for wrong in ["root:660", "root:0998", "root:00660", "root:+660", "root:-660"] {
            assert!(matches!(parsed(wrong), Err(PermissionsError::Mode(_))), "{wrong}");
        }
        for wrong in [
            "no such group:0660",
            "4294967295:0660",
            "5000000000:0660",
            "-2:0660",
            "a\0b:0660",
        ] {
            assert!(
                matches!(parsed(wrong), Err(PermissionsError::NoSuchGroup(_))),
                "{wrong}"
            );
        }
    }
}
