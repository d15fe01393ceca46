//! Compares each table with what upstream's trace processor says about the same trace, cell by cell.
//!
//! `FERRETTO_TPQ` names the program that asks it. Traces come from a generator of random events, and from the folder that `FERRETTO_TRACES` names.

mod ours;
mod tpq;

use std::path::{Path, PathBuf};

use ferretto_tables::{Memory, Options, TABLES, Table, expanded, import};

/// Tables that the trace processor does not have, or has otherwise.
const NOT_COMPARED: [&str; 4] = ["args", "stats", "metadata", "ferretto_loss"];
/// Columns whose values depend on the trace processor's own memory.
const NOT_COMPARED_COLUMNS: [&str; 2] = ["stack_id", "parent_stack_id"];

/// The statement whose rows a table should have.
fn statement(table: &Table) -> String {
    let columns: Vec<String> = ours::compared(table)
        .map(|column| match column.name {
            name if name.ends_with("arg_set_id") => format!(
                "(select group_concat(a.flat_key || '|' || a.key || '|' || ifnull(a.value_type, '') || '|' || ifnull(a.display_value, ''), ';') \
                 from (select * from args where arg_set_id = t.{name} order by id) a) as {name}"
            ),
            name => format!("t.{name}"),
        })
        .collect();
    let order = match table.columns.iter().any(|column| column.name == "id") {
        true => "order by t.id",
        false => "order by 1, 2, 3",
    };
    format!("select {} from {} t {order}", columns.join(", "), table.name)
}

/// Compares all tables of a trace. Returns the number of rows.
fn compare(trace: &Path, options: &Options) -> usize {
    let mut memory = Memory::default();
    let file = std::fs::File::open(trace).unwrap();
    let (_, source) = expanded(file).unwrap();
    import(source, options, &mut memory).unwrap();
    let tables: Vec<&Table> = TABLES.iter().copied().filter(|table| !NOT_COMPARED.contains(&table.name)).collect();
    let statements: Vec<String> = tables.iter().map(|table| statement(table)).collect();
    let theirs = tpq::ask(trace, &statements);
    let mut rows = 0;
    for (table, theirs) in tables.iter().zip(theirs) {
        let ours = ours::rows(table, &memory);
        rows += ours.len();
        for (at, (our, their)) in ours.iter().zip(&theirs).enumerate() {
            let names: Vec<&str> = ours::compared(table).map(|column| column.name).collect();
            assert_eq!(our, their, "{}: row {at} of {} of\n{}", trace.display(), table.name, names.join("\t"));
        }
        assert_eq!(ours.len(), theirs.len(), "{}: rows of {}", trace.display(), table.name);
    }
    rows
}

#[test]
fn recorded_traces_have_the_same_tables() {
    let Some(folder) = std::env::var_os("FERRETTO_TRACES").map(PathBuf::from) else { return };
    if !tpq::is_there() {
        return;
    }
    let mut traces = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pftrace") {
            println!("{}: {} rows are equal", path.display(), compare(&path, &Options::default()));
            traces += 1;
        }
    }
    assert!(traces > 0, "{} has no traces", folder.display());
}
