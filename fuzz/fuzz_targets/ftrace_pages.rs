//! Raw pages of the kernel's ring buffer through the page parser and the bundle writer, with the formats of a real
//! kernel (those beside the tests of `ferretto-probes`).
//!
//! The first byte of the input chooses the page size and the encoding, the rest are pages.

#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use ferretto_fuzz::{Input, assert_message};
use ferretto_probes::ftrace::bundle::{BundleWriter, ClockSnapshot, CpuRead};
use ferretto_probes::ftrace::format::PageLayout;
use ferretto_probes::ftrace::generic::GenericEncoding;
use ferretto_probes::ftrace::page::Page;
use ferretto_probes::ftrace::print_filter::{Pattern, PrintFilter, Rule, Verdict};
use ferretto_probes::ftrace::printk_formats::PrintkFormats;
use ferretto_probes::ftrace::session::{DecodeConfig, KprobeType, SchedEncoding, Session};
use ferretto_probes::ftrace::table::Table;
use ferretto_proto::messages::FtraceClock;
use ferretto_proto::write::FtraceEventBundle;
use ferretto_proto::write::ftrace_event_bundle::CompactSched;
use ferretto_wire::{Reader, Value, take_varint};
use libfuzzer_sys::fuzz_target;

macro_rules! formats {
    ($($group:literal / $name:literal),* $(,)?) => {
        [$(($group, $name, include_str!(concat!(
            "../../crates/probes/src/ftrace/testdata/formats/", $group, ".", $name
        )))),*]
    };
}

const PRINTK_FORMATS: &str = include_str!("../../crates/probes/src/ftrace/testdata/printk_formats");

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let formats = formats! {
        "sched" / "sched_switch", "sched" / "sched_waking", "sched" / "sched_process_exec",
        "sched" / "sched_process_fork", "task" / "task_rename", "task" / "task_newtask", "ftrace" / "print",
        "ftrace" / "funcgraph_entry", "irq" / "softirq_entry", "irq" / "irq_handler_entry",
        "workqueue" / "workqueue_execute_start", "raw_syscalls" / "sys_enter", "raw_syscalls" / "sys_exit",
        "timer" / "hrtimer_expire_entry", "power" / "cpu_idle", "power" / "suspend_resume",
        "ext4" / "ext4_sync_file_enter", "rcu" / "rcu_utilization", "block" / "block_bio_queue",
    };
    let mut table = Table::new(
        PageLayout::sixty_four_bit(4096),
        PrintkFormats::parse(PRINTK_FORMATS),
    );
    for (group, name, format) in formats {
        table
            .add(group, name, format)
            .expect("the format files are the kernel's");
    }
    table
});

thread_local! {
    /// Used for all inputs, as the daemon uses one for all pages.
    static WRITER: RefCell<BundleWriter> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let page_size = 512 << (choice >> 6);
    for page in input.0.chunks(page_size) {
        assert_records_follow_each_other(page);
    }
    let read = CpuRead {
        cpu: 3,
        pages: input.0,
        page_size,
        clock: (choice & 1 != 0).then_some(ClockSnapshot {
            clock: FtraceClock::FTRACE_CLOCK_GLOBAL,
            ftrace_timestamp: 1,
            boot_timestamp: -2,
        }),
    };
    let packets = WRITER.with_borrow_mut(|writer| encode(writer, &read, choice));
    for packet in &packets {
        check_packet(packet);
    }
    let fresh = encode(&mut BundleWriter::default(), &read, choice);
    assert!(
        packets == fresh,
        "what earlier pages left behind makes a difference"
    );
});

/// Asserts that records lie within the page, one behind the other.
fn assert_records_follow_each_other(page: &[u8]) {
    let Ok(parsed) = Page::parse(TABLE.layout(), page) else {
        return;
    };
    let mut end = page.as_ptr_range().start;
    for record in parsed.records().flatten() {
        let payload = record.payload.as_ptr_range();
        assert!(record.payload.len() >= 2 && payload.start >= end);
        end = payload.end;
    }
    assert!(end <= page.as_ptr_range().end);
}

fn encode(writer: &mut BundleWriter, read: &CpuRead<'_>, choice: u8) -> Vec<Vec<u8>> {
    let events: BTreeSet<u16> = TABLE.plans().map(|plan| plan.id).collect();
    let a_kprobe = TABLE
        .find("block", "block_bio_queue")
        .expect("among the formats")
        .id;
    let config = DecodeConfig {
        events,
        sched_encoding: if choice & 2 == 0 {
            SchedEncoding::Compact
        } else {
            SchedEncoding::Verbose
        },
        generic_encoding: if choice & 4 == 0 {
            GenericEncoding::Descriptors
        } else {
            GenericEncoding::Names
        },
        print_filter: (choice & 8 != 0).then(|| PrintFilter {
            rules: vec![Rule {
                pattern: Pattern::Prefix("C|".into()),
                verdict: Verdict::Deny,
            }],
        }),
        syscalls_returning_fd: [0, 257].into(),
        kprobes: if choice & 16 == 0 {
            BTreeMap::new()
        } else {
            [(a_kprobe, KprobeType::Begin)].into()
        },
    };
    let mut session = Session::new(&TABLE, config);
    let mut packets = Vec::new();
    writer.encode(&TABLE, &mut session, read, None, &mut packets);
    packets
}

/// Asserts that a packet is a bundle whose events are messages and whose columns have one height.
fn check_packet(packet: &[u8]) {
    let [Ok(bundle)] = Reader::new(packet).collect::<Vec<_>>()[..] else {
        panic!("a packet is more or less than a bundle");
    };
    for field in Reader::new(bundle.value.as_bytes().expect("a bundle")) {
        let field = field.expect("a bundle");
        match (field.number, field.value) {
            (FtraceEventBundle::COMPACT_SCHED, Value::Bytes(compact)) => check_compact_sched(compact),
            (FtraceEventBundle::EVENT, Value::Bytes(event)) => {
                for field in Reader::new(event).map(|field| field.expect("an event")) {
                    field.value.as_bytes().into_iter().for_each(assert_message);
                }
            }
            (
                FtraceEventBundle::ERROR | FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS,
                Value::Bytes(message),
            ) => assert_message(message),
            _ => {}
        }
    }
}

/// Asserts that each event has a value in every column, and that names referred to are there.
fn check_compact_sched(compact: &[u8]) {
    let (mut names, mut highest_name) = (0, None);
    let mut heights = BTreeMap::new();
    for field in Reader::new(compact).map(|field| field.expect("columns")) {
        let column = field.value.as_bytes().expect("a column");
        if field.number == CompactSched::INTERN_TABLE {
            names += 1;
            continue;
        }
        let values = varints(column);
        assert_eq!(heights.insert(field.number, values.len()), None, "a column twice");
        if matches!(
            field.number,
            CompactSched::SWITCH_NEXT_COMM_INDEX | CompactSched::WAKING_COMM_INDEX
        ) {
            highest_name = highest_name.max(values.into_iter().max());
        }
    }
    for (first, last) in [(1, 6), (7, 12)] {
        let of_group: BTreeSet<usize> = heights.range(first..=last).map(|(_, height)| *height).collect();
        assert!(of_group.len() <= 1, "columns of different heights: {heights:?}");
    }
    assert!(
        highest_name.is_none_or(|highest| highest < names),
        "a name is missing"
    );
}

fn varints(mut column: &[u8]) -> Vec<u64> {
    let values = std::iter::from_fn(|| take_varint(&mut column)).collect();
    assert!(column.is_empty(), "a column of varints");
    values
}
