//! Real processes, stopped at places that are known, unwound.

mod stacks;
mod stopped;
