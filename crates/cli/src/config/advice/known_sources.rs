//! Data sources that there are in the world of Perfetto, and who has them: so that of one that nobody offers can be said why.
//!
//! The names are those that upstream's daemons and its schema use, Chrome's and Android's as well.

use ferretto_probes::{ftrace, inode_file_map, process_stats, sys_stats, system_info};
use ferretto_proto::write::TracePacket;

/// Who has a data source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// `traced_probes`, ours as well.
    Probes,
    /// Upstream's `traced_probes` on Linux.
    UpstreamProbes,
    /// Something of Android, which other systems do not have.
    Android,
    /// Another program of upstream's.
    Program(&'static str),
    /// Programs that link a library.
    Applications,
    /// Chrome, and what is built from its source.
    Chrome,
    /// The drivers of graphics processors.
    GraphicsDrivers,
    /// Another operating system.
    OtherSystem(&'static str),
}

/// The data source of kernel events.
pub(crate) const FTRACE: &str = ftrace::data_source::NAME;
/// The data source of programs that are instrumented.
pub(crate) const TRACK_EVENT: &str = "track_event";
/// Those whose events refer to names that each thread tells once, unless the config has it tell them again.
pub(super) const TELL_NAMES_ONCE: &[&str] = &[TRACK_EVENT, "org.chromium.trace_event"];

const KNOWN: &[(&str, Owner)] = &[
    (FTRACE, Owner::Probes),
    (process_stats::NAME, Owner::Probes),
    (sys_stats::NAME, Owner::Probes),
    (system_info::NAME, Owner::Probes),
    (inode_file_map::NAME, Owner::Probes),
    (ftrace::frozen::NAME, Owner::Probes),
    ("linux.sysfs_power", Owner::UpstreamProbes),
    ("linux.systemd_journald", Owner::UpstreamProbes),
    ("perfetto.metatrace", Owner::UpstreamProbes),
    ("linux.perf", Owner::Program("traced_perf")),
    ("android.heapprofd", Owner::Program("heapprofd")),
    (TRACK_EVENT, Owner::Applications),
    ("gpu.counters", Owner::GraphicsDrivers),
    ("gpu.renderstages", Owner::GraphicsDrivers),
    ("gpu.log", Owner::GraphicsDrivers),
    ("vulkan.memory_tracker", Owner::GraphicsDrivers),
    ("org.chromium.trace_event", Owner::Chrome),
    ("org.chromium.trace_metadata", Owner::Chrome),
    ("org.chromium.trace_metadata2", Owner::Chrome),
    ("org.chromium.sampler_profiler", Owner::Chrome),
    ("org.chromium.native_heap_profiler", Owner::Chrome),
    ("org.chromium.system_metrics", Owner::Chrome),
    ("org.chromium.histogram_samples", Owner::Chrome),
    ("windows.etw", Owner::OtherSystem("Windows")),
    ("qnx.kernel", Owner::OtherSystem("QNX")),
    ("android.aflags", Owner::Android),
    ("android.app_wakelocks", Owner::Android),
    ("android.cpu_per_uid", Owner::Android),
    ("android.display.video", Owner::Android),
    ("android.game_interventions", Owner::Android),
    ("android.input.inputevent", Owner::Android),
    ("android.inputmethod", Owner::Android),
    ("android.java_hprof", Owner::Android),
    ("android.java_hprof.oom", Owner::Android),
    ("android.kernel_wakelocks", Owner::Android),
    ("android.log", Owner::Android),
    ("android.network_packets", Owner::Android),
    ("android.packages_list", Owner::Android),
    ("android.pixel.modem", Owner::Android),
    ("android.polled_state", Owner::Android),
    ("android.power", Owner::Android),
    ("android.protolog", Owner::Android),
    ("android.sdk_sysprop_guard", Owner::Android),
    ("android.statsd", Owner::Android),
    ("android.surfaceflinger.frametimeline", Owner::Android),
    ("android.surfaceflinger.layers", Owner::Android),
    ("android.surfaceflinger.transactions", Owner::Android),
    ("android.system_property", Owner::Android),
    ("android.user_list", Owner::Android),
    ("android.windowmanager", Owner::Android),
];

/// What a data source writes, as fields of `TracePacket`.
pub(crate) struct Written {
    pub(crate) source: &'static str,
    /// What it is there for. There is some of it whenever it records.
    pub(crate) content: &'static [u32],
    /// What it says of itself besides.
    pub(crate) besides: &'static [u32],
}

/// Where it is known.
pub(crate) const WRITTEN: [Written; 5] = [
    Written {
        source: FTRACE,
        content: &[TracePacket::FTRACE_EVENTS],
        besides: &[TracePacket::FTRACE_STATS],
    },
    Written {
        source: process_stats::NAME,
        content: &[TracePacket::PROCESS_TREE, TracePacket::PROCESS_STATS],
        besides: &[],
    },
    Written {
        source: sys_stats::NAME,
        content: &[TracePacket::SYS_STATS],
        besides: &[],
    },
    Written {
        source: system_info::NAME,
        content: &[TracePacket::CPU_INFO],
        besides: &[TracePacket::INTERRUPT_INFO],
    },
    Written {
        source: TRACK_EVENT,
        content: &[TracePacket::TRACK_EVENT],
        besides: &[TracePacket::TRACK_DESCRIPTOR],
    },
];

impl Written {
    /// Whether packets about this field are of the source.
    pub(crate) fn has(&self, field: u32) -> bool {
        self.content.contains(&field) || self.besides.contains(&field)
    }
}

/// Who has the data source of this name, if it is one that is known.
pub(super) fn owner(name: &str) -> Option<Owner> {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, owner)| *owner).or_else(|| {
        // Those that are not in the table yet.
        let family = name.split_once('.').map(|(family, _)| family);
        match family {
            Some("android") => Some(Owner::Android),
            _ if name.starts_with("org.chromium.") => Some(Owner::Chrome),
            _ => None,
        }
    })
}

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _)| *name)
}
