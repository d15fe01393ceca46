//! Events of the group `task`: new threads and new names of threads.

use super::{TypedEvent, event, int32, string, uint64};

pub(super) const EVENTS: &[TypedEvent] = &[
    event(
        "task",
        "task_newtask",
        235,
        &[
            int32("pid", 1),
            string("comm", 2),
            uint64("clone_flags", 3),
            int32("oom_score_adj", 4),
        ],
    ),
    event(
        "task",
        "task_rename",
        236,
        &[
            int32("pid", 1),
            string("oldcomm", 2),
            string("newcomm", 3),
            int32("oom_score_adj", 4),
        ],
    ),
];
