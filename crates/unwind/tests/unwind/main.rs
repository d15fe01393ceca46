//! Real processes, stopped at places that are known, unwound; and processes that are made up.

mod files;
mod hostile;
mod model;
mod stacks;
mod stopped;
#[cfg(feature = "symbols")]
mod symbols;
