//! Checks memory, disk space and limits, which recordings use up, and the clock for their timestamps.
//!
//! [`examine`](super::examine) calls it. It reads a few files, and reserves nothing.

use std::path::Path;

use super::System;
use super::finding::Finding;
use crate::autostart::parent_of_socket_folders;
use crate::figures::Bytes;
use crate::machine::Access;

/// With less memory, usual buffers and the shared memory of some producers do not fit.
const LITTLE_MEMORY: u64 = 256 << 20;
/// With less disk space, a recording soon fills the disk.
const LITTLE_DISK: u64 = 200 << 20;
/// The number of descriptors that a service with many producers needs.
const FEW_DESCRIPTORS: u64 = 1024;

/// Returns the findings about all of them.
pub(super) fn examine(system: &System<'_>) -> Vec<Finding> {
    let mut findings = vec![memory(system)];
    findings.extend(disk(system));
    findings.extend(limits(system));
    findings.push(clock(system));
    findings
}

/// Checks the machine's available memory or, if that is less, the memory that our control group may still use.
fn memory(system: &System<'_>) -> Finding {
    let meminfo = system.machine.read("/proc/meminfo").unwrap_or_default();
    let machine = meminfo.lines().find_map(|line| {
        let kib: u64 = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()?;
        Some(kib << 10)
    });
    let group = group_memory(system);
    let (free, of) = match (machine, group) {
        (Some(machine), Some(group)) if group < machine => (group, " in this control group"),
        (Some(machine), _) => (machine, ""),
        (None, Some(group)) => (group, " in this control group"),
        (None, None) => return Finding::ok("memory", "as much as there is: nothing here tells how much"),
    };
    let what = format!("{} available{of} for buffers and shared memory", Bytes(free));
    match free < LITTLE_MEMORY {
        true => Finding::note("memory", what)
            .costs("larger buffers may get a process killed; smaller ones lose more (-b 8mb)"),
        false => Finding::ok("memory", what),
    }
}

/// Returns the memory left below the limits of our control group and its ancestors, in version 2 or 1 (cgroups(7)).
fn group_memory(system: &System<'_>) -> Option<u64> {
    let number = |path: String| -> Option<u64> { system.machine.read(&path).ok()?.trim().parse().ok() };
    let groups = system.machine.read("/proc/self/cgroup").ok()?;
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (top, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            "memory" => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let folder = format!("{top}{}", group.display());
            let left = number(format!("{folder}/{limit}"))
                .and_then(|limit| Some(limit.saturating_sub(number(format!("{folder}/{used}"))?)));
            least = [least, left].into_iter().flatten().min();
        }
    }
    least
}

/// Checks the folder for traces, and the folder in which `ferretto` makes the sockets of its own service.
fn disk(system: &System<'_>) -> Vec<Finding> {
    let mut findings = vec![output_folder(system)];
    if system.service.is_none() {
        let temporary = system
            .machine
            .variable("TMPDIR")
            .unwrap_or_else(|| "/tmp".to_owned());
        let parent = parent_of_socket_folders(temporary.into());
        findings.extend(socket_folder(system, &parent.to_string_lossy()));
    }
    findings
}

fn output_folder(system: &System<'_>) -> Finding {
    if system.machine.allows(".", Access::Write).is_err() {
        return Finding::note("disk", "this user may not write into the present folder")
            .costs("a recording needs another place for its file (-o)")
            .mend("cd");
    }
    match system.machine.free_space(".") {
        Ok(free) if free < LITTLE_DISK => {
            Finding::note("disk", format!("{} left in the present folder", Bytes(free)))
                .costs("a long recording ends early, when the disk is full")
        }
        Ok(free) => Finding::ok(
            "disk",
            format!("{} left in the present folder for traces", Bytes(free)),
        ),
        Err(error) => Finding::ok(
            "disk",
            format!("the present folder does not tell what is left: {error}"),
        ),
    }
}

fn socket_folder(system: &System<'_>, parent: &str) -> Option<Finding> {
    let usable = [Access::Write, Access::Enter]
        .iter()
        .try_for_each(|access| system.machine.allows(parent, *access));
    let error = usable.err()?;
    let what = format!("no folder for `ferretto` to make its sockets in: {parent}: {error}");
    Some(Finding::problem("sockets", what).mend("export TMPDIR=$(mktemp -d -p /dev/shm)"))
}

/// Returns the limits that are too low for recordings. `/proc/self/limits` has name, soft and hard limit in columns.
fn limits(system: &System<'_>) -> Vec<Finding> {
    let table = system.machine.read("/proc/self/limits").unwrap_or_default();
    let limit = |name: &str| {
        let mut values = table
            .lines()
            .find_map(|line| line.strip_prefix(name))?
            .split_ascii_whitespace();
        let value = |text: &str| match text {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        };
        Some((value(values.next()?)?, value(values.next()?)?))
    };
    let mut findings = Vec::new();
    if let Some((_, hard)) = limit("Max open files")
        && hard < FEW_DESCRIPTORS
    {
        findings.push(
            Finding::note("limits", format!("a process may have {hard} files open at most"))
                .costs("a service started from here turns producers away when it has that many")
                .mend("sudo prlimit --pid $$ --nofile=65536:65536"),
        );
    }
    if let Some((soft, _)) = limit("Max file size")
        && soft != u64::MAX
    {
        findings.push(
            Finding::note("limits", format!("a file may have {} at most", Bytes(soft)))
                .costs("a recording that becomes larger ends there")
                .mend("ulimit -f unlimited"),
        );
    }
    if let Some((soft, _)) = limit("Max address space")
        && soft != u64::MAX
    {
        findings.push(
            Finding::note(
                "limits",
                format!("a process may have {} of memory at most", Bytes(soft)),
            )
            .costs("larger buffers are refused")
            .mend("ulimit -v unlimited"),
        );
    }
    if findings.is_empty()
        && let Some((_, hard)) = limit("Max open files")
    {
        let files = match hard {
            u64::MAX => "any number of open files".to_owned(),
            hard => format!("{hard} open files"),
        };
        findings.push(Finding::ok("limits", format!("{files}, files of any size")));
    }
    findings
}

/// Whether the SDK can read the time without asking the kernel. This is the SDK's own rule (`clock/counter.rs` there).
fn clock(system: &System<'_>) -> Finding {
    const COSTS: &str =
        "programs with the SDK ask the kernel for the time of each event, which takes several times as long";
    let sources = "/sys/devices/system/clocksource/clocksource0";
    let Ok(current) = system.machine.read(&format!("{sources}/current_clocksource")) else {
        return Finding::note("clock", "the kernel does not tell which clock it uses").costs(COSTS);
    };
    let current = current.trim();
    let (counters, invariant): (&[&str], bool) = match std::env::consts::ARCH {
        "x86_64" => {
            let processors = system.machine.read("/proc/cpuinfo").unwrap_or_default();
            let flags = processors.lines().find(|line| line.starts_with("flags"));
            let has = |flag: &str| {
                flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|word| word == flag))
            };
            let counters = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"];
            (counters, has("constant_tsc") && has("nonstop_tsc"))
        }
        "aarch64" => (&["arch_sys_counter"], true),
        _ => (&[], true),
    };
    match (counters.contains(&current), invariant) {
        (true, true) => Finding::ok(
            "clock",
            format!("{current}: programs read the processor's counter themselves"),
        ),
        (true, false) => Finding::note(
            "clock",
            format!("{current}, but the processor's counter changes its speed or stops"),
        )
        .costs(COSTS),
        (false, _) => {
            let finding = Finding::note(
                "clock",
                format!("{current}: the kernel does not trust the processor's counter"),
            );
            let others = system
                .machine
                .read(&format!("{sources}/available_clocksource"))
                .unwrap_or_default();
            let better = others
                .split_ascii_whitespace()
                .find(|other| counters.contains(other));
            match better {
                Some(better) => finding.costs(COSTS).mend(
                    system
                        .identity
                        .write_as_root(better, &format!("{sources}/current_clocksource")),
                ),
                None => finding.costs(COSTS),
            }
        }
    }
}
