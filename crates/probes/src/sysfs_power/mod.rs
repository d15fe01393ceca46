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
//! Guarantees: files are opened once, and once buffers have their size a sample allocates nothing. A battery that is pulled out
//! leaves no packets without values. A machine without batteries costs nothing after the start, which reports it as a [`Notice`].

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_ipc::reactor::boot_now;
use ferretto_proto::messages::DataSourceDescriptor;
use ferretto_proto::write;
use ferretto_wire::Writer;
use rustix::io::Errno;

use crate::kernel_files::{Keep, KernelRoots, PolledFile, for_each_entry, open_dir, read_once};
use crate::kernel_text::leading_i64;
use crate::notice::Notice;
use crate::time::next_multiple;

/// The name it is registered with.
pub const NAME: &str = "linux.sysfs_power";

/// Nanoseconds from one sample to the next, as upstream.
const PERIOD: u64 = 1_000_000_000;

/// Batteries of one machine that are sampled at most. Each keeps six files open.
const MOST_BATTERIES: usize = 16;

/// What services are told of it. Every packet stands alone.
pub fn descriptor() -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(NAME.to_owned()),
        ..Default::default()
    }
}

/// A battery that was present at the start.
#[derive(Debug)]
struct Battery {
    name: Vec<u8>,
    charge: PolledFile,
    capacity: PolledFile,
    current: PolledFile,
    current_average: PolledFile,
    energy: PolledFile,
    voltage: PolledFile,
}

impl Battery {
    fn new(dir: &Path, name: Vec<u8>) -> Self {
        let file = |name| PolledFile::new(dir.join(name), Keep::Open);
        Self {
            name,
            charge: file("charge_now"),
            capacity: file("capacity"),
            current: file("current_now"),
            current_average: file("current_avg"),
            energy: file("energy_now"),
            voltage: file("voltage_now"),
        }
    }
}

/// One instance of the data source.
#[derive(Debug)]
pub struct SysfsPower {
    dir: PathBuf,
    batteries: Vec<Battery>,
    next_sample: Option<BootTime>,
    packet: Writer,
    buffer: Vec<u8>,
    notices: Vec<Notice>,
}

impl SysfsPower {
    /// An instance that reads below `roots`.
    pub fn new(roots: &KernelRoots) -> Self {
        Self {
            dir: roots.sysfs.join("class/power_supply"),
            batteries: Vec::new(),
            next_sample: None,
            packet: Writer::default(),
            buffer: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// The batteries that are present, in the kernel's order.
    fn find_batteries(&mut self) -> Result<Vec<Battery>, Errno> {
        let mut names = Vec::new();
        for_each_entry(open_dir(&self.dir)?, |name, _| names.push(name.to_vec()))?;
        let mut batteries = Vec::new();
        for name in names {
            let dir = self.dir.join(OsStr::from_bytes(&name));
            let mut says = |file, expected: &[u8]| {
                read_once(dir.join(file), &mut self.buffer).is_some_and(|content| content == expected)
            };
            if says("type", b"Battery") && says("present", b"1") {
                batteries.push(Battery::new(&dir, name));
            }
        }
        Ok(batteries)
    }

    fn sample(&mut self, sink: &mut dyn PacketSink) {
        let has_several = self.batteries.len() > 1;
        for battery in &mut self.batteries {
            self.packet.clear();
            let mut values = 0;
            let buffer = &mut self.buffer;
            let mut value = |file: &mut PolledFile| {
                let value = file.read(buffer).ok().and_then(leading_i64);
                values += u32::from(value.is_some());
                value
            };
            write::TracePacket::new(&mut self.packet)
                .timestamp(boot_now())
                .battery(|counters| {
                    if let Some(charge) = value(&mut battery.charge) {
                        counters.charge_counter_uah(charge);
                    }
                    if let Some(capacity) = value(&mut battery.capacity) {
                        counters.capacity_percent(capacity as f32);
                    }
                    if let Some(current) = value(&mut battery.current) {
                        counters.current_ua(current);
                    }
                    if let Some(current) = value(&mut battery.current_average) {
                        counters.current_avg_ua(current);
                    }
                    if let Some(energy) = value(&mut battery.energy) {
                        counters.energy_counter_uwh(energy);
                    }
                    if let Some(voltage) = value(&mut battery.voltage) {
                        counters.voltage_uv(voltage);
                    }
                    if has_several {
                        counters.name(&battery.name);
                    }
                });
            if values > 0 {
                sink.write_packet(self.packet.as_slice());
            }
        }
    }
}

impl Probe for SysfsPower {
    fn start(&mut self, now: BootTime, _sink: &mut dyn PacketSink) {
        match self.find_batteries() {
            Ok(batteries) => self.batteries = batteries,
            Err(error) => {
                self.notices.push(Notice::Unreadable {
                    field: NAME,
                    path: self.dir.clone(),
                    source: error.into(),
                });
                return;
            }
        }
        if self.batteries.is_empty() {
            let dir = self.dir.clone();
            self.notices.push(Notice::NoBattery { dir });
            return;
        }
        if self.batteries.len() > MOST_BATTERIES {
            self.notices.push(Notice::TooManyBatteries {
                found: self.batteries.len(),
                used: MOST_BATTERIES,
            });
            self.batteries.truncate(MOST_BATTERIES);
        }
        self.next_sample = Some(now);
    }

    fn next_deadline(&self) -> Option<BootTime> {
        self.next_sample
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if self.next_sample.is_some_and(|due| due <= now) {
            self.next_sample = Some(next_multiple(now, PERIOD));
            self.sample(sink);
        }
    }

    fn stop(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {
        self.next_sample = None;
    }

    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}
