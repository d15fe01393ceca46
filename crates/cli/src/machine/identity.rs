//! This process's user, capabilities and container.
//!
//! Determined once at the start; the checks use it.

use super::{Machine, Owner};
use ferretto_probes::pid_namespace;

/// `CAP_SYS_ADMIN` in `linux/capability.h`: allows mounting, and most of the access that tracing needs.
const CAP_SYS_ADMIN: u32 = 21;
/// `CAP_SYSLOG`: shows addresses of the kernel.
const CAP_SYSLOG: u32 = 34;
/// `CAP_PERFMON`, since Linux 5.8: allows sampling.
const CAP_PERFMON: u32 = 38;
/// The map of a user namespace that maps all users to themselves.
const EVERY_USER: [&str; 3] = ["0", "0", "4294967295"];

/// The owner of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// The machine itself.
    First,
    /// A container.
    Inner,
}

/// The identity of this process.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The effective user.
    pub(crate) uid: u32,
    groups: Vec<u32>,
    capabilities: u64,
    pub(crate) users: Namespace,
    pub(crate) processes: Namespace,
    /// The kind of container, if this is one.
    pub(crate) container: Option<String>,
}

impl Identity {
    /// Reads the identity from `/proc`. Without `/proc` it has no groups or capabilities.
    pub(crate) fn of(machine: &dyn Machine) -> Identity {
        let status = machine.read("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
        };
        let second = |name: &str| field(name).split_ascii_whitespace().nth(1)?.parse().ok();
        let mut groups: Vec<u32> = field("Groups")
            .split_ascii_whitespace()
            .filter_map(|group| group.parse().ok())
            .collect();
        groups.extend(second("Gid"));
        let users = machine
            .read("/proc/self/uid_map")
            .map_or(Namespace::First, |map| {
                match map.split_ascii_whitespace().eq(EVERY_USER) {
                    true => Namespace::First,
                    false => Namespace::Inner,
                }
            });
        let processes = match machine.link("/proc/self/ns/pid") {
            Ok(namespace) if namespace != pid_namespace::INITIAL => Namespace::Inner,
            _ => Namespace::First,
        };
        Identity {
            uid: second("Uid").unwrap_or(u32::MAX),
            groups,
            capabilities: u64::from_str_radix(field("CapEff").trim(), 16).unwrap_or(0),
            users,
            processes,
            container: container(machine),
        }
    }

    /// Whether the user is root. Root may still lack capabilities.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether this user may mount file systems and perform similar operations.
    pub(crate) fn may_administer(&self) -> bool {
        self.capabilities & 1 << CAP_SYS_ADMIN != 0
    }

    /// Whether this user may see the kernel's addresses.
    pub(crate) fn may_see_addresses(&self) -> bool {
        self.capabilities & 1 << CAP_SYSLOG != 0
    }

    /// Whether this user may sample CPUs, as far as the kernel has a capability for that alone.
    pub(crate) fn may_sample(&self) -> bool {
        self.capabilities & 1 << CAP_PERFMON != 0
    }

    /// Returns the command that adds this user to the group of a file, from the next login on, if the group is not root's and these bits of the mode
    /// give it the access.
    pub(crate) fn join_group(&self, machine: &dyn Machine, path: &str, bits: u32) -> Option<String> {
        let Owner { gid, mode, .. } = machine.owner(path).ok()?;
        if gid == 0 || mode & bits != bits || self.groups.contains(&gid) {
            return None;
        }
        let group = name_in(machine, "/etc/group", gid)?;
        Some(format!("sudo usermod -aG {group} $USER"))
    }

    /// Returns a command that runs as root.
    pub(crate) fn as_root(&self, command: &str) -> String {
        match self.is_root() {
            true => command.to_owned(),
            false => format!("sudo {command}"),
        }
    }

    /// Returns a command that writes a word into a file of root's.
    pub(crate) fn write_as_root(&self, word: &str, file: &str) -> String {
        match self.is_root() {
            true => format!("echo {word} > {file}"),
            false => format!("echo {word} | sudo tee {file}"),
        }
    }
}

/// Returns the kind of container, by the marks that containers leave.
fn container(machine: &dyn Machine) -> Option<String> {
    // systemd writes this file in every kind of container.
    if let Ok(kind) = machine.read("/run/systemd/container") {
        return Some(kind.trim().to_owned());
    }
    for (mark, kind) in [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")] {
        if machine.owner(mark).is_ok() {
            return Some(kind.to_owned());
        }
    }
    let groups = machine.read("/proc/1/cgroup").unwrap_or_default();
    ["kubepods", "docker", "containerd", "libpod", "lxc"]
        .into_iter()
        .find(|kind| groups.contains(kind))
        .map(str::to_owned)
}

/// Returns the name of a user, or its number.
pub(crate) fn user_name(machine: &dyn Machine, uid: u32) -> String {
    name_in(machine, "/etc/passwd", uid).unwrap_or_else(|| format!("user {uid}"))
}

/// Looks a number up. In both files, the first field is the name and the third is the number.
fn name_in(machine: &dyn Machine, file: &str, number: u32) -> Option<String> {
    let number = number.to_string();
    machine.read(file).ok()?.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    })
}
