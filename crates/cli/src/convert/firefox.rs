//! Profiles for the Firefox profiler (<https://profiler.firefox.com>): each sample at its time, by process and thread.
//!
//! The crate `fxprof-processed-profile` writes the JSON. Frames are names with their category, kernel or user.

use std::collections::HashMap;
use std::io::{self, Write};

use fxprof_processed_profile::{
    CategoryColor, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameHandle, FrameInfo, ProcessHandle,
    Profile as Firefox, ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp,
    WeightType,
};

use super::folded::{process_name, thread_name};
use crate::samples::{EventId, FrameId, Period, Recording, Sample, StackId, Thread};

/// The interval that is written if none is known, in ns.
const USUAL_INTERVAL: u64 = 1_000_000;

/// Writes the samples of one event.
///
/// # Errors
/// The errors of `out`.
pub(super) fn write(recording: &Recording, event: EventId, out: &mut impl Write) -> io::Result<()> {
    let mut samples: Vec<&Sample> = recording
        .samples
        .iter()
        .filter(|sample| sample.event == event && sample.time.is_some())
        .collect();
    samples.sort_by_key(|sample| sample.time);
    let mut builder = Builder::new(recording, event);
    for sample in samples {
        builder.sample(sample);
    }
    serde_json::to_writer(&mut *out, &builder.firefox)?;
    out.flush()
}

struct Builder<'a> {
    recording: &'a Recording,
    firefox: Firefox,
    kernel: CategoryPairHandle,
    user: CategoryPairHandle,
    /// The time of the first sample, in ns since boot.
    start: u64,
    /// The processor time of a sample, if samples are of time.
    delta: CpuDelta,
    weight_type: WeightType,
    processes: HashMap<u32, ProcessHandle>,
    threads: HashMap<Thread, ThreadHandle>,
    frames: HashMap<(ThreadHandle, FrameId), Vec<FrameHandle>>,
    stacks: HashMap<(ThreadHandle, StackId), Option<StackHandle>>,
}

impl<'a> Builder<'a> {
    fn new(recording: &'a Recording, event: EventId) -> Builder<'a> {
        let profile = &recording.profile;
        let event = profile.events.get(event.0 as usize);
        let start = recording.span.map_or(0, |(first, _)| first);
        let period = match event.and_then(|event| event.period) {
            Some(Period::Time(period)) => Some(period),
            _ => None,
        };
        let milliseconds = profile.boot.unwrap_or(0).saturating_add(start) as f64 / 1e6;
        let mut firefox = Firefox::new(
            event.map_or("profile", |event| &event.name),
            ReferenceTimestamp::from_millis_since_unix_epoch(milliseconds),
            SamplingInterval::from_nanos(period.unwrap_or(USUAL_INTERVAL)),
        );
        firefox.set_os_name("Linux");
        firefox.set_symbolicated(true);
        let kernel = firefox.add_category("Kernel", CategoryColor::Orange).into();
        let user = firefox.add_category("User", CategoryColor::Yellow).into();
        Builder {
            recording,
            firefox,
            kernel,
            user,
            start,
            delta: CpuDelta::from_nanos(period.unwrap_or(0)),
            weight_type: match event.map(|event| (event.period, &*event.unit)) {
                Some((Some(Period::Weighted), "bytes")) => WeightType::Bytes,
                // The format has no others that fit. Its milliseconds are too coarse for integers.
                _ => WeightType::Samples,
            },
            processes: HashMap::new(),
            threads: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let Some(time) = sample.time else { return };
        let time = Timestamp::from_nanos_since_reference(time.saturating_sub(self.start));
        let thread = self.thread(sample.thread, time);
        let stack = sample.stack.and_then(|stack| self.stack(thread, stack));
        let weight = i32::try_from(sample.weight).unwrap_or(i32::MAX);
        self.firefox.add_sample(thread, time, stack, self.delta, weight);
    }

    fn thread(&mut self, thread: Thread, first: Timestamp) -> ThreadHandle {
        if let Some(handle) = self.threads.get(&thread) {
            return *handle;
        }
        let profile = &self.recording.profile;
        let firefox = &mut self.firefox;
        let process = *self
            .processes
            .entry(thread.pid)
            .or_insert_with(|| firefox.add_process(&process_name(profile, thread.pid), thread.pid, first));
        let is_main = thread.pid == thread.tid;
        let handle = firefox.add_thread(process, thread.tid, first, is_main);
        firefox.set_thread_name(handle, &thread_name(profile, thread));
        firefox.set_thread_samples_weight_type(handle, self.weight_type.clone());
        self.threads.insert(thread, handle);
        handle
    }

    fn stack(&mut self, thread: ThreadHandle, stack: StackId) -> Option<StackHandle> {
        let recording = self.recording;
        // Callers that are known need no second look.
        let (mut handle, mut missing) = (None, Vec::new());
        for (node, frame) in recording.profile.stacks.nodes_of(stack) {
            if let Some(known) = self.stacks.get(&(thread, node)) {
                handle = *known;
                break;
            }
            missing.push((node, frame));
        }
        for (node, frame) in missing.into_iter().rev() {
            for frame in self.frame(thread, frame) {
                handle = Some(self.firefox.intern_stack(thread, handle, frame));
            }
            self.stacks.insert((thread, node), handle);
        }
        handle
    }

    /// Returns the functions of a frame, outermost first.
    fn frame(&mut self, thread: ThreadHandle, frame: FrameId) -> Vec<FrameHandle> {
        if let Some(handles) = self.frames.get(&(thread, frame)) {
            return handles.clone();
        }
        let profile = &self.recording.profile;
        let category_pair = match profile.is_kernel(frame) {
            true => self.kernel,
            false => self.user,
        };
        let mut handles = Vec::new();
        for line in profile.lines(frame).iter().rev() {
            let name = self.firefox.intern_string(&line.name);
            let info = FrameInfo {
                frame: Frame::Label(name),
                category_pair,
                flags: FrameFlags::empty(),
            };
            handles.push(self.firefox.intern_frame(thread, info));
        }
        self.frames.insert((thread, frame), handles.clone());
        handles
    }
}
