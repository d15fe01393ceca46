//! Events of the group `irq`: interrupt handlers and softirqs.

use super::{TypedEvent, event, int32, string, uint32};

pub(super) const EVENTS: &[TypedEvent] = &[
    event("irq", "softirq_entry", 24, &[uint32("vec", 1)]),
    event("irq", "softirq_exit", 25, &[uint32("vec", 1)]),
    event("irq", "softirq_raise", 26, &[uint32("vec", 1)]),
    event(
        "irq",
        "irq_handler_entry",
        36,
        &[int32("irq", 1), string("name", 2), uint32("handler", 3)],
    ),
    event("irq", "irq_handler_exit", 37, &[int32("irq", 1), int32("ret", 2)]),
];
