//! The common part of the programs of the comparison: the peers', one each, and the runner's. `bench/sdk/run` starts it, and says
//! what it measures and how to read it.

#![allow(clippy::disallowed_macros, reason = "tools of the developers, who have a terminal")]

pub mod case;
pub mod cpu;
pub mod description;
pub mod measure;
pub mod order;
pub mod peer;
#[cfg(feature = "empty-layer")]
pub mod spans;
