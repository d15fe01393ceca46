//! What follows from the events of a trace in the order of time: one tracker for each kind of table.

pub(crate) mod args;
mod chrome_names;
mod counters;
pub(crate) mod descriptors;
mod devices;
mod disks;
mod flows;
mod frames;
pub(crate) mod ftrace_events;
pub(crate) mod groups;
pub(crate) mod kernel;
pub(crate) mod kernel_slices;
mod legacy_events;
mod marks;
pub(crate) mod process_tree;
pub(crate) mod processes;
mod samples;
pub(crate) mod sched;
mod slices;
mod stacks;
pub(crate) mod syscalls;
pub(crate) mod task_state;
pub(crate) mod thread_state;
mod track_events;
mod tracks;

use ferretto_proto::write::TracePacket;

use crate::context::Context;
use crate::tokenizer::event::{Queue, Switch, Waking, Woken, prefix};
use crate::tokenizer::{
    ANDROID_GAME_INTERVENTION_LIST, BATTERY, CHROME_EVENTS, FRAME_TIMELINE_EVENT, GPU_COUNTER_EVENT,
    PACKAGES_LIST, SMAPS_PACKET,
};
use devices::Devices;
use disks::Disks;
use flows::Flows;
use frames::Frames;
use ftrace_events::FtraceEvents;
use kernel::Begin;
use legacy_events::LegacyEvents;
use marks::Marks;
use processes::Processes;
use samples::Samples;
use sched::Sched;
use slices::Slices;
use stacks::Stacks;
use syscalls::Syscalls;
use thread_state::{ThreadStates, To};
use track_events::Keys;
use tracks::Tracks;

/// All trackers.
pub(crate) struct Trackers {
    processes: Processes,
    sched: Sched,
    states: ThreadStates,
    ftrace_events: FtraceEvents,
    tracks: Tracks,
    slices: Slices,
    syscalls: Syscalls,
    marks: Marks,
    stacks: Stacks,
    samples: Samples,
    flows: Flows,
    frames: Frames,
    disks: Disks,
    devices: Devices,
    legacy: LegacyEvents,
    /// The rows of `android_logs`.
    logs: i64,
    /// The rows of `filedescriptor`.
    files: i64,
    begin: Option<Begin>,
    keys: Option<Keys>,
}

impl Trackers {
    pub(crate) fn new(context: &mut Context<'_>) -> Trackers {
        let strings = &mut context.strings;
        Trackers {
            processes: Processes::new(strings),
            sched: Sched::default(),
            states: ThreadStates::new(strings, &context.output),
            ftrace_events: FtraceEvents::new(strings, &context.output),
            tracks: Tracks::default(),
            slices: Slices::default(),
            syscalls: Syscalls::default(),
            marks: Marks::default(),
            stacks: Stacks::default(),
            samples: Samples::default(),
            flows: Flows::default(),
            frames: Frames::default(),
            disks: Disks::default(),
            devices: Devices::default(),
            legacy: LegacyEvents::default(),
            logs: 0,
            files: 0,
            begin: None,
            keys: None,
        }
    }

    /// Takes in the next event.
    #[inline]
    pub(crate) fn event(&mut self, queue: Queue, ts: i64, event: &[u8], context: &mut Context<'_>) {
        match queue {
            Queue::Switches(cpu) => {
                if let Some(switch) = Switch::decode(event) {
                    self.compact_switch(cpu, ts, switch, context);
                }
            }
            Queue::Wakings(cpu) => {
                if let Some(waking) = Waking::decode(event) {
                    self.compact_waking(cpu, ts, waking, Woken::decode(event), context);
                }
            }
            Queue::Ftrace(cpu) => {
                if let Some((symbol, event)) = prefix(event) {
                    self.kernel_event(cpu, ts, symbol, event, context);
                }
            }
            Queue::TrackEvents => self.track_event(ts, event, context),
            Queue::Packets => {
                if let Some((field, content)) = prefix(event) {
                    self.packet(field, ts, content, context);
                }
            }
        }
    }

    fn packet(&mut self, field: u32, ts: i64, content: &[u8], context: &mut Context<'_>) {
        match field {
            TracePacket::PROCESS_TREE => self.process_tree(content, context),
            TracePacket::PROCESS_STATS => self.process_stats(ts, content, context),
            TracePacket::SYS_STATS => self.sys_stats(ts, content, context),
            TracePacket::TRACK_DESCRIPTOR => self.track_descriptor(content, context),
            TracePacket::THREAD_DESCRIPTOR => drop(self.thread_descriptor(content, false, context)),
            TracePacket::PROCESS_DESCRIPTOR => drop(self.process_descriptor(content, context)),
            TracePacket::PERF_SAMPLE => drop(self.perf_sample(ts, content, context)),
            TracePacket::PROFILE_PACKET => drop(self.heap_profile(content, context)),
            TracePacket::STREAMING_PROFILE_PACKET => drop(self.streaming_profile(ts, content, context)),
            TracePacket::MODULE_SYMBOLS => self.module_symbols(content, context),
            SMAPS_PACKET => self.smaps(ts, content, context),
            CHROME_EVENTS => self.chrome_events(ts, content, context),
            FRAME_TIMELINE_EVENT => self.frame(ts, content, context),
            BATTERY => self.battery(ts, content, context),
            GPU_COUNTER_EVENT => self.gpu_counters(ts, content, context),
            PACKAGES_LIST => self.packages(content, context),
            ANDROID_GAME_INTERVENTION_LIST => self.game_interventions(content, context),
            _ => {}
        }
    }

    /// Writes what has no end, and what is known only now.
    pub(crate) fn finish(mut self, context: &mut Context<'_>) {
        self.arrived_flows(context);
        self.finish_devices(context);
        self.slices.finish(context);
        let Context {
            strings,
            output,
            args,
            ..
        } = context;
        self.tracks.write(strings, output);
        self.stacks.write(strings, output);
        self.sched.finish(strings, output);
        self.states.finish(&mut To { strings, output });
        self.processes.write(args, strings, output);
        if self.processes.errors > 0 {
            context
                .stats
                .add("process_tracker_errors", None, self.processes.errors as i64);
        }
    }
}
