//! Compares each table with what upstream's trace processor says about the same trace, cell by cell.
//!
//! Also reads what is damaged, cut off or compressed. `FERRETTO_TPQ` names the program that asks it. Traces come from a generator of random events, and from
//! the folder that `FERRETTO_TRACES` names ([`corpus`]).
#![allow(clippy::unwrap_used)]

mod corpus;
mod damage;
mod generator;
#[cfg(feature = "parquet")]
mod many;
mod ours;
mod tpq;

use std::path::Path;

use ferretto_tables::{Memory, Options, Selection, TABLES, Table, expanded, import};

/// Tables that the trace processor does not have, or has otherwise.
const NOT_COMPARED: [&str; 4] = ["args", "stats", "metadata", "ferretto_loss"];
/// Columns whose values depend on the trace processor's own memory.
const NOT_COMPARED_COLUMNS: [&str; 2] = ["stack_id", "parent_stack_id"];

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

/// The first words of the keys of arguments that tables of track events do not have: those of extensions, which only the trace processor's own schema describes.
const EXTENSIONS: &str = include_str!("extensions.txt");

/// The statement whose rows a table should have.
fn statement(table: &Table) -> String {
    let argument = of_args(table)
        .iter()
        .map(|column| format!("ifnull(a.{column}, '')"));
    let argument = argument.collect::<Vec<_>>().join(" || '|' || ");
    let is_older = match table.name {
        "ftrace_event" => format!("t.name in ('{}')", WITH_NEWER_FIELDS.join("', '")),
        "slice" | "__intrinsic_chrome_raw" => {
            let words: Vec<&str> = EXTENSIONS.lines().collect();
            // Annotations may have messages of the same types.
            let key = "replace(flat_key, 'debug.', '')";
            format!(
                "substr({key}, 1, instr({key}, '.') - 1) in ('{}')",
                words.join("', '")
            )
        }
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
        false if columns.len() > 2 => "order by 1, 2, 3",
        false => "order by 1, 2",
    };
    format!("select {} from {} t {order}", columns.join(", "), table.name)
}

/// What came out of one table of one trace.
struct Compared {
    table: &'static str,
    rows: usize,
    /// The first difference.
    difference: Option<String>,
}

/// All tables of one trace.
struct Comparison {
    tables: Vec<Compared>,
    /// Kinds of packets that are not read, of which tables may lack something.
    unread: Vec<String>,
}

/// Compares all tables of a trace. Fails if one of the two cannot read it.
fn compare_each(trace: &Path, options: &Options) -> Result<Comparison, String> {
    let mut memory = Memory::default();
    let file = std::fs::File::open(trace).unwrap();
    let (_, source) = expanded(file).unwrap();
    import(source, options, &mut memory).map_err(|error| format!("not imported: {error}"))?;
    let tables = TABLES
        .iter()
        .copied()
        .filter(|table| !NOT_COMPARED.contains(&table.name));
    let statements: Vec<String> = tables.clone().map(statement).collect();
    let theirs = tpq::ask(trace, &statements)?;
    let each = tables.zip(theirs).map(|(table, theirs)| {
        let ours = ours::rows(table, &memory);
        Compared {
            table: table.name,
            rows: ours.len(),
            difference: difference(table, &ours, &theirs),
        }
    });
    Ok(Comparison {
        tables: each.collect(),
        unread: ours::unread_packets(&memory),
    })
}

/// Returns the first difference between two forms of a table.
fn difference(table: &Table, ours: &[String], theirs: &[String]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let mut what = format!("{}:", table.name);
    if ours.len() != theirs.len() {
        what += &format!(" {} rows rather than {}", ours.len(), theirs.len());
    }
    let at = ours.iter().zip(theirs).position(|(our, their)| our != their);
    let at = at.unwrap_or(ours.len().min(theirs.len()));
    let row = |rows: &[String]| rows.get(at).map_or("no row", |row| row).to_owned();
    let names: Vec<&str> = ours::compared(table).map(|column| column.name).collect();
    what += &format!(
        " row {at}\n{}\n{}\nrather than\n{}",
        names.join("\t"),
        row(ours),
        row(theirs)
    );
    Some(what)
}

/// Compares all tables of a trace. Returns the number of rows, or the first differences of each table.
fn compare(trace: &Path, options: &Options) -> Result<usize, String> {
    let each = compare_each(trace, options)?.tables;
    let differences: Vec<String> = each.iter().filter_map(|it| it.difference.clone()).collect();
    match differences.is_empty() {
        true => Ok(each.iter().map(|it| it.rows).sum()),
        false => Err(format!("{}: {}", trace.display(), differences.join("\n"))),
    }
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
