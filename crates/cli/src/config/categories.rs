//! The names of atrace categories, which are words of a recording like events.
//!
//! Called where words are judged.

use ferretto_proto::text::nearest_within;

/// The atrace categories of Android, and the words for the hypervisor's events: `hal` is not `help`.
pub(crate) const CATEGORIES: &[&str] = &[
    "adb",
    "aidl",
    "am",
    "audio",
    "binder_driver",
    "binder_lock",
    "bionic",
    "camera",
    "dalvik",
    "database",
    "disk",
    "freq",
    "gfx",
    "hal",
    "hyp",
    "hypervisor",
    "i2c",
    "idle",
    "input",
    "irq",
    "irqoff",
    "membus",
    "memory",
    "memreclaim",
    "network",
    "nnapi",
    "pagecache",
    "pdx",
    "pm",
    "power",
    "preemptoff",
    "regulators",
    "res",
    "rro",
    "rs",
    "sched",
    "sm",
    "ss",
    "sync",
    "thermal",
    "vibrator",
    "video",
    "view",
    "webview",
    "wm",
    "workq",
];

/// Whether atrace has a category of that name.
pub(crate) fn is_category(word: &str) -> bool {
    CATEGORIES.contains(&word)
}

/// The category whose name is most like `word`, if any is much like it. Of short words nearly all are like some.
pub(crate) fn nearest_category(word: &str) -> Option<&'static str> {
    nearest_within(word, word.len() / 4, CATEGORIES.iter().copied())
}
