//! Events of the group `raw_syscalls`: every system call, entered and left.
//!
//! Their numbers decide how they are written: the six arguments of `sys_enter` are an array in the kernel and a
//! repeated field here.

use super::{TypedEvent, event, int64, uint64};

pub(super) const EVENTS: &[TypedEvent] = &[
    event(
        "raw_syscalls",
        "sys_enter",
        329,
        &[int64("id", 1), uint64("args", 2)],
    ),
    event(
        "raw_syscalls",
        "sys_exit",
        330,
        &[int64("id", 1), int64("ret", 2)],
    ),
];
