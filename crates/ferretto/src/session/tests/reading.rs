//! Reading traces: in every way, slowly, not at all, and from a service that goes away meanwhile.

use ferretto_ipc::HostConnection;
use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply, ReplyTo};
use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::CloneSessionResponse;
use ferretto_wire::Writer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::AtomicBool;

use super::*;

#[test]
fn a_trace_can_be_read_in_every_way() {
    let _alone = alone();
    let ways: [fn(&Session) -> Vec<u8>; 5] = [
        |session| session.read_to_end().unwrap(),
        |session| {
            let mut trace = Vec::new();
            session.read().unwrap().read_to_end(&mut trace).unwrap();
            trace
        },
        |session| {
            let chunks = session.read().unwrap().map(|chunk| chunk.unwrap().into_bytes());
            chunks.collect::<Vec<_>>().concat()
        },
        |session| {
            let mut file = tempfile::tempfile().unwrap();
            let bytes = session.write_to(&mut file).unwrap();
            let trace = contents(&mut file);
            assert_eq!(trace.len() as u64, bytes);
            trace
        },
        |session| {
            let (sender, chunks) = mpsc::channel();
            session.read_with(move |chunk| sender.send(chunk).unwrap());
            let mut trace = Vec::new();
            while let Some(chunk) = chunks.recv_timeout(PATIENCE).unwrap().unwrap() {
                trace.extend_from_slice(chunk.as_bytes());
            }
            assert!(chunks.recv().is_err(), "nothing follows the end");
            trace
        },
    ];
    let recorder = Recorder::new();
    let expected: Vec<String> = (0..1000).map(|number: u32| format!("packet {number}")).collect();
    for read in ways {
        let session = started(&recorder.config());
        expected.iter().for_each(|text| recorder.write(text));
        session.stop_blocking().unwrap();
        assert_eq!(texts(&read(&session)), expected);
    }
    let session = started(&recorder.config());
    expected.iter().for_each(|text| recorder.write(text));
    session.stop_blocking().unwrap();
    let packets = session.read().unwrap().packets();
    let decoded = packets.map(|packet| TracePacket::decode_from_slice(&packet.unwrap()).unwrap());
    assert_eq!(
        decoded.filter_map(|packet| text(&packet)).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn a_running_session_is_read_after_a_flush() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(&recorder.config());
    recorder.write("first");
    session.flush_blocking(Duration::ZERO).unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["first"]);
    recorder.write("second");
    let (sender, flushed) = mpsc::channel();
    session.flush(PATIENCE, move |result| sender.send(result).unwrap());
    flushed.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["second"]);
}

#[test]
fn a_reader_outlives_its_session_with_an_error() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(&recorder.config());
    let mut reader = session.read().unwrap();
    drop(session);
    let error = loop {
        match reader.next_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => return, // It was read before the session was dropped.
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SessionError::Disconnected(_)), "{error}");
}

#[test]
fn a_large_trace_is_read_in_bounded_memory() {
    let _alone = alone();
    const PACKETS: usize = 2000;
    const SIZE: usize = 50 * 1024;
    let recorder = Recorder::new();
    let config = TraceConfig::new()
        .buffer_kb(128 * 1024)
        .data_source(DataSource::new(&recorder.name));
    let session = started(&config);
    for number in 0..PACKETS {
        recorder.write(&format!("{number:0SIZE$}"));
    }
    session.stop_blocking().unwrap();
    let mut reader = session.read().unwrap();
    let (mut count, mut most) = (0, 0);
    // The pipe fills up while nobody reads.
    eventually("the pipe is full", || reader.waiting() >= 4 << 20);
    while let Some(chunk) = reader.next_chunk().unwrap() {
        most = most.max(reader.waiting() + chunk.as_bytes().len());
        for packet in chunk.packets() {
            if let Some(text) = text(&TracePacket::decode_from_slice(packet).unwrap()) {
                assert_eq!(text.parse::<usize>().unwrap(), count);
                count += 1;
            }
        }
    }
    assert_eq!(count, PACKETS);
    assert!(most < 6 << 20, "{most} bytes waited to be read");
    // The SDK's thread still serves other sessions.
    drop(Session::in_process().query_capabilities().unwrap());
}

#[test]
fn a_reader_that_pauses_holds_back_trace_data_and_nothing_else() {
    let _alone = alone();
    let recorder = Recorder::new();
    let config = TraceConfig::new()
        .buffer_kb(32 * 1024)
        .data_source(DataSource::new(&recorder.name));
    let session = started(&config);
    let expected: Vec<String> = (0..1000).map(|number: u32| format!("{number:020000}")).collect();
    expected.iter().for_each(|text| recorder.write(text));
    session.flush_blocking(PATIENCE).unwrap();
    let mut reader = session.read().unwrap();
    eventually("the pipe is full", || reader.waiting() >= 4 << 20);
    session.trace_stats().unwrap();
    session.flush_blocking(PATIENCE).unwrap();
    session.stop_blocking().unwrap();
    let most = reader.waiting();
    assert!(most < 7 << 20, "{most} bytes wait to be read");
    let mut trace = Vec::new();
    reader.read_to_end(&mut trace).unwrap();
    assert_eq!(texts(&trace), expected);
}

#[test]
fn a_dropped_reader_holds_up_nothing() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(
        &TraceConfig::new()
            .buffer_kb(32 * 1024)
            .data_source(DataSource::new(&recorder.name)),
    );
    for _ in 0..200 {
        recorder.write(&"x".repeat(100 * 1024));
    }
    session.stop_blocking().unwrap();
    let reader = session.read().unwrap();
    eventually("the pipe is full", || reader.waiting() >= 4 << 20);
    drop(reader);
    assert_eq!(
        texts(&session.read_to_end().unwrap()),
        [""; 0],
        "the first read took it all"
    );
}

/// A service at the other end of a socket pair.
struct Scripted {
    thread: std::thread::JoinHandle<()>,
    hang_up: Arc<AtomicBool>,
    /// Whether the service cannot send more because the client does not read.
    blocked: Arc<AtomicBool>,
}

impl Scripted {
    /// Replies to the last call, again and again, with the result of `answer` for its method.
    fn start(mut answer: impl FnMut(&str) -> Vec<Reply> + Send + 'static) -> (Session, Scripted) {
        static SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
        const ROOM: usize = 1 << 18;
        crate::initialize(Options::in_process().producer_name("ferretto-tests"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::from_fd(theirs.into()).unwrap();
        let (hang_up, blocked) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (told, tells) = (hang_up.clone(), blocked.clone());
        let thread = std::thread::spawn(move || {
            let mut host = HostConnection::new(&SERVICES, PeerIdentitySource::Kernel, HostLimits::default());
            let mut scratch = vec![0; 1 << 17];
            let mut open: Option<(String, ReplyTo)> = None;
            while !told.load(Ordering::Relaxed) {
                host.begin_turn();
                while let Some(request) = host.next_request().unwrap() {
                    open = Some((request.method.to_owned(), request.reply_to));
                }
                if let Some((method, to)) = &open
                    && host.outgoing_room() >= ROOM
                {
                    for reply in answer(method) {
                        host.reply(*to, reply).unwrap();
                    }
                }
                stream.flush(host.outgoing()).unwrap();
                tells.store(host.outgoing_room() < ROOM, Ordering::Relaxed);
                let wanted = match host.interest() {
                    Interest::Writable | Interest::Both => PollFlags::IN | PollFlags::OUT,
                    _ => PollFlags::IN,
                };
                // The wait is short, because the service may be told to hang up.
                let a_little = Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                poll(&mut [PollFd::new(&stream, wanted)], Some(&a_little)).unwrap();
                stream.read_into(&mut host, &mut scratch).unwrap();
            }
        });
        let service = Scripted {
            thread,
            hang_up,
            blocked,
        };
        (Session::over(ours).unwrap(), service)
    }
}

#[test]
fn a_service_that_ends_while_its_trace_is_read_slowly_loses_nothing_that_it_sent() {
    let _alone = alone();
    const SIZE: usize = 50_000;
    let mut sent = 0..;
    let (session, service) = Scripted::start(move |method| match method {
        "CloneSession" => vec![Reply::last(
            CloneSessionResponse {
                success: Some(true),
                ..Default::default()
            }
            .encode_to_vec(),
        )],
        "ReadBuffers" => {
            let number: usize = sent.next().unwrap();
            let mut payload = Writer::new();
            payload.nested(2, |slice| {
                slice.bytes_field(1, format!("{number:0SIZE$}").as_bytes());
                slice.varint_field(2, 1);
            });
            vec![Reply::more(payload.as_slice().to_vec())]
        }
        _ => Vec::new(),
    });
    session.clone_session(&CloneSource::Id(1)).unwrap();
    let mut reader = session.read().unwrap();
    eventually("the pipe is full", || reader.waiting() >= 4 << 20);
    eventually("the service waits", || service.blocked.load(Ordering::Relaxed));
    service.hang_up.store(true, Ordering::Relaxed);
    service.thread.join().unwrap();
    let mut packets = 0;
    let error = loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                for packet in chunk.packets() {
                    let number = std::str::from_utf8(packet).unwrap();
                    assert_eq!(number.parse::<usize>().unwrap(), packets);
                    packets += 1;
                }
            }
            Ok(None) => panic!("the trace is not whole"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SessionError::Disconnected(_)), "{error}");
    assert!(packets * SIZE >= 4 << 20, "{packets}");
}
