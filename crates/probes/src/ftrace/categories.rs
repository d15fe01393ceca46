//! The kernel events that each atrace category stands for. `super::control` uses the table, and so does the
//! command line, to describe categories.
//!
//! Android's `atrace` gives names such as `sched` or `disk` to groups of kernel events, and configs list these
//! names in `atrace_categories`. The table is upstream's, and before that
//! `frameworks/native/cmds/atrace/atrace.cpp`'s. Most of its drivers exist on phones only. Events that the kernel
//! lacks are left out without an error, since nobody asked for them by name.

use super::tracefs::{EventName, Tracefs};

/// One entry of a category: all events of a group, or some of them.
enum Entry {
    Group(&'static str),
    Events(&'static str, &'static [&'static str]),
}

use Entry::{Events, Group};

/// Some categories of upstream list single events beside a whole group, for kernels that upstream's own table of
/// events does not know. Here the whole group covers these events.
const CATEGORIES: &[(&str, &[Entry])] = &[
    (
        "gfx",
        &[
            Group("mdss"),
            Group("mali"),
            Group("sde"),
            Group("dpu"),
            Group("g2d"),
            Group("panel"),
        ],
    ),
    ("ion", &[Events("kmem", &["ion_alloc_buffer_start"])]),
    (
        "sched",
        &[
            Events(
                "sched",
                &[
                    // Not sched_wakeup: frequent, and nearly the same as sched_waking.
                    "sched_switch",
                    "sched_waking",
                    "sched_blocked_reason",
                    "sched_cpu_hotplug",
                    "sched_pi_setprio",
                    "sched_process_exit",
                ],
            ),
            Group("cgroup"),
            Events("oom", &["oom_score_adj_update"]),
            Events("task", &["task_rename", "task_newtask"]),
            Group("systrace"),
            Group("scm"),
        ],
    ),
    ("irq", &[Group("irq"), Group("ipi")]),
    ("irqoff", &[Events("preemptirq", &["irq_enable", "irq_disable"])]),
    (
        "preemptoff",
        &[Events("preemptirq", &["preempt_enable", "preempt_disable"])],
    ),
    ("i2c", &[Group("i2c"), Group("smbus")]),
    (
        "freq",
        &[
            Events(
                "power",
                &[
                    "cpu_frequency",
                    "gpu_frequency",
                    "clock_set_rate",
                    "clock_disable",
                    "clock_enable",
                    "cpu_frequency_limits",
                    "suspend_resume",
                ],
            ),
            Events("clk", &["clk_set_rate", "clk_disable", "clk_enable"]),
            Events("cpuhp", &["cpuhp_enter", "cpuhp_exit", "cpuhp_pause"]),
            Group("msm_bus"),
        ],
    ),
    ("membus", &[Group("memory_bus")]),
    ("idle", &[Events("power", &["cpu_idle"])]),
    (
        "disk",
        &[
            Events(
                "f2fs",
                &[
                    "f2fs_sync_file_enter",
                    "f2fs_sync_file_exit",
                    "f2fs_write_begin",
                    "f2fs_write_end",
                    "f2fs_iostat",
                    "f2fs_iostat_latency",
                ],
            ),
            Events(
                "ext4",
                &[
                    "ext4_da_write_begin",
                    "ext4_da_write_end",
                    "ext4_sync_file_enter",
                    "ext4_sync_file_exit",
                ],
            ),
            Events("block", &["block_bio_queue", "block_bio_complete"]),
            Events("ufs", &["ufshcd_command"]),
        ],
    ),
    ("mmc", &[Group("mmc")]),
    ("load", &[Group("cpufreq_interactive")]),
    ("sync", &[Group("sync"), Group("fence"), Group("dma_fence")]),
    ("workq", &[Group("workqueue")]),
    (
        "memreclaim",
        &[
            Events(
                "vmscan",
                &[
                    "mm_vmscan_direct_reclaim_begin",
                    "mm_vmscan_direct_reclaim_end",
                    "mm_vmscan_memcg_reclaim_begin",
                    "mm_vmscan_memcg_reclaim_end",
                    "mm_vmscan_kswapd_wake",
                    "mm_vmscan_kswapd_sleep",
                ],
            ),
            Group("lowmemorykiller"),
        ],
    ),
    ("regulators", &[Group("regulator")]),
    (
        "binder_driver",
        &[Events(
            "binder",
            &[
                "binder_transaction",
                "binder_transaction_received",
                "binder_transaction_alloc_buf",
                "binder_set_priority",
            ],
        )],
    ),
    (
        "binder_lock",
        &[Events(
            "binder",
            &["binder_lock", "binder_locked", "binder_unlock"],
        )],
    ),
    ("pagecache", &[Group("filemap")]),
    (
        "memory",
        &[
            Events("kmem", &["rss_stat", "ion_heap_grow", "ion_heap_shrink"]),
            Events("ion", &["ion_stat"]),
            Events("mm_event", &["mm_event_record"]),
            Events("dmabuf_heap", &["dma_heap_stat"]),
            Events("gpu_mem", &["gpu_mem_total"]),
        ],
    ),
    (
        "thermal",
        &[Events("thermal", &["thermal_temperature", "cdev_update"])],
    ),
    ("camera", &[Group("lwis")]),
];

/// The events of `category` that this kernel has; none for a category that only has a meaning in user space.
pub fn events_of_category(category: &str, tracefs: &Tracefs) -> Vec<EventName> {
    let entries = CATEGORIES
        .iter()
        .find(|(name, _)| *name == category)
        .map_or(&[][..], |(_, entries)| entries);
    let mut events = Vec::new();
    for entry in entries {
        match entry {
            Group(group) => {
                let names = tracefs.events_of(group).unwrap_or_default();
                events.extend(names.into_iter().map(|name| EventName::new(*group, name)));
            }
            Events(group, names) => events.extend(names.iter().map(|name| EventName::new(*group, *name))),
        }
    }
    events.retain(|event| tracefs.has_event(event));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_is_listed_once_and_has_entries() {
        for (index, (name, entries)) in CATEGORIES.iter().enumerate() {
            assert!(!entries.is_empty(), "{name} stands for nothing");
            assert!(
                CATEGORIES[index + 1..].iter().all(|(other, _)| other != name),
                "{name} is listed twice"
            );
        }
    }
}
