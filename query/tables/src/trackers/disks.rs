//! Counters of disks: how much was read, written, discarded and flushed since the reading before, and how fast.

use ferretto_proto::write::sys_stats::DiskStat;
use hashbrown::HashMap;

use super::Trackers;
use super::tracks::{Dimension, Has, Key};
use crate::context::Context;
use crate::fields::{bytes_of, number_of};
use crate::strings::StringId;

/// The most disks, as their names come from the trace.
const MOST_DISKS: usize = 1 << 12;
/// A sector of the kernel's statistics has 512 bytes on every disk.
const SECTORS_PER_MB: f64 = 2048.0;
const MS_PER_SECOND: f64 = 1000.0;

/// The fields of `DiskStat` with an amount and a time in ms, and the names of their counters.
const TRANSFERS: [(u32, u32, &str, &str); 3] = [
    (
        DiskStat::READ_SECTORS,
        DiskStat::READ_TIME_MS,
        "read_amount",
        "read_throughput",
    ),
    (
        DiskStat::WRITE_SECTORS,
        DiskStat::WRITE_TIME_MS,
        "write_amount",
        "write_throughput",
    ),
    (
        DiskStat::DISCARD_SECTORS,
        DiskStat::DISCARD_TIME_MS,
        "discard_amount",
        "discard_throughput",
    ),
];

/// What the last reading of each disk had, by field.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    last: HashMap<StringId, [i64; FIELDS]>,
}

const FIELDS: usize = DiskStat::FLUSH_TIME_MS as usize + 1;

impl Trackers {
    /// Takes in a reading of one disk.
    pub(super) fn disk(&mut self, ts: i64, reading: &[u8], context: &mut Context<'_>) {
        let device = bytes_of(reading, DiskStat::DEVICE_NAME).unwrap_or(&[]);
        let device = context.strings.intern_bytes(device);
        let mut now = [0; FIELDS];
        for (field, value) in now.iter_mut().enumerate() {
            *value = number_of(reading, field as u32).unwrap_or(0) as i64;
        }
        let disks = &mut self.disks.last;
        if disks.len() >= MOST_DISKS && !disks.contains_key(&device) {
            return;
        }
        let Some(last) = disks.insert(device, now) else {
            return;
        };
        let since = |field: u32| now[field as usize].wrapping_sub(last[field as usize]);
        for (amount, time, amount_name, throughput_name) in TRANSFERS {
            let megabytes = since(amount) as f64 / SECTORS_PER_MB;
            let throughput = match since(time) {
                0 => 0.0,
                time => megabytes * MS_PER_SECOND / time as f64,
            };
            self.count_of_disk(ts, device, amount_name, "MB", megabytes, context);
            self.count_of_disk(ts, device, throughput_name, "MB/s", throughput, context);
        }
        let flushes = since(DiskStat::FLUSH_COUNT) as f64;
        self.count_of_disk(ts, device, "flush_amount", "count", flushes, context);
        let time = since(DiskStat::FLUSH_TIME_MS) as f64;
        self.count_of_disk(ts, device, "flush_time", "ms", time, context);
    }

    fn count_of_disk(
        &mut self,
        ts: i64,
        device: StringId,
        counter: &'static str,
        unit: &'static str,
        value: f64,
        context: &mut Context<'_>,
    ) {
        let has = Has::Counter {
            unit: Some(context.strings.intern(unit)),
        };
        let word = Dimension::Text(context.strings.intern(counter));
        let dimensions = [("device_name", Dimension::Text(device)), ("counter_name", word)];
        let name = format!("diskstat.[{}].{counter}", context.strings.get(device));
        let key = Key::new("diskstat", &dimensions);
        self.count(ts, value, &key, || name, has, context);
    }
}
