//! Compares each table with what upstream's trace processor says about the same trace, cell by cell.
//!
//! Also reads what is damaged, cut off or compressed. `FERRETTO_TPQ` names the program that asks it. Traces come from a generator of random events, and from
//! the folder that `FERRETTO_TRACES` names.
#![allow(clippy::unwrap_used)]

mod damage;
mod generator;
#[cfg(feature = "parquet")]
mod many;
mod ours;
mod tpq;

use std::path::{Path, PathBuf};

use ferretto_tables::{Memory, Options, Selection, TABLES, Table, expanded, import};

/// Tables that the trace processor does not have, or has otherwise.
const NOT_COMPARED: [&str; 4] = ["args", "stats", "metadata", "ferretto_loss"];
/// Columns whose values depend on the trace processor's own memory.
const NOT_COMPARED_COLUMNS: [&str; 2] = ["stack_id", "parent_stack_id"];

/// The memory with which recorded traces are read.
const MEMORY: usize = 64 << 20;

/// All tables, with so much memory.
fn whole(memory: usize) -> Options {
    Options {
        memory,
        tables: Selection::All,
    }
}

/// Kernel events of which the trace processor knows less: its schema is older than ours.
const WITH_NEWER_FIELDS: [&str; 3] = [
    "workqueue_activate_work",
    "workqueue_execute_end",
    "workqueue_queue_work",
];

/// The columns of `args` that are compared. Fields of kernel events have other types in schemas of other releases.
fn of_args(table: &Table) -> &'static [&'static str] {
    match table.name {
        "ftrace_event" => &["key", "display_value"],
        _ => &["flat_key", "key", "value_type", "display_value"],
    }
}

/// The statement whose rows a table should have.
fn statement(table: &Table) -> String {
    let argument = of_args(table)
        .iter()
        .map(|column| format!("ifnull(a.{column}, '')"));
    let argument = argument.collect::<Vec<_>>().join(" || '|' || ");
    let is_older = match table.name {
        "ftrace_event" => format!("t.name in ('{}')", WITH_NEWER_FIELDS.join("', '")),
        _ => "false".to_owned(),
    };
    let columns: Vec<String> = ours::compared(table)
        .map(|column| match column.name {
            name if name.ends_with("arg_set_id") => format!(
                "(select group_concat({argument}, ';') from (select * from args \
                 where arg_set_id = t.{name} and not {is_older} order by id) a) as {name}"
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

/// Compares all tables of a trace. Returns the number of rows, or the first differences of each table.
fn compare(trace: &Path, options: &Options) -> Result<usize, String> {
    let mut memory = Memory::default();
    let file = std::fs::File::open(trace).unwrap();
    let (_, source) = expanded(file).unwrap();
    import(source, options, &mut memory).unwrap();
    let tables: Vec<&Table> = TABLES
        .iter()
        .copied()
        .filter(|table| !NOT_COMPARED.contains(&table.name))
        .collect();
    let statements: Vec<String> = tables.iter().map(|table| statement(table)).collect();
    let theirs = tpq::ask(trace, &statements);
    let (mut rows, mut differences) = (0, Vec::new());
    for (table, theirs) in tables.iter().zip(theirs) {
        let ours = ours::rows(table, &memory);
        rows += ours.len();
        let (name, trace) = (table.name, trace.display());
        if ours.len() != theirs.len() {
            differences.push(format!(
                "{trace}: {name} has {} rows rather than {}",
                ours.len(),
                theirs.len()
            ));
        }
        if let Some((at, (our, their))) = ours
            .iter()
            .zip(&theirs)
            .enumerate()
            .find(|(_, (our, their))| our != their)
        {
            let names: Vec<&str> = ours::compared(table).map(|column| column.name).collect();
            let names = names.join("\t");
            differences.push(format!(
                "{trace}: row {at} of {name}\n{names}\n{our}\nrather than\n{their}"
            ));
        }
    }
    match differences.is_empty() {
        true => Ok(rows),
        false => Err(differences.join("\n")),
    }
}

#[test]
fn recorded_traces_have_the_same_tables() {
    let Some(folder) = std::env::var_os("FERRETTO_TRACES").map(PathBuf::from) else {
        return;
    };
    if !tpq::is_there() {
        return;
    }
    let (mut traces, mut different) = (0, Vec::new());
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pftrace") {
            match compare(&path, &whole(MEMORY)) {
                Ok(rows) => println!("{}: {rows} rows are equal", path.display()),
                Err(difference) => different.push(difference),
            }
            traces += 1;
        }
    }
    assert!(traces > 0, "{} has no traces", folder.display());
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

#[test]
fn generated_traces_have_the_same_tables() {
    if !tpq::is_there() {
        return;
    }
    let seeds = std::env::var("FERRETTO_TABLES_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(6);
    let only = std::env::var("FERRETTO_TABLES_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("generated.pftrace");
    let mut different = Vec::new();
    for seed in only.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        std::fs::write(&path, generator::Generator::whole(seed)).unwrap();
        // Small enough that events go through the temporary file.
        if let Err(difference) = compare(&path, &whole(10_000)) {
            different.push(format!("FERRETTO_TABLES_SEED={seed}: {difference}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}
