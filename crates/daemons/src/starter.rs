//! The settings of a daemon that `ferretto` started for one recording: variables of the environment, set by the command line.

use std::io;

use rustix::process::{Pid, Signal};

/// The process id of the starter, with which the daemon ends.
pub const STARTED_BY: &str = "FERRETTO_STARTED_BY";

/// Set for probes: they mount tracefs if a recording needs it and it is not there.
pub const MOUNT_TRACEFS: &str = "FERRETTO_MOUNT_TRACEFS";

/// Ties a daemon to the `ferretto` that started it, if one did: the daemon ends with that process. To be called at the start.
pub(crate) fn end_with_starter() -> io::Result<()> {
    let Some(starter) = std::env::var(STARTED_BY)
        .ok()
        .and_then(|pid| pid.parse().ok())
        .and_then(Pid::from_raw)
    else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    // The starter may have died before this call.
    if rustix::process::getppid() != Some(starter) {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    Ok(())
}
