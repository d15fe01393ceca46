//! A crash-safe session: it reads the data of its session all the time and appends them to a [`Ring`] on the disk.
//!
//! [`run`](super::run) starts a thread for each such session, because a disk may hold it up; meanwhile the data wait in the buffers of the service.
//! Producers commit their data every [`FLUSH_PERIOD`] and the thread reads every [`READ_PERIOD`]. So when the service, a producer or the recorder is
//! killed, at most the last second is missing. The clones by which other sessions are sealed would miss what has been read, so a seal copies the ring.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_daemons::log;
use ferretto_ipc::Address;
use ferretto_ipc::client::More;
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::Waker;
use ferretto_proto::write::TracePacket;
use ferretto_recorder::{SealId, Written};
use ferretto_wire::{Reader, Value, Writer};

use super::folder::Draft;
use super::ring::{Ring, Segment, whole};
use crate::ask::{Conversation, Silence};
use crate::packet::Packet;
use crate::service::unreachable;
use ferretto_trace_file::{MAX_PREAMBLE, packet_preamble};

/// How often producers commit their data, in milliseconds.
pub(super) const FLUSH_PERIOD: u32 = 400;
/// How often the data are read.
const READ_PERIOD: Duration = Duration::from_millis(250);
/// The longest silence of the service while the data are read.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a flush before a seal may take, in milliseconds.
const FLUSH_TIMEOUT: u32 = 500;
/// Upstream's `FlushFlags`: the command line asks, because of a clone.
const FLUSH_FLAGS: u64 = 2 << 4 | 2;
/// Bytes that are collected before they are written.
const BUFFER: usize = 256 << 10;

/// A seal that the thread is to carry out. If it is dropped instead, its draft is deleted and its answer is a failure.
#[derive(Debug)]
struct Order {
    draft: Draft,
    most: u64,
    answer: Answer,
}

/// The promise to report the end of a seal. The recorder waits for it and keeps room for the file, so a promise that is dropped reports a failure: an
/// order that waits when its session ends, or whose thread fails, does not stay open.
#[derive(Debug)]
pub(super) struct Answer {
    id: SealId,
    reports: Reports,
    is_due: bool,
}

impl Answer {
    pub(super) fn new(id: SealId, reports: Reports) -> Answer {
        Answer {
            id,
            reports,
            is_due: true,
        }
    }

    /// Reports how the seal has ended.
    pub(super) fn give(mut self, result: Result<Written, String>) {
        self.is_due = false;
        self.send(result);
    }

    fn send(&self, result: Result<Written, String>) {
        // It fails only when the recorder has ended.
        let _ = self.reports.seals.send((self.id, result));
        self.reports.waker.wake();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.is_due {
            let reason = "its session, or the thread that seals it, has ended before the file was complete";
            self.send(Err(reason.to_owned()));
        }
    }
}

/// The thread of a crash-safe session, see the [module](self). Dropping this ends it.
#[derive(Debug)]
pub(super) struct Journal {
    /// Dropping it ends the thread, within the period of reading.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    reports: Reports,
}

/// Where the thread reports.
#[derive(Debug, Clone)]
pub(super) struct Reports {
    /// The ends of seals.
    pub(super) seals: Sender<(SealId, Result<Written, String>)>,
    /// The end of the session, by its token, with the reason.
    pub(super) ends: Sender<(u64, String)>,
    pub(super) waker: Waker,
}

impl Journal {
    /// Starts a session. Its end is reported with `token`.
    ///
    /// # Errors
    /// If there is no service, or no thread to be had.
    pub(super) fn start(
        socket: &Address,
        config: &[u8],
        ring: Ring,
        token: u64,
        reports: Reports,
    ) -> Result<Journal, String> {
        let mut endpoint = ConsumerEndpoint::connect(socket).map_err(|error| unreachable(socket, &error))?;
        endpoint
            .enable_tracing(config, None)
            .map_err(|error| format!("cannot ask the service: {error}"))?;
        let conversation = Conversation::over(endpoint).map_err(|error| error.to_string())?;
        let (orders, received) = channel();
        let thread = Thread {
            conversation,
            ring,
            orders: received,
            reports: reports.clone(),
            pending: Vec::new(),
            is_failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || thread.run(token))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Journal {
            orders: Some(orders),
            thread: Some(thread),
            reports,
        })
    }

    /// Seals what the ring has. The end is reported in any case.
    pub(super) fn seal(&self, id: SealId, draft: Draft, most: u64) {
        let answer = Answer::new(id, self.reports.clone());
        if let Some(orders) = &self.orders {
            // An order that the thread does not take any more comes back, and answers when it is dropped.
            let _ = orders.send(Order { draft, most, answer });
        }
    }
}

impl Drop for Journal {
    /// Waits for the thread, so that nobody writes into the ring any more. This happens only when a config has changed or a session has ended.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

struct Thread {
    conversation: Conversation,
    ring: Ring,
    orders: Receiver<Order>,
    reports: Reports,
    /// Whole packets that are still to be written.
    pending: Vec<u8>,
    /// Whether the last write failed.
    is_failing: bool,
}

impl Thread {
    fn run(mut self, token: u64) {
        let end = self.record();
        // What came before a read broke off.
        self.write();
        if let Err(reason) = end {
            // It fails only when the recorder has ended.
            let _ = self.reports.ends.send((token, reason));
            self.reports.waker.wake();
        }
    }

    /// Records until the session is to end, or ends by itself for the returned reason. The order in hand and those that wait answer when they are dropped.
    fn record(&mut self) -> Result<(), String> {
        let mut next = Instant::now() + READ_PERIOD;
        let mut is_first = true;
        loop {
            self.wait(next)?;
            let order = match self.orders.try_recv() {
                Ok(order) => Some(order),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Ok(()),
            };
            if order.is_some() {
                self.flush()?;
            }
            self.read()?;
            if std::mem::take(&mut is_first) {
                self.ring.rotate();
            }
            next = Instant::now() + READ_PERIOD;
            if let Some(order) = order {
                self.seal(order);
            }
        }
    }

    /// Waits until this time; fails if the session ends meanwhile.
    fn wait(&mut self, until: Instant) -> Result<(), String> {
        loop {
            match self
                .conversation
                .next_event(until.saturating_duration_since(Instant::now()))
            {
                Err(Silence::TooLong) => return Ok(()),
                Err(error) => return Err(error.to_string()),
                Ok(event) => check(event)?,
            };
        }
    }

    /// Has producers commit their data.
    fn flush(&mut self) -> Result<(), String> {
        let endpoint = &mut self.conversation.endpoint;
        let call = endpoint
            .flush_producers(FLUSH_TIMEOUT, FLUSH_FLAGS)
            .map_err(|error| format!("cannot ask the service: {error}"))?;
        loop {
            match self
                .conversation
                .next_event(PATIENCE)
                .map_err(|error| error.to_string())?
            {
                // A producer that did not answer loses only what it has not committed.
                ConsumerEvent::Reply { request, .. } if request == call => return Ok(()),
                event => check(event)?,
            };
        }
    }

    /// Reads what the buffers have, and writes it into the ring.
    fn read(&mut self) -> Result<(), String> {
        let endpoint = &mut self.conversation.endpoint;
        endpoint
            .read_buffers()
            .map_err(|error| format!("cannot ask the service: {error}"))?;
        loop {
            let event = self
                .conversation
                .next_event(PATIENCE)
                .map_err(|error| error.to_string())?;
            let Some((packets, more)) = check(event)? else {
                continue;
            };
            for packet in packets.iter() {
                let mut buffer = [0; MAX_PREAMBLE];
                self.pending
                    .extend_from_slice(packet_preamble(packet.len() as u64, &mut buffer));
                self.pending.extend_from_slice(packet);
            }
            if self.pending.len() >= BUFFER || more == More::Last {
                self.write();
            }
            if more == More::Last {
                return Ok(());
            }
        }
    }

    fn write(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let dropped = self.ring.dropped();
        let written = self.ring.append(&self.pending);
        let failure = match written {
            Err(error) => Some(format!("cannot write the ring, so data are missing: {error}")),
            Ok(()) if self.ring.dropped() > dropped => {
                Some("the ring is too small, so data are missing".to_owned())
            }
            Ok(()) => None,
        };
        if let Some(failure) = &failure
            && !self.is_failing
        {
            log::warning(format_args!("{failure}"));
        }
        self.is_failing = failure.is_some();
        self.pending.clear();
    }

    /// Has another thread copy the segments, which do not change after this.
    fn seal(&mut self, order: Order) {
        self.ring.rotate();
        // Open files stay readable when the ring goes on and deletes them.
        let segments = open(self.ring.segments());
        let Order { draft, most, answer } = order;
        let copying = std::thread::Builder::new()
            .name("seal".to_owned())
            .spawn(move || {
                let result = segments.and_then(|segments| copy(segments, draft, most));
                answer.give(result);
            });
        if let Err(error) = copying {
            log::warning(format_args!("cannot start a thread that seals: {error}"));
        }
    }
}

/// Returns the data in an event, if it has some. Fails if the session has ended.
fn check(event: ConsumerEvent) -> Result<Option<(ferretto_client::consumer::Packets, More)>, String> {
    match event {
        ConsumerEvent::Reply {
            reply: Ok(ConsumerReply::TraceData { packets, more }),
            ..
        } => Ok(Some((packets, more))),
        ConsumerEvent::Reply {
            reply: Ok(ConsumerReply::TracingDisabled { error }),
            ..
        } => Err(error.unwrap_or_else(|| "the service has ended it".to_owned())),
        ConsumerEvent::Reply {
            method: ConsumerMethod::EnableTracing | ConsumerMethod::ReadBuffers,
            reply: Err(error),
            ..
        } => Err(error.to_string()),
        ConsumerEvent::Disconnected(reason) => Err(reason.to_string()),
        ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => Ok(None),
    }
}

/// A segment that can be read whatever the ring does meanwhile.
#[derive(Debug)]
pub(super) struct OpenSegment {
    number: u64,
    file: File,
}

/// Opens segments.
///
/// # Errors
/// If one cannot be read.
pub(super) fn open<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Result<Vec<OpenSegment>, String> {
    let segments = segments.into_iter().map(|segment| {
        let number = segment.number;
        File::open(&segment.path).map(|file| OpenSegment { number, file })
    });
    segments
        .collect::<Result<_, _>>()
        .map_err(|error| format!("cannot read the ring: {error}"))
}

/// Copies segments into a file of at most `most` bytes, and ends the file where the next packets have no room. From a segment that was cut off, the whole
/// packets count. Where data are missing between segments, it marks that.
///
/// # Errors
/// If a segment cannot be read, or the disk does not take the file.
pub(super) fn copy(segments: Vec<OpenSegment>, mut draft: Draft, most: u64) -> Result<Written, String> {
    let mut written = Written {
        bytes: 0,
        is_cut: false,
    };
    let cannot_write = |error: std::io::Error| format!("cannot write the file: {error}");
    let mut marks = None;
    let mut next = 0;
    'segments: for OpenSegment { number, mut file } in segments {
        if number != next {
            marks = Some(Marks::default());
        }
        next = number + 1;
        // Whole packets from a buffer that moves over the segment.
        let mut buffer = Vec::new();
        loop {
            let read = (&mut file).take(BUFFER as u64).read_to_end(&mut buffer);
            let is_over = read.map_err(|error| format!("cannot read the ring: {error}"))? == 0;
            let taken = whole(&buffer);
            let packets = match &mut marks {
                None => &buffer[..taken],
                Some(marks) => marks.set(&buffer[..taken]),
            };
            if written.bytes + packets.len() as u64 > most {
                written.is_cut = true;
                break 'segments;
            }
            draft.file.write_all(packets).map_err(cannot_write)?;
            written.bytes += packets.len() as u64;
            buffer.drain(..taken);
            if is_over {
                break;
            }
        }
    }
    draft.keep().map_err(cannot_write)?;
    Ok(written)
}

/// Marks the first packet of each sequence after a gap with `previous_packet_dropped`, as the service does for what its buffers lost. Readers understand a
/// packet by what its sequence said before: without the mark they would add its time to that of the last packet before the gap, for example.
#[derive(Debug, Default)]
struct Marks {
    /// The sequences that have theirs.
    marked: BTreeSet<u32>,
    packets: Writer,
}

impl Marks {
    /// Returns these whole packets with the marks that they need.
    fn set(&mut self, packets: &[u8]) -> &[u8] {
        self.packets.clear();
        for field in Reader::new(packets).map_while(Result::ok) {
            let Value::Bytes(packet) = field.value else {
                continue;
            };
            let sequence = Packet::new(packet).sequence;
            // Packets of no sequence do not refer to others.
            if sequence == 0 || !self.marked.insert(sequence) {
                self.packets.raw(field.raw);
                continue;
            }
            self.packets.nested(field.number, |marked| {
                marked.raw(packet);
                marked.varint_field(TracePacket::PREVIOUS_PACKET_DROPPED, 1);
            });
        }
        self.packets.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ferretto_ipc::reactor::Reactor;

    use ferretto_recorder::SessionName;

    use super::*;
    use crate::recorder::folder::{Disk, Folder};
    use crate::recorder::ring;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }

    #[test]
    fn an_order_that_is_not_carried_out_is_answered_and_leaves_no_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let reactor = Reactor::new().unwrap();
        let (seals, results) = channel();
        let (ends, _ends) = channel();
        let (orders, received) = channel();
        let journal = Journal {
            orders: Some(orders),
            thread: None,
            reports: Reports {
                seals,
                ends,
                waker: reactor.waker(),
            },
        };
        let order = |number: u64| {
            let draft = folder.draft(&number.to_string()).unwrap();
            journal.seal(SealId(number), draft, 9);
        };
        // A thread that ends has one order in hand while another one waits; a third one comes too late.
        order(1);
        order(2);
        let in_hand = received.recv().unwrap();
        assert_eq!(results.try_iter().count(), 0);
        drop(in_hand);
        drop(received);
        order(3);
        let answered: Vec<_> = results
            .try_iter()
            .map(|(id, result)| (id.0, result.is_err()))
            .collect();
        assert_eq!(answered, [(1, true), (2, true), (3, true)]);
        assert_eq!(names(root.path()), Vec::<String>::new());
    }

    #[test]
    fn what_comes_with_the_end_of_the_service_is_in_the_ring() {
        use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply};
        use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
        use ferretto_ipc::reactor::{Events, Token};
        use ferretto_ipc::{HostConnection, Stream};

        static SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("consumer");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let service = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = Stream::from_fd(stream.into()).unwrap();
            let limits = HostLimits::default();
            let mut host = HostConnection::new(&SERVICES, PeerIdentitySource::Kernel, limits);
            let mut reactor = Reactor::new().unwrap();
            reactor.register(&stream, Token(1), host.interest()).unwrap();
            loop {
                reactor.wait(&mut Events::new(), None).unwrap();
                stream.read_into(&mut host, &mut [0; 4096]).unwrap();
                host.begin_turn();
                let mut asked = None;
                while let Some(request) = host.next_request().unwrap() {
                    asked = (request.method == "ReadBuffers").then_some(request.reply_to);
                }
                if let Some(to) = asked {
                    let mut packets = Writer::new();
                    packets.nested(2, |slice| {
                        slice.bytes_field(1, b"packet");
                        slice.varint_field(2, 1);
                    });
                    host.reply(to, Reply::more(packets.as_slice().to_vec())).unwrap();
                    stream.flush(host.outgoing()).unwrap();
                    return;
                }
                stream.flush(host.outgoing()).unwrap();
            }
        });
        let reactor = Reactor::new().unwrap();
        let ((seals, _results), (ends, ended)) = (channel(), channel());
        let waker = reactor.waker();
        let session = SessionName::new("a").unwrap();
        let ring = Ring::new(&Disk::of(root.path(), 0), &session, 1, 1000);
        let address: Address = socket.to_str().unwrap().parse().unwrap();
        let journal = Journal::start(&address, &[], ring, 7, Reports { seals, ends, waker }).unwrap();
        service.join().unwrap();
        assert_eq!(ended.recv_timeout(PATIENCE).unwrap().0, 7);
        let left = ring::leftovers(root.path(), |_| false).unwrap();
        assert_eq!(left.len(), 1);
        let content = std::fs::read(&left[0].segments[0].path).unwrap();
        assert_eq!(content, [&[0x0a, 6][..], b"packet"].concat());
        drop(journal);
    }

    /// A ring's segments of these numbers and contents.
    fn segments(folder: &Path, contents: &[(u64, Vec<u8>)]) -> Vec<OpenSegment> {
        let segments = contents.iter().map(|(number, content)| {
            let path = folder.join(format!("segment{number}"));
            std::fs::write(&path, content).unwrap();
            OpenSegment {
                number: *number,
                file: File::open(path).unwrap(),
            }
        });
        segments.collect()
    }

    #[test]
    fn a_copy_that_is_cut_has_nothing_after_the_cut() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let packet = |length: usize| {
            let mut packet = packet_preamble(length as u64, &mut [0; MAX_PREAMBLE]).to_vec();
            packet.extend(std::iter::repeat_n(7, length));
            packet
        };
        let packets = [packet(50), packet(300), packet(10)];
        for (most, expected) in [(100, 1), (1000, 3)] {
            let contents: Vec<_> = (0..).zip(packets.clone()).collect();
            let draft = folder.draft("copy").unwrap();
            let written = copy(segments(root.path(), &contents), draft, most).unwrap();
            let content = std::fs::read(root.path().join("copy")).unwrap();
            assert_eq!(content, packets[..expected].concat());
            assert_eq!(
                (written.bytes, written.is_cut),
                (content.len() as u64, expected < packets.len())
            );
        }
    }

    #[test]
    fn each_sequence_is_told_once_what_is_missing_between_segments() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        let packets = |sequences: &[u32]| {
            let mut packets = Writer::new();
            for sequence in sequences {
                packets.nested(1, |packet| {
                    packet.varint_field(TracePacket::TIMESTAMP, 5);
                    if *sequence != 0 {
                        let number = TracePacket::TRUSTED_PACKET_SEQUENCE_ID;
                        packet.varint_field(number, u64::from(*sequence));
                    }
                });
            }
            packets.as_slice().to_vec()
        };
        // Segments 2 and 3 are missing.
        let contents = [
            (0, packets(&[1, 2])),
            (1, packets(&[1, 2])),
            (4, packets(&[2, 0, 2])),
            (5, packets(&[1, 2, 1, 3])),
        ];
        let draft = folder.draft("copy").unwrap();
        let written = copy(segments(root.path(), &contents), draft, 1000).unwrap();
        let content = std::fs::read(root.path().join("copy")).unwrap();
        assert_eq!(written.bytes, content.len() as u64);
        let found: Vec<_> = Reader::new(&content)
            .map(|field| {
                let packet = field.unwrap().value.as_bytes().unwrap();
                let is_marked = crate::packet::varint(packet, TracePacket::PREVIOUS_PACKET_DROPPED);
                (Packet::new(packet).sequence, is_marked.is_some())
            })
            .collect();
        let (marked, usual) = (true, false);
        assert_eq!(
            found,
            [
                (1, usual),
                (2, usual),
                (1, usual),
                (2, usual),
                (2, marked),
                (0, usual),
                (2, usual),
                (1, marked),
                (2, usual),
                (1, usual),
                (3, marked),
            ]
        );
        // Without the beginning, all begin with a loss.
        let draft = folder.draft("copy").unwrap();
        copy(segments(root.path(), &contents[1..2]), draft, 1000).unwrap();
        let content = std::fs::read(root.path().join("copy")).unwrap();
        assert_eq!(content.len(), contents[1].1.len() + 2 * 3);
    }
}
