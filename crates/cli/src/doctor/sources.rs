//! Checks the requirements of the data sources beside ftrace: names of kernel functions, other users' processes, the kernel's counters.
//!
//! [`examine`](super::examine) calls it. It only checks access to the files that the data sources use.

use super::finding::Finding;
use super::{System, tracefs};
use crate::machine::Access;

/// Files of `linux.sys_stats` that every kernel has, and the fields of its config that need them.
const COUNTERS: &[(&str, &str)] = &[
    ("/proc/meminfo", "meminfo_period_ms"),
    ("/proc/vmstat", "vmstat_period_ms"),
    ("/proc/stat", "stat_period_ms"),
    ("/proc/diskstats", "diskstat_period_ms"),
    ("/proc/buddyinfo", "buddyinfo_period_ms"),
];
/// Files that a machine may lack.
const DEVICES: &[(&str, &str)] = &[
    ("/sys/devices/system/cpu/cpu0/cpufreq", "CPU frequencies"),
    ("/sys/devices/system/cpu/cpu0/cpuidle", "idle states"),
    ("/sys/class/thermal/thermal_zone0", "temperatures"),
];

/// Returns the findings about symbols, processes and counters.
pub(super) fn examine(system: &System<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(symbols(system));
    findings.push(processes(system));
    findings.push(counters(system));
    findings
}

fn number(system: &System<'_>, file: &str) -> Option<i64> {
    system.machine.read(file).ok()?.trim().parse().ok()
}

/// Whether a process keeps the list of kernel functions open, as the probes do where nobody sees addresses who opens it now. `None` if this user may not
/// know.
fn has_symbols_open(system: &System<'_>, pid: i32) -> Option<bool> {
    let folder = format!("/proc/{pid}/fd");
    let files = system.machine.list(&folder).ok()?;
    let is_open = |file: &String| {
        let target = system.machine.link(&format!("{folder}/{file}"));
        target.is_ok_and(|target| target == "/proc/kallsyms")
    };
    Some(files.iter().any(is_open))
}

/// Checks names of kernel functions (`symbolize_ksyms`). They matter only together with kernel events.
fn symbols(system: &System<'_>) -> Option<Finding> {
    const COSTS: &str = "functions in kernel events stay numbers (symbolize_ksyms)";
    const RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";
    let restrict = number(system, RESTRICT).unwrap_or(0);
    if let Some(probes) = system.provider("linux.ftrace") {
        let what = format!("names of kernel functions: {probes} looks them up");
        return Some(match (restrict, has_symbols_open(system, probes.pid)) {
            (..=1, _) | (_, Some(true)) => Finding::ok("symbols", what),
            (_, None) => Finding::ok(
                "symbols",
                format!("{what}, if root started it (kptr_restrict is {restrict})"),
            ),
            (_, Some(false)) => Finding::note(
                "symbols",
                format!("{probes} does not see addresses of kernel functions (kptr_restrict is {restrict})"),
            )
            .costs(COSTS)
            .mend(system.identity.as_root("sysctl kernel.kptr_restrict=1")),
        });
    }
    if !tracefs::is_usable(system) {
        return None;
    }
    if system.machine.allows("/proc/kallsyms", Access::Read).is_err() {
        return Some(
            Finding::note("symbols", "this kernel has no /proc/kallsyms (CONFIG_KALLSYMS)").costs(COSTS),
        );
    }
    // The kernel's rule is kallsyms_show_value() in kernel/ksyms_common.c.
    let paranoid = number(system, ferretto_profile::paranoia::SETTING).unwrap_or(2);
    let privileged = system.identity.may_see_addresses();
    let shown = match restrict {
        0 => privileged || paranoid <= 1,
        1 => privileged,
        // The probes lower it for a moment when they start, which takes more than the right to write the file.
        _ => system.identity.may_administer() && system.machine.allows(RESTRICT, Access::Write).is_ok(),
    };
    let settings = format!("kptr_restrict is {restrict}, perf_event_paranoid {paranoid}");
    Some(match shown {
        true => Finding::ok(
            "symbols",
            format!("names of kernel functions can be looked up ({settings})"),
        ),
        false => Finding::note(
            "symbols",
            format!("addresses of kernel functions are hidden ({settings})"),
        )
        .costs(COSTS)
        .mend(
            system
                .identity
                .as_root("sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1"),
        ),
    })
}

/// Checks whether other users' processes are visible. The first process belongs to root on every machine.
fn processes(system: &System<'_>) -> Finding {
    if system.machine.read("/proc/1/status").is_ok() {
        return Finding::ok("processes", "names, memory and times of all processes");
    }
    if let Some(probes) = system.provider("linux.process_stats") {
        return Finding::ok(
            "processes",
            format!("hidden from this user, but {probes} sees them"),
        );
    }
    Finding::note("processes", "/proc hides other users' processes (hidepid)")
        .costs("linux.process_stats knows this user's processes only")
        .mend(system.identity.as_root("mount -o remount,hidepid=0 /proc"))
}

fn counters(system: &System<'_>) -> Finding {
    let readable = |path: &str| system.machine.allows(path, Access::Read).is_ok();
    let provider = system.provider("linux.sys_stats");
    let missing: Vec<_> = COUNTERS.iter().filter(|(path, _)| !readable(path)).collect();
    if provider.is_none() && !missing.is_empty() {
        let join = |pick: fn(&(&'static str, &'static str)) -> &'static str| {
            missing
                .iter()
                .map(|entry| pick(entry))
                .collect::<Vec<_>>()
                .join(", ")
        };
        return Finding::note("counters", format!("not to be read: {}", join(|(path, _)| path)))
            .costs(format!(
                "linux.sys_stats does nothing for {}",
                join(|(_, field)| field)
            ))
            .mend(system.identity.as_root("mount -t proc proc /proc"));
    }
    if !readable("/proc/pressure/cpu") {
        return Finding::note(
            "counters",
            "memory, CPU and disk, but no /proc/pressure (boot the kernel with psi=1)",
        )
        .costs("no stalls for lack of CPU, memory or disks (psi_period_ms)");
    }
    let absent: Vec<_> = DEVICES
        .iter()
        .filter(|(path, _)| system.machine.list(path).is_err())
        .map(|(_, what)| *what)
        .collect();
    let rest = match absent.is_empty() {
        true => String::new(),
        false => format!("; this machine tells no {}", absent.join(", ")),
    };
    Finding::ok("counters", format!("memory, CPU, disk and pressure{rest}"))
}
