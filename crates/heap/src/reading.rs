//! How rings are read: in turns, and to their end.
//!
//! [`thread`](crate::thread) calls it. A turn is as long as the caller says, whatever the client does, and so is the reading to the end.

use std::time::{Duration, Instant};

use ferretto_client::runtime::probe::PacketSink;

use crate::client::{Client, Ending};
use crate::collector::{Collector, Entered, Unwinding};

/// How long a client is read in a round.
pub(crate) const TURN: Duration = Duration::from_millis(3);

/// Between two looks at rings that fill.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// How long what a client had begun to write when the session ended is waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// Until when rings are read to their end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    /// Nothing is unwound after this.
    pub(crate) unwinding: Instant,
    /// Nothing is read after this. The rest is lost.
    pub(crate) reading: Instant,
}

/// Reads a client for some time. Says how it ended: [`Entered::Record`] if anything was read and more may come.
pub(crate) fn turn(
    collector: &mut Collector,
    client: &mut Client,
    sink: &mut dyn PacketSink,
    until: Instant,
) -> Entered {
    let who = client.who();
    let mut has_read = false;
    let mut count = 0u32;
    let last = loop {
        let entered = collector.enter(who, &mut client.feed, sink);
        match (entered, client.about.ending) {
            (Entered::Record, _) => has_read = true,
            // Nobody is left who could complete it.
            (Entered::Incomplete, Some(Ending::Dead | Ending::Replaced)) => client.feed.pass_over(),
            (Entered::Nothing, Some(_)) => break Entered::End,
            (Entered::Nothing, None) if client.feed.has_given_up() => {
                client.end(Ending::GivenUp);
                break Entered::End;
            }
            _ => break entered,
        }
        count += 1;
        if count.is_multiple_of(16) {
            client.feed.wake_waiting();
            if Instant::now() >= until {
                break Entered::Record;
            }
        }
    };
    client.feed.wake_waiting();
    match (last, has_read) {
        (Entered::End, _) => Entered::End,
        (_, true) => Entered::Record,
        (other, false) => other,
    }
}

/// Reads all that clients had written when they were told the end.
pub(crate) fn to_the_end<'a>(
    collector: &mut Collector,
    clients: impl Iterator<Item = &'a mut Client>,
    sink: &mut dyn PacketSink,
    until: Until,
) {
    let before = collector.unwinding();
    let mut open: Vec<&mut Client> = clients.collect();
    let mut incomplete_since = None;
    while !open.is_empty() {
        let now = Instant::now();
        if now >= until.reading {
            open.iter_mut().for_each(|client| client.feed.leave_rest());
            break;
        }
        let mut has_read = false;
        open.retain_mut(|client| {
            let now = Instant::now();
            if now >= until.unwinding {
                collector.set_unwinding(Unwinding::TooLate);
            }
            let last = turn(collector, client, sink, (now + TURN).min(until.reading));
            has_read |= last == Entered::Record;
            matches!(last, Entered::Record | Entered::Incomplete)
        });
        if has_read {
            incomplete_since = None;
        } else if now - *incomplete_since.get_or_insert(now) > PATIENCE {
            open.iter_mut().for_each(|client| client.feed.pass_over());
        } else {
            std::thread::sleep(SHORTEST_PAUSE);
        }
    }
    collector.set_unwinding(before);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use ferretto_client::data_source::Slot;
    use ferretto_heap_client::handshake::Reason;
    use ferretto_heap_client::layout::{Kind, MIN_RING_WORDS, MOST_RECORD_WORDS, free, header};
    use ferretto_ipc::channel::channel;
    use ferretto_ipc::reactor::Reactor;
    use ferretto_profile::stacks::Met;
    use ferretto_proto::messages::HeapprofdConfig;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::client::Arrived;
    use crate::config::HeapConfig;
    use crate::memory::RingMemory;
    use crate::sessions::{Applicant, Sessions};

    /// This process as a client, and what it may write.
    fn client(ring_words: usize) -> (Collector, Client, RingMemory) {
        let pid = getpid().as_raw_pid();
        let config = HeapprofdConfig {
            sampling_interval_bytes: Some(4096),
            pid: vec![pid as u64],
            shmem_size_bytes: Some(8 * ring_words as u64),
            ..Default::default()
        };
        let config = Arc::new(HeapConfig::of(&config).expect("it is good"));
        let sessions = Arc::new(Sessions::default());
        let waker = Reactor::new().expect("a reactor").waker();
        let slot = Slot::first(1).next().expect("it is one");
        sessions.open(slot, config.clone(), channel().0, waker);
        let applicant = Applicant {
            pid,
            user: 0,
            reason: Reason::Startup,
            is_there: &|| true,
        };
        let claim = sessions.claim(&applicant).expect("there is room");
        let claim = claim.expect("it is meant");
        let (memory, file) = RingMemory::new(ring_words).expect("there is memory");
        let other = RingMemory::of(&file, ring_words).expect("it can be mapped");
        let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
        let met = Met::open(pid).expect("this process");
        let client = Client::new(claim, process, met, memory, Arrived::now(), true);
        (Collector::new(&config), client, other)
    }

    #[test]
    fn what_nobody_completes_is_left_and_counted_when_the_time_is_over() {
        const WORDS: u64 = 1 << 20;
        let (mut collector, mut client, memory) = client(WORDS as usize);
        let ring = memory.ring().expect("a ring");
        // A writer that stops in the middle, a million times: each takes a moment.
        while ring.take(Kind::Free, 0).is_some() {}
        client.feed.end_here();
        let began = Instant::now();
        let until = Until {
            unwinding: began,
            reading: began + 2 * PATIENCE,
        };
        let mut packets: Vec<Vec<u8>> = Vec::new();
        to_the_end(&mut collector, [&mut client].into_iter(), &mut packets, until);
        let passed_over = ring.header(header::READ).load(Relaxed);
        assert!((1..WORDS / 2).contains(&passed_over), "{passed_over}");
        let told = client.feed.told();
        let left = (WORDS - passed_over).div_ceil(MOST_RECORD_WORDS as u64);
        assert_eq!(
            (told.losses.samples, told.is_corrupt),
            (passed_over + left, false)
        );
        assert_eq!(collector.unwinding(), Unwinding::InTime);
        // It has ended.
        let last = turn(&mut collector, &mut client, &mut packets, Instant::now() + TURN);
        assert_eq!(last, Entered::End);
    }

    #[test]
    fn what_a_client_had_written_is_read_to_its_end_and_what_it_writes_then_is_not() {
        let (mut collector, mut client, memory) = client(MIN_RING_WORDS);
        let ring = memory.ring().expect("a ring");
        let write = || {
            let space = ring.take(Kind::Free, free::WORDS).expect("there is space");
            space.complete();
        };
        (0..100).for_each(|_| write());
        client.feed.end_here();
        write();
        let until = Until {
            unwinding: Instant::now(),
            reading: Instant::now() + Duration::from_secs(30),
        };
        let mut packets: Vec<Vec<u8>> = Vec::new();
        to_the_end(&mut collector, [&mut client].into_iter(), &mut packets, until);
        assert_eq!(
            ring.header(header::READ).load(Relaxed),
            100 * (1 + free::WORDS as u64)
        );
        assert_eq!(client.feed.told().losses.samples, 0);
    }
}
