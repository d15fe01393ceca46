//! Every access to the files of tracefs, the kernel's interface to ftrace. Used by the rest of `ftrace`, and by the
//! command line to find or mount it.
//!
//! A [`Tracefs`] is one directory that has its own ring buffers and settings: the top of the file system or one of its `instances/*`.
//! This module keeps no state and decides nothing: [`super::restore`] remembers the found values, and `super::control` decides the
//! changes. Errors always name the file. Format of the files: `Documentation/trace/ftrace.rst` and `events.rst` of the Linux source.

mod setting;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::cpu_ranges;

pub(crate) use setting::is_option_name;
pub use setting::{EventName, Setting};
use setting::{WriteStyle, is_file_name};

/// Where tracefs is looked for, in this order: its own mount point, and where debugfs mounts it by itself.
pub const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// How far the kernel is locked down: the level that holds is in brackets. See kernel_lockdown(7).
pub const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// No control file is longer than this many bytes; a longer one is cut (a list of all kernel functions is about 2 MB).
const LONGEST_CONTROL_FILE: u64 = 16 << 20;

/// Why a tracefs file or directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    /// Nothing is mounted at any of [`MOUNT_POINTS`].
    #[error(
        "tracefs is not mounted at /sys/kernel/tracing: as root, type `mount -t tracefs nodev /sys/kernel/tracing`"
    )]
    NotMounted,
    /// Nobody may use it, root included.
    #[error(
        "the kernel is locked down for confidentiality, and has no tracefs for anybody: boot it with lockdown=integrity or without lockdown"
    )]
    LockedDown,
    /// Tracefs is there but this user may not use it.
    #[error(
        "this user may not use {}: run as root, or give the files to this user with `sudo chown -R $USER {}`",
        path.display(),
        path.display()
    )]
    Denied {
        /// The directory that was tried.
        path: PathBuf,
    },
    /// `mount(2)` refused.
    #[error(
        "cannot mount tracefs at {}: {source}. As root, outside of a container, type `mount -t tracefs nodev {}`",
        path.display(),
        path.display()
    )]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The name of an instance would leave the directory of instances.
    #[error("`{0}` is no name of a tracefs instance: it may not be empty, contain `/` or start with `..`")]
    BadInstanceName(String),
    /// There is no such instance, and the person who wants it has to make it.
    #[error("there is no tracefs instance at {}: as root, type `mkdir {}`", path.display(), path.display())]
    NoInstance {
        /// Where it should be.
        path: PathBuf,
    },
    /// One file could not be read or written.
    #[error("cannot {doing} {}: {source}{hint}", path.display())]
    File {
        /// "read", "write `x` to", …
        doing: String,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// What to do, if that is known.
        hint: &'static str,
    },
}

/// For root's daemon, which gave up the right to write others' files because there were none.
const GIVEN_AWAY: &str =
    "; it belongs to another user by now: restart traced_probes, which then keeps the right to write it";

impl TracefsError {
    fn file(doing: impl Into<String>, path: PathBuf, source: io::Error) -> TracefsError {
        let is_given_away = || {
            let owner = fs::metadata(&path).map(|file| file.uid());
            rustix::process::geteuid().is_root() && owner.is_ok_and(|owner| owner != 0)
        };
        let hint = match source.kind() {
            io::ErrorKind::PermissionDenied if is_given_away() => GIVEN_AWAY,
            _ => "",
        };
        TracefsError::File {
            doing: doing.into(),
            path,
            source,
            hint,
        }
    }

    /// The kernel's error number, when it came from the kernel.
    pub(crate) fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            TracefsError::File { source, .. } | TracefsError::Mount { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

/// Whether the ring buffers of a tracefs directory accept events (`tracing_on`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// Events are written.
    On,
    /// Events are discarded.
    Off,
}

/// Why none of [`MOUNT_POINTS`] has the files of tracefs. `denied` if this user may not look into one of them.
pub(crate) fn absence(denied: Option<TracefsError>) -> TracefsError {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let mounts = match denied {
        None => read("/proc/self/mounts"),
        // Nobody knows whether it is empty.
        Some(_) => String::new(),
    };
    match is_locked_down(&read(LOCKDOWN), &mounts) {
        true => TracefsError::LockedDown,
        false => denied.unwrap_or(TracefsError::NotMounted),
    }
}

/// Whether the kernel has no tracefs for anybody, given [`LOCKDOWN`] and, if [`MOUNT_POINTS`] are without its files, `/proc/self/mounts`.
///
/// Tracefs can still be mounted then, and is empty. That tells where securityfs, which has the first file, is not mounted.
pub fn is_locked_down(lockdown: &str, mounts: &str) -> bool {
    let mut mounted = mounts.lines().filter_map(|line| {
        // The device, the folder, the type.
        let mut fields = line.split(' ').skip(1);
        let folder = fields.next()?;
        (fields.next()? == "tracefs").then_some(folder)
    });
    match lockdown.trim() {
        "" => mounted.any(|folder| MOUNT_POINTS.contains(&folder)),
        levels => levels.contains("[confidentiality]"),
    }
}

/// One tracefs directory: the top instance or one of `instances/*`.
#[derive(Clone, Debug)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// The tracefs that is mounted at one of [`MOUNT_POINTS`].
    ///
    /// # Errors
    /// If it is not mounted, or this user may not use it.
    pub fn find() -> Result<Tracefs, TracefsError> {
        let mut denied = None;
        for mount_point in MOUNT_POINTS {
            match Tracefs::at(mount_point) {
                Ok(tracefs) => return Ok(tracefs),
                Err(error @ TracefsError::Denied { .. }) => denied = denied.or(Some(error)),
                Err(_) => {}
            }
        }
        Err(absence(denied))
    }

    /// Mounts tracefs at the first of [`MOUNT_POINTS`], as `trace-cmd` does, and opens it.
    ///
    /// # Errors
    /// If the system refuses to mount it, or this user may not use it.
    pub(crate) fn mount() -> Result<Tracefs, TracefsError> {
        let path = Path::new(MOUNT_POINTS[0]);
        let flags = rustix::mount::MountFlags::NOSUID
            | rustix::mount::MountFlags::NODEV
            | rustix::mount::MountFlags::NOEXEC;
        rustix::mount::mount("nodev", path, "tracefs", flags, None).map_err(|errno| TracefsError::Mount {
            path: path.to_owned(),
            source: errno.into(),
        })?;
        Tracefs::find()
    }

    /// The tracefs directory at `root`, wherever it is mounted.
    ///
    /// # Errors
    /// If no tracefs is there, or it cannot be read.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Result<Tracefs, TracefsError> {
        let tracefs = Tracefs { root: root.into() };
        match tracefs.read("tracing_on") {
            Ok(_) => Ok(tracefs),
            Err(error) if error.kind() == Some(io::ErrorKind::PermissionDenied) => {
                Err(TracefsError::Denied { path: tracefs.root })
            }
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => Err(TracefsError::NotMounted),
            Err(error) => Err(error),
        }
    }

    /// The instance `name` of this tracefs, which must exist already: making one takes rights that a tracing daemon usually lacks, and
    /// removing it again would lose somebody's events. The names `hyp` and `hypervisor` stand for the pKVM hypervisor's events, whose
    /// folders are beside `instances/` and not in it.
    ///
    /// # Errors
    /// If there is no such instance, the name cannot be an instance's, or this user may not use it.
    pub fn instance(&self, name: &str) -> Result<Tracefs, TracefsError> {
        if name.is_empty() || name.contains(['/', '\0']) || name.starts_with("..") {
            return Err(TracefsError::BadInstanceName(name.to_owned()));
        }
        let path = match name {
            "hyp" | "hypervisor" => self.root.join(name),
            _ => self.root.join("instances").join(name),
        };
        match Tracefs::at(&path) {
            Err(TracefsError::NotMounted) => Err(TracefsError::NoInstance { path }),
            result => result,
        }
    }

    /// The top of the file system that contains this directory. Some files exist only there, for all instances.
    pub(crate) fn top(&self) -> Tracefs {
        let parent = self.root.parent();
        let is_hypervisor = self.root.ends_with("hyp") || self.root.ends_with("hypervisor");
        let top = match parent {
            Some(parent) if is_hypervisor => Some(parent),
            Some(instances) if instances.ends_with("instances") => instances.parent(),
            _ => None,
        };
        Tracefs {
            root: top.unwrap_or(&self.root).to_owned(),
        }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    // --- plain files ---

    /// The text of `file`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, file: &str) -> Result<String, TracefsError> {
        let path = self.root.join(file);
        let mut bytes = Vec::with_capacity(4096);
        File::open(&path)
            .and_then(|opened| opened.take(LONGEST_CONTROL_FILE).read_to_end(&mut bytes))
            .map_err(|source| TracefsError::file("read", path, source))?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Replaces the value of `file`.
    ///
    /// # Errors
    /// If the file cannot be written, or the kernel refuses the value.
    pub(crate) fn write(&self, file: &str, value: &str) -> Result<(), TracefsError> {
        self.write_with(file, value, OpenOptions::new().write(true))
    }

    /// Adds to the list in `file`.
    ///
    /// # Errors
    /// If the file cannot be written, or the kernel refuses the value.
    pub(crate) fn append(&self, file: &str, value: &str) -> Result<(), TracefsError> {
        self.write_with(file, value, OpenOptions::new().append(true))
    }

    /// Empties the list in `file` (or, for `trace`, the buffers).
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn truncate(&self, file: &str) -> Result<(), TracefsError> {
        let path = self.root.join(file);
        match OpenOptions::new().write(true).truncate(true).open(&path) {
            Ok(_) => Ok(()),
            Err(source) => Err(TracefsError::file("clear", path, source)),
        }
    }

    fn write_with(&self, file: &str, value: &str, options: &OpenOptions) -> Result<(), TracefsError> {
        let path = self.root.join(file);
        options
            .open(&path)
            .and_then(|mut opened| opened.write_all(value.as_bytes()))
            .map_err(|source| {
                let shown: String = value.chars().take(80).collect();
                TracefsError::file(format!("write `{shown}` to"), path, source)
            })
    }

    // --- settings ---

    /// The present value of `setting`, in the form that [`Tracefs::set`] takes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn get(&self, setting: &Setting) -> Result<String, TracefsError> {
        Ok(setting.writable(&self.read(&setting.file())?))
    }

    /// Changes `setting`.
    ///
    /// # Errors
    /// If the file cannot be written, or the kernel refuses the value.
    pub(crate) fn set(&self, setting: &Setting, value: &str) -> Result<(), TracefsError> {
        let file = setting.file();
        match setting.write_style() {
            WriteStyle::Replace => self.write(&file, value),
            WriteStyle::Truncate => {
                self.truncate(&file)?;
                if value.is_empty() {
                    Ok(())
                } else {
                    self.append(&file, value)
                }
            }
        }
    }

    /// Whether the buffers accept events.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn recording(&self) -> Result<Recording, TracefsError> {
        Ok(if self.get(&Setting::TracingOn)? == "1" {
            Recording::On
        } else {
            Recording::Off
        })
    }

    /// The clocks of this kernel, as `trace_clock` lists them.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn clocks(&self) -> Result<BTreeSet<String>, TracefsError> {
        let shown = self.read("trace_clock")?;
        Ok(shown
            .split_ascii_whitespace()
            .map(|clock| clock.trim_matches(['[', ']']).to_owned())
            .collect())
    }

    /// Size of each CPU's buffer in pages of `page_bytes`, rounded up; `None` where the CPUs differ.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn buffer_pages(&self, page_bytes: usize) -> Result<Option<u32>, TracefsError> {
        let shown = self.read("buffer_size_kb")?;
        // Before its first use a buffer shows its present size first. That size is returned here.
        let digits = shown
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap_or_default();
        Ok(digits
            .parse::<u64>()
            .ok()
            .map(|kib| (kib << 10).div_ceil(page_bytes as u64) as u32))
    }

    /// Empties the buffers of all CPUs. Emptying `trace` leaves out the CPUs that are off, so their buffers are emptied one by one.
    /// Returns the errors of those.
    ///
    /// # Errors
    /// If `trace` cannot be written.
    pub(crate) fn clear_buffers(&self) -> Result<Vec<TracefsError>, TracefsError> {
        self.truncate("trace")?;
        let cleared = offline_cpus()
            .into_iter()
            .map(|cpu| self.truncate(&format!("per_cpu/cpu{cpu}/trace")));
        // A CPU that is possible but not present has no buffer.
        Ok(cleared
            .filter_map(Result::err)
            .filter(|error| error.kind() != Some(io::ErrorKind::NotFound))
            .collect())
    }

    // --- CPUs ---

    /// CPUs that have a buffer here and are plugged in, on or off, ascending.
    ///
    /// # Errors
    /// If the CPUs cannot be listed.
    pub(crate) fn cpus(&self) -> Result<Vec<u32>, TracefsError> {
        let present: Option<Vec<u32>> = fs::read_to_string("/sys/devices/system/cpu/present")
            .ok()
            .and_then(|text| cpu_ranges::parse(&text));
        let mut cpus: Vec<u32> = self
            .directories("per_cpu")?
            .iter()
            .filter_map(|name| name.strip_prefix("cpu")?.parse().ok())
            .filter(|cpu| present.as_ref().is_none_or(|present| present.contains(cpu)))
            .collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Opens the raw buffer of `cpu` for reading without waiting.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn open_raw_buffer(&self, cpu: u32) -> Result<OwnedFd, TracefsError> {
        let path = self.root.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|errno| TracefsError::file("open", path, errno.into()))
    }

    /// The statistics of `cpu`'s buffer, for [`super::stats`] to parse.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn cpu_stats(&self, cpu: u32) -> Result<String, TracefsError> {
        self.read(&format!("per_cpu/cpu{cpu}/stats"))
    }

    // --- events ---

    fn directories(&self, under: &str) -> Result<BTreeSet<String>, TracefsError> {
        let path = self.root.join(under);
        let list = |path: &Path| -> io::Result<BTreeSet<String>> {
            let mut names = BTreeSet::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir()
                    && let Ok(name) = entry.file_name().into_string()
                {
                    names.insert(name);
                }
            }
            Ok(names)
        };
        list(&path).map_err(|source| TracefsError::file("list", path, source))
    }

    /// The groups of events of this kernel.
    ///
    /// # Errors
    /// If the groups cannot be listed.
    pub(crate) fn groups(&self) -> Result<BTreeSet<String>, TracefsError> {
        self.directories("events")
    }

    /// The events of `group`; none if there is no such group.
    ///
    /// # Errors
    /// If the events cannot be listed.
    pub fn events_of(&self, group: &str) -> Result<BTreeSet<String>, TracefsError> {
        if !is_file_name(group) {
            return Ok(BTreeSet::new());
        }
        match self.directories(&format!("events/{group}")) {
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => Ok(BTreeSet::new()),
            result => result,
        }
    }

    /// Whether `event` exists and its format may be read.
    pub fn has_event(&self, event: &EventName) -> bool {
        event.is_valid()
            // Opening the file checks the effective user and capabilities, so this check must do the same.
            && rustix::fs::accessat(
                rustix::fs::CWD,
                self.root.join(format!("events/{event}/format")),
                rustix::fs::Access::READ_OK,
                rustix::fs::AtFlags::EACCESS,
            )
            .is_ok()
    }

    /// The description of `event`'s binary layout.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn event_format(&self, event: &EventName) -> Result<String, TracefsError> {
        self.read(&format!("events/{event}/format"))
    }

    /// Whether `event` is recorded. `0*` means that it is not recorded but armed for a trigger.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn event_enabled(&self, event: &EventName) -> Result<bool, TracefsError> {
        Ok(self.read(&format!("events/{event}/enable"))?.starts_with('1'))
    }

    /// Starts or stops recording `event`, through its own file or, where that may not be written, through `set_event`.
    ///
    /// # Errors
    /// If neither file can be written. The error is the first file's.
    pub(crate) fn set_event(&self, event: &EventName, recording: Recording) -> Result<(), TracefsError> {
        let (value, prefix) = match recording {
            Recording::On => ("1", ""),
            Recording::Off => ("0", "!"),
        };
        let Err(error) = self.write(&format!("events/{event}/enable"), value) else {
            return Ok(());
        };
        self.append("set_event", &format!("{prefix}{}:{}\n", event.group, event.name))
            .map_err(|_| error)
    }

    /// The events that are recorded now and the events that are only armed for a trigger.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn listed_events(&self) -> Result<BTreeSet<EventName>, TracefsError> {
        let listed = self.read("set_event")?;
        Ok(listed.lines().filter_map(EventName::from_set_event).collect())
    }

    /// All events that are recorded now.
    ///
    /// # Errors
    /// If the list of events cannot be read.
    pub(crate) fn enabled_events(&self) -> Result<BTreeSet<EventName>, TracefsError> {
        let mut events = self.listed_events()?;
        events.retain(|event| self.event_enabled(event).unwrap_or(false));
        Ok(events)
    }

    /// Stops recording every event.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn disable_all_events(&self) -> Result<(), TracefsError> {
        self.write("events/enable", "0")
    }
}

/// CPUs that are possible but switched off.
fn offline_cpus() -> Vec<u32> {
    fs::read_to_string("/sys/devices/system/cpu/offline")
        .ok()
        .and_then(|text| cpu_ranges::parse(&text))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
