//! Reports kernel buffers that have filled up to `buffer_percent`, for sessions that want them drained early (`drain_buffer_percent`). Used by
//! [`super::data_source`]; the daemon's event loop watches the [`Watermarks`] themselves.
//!
//! One epoll instance stands for all buffers: the loop watches one descriptor, for as long as the program runs, however many
//! CPUs, sessions and instances come and go. It holds no copies of the buffers' descriptors. The kernel forgets a buffer once it is
//! closed, and a closed buffer does not keep the tracer from being changed.
//!
//! A buffer is reported once, and again only after [`Watermarks::watch_again`], so that a full buffer that cannot be read just now does not keep
//! the loop awake.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Buffers reported at once; the others follow.
const MOST_REPORTED: usize = 64;

const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The caller's name for a buffer: given to [`Watermarks::watch`], and returned by [`Watermarks::take_full`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CpuBufferId {
    /// The tracefs directory.
    pub instance: u32,
    /// The CPU.
    pub cpu: u32,
}

impl CpuBufferId {
    fn data(self) -> EventData {
        EventData::new_u64(u64::from(self.instance) << 32 | u64::from(self.cpu))
    }

    fn of(data: EventData) -> CpuBufferId {
        let number = data.u64();
        CpuBufferId {
            instance: (number >> 32) as u32,
            cpu: number as u32,
        }
    }
}

/// See the [module](self). The descriptor is readable when a watched buffer has filled up.
#[derive(Debug)]
pub struct Watermarks {
    epoll: OwnedFd,
}

impl Watermarks {
    /// Watches nothing yet. `None` if this kernel's reports are unreliable.
    ///
    /// # Errors
    /// If the process or the machine has no descriptor left for it.
    pub(crate) fn new() -> io::Result<Option<Watermarks>> {
        let release = rustix::system::uname();
        if !kernel_reports_watermarks(&release.release().to_string_lossy()) {
            return Ok(None);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Some(Watermarks { epoll }))
    }

    /// Starts to watch `buffer`. [`Watermarks::take_full`] reports `id` once it has filled up, unless it was closed or forgotten before. Nothing
    /// is reported if the CPU has never been on, or if too much is watched: then the deadline drains the buffer.
    pub(crate) fn watch(&self, id: CpuBufferId, buffer: BorrowedFd<'_>) {
        // epoll would report an error for such a buffer at once, and again after each look.
        if has_never_been_on(buffer) {
            return;
        }
        // This also fails if the buffer is watched already.
        let _ = epoll::add(
            &self.epoll,
            buffer,
            id.data(),
            EventFlags::IN | EventFlags::ONESHOT,
        );
    }

    /// Reports `buffer` again the next time that it is full, which may be now.
    pub(crate) fn watch_again(&self, id: CpuBufferId, buffer: BorrowedFd<'_>) {
        // If this fails, the deadline drains the buffer.
        let _ = epoll::modify(
            &self.epoll,
            buffer,
            id.data(),
            EventFlags::IN | EventFlags::ONESHOT,
        );
    }

    /// Stops reporting `buffer`.
    pub(crate) fn forget(&self, buffer: BorrowedFd<'_>) {
        // This fails if the buffer was not watched.
        let _ = epoll::delete(&self.epoll, buffer);
    }

    /// Adds to `full` the buffers that have filled up and have not been reported since they were last watched.
    pub(crate) fn take_full(&self, full: &mut Vec<CpuBufferId>) {
        let mut events = [MaybeUninit::<Event>::uninit(); MOST_REPORTED];
        loop {
            match epoll::wait(&self.epoll, &mut events, Some(&NO_WAIT)) {
                Ok((events, _)) => {
                    full.extend(events.iter().map(|event| CpuBufferId::of(event.data)));
                    if events.len() < MOST_REPORTED {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                // After an error nothing is reported, and the deadline drains.
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Watermarks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn has_never_been_on(buffer: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&buffer, PollFlags::IN)];
    let is_polled = poll(&mut polled, Some(&NO_WAIT)).is_ok();
    !is_polled || polled[0].revents().contains(PollFlags::ERR)
}

/// Whether this kernel's `poll` on raw buffers is reliable: since Linux 6.9 ("ring-buffer: Only update pages_touched when a new page is
/// touched"), and in two Android kernels that carry the fix. `release` is that of `uname`.
fn kernel_reports_watermarks(release: &str) -> bool {
    let numbers: Vec<u32> = release
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .take(4)
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let android = |patch: u32| {
        release
            .split_once("-android")
            .and_then(|(_, rest)| rest.split_once('-'))
            .is_some_and(|(version, _)| version.parse() == Ok(patch))
    };
    match numbers[..] {
        [6, 1, sub_level, ..] if sub_level >= 86 && android(14) => true,
        [6, 6, sub_level, ..] if sub_level >= 27 && android(15) => true,
        [major, minor, ..] => (major, minor) >= (6, 9),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
