//! Packets as readers expect them.

use ferretto_client::runtime::probe::LossySink;
use ferretto_proto::messages::perf_events::Counter;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, PerfEventConfig, TracePacket as Packet};

use super::*;
use crate::config::PerfConfig;
use crate::event::RunningKernel;
use crate::interning::Mapping;
use crate::record::Counts;

fn take(sink: &mut LossySink) -> Vec<Packet> {
    let packets = std::mem::take(&mut sink.packets);
    let decode = |packet: &Vec<u8>| Packet::decode_from_slice(packet).expect("it is a packet");
    packets.iter().map(decode).collect()
}

fn output() -> Output {
    let config = PerfConfig::of(&PerfEventConfig::default(), None, &RunningKernel::default())
        .expect("the config is good");
    Output::new(&config)
}

fn stack(output: &mut Output, sink: &mut LossySink) {
    output.begin(|| 5, sink);
    let interning = output.interning();
    let nowhere = interning.mapping(&Mapping::default());
    let frame = interning.frame(nowhere, b"main", 1);
    let callstack = interning.callstack(&[frame]);
    let word = 3u64.to_ne_bytes();
    let counts = [word];
    let sample = Sample {
        cpu_mode: 2,
        pid: 7,
        tid: 8,
        timestamp: 9,
        counts: Counts {
            words: counts.as_slice().into(),
            ..Counts::default()
        },
        ..Sample::default()
    };
    let unwound = Unwound {
        callstack,
        error: None,
    };
    output.stack(1, &sample, unwound, sink);
}

#[test]
fn defaults_come_first_then_samples_with_what_they_refer_to() {
    let (mut output, mut sink) = (output(), LossySink::default());
    stack(&mut output, &mut sink);
    stack(&mut output, &mut sink);
    let packets = take(&mut sink);
    assert_eq!(packets.len(), 4);
    let defaults = packets[0]
        .trace_packet_defaults
        .as_option()
        .expect("it has defaults");
    assert_eq!(packets[0].sequence_flags, Some(1));
    assert_eq!(
        defaults.timestamp_clock_id,
        Some(BuiltinClock::BUILTIN_CLOCK_MONOTONIC_RAW as u32)
    );
    let timebase = defaults
        .perf_sample_defaults
        .as_option()
        .and_then(|defaults| defaults.timebase.as_option());
    let timebase = timebase.expect("it says what is counted");
    use ferretto_proto::messages::perf_events::timebase::{Event, Interval};
    assert_eq!(timebase.interval, Some(Interval::Frequency(10)));
    assert_eq!(timebase.event, Some(Event::Counter(Counter::SW_CPU_CLOCK)));

    let Some(Data::PerfSample(sample)) = &packets[2].data else {
        panic!("it is a sample")
    };
    assert_eq!(packets[2].timestamp, Some(9));
    assert_eq!(packets[2].sequence_flags, Some(2));
    assert_eq!((sample.cpu, sample.pid, sample.tid), (Some(1), Some(7), Some(8)));
    assert_eq!((sample.timebase_count, sample.callstack_iid), (Some(3), Some(1)));
    assert_eq!(sample.cpu_mode, Some(CpuMode::MODE_USER));
    assert!(packets[2].interned_data.is_set());
    assert!(!packets[3].interned_data.is_set());
}

#[test]
fn everything_is_repeated_after_a_loss_and_on_request() {
    let (mut output, mut sink) = (output(), LossySink::default());
    stack(&mut output, &mut sink);
    take(&mut sink);
    sink.losses += 1;
    stack(&mut output, &mut sink);
    let packets = take(&mut sink);
    assert_eq!(packets.len(), 3);
    assert_eq!(packets[0].sequence_flags, Some(1));
    assert!(packets[2].interned_data.is_set());

    output.clear_incremental_state();
    stack(&mut output, &mut sink);
    assert_eq!(take(&mut sink).len(), 3);
    stack(&mut output, &mut sink);
    assert_eq!(take(&mut sink).len(), 1);
}

#[test]
fn losses_skipped_samples_and_the_guardrail_are_told() {
    let (mut output, mut sink) = (output(), LossySink::default());
    output.begin(|| 5, &mut sink);
    output.lost(6, 1, 99, &mut sink);
    output.skipped(
        1,
        &Sample::default(),
        SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE,
        &mut sink,
    );
    output.stopped(7, DataSourceStopReason::PROFILER_STOP_GUARDRAIL, &mut sink);
    let packets = take(&mut sink);
    let sample = |index: usize| match &packets[index].data {
        Some(Data::PerfSample(sample)) => sample,
        _ => panic!("it is a sample"),
    };
    assert_eq!(sample(2).kernel_records_lost, Some(99));
    // The time is not on the clock of samples.
    assert_eq!(
        packets[2].timestamp_clock_id,
        Some(BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32)
    );
    assert!(sample(3).optional_sample_skipped_reason.is_some());
    assert!(sample(4).producer_event.is_set());
}
