//! The known data sources of the Perfetto world and the programs that have them, so that advice can say where to get a missing one.
//!
//! [`sources`](super::sources) looks names up. The names are those of upstream's daemons and schema, including Chrome's and Android's.

use ferretto_probes::{
    ftrace, inode_file_map, journald, metatrace, process_stats, sys_stats, sysfs_power, system_info,
};
use ferretto_proto::write::TracePacket;

/// The owner of a data source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A daemon, ours as well, and its unit.
    Daemon { name: &'static str, unit: &'static str },
    /// A part of Android.
    Android,
    /// Programs that use the SDK.
    Applications,
    /// Chrome, and programs built from its source.
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
/// Data sources whose events refer to names that each thread writes only once, unless the config makes it repeat them.
pub(super) const TELL_NAMES_ONCE: &[&str] = &[TRACK_EVENT, "org.chromium.trace_event"];

/// The data source of CPU profiles.
pub(crate) const PERF: &str = ferretto_profile::source::NAME;

/// The data source of heap profiles.
pub(crate) const HEAP: &str = "android.heapprofd";

const PROBES: Owner = Owner::Daemon {
    name: "traced_probes",
    unit: "traced-probes",
};

const KNOWN: &[(&str, Owner)] = &[
    (FTRACE, PROBES),
    (process_stats::NAME, PROBES),
    (sys_stats::NAME, PROBES),
    (sysfs_power::NAME, PROBES),
    (system_info::NAME, PROBES),
    (journald::NAME, PROBES),
    (inode_file_map::NAME, PROBES),
    (ftrace::frozen::NAME, PROBES),
    (metatrace::NAME, PROBES),
    (
        PERF,
        Owner::Daemon {
            name: "traced_perf",
            unit: "traced-perf",
        },
    ),
    (
        HEAP,
        Owner::Daemon {
            name: "heapprofd",
            unit: "heapprofd",
        },
    ),
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

/// The packets of a data source, as fields of `TracePacket`.
pub(crate) struct Written {
    pub(crate) source: &'static str,
    /// The recorded data. There is some whenever the source records.
    pub(crate) content: &'static [u32],
    /// The source's packets about itself.
    pub(crate) besides: &'static [u32],
}

/// The packets of the data sources for which they are known.
pub(crate) const WRITTEN: [Written; 9] = [
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
        source: sysfs_power::NAME,
        content: &[TracePacket::BATTERY],
        besides: &[],
    },
    // Its statistics are such packets too.
    Written {
        source: journald::NAME,
        content: &[TracePacket::JOURNALD_EVENT],
        besides: &[],
    },
    Written {
        source: system_info::NAME,
        content: &[TracePacket::CPU_INFO],
        besides: &[TracePacket::INTERRUPT_INFO],
    },
    Written {
        source: PERF,
        content: &[TracePacket::PERF_SAMPLE],
        besides: &[],
    },
    Written {
        source: HEAP,
        content: &[TracePacket::PROFILE_PACKET],
        besides: &[],
    },
    Written {
        source: TRACK_EVENT,
        content: &[TracePacket::TRACK_EVENT],
        besides: &[TracePacket::TRACK_DESCRIPTOR],
    },
];

impl Written {
    /// Whether packets with this field are from the data source.
    pub(crate) fn has(&self, field: u32) -> bool {
        self.content.contains(&field) || self.besides.contains(&field)
    }
}

/// Returns the owner of the data source of this name, if known.
pub(super) fn owner(name: &str) -> Option<Owner> {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, owner)| *owner).or_else(|| {
        // Families of names stand in for members that the table lacks.
        let family = name.split_once('.').map(|(family, _)| family);
        match family {
            Some("android") => Some(Owner::Android),
            _ if name.starts_with("org.chromium.") => Some(Owner::Chrome),
            _ => None,
        }
    })
}

/// Returns all known names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _)| *name)
}
