//! The common program in C++ (`common_program.cc`): every kind of track event, written once or in several rounds.
//!
//! `common-program [ROUNDS PAUSE_MS]`: waits until it is recorded, writes, says `done` when it has, and stays until its standard
//! input ends.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;

// Its symbols are the C++ part's.
use perfetto_sdk_sys as _;

// SAFETY: the signatures are those of the C++ part, which this crate compiles; none takes an argument.
unsafe extern "C" {
    safe fn common_program_set_up();
    safe fn common_program_is_recorded() -> bool;
    safe fn common_program_round();
}

pub(super) fn run(mut words: impl Iterator<Item = String>) -> Result<(), String> {
    let mut number = |otherwise: u64| match words.next() {
        None => Ok(otherwise),
        Some(word) => word.parse().map_err(|error| format!("{word}: {error}")),
    };
    let rounds = number(1)?;
    let pause = Duration::from_millis(number(0)?);
    common_program_set_up();
    let until = Instant::now() + PATIENCE;
    while !common_program_is_recorded() {
        if Instant::now() >= until {
            return Err(format!("nobody records the category `common` in {PATIENCE:?}"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let teller = thread::Builder::new().name("teller".into()).spawn(move || {
        for round in 0..rounds {
            if round > 0 {
                thread::sleep(pause);
            }
            common_program_round();
        }
    });
    let told = teller.map_err(|error| error.to_string())?.join();
    told.map_err(|_| "the writing thread panicked")?;
    println!("done");
    let mut rest = Vec::new();
    // Any end of the input ends the program.
    let _ = std::io::stdin().read_to_end(&mut rest);
    Ok(())
}
