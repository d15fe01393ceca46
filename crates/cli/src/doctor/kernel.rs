//! Checks the kernel and this user, and whether this is a container.
//!
//! [`examine`](super::examine) calls it. It changes nothing.

use super::System;
use super::finding::Finding;
use crate::machine::{Namespace, user_name};

/// Returns the findings about kernel, user and container.
pub(super) fn examine(system: &System<'_>) -> Vec<Finding> {
    let mut findings = vec![kernel(system), user(system)];
    findings.extend(container(system));
    findings
}

fn kernel(system: &System<'_>) -> Finding {
    match system.machine.read("/proc/sys/kernel/osrelease") {
        Ok(release) => Finding::ok(
            "kernel",
            format!("Linux {} on {}", release.trim(), std::env::consts::ARCH),
        ),
        Err(error) => Finding::note("kernel", format!("/proc tells nothing: {error}"))
            .costs("no processes, no counters, and most lines below guess")
            .mend(system.identity.as_root("mount -t proc proc /proc")),
    }
}

fn user(system: &System<'_>) -> Finding {
    let identity = &system.identity;
    let name = user_name(system.machine, identity.uid);
    match (identity.is_root(), identity.may_administer()) {
        (true, true) => Finding::ok("user", name),
        (true, false) => Finding::ok("user", format!("{name}, but without CAP_SYS_ADMIN")),
        (false, true) => Finding::ok("user", format!("{name}, with CAP_SYS_ADMIN")),
        (false, false) => Finding::ok("user", format!("{name}, without privileges")),
    }
}

/// Returns a finding only inside a container.
fn container(system: &System<'_>) -> Option<Finding> {
    let identity = &system.identity;
    let kind = match (&identity.container, identity.users, identity.processes) {
        (None, Namespace::First, Namespace::First) => return None,
        (Some(kind), ..) => format!("a container ({kind})"),
        (None, ..) => "a container".to_owned(),
    };
    let run = match identity.container.as_deref() {
        Some(runner @ ("docker" | "podman")) => Some(format!(
            "{runner} run --privileged --pid=host -v /sys/kernel/tracing:/sys/kernel/tracing …"
        )),
        _ => None,
    };
    let mended = |finding: Finding| match &run {
        Some(command) => finding.mend(command),
        None => finding,
    };
    Some(
        match (identity.users, identity.processes, identity.may_administer()) {
            (_, Namespace::Inner, _) => mended(
                Finding::note("container", format!("this is {kind} with processes of its own")).costs(
                    "kernel events name threads by the machine's numbers, for which there are no names here",
                ),
            ),
            (Namespace::Inner, ..) => mended(
                Finding::note(
                    "container",
                    format!("this is {kind} with users of its own, whose root is not the machine's"),
                )
                .costs("what only the machine's root may use, tracefs above all"),
            ),
            (.., false) if identity.is_root() => mended(
                Finding::note("container", format!("this is {kind} without CAP_SYS_ADMIN"))
                    .costs("tracefs cannot be mounted from here"),
            ),
            _ => Finding::ok(
                "container",
                format!("this is {kind} that shares the machine's processes"),
            ),
        },
    )
}
