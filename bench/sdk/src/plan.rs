//! The measurements of the runner, their order, and the use of the outcomes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::check;
use crate::results::{Results, Row};
use crate::runner::{self, Outcome, Program, Trace, Under};
use crate::system::Programs;
use crate::table;
use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::cpu;
use ferretto_bench_sdk::order::{Order, Work};
use ferretto_bench_sdk::peer::{self, Destination, SharedMemory, Tracing};

/// The most that upstream's service gives.
const SHARED_MEMORY: SharedMemory = SharedMemory::Kilobytes(32 * 1024);
/// Events of each thread in a batch.
const BATCH_EVENTS: u64 = 100_000;
/// Batches in which upstream's libraries have gone once through 32 MB with the smallest of events.
const WARM_UP: usize = 24;
/// Batches that count, after those.
const BATCHES: usize = 16;
/// The number of first ones that count as those in new memory: without the very first, in which everything else is new too.
const NEW_MEMORY: std::ops::Range<usize> = 1..9;
/// With tracing off: how often a case is done in a batch, batches before those that count, and those.
const OFF_SIZE: u64 = 500_000;
const OFF_WARM_UP: usize = 2;
const OFF_BATCHES: usize = 10;
/// How often something is done again that lost events.
const ATTEMPTS: u32 = 3;
/// The load that is to be sustained with default buffers: pairs per second, and for how long.
const RATE: u64 = 1_000_000;
const SECONDS: u64 = 10;
/// The size that upstream's service gives a producer without a wish.
const SERVICES_DEFAULT: SharedMemory = SharedMemory::Kilobytes(256);
/// Threads of a crowd, and pairs per second of all of them.
const CROWD: u64 = 1024;
const CROWD_RATE: u64 = 500_000;
/// Callgrind: the case is done so often and so often, and the difference counts.
const CALLGRIND: [u64; 2] = [5_000, 25_000];

const HELP: &str = "\
bench/sdk/run [--service reference|ferretto|PATH] [--rounds N] [--peers A,B,...] [--cases A,B,...] [--cpu N] [--service-cpu N]
              [--only check,time,load,instructions] [--raw FILE]
All peers and cases, three rounds, the reference's service, and all but the instructions, unless it is told otherwise.";

/// The parts of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Whether the traces hold what they should.
    Check,
    /// CPU times, on and off.
    Time,
    /// Default buffers under load.
    Load,
    /// Under callgrind.
    Instructions,
}

pub(crate) struct Plan {
    programs: Programs,
    peers: Vec<Program>,
    cases: Vec<Case>,
    rounds: u32,
    parts: Vec<Part>,
    /// The CPUs of the measured thread, and of everything else.
    cpus: [usize; 2],
    /// Where all numbers go, one a line.
    raw: Option<PathBuf>,
    /// Of this run's services and traces.
    directory: PathBuf,
}

impl Plan {
    pub(crate) fn from_words(words: &[String]) -> Result<Plan, String> {
        let reference = env::var_os("PERFETTO_REFERENCE").map(PathBuf::from);
        let reference = reference.ok_or("PERFETTO_REFERENCE has to say where upstream's binaries are")?;
        let mut plan = Plan {
            programs: Programs {
                traced: reference.join("traced"),
                perfetto: reference.join("perfetto"),
                tpq: env::var_os("FERRETTO_TPQ").map(PathBuf::from),
            },
            peers: Vec::new(),
            cases: Case::ALL.to_vec(),
            rounds: 3,
            parts: vec![Part::Check, Part::Time, Part::Load],
            cpus: [1, 0],
            raw: None,
            directory: env::temp_dir().join(format!("bench-sdk-{}", process::id())),
        };
        let mut chosen = None;
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| format!("{flag} wants a value\n{HELP}"))
            };
            let number = |word: &String| {
                word.parse::<usize>()
                    .map_err(|error| format!("{flag} {word}: {error}"))
            };
            match flag.as_str() {
                "--service" => match value()?.as_str() {
                    "reference" => {}
                    path => plan.programs.traced = path.into(),
                },
                "--rounds" => plan.rounds = number(value()?)? as u32,
                "--peers" => chosen = Some(value()?.split(',').collect::<Vec<_>>()),
                "--cases" => plan.cases = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
                "--cpu" => plan.cpus[0] = number(value()?)?,
                "--service-cpu" => plan.cpus[1] = number(value()?)?,
                "--only" => plan.parts = value()?.split(',').map(part).collect::<Result<_, _>>()?,
                "--raw" => plan.raw = Some(value()?.into()),
                _ => return Err(HELP.into()),
            }
        }
        if let Some(unknown) = chosen.iter().flatten().find(|name| !peer::NAMES.contains(name)) {
            return Err(format!("no peer {unknown}: there are {}", peer::NAMES.join(", ")));
        }
        for name in peer::NAMES {
            if chosen.as_ref().is_none_or(|chosen| chosen.contains(&name)) {
                match Program::find(name)? {
                    Some(program) => plan.peers.push(program),
                    None => eprintln!("{name} was not built, and is left out"),
                }
            }
        }
        Ok(plan)
    }

    pub(crate) fn carry_out(&self) -> Result<(), String> {
        cpu::pin(self.cpus[1])?;
        let outcome = self.measure();
        // It is there only if something was recorded.
        let _ = fs::remove_dir_all(&self.directory);
        let results = outcome?;
        table::print(&results, &self.peers);
        self.raw.as_ref().map_or(Ok(()), |path| write_raw(&results, path))
    }

    fn measure(&self) -> Result<Results, String> {
        let mut results = Results::default();
        for part in &self.parts {
            match part {
                Part::Check => self.check()?,
                Part::Time => {
                    for round in 1..=self.rounds {
                        eprintln!("round {round} of {}", self.rounds);
                        self.time(&mut results)?;
                    }
                }
                Part::Load => self.load(&mut results)?,
                Part::Instructions => self.instructions(&mut results)?,
            }
        }
        Ok(results)
    }

    /// The measurements, with peers in turn within each case.
    fn subjects(&self, tracing: Tracing) -> impl Iterator<Item = (Case, &Program)> {
        self.cases
            .iter()
            .flat_map(|&case| self.peers.iter().map(move |peer| (case, peer)))
            .filter(move |(case, peer)| match tracing {
                Tracing::On => peer.description.on.contains(case),
                Tracing::Off => peer.description.off.contains(case),
            })
    }

    fn order(&self, case: Case, tracing: Tracing, work: Work) -> Order {
        Order {
            case,
            tracing,
            shared_memory: SHARED_MEMORY,
            cpus: self.cpus,
            // The runner knows.
            service: None,
            work,
        }
    }

    fn check(&self) -> Result<(), String> {
        let Some(tpq) = &self.programs.tpq else {
            eprintln!(
                "not checked what the traces say: FERRETTO_TPQ does not say where upstream's trace processor is"
            );
            return Ok(());
        };
        for (case, peer) in self.subjects(Tracing::On) {
            if peer.description.destination == Destination::Service {
                let (count, size) = (1, check::COUNT);
                let order = self.order(case, Tracing::On, Work::Batches { count, size });
                let judge = |trace: &Path| check::check(tpq, trace, case);
                self.run(peer, &order, Under::Nothing, &Trace::Judge(&judge))?;
            }
        }
        eprintln!("the traces say what they should");
        Ok(())
    }

    fn time(&self, results: &mut Results) -> Result<(), String> {
        for (case, peer) in self.subjects(Tracing::On) {
            let size = BATCH_EVENTS / case.events();
            let count = (WARM_UP + BATCHES) as u64;
            let order = self.order(case, Tracing::On, Work::Batches { count, size });
            let Some(outcome) = self.without_losses(peer, &order)? else {
                continue;
            };
            let per_case: Vec<f64> = outcome
                .batches
                .iter()
                .map(|times| times.iter().map(Duration::as_nanos).sum::<u128>() as f64)
                .map(|nanoseconds| nanoseconds / (size * case.threads()) as f64)
                .collect();
            results.add(
                Row::Client(Tracing::On, case),
                peer.name,
                per_case[WARM_UP..].iter().copied(),
            );
            if case == Case::Pair && peer.description.destination == Destination::Service {
                results.add(Row::NewMemory, peer.name, per_case[NEW_MEMORY].iter().copied());
            }
            if let Some(time) = outcome.service {
                results.add(
                    Row::Service(case),
                    peer.name,
                    [time.as_nanos() as f64 / order.total() as f64],
                );
            }
            if let Some(contents) = outcome.contents {
                results.add(
                    Row::Bytes(case),
                    peer.name,
                    [contents.bytes as f64 / contents.events as f64],
                );
            }
        }
        for (case, peer) in self.subjects(Tracing::Off) {
            let count = (OFF_WARM_UP + OFF_BATCHES) as u64;
            let order = self.order(
                case,
                Tracing::Off,
                Work::Batches {
                    count,
                    size: OFF_SIZE,
                },
            );
            let outcome = self.run(peer, &order, Under::Nothing, &Trace::Drop)?;
            let per_case = outcome.batches[OFF_WARM_UP..].iter().map(|times| {
                let nanoseconds = times.iter().map(Duration::as_nanos).sum::<u128>() as f64;
                nanoseconds / (OFF_SIZE * case.threads()) as f64
            });
            results.add(Row::Client(Tracing::Off, case), peer.name, per_case);
        }
        Ok(())
    }

    fn load(&self, results: &mut Results) -> Result<(), String> {
        for peer in &self.peers {
            if peer.description.destination != Destination::Service
                || !peer.description.on.contains(&Case::Pair)
            {
                continue;
            }
            let paced = Work::Paced {
                rate: RATE,
                seconds: SECONDS,
            };
            let flat = Work::Flat {
                count: RATE * SECONDS,
            };
            let flat_two = Work::Flat {
                count: RATE * SECONDS / 2,
            };
            let crowd = Work::Crowd {
                threads: CROWD,
                rate: CROWD_RATE,
                seconds: SECONDS,
            };
            let two = Case::PairOnTwoThreads;
            let default = SharedMemory::Default;
            for (case, shared_memory, work, lost, rate) in [
                (Case::Pair, default, paced, Row::LostPaced, Row::RatePaced),
                (Case::Pair, default, flat, Row::LostFlat, Row::RateFlat),
                (two, default, flat_two, Row::LostFlatTwo, Row::RateFlatTwo),
                (
                    Case::Pair,
                    SERVICES_DEFAULT,
                    crowd,
                    Row::LostCrowd,
                    Row::RateCrowd,
                ),
            ] {
                let order = Order {
                    shared_memory,
                    ..self.order(case, Tracing::On, work)
                };
                let outcome = self.run(peer, &order, Under::Nothing, &Trace::Drop)?;
                let (took, done) = outcome.load.ok_or("a load was not reported")?;
                let written = (done * case.events()) as f64;
                results.add(lost, peer.name, [outcome.lost(&order) as f64 * 100.0 / written]);
                results.add(rate, peer.name, [written / took.as_secs_f64() / 1e6]);
            }
        }
        Ok(())
    }

    fn instructions(&self, results: &mut Results) -> Result<(), String> {
        for (case, peer) in self.subjects(Tracing::On).filter(|(case, _)| case.threads() == 1) {
            let [few, many] = CALLGRIND;
            let executed = self
                .executed(case, peer, few)
                .and_then(|few| Ok((few, self.executed(case, peer, many)?)));
            match executed {
                Ok((less, more)) => {
                    let per_case = more.saturating_sub(less) as f64 / (many - few) as f64;
                    results.add(Row::Instructions(case), peer.name, [per_case]);
                }
                // Some libraries do not live under valgrind.
                Err(reason) => eprintln!("instructions not counted: {reason}"),
            }
        }
        Ok(())
    }

    /// By the measured thread, which is the first of its process, from start to end.
    fn executed(&self, case: Case, peer: &Program, size: u64) -> Result<u64, String> {
        let prefix = self.directory.join("callgrind");
        fs::create_dir_all(&self.directory).map_err(|error| format!("making a directory: {error}"))?;
        let order = self.order(case, Tracing::On, Work::Batches { count: 1, size });
        self.run(peer, &order, Under::Callgrind(&prefix), &Trace::Drop)?;
        let path = self.directory.join("callgrind-01");
        let profile =
            fs::read_to_string(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        profile
            .lines()
            .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
            .ok_or_else(|| format!("{} has no total", path.display()))
    }

    /// Nothing if events were lost again and again.
    fn without_losses(&self, peer: &Program, order: &Order) -> Result<Option<Outcome>, String> {
        for _ in 0..ATTEMPTS {
            let outcome = self.run(peer, order, Under::Nothing, &Trace::Drop)?;
            match outcome.lost(order) {
                0 => return Ok(Some(outcome)),
                lost => eprintln!(
                    "{}, {}: lost {lost} events, so it does not count",
                    peer.name, order.case
                ),
            }
        }
        Ok(None)
    }

    fn run(
        &self,
        peer: &Program,
        order: &Order,
        under: Under<'_>,
        trace: &Trace<'_>,
    ) -> Result<Outcome, String> {
        runner::run(peer, order, &self.programs, &self.directory, under, trace)
    }
}

fn part(word: &str) -> Result<Part, String> {
    match word {
        "check" => Ok(Part::Check),
        "time" => Ok(Part::Time),
        "load" => Ok(Part::Load),
        "instructions" => Ok(Part::Instructions),
        _ => Err(HELP.into()),
    }
}

fn write_raw(results: &Results, path: &Path) -> Result<(), String> {
    let mut lines = String::new();
    for row in results.rows() {
        for (peer, numbers) in results.numbers(row) {
            for number in numbers {
                lines += &format!("{peer}\t{row}\t{number:.3}\n");
            }
        }
    }
    fs::write(path, lines).map_err(|error| format!("writing {}: {error}", path.display()))
}
