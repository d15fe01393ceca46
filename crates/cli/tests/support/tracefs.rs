//! The machine's tracefs, of which there is one: mounted if need be, and held by one test at a time.

use std::fs::File;
use std::path::Path;

use rustix::mount::MountFlags;

const MOUNT_POINT: &str = "/sys/kernel/tracing";

/// Held while a test records from the kernel; tests in other processes wait for it.
pub(crate) struct Tracefs(#[allow(dead_code, reason = "the lock is held as long as it is open")] File);

impl Tracefs {
    /// Waits for its turn. Without tracefs, or without the right to it, a line that says that the test is skipped.
    pub(crate) fn lock() -> Option<Tracefs> {
        let control = Path::new(MOUNT_POINT).join("tracing_on");
        if !control.exists()
            && let Err(error) =
                rustix::mount::mount("tracefs", MOUNT_POINT, "tracefs", MountFlags::empty(), None)
        {
            println!("skipped: tracefs is not mounted at {MOUNT_POINT}, and mounting it failed: {error}");
            return None;
        }
        if let Err(error) = File::options().write(true).open(&control) {
            println!(
                "skipped: {} cannot be written: {error}; run this as root",
                control.display()
            );
            return None;
        }
        let path = std::env::temp_dir().join("ferretto-tests.tracefs.lock");
        let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        lock.lock()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Tracefs(lock))
    }
}
