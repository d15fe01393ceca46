//! Compares the table in docs/trace-config.md with the schema: every field of a trace config is in exactly one row, and every row names
//! fields that exist.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::{descriptors, text};
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

/// The possible statements of a row about its fields.
const VERDICTS: [&str; 5] = ["works", "refused", "perfetto", "Android", "producer"];

/// The paths of all fields that are no messages, as `message.field`. Configs of single data sources are left to
/// producers and count as one.
fn fields() -> BTreeSet<String> {
    let pool = DescriptorPool::decode(descriptors::TRACE).expect("the embedded descriptors hang together");
    let config = pool
        .get_message_by_name(text::TRACE_CONFIG)
        .expect("the embedded descriptors have TraceConfig");
    let mut paths = BTreeSet::new();
    collect(&config, "", &mut paths);
    paths
}

fn collect(message: &MessageDescriptor, prefix: &str, paths: &mut BTreeSet<String>) {
    /// From here on `DataSourceConfig` has the configs of single data sources.
    const FIRST_OF_ONE_DATA_SOURCE: u32 = 100;
    let mut fields = message.fields().peekable();
    if fields.peek().is_none() {
        paths.insert(prefix.trim_end_matches('.').to_owned());
    }
    for field in fields {
        let path = format!("{prefix}{}", field.name());
        match field.kind() {
            Kind::Message(_)
                if message.name() == "DataSourceConfig"
                    && (field.number() >= FIRST_OF_ONE_DATA_SOURCE || field.name() == "priority_boost") =>
            {
                paths.insert(path);
            }
            // Its inside is for people who run it.
            Kind::Message(_) if field.name() == "protovm_config" => drop(paths.insert(path)),
            // Attributes hold attributes.
            Kind::Message(inner) if inner.name() == "TraceAttributes" => {
                paths.insert(format!("{path}.attribute"));
            }
            Kind::Message(inner) => collect(&inner, &format!("{path}."), paths),
            _ => drop(paths.insert(path)),
        }
    }
}

/// The rows of the table: fields as they are written, and what becomes of them.
fn rows() -> Vec<(Vec<String>, String)> {
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/trace-config.md"))
            .expect("docs/trace-config.md");
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let fields = cells[1].split('`').skip(1).step_by(2).flat_map(expand).collect();
        (fields, cells[2].to_owned())
    })
    .collect()
}

/// `a.{b,c}` as `a.b` and `a.c`.
fn expand(written: &str) -> Vec<String> {
    match written.split_once('{') {
        None => vec![written.to_owned()],
        Some((prefix, rest)) => {
            let inner = rest.strip_suffix('}').expect("a closing brace at the end");
            inner.split(',').map(|field| format!("{prefix}{field}")).collect()
        }
    }
}

#[test]
fn every_field_of_the_trace_config_is_in_one_row_and_no_row_is_about_nothing() {
    let fields = fields();
    assert!(fields.len() > 100, "the schema was walked");
    let rows = rows();
    let written: Vec<&String> = rows.iter().flat_map(|(fields, _)| fields).collect();
    for (fields, verdict) in &rows {
        assert!(VERDICTS.contains(&verdict.as_str()), "{fields:?}: {verdict:?}");
    }
    let mut uses: BTreeMap<&String, usize> = written.iter().map(|written| (*written, 0)).collect();
    assert_eq!(uses.len(), written.len(), "a field is in the table twice");
    for field in &fields {
        // A row that names the field goes before one that names all below a message.
        let row = written.iter().find(|written| **written == field).or_else(|| {
            written.iter().find(|written| {
                written
                    .strip_suffix('*')
                    .is_some_and(|prefix| field.starts_with(prefix))
            })
        });
        let row = row.unwrap_or_else(|| panic!("{field} is missing in docs/trace-config.md"));
        *uses.entry(row).or_default() += 1;
    }
    for (row, uses) in uses {
        assert!(uses > 0, "{row}: there is no such field");
    }
}
