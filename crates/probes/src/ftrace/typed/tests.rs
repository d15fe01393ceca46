use super::*;
use std::collections::BTreeSet;

/// The schema as text: what this crate's messages are generated from.
const SCHEMA: &[&str] = &[
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/ftrace_event.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/ftrace.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/irq.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/power.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/raw_syscalls.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/sched.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/task.proto"),
    include_str!("../../../../proto/proto/perfetto/trace/ftrace/workqueue.proto"),
];

/// Message, type, name and number of every field in the schema.
fn schema() -> BTreeSet<(String, String, String, u32)> {
    let mut fields = BTreeSet::new();
    for file in SCHEMA {
        let mut message = String::new();
        for line in file.lines() {
            let words: Vec<&str> = line.trim().trim_end_matches(';').split_whitespace().collect();
            match words.as_slice() {
                ["message", name, "{"] => message = (*name).to_owned(),
                ["optional" | "repeated", ty, name, "=", number] | [ty, name, "=", number] => {
                    let number = number.parse().unwrap();
                    fields.insert((message.clone(), (*ty).to_owned(), (*name).to_owned(), number));
                }
                _ => {}
            }
        }
    }
    fields
}

fn in_schema(proto_type: ProtoType) -> &'static str {
    match proto_type {
        ProtoType::Int32 => "int32",
        ProtoType::Int64 => "int64",
        ProtoType::Uint32 => "uint32",
        ProtoType::Uint64 => "uint64",
        ProtoType::String => "string",
        ProtoType::Bytes => "bytes",
    }
}

#[test]
fn every_mapping_is_in_the_schema() {
    let schema = schema();
    for event in all() {
        let of_event = |(message, _, name, number): &&(String, String, String, u32)| {
            message == "FtraceEvent" && name == event.name && *number == event.number
        };
        let (_, message, ..) = schema
            .iter()
            .find(of_event)
            .unwrap_or_else(|| panic!("{} is not in FtraceEvent", event.name));
        for field in event.fields {
            let key = (
                message.clone(),
                in_schema(field.proto_type).to_owned(),
                field.name.to_owned(),
                field.number,
            );
            assert!(schema.contains(&key), "{key:?} is not in the schema");
        }
    }
}

#[test]
fn every_message_of_these_groups_is_mapped_whole() {
    // Of `print` only the text is recorded.
    let left_out = [("PrintFtraceEvent", "ip")];
    let schema = schema();
    let mapped: BTreeSet<&str> = all().map(|event| event.name).collect();
    for (_, message, name, _) in schema.iter().filter(|(message, ..)| message == "FtraceEvent") {
        if !message.ends_with("FtraceEvent") || message == "GenericFtraceEvent" {
            continue;
        }
        assert!(
            mapped.contains(name.as_str()),
            "{name} is in the schema and has no mapping"
        );
        let event = all().find(|event| event.name == name).unwrap();
        for (of, _, field, number) in schema.iter().filter(|(of, ..)| of == message) {
            let is_mapped = event
                .fields
                .iter()
                .any(|mapped| mapped.name == field && mapped.number == *number);
            let is_left_out = left_out.contains(&(of.as_str(), field.as_str()));
            assert!(is_mapped != is_left_out, "{of}.{field}");
        }
    }
}

#[test]
fn a_name_counts_only_in_its_group() {
    assert!(find("raw_syscalls", "sys_enter").is_some());
    assert!(find("sched", "sys_enter").is_none());
}
