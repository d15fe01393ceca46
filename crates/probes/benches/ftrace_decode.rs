//! What decoding the kernel's ring buffer costs per event: `cargo bench -p ferretto-probes --bench ftrace_decode`.
//!
//! Reports events per second and time per batch of pages. For instructions instead of time, which repeat exactly:
//! `valgrind --tool=callgrind --toggle-collect='*BundleWriter*encode*' <bench binary> --bench --sample-count 20
//! --sample-size 1 <name>`, divided by 21 times the events of a batch, which the bench prints.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ferretto_client::runtime::probe::PacketSink;
use ferretto_probes::ftrace::bundle::{BundleWriter, CpuRead};
use ferretto_probes::ftrace::format::PageLayout;
use ferretto_probes::ftrace::printk_formats::PrintkFormats;
use ferretto_probes::ftrace::session::{DecodeConfig, SchedEncoding, Session};
use ferretto_probes::ftrace::table::Table;

const PAGE_SIZE: usize = 4096;

const FORMATS: &[(&str, &str, &str)] = &[
    (
        "sched",
        "sched_switch",
        include_str!("../src/ftrace/testdata/formats/sched.sched_switch"),
    ),
    (
        "sched",
        "sched_waking",
        include_str!("../src/ftrace/testdata/formats/sched.sched_waking"),
    ),
    (
        "raw_syscalls",
        "sys_enter",
        include_str!("../src/ftrace/testdata/formats/raw_syscalls.sys_enter"),
    ),
    (
        "raw_syscalls",
        "sys_exit",
        include_str!("../src/ftrace/testdata/formats/raw_syscalls.sys_exit"),
    ),
    (
        "irq",
        "softirq_entry",
        include_str!("../src/ftrace/testdata/formats/irq.softirq_entry"),
    ),
    (
        "irq",
        "softirq_exit",
        include_str!("../src/ftrace/testdata/formats/irq.softirq_exit"),
    ),
    (
        "irq",
        "softirq_raise",
        include_str!("../src/ftrace/testdata/formats/irq.softirq_raise"),
    ),
    (
        "rcu",
        "rcu_utilization",
        include_str!("../src/ftrace/testdata/formats/rcu.rcu_utilization"),
    ),
    (
        "power",
        "cpu_idle",
        include_str!("../src/ftrace/testdata/formats/power.cpu_idle"),
    ),
];

const RECORDED: &[u8] = include_bytes!("../src/ftrace/testdata/mixed.pages");

fn main() {
    divan::main();
}

/// Takes packets and forgets them, as a ring buffer does.
struct Nowhere;

impl PacketSink for Nowhere {
    fn write_packet(&mut self, packet: &[u8]) {
        black_box(packet);
    }

    fn losses(&self) -> u64 {
        0
    }
}

fn table() -> Table {
    let mut table = Table::new(PageLayout::sixty_four_bit(PAGE_SIZE), PrintkFormats::default());
    for (group, name, format) in FORMATS {
        table
            .add(group, name, format)
            .expect("the format files are the kernel's");
    }
    table
}

/// Pages as a busy machine fills them: wakings and switches in a random order, at random times, of threads that are
/// drawn with a preference for some. Always the same ones.
fn busy_pages(pages: usize) -> (Vec<u8>, usize) {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |limit: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % limit
    };
    let (mut bytes, mut events, mut now) = (Vec::new(), 0, 1_000_000_000_000_u64);
    for _ in 0..pages {
        let mut data = Vec::new();
        let start = now;
        while data.len() < PAGE_SIZE - 16 - 68 {
            // Half of all picks go to an eighth of the threads.
            let thread = if random(2) == 0 { random(25) } else { random(200) };
            let pid = if thread == 0 { 0 } else { 300 + thread as i32 * 17 };
            let mut name = [0u8; 16];
            let text = format!("worker-{}", thread % 40);
            name[..text.len()].copy_from_slice(text.as_bytes());
            let magnitude = 8 + random(10);
            let delta = 500 + random(1 << magnitude);
            now += delta;
            let is_switch = random(5) < 3;
            let words: u32 = if is_switch { 16 } else { 9 };
            data.extend((words | (delta as u32) << 5).to_le_bytes());
            let mut payload = vec![0u8; words as usize * 4];
            if is_switch {
                payload[..2].copy_from_slice(&372u16.to_le_bytes());
                payload[32] = [0, 1, 1, 1, 2][random(5) as usize];
                payload[40..56].copy_from_slice(&name);
                payload[56..60].copy_from_slice(&pid.to_le_bytes());
                payload[60..64].copy_from_slice(&120i32.to_le_bytes());
            } else {
                payload[..2].copy_from_slice(&375u16.to_le_bytes());
                payload[8..24].copy_from_slice(&name);
                payload[24..28].copy_from_slice(&pid.to_le_bytes());
                payload[28..32].copy_from_slice(&120i32.to_le_bytes());
                payload[32] = random(4) as u8;
            }
            data.extend(payload);
            events += 1;
        }
        bytes.extend(start.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(&data);
        bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE), 0);
    }
    (bytes, events)
}

fn run(bencher: Bencher<'_, '_>, pages: &[u8], events: usize, config: impl Fn(&Table) -> DecodeConfig) {
    let table = table();
    let mut session = Session::new(&table, config(&table));
    let mut writer = BundleWriter::default();
    let read = CpuRead {
        cpu: 0,
        pages,
        page_size: PAGE_SIZE,
        clock: None,
    };
    bencher.counter(ItemsCount::new(events)).bench_local(|| {
        writer.encode(&table, &mut session, black_box(&read), None, &mut Nowhere);
        session.metadata_mut().clear();
    });
}

fn of_names(table: &Table, names: &[&str]) -> DecodeConfig {
    let events = table
        .plans()
        .filter(|plan| names.contains(&plan.name.as_str()))
        .map(|plan| plan.id)
        .collect();
    DecodeConfig {
        events,
        ..DecodeConfig::default()
    }
}

/// The main job: scheduler events in columns.
#[divan::bench]
fn sched_compact(bencher: Bencher<'_, '_>) {
    let (pages, events) = busy_pages(32);
    run(bencher, &pages, events, |table| {
        of_names(table, &["sched_switch", "sched_waking"])
    });
}

/// The same, one message per event.
#[divan::bench]
fn sched_verbose(bencher: Bencher<'_, '_>) {
    let (pages, events) = busy_pages(32);
    run(bencher, &pages, events, |table| DecodeConfig {
        sched_encoding: SchedEncoding::Verbose,
        ..of_names(table, &["sched_switch", "sched_waking"])
    });
}

/// Pages full of events that another session asked for.
#[divan::bench]
fn nothing_wanted(bencher: Bencher<'_, '_>) {
    let (pages, events) = busy_pages(32);
    run(bencher, &pages, events, |table| of_names(table, &["cpu_idle"]));
}

/// System calls, softirqs and self-described events of a recording.
#[divan::bench]
fn recorded_mixture(bencher: Bencher<'_, '_>) {
    let names: Vec<&str> = FORMATS.iter().map(|(_, name, _)| *name).collect();
    run(bencher, RECORDED, 262, |table| of_names(table, &names));
}
