//! The rights that `traced` keeps: none but its sockets, the descriptors that clients pass, and the folders for trace files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::log;
use crate::sandbox::{Calls, Capabilities, Files, POINTER, Policy, calls};

/// Folders in which configs may have trace files made (`output_path`), separated by `:`.
pub(super) const OUTPUT_FOLDERS: &str = "FERRETTO_OUTPUT_FOLDERS";

/// Folders in which everybody may make files, and the one of upstream's configs.
const USUAL_OUTPUT_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/data/misc/perfetto-traces"];

/// The files that the service reads while it runs.
const READ: [&str; 6] = [
    // Itself, for the C library and for the signals that it ignores.
    "/proc",
    // How many processors there are, and how many of them the process may use.
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    // The time zone, which traces tell.
    "/etc/localtime",
    "/etc/timezone",
    "/usr/share/zoneinfo",
];

/// The rights of a service whose sockets are files in these folders. Warns of listed folders that are no use.
pub(super) fn policy(socket_folders: Vec<PathBuf>) -> Policy {
    let left_out = left_out(&std::env::var_os(OUTPUT_FOLDERS).unwrap_or_default());
    if !left_out.is_empty() {
        log::warning(format_args!(
            "{OUTPUT_FOLDERS}: {left_out:?} are left out; list folders that exist when the service starts, by their absolute paths"
        ));
    }
    Policy {
        capabilities: Capabilities::empty(),
        files: Some(Files {
            read: READ.map(PathBuf::from).to_vec(),
            output: output_folders(),
            remove: socket_folders,
            connect: Vec::new(),
        }),
        calls: calls(),
    }
}

/// It opens no sockets, and connects to nobody: clients come to it.
fn calls() -> Calls {
    Calls::common()
        .and_no_code()
        // Shared memory of clients that cannot make their own.
        .and(calls![SYS_memfd_create])
        // Trace files: made for their owner only, and brought to the disk.
        .and(calls![SYS_fchmod, SYS_fdatasync, SYS_fsync])
        // Sending to the peer of a socket, not to an address.
        .and_if(calls![SYS_sendto], 4, POINTER, &[0])
}

/// The folders in which the service makes files that configs name.
pub(super) fn output_folders() -> Vec<PathBuf> {
    let mut folders = USUAL_OUTPUT_FOLDERS.map(PathBuf::from).to_vec();
    folders.extend(std::env::var_os("TMPDIR").map(PathBuf::from));
    folders.extend(chosen_folders(
        std::env::var_os(OUTPUT_FOLDERS),
        std::env::current_dir().ok(),
    ));
    folders
}

/// The folders that the list names, else the folder in which the service was started, unless that is everything.
fn chosen_folders(list: Option<OsString>, started_in: Option<PathBuf>) -> Vec<PathBuf> {
    match list {
        Some(list) => std::env::split_paths(&list)
            .filter(|path| path.is_absolute())
            .collect(),
        None => started_in
            .into_iter()
            .filter(|folder| folder != Path::new("/"))
            .collect(),
    }
}

/// The entries of the list that give no right: relative paths, and folders that do not exist.
fn left_out(list: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(list)
        .filter(|path| !path.as_os_str().is_empty())
        .filter(|path| path.is_relative() || !path.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_in_listed_folders_else_where_the_service_was_started() {
        let chosen = |list: Option<&str>, started_in: &str| {
            chosen_folders(list.map(OsString::from), Some(started_in.into()))
        };
        assert_eq!(chosen(None, "/home/me"), [PathBuf::from("/home/me")]);
        assert!(chosen(None, "/").is_empty());
        assert_eq!(
            chosen(Some("/a:b:/c"), "/home/me"),
            [PathBuf::from("/a"), "/c".into()]
        );
        assert!(chosen(Some(""), "/home/me").is_empty());
    }

    #[test]
    fn listed_folders_that_are_relative_or_not_there_are_named() {
        let named = left_out(OsStr::new("/:relative::/no/such/folder"));
        assert_eq!(named, [PathBuf::from("relative"), "/no/such/folder".into()]);
        assert!(left_out(OsStr::new("")).is_empty());
    }
}
