//! Checks tracefs: whether kernel events can be recorded, who may record them, and which other programs use ftrace.
//!
//! [`examine`](super::examine) calls it. It mounts nothing, and changes no setting of ftrace.

use ferretto_probes::ftrace::restore::JournalDir;
use ferretto_probes::ftrace::tracefs::{self, MOUNT_POINTS};

use super::System;
use super::finding::Finding;
use crate::machine::{Access, Owner};
use crate::machine::{FtraceUse, Reader};
use crate::machine::{Namespace, user_name};

/// The consequence of missing tracefs.
const NO_KERNEL_EVENTS: &str = "no kernel events (scheduling, system calls, frequencies); linux.process_stats and linux.sys_stats still work";
/// The most names that are listed.
const LISTED: usize = 4;

/// Events that most recordings want, and the information in them.
const WANTED: &[(&str, &str, &str)] = &[
    ("sched", "sched_switch", "which thread ran when"),
    ("sched", "sched_waking", "who woke whom"),
    ("sched", "sched_process_free", "which processes ended"),
    ("task", "task_newtask", "which threads began"),
    ("task", "task_rename", "new names of threads"),
    ("power", "cpu_frequency", "CPU frequencies"),
    ("power", "cpu_idle", "idle CPUs"),
    ("power", "suspend_resume", "suspends"),
    ("irq", "irq_handler_entry", "interrupts"),
    ("raw_syscalls", "sys_enter", "system calls"),
    ("ftrace", "print", "markers that programs write"),
];

const MOUNTS: &str = "/proc/self/mounts";

/// Whether this user can use tracefs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// It is mounted here, and usable.
    Usable(&'static str),
    /// It is mounted here, and this user may not use it.
    Denied(&'static str),
    /// It is not mounted at any of the usual places.
    NotMounted,
}

/// Returns the first place that this user can use, in the order of the data source.
fn find(system: &System<'_>) -> Found {
    let mut denied = None;
    for root in MOUNT_POINTS {
        match system.machine.allows(&format!("{root}/tracing_on"), Access::Read) {
            Ok(()) => return Found::Usable(root),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                // Debugfs is closed to most users, even if it has no tracefs in it.
                if denied.is_none() && is_mounted(system, root) {
                    denied = Some(root);
                }
            }
            Err(_) => {}
        }
    }
    denied.map_or(Found::NotMounted, Found::Denied)
}

/// Whether this user may write to the files of a mounted tracefs.
pub(super) fn is_usable(system: &System<'_>) -> bool {
    matches!(find(system), Found::Usable(root) if system.machine.allows(&format!("{root}/tracing_on"), Access::Write).is_ok())
}

struct Mount {
    at: String,
    kind: String,
    options: String,
}

/// Reads the mounts. [`MOUNTS`] has device, folder, type and options (fstab(5)).
fn mounts(system: &System<'_>) -> Vec<Mount> {
    let table = system.machine.read(MOUNTS).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1).map(str::to_owned);
            Some(Mount {
                at: fields.next()?,
                kind: fields.next()?,
                options: fields.next()?,
            })
        })
        .collect()
}

fn is_mounted(system: &System<'_>, root: &str) -> bool {
    mounts(system)
        .iter()
        .any(|mount| mount.kind == "tracefs" && mount.at == root)
}

/// Returns the findings about tracefs, ftrace and the kernel's events.
pub(super) fn examine(system: &System<'_>) -> Vec<Finding> {
    if is_locked_down(system) {
        return vec![
            Finding::note(
                "tracefs",
                "closed to everybody: the kernel is locked down for confidentiality (boot it with lockdown=integrity)",
            )
            .costs(NO_KERNEL_EVENTS),
        ];
    }
    match find(system) {
        Found::NotMounted => vec![not_mounted(system)],
        Found::Denied(root) => vec![denied(system, root)],
        Found::Usable(root) => {
            let mut findings = vec![usable(system, root)];
            findings.extend(in_use(system, root));
            findings.extend(left_behind(system));
            findings.push(buffers(system, root));
            findings.push(events(system, root));
            findings
        }
    }
}

/// Whether the kernel denies tracefs to everybody.
fn is_locked_down(system: &System<'_>) -> bool {
    let read = |file| system.machine.read(file).unwrap_or_default();
    let mounts = match find(system) {
        Found::NotMounted => read(MOUNTS),
        Found::Usable(_) | Found::Denied(_) => String::new(),
    };
    tracefs::is_locked_down(&read(tracefs::LOCKDOWN), &mounts)
}

fn not_mounted(system: &System<'_>) -> Finding {
    let identity = &system.identity;
    if let Some(probes) = system.provider("linux.ftrace") {
        return Finding::ok(
            "tracefs",
            format!("not mounted here, but {probes} records kernel events"),
        );
    }
    let kinds = system.machine.read("/proc/filesystems").unwrap_or_default();
    if !kinds.is_empty() && !kinds.lines().any(|line| line.ends_with("tracefs")) {
        return Finding::note(
            "tracefs",
            "this kernel has none: it was built without CONFIG_TRACING",
        )
        .costs(NO_KERNEL_EVENTS);
    }
    if system.service.is_none() && identity.may_administer() {
        return Finding::ok(
            "tracefs",
            format!(
                "not mounted; `ferretto` mounts it at {} when it records kernel events",
                MOUNT_POINTS[0]
            ),
        );
    }
    let command = identity.as_root(&format!("mount -t tracefs nodev {}", MOUNT_POINTS[0]));
    let elsewhere = mounts(system)
        .into_iter()
        .find(|mount| mount.kind == "tracefs" && !MOUNT_POINTS.contains(&mount.at.as_str()));
    let what = match elsewhere {
        Some(mount) => format!("mounted at {}, where nobody looks for it", mount.at),
        None if identity.is_root() && !identity.may_administer() => {
            "not mounted, and this root may not mount it: that has to be done outside of the container"
                .to_owned()
        }
        None => "not mounted".to_owned(),
    };
    Finding::note("tracefs", what)
        .costs(NO_KERNEL_EVENTS)
        .mend(command)
}

/// Describes the users of a tracefs by its owner and mode.
fn whose(system: &System<'_>, root: &str) -> String {
    match system.machine.owner(root) {
        Ok(Owner { uid, mode, .. }) => format!("{} (mode {mode:04o})", user_name(system.machine, uid)),
        Err(_) => "root".to_owned(),
    }
}

/// Returns the command that lets this user use tracefs.
fn given(system: &System<'_>, root: &str) -> String {
    const GROUP_ENTERS: u32 = 0o050;
    let group = system.identity.join_group(system.machine, root, GROUP_ENTERS);
    group.unwrap_or_else(|| format!("sudo chown -R $USER {root}"))
}

fn denied(system: &System<'_>, root: &str) -> Finding {
    if let Some(probes) = system.provider("linux.ftrace") {
        return Finding::ok(
            "tracefs",
            format!("{root} is not for this user, but {probes} records kernel events for all"),
        );
    }
    let what = format!("{root} belongs to {}", whose(system, root));
    match system.identity.users {
        // A user inside the container cannot change that.
        Namespace::Inner => Finding::note("tracefs", what).costs(NO_KERNEL_EVENTS),
        Namespace::First => Finding::note(
            "tracefs",
            format!("{what}; recordings with sudo have kernel events"),
        )
        .costs(NO_KERNEL_EVENTS)
        .mend(given(system, root)),
    }
}

fn usable(system: &System<'_>, root: &str) -> Finding {
    let control = format!("{root}/tracing_on");
    if system.machine.allows(&control, Access::Write).is_ok() {
        return Finding::ok("tracefs", format!("{root}, for this user to read and write"));
    }
    if let Some(probes) = system.provider("linux.ftrace") {
        return Finding::ok(
            "tracefs",
            format!("{root} is only to be read by this user, but {probes} records kernel events for all"),
        );
    }
    let read_only = mounts(system)
        .iter()
        .any(|mount| mount.at == root && mount.options.split(',').any(|option| option == "ro"));
    let (what, command) = match read_only {
        true => (
            format!("{root} is mounted read-only"),
            system.identity.as_root(&format!("mount -o remount,rw {root}")),
        ),
        false => (
            format!(
                "{root} is only to be read by this user, it belongs to {}",
                whose(system, root)
            ),
            given(system, root),
        ),
    };
    Finding::note("tracefs", what)
        .costs(NO_KERNEL_EVENTS)
        .mend(command)
}

/// Whether recording is off in the kernel, regardless of enabled events.
fn is_off(system: &System<'_>, root: &str) -> bool {
    let control = system.machine.read(&format!("{root}/tracing_on"));
    control.is_ok_and(|control| control.trim() == "0")
}

/// Finds other users of ftrace, which the whole machine shares.
fn in_use(system: &System<'_>, root: &str) -> Vec<Finding> {
    let probes = system.provider("linux.ftrace");
    let ours = probes.as_ref().map(|probes| probes.pid);
    let recording = system.is_recording() && probes.is_some();
    let mut findings = Vec::new();

    let FtraceUse {
        tracer,
        events: on,
        readers,
        instances,
    } = FtraceUse::look(system.machine, root);
    if let Some(tracer) = tracer.filter(|_| !recording) {
        findings.push(
            Finding::note("ftrace", format!("somebody uses it: the tracer `{tracer}` is on"))
                .costs("no kernel events as long as it is")
                .mend(
                    system
                        .identity
                        .write_as_root("nop", &format!("{root}/current_tracer")),
                ),
        );
    }
    if !recording && !on.is_empty() {
        findings.push(
            Finding::note(
                "ftrace",
                format!("somebody uses it: {} are on", listed(&on, "event")),
            )
            .costs("the reader of these events gets none while a recording with kernel events runs")
            .mend(
                system
                    .identity
                    .write_as_root("0", &format!("{root}/events/enable")),
            ),
        );
    }
    // The probes turn it on when they enable events. Without a recording, off is normal.
    if let (true, Some(probes)) = (recording && !on.is_empty(), &probes)
        && is_off(system, root)
    {
        findings.push(
            Finding::note(
                "ftrace",
                format!("somebody turned it off while {probes} records: tracing_on is 0"),
            )
            .costs("no kernel events for recordings until it is on again")
            .mend(system.identity.write_as_root("1", &format!("{root}/tracing_on"))),
        );
    }
    let others = readers
        .into_iter()
        .find(|reader| reader.instance.is_none() && Some(reader.process.pid) != ours);
    if let Some(Reader { process: reader, .. }) = others {
        findings.push(
            Finding::note("ftrace", format!("{reader} reads the kernel's buffers"))
                .costs("the events that it takes out of them are missing from recordings")
                .mend(system.identity.as_root(&format!("kill {}", reader.pid))),
        );
    }
    if findings.is_empty() {
        let what = match (recording, &probes) {
            (true, Some(probes)) => format!("in use by {probes}, for a recording"),
            _ => "free".to_owned(),
        };
        let what = match instances.is_empty() {
            true => what,
            false => format!(
                "{what}; others have {} to themselves",
                listed(&instances, "instance")
            ),
        };
        findings.push(Finding::ok("ftrace", what));
    }
    findings
}

/// Finds settings that a crashed daemon left behind.
fn left_behind(system: &System<'_>) -> Option<Finding> {
    let alive = |pid: i32| system.machine.read(&format!("/proc/{pid}/comm")).is_ok();
    let pid = JournalDir::places(system.identity.uid)
        .iter()
        .filter_map(|folder| system.machine.list(&folder.display().to_string()).ok())
        .flatten()
        .filter_map(|name| JournalDir::keeper(&name))
        .find(|pid| !alive(*pid))?;
    let command = format!("{} traced_probes --cleanup-after-crash", system.machine.program());
    Some(
        Finding::note(
            "ftrace",
            format!("probes that crashed (pid {pid}) left it changed; the next ones put it back"),
        )
        .costs("until then the kernel may write events that nobody reads")
        .mend(system.identity.as_root(&command)),
    )
}

/// Formats the first few names: `2 events (a, b)`.
fn listed(names: &[String], noun: &'static str) -> String {
    let shown = names
        .iter()
        .take(LISTED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let more = if names.len() > LISTED { ", …" } else { "" };
    format!(
        "{} ({shown}{more})",
        crate::figures::Counted(names.len() as u64, noun)
    )
}

/// Checks the size and the clock of the kernel's ring buffers.
fn buffers(system: &System<'_>, root: &str) -> Finding {
    let clocks = system
        .machine
        .read(&format!("{root}/trace_clock"))
        .unwrap_or_default();
    let has_boot = clocks
        .split_ascii_whitespace()
        .any(|clock| clock.trim_matches(['[', ']']) == "boot");
    let size = system
        .machine
        .read(&format!("{root}/buffer_size_kb"))
        .unwrap_or_default();
    // Before its first use the file says `7 (expanded: 1408)`. The first user gets the second size.
    let size = size
        .trim()
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .trim_end_matches(')');
    let cpus = system
        .machine
        .list(&format!("{root}/per_cpu"))
        .unwrap_or_default();
    let cpus = cpus.iter().filter(|name| name.starts_with("cpu")).count();
    let what = format!("{size} KiB for each of {cpus} CPUs, unless a config says otherwise");
    match has_boot {
        true => Finding::ok("buffers", format!("{what}; with the clock `boot`")),
        false => Finding::note(
            "buffers",
            format!("{what}; without the clock `boot` (kernels before 4.10)"),
        )
        .costs("kernel events drift against the others by some microseconds, and by whole suspends"),
    }
}

/// Checks whether the events of most recordings exist.
fn events(system: &System<'_>, root: &str) -> Finding {
    let missing: Vec<_> = WANTED
        .iter()
        .filter(|(group, name, _)| {
            let format = format!("{root}/events/{group}/{name}/format");
            system.machine.allows(&format, Access::Read).is_err()
        })
        .collect();
    if missing.is_empty() {
        let groups = system.machine.list(&format!("{root}/events")).unwrap_or_default();
        // The folder has these files beside the groups.
        let groups = groups
            .iter()
            .filter(|name| !matches!(name.as_str(), "enable" | "header_event" | "header_page"))
            .count();
        return Finding::ok(
            "events",
            format!("{groups} groups, scheduling and system calls among them"),
        );
    }
    let names: Vec<_> = missing
        .iter()
        .map(|(group, name, _)| format!("{group}/{name}"))
        .collect();
    let shown: Vec<_> = missing.iter().map(|(_, _, shown)| *shown).collect();
    Finding::note("events", format!("this kernel lacks {}", names.join(", ")))
        .costs(format!("traces do not show {}", shown.join(", ")))
}
