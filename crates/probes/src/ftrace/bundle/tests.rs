use super::super::fixtures::{
    Line, MIXED, PAGE_SIZE, Recording, SCHED, descriptor_fields, table, to_microseconds,
};
use super::super::print_filter::{Pattern, PrintFilter, Rule};
use super::super::session::{DecodeConfig, KprobeType, SchedEncoding};
use super::*;
use ferretto_proto::messages::{FtraceEvent, FtraceEventBundle, Message, TracePacket};
use ferretto_proto::messages::{
    ftrace_event::Event, generic_ftrace_event::field::Value as GenericValue, trace_packet::Data,
};
use ferretto_proto::write;
use ferretto_wire::{Reader, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;

mod live;
mod rendering;

/// Everything that a table knows, compact and dense.
fn everything(table: &Table) -> DecodeConfig {
    DecodeConfig {
        events: table.plans().map(|plan| plan.id).collect(),
        ..DecodeConfig::default()
    }
}

fn only(table: &Table, names: &[&str]) -> DecodeConfig {
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

fn read_of(pages: &[u8]) -> CpuRead<'_> {
    CpuRead {
        cpu: 0,
        pages,
        page_size: PAGE_SIZE,
        clock: None,
    }
}

fn encode(table: &Table, session: &mut Session, read: &CpuRead<'_>) -> Vec<TracePacket> {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    BundleWriter::default().encode(table, session, read, None, &mut packets);
    packets
        .iter()
        .map(|packet| TracePacket::decode_from_slice(packet).unwrap())
        .collect()
}

fn bundle_of(packet: &TracePacket) -> &FtraceEventBundle {
    match &packet.data {
        Some(Data::FtraceEvents(bundle)) => bundle,
        other => panic!("not a bundle: {other:?}"),
    }
}

fn bundles(table: &Table, session: &mut Session, read: &CpuRead<'_>) -> Vec<FtraceEventBundle> {
    encode(table, session, read)
        .iter()
        .map(|packet| bundle_of(packet).clone())
        .collect()
}

/// The one bundle of a whole recording.
fn bundle(table: &Table, config: DecodeConfig, recording: &Recording) -> FtraceEventBundle {
    let mut bundles = bundles(table, &mut Session::new(table, config), &read_of(recording.pages));
    assert_eq!(
        bundles.len(),
        1,
        "pages without losses between them are one bundle"
    );
    bundles.remove(0)
}

#[test]
fn descriptors_are_repeated_in_each_bundle_that_needs_them() {
    let table = table();
    let mut session = Session::new(&table, only(&table, &["rcu_utilization"]));
    let mut writer = BundleWriter::default();
    for _ in 0..2 {
        let mut packets: Vec<Vec<u8>> = Vec::new();
        writer.encode(&table, &mut session, &read_of(MIXED.pages), None, &mut packets);
        let packet = TracePacket::decode_from_slice(&packets[0]).unwrap();
        assert_eq!(bundle_of(&packet).generic_event_descriptors.len(), 1);
    }
    let mut other = Session::new(&table, only(&table, &["cpu_idle"]));
    assert!(
        bundles(&table, &mut other, &read_of(MIXED.pages))[0]
            .generic_event_descriptors
            .is_empty()
    );
}

#[test]
fn sessions_get_what_they_asked_for_and_nothing_else() {
    let table = table();
    let count = |names: &[&str]| bundle(&table, only(&table, names), &MIXED).event.len();
    assert_eq!(count(&["cpu_idle"]), MIXED.lines_of("cpu_idle").len());
    assert_eq!(
        count(&["cpu_idle", "sys_exit"]),
        MIXED.lines_of("cpu_idle").len() + MIXED.lines_of("sys_exit").len()
    );
    let mut session = Session::new(&table, only(&table, &["irq_handler_entry"]));
    assert_eq!(
        encode(&table, &mut session, &read_of(MIXED.pages)),
        [],
        "no packet without a reason"
    );
}

#[test]
fn wakings_without_switches_are_not_compact() {
    let table = table();
    let bundle = bundle(&table, only(&table, &["sched_waking"]), &SCHED);
    assert!(!bundle.compact_sched.is_set());
    assert_eq!(bundle.event.len(), SCHED.lines_of("sched_waking").len());
}

#[test]
fn bundles_say_where_the_one_before_ended() {
    let table = table();
    let mut session = Session::new(&table, only(&table, &["sched_switch"]));
    let mut ends = vec![0];
    for page in SCHED.pages.chunks(PAGE_SIZE) {
        let bundles = bundles(&table, &mut session, &read_of(page));
        assert_eq!(bundles[0].previous_bundle_end_timestamp, ends.last().copied());
        ends.push(bundles[0].compact_sched.switch_timestamp.iter().sum());
    }
    assert_eq!(session.last_written(0), *ends.last().unwrap());
    assert_eq!(session.last_written(1), 0, "each CPU for itself");
}

#[test]
fn a_loss_starts_a_bundle_of_its_own() {
    let table = table();
    let mut pages = SCHED.pages.to_vec();
    // The topmost bit of the length's lower half, in the second page.
    pages[PAGE_SIZE + 11] |= 0x80;
    let mut session = Session::new(&table, everything(&table));
    let bundles = bundles(&table, &mut session, &read_of(&pages));
    assert_eq!(
        bundles
            .iter()
            .map(|bundle| bundle.lost_events)
            .collect::<Vec<_>>(),
        [None, Some(true)]
    );
    let first = &bundles[0];
    let last_event = first
        .event
        .iter()
        .filter_map(|event| event.timestamp)
        .max()
        .unwrap();
    let last_switch = first.compact_sched.switch_timestamp.iter().sum();
    let last_waking = first.compact_sched.waking_timestamp.iter().sum();
    assert_eq!(
        bundles[1].previous_bundle_end_timestamp,
        Some(last_event.max(last_switch).max(last_waking))
    );

    let mut uninterested = Session::new(&table, only(&table, &["irq_handler_entry"]));
    let told = self::bundles(&table, &mut uninterested, &read_of(&pages));
    assert_eq!(told.len(), 1, "a loss is told even if nothing else is");
    assert_eq!(told[0].lost_events, Some(true));
}

#[test]
fn larger_sub_buffers_are_read_as_pages_are() {
    // A buffer page of 16 KiB with the records of two pages, and between them the time of the second.
    let [first, second] = [0, 1].map(|page| &SCHED.pages[page * PAGE_SIZE..][..PAGE_SIZE]);
    let data = |page: &'static [u8]| {
        let len = u32::from_le_bytes(page[8..12].try_into().unwrap()) as usize;
        &page[16..16 + len]
    };
    let time = u64::from_le_bytes(second[..8].try_into().unwrap());
    let time_stamp = [(time as u32 & 0x7ff_ffff) << 5 | 31, (time >> 27) as u32]
        .map(u32::to_le_bytes)
        .concat();
    let records = [data(first), &time_stamp, data(second)].concat();
    let mut large = [&first[..8], &(records.len() as u64).to_le_bytes(), &records].concat();
    large.resize(4 * PAGE_SIZE, 0);

    let table = table();
    let read = CpuRead {
        page_size: large.len(),
        ..read_of(&large)
    };
    let merged = bundles(&table, &mut Session::new(&table, everything(&table)), &read);
    assert_eq!(merged, [bundle(&table, everything(&table), &SCHED)]);
}

#[test]
fn broken_pages_are_reported_and_the_next_one_is_read() {
    let table = table();
    let mut pages = SCHED.pages.to_vec();
    let timestamp = u64::from_le_bytes(pages[..8].try_into().unwrap());
    // A length beyond the page.
    pages[8..12].copy_from_slice(&5000u32.to_le_bytes());
    let mut session = Session::new(&table, everything(&table));
    let bundles = bundles(&table, &mut session, &read_of(&pages));
    let error = &bundles[0].error[0];
    assert_eq!(
        (error.timestamp, error.status.map(|status| status as i32)),
        (Some(timestamp), Some(4))
    );
    assert!(bundles[0].compact_sched.is_set(), "of the second page");
    assert_eq!(
        session.parse_errors().iter().collect::<Vec<_>>(),
        [&ParseStatus::InvalidPageHeader]
    );
}

#[test]
fn what_precedes_an_error_is_kept() {
    let table = table();
    let mut pages = SCHED.pages[..PAGE_SIZE].to_vec();
    let id = table.find("sched", "sched_switch").unwrap().id;
    let at = (16..PAGE_SIZE)
        .rev()
        .find(|at| pages[*at..].starts_with(&id.to_le_bytes()) && pages[*at - 4] & 0x1f == 16)
        .unwrap();
    // The last switch claims to be four bytes long.
    pages[at - 4] = pages[at - 4] & !0x1f | 1;
    let mut session = Session::new(&table, only(&table, &["sched_switch"]));
    let bundles = bundles(&table, &mut session, &read_of(&pages));
    assert_eq!(
        bundles[0].error[0].status.map(|status| status as i32),
        Some(ParseStatus::ShortCompactEvent as i32)
    );
    assert!(bundles[0].compact_sched.switch_timestamp.len() > 10);
    assert_eq!(
        session.last_written(0),
        0,
        "a broken page's end is not vouched for"
    );
}

#[test]
fn clocks_other_than_boot_time_come_with_a_snapshot() {
    let table = table();
    let clock = Some(ClockSnapshot {
        clock: FtraceClock::FTRACE_CLOCK_MONO_RAW,
        ftrace_timestamp: 17,
        boot_timestamp: -1,
    });
    let mut session = Session::new(&table, everything(&table));
    let read = CpuRead {
        cpu: 3,
        clock,
        ..read_of(SCHED.pages)
    };
    let bundle = &bundles(&table, &mut session, &read)[0];
    assert_eq!(bundle.ftrace_clock.map(|clock| clock as i32), Some(4));
    assert_eq!(
        (bundle.cpu, bundle.ftrace_timestamp, bundle.boot_timestamp),
        (Some(3), Some(17), Some(-1))
    );
}

#[test]
fn prints_are_filtered_by_their_text() {
    let table = table();
    let rule = Rule {
        pattern: Pattern::AtraceMessage {
            kind: b"C".into(),
            prefix: b"round|2".into(),
        },
        verdict: Verdict::Deny,
    };
    let config = DecodeConfig {
        print_filter: Some(PrintFilter { rules: vec![rule] }),
        ..only(&table, &["print"])
    };
    let bundle = bundle(&table, config, &SCHED);
    let text = |event: &FtraceEvent| match &event.event {
        Some(Event::Print(print)) => print.buf.as_deref().unwrap().trim_end().to_owned(),
        other => panic!("{other:?}"),
    };
    let kept: Vec<String> = bundle.event.iter().map(text).collect();
    let all: Vec<String> = SCHED
        .lines_of("tracing_mark_write")
        .into_iter()
        .map(|line| line.text)
        .collect();
    assert_eq!(kept.len() + 1, all.len());
    assert_eq!(
        kept,
        all.into_iter()
            .filter(|text| !text.ends_with("round|2"))
            .collect::<Vec<_>>()
    );
}

#[test]
fn threads_and_new_names_are_noticed_in_passing() {
    let table = table();
    let mut session = Session::new(&table, only(&table, &["sched_switch", "task_rename"]));
    encode(&table, &mut session, &read_of(SCHED.pages));
    let switched_to: std::collections::BTreeSet<i32> = SCHED
        .lines_of("sched_switch")
        .iter()
        .map(|line| line.value("next_pid").parse().unwrap())
        .filter(|tid| *tid != 0)
        .collect();
    let renamed: std::collections::BTreeSet<i32> = SCHED
        .lines_of("task_rename")
        .iter()
        .map(|line| line.tid)
        .collect();
    let seen: std::collections::BTreeSet<i32> = session.metadata().threads().iter().copied().collect();
    assert_eq!(seen, switched_to.union(&renamed).copied().collect());
    assert_eq!(session.metadata().renamed_threads(), &renamed);
}

#[test]
fn opened_files_are_noted_if_asked_for() {
    let table = table();
    const OPENAT: i64 = 257;
    let config = DecodeConfig {
        syscalls_returning_fd: [OPENAT].into(),
        ..only(&table, &["sys_exit"])
    };
    let mut session = Session::new(&table, config);
    encode(&table, &mut session, &read_of(MIXED.pages));
    let lines = MIXED.lines_of("sys_exit");
    let result = |line: &Line| line.text.rsplit_once(' ').unwrap().1.parse::<i32>().unwrap();
    let expected = lines
        .iter()
        .map(|line| (line.tid, result(line)))
        .filter_map(|(tid, fd)| Some((tid, u64::try_from(fd).ok()?)))
        .collect();
    assert_eq!(session.metadata().opened_fds(), &expected);
    assert!(
        lines.iter().any(|line| result(line) < 0),
        "some failed, and are not among them"
    );
}

#[test]
fn kprobes_say_their_name_and_what_they_stand_for() {
    let mut table = table();
    let format = super::super::fixtures::format_of("rcu", "rcu_utilization");
    table.remove("rcu", "rcu_utilization");
    let id = table.add_kprobe("perfetto_kprobes", "my_probe", format).unwrap();
    let config = DecodeConfig {
        kprobes: [(id, KprobeType::End)].into(),
        events: [id].into(),
        ..DecodeConfig::default()
    };
    let bundle = bundle(&table, config, &MIXED);
    assert_eq!(bundle.event.len(), MIXED.lines_of("rcu_utilization").len());
    let Some(Event::KprobeEvent(probe)) = &bundle.event[0].event else {
        panic!("{:?}", bundle.event[0])
    };
    assert_eq!(
        (probe.name.as_deref(), probe.r#type.map(|ty| ty as i32)),
        (Some("my_probe"), Some(2))
    );
}

/// Knows the functions of the recorded work items only.
struct Functions;

impl SymbolSource for Functions {
    fn lookup(&self, address: u64, name: &mut String) -> bool {
        // Heap addresses are far below those of the kernel's text.
        name.clear();
        name.push_str("function_");
        name.push_str(&(address & 0xfff).to_string());
        address > 0xffff_ffff_8000_0000
    }
}

#[test]
fn kernel_functions_are_named_and_addresses_stay_secret() {
    let table = table();
    let mut session = Session::new(
        &table,
        only(&table, &["workqueue_execute_start", "workqueue_execute_end"]),
    );
    let mut writer = BundleWriter::default();
    let mut run = |session: &mut Session| {
        let mut packets: Vec<Vec<u8>> = Vec::new();
        writer.encode(
            &table,
            session,
            &read_of(MIXED.pages),
            Some(&Functions),
            &mut packets,
        );
        TracePacket::decode_from_slice(&packets[0]).unwrap()
    };
    let first = run(&mut session);
    let bundle = bundle_of(&first);
    let Some(Event::WorkqueueExecuteStart(start)) = &bundle.event[0].event else {
        panic!("{:?}", bundle.event[0])
    };
    assert_eq!((start.work, start.function), (Some(1), Some(2)));
    let symbols = &first.interned_data.kernel_symbols;
    assert_eq!(
        symbols.len(),
        1,
        "the function, and not the work item on the heap"
    );
    assert_eq!(symbols[0].iid, Some(2));
    assert!(
        symbols[0]
            .str
            .as_deref()
            .is_some_and(|name| name.starts_with(b"function_"))
    );
    assert_eq!(first.sequence_flags, Some(1), "the first names void all before");

    let second = run(&mut session);
    assert!(
        !second.interned_data.is_set() && second.sequence_flags.is_none(),
        "named already"
    );
    session.metadata_mut().clear();
    let third = run(&mut session);
    assert_eq!(
        (third.interned_data.kernel_symbols.len(), third.sequence_flags),
        (1, Some(1))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_pages_give_packets_that_can_be_read(
        damage in prop::collection::vec((0usize..5 * PAGE_SIZE, any::<u8>()), 0..60),
        cut in 0usize..PAGE_SIZE,
        verbose: bool,
        names: bool,
    ) {
        let table = table();
        let mut pages = [SCHED.pages, MIXED.pages].concat();
        for (at, byte) in damage {
            pages[at] = byte;
        }
        pages.truncate(pages.len() - cut);
        let mut config = everything(&table);
        config.sched_encoding = if verbose { SchedEncoding::Verbose } else { SchedEncoding::Compact };
        config.generic_encoding = if names { GenericEncoding::Names } else { GenericEncoding::Descriptors };
        let mut session = Session::new(&table, config);
        let mut packets: Vec<Vec<u8>> = Vec::new();
        BundleWriter::default().encode(&table, &mut session, &read_of(&pages), Some(&Functions), &mut packets);
        for packet in &packets {
            for field in Reader::new(packet) {
                let bundle = field.unwrap();
                if bundle.number == write::TracePacket::FTRACE_EVENTS {
                    let fields: Vec<_> = Reader::new(bundle.value.as_bytes().unwrap()).collect::<Result<_, _>>().unwrap();
                    let errors = fields.iter().filter(|field| field.number == write::FtraceEventBundle::ERROR).count();
                    prop_assert!(errors == 0 || !session.parse_errors().is_empty());
                    let events = fields.iter().filter(|field| field.number == write::FtraceEventBundle::EVENT);
                    for event in events {
                        prop_assert!(Reader::new(event.value.as_bytes().unwrap()).all(|field| field.is_ok()));
                    }
                }
            }
        }
    }

    #[test]
    fn sessions_do_not_disturb_each_other(keep in prop::collection::vec(any::<bool>(), 27)) {
        let table = table();
        let all = only(&table, &table.plans().zip(&keep).filter(|(_, keep)| **keep).map(|(plan, _)| plan.name.as_str()).collect::<Vec<_>>());
        let alone = encode(&table, &mut Session::new(&table, all.clone()), &read_of(MIXED.pages));
        let mut writer = BundleWriter::default();
        let mut ignored: Vec<Vec<u8>> = Vec::new();
        writer.encode(&table, &mut Session::new(&table, everything(&table)), &read_of(SCHED.pages), Some(&Functions), &mut ignored);
        let mut packets: Vec<Vec<u8>> = Vec::new();
        writer.encode(&table, &mut Session::new(&table, all), &read_of(MIXED.pages), None, &mut packets);
        let after_others: Vec<_> = packets.iter().map(|packet| TracePacket::decode_from_slice(packet).unwrap()).collect();
        prop_assert_eq!(after_others, alone);
    }
}
