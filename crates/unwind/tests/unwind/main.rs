//! Real processes, stopped at places that are known, unwound.

mod stopped;
mod stacks;
