//! A vandal beside recordings: it kills the programs, fills disks, switches tracing off, and traces as well. Every recording that lacks something
//! says so, in its messages at the end, by its exit code and in its trace; and a recording that lacks nothing does not.
//!
//! It uses real processes and the real kernel. The test itself knows what a recording lacks, because it emits all events that should be in it,
//! numbered, between its start and its end. In every run, each kind of torment happens once. With `FERRETTO_VANDAL_SECONDS` the run is longer, and
//! torments follow in random order. The seed is printed (`FERRETTO_VANDAL_SEED`), and each round's seed before the round; with that seed, the round
//! comes first. `FERRETTO_VANDAL_TORMENT` selects one kind. With `FERRETTO_VANDAL_CLOCK=1` the machine's wall clock is stepped as well, and back
//! again.
//!
//! The kernel records in an instance of its own, so that nobody else on the machine is disturbed.

mod application;
mod scene;
mod torments;
mod truth;

use std::time::{Duration, Instant};

use crate::support::Programs;
use crate::support::random::Random;
use crate::support::tracefs::Tracefs;
use scene::Scene;
use torments::{CLOCK_STEPS, TORMENTS, Torment};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap())
}

#[test]
fn every_recording_that_lacks_something_says_so_and_no_other_does() {
    if !Tracefs::is_usable() {
        return;
    }
    let now = || ferretto_ipc::reactor::boot_now();
    let seed = number("FERRETTO_VANDAL_SEED").unwrap_or_else(now);
    let duration = Duration::from_secs(number("FERRETTO_VANDAL_SECONDS").unwrap_or(0));
    let until = Instant::now() + duration;
    let only = std::env::var("FERRETTO_VANDAL_TORMENT").ok();
    let mut torments: Vec<&Torment> = TORMENTS.iter().collect();
    if number("FERRETTO_VANDAL_CLOCK").is_some() {
        torments.push(&CLOCK_STEPS);
    }
    let mut wrong = Vec::new();
    for (count, seed) in (seed..).enumerate() {
        // First each torment once, beginning with one that the seed selects; then random ones.
        let torment = match count < torments.len() {
            true => torments[(seed % torments.len() as u64) as usize],
            false => torments[Random(seed).from(0, torments.len() as u64) as usize],
        };
        if count >= torments.len() && Instant::now() >= until {
            break;
        }
        if only.as_ref().is_some_and(|only| only != torment.name) {
            continue;
        }
        println!("FERRETTO_VANDAL_SEED={seed}: {}", torment.name);
        if let Err(problem) = round(torment, &mut Random(seed)) {
            println!("  WRONG: {problem}");
            wrong.push(format!(
                "{} (FERRETTO_VANDAL_SEED={seed}): {problem}",
                torment.name
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Makes one recording under this torment. Fails with a description if its account is wrong.
fn round(torment: &Torment, chance: &mut Random) -> Result<(), String> {
    let programs = Programs::ours();
    let mut scene = Scene::set(&programs, &torment.setup);
    scene.emit(chance.from(1, 200));
    (torment.strike)(&mut scene, chance);
    scene.emit(chance.from(1, 200));
    scene.end(torment.tells)
}
