//! The events of one CPU: a leader, its followers, and the ring buffer of their samples.
//!
//! [`LinuxPerf`](crate::source::LinuxPerf) opens them when an instance starts, and [`Profiler`](crate::profiler::Profiler) reads them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::param::page_size;

use crate::attributes::Group;
use crate::config::{Mode, PerfConfig};
use crate::event::{Event, Kind};
use crate::paranoia::Paranoia;
use crate::perf_event::{PerfEvent, Ring};
use crate::record::{CountFormat, SampleLayout};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct CpuEvents {
    pub(crate) cpu: u32,
    leader: PerfEvent,
    /// They count as long as they are open.
    _followers: Vec<PerfEvent>,
    /// `None` if counters are polled.
    pub(crate) ring: Option<(Ring, SampleLayout)>,
    /// Of the ring.
    pub(crate) losses: Losses,
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
        "cannot map a ring buffer of CPU {cpu}: {error}; use fewer ring_buffer_pages, or raise /proc/sys/kernel/perf_event_mlock_kb"
    )]
    NoRing { cpu: u32, error: io::Error },
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
        self.leader.as_fd()
    }
}

/// Memory pages of a ring. The config counts pages of 4 KiB.
fn pages_of_ring(ring_pages: u32) -> usize {
    (ring_pages as usize * 4096 / page_size()).max(1)
}

impl CpuEvents {
    /// Opens what the config asks for on one of so many CPUs. Nothing is counted yet.
    ///
    /// # Errors
    /// If one of the events cannot be opened.
    pub(crate) fn open(config: &PerfConfig, cpu: u32, cpus: usize) -> Result<CpuEvents, OpenError> {
        let ring_pages = match &config.mode {
            Mode::Sampling(sampling) => sampling.ring_pages_to_try(cpus),
            Mode::Polling(_) => Vec::new(),
        };
        let (last, first) = match ring_pages.split_last() {
            Some((last, first)) => (Some(pages_of_ring(*last)), first),
            None => (None, &[][..]),
        };
        for pages in first {
            let opened = CpuEvents::open_with(config, cpu, Some(pages_of_ring(*pages)));
            match opened {
                Err(OpenError::NoRing { .. }) => {}
                opened => return opened,
            }
        }
        CpuEvents::open_with(config, cpu, last)
    }

    fn open_with(config: &PerfConfig, cpu: u32, ring_pages: Option<usize>) -> Result<CpuEvents, OpenError> {
        let wakeup_bytes = ring_pages.map_or(0, |pages| pages * page_size() / WAKEUP_PART);
        let wakeup_bytes = u32::try_from(wakeup_bytes).unwrap_or(u32::MAX);
        let open = |count| {
            let group = Group::of(config, count, wakeup_bytes);
            PerfEvent::open(&group.leader, cpu, None).map(|leader| (group, leader))
        };
        let opened = match open(CountFormat::WithLosses) {
            // Kernels before 6.0 do not say how many records were lost.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => open(CountFormat::Plain),
            opened => opened,
        };
        let (group, leader) = opened.map_err(|error| open_error(&config.leader, cpu, error))?;
        filter(&leader, &config.leader, cpu)?;
        let mut followers = Vec::new();
        for (attributes, event) in group.followers.iter().zip(&config.followers) {
            let follower = PerfEvent::open(attributes, cpu, Some(&leader))
                .map_err(|error| open_error(event, cpu, error))?;
            filter(&follower, event, cpu)?;
            followers.push(follower);
        }
        let ring = ring_pages.zip(group.samples).map(|(pages, layout)| {
            let ring = Ring::map(&leader, pages).map_err(|error| OpenError::NoRing { cpu, error })?;
            Ok((ring, layout))
        });
        Ok(CpuEvents {
            cpu,
            leader,
            _followers: followers,
            ring: ring.transpose()?,
            losses: Losses::default(),
        })
    }

    /// Polled counters of which each read finds nothing, as the kernel's do when others have taken the hardware.
    #[cfg(test)]
    pub(crate) fn unreadable(cpu: u32) -> io::Result<CpuEvents> {
        Ok(CpuEvents {
            cpu,
            leader: std::fs::File::open("/dev/null")?.into(),
            _followers: Vec::new(),
            ring: None,
            losses: Losses::default(),
        })
    }

    /// Begins to count.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.leader.enable()
    }

    /// Counts no more.
    pub(crate) fn disable(&self) -> io::Result<()> {
        self.leader.disable()
    }

    /// The counts so far, the leader's first, if counters are polled.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn read_counts(&self, counts: &mut Vec<u64>) -> io::Result<()> {
        self.leader.read_words(counts)?;
        // The number of counts comes before them.
        counts.remove(0);
        Ok(())
    }

    /// How many records the ring had no room for so far. `None` if there is no ring, or the kernel does not say.
    pub(crate) fn lost_records(&self) -> Option<u64> {
        let (_, layout) = self.ring.as_ref()?;
        if layout.count == CountFormat::Plain {
            return None;
        }
        let mut words = Vec::new();
        self.leader.read_words(&mut words).ok()?;
        // The number of counts, if it is a group; then the leader's count, and its losses.
        words.get(1 + usize::from(layout.is_group)).copied()
    }
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
        Some(Errno::ACCESS | Errno::PERM) => {
            let paranoia = Paranoia::of_this_kernel();
            paranoia.map_or_else(|| "; run as root or with CAP_PERFMON".to_owned(), Paranoia::advice)
        }
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
