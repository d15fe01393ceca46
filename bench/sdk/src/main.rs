//! The runner of the comparison; `bench/sdk/run` starts it, and says what it measures and how to read it.
//!
//! It starts services, recordings and the peers' programs (`src/bin`), and shares with the latter what is in the library.

#![allow(clippy::disallowed_macros, reason = "a tool of the developers, who have a terminal")]

mod check;
mod plan;
mod results;
mod runner;
mod system;
mod table;
mod trace;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match plan::Plan::from_words(&words).and_then(|plan| plan.carry_out()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bench/sdk: {reason}");
            ExitCode::FAILURE
        }
    }
}
