//! What the kernel loses, with its real events.

use ferretto_proto::messages::perf_events::{Timebase, timebase};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, MessageField, PerfEventConfig, TracePacket};

use super::*;
use crate::event::RunningKernel;

/// A profiler of the CPU clock of the first CPU, with the smallest ring; or prints that the test is skipped.
fn profiler() -> Option<Profiler> {
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Period(100_000)),
            ..Default::default()
        }),
        ring_buffer_pages: Some(1),
        ..Default::default()
    };
    let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    match CpuEvents::open(&config, 0, 1) {
        Ok(events) => Some(Profiler::new(&config, vec![events], [])),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The records that packets report as lost, all together.
fn reported(packets: &[Vec<u8>]) -> u64 {
    let lost = |packet: &Vec<u8>| match TracePacket::decode_from_slice(packet).unwrap().data {
        Some(Data::PerfSample(sample)) => sample.kernel_records_lost.unwrap_or(0),
        _ => 0,
    };
    packets.iter().map(lost).sum()
}

/// Waits until more than so many records are lost. `None` if this kernel does not count them.
fn await_losses(profiler: &Profiler, more_than: u64) -> Option<u64> {
    loop {
        match profiler.cpus[0].lost_records() {
            Some(lost) if lost > more_than => return Some(lost),
            Some(_) => std::thread::yield_now(),
            None => {
                println!("skipped: this kernel does not count lost records (before Linux 6.0)");
                return None;
            }
        }
    }
}

#[test]
fn losses_after_the_last_record_are_reported_and_none_twice() {
    let Some(mut profiler) = profiler() else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let Some(lost) = await_losses(&profiler, 10) else {
        return;
    };
    // A flush, while the kernel goes on.
    profiler.catch_up(&mut packets);
    assert!(reported(&packets) >= lost, "{} of {lost}", reported(&packets));
    // The record about these losses comes now.
    if await_losses(&profiler, reported(&packets) + 10).is_none() {
        return;
    }
    profiler.disable();
    profiler.catch_up(&mut packets);
    profiler.catch_up(&mut packets);
    assert_eq!(Some(reported(&packets)), profiler.cpus[0].lost_records());
}
