//! For tests: tracefs instances that belong to one test, so that tests disturb neither each other nor anybody's
//! recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::tracefs::{EventName, Setting, Tracefs};

/// An instance that is removed when dropped.
pub(super) struct TestInstance {
    pub(super) top: Tracefs,
    pub(super) name: String,
    pub(super) tracefs: Tracefs,
}

impl TestInstance {
    /// `None`, with a line that says why, where there is no tracefs that may be written.
    pub(super) fn new() -> Option<TestInstance> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let Some(top) = mounted_tracefs() else {
            println!("skipped: no usable tracefs; as root: mount -t tracefs nodev /sys/kernel/tracing");
            return None;
        };
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferretto-test-{}-{number}", std::process::id());
        if let Err(error) = std::fs::create_dir(top.root().join("instances").join(&name)) {
            println!("skipped: cannot make a tracefs instance: {error}");
            return None;
        }
        let tracefs = top.instance(&name).unwrap();
        Some(TestInstance { top, name, tracefs })
    }

    /// Every setting that a recording could change.
    pub(super) fn snapshot(&self) -> BTreeMap<String, String> {
        let mut settings = vec![
            Setting::TracingOn,
            Setting::TraceClock,
            Setting::BufferPercent,
            Setting::CurrentTracer,
            Setting::EventPids,
            Setting::CpuMask,
            Setting::FunctionFilter,
            Setting::EventFilter(EventName::new("raw_syscalls", "sys_enter")),
            Setting::EventFilter(EventName::new("raw_syscalls", "sys_exit")),
        ];
        settings.extend(
            self.tracefs
                .cpus()
                .unwrap()
                .into_iter()
                .map(Setting::CpuBufferSizeKb),
        );
        let options = std::fs::read_dir(self.tracefs.root().join("options")).unwrap();
        settings
            .extend(options.map(|entry| Setting::Option(entry.unwrap().file_name().into_string().unwrap())));
        let mut snapshot: BTreeMap<String, String> = settings
            .iter()
            .filter_map(|setting| Some((setting.file(), self.tracefs.get(setting).ok()?)))
            .collect();
        snapshot.insert("set_event".to_owned(), self.tracefs.read("set_event").unwrap());
        snapshot
    }
}

impl Drop for TestInstance {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.tracefs.root());
    }
}

/// For a test that switches on every event there is, and one that adds an event and removes it: the kernel keeps an event that is on.
pub(super) fn all_events() -> MutexGuard<'static, ()> {
    static ALL_EVENTS: Mutex<()> = Mutex::new(());
    ALL_EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tracefs made of links to one with an instance. Tests take files away from it and put others in their place.
pub(super) struct Mirror {
    dir: TestDir,
    /// The instance within.
    instance: PathBuf,
}

impl Mirror {
    /// Links to everything, with folders of its own for the files that tests change.
    pub(super) fn of(instance: &TestInstance) -> Mirror {
        let dir = TestDir::new();
        let own = dir.path().join("instances").join(&instance.name);
        link_all(instance.top.root(), dir.path(), &["instances"]);
        link_all(instance.tracefs.root(), &own, &["events", "per_cpu"]);
        link_all(&instance.tracefs.root().join("events"), &own.join("events"), &[]);
        for cpu in instance.tracefs.cpus().unwrap() {
            let of_cpu = format!("per_cpu/cpu{cpu}");
            link_all(&instance.tracefs.root().join(&of_cpu), &own.join(&of_cpu), &[]);
        }
        Mirror { dir, instance: own }
    }

    pub(super) fn top(&self) -> Tracefs {
        Tracefs::at(self.dir.path()).unwrap()
    }

    /// Removes a file from the instance.
    pub(super) fn take_away(&self, file: &str) -> PathBuf {
        let path = self.instance.join(file);
        std::fs::remove_file(&path).unwrap();
        path
    }
}

/// Makes the folder `to` with links to everything in `from`, except for names that become folders of their own.
fn link_all(from: &Path, to: &Path, folders: &[&str]) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        match folders.iter().any(|folder| **folder == *name) {
            true => std::fs::create_dir_all(to.join(&name)).unwrap(),
            false => std::os::unix::fs::symlink(from.join(&name), to.join(&name)).unwrap(),
        }
    }
}

/// Wherever tracefs is mounted, its usual place or another.
fn mounted_tracefs() -> Option<Tracefs> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next() == Some("tracefs")).then_some(point)
    });
    points
        .filter_map(|point| Tracefs::at(point).ok())
        .find(|tracefs| tracefs.root().join("instances").is_dir())
}

/// A directory of its own below the system's for temporary files, removed when dropped.
pub(super) struct TestDir(PathBuf);

impl TestDir {
    pub(super) fn new() -> TestDir {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ferretto-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TestDir(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
