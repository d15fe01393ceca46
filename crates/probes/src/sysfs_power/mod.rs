//! `linux.sysfs_power`: charge, energy, current and voltage of batteries, polled from `/sys/class/power_supply`.
//!
//! The data source has no config, as upstream's. It samples at the start and then once a second, and writes one packet for each
//! battery. One instance serves one tracing session; the producer owns it and calls it as [`Probe`].
//!
//! | file of the battery | field of `BatteryCounters` |
//! |---|---|
//! | `charge_now` | `charge_counter_uah` |
//! | `capacity` | `capacity_percent` |
//! | `current_now` | `current_ua` |
//! | `current_avg` | `current_avg_ua` |
//! | `energy_now` | `energy_counter_uwh` |
//! | `voltage_now` | `voltage_uv` |
//! | its directory's name | `name`, if there are several batteries |
//!
//! The batteries are those that are present when the instance starts. The units are the kernel's: millionths of ampere-hours,
//! amperes, watt-hours and volts. Whether a current out of the battery is negative depends on the battery's driver.
//!
//! Guarantees: the runtime's thread never waits for a battery. A thread of the instance reads the batteries (`reader.rs`), and each packet has the
//! time at which its battery was read. Files are opened once. A battery that is pulled out leaves no packets without values. A machine without
//! batteries costs nothing after the start, which reports it as a `Notice`.

mod reader;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};

use self::reader::{Phase, Reader};
use crate::kernel_files::KernelRoots;
use crate::notice::Notice;
use crate::time::next_multiple;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.sysfs_power";

/// Nanoseconds from one sample to the next, as in upstream.
const PERIOD: u64 = 1_000_000_000;
/// Nanoseconds between two looks for the thread's packets.
const LOOK_PERIOD: u64 = 100_000_000;

/// Batteries of one machine that are sampled at most. Each keeps six files open.
const MOST_BATTERIES: usize = 16;

/// One instance of the data source.
pub(crate) struct SysfsPower {
    program: Arc<dyn ProducerProgram>,
    /// The instance's serial number.
    instance: u32,
    dir: PathBuf,
    /// Present from the start until it is known that there is nothing to read.
    reader: Option<Reader>,
    next_sample: Option<BootTime>,
    next_look: Option<BootTime>,
    notices: Vec<Notice>,
}

impl std::fmt::Debug for SysfsPower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SysfsPower").finish_non_exhaustive()
    }
}

impl SysfsPower {
    /// Makes the instance with this serial number, which reads below `roots`.
    pub(crate) fn new(roots: &KernelRoots, program: Arc<dyn ProducerProgram>, instance: u32) -> Self {
        Self {
            program,
            instance,
            dir: roots.sysfs.join("class/power_supply"),
            reader: None,
            next_sample: None,
            next_look: None,
            notices: Vec::new(),
        }
    }

    /// Writes the packets since the last look.
    fn look(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let Some(reader) = &self.reader else { return };
        let taken = reader.take();
        for packet in &taken.packets {
            sink.write_packet(packet);
        }
        self.notices.extend(taken.notices);
        self.next_look = None;
        match taken.phase {
            Phase::Reading => self.next_look = Some(next_multiple(now, LOOK_PERIOD)),
            Phase::Idle => {}
            Phase::Ended => {
                self.next_sample = None;
                self.reader = None;
            }
        }
    }
}

impl Probe for SysfsPower {
    fn start(&mut self, now: BootTime, _sink: &mut dyn PacketSink) {
        let (program, instance) = (self.program.clone(), self.instance);
        match Reader::start(self.dir.clone(), move || program.join_instance(instance)) {
            Ok(reader) => {
                self.reader = Some(reader);
                self.next_sample = Some(next_multiple(now, PERIOD));
                self.next_look = Some(next_multiple(now, LOOK_PERIOD));
            }
            Err(why) => self.notices.push(Notice::NoBatteryReader { why }),
        }
    }

    fn next_deadline(&self) -> Option<BootTime> {
        [self.next_sample, self.next_look].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if self.next_look.is_some_and(|due| due <= now) {
            self.look(now, sink);
        }
        if let Some(reader) = &self.reader
            && self.next_sample.is_some_and(|due| due <= now)
        {
            reader.ask();
            self.next_sample = Some(next_multiple(now, PERIOD));
            self.next_look = Some(next_multiple(now, LOOK_PERIOD));
        }
    }

    fn flush(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.look(now, sink);
    }

    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.look(now, sink);
        self.next_sample = None;
        self.next_look = None;
        self.reader = None;
    }

    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}
