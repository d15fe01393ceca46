//! Text files of tracefs: each parser reads the same text, and when it is the format of an event, arbitrary bytes are
//! encoded as such events.
//!
//! The first byte of the input chooses the group, the text goes up to a zero byte, events follow.

#![no_main]

use ferretto_fuzz::{Input, assert_message};
use ferretto_probes::ftrace::bundle::{BundleWriter, CpuRead};
use ferretto_probes::ftrace::format::{EventFormat, PageLayout, check_record_header};
use ferretto_probes::ftrace::generic::GenericEncoding;
use ferretto_probes::ftrace::kallsyms::KernelSymbols;
use ferretto_probes::ftrace::printk_formats::PrintkFormats;
use ferretto_probes::ftrace::session::{DecodeConfig, SchedEncoding, Session};
use ferretto_probes::ftrace::stats::{CpuStats, KprobeStats};
use ferretto_probes::ftrace::table::Table;
use ferretto_wire::Reader;
use libfuzzer_sys::fuzz_target;

const PAGE_SIZE: usize = 4096;

const GROUPS: [&str; 8] = [
    "sched",
    "task",
    "ftrace",
    "irq",
    "power",
    "raw_syscalls",
    "block",
    "fuzz",
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let end = input
        .0
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(input.0.len());
    let Ok(text) = std::str::from_utf8(input.bytes(end)) else {
        return;
    };
    input.byte();
    if let Ok(layout) = PageLayout::parse(text) {
        assert!(layout.page_size() > 0);
    }
    let _ = check_record_header(text);
    let printk_formats = PrintkFormats::parse(text);
    let _ = printk_formats.lookup(0);
    let _ = CpuStats::parse(0, text);
    let _ = KprobeStats::parse(text);
    if let Ok(symbols) = KernelSymbols::parse(text.as_bytes()) {
        let mut name = String::new();
        for address in [0, 0xffff_ffff_8100_0000, u64::MAX] {
            let found = symbols.lookup(address, &mut name);
            assert!(!found || !symbols.is_empty());
        }
    }
    let Ok(format) = EventFormat::parse(text) else {
        return;
    };
    assert!(format.id != 0 && !format.name.is_empty());
    for field in format.common.iter().chain(&format.fields) {
        assert_eq!(
            u32::from(field.end()),
            u32::from(field.offset) + u32::from(field.size)
        );
        let _ = field.kind();
    }
    let mut table = Table::new(PageLayout::sixty_four_bit(PAGE_SIZE), printk_formats);
    let group = GROUPS[usize::from(choice) % GROUPS.len()];
    let added = if choice & 0x80 == 0 {
        table.add(group, &format.name, text)
    } else {
        table.add_kprobe(group, &format.name, text)
    };
    if let Ok(id) = added {
        encode(&table, id, choice, input.0);
    }
});

/// Encodes `bytes` as one event with this id, and as a short one behind it.
fn encode(table: &Table, id: u16, choice: u8, bytes: &[u8]) {
    let mut records = Vec::new();
    for bytes in [bytes, &bytes[..bytes.len().min(6)]] {
        let mut payload = [&id.to_le_bytes(), bytes].concat();
        payload.resize(payload.len().next_multiple_of(4).min(1024), 0);
        // Type 0: the length follows, and counts its own four bytes.
        records.extend(0u32.to_le_bytes());
        records.extend((payload.len() as u32 + 4).to_le_bytes());
        records.extend(payload);
    }
    let mut page = 1_000u64.to_le_bytes().to_vec();
    page.extend((records.len() as u64).to_le_bytes());
    page.extend(records);
    page.resize(PAGE_SIZE, 0);
    let config = DecodeConfig {
        events: [id].into(),
        sched_encoding: if choice & 8 == 0 {
            SchedEncoding::Compact
        } else {
            SchedEncoding::Verbose
        },
        generic_encoding: if choice & 16 == 0 {
            GenericEncoding::Descriptors
        } else {
            GenericEncoding::Names
        },
        ..DecodeConfig::default()
    };
    let mut session = Session::new(table, config);
    let read = CpuRead {
        cpu: 0,
        pages: &page,
        page_size: PAGE_SIZE,
        clock: None,
    };
    let mut packets: Vec<Vec<u8>> = Vec::new();
    BundleWriter::default().encode(table, &mut session, &read, None, &mut packets);
    for field in packets.iter().flat_map(|packet| Reader::new(packet)) {
        let bundle = field.expect("a packet").value.as_bytes().expect("a bundle");
        for field in Reader::new(bundle).map(|field| field.expect("a bundle")) {
            field.value.as_bytes().into_iter().for_each(assert_message);
        }
    }
}
