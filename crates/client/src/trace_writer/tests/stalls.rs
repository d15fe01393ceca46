//! Writers that wait for chunks: the cost of the wait, and the ways in which it ends.

use super::*;

#[test]
fn writers_that_stall_lose_nothing() {
    const PACKETS: usize = 300;
    let (sender, wakes) = channel();
    let mut service = Service::new(8, 4096, PageLayout::Div2, Channel(Mutex::new(sender)));
    let threads: Vec<_> = [
        BufferExhaustedPolicy::Stall,
        BufferExhaustedPolicy::StallThenDrop,
        BufferExhaustedPolicy::Stall,
    ]
    .into_iter()
    .map(|policy| {
        let mut writer = service.writer(policy);
        std::thread::spawn(move || {
            for number in 0..PACKETS {
                // Every hundredth does not even fit the buffer.
                let len = if number % 100 == 50 {
                    50_000
                } else {
                    number * 7 % 900
                };
                writer.write_packet(&packet(number, len));
            }
            (writer.id(), writer.losses())
        })
    })
    .collect();
    // Writers end with an unregistration, which wakes too.
    while !threads.iter().all(|thread| thread.is_finished()) {
        if wakes.recv_timeout(Duration::from_millis(20)).is_ok() {
            service.serve();
        }
    }
    service.serve();
    for thread in threads {
        let (id, losses) = thread.join().unwrap();
        let received: Vec<_> = service
            .packets(id)
            .iter()
            .map(|received| number(&received.packet))
            .collect();
        assert_eq!((received, losses), ((0..PACKETS).collect(), 0));
    }
    assert!(service.all_pages_are_free());
}

/// An endpoint on the writers' own thread.
#[derive(Clone, Default)]
struct SameThread(Arc<OnceLock<Mutex<Service>>>);

impl Notify for SameThread {
    fn wake(&self, wake: Wake) {
        if wake == Wake::Stalled {
            self.0.get().unwrap().lock().unwrap().serve();
        }
    }
}

#[test]
fn a_writer_on_the_endpoints_thread_stalls_while_its_requests_are_sent() {
    let endpoint = SameThread::default();
    let service = Service::new(4, 4096, PageLayout::Div1, endpoint.clone());
    let mut writer = service.writer(BufferExhaustedPolicy::Stall);
    assert!(endpoint.0.set(Mutex::new(service)).is_ok());
    (0..20).for_each(|number| writer.write_packet(&packet(number, number * 1_000)));
    writer.flush();
    let mut service = endpoint.0.get().unwrap().lock().unwrap();
    service.serve();
    assert_eq!(writer.losses(), 0);
    let expected: Vec<_> = (0..20).map(|number| packet(number, number * 1_000)).collect();
    let received: Vec<_> = service
        .packets(writer.id())
        .into_iter()
        .map(|received| received.packet)
        .collect();
    assert_eq!(received, expected);
}

#[test]
fn no_writer_waits_for_a_service_that_is_gone() {
    let service = Service::new(1, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Stall);
    service.arbiter.close();
    (0..100).for_each(|number| writer.write_packet(&packet(number, 500)));
    assert_eq!(writer.losses(), 1);
    let refused = service
        .arbiter
        .create_trace_writer(TARGET, BufferExhaustedPolicy::Stall);
    assert_eq!(refused.unwrap_err(), CreateWriterError::Closed);
}

/// An endpoint that finds the connection broken when a writer waits.
#[derive(Clone, Default)]
struct FindsItselfAlone(Arc<OnceLock<Arc<Arbiter>>>);

impl Notify for FindsItselfAlone {
    fn wake(&self, wake: Wake) {
        if wake == Wake::Stalled {
            self.0.get().unwrap().close();
        }
    }
}

#[test]
fn a_writer_that_waits_gives_up_when_the_connection_ends() {
    let endpoint = FindsItselfAlone::default();
    let service = Service::new(1, 4096, PageLayout::Div1, endpoint.clone());
    assert!(endpoint.0.set(service.arbiter.clone()).is_ok());
    let mut writer = service.writer(BufferExhaustedPolicy::Stall);
    let start = Instant::now();
    (0..20).for_each(|number| writer.write_packet(&packet(number, 500)));
    assert_eq!(writer.losses(), 1);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "it waited for its time to be up"
    );
}

#[test]
fn a_stuck_service_costs_the_wait_once_and_not_for_each_writer() {
    const LIMIT: Duration = Duration::from_millis(300);
    const WRITERS: u32 = 20;
    let memory = Arc::new(SharedMemory::create(4096).unwrap());
    let page_size = PageSize::new(4096).unwrap();
    let smb = ProducerSmb::new(memory.clone(), page_size).unwrap();
    let arbiter = Arbiter::with_stall_limit(smb, PageLayout::Div1, Silent, LIMIT);
    let policy = BufferExhaustedPolicy::StallThenDrop;
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|_| arbiter.create_trace_writer(TARGET, policy).unwrap())
        .collect();
    let start = Instant::now();
    for writer in &mut writers {
        (0..20).for_each(|number| writer.write_packet(&packet(number, 500)));
        assert_eq!(writer.losses(), 1);
    }
    let waited = start.elapsed();
    assert!(waited >= LIMIT, "{waited:?}: nobody waited");
    assert!(waited < LIMIT * WRITERS, "{waited:?}: all waited");

    // The service comes back: the next wait is worth it again.
    let mut service = Service::over(memory, page_size, arbiter);
    service.serve();
    writers[0].write_packet(&packet(0, 500));
    assert_eq!(writers[0].losses(), 1);
    let start = Instant::now();
    (0..20).for_each(|number| writers[0].write_packet(&packet(number, 500)));
    assert!(start.elapsed() >= LIMIT);
    assert_eq!(writers[0].losses(), 2);
}
