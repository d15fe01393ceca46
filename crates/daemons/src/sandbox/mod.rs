//! Least privilege: the rights that a daemon gives up for good, once it has what only its start needs.
//!
//! Each daemon has its [`Policy`] beside its code (`traced/policy.rs` and so on), with a reason for each right that it keeps. It enforces the policy while
//! it has a single thread, after its sockets are open and before it reads a client's first byte. Threads that it starts later inherit all of it.
//!
//! | file | takes away |
//! |---|---|
//! | `capabilities.rs` | capabilities, and the ways to get any |
//! | `files.rs` | files, with Landlock; TCP ports; signals to other programs |
//! | `calls.rs`, `calls/common.rs` | system calls, with seccomp |
//!
//! No part of it needs privileges, so it also holds for daemons of ordinary users. A kernel or container that lacks a part gets the rest; the log names
//! the part. A daemon never fails to start because of its sandbox.

mod calls;
mod capabilities;
mod files;

pub use calls::{Calls, Families};
pub(crate) use calls::{INT, POINTER, calls, old_calls};
pub use capabilities::Capabilities;
pub(crate) use capabilities::held;
pub use files::Files;

use crate::log;

/// The rights that a daemon keeps.
#[derive(Debug)]
pub struct Policy {
    /// The capabilities that are left.
    pub capabilities: Capabilities,
    /// `None` if the daemon's work needs files that Landlock would take away.
    pub files: Option<Files>,
    /// The system calls that it makes.
    pub calls: Calls,
}

impl Policy {
    /// Gives up everything else, as far as the system allows. To be called while the process has one thread.
    pub(crate) fn enforce(self) {
        let for_boosts = match crate::priority::keep_boosts_without_capability() {
            true => Capabilities::empty(),
            // Without CAP_SYS_RESOURCE, as in containers: then it is needed, where it is there.
            false => Capabilities::SYS_NICE,
        };
        if let Err(error) = capabilities::keep(self.capabilities | for_boosts) {
            log::warning(format_args!("sandbox: cannot give up capabilities: {error}"));
        }
        if let Some(files) = self.files {
            files.enforce();
        }
        // The last, because the calls above are none of those that are left.
        self.calls.enforce();
    }
}
