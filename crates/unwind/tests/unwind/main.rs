//! Real processes, stopped at places that are known, unwound; and processes that are made up.

mod files;
mod hostile;
mod made_up;
mod model;
mod servers;
mod stacks;
mod stopped;
#[cfg(feature = "symbols")]
mod symbols;
