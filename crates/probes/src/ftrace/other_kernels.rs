//! Test data: events of other kernels than the one that runs the tests. It has the layouts of old kernels, 32-bit ones, kernels with larger pages
//! and patched ones, and the expected trace for each.
//!
//! `testdata/kernels` has a file for each kernel. A line beginning with `page` has the layout of `events/header_page`, `common` a field that each
//! event has, and `printk` a constant string with its address. A line without indentation is an event: group, name, id and the field in
//! `FtraceEvent`, or `generic`. The lines below it are its fields: the declaration, `@offset+size` with an `s` if the field is signed, and the
//! value that the test records. `->` introduces the value in the trace if it differs: a value (a device number, a string at an address), `#n` for
//! the n-th address, or `-` if the field is left out. The layouts are those of the kernels; the values are made up.

use super::bundle::{BundleWriter, CpuRead};
use super::fixtures::descriptor_fields;
use super::format::PageLayout;
use super::printk_formats::PrintkFormats;
use super::session::{DecodeConfig, SchedEncoding, Session};
use super::table::Table;
use ferretto_proto::messages::{self, Message};
use ferretto_proto::text;
use ferretto_proto::write::ftrace_event_bundle::GenericEventDescriptor;
use ferretto_proto::write::{FtraceEventBundle, TracePacket};
use ferretto_wire::{Reader, Value};
use std::collections::BTreeMap;

macro_rules! kernels {
    ($($name:literal),* $(,)?) => {
        const KERNELS: &[(&str, &str)] = &[$(($name, include_str!(concat!("testdata/kernels/", $name, ".txt")))),*];
    };
}

kernels! {
    "linux-2.6.38-i386", "linux-3.4-arm", "linux-3.10-arm", "linux-3.10-arm64", "linux-4.4-arm64", "linux-4.9-rt-arm64",
    "linux-5.10-arm64-64k", "linux-5.15-rt-ppc64le-64k", "linux-6.6-riscv32", "linux-6.18-x86_64-16k", "pkvm-arm64",
}

const TIMESTAMP: u64 = 123_456_789_012;
const TID: i32 = 4242;

struct Kernel {
    name: &'static str,
    /// Size of `commit`, then offset and size of `data`.
    page: (usize, usize, usize),
    printk_formats: String,
    common: Vec<Field>,
    events: Vec<Event>,
}

struct Event {
    group: &'static str,
    name: &'static str,
    id: u16,
    /// The field in `FtraceEvent`, or `generic`.
    message: &'static str,
    fields: Vec<Field>,
}

struct Field {
    declaration: &'static str,
    offset: usize,
    size: usize,
    is_signed: bool,
    value: &'static str,
    expected: &'static str,
}

impl Field {
    fn parse(line: &'static str) -> Field {
        let (declaration, rest) = line.trim().split_once(" @").unwrap();
        let (place, values) = rest.split_once(" = ").unwrap_or((rest, ""));
        let (offset, size) = place.split_once('+').unwrap();
        let (value, expected) = values.split_once(" -> ").unwrap_or((values, values));
        Field {
            declaration,
            offset: offset.parse().unwrap(),
            size: size.trim_end_matches('s').parse().unwrap(),
            is_signed: size.ends_with('s'),
            value,
            expected,
        }
    }

    fn name(&self) -> &'static str {
        let without_bounds = match self.declaration.strip_suffix(']') {
            Some(rest) => rest.rsplit_once('[').unwrap().0,
            None => self.declaration,
        };
        without_bounds.rsplit(' ').next().unwrap()
    }

    /// As the kernel prints it.
    fn line(&self) -> String {
        let Field {
            declaration,
            offset,
            size,
            is_signed,
            ..
        } = self;
        let signed = u8::from(*is_signed);
        format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
    }

    fn has_no_value(&self) -> bool {
        self.expected == "-"
    }

    /// Puts the value into an event, and data that lies elsewhere behind the event's fields.
    fn write(&self, event: &mut Vec<u8>) {
        let place = self.offset..self.offset + self.size;
        if let Some(string) = self
            .value
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
        {
            match self.declaration.split(' ').next() {
                Some(descriptor @ ("__data_loc" | "__rel_loc")) => {
                    let has_nul = self.declaration.contains("_loc char[]");
                    let origin = if descriptor == "__rel_loc" { place.end } else { 0 };
                    let (start, len) = (event.len() - origin, string.len() + usize::from(has_nul));
                    event[place].copy_from_slice(&((len << 16 | start) as u32).to_le_bytes());
                    event.extend(string.bytes());
                    event.extend(has_nul.then_some(0));
                }
                _ if self.size == 0 => event.extend(string.bytes().chain([0])),
                _ => event[place][..string.len()].copy_from_slice(string.as_bytes()),
            }
            return;
        }
        if self.value == "?" {
            // No reader looks at these bytes.
            return event[place].fill(0xa5);
        }
        let words: Vec<&str> = self.value.split(' ').collect();
        let width = self.size / words.len();
        for (word, place) in words.iter().zip(event[place].chunks_mut(width)) {
            let number = match word.strip_prefix("0x") {
                Some(digits) => i128::from_str_radix(digits, 16),
                None => word.parse(),
            };
            place.copy_from_slice(&number.unwrap().to_le_bytes()[..width]);
        }
    }
}

impl Kernel {
    fn parse((name, text): &(&'static str, &'static str)) -> Kernel {
        let mut kernel = Kernel {
            name,
            page: (0, 0, 0),
            printk_formats: String::new(),
            common: Vec::new(),
            events: Vec::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with(' ') {
                kernel.events.last_mut().unwrap().fields.push(Field::parse(line));
                continue;
            }
            match line.split_once(' ').unwrap() {
                ("page", layout) => {
                    let numbers: Vec<usize> = layout
                        .split(['+', ' '])
                        .filter_map(|word| word.parse().ok())
                        .collect();
                    kernel.page = (numbers[0], numbers[1], numbers[2]);
                }
                ("common", field) => kernel.common.push(Field::parse(field)),
                ("printk", string) => {
                    let (address, string) = string.split_once(' ').unwrap();
                    kernel.printk_formats += &format!("{address} : {string}\n");
                }
                (event, rest) => {
                    let (group, name) = event.split_once('/').unwrap();
                    let (id, message) = rest.split_once(' ').unwrap();
                    let id = id.parse().unwrap();
                    kernel.events.push(Event {
                        group,
                        name,
                        id,
                        message,
                        fields: Vec::new(),
                    });
                }
            }
        }
        kernel
    }

    fn header_page(&self) -> String {
        let (commit, offset, size) = self.page;
        format!(
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield: local_t commit;\toffset:8;\tsize:{commit};\tsigned:1;\n\
             \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
             \tfield: char data;\toffset:{offset};\tsize:{size};\tsigned:0;\n"
        )
    }

    fn format_file(&self, event: &Event) -> String {
        let lines = |fields: &[Field]| fields.iter().map(Field::line).collect::<String>();
        let Event { name, id, .. } = event;
        let (common, own) = (lines(&self.common), lines(&event.fields));
        format!("name: {name}\nID: {id}\nformat:\n{common}\n{own}\nprint fmt: \"%d\", REC->common_pid\n")
    }

    /// All events of the kernel in one table.
    fn table(&self) -> Table {
        let layout = PageLayout::parse(&self.header_page()).unwrap();
        let mut table = Table::new(layout, PrintkFormats::parse(&self.printk_formats));
        for event in &self.events {
            let format = self.format_file(event);
            assert_eq!(
                table.add(event.group, event.name, &format),
                Ok(event.id),
                "{format}"
            );
        }
        table
    }

    fn has_thread(&self) -> bool {
        self.common.iter().any(|field| field.name() == "common_pid")
    }

    /// The event as it lies in the ring buffer.
    fn payload(&self, event: &Event) -> Vec<u8> {
        let fields = || self.common.iter().chain(&event.fields);
        let size = fields().map(|field| field.offset + field.size).max().unwrap();
        // Holes between the fields are not always zero.
        let mut bytes = vec![0xee; size];
        for field in &self.common {
            let value: &[u8] = match field.name() {
                "common_type" => &event.id.to_le_bytes(),
                "common_pid" => &TID.to_le_bytes(),
                _ => &[0xff; 8][..field.size],
            };
            bytes[field.offset..][..field.size].copy_from_slice(value);
        }
        for field in &event.fields {
            if field.value.starts_with('"') && field.size > 4 {
                bytes[field.offset..][..field.size].fill(0);
            }
            field.write(&mut bytes);
        }
        bytes
    }

    /// A page with one event.
    fn page(&self, event: &Event) -> Vec<u8> {
        let mut payload = self.payload(event);
        payload.resize(payload.len().next_multiple_of(4), 0);
        let words = payload.len() as u32 / 4;
        let header = match words {
            0..=28 => vec![words],
            _ => vec![0, payload.len() as u32 + 4],
        };
        let mut data: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        data.extend(payload);
        let (commit, offset, size) = self.page;
        let mut page = TIMESTAMP.to_le_bytes().to_vec();
        page.extend(&(data.len() as u64).to_le_bytes()[..commit]);
        assert_eq!(page.len(), offset);
        page.extend(data);
        page.resize(offset + size, 0);
        page
    }

    /// The bundle that a session that wants `events` makes of the page with one event.
    fn bundle(&self, event: &Event, config: DecodeConfig) -> Vec<u8> {
        let table = self.table();
        let page = self.page(event);
        let read = CpuRead {
            cpu: 0,
            pages: &page,
            page_size: table.layout().page_size(),
            clock: None,
        };
        let mut packets: Vec<Vec<u8>> = Vec::new();
        let mut session = Session::new(&table, config);
        let records = BundleWriter::default().encode(&table, &mut session, &read, None, &mut packets);
        assert_eq!(records, Some(1), "{}", self.what(event));
        let [packet] = &packets[..] else {
            panic!("{}: {} packets", self.what(event), packets.len())
        };
        field(packet, TracePacket::FTRACE_EVENTS).unwrap().to_vec()
    }

    fn what(&self, event: &Event) -> String {
        format!("{}/{} of {}", event.group, event.name, self.name)
    }
}

impl Event {
    /// Names of the fields in the trace, with their values as text.
    fn expected(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let in_trace = self.fields.iter().filter(|field| !field.has_no_value());
        in_trace.flat_map(|field| {
            let values = if field.expected.starts_with('"') {
                vec![field.expected]
            } else {
                field.expected.split(' ').collect()
            };
            values
                .into_iter()
                .map(|value| (field.name(), value.trim_start_matches('#')))
        })
    }
}

/// The bytes of a message's field.
fn field(message: &[u8], number: u32) -> Option<&[u8]> {
    let mut fields = Reader::new(message).map(Result::unwrap);
    fields.find(|field| field.number == number)?.value.as_bytes()
}

/// The fields of an event and those of the message in it, by ascending number.
fn sorted(event: &[u8]) -> Vec<(u32, Vec<(u32, String)>)> {
    let sorted_by_number = |message| {
        let mut fields: Vec<_> = Reader::new(message).map(Result::unwrap).collect();
        fields.sort_by_key(|field| field.number);
        fields
    };
    let inner = |message| {
        let fields = sorted_by_number(message).into_iter();
        fields.map(|field| (field.number, shown(field.value))).collect()
    };
    let fields = sorted_by_number(event).into_iter();
    fields
        .map(|field| match field.value.as_bytes() {
            Some(message) => (field.number, inner(message)),
            None => (field.number, vec![(0, shown(field.value))]),
        })
        .collect()
}

fn kernels() -> Vec<Kernel> {
    KERNELS.iter().map(Kernel::parse).collect()
}

fn verbose(event: &Event) -> DecodeConfig {
    DecodeConfig {
        events: [event.id].into(),
        sched_encoding: SchedEncoding::Verbose,
        ..DecodeConfig::default()
    }
}

#[test]
fn pages_of_each_kernel_are_laid_out_as_its_header_page_says() {
    for kernel in kernels() {
        let layout = PageLayout::parse(&kernel.header_page()).unwrap();
        let (commit, offset, size) = kernel.page;
        assert_eq!(
            (layout.commit_size, layout.data_offset),
            (commit, offset),
            "{}",
            kernel.name
        );
        assert_eq!(layout.page_size(), offset + size, "{}", kernel.name);
    }
}

#[test]
fn typed_events_of_each_kernel_have_the_values_that_it_recorded() {
    let mut checked = 0;
    for kernel in kernels() {
        for event in kernel.events.iter().filter(|event| event.message != "generic") {
            let mut expected = format!("timestamp: {TIMESTAMP}\n");
            if kernel.has_thread() {
                expected += &format!("pid: {TID}\n");
            }
            let fields: String = event
                .expected()
                .map(|(name, value)| format!("{name}: {value}\n"))
                .collect();
            expected += &format!("{} {{\n{fields}}}", event.message);
            let encoded = text::encode(&expected, "perfetto.protos.FtraceEvent")
                .unwrap_or_else(|errors| panic!("{}", errors.render(&kernel.what(event))));
            let bundle = kernel.bundle(event, verbose(event));
            let found = field(&bundle, FtraceEventBundle::EVENT).unwrap();
            assert_eq!(sorted(found), sorted(&encoded), "{}", kernel.what(event));
            checked += 1;
        }
    }
    assert!(checked > 400, "{checked} events");
}

#[test]
fn other_events_of_each_kernel_describe_themselves() {
    let mut checked = 0;
    for kernel in kernels() {
        for event in kernel.events.iter().filter(|event| event.message == "generic") {
            let bundle = kernel.bundle(event, verbose(event));
            let descriptor = field(&bundle, FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS).unwrap();
            assert_eq!(
                field(descriptor, GenericEventDescriptor::GROUP_NAME),
                Some(event.group.as_bytes())
            );
            let described = field(descriptor, GenericEventDescriptor::EVENT_DESCRIPTOR).unwrap();
            let (name, fields) = descriptor_fields(described);
            assert_eq!(name, event.name);
            let number = Reader::new(descriptor)
                .map(Result::unwrap)
                .find(|field| field.number == GenericEventDescriptor::FIELD_ID);
            let number = number.unwrap().value.as_varint().unwrap() as u32;
            let recorded = field(&bundle, FtraceEventBundle::EVENT).unwrap();
            let names: BTreeMap<u32, &str> = fields
                .iter()
                .map(|(name, number, _)| (*number, name.as_str()))
                .collect();
            let found: Vec<(&str, String)> = Reader::new(field(recorded, number).unwrap())
                .map(Result::unwrap)
                .map(|field| (names[&field.number], shown(field.value)))
                .collect();
            let expected: Vec<(&str, String)> = event
                .expected()
                .map(|(name, value)| (name, as_if_unsigned(value)))
                .collect();
            assert_eq!(found, expected, "{}", kernel.what(event));
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} events");
}

fn shown(value: Value<'_>) -> String {
    match value.as_bytes() {
        Some(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
        None => value.as_varint().unwrap().to_string(),
    }
}

/// Protobuf writes negative numbers as if they were large ones.
fn as_if_unsigned(value: &str) -> String {
    match value.parse::<i64>() {
        Ok(number) => (number as u64).to_string(),
        Err(_) => value.to_owned(),
    }
}

fn wide(values: &[i32]) -> Vec<i64> {
    values.iter().map(|value| i64::from(*value)).collect()
}

#[test]
fn switches_and_wakings_of_each_kernel_fit_the_columns() {
    for kernel in kernels() {
        let find = |name: &str| kernel.events.iter().find(|event| event.name == name);
        let Some(switch) = find("sched_switch") else {
            continue;
        };
        let waking = find("sched_waking");
        let config = DecodeConfig {
            events: [Some(switch), waking]
                .into_iter()
                .flatten()
                .map(|event| event.id)
                .collect(),
            ..DecodeConfig::default()
        };
        let columns = |event: &Event| {
            let bundle = kernel.bundle(event, config.clone());
            assert_eq!(
                field(&bundle, FtraceEventBundle::EVENT),
                None,
                "{}",
                kernel.what(event)
            );
            messages::FtraceEventBundle::decode_from_slice(&bundle)
                .unwrap()
                .compact_sched
        };
        let number = |event: &Event, name: &str| -> i64 {
            let mut values = event.expected().filter(|(field, _)| *field == name);
            values.next().unwrap().1.parse().unwrap()
        };
        let name = |event: &Event, name: &str| {
            let mut values = event.expected().filter(|(field, _)| *field == name);
            values.next().unwrap().1.trim_matches('"').to_owned()
        };
        let of_switch = columns(switch);
        assert_eq!(
            of_switch.intern_table,
            [name(switch, "next_comm")],
            "{}",
            kernel.name
        );
        assert_eq!(of_switch.switch_timestamp, [TIMESTAMP]);
        assert_eq!(
            of_switch.switch_prev_state,
            [number(switch, "prev_state")],
            "{}",
            kernel.name
        );
        assert_eq!(wide(&of_switch.switch_next_pid), [number(switch, "next_pid")]);
        assert_eq!(wide(&of_switch.switch_next_prio), [number(switch, "next_prio")]);
        let Some(waking) = waking else { continue };
        let of_waking = columns(waking);
        assert_eq!(of_waking.intern_table, [name(waking, "comm")], "{}", kernel.name);
        assert_eq!(wide(&of_waking.waking_pid), [number(waking, "pid")]);
        assert_eq!(wide(&of_waking.waking_target_cpu), [number(waking, "target_cpu")]);
        assert_eq!(wide(&of_waking.waking_prio), [number(waking, "prio")]);
        assert_eq!(of_waking.waking_common_flags, [255]);
    }
}
