use super::*;
use ferretto_proto::messages::perfetto_metatrace::RecordType;
use ferretto_proto::messages::{Message, TracePacket, trace_packet::Data};

/// The process has one ring, so tests that record take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn records(packets: &[Vec<u8>]) -> Vec<(u64, ferretto_proto::messages::PerfettoMetatrace)> {
    packets
        .iter()
        .map(|packet| {
            let packet = TracePacket::decode_from_slice(packet).unwrap();
            match packet.data {
                Some(Data::PerfettoMetatrace(record)) => (packet.timestamp.unwrap(), *record),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

#[test]
fn marks_become_packets_only_while_a_session_records() {
    let _turn = turn();
    let mut packets = Vec::new();
    drop(span(Event::ReadSysStats));
    let mut probe = Metatrace::default();
    probe.start(boot_now(), &mut packets);
    let before = boot_now();
    {
        let _span = span(Event::FtraceReadTick);
        count(Counter::FtracePagesDrained, 7);
    }
    probe.stop(boot_now(), &mut packets);
    drop(span(Event::ReadSysStats));

    // Other tests of this process may mark work of their own meanwhile.
    let all = records(&packets);
    let ours = |kind: &RecordType| {
        matches!(kind, RecordType::EventId(18)) || matches!(kind, RecordType::CounterId(1))
    };
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let ours: Vec<_> = all
        .iter()
        .filter(|(_, record)| {
            record.thread_id == Some(thread) && record.record_type.as_ref().is_some_and(ours)
        })
        .collect();
    let [(counted_at, counted), (began, tick)] = ours.as_slice() else {
        panic!("{ours:?}")
    };
    assert_eq!(counted.counter_value, Some(7));
    assert!(before <= *began && began <= counted_at);
    assert!(began + tick.event_duration_ns.unwrap() >= *counted_at);
    assert!(all.iter().all(|(_, record)| record.has_overruns.is_none()));
    assert!(ring().records.is_empty());
}

#[test]
fn only_the_first_session_gets_the_records_and_the_next_one_may_follow() {
    let _turn = turn();
    let (mut first, mut second) = (Metatrace::default(), Metatrace::default());
    let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
    first.start(0, &mut of_first);
    second.start(0, &mut of_second);
    assert_eq!(first.take_notices(), [""; 0]);
    assert_eq!(second.take_notices().len(), 1);
    assert_eq!(second.next_deadline(), None);
    count(Counter::FtraceSessions, 1);
    second.flush(0, &mut of_second);
    second.stop(0, &mut of_second);
    drop(second);
    count(Counter::FtraceSessions, 2);
    first.on_deadline(first.next_deadline().unwrap(), &mut of_first);
    assert_eq!(of_second.len(), 0);
    assert!(of_first.len() >= 2);
    // A service that goes away stops no other recording.
    drop(first);
    let mut third = Metatrace::default();
    third.start(0, &mut Vec::new());
    assert_eq!(third.take_notices(), [""; 0]);
    third.stop(0, &mut Vec::new());
}

#[test]
fn a_full_ring_keeps_the_newest_records_and_says_so() {
    let _turn = turn();
    let mut packets = Vec::new();
    let mut probe = Metatrace::default();
    probe.start(0, &mut packets);
    for value in 0..=CAPACITY {
        count(Counter::PsPidsScanned, value);
    }
    probe.flush(0, &mut packets);
    let all = records(&packets);
    assert_eq!(all.len(), CAPACITY);
    assert!(all.iter().all(|(_, record)| record.has_overruns == Some(true)));
    // Other tests of this process may mark work of their own meanwhile.
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut ours = all.iter().filter(|(_, record)| record.thread_id == Some(thread));
    let newest = ours.rfind(|(_, record)| record.counter_value.is_some());
    assert_eq!(newest.unwrap().1.counter_value, Some(CAPACITY as i32));
    packets.clear();
    count(Counter::PsPidsScanned, 1);
    probe.stop(0, &mut packets);
    let all = records(&packets);
    let mut ours = all.iter().filter(|(_, record)| record.thread_id == Some(thread));
    assert_eq!(ours.next().unwrap().1.has_overruns, None);
}
