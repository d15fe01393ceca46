//! Waiting: how long a thread had no CPU after it was sampled when it left one.
//!
//! [`run`](super::run) calls it with the samples of the event [`OFF_CPU`], of which there is one for each thread that begins to wait. It waits until
//! it next runs, or until it is sampled again (if the event of its return was lost), or until the end of the recording. Samples for which the trace
//! tells none of these are counted.

use std::collections::HashMap;

use crate::profiling::Schedule;
use crate::samples::{Event, OFF_CPU, Period, Recording, Sample, Totals};

/// Weighs the samples of waiting by its length in ns. The recording must have kept its samples.
///
/// Returns how many were left out, because their length is not known.
pub(super) fn weigh(recording: &mut Recording, schedule: &Schedule) -> u64 {
    // The next switch of the same thread, found from the end.
    let mut next: HashMap<u32, u64> = HashMap::new();
    let mut waiting: Vec<(u64, Sample)> = Vec::new();
    let mut totals = Totals::default();
    let mut without_length = 0;
    for sample in &recording.samples {
        match sample.time {
            Some(time) if recording.is_waiting(sample.event) => waiting.push((time, *sample)),
            // Without a time there is no length.
            None if recording.is_waiting(sample.event) => without_length += 1,
            _ => totals.add(sample),
        }
    }
    waiting.sort_by_key(|(time, _)| *time);
    for (time, sample) in waiting.into_iter().rev() {
        let next = next.insert(sample.thread.tid, time);
        match schedule
            .back(sample.thread.tid, time)
            .into_iter()
            .chain(next)
            .min()
        {
            Some(back) => totals.add_weighted(&sample, back.saturating_sub(time)),
            None => without_length += 1,
        }
    }
    recording.totals = totals;
    for event in &mut recording.profile.events {
        if event.name == OFF_CPU {
            *event = Event {
                unit: "nanoseconds".into(),
                period: Some(Period::Weighted),
                ..event.clone()
            };
        }
    }
    without_length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::EventId;
    use crate::samples::{Mode, Thread};

    /// A recording with one event, which is waiting, and these samples of one thread.
    fn recording(times: &[Option<u64>]) -> Recording {
        let mut recording = Recording::default();
        recording.profile.events.push(Event {
            name: OFF_CPU.to_owned(),
            ..Event::default()
        });
        let sample = |time: &Option<u64>| Sample {
            time: *time,
            thread: Thread { pid: 7, tid: 7 },
            weight: 1,
            cpu: None,
            mode: Mode::Kernel,
            event: EventId(0),
            stack: None,
        };
        recording.samples = times.iter().map(sample).collect();
        recording
    }

    #[test]
    fn samples_of_waiting_whose_end_is_not_in_the_trace_are_counted() {
        let mut schedule = Schedule::default();
        schedule.arrival(50, 7);
        schedule.arrival(90, 8);
        schedule.sort();
        // Until a switch, until the end, not at all, and without a time.
        let mut recording = recording(&[Some(20), Some(60), Some(95), None]);
        assert_eq!(weigh(&mut recording, &schedule), 2);
    }
}
