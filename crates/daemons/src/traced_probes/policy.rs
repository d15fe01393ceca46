//! The rights that `traced_probes` keeps: to set up ftrace, and to read what the kernel tells about all processes.
//!
//! tracefs, `/sys` and most of `/proc` belong to root, so root's daemon needs no capability for these. Only a tracefs that somebody has given to another
//! user takes one.

use std::os::unix::fs::MetadataExt;

use ferretto_ipc::Address;
use ferretto_probes::ftrace::instances::TracefsPolicy;
use ferretto_probes::ftrace::tracefs::Tracefs;

use crate::sandbox::{Calls, Capabilities, Families, Policy, calls, old_calls};

/// The rights of probes whose service has this address.
pub(super) fn policy(service: &Address, tracefs: TracefsPolicy) -> Policy {
    Policy {
        capabilities: capabilities(tracefs, owner_of_tracefs()),
        // It looks into other processes: who uses tracefs, and how much memory they use.
        files: None,
        calls: calls(service, tracefs),
    }
}

/// The user to whom the folder of tracefs belongs, if tracefs is mounted.
fn owner_of_tracefs() -> Option<u32> {
    let tracefs = Tracefs::find().ok()?;
    let folder = std::fs::metadata(tracefs.root()).ok()?;
    Some(folder.uid())
}

fn capabilities(tracefs: TracefsPolicy, owner_of_tracefs: Option<u32>) -> Capabilities {
    let always = Capabilities::SYS_PTRACE
        // Folders of other users, for the paths of inodes.
        | Capabilities::DAC_READ_SEARCH
        // The kernel's addresses, for the names of its functions.
        | Capabilities::SYSLOG;
    let needed = match owner_of_tracefs {
        None | Some(0) => always,
        // The files of tracefs are for their owner to write.
        Some(_) => always | Capabilities::DAC_OVERRIDE,
    };
    match tracefs {
        TracefsPolicy::AsFound => needed,
        TracefsPolicy::MountIfMissing => needed | Capabilities::SYS_ADMIN,
    }
}

fn calls(service: &Address, tracefs: TracefsPolicy) -> Calls {
    let calls = Calls::recorder(Families::of(service))
        // libsystemd is loaded when a recording reads the journal.
        .and_code()
        // The journal of changes to ftrace; libsystemd's files.
        .and(calls![
            SYS_flock,
            SYS_fsync,
            SYS_fdatasync,
            SYS_mkdirat,
            SYS_fchmod,
            SYS_statfs
        ])
        .and(old_calls![SYS_mkdir, SYS_epoll_create])
        // libsystemd notices new files of the journal.
        .and(calls![
            SYS_inotify_init1,
            SYS_inotify_add_watch,
            SYS_inotify_rm_watch
        ])
        // To learn which other programs change ftrace.
        .and(calls![SYS_fanotify_init, SYS_fanotify_mark])
        // Walks that stay in one file system.
        .and(calls![SYS_openat2]);
    match tracefs {
        TracefsPolicy::AsFound => calls,
        TracefsPolicy::MountIfMissing => calls.and(calls![SYS_mount]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tracefs_of_another_user_takes_the_right_to_write_others_files() {
        let overrides = |owner| {
            let kept = capabilities(TracefsPolicy::AsFound, owner);
            kept.contains(Capabilities::DAC_OVERRIDE)
        };
        assert!(!overrides(None));
        assert!(!overrides(Some(0)));
        assert!(overrides(Some(1000)));
    }
}
