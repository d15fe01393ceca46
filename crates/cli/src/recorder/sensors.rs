//! Looks at the machine for the conditions of the settings: `/proc/pressure`, memory, load, and the files of watchdogs.
//!
//! [`run`](super::run) calls it a few times a second, if there are conditions. It opens and reads a handful of small files each time, and only those that
//! a condition needs.

use std::os::unix::fs::MetadataExt;

use ferretto_recorder::{Conditions, Kind, Observed, available_memory, load_average, stalled};

/// Looks at everything that the conditions need.
pub(super) fn look(conditions: &Conditions) -> Observed {
    let mut observed = Observed::default();
    for condition in conditions.all() {
        match &condition.kind {
            Kind::Pressure { resource, line, .. } => {
                let text = read(&format!("/proc/pressure/{resource}"));
                let total = stalled(&text, line);
                observed
                    .stalled
                    .extend(total.map(|total| ((*resource, *line), total)));
            }
            Kind::MemoryBelow(_) => observed.available_memory = available_memory(&read("/proc/meminfo")),
            Kind::LoadAbove(_) => {
                let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                observed.load = load_average(&read("/proc/loadavg")).map(|load| load / processors as f64);
            }
            Kind::Watchdog { file, .. } => {
                if let Ok(metadata) = std::fs::metadata(file) {
                    let touched =
                        i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
                    observed.touched.insert(file.clone(), touched);
                }
            }
            Kind::Line { .. } | Kind::UnitFailed(_) => {}
        }
    }
    observed
}

/// Reads a file of the kernel. Kernels without it have nothing to say.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
