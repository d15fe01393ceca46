//! In the place of `worker.rs` where nothing is recorded: no session is ever served.

use ferretto_ipc::channel::Receiver;

use super::command::{Command, ServicePlace};
use crate::muxer::Served;

/// Keeps the receiver, so that commands are not refused as if the session had ended.
pub(super) struct Worker {
    _commands: Receiver<Command>,
}

impl Worker {
    pub(super) fn new(_: ServicePlace, commands: Receiver<Command>) -> Worker {
        Worker { _commands: commands }
    }
}

impl Served for Worker {}
