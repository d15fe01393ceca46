//! Makes trace time out of readings: how the counter's ticks become the kernel's nanoseconds.
//!
//! Arithmetic alone: no clock is read here, so tests drive it through suspends, drifts and moved virtual machines. The
//! timeline calls [`Discipline::advance`] each time the current piece is over.
//!
//! The function from ticks to time is made of linear pieces. A piece begins with a reading of both clocks and goes at the rate measured over a
//! *baseline*: from a reading that lies up to [`WINDOW_NS`] back, to this one. A piece is never longer than a fixed part of its baseline
//! ([`BASELINE_PER_PIECE`]). Its error therefore exceeds the error of the baseline's readings by that part at most, however short the baseline. So no
//! thread waits for a calibration: the first pieces are short, and each lets the next be longer. Pieces join without a step backwards: where the last
//! one ran ahead of the kernel, the next goes slower until the kernel has caught up.

use super::anchor::Anchor;

/// How long a piece is at most, in nanoseconds. A reading costs 60 ns, so nothing is gained with more, and with less the
/// function follows sooner when the kernel's clock changes speed.
pub(super) const MAX_PIECE_NS: u64 = 4_000_000;

/// How far times in use may be ahead of the kernel's clock, in nanoseconds, for trace time to wait until the clock has caught up. Trace time does not
/// run ahead by more: then the kernel's clock was set back, as when a process goes on from a checkpoint.
pub(super) const MAX_LEAD_NS: u64 = 2 * MAX_PIECE_NS;

/// A piece is at most one part in this many of the baseline from which its rate comes.
const BASELINE_PER_PIECE: u64 = 4;

/// The shortest baseline, in nanoseconds: below it the kernel's clock is asked each time.
const MIN_BASELINE_NS: u64 = 100_000;

/// How far baselines reach back, in nanoseconds: at least half of it, when there are readings that old. Long enough that readings a few
/// nanoseconds off do not matter, short enough to follow the kernel's clock when its speed is corrected. Nothing
/// older than this is relied on.
pub(super) const WINDOW_NS: u64 = 1_000_000_000;

/// A reading that took more than this many times as long as the shortest one was interrupted, and is not used. A reading is wrong by half its
/// duration at most.
const MAX_READING: u64 = 2;

/// The number of attempts at a reading.
const TRIES: usize = 3;

/// When all were interrupted, the shortest duration counts as longer by one part in this many, because the processor may have become slower.
const SLOWER: u64 = 4;

/// Longer readings, in nanoseconds, are not of a clock that the kernel computes from the counter.
const MAX_READING_NS: u64 = 1_000;

/// The mistrust that a reading adds if it deviates too far or takes too long. A good reading takes 1 away.
const MISTRUST: u64 = 16;

/// The mistrust at which the counter is given up, because it keeps jumping or the kernel has given it up. A machine that is suspended now and then is
/// far from that.
const TRUST: u64 = 16 * MISTRUST;

/// The counter and the kernel's clock at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) counter: u64,
    pub(super) ns: u64,
}

/// The known relation of the two clocks. The default knows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Discipline {
    /// The current piece.
    pub(super) anchor: Anchor,
    /// Where the baseline begins.
    oldest: Reading,
    /// The beginning of the next baseline, when `oldest` is too old.
    middle: Reading,
    /// Where it ends.
    latest: Reading,
    /// The duration of the shortest reading in ticks; 0 before the first.
    shortest: u64,
    /// The mistrust so far; see [`TRUST`].
    mistrust: u64,
}

impl Discipline {
    /// The number of words of [`Self::to_words`].
    pub(super) const WORDS: usize = 12;

    /// Takes a reading with `take`, which reads the counter, the kernel's clock, and the counter once more. `None` if every attempt was interrupted.
    pub(super) fn read(&mut self, mut take: impl FnMut() -> (u64, u64, u64)) -> Option<Reading> {
        let mut best: Option<(u64, Reading)> = None;
        for _ in 0..TRIES {
            let (before, ns, after) = take();
            let took = after.wrapping_sub(before).max(1);
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((
                    took,
                    Reading {
                        counter: before.wrapping_add(took / 2),
                        ns,
                    },
                ));
            }
            if took <= self.longest() {
                break;
            }
        }
        let (took, reading) = best?;
        if self.shortest == 0 || took < self.shortest {
            self.shortest = took;
        } else if took > self.longest() {
            self.shortest += (self.shortest / SLOWER).max(1);
            return None;
        }
        Some(reading)
    }

    /// How many ticks a reading may take.
    fn longest(&self) -> u64 {
        self.shortest.saturating_mul(MAX_READING)
    }

    /// Whether the counter has shown itself unfit for telling the time.
    pub(super) fn is_hopeless(&self) -> bool {
        self.mistrust > TRUST
    }

    /// Begins the next piece with this reading. While little is known yet, the piece has no length, and the kernel's clock is asked for the next time
    /// too.
    pub(super) fn advance(&mut self, reading: Reading) {
        // Times up to here may have been used.
        let used = self.anchor.end();
        let is_waited_for = used.saturating_sub(reading.ns) <= MAX_LEAD_NS;
        let begin = if is_waited_for {
            used.max(reading.ns)
        } else {
            reading.ns
        };

        match self.judge(reading) {
            Judgement::Consistent => {
                // A counter with long ticks shows up to one tick more than passed.
                let took = self.longest().saturating_sub(MAX_READING);
                let takes_long = self.rate().is_some_and(|rate| rate.to_ns(took) > MAX_READING_NS);
                self.mistrust = match takes_long {
                    true => self.mistrust + MISTRUST,
                    false => self.mistrust.saturating_sub(1),
                };
                if reading.ns - self.middle.ns >= WINDOW_NS / 2 {
                    self.oldest = self.middle;
                    self.middle = reading;
                }
            }
            Judgement::LongAgo => (self.oldest, self.middle) = (reading, reading),
            Judgement::Jumped => {
                self.mistrust += MISTRUST;
                (self.oldest, self.middle) = (reading, reading);
            }
        }
        self.latest = reading;
        self.anchor = match self.rate() {
            None => Anchor {
                counter: reading.counter,
                ns: begin,
                multiplier: 0,
                limit: 0,
            },
            Some(rate) => rate.piece(reading.counter, begin, begin - reading.ns),
        };
    }

    /// Whether `reading` is as the earlier readings predict.
    fn judge(&self, reading: Reading) -> Judgement {
        let ticks = reading.counter.wrapping_sub(self.latest.counter);
        let Some(ns) = reading.ns.checked_sub(self.latest.ns) else {
            return Judgement::Jumped;
        };
        if ns > WINDOW_NS || self.latest == Reading::default() {
            return Judgement::LongAgo;
        }
        if ticks > i64::MAX as u64 {
            return Judgement::Jumped;
        }
        let Some(rate) = self.rate() else {
            return Judgement::Consistent;
        };
        // The allowed deviation has three parts: the durations of the readings; the error of the rate, which comes from the errors of its baseline's
        // readings; and a change in the speed of the kernel's clock, for which 1000 ppm is more than time synchronisation usually dares.
        let readings = 500 + rate.to_ns(self.longest());
        let allowed = readings + ns / 1024 + readings * ns / rate.baseline_ns;
        if rate.to_ns(ticks).abs_diff(ns) <= allowed {
            Judgement::Consistent
        } else {
            Judgement::Jumped
        }
    }

    /// The rate over the baseline, if that is long enough.
    fn rate(&self) -> Option<Rate> {
        let ticks = self.latest.counter.wrapping_sub(self.oldest.counter);
        let baseline_ns = self.latest.ns - self.oldest.ns;
        if baseline_ns < MIN_BASELINE_NS {
            return None;
        }
        let multiplier = (u128::from(baseline_ns) << 32).checked_div(u128::from(ticks))?;
        Some(Rate {
            baseline_ns,
            multiplier: u64::try_from(multiplier).ok().filter(|&rate| rate > 0)?,
        })
    }

    /// Converts the state to words for a seqlock.
    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        let Self {
            anchor,
            oldest,
            middle,
            latest,
            shortest,
            mistrust,
        } = self;
        [
            anchor.counter,
            anchor.ns,
            anchor.multiplier,
            anchor.limit,
            oldest.counter,
            oldest.ns,
            middle.counter,
            middle.ns,
            latest.counter,
            latest.ns,
            shortest,
            mistrust,
        ]
    }

    /// The inverse.
    pub(super) fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [counter, ns, multiplier, limit, oldest @ .., shortest, mistrust] = words;
        let [
            oldest_counter,
            oldest_ns,
            middle_counter,
            middle_ns,
            latest_counter,
            latest_ns,
        ] = oldest;
        Self {
            anchor: Anchor {
                counter,
                ns,
                multiplier,
                limit,
            },
            oldest: Reading {
                counter: oldest_counter,
                ns: oldest_ns,
            },
            middle: Reading {
                counter: middle_counter,
                ns: middle_ns,
            },
            latest: Reading {
                counter: latest_counter,
                ns: latest_ns,
            },
            shortest,
            mistrust,
        }
    }
}

/// The relation of a reading to the earlier ones.
enum Judgement {
    /// Both clocks went on at the same rate.
    Consistent,
    /// There is none, or too much time has gone by to tell.
    LongAgo,
    /// They did not.
    Jumped,
}

/// How fast time goes by the counter.
#[derive(Clone, Copy)]
struct Rate {
    /// The length of the baseline that the rate was measured over.
    baseline_ns: u64,
    /// Nanoseconds per tick, times 2^32; not 0.
    multiplier: u64,
}

impl Rate {
    fn to_ns(self, ticks: u64) -> u64 {
        u64::try_from((u128::from(ticks) * u128::from(self.multiplier)) >> 32).unwrap_or(u64::MAX)
    }

    /// The piece that begins with `ns`, which is `lead` ahead of the kernel's clock.
    fn piece(self, counter: u64, ns: u64, lead: u64) -> Anchor {
        let length = (self.baseline_ns / BASELINE_PER_PIECE).min(MAX_PIECE_NS);
        // Rounded down, so that `limit * multiplier` is at most `length << 32`: it fits in 64 bits.
        let limit = (length << 32) / self.multiplier;
        if limit == 0 {
            return Anchor {
                counter,
                ns,
                multiplier: 0,
                limit,
            };
        }
        // At half the speed at least, because events need different times.
        let slower = (lead.min(length / 2) << 32) / limit;
        Anchor {
            counter,
            ns,
            multiplier: self.multiplier - slower.min(self.multiplier / 2),
            limit,
        }
    }
}

#[cfg(test)]
mod tests;
