//! Records as the kernel writes them, and any other bytes.

use proptest::prelude::*;

use super::*;

const LAYOUT: SampleLayout = SampleLayout {
    is_group: true,
    count: CountFormat::Plain,
    has_callchain: true,
    stack: Some(RegisterCount(2)),
};

/// A record of this kind with these parts after its header.
fn record(kind: u32, misc: u32, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut record = kind.to_ne_bytes().to_vec();
    record.extend_from_slice(&(misc as u16).to_ne_bytes());
    record.extend_from_slice(&(content.len() as u16 + 8).to_ne_bytes());
    record.extend_from_slice(&content);
    record
}

fn word(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

fn ids(first: i32, second: i32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_ne_bytes());
    both[4..].copy_from_slice(&second.to_ne_bytes());
    both
}

fn whole_sample() -> Vec<u8> {
    record(
        sys::PERF_RECORD_SAMPLE,
        sys::PERF_RECORD_MISC_USER | sys::PERF_RECORD_MISC_EXACT_IP,
        &[
            &ids(7, 8),
            &word(1000),
            // Counts.
            &word(2),
            &word(11),
            &word(12),
            // A call chain.
            &word(1),
            &word(0xffff_ffff_8000_0000),
            // Registers.
            &word(sys::PERF_SAMPLE_REGS_ABI_64.into()),
            &word(21),
            &word(22),
            // A copy of a stack with 3 valid bytes.
            &word(8),
            b"abc-----",
            &word(3),
        ],
    )
}

#[test]
fn a_sample_has_what_its_layout_says() {
    let record = whole_sample();
    let Some(Record::Sample(sample)) = Record::parse(&record, LAYOUT) else {
        panic!("it is a sample")
    };
    assert_eq!((sample.pid, sample.tid, sample.timestamp), (7, 8, 1000));
    assert_eq!(u32::from(sample.cpu_mode), sys::PERF_RECORD_MISC_USER);
    assert_eq!(sample.counts.iter().collect::<Vec<_>>(), [11, 12]);
    assert_eq!(
        sample.callchain.iter().collect::<Vec<_>>(),
        [0xffff_ffff_8000_0000]
    );
    let registers = sample.registers.expect("it has registers");
    assert!(registers.is_64_bit);
    assert_eq!(registers.values.iter().collect::<Vec<_>>(), [21, 22]);
    assert_eq!((sample.stack, sample.is_stack_cut), (&b"abc"[..], true));
}

#[test]
fn the_losses_beside_counts_are_no_counts() {
    let layout = |is_group| SampleLayout {
        is_group,
        count: CountFormat::WithLosses,
        has_callchain: false,
        stack: None,
    };
    let group = [
        &ids(7, 8)[..],
        &word(1),
        &word(2),
        &word(11),
        &word(3),
        &word(12),
        &word(0),
    ];
    let single = [&ids(7, 8)[..], &word(1), &word(11), &word(3)];
    for (is_group, parts, expected) in [(true, &group[..], &[11, 12][..]), (false, &single, &[11])] {
        let record = record(sys::PERF_RECORD_SAMPLE, 0, parts);
        let Some(Record::Sample(sample)) = Record::parse(&record, layout(is_group)) else {
            panic!("it is a sample")
        };
        assert_eq!(sample.counts.iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn counts_since_the_last_sample_are_summed() {
    let layout = |count| SampleLayout {
        is_group: false,
        count,
        has_callchain: false,
        stack: None,
    };
    let mut counted = 0;
    let cases: [(_, &[u64], _); 4] = [
        (CountFormat::SinceLast, &[30], 30),
        (CountFormat::SinceLast, &[12], 42),
        (CountFormat::Fixed(8), &[], 50),
        // These begin again when events are opened anew.
        (CountFormat::Plain, &[7], 57),
    ];
    for (count, words, expected) in cases {
        let words: Vec<_> = words.iter().flat_map(|number| word(*number)).collect();
        let record = record(sys::PERF_RECORD_SAMPLE, 0, &[&ids(7, 8), &word(1), &words]);
        let Some(Record::Sample(mut sample)) = Record::parse(&record, layout(count)) else {
            panic!("it is a sample")
        };
        sample.counts.follow(&mut counted);
        assert_eq!(sample.counts.iter().collect::<Vec<_>>(), [expected], "{count:?}");
    }
    assert_eq!(counted, 50);
}

#[test]
fn a_kernel_thread_has_neither_registers_nor_stack() {
    let record = record(
        sys::PERF_RECORD_SAMPLE,
        sys::PERF_RECORD_MISC_KERNEL,
        &[
            &ids(0, 0),
            &word(1),
            &word(1),
            &word(5),
            &word(0),
            &word(0),
            &word(0),
        ],
    );
    let Some(Record::Sample(sample)) = Record::parse(&record, LAYOUT) else {
        panic!("it is a sample")
    };
    assert_eq!((sample.registers, sample.stack), (None, &b""[..]));
}

#[test]
fn losses_and_changes_of_processes_are_told() {
    let parse = |record: &[u8]| format!("{:?}", Record::parse(record, LAYOUT));
    let lost = record(
        sys::PERF_RECORD_LOST,
        0,
        &[&word(1), &word(99), &ids(1, 1), &word(5)],
    );
    assert_eq!(parse(&lost), "Some(Lost(99))");
    let lost = record(
        sys::PERF_RECORD_LOST_SAMPLES,
        0,
        &[&word(98), &ids(1, 1), &word(5)],
    );
    assert_eq!(parse(&lost), "Some(LostSamples(98))");
    let limit = |kind| record(kind, 0, &[&word(6), &word(1), &word(1), &ids(1, 1), &word(5)]);
    let throttled = parse(&limit(sys::PERF_RECORD_THROTTLE));
    assert_eq!(throttled, "Some(Throttled { timestamp: 6 })");
    let unthrottled = parse(&limit(sys::PERF_RECORD_UNTHROTTLE));
    assert_eq!(unthrottled, "Some(Unthrottled { timestamp: 6 })");
    let comm = [&ids(7, 7)[..], b"sh\0\0\0\0\0\0", &ids(7, 7), &word(5)];
    let exec = record(sys::PERF_RECORD_COMM, sys::PERF_RECORD_MISC_COMM_EXEC, &comm);
    assert_eq!(parse(&exec), "Some(Exec { pid: 7, timestamp: 5 })");
    // A thread changes its own name.
    assert_eq!(parse(&record(sys::PERF_RECORD_COMM, 0, &comm)), "Some(Other)");
    let exit = record(sys::PERF_RECORD_EXIT, 0, &[&ids(7, 1), &ids(9, 1), &word(5)]);
    assert_eq!(parse(&exit), "Some(Exit { pid: 7, tid: 9, timestamp: 5 })");
    let mapping = [
        &ids(7, 7)[..],
        &word(0x1000),
        &word(0x2000),
        &word(0x3000),
        &ids(8, 1),
        &word(77),
        &word(0),
        &ids(5, 2),
        b"/bin/sh\0",
    ];
    let mapping = record(sys::PERF_RECORD_MMAP2, 0, &mapping);
    let Some(Record::Mapped(mapped)) = Record::parse(&mapping, LAYOUT) else {
        panic!("it is a mapping")
    };
    assert_eq!(
        (mapped.start, mapped.length, mapped.offset),
        (0x1000, 0x2000, 0x3000)
    );
    assert_eq!((mapped.device, mapped.inode, mapped.protection), ((8, 1), 77, 5));
    assert_eq!(mapped.path, b"/bin/sh");
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kind in 0u32..24,
        is_group in any::<bool>(),
        count in prop_oneof![
            Just(CountFormat::Plain),
            Just(CountFormat::WithLosses),
            Just(CountFormat::SinceLast),
            any::<u64>().prop_map(CountFormat::Fixed),
        ],
        has_callchain in any::<bool>(),
        registers in proptest::option::of(0u32..70),
    ) {
        let layout = SampleLayout { is_group, count, has_callchain, stack: registers.map(RegisterCount) };
        let _ = Record::parse(&bytes, layout);
        let _ = Record::parse(&record(kind, 0, &[&bytes]), layout);
    }

    #[test]
    fn a_sample_that_is_cut_off_is_none(length in 0usize..128) {
        let record = whole_sample();
        let length = length.min(record.len() - 1);
        prop_assert_eq!(Record::parse(&record[..length], LAYOUT), None);
    }
}
