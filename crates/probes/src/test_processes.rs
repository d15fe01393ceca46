//! Programs that tests start. Until such a process runs its program it has copies of all descriptors of this process: files that another test has closed
//! are still open, and locked, for a moment.

use std::io;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static STARTS: RwLock<()> = RwLock::new(());

/// Starts a program, and returns when it runs. Waits for the tests during which none may start.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _starting = STARTS.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// While this guard is held, no test starts a program, so no process has a copy of a descriptor that was closed. A thread holds one guard at a time: it
/// would wait for ever for a second one behind a test that wants to start a program.
pub(crate) fn nobody_starts() -> RwLockReadGuard<'static, ()> {
    STARTS.read().unwrap_or_else(PoisonError::into_inner)
}
