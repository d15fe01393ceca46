//! Events of the group `ftrace`: what the tracing core itself records: `trace_printk` and `trace_marker`, and the function graph tracer.
//!
//! `print` leaves out the address it was called from, as upstream does: for user space it is always the same.

use super::{TypedEvent, event, function, int32, string, uint64};

pub(super) const EVENTS: &[TypedEvent] = &[
    event("ftrace", "print", 3, &[string("buf", 2)]),
    event(
        "ftrace",
        "funcgraph_entry",
        437,
        &[int32("depth", 1), function("func", 2)],
    ),
    event(
        "ftrace",
        "funcgraph_exit",
        438,
        &[
            uint64("calltime", 1),
            int32("depth", 2),
            function("func", 3),
            uint64("overrun", 4),
            uint64("rettime", 5),
        ],
    ),
];
