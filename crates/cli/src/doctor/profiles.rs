//! Checks whether CPUs can be sampled: `linux.perf`, `ferretto profile`.
//!
//! [`examine`](super::examine) calls it. It samples nothing. It follows the kernel's rules: perf_event_open(2), and those of distributions.

use ferretto_profile::paranoia::{self, Paranoia};

use super::System;
use super::finding::Finding;
use crate::machine::Namespace;

const COSTS: &str = "no CPU profiles (linux.perf, ferretto profile)";

const COSTS_BUT_OWN: &str = "no CPU profiles of all processes and of the kernel (linux.perf); `ferretto profile` works with -p and a COMMAND";

/// Returns the finding about profiles of CPUs.
pub(super) fn examine(system: &System<'_>) -> Finding {
    if let Some(profiler) = system.provider("linux.perf") {
        return Finding::ok("profiles", format!("CPU profiles: {profiler} takes them"));
    }
    let level = system.machine.read(paranoia::SETTING).unwrap_or_default();
    let Some(paranoia) = Paranoia::parse(&level) else {
        return Finding::note("profiles", "this kernel has no perf events (CONFIG_PERF_EVENTS)").costs(COSTS);
    };
    let identity = &system.identity;
    // The kernel asks for capabilities of the machine, which the root of a container with users of its own has not.
    let is_privileged = identity.users == Namespace::First
        && (identity.may_administer() || identity.may_sample() && !paranoia.may_want_an_administrator());
    let setting = format!("perf_event_paranoid is {}", level.trim());
    if is_privileged || paranoia.lets_everybody_sample_cpus() {
        return Finding::ok("profiles", format!("CPUs can be sampled ({setting})"));
    }
    let finding = match paranoia.lets_everybody_sample_own_processes() {
        true => {
            let text = format!("this user may sample only processes of its own ({setting})");
            Finding::note("profiles", text).costs(COSTS_BUT_OWN)
        }
        false => Finding::note("profiles", format!("this user may not sample CPUs ({setting})")).costs(COSTS),
    };
    finding.mend(identity.as_root("sysctl kernel.perf_event_paranoid=0"))
}
