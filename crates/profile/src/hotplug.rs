//! CPUs that come and go while an instance records.
//!
//! The kernel closes the events of a CPU that goes offline, also when the machine sleeps, and says nothing; it opens none on a CPU that comes. So the
//! [thread](crate::thread) of an instance has a [`Hotplug`] look at the list of CPUs when it reads, at most every 100 ms. The trace says what changed,
//! and new CPUs are sampled. A CPU that goes and comes back between two looks is not sampled any more, and nothing says so, unless the machine slept.

use std::path::PathBuf;

use ferretto_client::runtime::probe::PacketSink;
use ferretto_ipc::reactor::{Interest, Reactor, Token, boot_now, monotonic_now};

use crate::config::PerfConfig;
use crate::cpu::{CpuEvents, RingSize};
use crate::cpus;
use crate::profiler::Profiler;

/// The machine has slept if the clocks have come apart by this, in nanoseconds.
const SLEPT: u64 = 1_000_000;

/// The kernel lists a CPU a moment before its events can be opened, so that is tried in so many looks.
const MOST_TRIES: u32 = 10;

/// The machine sleeps without this CPU, which stays online.
const BOOT_CPU: u32 = 0;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Hotplug {
    sysfs: PathBuf,
    /// The CPUs that were online at the last look; empty before the first.
    online: Vec<u32>,
    /// How long the machine had slept by then, in nanoseconds.
    slept: u64,
    /// In how many looks CPUs that cannot be opened are tried again.
    tries_left: u32,
}

/// The changes of a look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<u32>,
    come: Vec<u32>,
}

impl Hotplug {
    /// Finds the list of CPUs in this sysfs.
    pub(crate) fn new(sysfs: PathBuf) -> Hotplug {
        Hotplug {
            sysfs,
            online: Vec::new(),
            slept: slept(),
            tries_left: 0,
        }
    }

    /// Looks, and has the profiler let go of CPUs that have gone and read those that have come. The reactor watches the events under `token`.
    ///
    /// Returns lines for the log.
    pub(crate) fn look(
        &mut self,
        config: &PerfConfig,
        profiler: &mut Profiler,
        (reactor, token): (&Reactor, Token),
        sink: &mut dyn PacketSink,
    ) -> Vec<String> {
        let mut log = Vec::new();
        // A list that cannot be read says nothing about CPUs.
        let Ok(online) = cpus::online(&self.sysfs) else {
            return log;
        };
        let Changes { gone, come } = self.changes(config, profiler, online, slept());
        for cpu in gone {
            if let Some(events) = profiler.remove_cpu(cpu, sink) {
                // It goes away now, whatever the system says.
                let _ = reactor.deregister(&events, token);
                log.push(format!(
                    "CPU {cpu} is not sampled any more: it went offline, or the machine slept"
                ));
            }
        }
        let count = profiler.cpus().len() + come.len();
        for cpu in come {
            match begin(config, cpu, count, (reactor, token)) {
                Ok(events) => {
                    profiler.add_cpu(events, sink);
                    log.push(format!("CPU {cpu} is sampled from now on"));
                }
                Err(error) => {
                    if profiler.leave_out_cpu(cpu, sink) {
                        log.push(format!("CPU {cpu} is left out: {error}"));
                    }
                }
            }
        }
        log
    }

    /// Compares the CPUs that are online now, and how long the machine has slept, with the last look.
    fn changes(&mut self, config: &PerfConfig, profiler: &Profiler, online: Vec<u32>, slept: u64) -> Changes {
        let has_slept = slept > self.slept + SLEPT;
        self.slept = self.slept.max(slept);
        if online != self.online || has_slept {
            self.tries_left = MOST_TRIES;
            self.online = online;
        } else {
            self.tries_left = self.tries_left.saturating_sub(1);
            if self.tries_left == 0 || profiler.unavailable().is_empty() {
                return Changes::default();
            }
        }
        let chosen = cpus::chosen(config, &self.online, &self.sysfs);
        let sampled: Vec<u32> = profiler.cpus().iter().map(|events| events.cpu).collect();
        let is_gone = |cpu: &u32| has_slept && *cpu != BOOT_CPU || !chosen.contains(cpu);
        let gone: Vec<u32> = sampled.iter().copied().filter(is_gone).collect();
        let is_new = |cpu: &u32| !sampled.contains(cpu) || gone.contains(cpu);
        Changes {
            come: chosen.iter().copied().filter(is_new).collect(),
            gone,
        }
    }
}

/// Opens the events of one of so many CPUs, begins to count, and has the reactor watch them.
fn begin(
    config: &PerfConfig,
    cpu: u32,
    cpus: usize,
    (reactor, token): (&Reactor, Token),
) -> Result<CpuEvents, Box<dyn std::error::Error>> {
    let open = |size| CpuEvents::open(config, cpu, cpus, size);
    let events = RingSize::largest_with_room(config, cpus, open)?;
    events.enable()?;
    reactor.register(&events, token, Interest::Readable)?;
    Ok(events)
}

/// How long the machine has slept since it was booted, in nanoseconds. Never too long, but too short if this thread is interrupted.
fn slept() -> u64 {
    let read = || boot_now().saturating_sub(monotonic_now());
    read().max(read())
}

#[cfg(test)]
mod tests;
