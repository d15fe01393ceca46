//! Waiting: how long a thread had no CPU after it was sampled when it left one.
//!
//! [`run`](super::run) calls it with the samples of the event [`OFF_CPU`], of which there is one for each thread that begins to wait. It waits until
//! it next runs, or until it is sampled again (if the event of its return was lost), or until the end of the recording.

use std::collections::HashMap;

use super::schedule::Schedule;
use crate::samples::{Event, OFF_CPU, Period, Recording, Sample, Totals};

/// Weighs the samples of waiting by its length in ns. The recording must have kept its samples.
pub(super) fn weigh(recording: &mut Recording, schedule: &Schedule) {
    // The next switch of the same thread, found from the end.
    let mut next: HashMap<u32, u64> = HashMap::new();
    let mut waiting: Vec<(u64, Sample)> = Vec::new();
    let mut totals = Totals::default();
    for sample in &recording.samples {
        match sample.time {
            Some(time) if recording.is_waiting(sample.event) => waiting.push((time, *sample)),
            // Without a time there is no length.
            None if recording.is_waiting(sample.event) => {}
            _ => totals.add(sample),
        }
    }
    waiting.sort_by_key(|(time, _)| *time);
    for (time, sample) in waiting.into_iter().rev() {
        let back = schedule.back(sample.thread.tid, time);
        let back = next
            .insert(sample.thread.tid, time)
            .map_or(back, |next| back.min(next));
        totals.add_weighted(&sample, back.saturating_sub(time));
    }
    recording.totals = totals;
    for event in &mut recording.profile.events {
        if event.name == OFF_CPU {
            *event = Event {
                unit: "nanoseconds",
                period: Some(Period::Weighted),
                ..event.clone()
            };
        }
    }
}
