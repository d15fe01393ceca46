//! The names of atrace categories, which a command line may give in place of events.
//!
//! Advice on configs and the code that checks the words of a recording call it.

use ferretto_proto::text::nearest_within;

/// The atrace categories of Android, and the words for the hypervisor's events. With this list, `hal` is not taken for `help`.
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

/// Returns the category that most resembles `word`, if one is close. The limit grows with the length, because short words all resemble some.
pub(crate) fn nearest_category(word: &str) -> Option<&'static str> {
    nearest_within(word, word.len() / 4, CATEGORIES.iter().copied())
}
