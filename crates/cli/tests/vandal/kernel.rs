//! A tracefs instance for recordings and their torments, so that nobody else on the machine is disturbed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::support::PATIENCE;

const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Removed when this is dropped, once nobody has a file of it open.
pub(crate) struct Instance(PathBuf);

impl Instance {
    pub(crate) fn new() -> Instance {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferretto-vandal-{}-{number}", std::process::id());
        let folder = Path::new(INSTANCES).join(name);
        std::fs::create_dir(&folder).unwrap();
        Instance(folder)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    /// Returns the path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap_or_else(|error| panic!("{name} = {text:?}: {error}"));
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Probes that start at this moment may look here for the settings of crashed ones.
        let until = Instant::now() + PATIENCE;
        while let Err(error) = std::fs::remove_dir(&self.0) {
            if error.kind() != ErrorKind::ResourceBusy || Instant::now() > until {
                println!("{} stays: {error}", self.0.display());
                return;
            }
            std::thread::yield_now();
        }
    }
}
