//! More writers than there are chunks: idle writers lose their chunks to others.

use super::*;
use crate::arbiter::barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// Notes that the endpoint is wanted at once.
#[derive(Clone, Default)]
struct Noting(Arc<AtomicBool>);

impl Notify for Noting {
    fn wake(&self, wake: Wake) {
        if !matches!(wake, Wake::Within(_)) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Noting {
    fn was_woken(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Whether this system has the barrier that taking chunks back needs. If not, prints that the test is skipped.
fn has_barrier() -> bool {
    let has = barrier::prepare();
    if !has {
        println!("skipped: the kernel has no membarrier");
    }
    has
}

#[test]
fn a_thousand_idle_writers_leave_room_in_the_default_memory() {
    if !has_barrier() {
        return;
    }
    let notify = Noting::default();
    let mut service = Service::new(64, 4096, Partitioning::ByWriters, notify.clone());
    service.arbiter.set_batch_duration(Duration::from_secs(3600));
    let mut writers: Vec<_> = (0..1024)
        .map(|_| service.writer(BufferExhaustedPolicy::Drop))
        .collect();
    for round in 0..3 {
        for writer in &mut writers {
            writer.write_packet(&packet(round, 20));
            if notify.was_woken() {
                service.serve();
            }
        }
    }
    assert!(writers.iter().all(|writer| writer.losses() == 0));
    let ids: Vec<_> = writers.iter().map(TraceWriter::id).collect();
    drop(writers);
    service.serve();
    for id in ids {
        let packets: Vec<_> = service
            .packets(id)
            .iter()
            .map(|packet| number(&packet.packet))
            .collect();
        assert_eq!(packets, [0, 1, 2]);
    }
    assert!(service.all_pages_are_free());
}

#[test]
fn chunks_from_when_writers_were_few_come_back_when_they_are_many() {
    if !has_barrier() {
        return;
    }
    let notify = Noting::default();
    let mut service = Service::new(16, 4096, PageLayout::Div1, notify.clone());
    let mut writers: Vec<_> = (0..100)
        .map(|_| service.writer(BufferExhaustedPolicy::Drop))
        .collect();
    for writer in &mut writers {
        writer.write_packet(&packet(0, 20));
        if notify.was_woken() {
            service.serve();
        }
        assert_eq!(writer.losses(), 0);
    }
}

/// The next writers, and the lengths of their packets.
fn steps(writers: usize) -> impl Strategy<Value = Vec<(usize, usize, Way)>> {
    // The first writers write often, and the others hardly ever.
    let writer = prop_oneof![0..writers, 0..writers.min(5)];
    prop::collection::vec((writer, 0usize..200, Way::any()), 1..2000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_while_somebody_holds_a_chunk_in_vain(
        pages in 4usize..12,
        (writers, steps) in (1usize..300).prop_flat_map(|writers| (Just(writers), steps(writers))),
    ) {
        prop_assume!(has_barrier());
        let notify = Noting::default();
        let mut service = Service::new(pages, 4096, Partitioning::ByWriters, notify.clone());
        service.arbiter.set_batch_duration(Duration::from_secs(3600));
        let mut writers: Vec<_> = (0..writers).map(|_| service.writer(BufferExhaustedPolicy::Drop)).collect();
        let mut written = vec![0; writers.len()];
        let mut returned = vec![0; writers.len()];
        for (index, len, way) in steps {
            let writer = &mut writers[index];
            way.write(writer, &packet(written[index], len));
            written[index] += 1;
            prop_assert_eq!(writer.losses(), 0);
            prop_assert!(writer.returned() >= returned[index]);
            returned[index] = writer.returned();
            if notify.was_woken() {
                service.serve();
            }
        }
        for (writer, written) in writers.into_iter().zip(written) {
            let id = writer.id();
            drop(writer);
            service.serve();
            if written > 0 {
                let numbers: Vec<_> = service.packets(id).iter().map(|packet| number(&packet.packet)).collect();
                prop_assert_eq!(numbers, (0..written).collect::<Vec<_>>());
            }
        }
        prop_assert!(service.all_pages_are_free());
    }
}

/// Threads that write as fast as they can, more than there are chunks, and an endpoint that takes chunks back all the time.
#[test]
fn chunks_are_taken_back_from_threads_that_write() {
    const THREADS: usize = 40;
    const PACKETS: usize = 500;
    // A freed chunk goes to the first writer that looks. Writers that have waited long look less often. On a busy machine one of them may wait longer than
    // the usual limit, and lose a packet. With this limit, time causes no loss.
    const LIMIT: Duration = Duration::from_secs(3600);
    let memory = Arc::new(SharedMemory::create(2 * 4096).unwrap());
    let page_size = PageSize::new(4096).unwrap();
    let smb = ProducerSmb::new(memory.clone(), page_size).unwrap();
    let arbiter = Arbiter::with_stall_limit(smb, PageLayout::Div14, Silent, LIMIT);
    let mut service = Service::over(memory, page_size, arbiter);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let mut writer = service.writer(BufferExhaustedPolicy::Stall);
            std::thread::spawn(move || {
                let id = writer.id();
                for number in 0..PACKETS {
                    let ways = [Way::Copied, Way::Encoded, Way::Short, Way::Prepared];
                    ways[number % ways.len()].write(&mut writer, &packet(number, number % 50));
                }
                (id, writer.losses())
            })
        })
        .collect();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        service.serve();
        std::thread::yield_now();
    }
    service.serve();
    for thread in threads {
        let (id, losses) = thread.join().unwrap();
        let numbers: Vec<_> = service
            .packets(id)
            .iter()
            .map(|packet| number(&packet.packet))
            .collect();
        assert_eq!((numbers, losses), ((0..PACKETS).collect(), 0));
    }
    assert!(service.all_pages_are_free());
}
