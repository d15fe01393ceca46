//! Arbiters for startup: the packets that they keep back, and their fate.

use super::*;
use ferretto_smb::PageLayout;
use std::sync::atomic::AtomicUsize;
use untold_losses::{MAX_ROWS, MAX_TARGETS};

/// Counts how often it was woken.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Notify for Counting {
    fn wake(&self, _: Wake) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn arbiter(notify: impl Notify + 'static) -> Arc<Arbiter> {
    let memory = Arc::new(SharedMemory::create(16 * 4096).unwrap());
    let smb = ProducerSmb::new(memory, PageSize::new(4096).unwrap()).unwrap();
    Arbiter::new(smb, PageLayout::Div1, notify)
}

/// The targets of writers and chunks in these requests, in order; and how many writers end.
fn targets(requests: &[Request]) -> (Vec<u16>, Vec<u32>, usize) {
    let (mut writers, mut chunks, mut ended) = (Vec::new(), Vec::new(), 0);
    for request in requests {
        match request {
            Request::RegisterTraceWriter(_, target) => writers.push(target.0),
            Request::CommitData(commit) => {
                chunks.extend(
                    commit
                        .chunks_to_move
                        .iter()
                        .map(|chunk| chunk.target_buffer.unwrap()),
                );
            }
            Request::UnregisterTraceWriter(_) => ended += 1,
        }
    }
    (writers, chunks, ended)
}

const NOWHERE: BufferId = BufferId(0);

#[test]
fn packets_for_startup_are_kept_back_until_the_buffer_is_known() {
    let main = arbiter(Counting::default());
    let startup = main.for_startup();
    let mut first = startup
        .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
        .unwrap();
    first.write_packet(&[1; 3000]);
    first.write_packet(&[2; 3000]);
    drop(first);
    let mut second = startup
        .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
        .unwrap();
    second.write_packet(b"packet");
    assert_eq!(startup.take_requests(), []);
    // The others are not held up.
    let mut other = main
        .create_trace_writer(BufferId(3), BufferExhaustedPolicy::Drop)
        .unwrap();
    other.write_packet(b"other");
    other.flush();
    assert_eq!(targets(&main.take_requests()), (vec![3], vec![3], 0));

    startup.bind(BufferId(7));
    let (writers, chunks, ended) = targets(&startup.take_requests());
    assert_eq!((writers, chunks, ended), (vec![7, 7], vec![7, 7], 1));
    // Later packets go to the bound buffer too.
    second.write_packet(b"packet");
    drop(second);
    let late = startup
        .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
        .unwrap();
    assert_eq!(targets(&startup.take_requests()), (vec![7], vec![7], 1));
    drop(late);
}

#[test]
fn binding_wakes_the_endpoint_though_it_was_woken_in_vain_before() {
    let notify = Counting::default();
    let startup = arbiter(notify.clone()).for_startup();
    let mut writer = startup
        .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
        .unwrap();
    writer.write_packet(b"packet");
    writer.flush();
    assert_eq!(startup.take_requests(), []);
    let woken = notify.0.load(Ordering::Relaxed);
    writer.write_packet(b"packet");
    writer.flush();
    assert_eq!(
        notify.0.load(Ordering::Relaxed),
        woken,
        "woken with nothing to take"
    );
    startup.bind(BufferId(1));
    assert_eq!(notify.0.load(Ordering::Relaxed), woken + 1);
    // A second buffer changes nothing.
    startup.bind(BufferId(2));
    assert_eq!(targets(&startup.take_requests()), (vec![1], vec![1, 1], 0));
}

#[test]
fn writers_of_all_arbiters_of_a_connection_have_different_ids() {
    let main = arbiter(Counting::default());
    let startup = main.for_startup();
    let writers: Vec<TraceWriter> = (0..10)
        .map(|number| if number % 2 == 0 { &main } else { &startup })
        .map(|arbiter| {
            arbiter
                .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
                .unwrap()
        })
        .collect();
    let ids: std::collections::HashSet<WriterId> = writers.iter().map(TraceWriter::id).collect();
    assert_eq!(ids.len(), writers.len());
}

#[test]
fn discarded_chunks_go_back_to_the_service_for_no_buffer() {
    let main = arbiter(Counting::default());
    let startup = main.for_startup();
    let mut writer = startup
        .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
        .unwrap();
    for _ in 0..100 {
        writer.write_packet(&[0; 1000]);
    }
    assert!(writer.losses() > 0, "16 pages hold less");
    startup.discard();
    writer.write_packet(&[0; 1000]);
    drop(writer);
    let (_, chunks, _) = targets(&startup.take_requests());
    assert_eq!(chunks, [0; 16], "each chunk, once");
    assert!(
        startup
            .create_trace_writer(NOWHERE, BufferExhaustedPolicy::Drop)
            .is_err()
    );
    assert!(
        main.create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop)
            .is_ok()
    );
}

/// Writes until all memory is taken.
fn fill(arbiter: &Arc<Arbiter>) -> TraceWriter {
    let mut writer = arbiter
        .create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop)
        .unwrap();
    while writer.losses() == 0 {
        writer.write_packet(&[0; 3000]);
    }
    writer
}

#[test]
fn writers_that_come_and_go_while_the_endpoint_is_stuck_leave_no_more_than_a_count() {
    const WRITERS: usize = MAX_WRITER_ID as usize + 100;
    let arbiter = Arbiter::emulating(PageSize::MIN, PageLayout::Div1, Counting::default()).unwrap();
    let _full = fill(&arbiter);
    for _ in 0..WRITERS {
        let mut writer = arbiter
            .create_trace_writer(BufferId(2), BufferExhaustedPolicy::Drop)
            .expect("ids are free again");
        writer.write_packet(b"lost");
    }
    {
        let pending = arbiter.pending();
        assert_eq!((pending.registered.len(), pending.unregistered.len()), (1, 0));
        assert_eq!(pending.untold_losses.all().len(), 1);
    }
    // The endpoint goes on.
    let told: usize = (0..20)
        .map(|_| {
            let (_, chunks, _) = targets(&arbiter.take_requests());
            chunks.iter().filter(|target| **target == 2).count()
        })
        .sum();
    assert_eq!(told, usize::from(MAX_ROWS));
    assert!(arbiter.pending().untold_losses.all().is_empty());
}

#[test]
fn only_losses_for_the_latest_buffers_wait_to_be_reported() {
    let arbiter = arbiter(Counting::default());
    let _full = fill(&arbiter);
    for target in 1..=1000 {
        let mut writer = arbiter
            .create_trace_writer(BufferId(target), BufferExhaustedPolicy::Drop)
            .unwrap();
        writer.write_packet(b"lost");
        drop(writer);
        // The service's end is never read.
        arbiter.take_requests();
    }
    let pending = arbiter.pending();
    let untold = pending.untold_losses.all();
    assert_eq!(untold.len(), MAX_TARGETS);
    assert!(
        untold
            .iter()
            .all(|untold| untold.target.0 > 900 && untold.rows == 1)
    );
    assert!(pending.tellers.len() <= MAX_TELLERS);
}

/// The flush that these requests acknowledge.
fn acknowledged(requests: &[Request]) -> Option<u64> {
    requests.iter().find_map(|request| match request {
        Request::CommitData(commit) => commit.flush_request_id,
        _ => None,
    })
}

/// Has writers for these targets lose packets, and end.
fn lose(arbiter: &Arc<Arbiter>, targets: &[u16]) {
    for target in targets {
        let mut writer = arbiter
            .create_trace_writer(BufferId(*target), BufferExhaustedPolicy::Drop)
            .unwrap();
        writer.write_packet(b"lost");
    }
}

#[test]
fn a_flush_is_acknowledged_once_the_losses_before_it_are_told() {
    let notify = Counting::default();
    let arbiter = Arbiter::emulating(PageSize::MIN, PageLayout::Div1, notify.clone()).unwrap();
    let _full = fill(&arbiter);
    lose(&arbiter, &[2, 3, 2, 2]);
    arbiter.acknowledge_flush(5);
    let woken = notify.0.load(Ordering::Relaxed);
    // The requests free the memory: there was no chunk for the losses.
    let requests = arbiter.take_requests();
    assert_eq!(acknowledged(&requests), None);
    assert!(
        notify.0.load(Ordering::Relaxed) > woken,
        "the endpoint looks again"
    );
    // An acknowledgement that comes meanwhile is not lost.
    arbiter.acknowledge_flush(6);
    let _full = fill(&arbiter);
    lose(&arbiter, &[4; 20]);
    assert_eq!(acknowledged(&arbiter.take_requests()), None, "full again");
    let requests = arbiter.take_requests();
    let (_, chunks, _) = targets(&requests);
    assert_eq!(chunks[..4], [2, 2, 2, 3], "later losses come later");
    assert_eq!(acknowledged(&requests), Some(6));
}

#[test]
fn a_flush_does_not_wait_for_memory_that_stays_full() {
    let arbiter = arbiter(Counting::default());
    let _full = fill(&arbiter);
    lose(&arbiter, &[2]);
    arbiter.acknowledge_flush(5);
    assert_eq!(acknowledged(&arbiter.take_requests()), None);
    arbiter.pending().flushed.as_mut().unwrap().at_latest = Instant::now();
    assert_eq!(acknowledged(&arbiter.take_requests()), Some(5));
    assert_eq!(arbiter.pending().untold_losses.all().len(), 1);
}
