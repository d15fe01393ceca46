//! A recording with all its programs, from its start to its account.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;

use super::application::Application;
use super::truth::Events;
use crate::support::process::Stopped;
use crate::support::tracefs::Instance;
use crate::support::{Program, Programs, Recording, Side, System};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// The config of a recording, and the disk for its trace.
#[derive(PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) buffer: &'static str,
    pub(crate) session: &'static str,
    pub(crate) ftrace: &'static str,
    pub(crate) disk: Disk,
}

impl Setup {
    pub(crate) const USUAL: Setup = Setup {
        buffer: "size_kb: 32768",
        // The timeouts are long, because the machine may be busy.
        session: PATIENT,
        ftrace: "",
        disk: Disk::Large,
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Large,
    /// A disk with this many KB.
    Small(u32),
}

const PATIENT: &str = "flush_timeout_ms: 120000 data_source_stop_timeout_ms: 120000";

/// Whether a recording that lacks nothing may report that something is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tells {
    /// It reports that something is missing if, and only if, that is so.
    Truth,
    /// It may report it, because a program did not answer, and may have had data.
    Doubt,
}

pub(crate) struct Scene<'a> {
    pub(crate) system: System<'a>,
    pub(crate) traced: u32,
    pub(crate) probes: u32,
    pub(crate) application: Application,
    pub(crate) recording: Recording,
    /// Processes that are stopped at present.
    pub(crate) stopped: Vec<Stopped>,
    /// The instance in which the kernel records.
    pub(crate) instance: Instance,
    truth: Events,
    disk: Option<Mounted>,
}

impl<'a> Scene<'a> {
    /// Starts a recording.
    pub(crate) fn set(programs: &'a Programs, setup: &Setup) -> Scene<'a> {
        let instance = Instance::new().unwrap();
        let mut system = System::new(programs);
        let traced = system.start(Side::Ours, Program::Traced);
        let probes = system.start(Side::Ours, Program::TracedProbes);
        let application = Application::start(&system);
        let config = format!(
            "buffers {{ {} }}
            {}
            data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{
                instance_name: \"{}\" ftrace_events: \"ftrace/print\" ftrace_events: \"task/task_rename\" {} }} }} }}
            data_sources {{ config {{ name: \"track_event\" track_event_config {{
                disabled_categories: \"*\" enabled_categories: \"vandal\" }} }} }}",
            setup.buffer,
            setup.session,
            instance.name(),
            setup.ftrace
        );
        let disk = match setup.disk {
            Disk::Large => None,
            Disk::Small(size_kb) => Some(Mounted::new(&system.path("disk"), size_kb)),
        };
        let folder = if disk.is_some() { "disk/trace" } else { "trace" };
        let trace = system.path(folder);
        let (recording, started) = system.begin_into(Path::new(FERRETTO), &["--strict"], &config, trace);
        assert_eq!(started, 0, "{}", recording.said());
        Scene {
            system,
            traced,
            probes,
            application,
            recording,
            stopped: Vec::new(),
            instance,
            truth: Events::default(),
            disk,
        }
    }

    /// Makes the kernel and the application emit so many events each.
    pub(crate) fn emit(&mut self, count: u64) {
        self.emit_in_kernel(count);
        self.application.emit(count);
    }

    pub(crate) fn emit_in_kernel(&mut self, count: u64) {
        self.truth.emit(&self.instance, count);
    }

    /// Ends the recording as Ctrl-C does, and compares its account with the events that it lacks.
    pub(crate) fn end(mut self, tells: Tells) -> Result<(), String> {
        self.truth.steps = (0..self.application.emitted()).collect();
        self.recording.signal(Signal::INT);
        let status = self.recording.wait().ok_or("the recording does not end")?;
        self.stopped.clear();
        let said = self.recording.said();
        let trace = self.recording.trace().to_owned();
        let held = Events::of_trace(&trace);
        let missing = self.truth.missing_in(&held);
        let lacks = !missing.are_none();
        let told = Told::of(&trace);
        println!("  {status}; missing: {missing}; {told:?}");
        let claims = [
            ("its exit code", status.code() != Some(0)),
            ("its summary", !said.contains("nothing lost")),
            ("the exit code of `ferretto info --strict`", told.code != Some(0)),
            ("`ferretto info --json`", told.lists_something),
        ];
        drop(self.disk);
        for (who, says) in claims {
            let wrong = match (lacks, says) {
                (true, false) => "does not tell",
                (false, true) if tells == Tells::Truth => "tells of something missing where nothing is",
                _ => continue,
            };
            return Err(format!(
                "{who} {wrong}. Missing: {missing}. {status}. It said:\n{said}\nand of the trace is told:\n{}",
                told.text
            ));
        }
        Ok(())
    }
}

/// The result of `ferretto info` for a trace.
struct Told {
    code: Option<i32>,
    lists_something: bool,
    text: String,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "info: {:?}, lists something: {}",
            self.code, self.lists_something
        )
    }
}

impl Told {
    fn of(trace: &Path) -> Told {
        let info = |flag: &str| {
            let mut command = Command::new(FERRETTO);
            command.args(["info", flag]).arg(trace).stdin(Stdio::null());
            command.output().unwrap()
        };
        let strict = info("--strict");
        let json = info("--json");
        let listed: Option<serde_json::Value> = serde_json::from_slice(&json.stdout).ok();
        let is_filled = |json: &serde_json::Value, name: &str| {
            let list = json[name].as_array();
            list.is_none_or(|list| !list.is_empty())
        };
        let lists_something = listed.is_none_or(|json| {
            // Without the service's final statistics, the result is unknown.
            let ended = json["notes"].as_array().unwrap().iter();
            is_filled(&json, "losses")
                || is_filled(&json, "not_recorded")
                || ended.into_iter().any(|note| note["cause"] == "no_stats")
        });
        Told {
            code: strict.status.code(),
            lists_something,
            text: String::from_utf8_lossy(&[strict.stdout, strict.stderr].concat()).into_owned(),
        }
    }
}

/// A small disk, which is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(folder: &Path, size_kb: u32) -> Mounted {
        std::fs::create_dir(folder).unwrap();
        let options = std::ffi::CString::new(format!("size={size_kb}k")).unwrap();
        rustix::mount::mount("none", folder, "tmpfs", MountFlags::empty(), Some(&*options)).unwrap();
        Mounted(folder.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, UnmountFlags::DETACH) {
            println!("{} stays mounted: {error}", self.0.display());
        }
    }
}
