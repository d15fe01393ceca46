//! The machine's tracefs, which is mounted if necessary, and held by one test at a time.

use std::fs::File;
use std::path::Path;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::mount::MountFlags;

use super::machine_lock::{self, MachineLock};

const MOUNT_POINT: &str = "/sys/kernel/tracing";

/// Held while a test records from the kernel; tests in other processes wait for it.
pub(crate) struct Tracefs(#[allow(dead_code, reason = "the lock is held as long as it is open")] MachineLock);

impl Tracefs {
    /// Waits for the lock. Without tracefs, or without access to it, prints that the test is skipped.
    pub(crate) fn lock() -> Option<Tracefs> {
        Tracefs::is_usable().then(|| Tracefs(machine_lock::lock("tracefs")))
    }

    /// Whether tests can use tracefs; enough for tests with an instance of their own. If not, prints that the test is skipped.
    pub(crate) fn is_usable() -> bool {
        let control = Path::new(MOUNT_POINT).join("tracing_on");
        if !control.exists()
            && let Err(error) =
                rustix::mount::mount("tracefs", MOUNT_POINT, "tracefs", MountFlags::empty(), None)
        {
            println!("skipped: tracefs is not mounted at {MOUNT_POINT}, and mounting it failed: {error}");
            return false;
        }
        if let Err(error) = File::options().write(true).open(&control) {
            println!(
                "skipped: {} cannot be written: {error}; run this as root",
                control.display()
            );
            return false;
        }
        true
    }

    /// Whether the kernel reports the writers of this tracefs file. If not, prints that the test is skipped.
    pub(crate) fn tells_of_writes_to(file: &Path) -> bool {
        let flags = InitFlags::from_bits_retain(nix::libc::FAN_REPORT_DFID_NAME);
        let (add, modified) = (MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_MODIFY);
        let told = Fanotify::init(flags, EventFFlags::O_RDONLY)
            .and_then(|group| group.mark(add, modified, rustix::fs::CWD, Some(file)));
        if let Err(error) = told {
            println!("skipped: this kernel has no fanotify for tracefs: {error}");
        }
        told.is_ok()
    }
}
