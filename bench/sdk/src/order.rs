//! The orders to a peer's program, as words on its command line: `CASE on|off SHMEM_KB|default CPU CPU_2 SERVICE_PID|-`, then
//! `batches COUNT SIZE`, `paced RATE SECONDS`, `flat COUNT` or `crowd THREADS RATE SECONDS`.

use rustix::process::Pid;

use crate::case::Case;
use crate::peer::{SharedMemory, Tracing};

/// How often a case is done, and when.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// In batches of `size`, and after each the service takes all written data.
    Batches { count: u64, size: u64 },
    /// So often per second, in bursts of a millisecond each.
    Paced { rate: u64, seconds: u64 },
    /// As fast as can be, so often on each thread of the case.
    Flat { count: u64 },
    /// So often per second on so many threads together, each in bursts between which it sleeps.
    Crowd { threads: u64, rate: u64, seconds: u64 },
}

/// The orders to one process.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub case: Case,
    pub tracing: Tracing,
    pub shared_memory: SharedMemory,
    /// Of the measured thread, and of the second one if there is one.
    pub cpus: [usize; 2],
    /// The process that takes the events, if one does.
    pub service: Option<Pid>,
    pub work: Work,
}

impl Order {
    /// As words on a command line.
    pub fn to_words(self) -> Vec<String> {
        let shared_memory = match self.shared_memory {
            SharedMemory::Default => "default".to_owned(),
            SharedMemory::Kilobytes(kilobytes) => kilobytes.to_string(),
        };
        let tracing = if self.tracing == Tracing::On { "on" } else { "off" };
        let [first, second] = self.cpus;
        let work = match self.work {
            Work::Batches { count, size } => format!("batches {count} {size}"),
            Work::Paced { rate, seconds } => format!("paced {rate} {seconds}"),
            Work::Flat { count } => format!("flat {count}"),
            Work::Crowd {
                threads,
                rate,
                seconds,
            } => format!("crowd {threads} {rate} {seconds}"),
        };
        let case = self.case;
        let service = self
            .service
            .map_or("-".to_owned(), |pid| pid.as_raw_nonzero().to_string());
        format!("{case} {tracing} {shared_memory} {first} {second} {service} {work}")
            .split(' ')
            .map(str::to_owned)
            .collect()
    }

    /// From such words.
    pub fn from_words(words: &[String]) -> Result<Order, String> {
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let [case, tracing, shared_memory, first, second, service, work @ ..] = words.as_slice() else {
            return Err("it is told a case, on or off, memory, two CPUs, a process, and work".into());
        };
        Ok(Order {
            case: case.parse()?,
            tracing: match *tracing {
                "on" => Tracing::On,
                "off" => Tracing::Off,
                other => return Err(format!("tracing is on or off, not {other}")),
            },
            shared_memory: match *shared_memory {
                "default" => SharedMemory::Default,
                kilobytes => SharedMemory::Kilobytes(number(kilobytes)? as u32),
            },
            cpus: [number(first)? as usize, number(second)? as usize],
            service: match *service {
                "-" => None,
                pid => Pid::from_raw(number(pid)? as i32),
            },
            work: match *work {
                ["batches", count, size] => Work::Batches {
                    count: number(count)?,
                    size: number(size)?,
                },
                ["paced", rate, seconds] => Work::Paced {
                    rate: number(rate)?,
                    seconds: number(seconds)?,
                },
                ["flat", count] => Work::Flat {
                    count: number(count)?,
                },
                ["crowd", threads, rate, seconds] => Work::Crowd {
                    threads: number(threads)?,
                    rate: number(rate)?,
                    seconds: number(seconds)?,
                },
                _ => return Err(format!("no work {}", work.join(" "))),
            },
        })
    }

    /// How often the case is done in all, unless the work is paced.
    pub fn total(&self) -> u64 {
        let by_each = match self.work {
            Work::Batches { count, size } => count * size,
            Work::Paced { rate, seconds } | Work::Crowd { rate, seconds, .. } => rate * seconds,
            Work::Flat { count } => count,
        };
        by_each * self.case.threads()
    }
}
