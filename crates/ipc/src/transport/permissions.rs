//! Group and mode of a socket file, as `traced --set-socket-permissions group:mode:…` asks for.
//!
//! Called by daemons right after they listen. Upstream never changes modes unasked: without this, the umask
//! decides.

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

/// A group and mode bits for one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPermissions {
    group: String,
    /// Its bits.
    mode: u32,
}

/// What kept a socket from getting its permissions.
#[derive(Debug)]
pub enum PermissionsError {
    /// The text is not `group:mode`.
    Syntax(String),
    /// No such group.
    NoSuchGroup(String),
    /// `/etc/group` cannot be read.
    Groups {
        /// The group looked for.
        group: String,
        /// Why.
        source: std::io::Error,
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
            PermissionsError::NoSuchGroup(value) => write!(
                f,
                "the group {value:?} is not in /etc/group; create it or name another"
            ),
            PermissionsError::Groups { group, source } => write!(
                f,
                "cannot look up the group {group:?}: reading /etc/group failed: {source}"
            ),
            PermissionsError::ChangeGroup { path, group, source } => {
                write!(f, "cannot give {path} to the group {group:?}: {source}")
            }
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

    /// Parses `group:mode`, the mode in octal.
    fn from_str(text: &str) -> Result<Self, PermissionsError> {
        let syntax = || PermissionsError::Syntax(text.to_owned());
        let (group, mode) = text.split_once(':').ok_or_else(syntax)?;
        let bits = u32::from_str_radix(mode, 8).map_err(|_| syntax())?;
        if group.is_empty() || bits > 0o7777 {
            return Err(syntax());
        }
        Ok(SocketPermissions {
            group: group.to_owned(),
            mode: bits,
        })
    }
}

impl SocketPermissions {
    /// Gives the socket file `path` this group and mode.
    pub fn apply(&self, path: &Path) -> Result<(), PermissionsError> {
        let gid = self.group_id()?;
        std::os::unix::fs::chown(path, None, Some(gid)).map_err(|source| PermissionsError::ChangeGroup {
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

    fn group_id(&self) -> Result<u32, PermissionsError> {
        let groups = std::fs::read_to_string("/etc/group").map_err(|source| PermissionsError::Groups {
            group: self.group.clone(),
            source,
        })?;
        find_group(&groups, &self.group).ok_or_else(|| PermissionsError::NoSuchGroup(self.group.clone()))
    }
}

/// Finds a group in the text of `/etc/group` (`name:password:id:members`).
fn find_group(groups: &str, name: &str) -> Option<u32> {
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_a_group_and_an_octal_mode() {
        let parsed: SocketPermissions = "traced:0660".parse().unwrap();
        assert_eq!(
            parsed,
            SocketPermissions {
                group: "traced".into(),
                mode: 0o660
            }
        );
        for wrong in ["", "traced", ":0660", "traced:", "traced:0998", "traced:777777"] {
            assert!(wrong.parse::<SocketPermissions>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_are_found_by_their_whole_name() {
        let text = "root:x:0:\ntraced-consumer:x:991:a,b\ntraced:x:990:\n";
        assert_eq!(find_group(text, "traced"), Some(990));
        assert_eq!(find_group(text, "traced-consumer"), Some(991));
        assert_eq!(find_group(text, "trace"), None);
    }
}
