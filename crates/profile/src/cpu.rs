//! The events of one CPU, and the ring buffer of their samples: a leader with its followers, or a leader for each thread of the processes that are
//! counted alone.
//!
//! [`LinuxPerf`](crate::source::LinuxPerf) opens them when an instance starts, and [`Profiler`](crate::profiler::Profiler) reads them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::param::page_size;

use crate::attributes::{Group, LossReports, ring_holder};
use crate::config::{Mode, PerfConfig, Sampling};
use crate::event::{Event, Kind};
use crate::paranoia::Paranoia;
use crate::perf_event::{Attributes, PerfEvent, Ring, Whose};
use crate::record::SampleLayout;
use crate::threads::{self, ThreadsError};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct CpuEvents {
    pub(crate) cpu: u32,
    /// The event whose ring it is. It wakes the thread of the instance.
    holder: PerfEvent,
    leaders: Leaders,
    /// `None` if counters are polled.
    pub(crate) ring: Option<(Ring, SampleLayout)>,
    /// The word in a read of a leader that says how many of its records were lost.
    loss_word: Option<usize>,
    /// Of the ring.
    pub(crate) losses: Losses,
    /// The counts that precede those in samples: of replaced events, and of earlier samples where each sample has only the difference.
    pub(crate) counted: u64,
}

#[derive(Debug)]
enum Leaders {
    /// The holder, which counts all threads. Its followers count as long as they are open.
    Holder { _followers: Vec<PerfEvent> },
    /// One for each thread that there was, which counts what that starts, too.
    Threads(Vec<PerfEvent>),
}

/// How many records of a ring were lost, and how many of these were reported.
///
/// The kernel says it twice: in the ring, but only before the next record that it has room for, and when the event is read. Each loss is reported
/// once, whichever comes first.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// According to the records in the ring.
    in_ring: u64,
    reported: u64,
}

impl Losses {
    /// Takes in a record of the ring about so many losses. Returns how many of them are news.
    pub(crate) fn on_record(&mut self, lost: u64) -> u64 {
        self.in_ring = self.in_ring.saturating_add(lost);
        self.on_total(self.in_ring)
    }

    /// Takes in how many records were lost in all. Returns how many of them are news.
    pub(crate) fn on_total(&mut self, total: u64) -> u64 {
        let news = total.saturating_sub(self.reported);
        self.reported += news;
        news
    }
}

/// A ring wakes its reader when this part of it is full.
const WAKEUP_PART: usize = 4;

/// Why an event cannot be counted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The processor, or the virtual machine, cannot count it.
    #[error("this machine's processors do not count {0}")]
    NoCounter(String),
    /// There is no memory for the ring, or this user may not have as much.
    #[error(
        "cannot map a ring buffer of CPU {cpu}: {error}; use fewer ring_buffer_pages, or raise the limit of locked memory (`ulimit -l`) or \
         /proc/sys/kernel/perf_event_mlock_kb"
    )]
    NoRing { cpu: u32, error: io::Error },
    /// The kernel counts certain processes for this user, but not what it does itself for them. There is something else to be counted.
    #[error(
        "only the programs' own code is sampled, and not the kernel's: this user may not sample the kernel{}",
        advice_to_refused()
    )]
    NoKernel,
    /// The processes that are to be counted alone cannot be.
    #[error("cannot count single processes on CPU {cpu}: {reason}")]
    NotAlone { cpu: u32, reason: String },
    /// Another reason.
    #[error("cannot count {event} on CPU {cpu}: {error}{advice}")]
    Other {
        event: String,
        cpu: u32,
        error: io::Error,
        advice: String,
    },
}

impl AsFd for CpuEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.holder.as_fd()
    }
}

/// The size of the ring of each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSize {
    /// In memory pages. `None` if counters are polled.
    pages: Option<usize>,
    /// There is no smaller one to be tried.
    pub(crate) is_least: bool,
}

impl RingSize {
    /// Opens something on so many CPUs with the largest rings for which there is room on each. The kernel bounds the memory of the rings of all CPUs together,
    /// so that a large ring of one CPU may leave no room for the next: `open` is called anew for each size, when its earlier rings are gone.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn largest_with_room<T>(
        config: &PerfConfig,
        cpus: usize,
        mut open: impl FnMut(RingSize) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        // The config counts pages of 4 KiB.
        let of_memory = |pages: u32| (pages as usize * 4096 / page_size()).max(1);
        let mut sizes: Vec<usize> = match &config.mode {
            Mode::Sampling(sampling) => {
                let pages = sampling.ring_pages_to_try(cpus).into_iter();
                pages.map(of_memory).collect()
            }
            Mode::Polling(_) => Vec::new(),
        };
        sizes.dedup();
        let least = RingSize {
            pages: sizes.pop(),
            is_least: true,
        };
        for pages in sizes {
            let larger = RingSize {
                pages: Some(pages),
                is_least: false,
            };
            match open(larger) {
                Err(OpenError::NoRing { .. }) => {}
                opened => return opened,
            }
        }
        open(least)
    }
}

impl CpuEvents {
    /// Opens what the config asks for on these of so many CPUs, with rings of one size. Nothing is counted yet.
    ///
    /// # Errors
    /// If one of the events cannot be opened.
    pub(crate) fn open_each(
        config: &PerfConfig,
        on: &[u32],
        cpus: usize,
    ) -> Result<Vec<CpuEvents>, OpenError> {
        RingSize::largest_with_room(config, cpus, |size| {
            let each = on.iter().map(|cpu| CpuEvents::open(config, *cpu, cpus, size));
            each.collect()
        })
    }

    /// Opens what the config asks for on one of so many CPUs. Nothing is counted yet.
    ///
    /// # Errors
    /// If one of the events cannot be opened.
    pub(crate) fn open(
        config: &PerfConfig,
        cpu: u32,
        cpus: usize,
        ring: RingSize,
    ) -> Result<CpuEvents, OpenError> {
        let ring_pages = ring.pages;
        let open = |losses| match (config.counted.named(), &config.mode, ring_pages) {
            (Some(pids), Mode::Sampling(sampling), Some(pages)) => {
                CpuEvents::open_threads(config, sampling, &pids, (cpu, cpus), losses, pages)
            }
            _ => CpuEvents::open_everybody(config, cpu, losses, ring_pages),
        };
        match open(LossReports::Told) {
            // Kernels before 6.0 do not say how many records were lost.
            Err(Failed::Invalid(_)) => open(LossReports::Untold),
            opened => opened,
        }
        .map_err(|failed| match failed {
            Failed::Invalid(error) | Failed::Otherwise(error) => error,
        })
    }

    fn open_everybody(
        config: &PerfConfig,
        cpu: u32,
        losses: LossReports,
        ring_pages: Option<usize>,
    ) -> Result<CpuEvents, Failed> {
        let group = Group::of(config, losses, wakeup_bytes(ring_pages));
        let leader = PerfEvent::open(&group.leader, Whose::EveryThread, cpu, None)
            .map_err(|error| Failed::of(error, |error| open_error(&config.leader, cpu, error)))?;
        filter(&leader, &config.leader, cpu)?;
        let mut followers = Vec::new();
        for (attributes, event) in group.followers.iter().zip(&config.followers) {
            let follower = PerfEvent::open(attributes, Whose::EveryThread, cpu, Some(&leader))
                .map_err(|error| open_error(event, cpu, error))?;
            filter(&follower, event, cpu)?;
            followers.push(follower);
        }
        let ring = ring_pages.zip(group.samples).map(|(pages, layout)| {
            let ring = Ring::map(&leader, pages).map_err(|error| OpenError::NoRing { cpu, error })?;
            Ok::<_, OpenError>((ring, layout))
        });
        Ok(CpuEvents {
            cpu,
            holder: leader,
            leaders: Leaders::Holder {
                _followers: followers,
            },
            ring: ring.transpose()?,
            loss_word: group.loss_word(),
            losses: Losses::default(),
            counted: 0,
        })
    }

    fn open_threads(
        config: &PerfConfig,
        sampling: &Sampling,
        pids: &BTreeSet<i32>,
        (cpu, cpus): (u32, usize),
        losses: LossReports,
        pages: usize,
    ) -> Result<CpuEvents, Failed> {
        let not_alone = |reason: String| OpenError::NotAlone { cpu, reason };
        let wakeup_bytes = wakeup_bytes(Some(pages));
        let group = Group::of(config, losses, wakeup_bytes);
        let holder = PerfEvent::open(&ring_holder(sampling, wakeup_bytes), Whose::Own, cpu, None)
            .map_err(|error| not_alone(error.to_string()))?;
        let ring = Ring::map(&holder, pages).map_err(|error| OpenError::NoRing { cpu, error })?;
        let refuses_kernel = Cell::new(false);
        let open_one = |tid| {
            let open = |attributes: &Attributes| PerfEvent::open(attributes, Whose::Thread(tid), cpu, None);
            let event = open(&group.leader).inspect_err(|error| {
                let mut own_code = group.leader;
                own_code.set_exclude_kernel(1);
                refuses_kernel.set(is_refused(error) && open(&own_code).is_ok());
            })?;
            event.write_into_ring_of(&holder)?;
            Ok(event)
        };
        let events = threads::open_all(pids, cpus, open_one).map_err(|error| match error {
            // Nobody else's events would be counted either.
            ThreadsError::Open(error) if refuses_kernel.get() => match config.leader.happens_in_user_code() {
                true => OpenError::NoKernel,
                false => open_error(&config.leader, cpu, error),
            }
            .into(),
            ThreadsError::Open(error) => {
                Failed::of(error, |error| match open_error(&config.leader, cpu, error) {
                    OpenError::Other { error, .. } => not_alone(error.to_string()),
                    error => error,
                })
            }
            error => not_alone(error.to_string()).into(),
        })?;
        for event in &events {
            filter(event, &config.leader, cpu)?;
        }
        Ok(CpuEvents {
            cpu,
            holder,
            leaders: Leaders::Threads(events),
            loss_word: group.loss_word(),
            ring: group.samples.map(|layout| (ring, layout)),
            losses: Losses::default(),
            counted: 0,
        })
    }

    /// Polled counters of which each read finds nothing, as the kernel's do when others have taken the hardware.
    #[cfg(test)]
    pub(crate) fn unreadable(cpu: u32) -> io::Result<CpuEvents> {
        Ok(CpuEvents {
            cpu,
            holder: std::fs::File::open("/dev/null")?.into(),
            leaders: Leaders::Holder {
                _followers: Vec::new(),
            },
            ring: None,
            loss_word: None,
            losses: Losses::default(),
            counted: 0,
        })
    }

    /// Whether it counts single processes, and they had no thread any more when it was opened.
    pub(crate) fn counts_nobody(&self) -> bool {
        self.leaders().is_empty()
    }

    fn leaders(&self) -> &[PerfEvent] {
        match &self.leaders {
            Leaders::Holder { .. } => std::slice::from_ref(&self.holder),
            Leaders::Threads(threads) => threads,
        }
    }

    /// Begins to count.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.leaders().iter().try_for_each(PerfEvent::enable)
    }

    /// Counts no more.
    pub(crate) fn disable(&self) -> io::Result<()> {
        self.leaders()
            .iter()
            .map(PerfEvent::disable)
            .fold(Ok(()), Result::and)
    }

    /// The counts so far, the leader's first, if counters are polled.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn read_counts(&self, counts: &mut Vec<u64>) -> io::Result<()> {
        self.holder.read_words(counts)?;
        // The number of counts comes before them.
        counts.remove(0);
        Ok(())
    }

    /// How many records the ring had no room for so far. `None` if there is no ring, or the kernel does not say.
    pub(crate) fn lost_records(&self) -> Option<u64> {
        let word = self.loss_word?;
        let mut words = Vec::new();
        let mut lost = 0u64;
        for leader in self.leaders() {
            leader.read_words(&mut words).ok()?;
            lost = lost.saturating_add(words.get(word).copied()?);
        }
        Some(lost)
    }
}

/// Why events are not open.
enum Failed {
    /// The kernel does not know something that they ask for.
    Invalid(OpenError),
    Otherwise(OpenError),
}

impl Failed {
    fn of(error: io::Error, explain: impl FnOnce(io::Error) -> OpenError) -> Failed {
        match Errno::from_io_error(&error) {
            Some(Errno::INVAL) => Failed::Invalid(explain(error)),
            _ => Failed::Otherwise(explain(error)),
        }
    }
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        Failed::Otherwise(error)
    }
}

/// When a ring of so many memory pages wakes its reader.
fn wakeup_bytes(ring_pages: Option<usize>) -> u32 {
    let bytes = ring_pages.map_or(0, |pages| pages * page_size() / WAKEUP_PART);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn filter(opened: &PerfEvent, event: &Event, cpu: u32) -> Result<(), OpenError> {
    match &event.kind {
        Kind::Tracepoint { filter, .. } if !filter.is_empty() => {
            opened.set_filter(filter).map_err(|error| OpenError::Other {
                event: describe(event),
                cpu,
                error,
                advice: format!("; the kernel does not take the filter {filter:?}"),
            })
        }
        _ => Ok(()),
    }
}

fn is_refused(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM))
}

fn advice_to_refused() -> String {
    let paranoia = Paranoia::of_this_kernel();
    paranoia.map_or_else(
        || "; run as root or with CAP_PERFMON".to_owned(),
        Paranoia::advice,
    )
}

/// The event as people call it.
pub(crate) fn describe(event: &Event) -> String {
    match &event.kind {
        Kind::Counter(counter) => format!("{counter:?}"),
        Kind::Tracepoint { name, .. } => format!("the tracepoint {name}"),
        Kind::Raw => format!("the raw event {}/{:#x}/", event.attr_type, event.attr_config[0]),
    }
}

fn open_error(event: &Event, cpu: u32, error: io::Error) -> OpenError {
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) if event.needs_hardware() => {
            return OpenError::NoCounter(describe(event));
        }
        Some(Errno::ACCESS | Errno::PERM) => advice_to_refused(),
        Some(Errno::INVAL) => {
            "; if timestamp_clock is PERF_CLOCK_BOOTTIME, choose a monotonic clock for events of the hardware and for tracepoints"
                .to_owned()
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            "; each event takes a descriptor for each CPU: raise the limit".to_owned()
        }
        Some(Errno::NOSYS) => "; this kernel is built without performance events".to_owned(),
        _ => String::new(),
    };
    OpenError::Other {
        event: describe(event),
        cpu,
        error,
        advice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_reported_once() {
        let mut losses = Losses::default();
        // The kernel tells of 5 in the ring; it lost 3 more, which no record has told of.
        assert_eq!(losses.on_record(5), 5);
        assert_eq!(losses.on_total(8), 3);
        assert_eq!(losses.on_total(8), 0);
        // The record comes, with 2 that were lost meanwhile.
        assert_eq!(losses.on_record(5), 2);
        assert_eq!(losses.on_total(10), 0);
        assert_eq!(losses.on_total(11), 1);
    }
}
