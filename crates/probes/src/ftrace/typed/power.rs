//! Events of the group `power`: frequencies, idle states, clocks and suspend.

use super::{TypedEvent, event, int32, string, uint32, uint64};

pub(super) const EVENTS: &[TypedEvent] = &[
    event(
        "power",
        "cpu_frequency",
        11,
        &[uint32("state", 1), uint32("cpu_id", 2)],
    ),
    event(
        "power",
        "cpu_frequency_limits",
        12,
        &[uint32("min_freq", 1), uint32("max_freq", 2), uint32("cpu_id", 3)],
    ),
    event(
        "power",
        "cpu_idle",
        13,
        &[uint32("state", 1), uint32("cpu_id", 2)],
    ),
    event(
        "power",
        "clock_enable",
        14,
        &[string("name", 1), uint64("state", 2), uint64("cpu_id", 3)],
    ),
    event(
        "power",
        "clock_disable",
        15,
        &[string("name", 1), uint64("state", 2), uint64("cpu_id", 3)],
    ),
    event(
        "power",
        "clock_set_rate",
        16,
        &[string("name", 1), uint64("state", 2), uint64("cpu_id", 3)],
    ),
    event(
        "power",
        "suspend_resume",
        113,
        &[string("action", 1), int32("val", 2), uint32("start", 3)],
    ),
    event(
        "power",
        "gpu_frequency",
        332,
        &[uint32("gpu_id", 1), uint32("state", 2)],
    ),
    event(
        "power",
        "wakeup_source_activate",
        404,
        &[string("name", 1), uint64("state", 2)],
    ),
    event(
        "power",
        "wakeup_source_deactivate",
        405,
        &[string("name", 1), uint64("state", 2)],
    ),
    event(
        "power",
        "gpu_work_period",
        488,
        &[
            uint32("gpu_id", 1),
            uint32("uid", 2),
            uint64("start_time_ns", 3),
            uint64("end_time_ns", 4),
            uint64("total_active_duration_ns", 5),
        ],
    ),
    event(
        "power",
        "device_pm_callback_start",
        504,
        &[
            string("device", 1),
            string("driver", 2),
            string("parent", 3),
            string("pm_ops", 4),
            int32("event", 5),
        ],
    ),
    event(
        "power",
        "device_pm_callback_end",
        505,
        &[string("device", 1), string("driver", 2), int32("error", 3)],
    ),
    event(
        "power",
        "gpu_power_state",
        601,
        &[int32("old_state", 1), int32("new_state", 2)],
    ),
    event(
        "power",
        "psci_domain_idle_exit",
        614,
        &[uint32("cpu_id", 1), uint32("state", 2), uint32("s2idle", 3)],
    ),
    event(
        "power",
        "psci_domain_idle_enter",
        615,
        &[uint32("cpu_id", 1), uint32("state", 2), uint32("s2idle", 3)],
    ),
];
