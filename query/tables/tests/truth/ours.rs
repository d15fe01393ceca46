//! Our tables as text with tabs.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use ferretto_tables::{Column, Memory, Table};

/// The columns of a table that are compared.
pub(crate) fn compared(table: &Table) -> impl Iterator<Item = &Column> {
    let columns = table.columns.iter();
    columns.filter(|column| !super::NOT_COMPARED_COLUMNS.contains(&column.name))
}

/// Returns a value as the trace processor's program prints it.
fn text_of(batch: &RecordBatch, column: &str, row: usize) -> Option<String> {
    let values = batch.column_by_name(column).unwrap();
    if values.is_null(row) {
        return None;
    }
    Some(match values.data_type() {
        DataType::Int64 => values.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => {
            let value = values.as_primitive::<Float64Type>().value(row);
            match value.fract() == 0.0 && value.abs() < 1e16 {
                true => format!("{value:.1}"),
                false => value.to_string(),
            }
        }
        _ => values.as_string::<i32>().value(row).to_owned(),
    })
}

/// Returns the content of each set of arguments.
fn sets(table: &Table, memory: &Memory) -> BTreeMap<String, String> {
    let mut sets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for batch in memory.tables.get("args").into_iter().flatten() {
        for row in 0..batch.num_rows() {
            let get = |column| text_of(batch, column, row).unwrap_or_default();
            let content = super::of_args(table).iter().map(|column| get(column));
            // The trace processor's text ends at a zero.
            let content = content.collect::<Vec<_>>().join("|");
            let content = content.split('\0').next().unwrap_or_default().to_owned();
            sets.entry(get("arg_set_id")).or_default().push(content);
        }
    }
    sets.into_iter()
        .map(|(set, contents)| (set, contents.join(";")))
        .collect()
}

/// Returns the rows of a table, in the order of their ids.
pub(crate) fn rows(table: &Table, memory: &Memory) -> Vec<String> {
    let sets = sets(table, memory);
    let mut rows = Vec::new();
    for batch in memory.tables.get(table.name).into_iter().flatten() {
        for row in 0..batch.num_rows() {
            let cells = compared(table).map(|column| {
                let text = text_of(batch, column.name, row);
                let is_older = |name: String| super::WITH_NEWER_FIELDS.contains(&name.as_str());
                let text = match column.name.ends_with("arg_set_id") {
                    true if table.name == "ftrace_event"
                        && text_of(batch, "name", row).is_some_and(is_older) =>
                    {
                        None
                    }
                    true => {
                        text.map(|set| sets.get(&set).cloned().unwrap_or_else(|| format!("no set {set}")))
                    }
                    false => text,
                };
                text.map_or("\\N".to_owned(), |text| {
                    text.replace('\\', "\\\\")
                        .replace('\t', "\\t")
                        .replace('\n', "\\n")
                })
            });
            let line = cells.collect::<Vec<_>>().join("\t");
            let id = match table.columns.iter().any(|column| column.name == "id") {
                true => text_of(batch, "id", row)
                    .and_then(|id| id.parse().ok())
                    .unwrap_or(-1),
                false => 0_i64,
            };
            rows.push((id, line));
        }
    }
    rows.sort();
    rows.into_iter().map(|(_, line)| line).collect()
}

/// Packets that no compared table of the trace processor has anything of: what Chromium says about a recording, and where one came from.
const WITHOUT_TABLES: [&str; 3] = [
    "field 51 of TracePacket",
    "field 72 of TracePacket",
    "field 124 of TracePacket",
];

/// Returns the kinds of packets that were not read although tables may need them.
pub(crate) fn unread_packets(memory: &Memory) -> Vec<String> {
    let mut kinds = Vec::new();
    for batch in memory.tables.get("ferretto_loss").into_iter().flatten() {
        let rows = 0..batch.num_rows();
        let of_packets = rows.filter(|row| text_of(batch, "kind", *row).as_deref() == Some("packets"));
        kinds.extend(of_packets.filter_map(|row| text_of(batch, "detail", row)));
    }
    kinds.retain(|kind| !WITHOUT_TABLES.contains(&kind.as_str()));
    kinds
}
