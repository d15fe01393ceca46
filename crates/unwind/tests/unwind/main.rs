//! Unwinds real processes that stop at known places, and made-up ones.

mod files;
mod hostile;
mod made_up;
mod model;
mod servers;
mod stacks;
mod stopped;
#[cfg(feature = "symbols")]
mod symbols;
