//! Events of the group `workqueue`: work that the kernel queues and executes.

use super::{TypedEvent, event, int32, string, uint64};

pub(super) const EVENTS: &[TypedEvent] = &[
    event(
        "workqueue",
        "workqueue_activate_work",
        56,
        &[uint64("work", 1), uint64("function", 2)],
    ),
    event(
        "workqueue",
        "workqueue_execute_end",
        57,
        &[uint64("work", 1), uint64("function", 2)],
    ),
    event(
        "workqueue",
        "workqueue_execute_start",
        58,
        &[uint64("work", 1), uint64("function", 2)],
    ),
    event(
        "workqueue",
        "workqueue_queue_work",
        59,
        &[
            uint64("work", 1),
            uint64("function", 2),
            int32("req_cpu", 4),
            int32("cpu", 5),
            string("workqueue", 6),
        ],
    ),
];
