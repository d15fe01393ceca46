//! The machine's tracefs, which is mounted if necessary and held by one test at a time, and directories in it that tests have for themselves.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::mount::MountFlags;

use super::PATIENCE;
use super::machine_lock::{self, MachineLock};

const MOUNT_POINT: &str = "/sys/kernel/tracing";

/// Held while a test records from the kernel; tests in other processes wait for it.
pub(crate) struct Tracefs(#[allow(dead_code, reason = "the lock is held as long as it is open")] MachineLock);

impl Tracefs {
    /// Waits for the lock. Without tracefs, or without access to it, prints that the test is skipped.
    pub(crate) fn lock() -> Option<Tracefs> {
        Tracefs::is_usable().then(|| Tracefs(machine_lock::lock("tracefs")))
    }

    /// As [`Tracefs::lock`], but several tests may share it. They record from the kernel without looking at its events, which they take from each other.
    pub(crate) fn share() -> Option<Tracefs> {
        Tracefs::is_usable().then(|| Tracefs(machine_lock::share("tracefs")))
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

/// A directory of tracefs with buffers and settings of its own, which is removed at the end.
pub(crate) struct Instance(PathBuf);

impl Instance {
    /// A new one. Without tracefs, or without access to it, prints that the test is skipped. Instances need no lock.
    pub(crate) fn new() -> Option<Instance> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !Tracefs::is_usable() {
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferretto-test-{}-{number}", std::process::id());
        let path = Path::new(MOUNT_POINT).join("instances").join(name);
        if let Err(error) = std::fs::create_dir(&path) {
            println!("skipped: {}: {error}", path.display());
            return None;
        }
        Some(Instance(path))
    }

    /// Removes it. Somebody may still have a file of it open: probes that start at this moment look here for the settings of crashed ones.
    pub(crate) fn remove(&self) -> std::io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match std::fs::remove_dir(&self.0) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {
                    std::thread::yield_now();
                }
                removed => return removed,
            }
        }
    }

    /// Its name in configs.
    pub(crate) fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The path of one of its files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes one of its files.
    pub(crate) fn write(&self, file: &str, value: &str) {
        std::fs::write(self.file(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// The text of one of its files, without a line end.
    pub(crate) fn read(&self, file: &str) -> String {
        let text = std::fs::read_to_string(self.file(file));
        text.unwrap_or_else(|error| panic!("{file}: {error}"))
            .trim_end()
            .to_owned()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(error) = self.remove()
            && error.kind() != ErrorKind::NotFound
        {
            println!("{} stays: {error}", self.0.display());
        }
    }
}
