//! Sessions of several threads that do anything in any order, against a model of the possible results.
//!
//! `FERRETTO_SESSIONS_SEED` is the first of the seeds, each of which is a different story.

use super::*;

const THREADS: u64 = 4;
const STEPS: usize = 150;

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % limit
    }
}

/// The expected state of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Idle,
    SetUp,
    /// The service has been asked for it.
    Running,
    /// It was told to stop, and may have.
    Stopping,
    Ended {
        /// The service has seen it.
        ran: bool,
    },
}

/// The expected result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    Done,
    NotSetUp,
    InUse,
    /// Either, depending on which thread was first.
    DoneOrInUse,
    EndedEarly,
    Rejected,
    /// Likewise.
    DoneOrNotFlushed,
}

impl Expected {
    fn is_met_by<T>(self, result: &Result<T, SessionError>) -> bool {
        matches!(
            (self, result),
            (
                Expected::Done | Expected::DoneOrInUse | Expected::DoneOrNotFlushed,
                Ok(_)
            ) | (Expected::NotSetUp, Err(SessionError::NotSetUp { .. }))
                | (Expected::InUse | Expected::DoneOrInUse, Err(SessionError::InUse))
                | (Expected::EndedEarly, Err(SessionError::EndedEarly))
                | (Expected::Rejected, Err(SessionError::Rejected { .. }))
                | (Expected::DoneOrNotFlushed, Err(SessionError::NotFlushed))
        )
    }
}

/// One session after another, with the expected state of each.
struct Story {
    random: Random,
    session: Session,
    model: Model,
}

impl Story {
    fn step(&mut self, recorder: &Recorder) {
        let before = self.model;
        let check = |step: &str, expected: Expected, result: Result<(), SessionError>| {
            assert!(
                expected.is_met_by(&result),
                "{step} when {before:?}: {result:?}, expected {expected:?}"
            );
        };
        match self.random.below(10) {
            0 | 1 => {
                let mut config = recorder.config();
                let deferred = self.random.below(2) == 0;
                if deferred {
                    config = config.deferred_start();
                }
                let expected = match before {
                    Model::Running => Expected::InUse,
                    Model::Stopping => Expected::DoneOrInUse,
                    _ => Expected::Done,
                };
                let result = self.session.setup(&config);
                let is_set_up = result.is_ok();
                check("setup", expected, result);
                if is_set_up && deferred {
                    check("start", Expected::Done, self.session.start_blocking());
                    self.model = Model::Running;
                } else if is_set_up {
                    self.model = Model::SetUp;
                }
            }
            2 => {
                self.session.start();
                if before == Model::SetUp {
                    self.model = Model::Running;
                }
            }
            3 => {
                let expected = match before {
                    Model::Idle => Expected::NotSetUp,
                    Model::SetUp | Model::Running => Expected::Done,
                    Model::Stopping | Model::Ended { .. } => Expected::EndedEarly,
                };
                check("start", expected, self.session.start_blocking());
                if before == Model::SetUp {
                    self.model = Model::Running;
                }
            }
            4 => {
                self.session.stop();
                match before {
                    Model::Running | Model::Stopping => self.model = Model::Stopping,
                    _ => self.stopped(),
                }
            }
            5 => {
                let expected = match before {
                    Model::Idle => Expected::NotSetUp,
                    _ => Expected::Done,
                };
                check("stop", expected, self.session.stop_blocking());
                self.stopped();
            }
            6 => {
                let expected = match before {
                    Model::Idle | Model::SetUp => Expected::NotSetUp,
                    _ => Expected::DoneOrNotFlushed,
                };
                check("flush", expected, self.session.flush_blocking(Duration::ZERO));
            }
            7 => {
                let expected = match before {
                    Model::Idle | Model::SetUp => Expected::NotSetUp,
                    _ => Expected::Done,
                };
                check("read", expected, self.session.read_to_end().map(drop));
            }
            8 => {
                let expected = match before {
                    Model::Running | Model::Stopping | Model::Ended { ran: true } => Expected::Done,
                    _ => Expected::Rejected,
                };
                check("statistics", expected, self.session.trace_stats().map(drop));
            }
            _ => {
                self.session = Session::in_process();
                self.model = Model::Idle;
            }
        }
        recorder.write("something");
    }

    fn stopped(&mut self) {
        self.model = match self.model {
            Model::SetUp => Model::Ended { ran: false },
            Model::Running | Model::Stopping => Model::Ended { ran: true },
            model => model,
        };
    }
}

#[test]
fn sessions_agree_with_the_model_in_random_stories() {
    let _alone = alone();
    let first = std::env::var("FERRETTO_SESSIONS_SEED").map_or(0, |seed| seed.parse().unwrap());
    let recorder = Recorder::new();
    std::thread::scope(|scope| {
        for seed in first..first + THREADS {
            let recorder = &recorder;
            scope.spawn(move || {
                println!("seed {seed}");
                let mut story = Story {
                    random: Random(seed),
                    session: Session::in_process(),
                    model: Model::Idle,
                };
                (0..STEPS).for_each(|_| story.step(recorder));
            });
        }
    });
    eventually("all sessions are gone", || recorder.writers().is_empty());
}
