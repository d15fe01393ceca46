//! Sixty-four threads and sessions that come and go, all in one process: every event is accounted for, and nothing is left.
//!
//! It runs for some seconds, or for `FERRETTO_SDK_STRESS_SECONDS`.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod stress;

use std::time::Instant;

use ferretto::Options;
use ferretto::session::Session;
use stress::account::{self, Found, NeverHeardOf};
use stress::crowd::Crowd;
use stress::leaks::{self, Resources};
use stress::recording::Service;
use stress::{Chance, PATIENCE, journal, recording};

const NAME: &str = "in-process-stress";

/// How many sessions are recorded at a time.
const RECORDERS: u64 = 4;

#[test]
fn every_event_is_accounted_for() {
    let (duration, seed) = stress::seconds_and_seed(4);
    // Either the service chooses the size, or there is so much memory that nothing is lost.
    let memory = Chance::new(seed).pick(&[0, 32 << 20]);
    let options = Options::in_process().shared_memory_size(memory);
    ferretto::initialize(options.producer_name(NAME));
    // The first recording creates objects that are kept.
    let record = |chance: &mut Chance| {
        recording::record(&Session::in_process, NAME, Service::Ours, PATIENCE, chance).unwrap()
    };
    record(&mut Chance::new(seed));
    let before = Resources::of(std::process::id());
    let until = Instant::now() + duration;
    let mut found = Found::default();
    let mut streams = 0;
    for round in 0.. {
        if Instant::now() >= until {
            break;
        }
        let journals = tempfile::tempdir().unwrap();
        let crowd = Crowd::start(seed + round, streams, journals.path());
        let round_ends = until.min(Instant::now() + std::time::Duration::from_secs(5));
        std::thread::scope(|scope| {
            let recorders = (0..RECORDERS).map(|recorder| {
                let mut chance = Chance::new(seed ^ round << 8 ^ recorder << 32);
                let journals = journals.path();
                scope.spawn(move || {
                    let mut found = Found::default();
                    while Instant::now() < round_ends {
                        for recording in record(&mut chance) {
                            found += account::check_or_keep(
                                &recording,
                                &journal::read(journals),
                                NeverHeardOf::Counted,
                            );
                        }
                    }
                    found
                })
            });
            for recorder in recorders.collect::<Vec<_>>() {
                found += recorder.join().unwrap();
            }
        });
        streams += crowd.end();
    }
    println!("{memory} bytes of shared memory, {streams} threads; in the traces: {found}");
    assert!(found.events > 1000, "{found}");
    leaks::await_none(std::process::id(), &before);
}
