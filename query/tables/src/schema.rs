//! The tables: names, columns, types, and what each is, in one place.
//!
//! Arrow schemas, builders of rows and `docs/tables.md` come from here. Names and columns are those of the trace processor's tables and views, so SQL carries
//! over. The schema only grows: columns are never removed, renamed or given another type.

mod list;

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

pub use list::TABLES;
pub(crate) use list::*;

/// The version of the schema. It grows by one whenever a table or a column is added.
pub const VERSION: u32 = 5;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `Int64`. Truth values are 0 and 1, as in the trace processor.
    Int,
    /// `Float64`.
    Float,
    /// `Utf8`.
    Text,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name, which is the trace processor's.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether values may be missing.
    pub nullable: bool,
    /// What it holds, as one sentence.
    pub about: &'static str,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Its name, which is the trace processor's unless `about` says otherwise.
    pub name: &'static str,
    /// What a row is, as one sentence.
    pub about: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// What differs from the trace processor's table, as sentences; empty if nothing does.
    pub differs: &'static str,
    /// Its place in [`TABLES`].
    pub(crate) index: usize,
}

impl Table {
    /// Returns the schema of its record batches.
    pub fn arrow_schema(&self) -> SchemaRef {
        let field = |column: &Column| {
            let kind = match column.kind {
                Kind::Int => DataType::Int64,
                Kind::Float => DataType::Float64,
                Kind::Text => DataType::Utf8,
            };
            Field::new(column.name, kind, column.nullable)
        };
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }
}

const fn int(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Int,
        nullable: false,
        about,
    }
}

const fn float(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Float,
        nullable: false,
        about,
    }
}

const fn text(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Text,
        nullable: false,
        about,
    }
}

const fn optional(column: Column) -> Column {
    Column {
        nullable: true,
        ..column
    }
}

/// Returns the part of `docs/tables.md` that describes the tables.
pub fn documentation() -> String {
    let mut page = String::new();
    for table in TABLES {
        let _ = write!(page, "### `{}`\n\n{}\n\n", table.name, table.about);
        if !table.differs.is_empty() {
            let _ = write!(page, "Differs: {}\n\n", table.differs);
        }
        page.push_str("| column | type | |\n|---|---|---|\n");
        for column in table.columns {
            let kind = match column.kind {
                Kind::Int => "Int64",
                Kind::Float => "Float64",
                Kind::Text => "Utf8",
            };
            let null = if column.nullable { ", may be null" } else { "" };
            let _ = writeln!(page, "| `{}` | {kind}{null} | {} |", column.name, column.about);
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_knows_its_place_and_has_distinct_names() {
        for (index, table) in TABLES.iter().enumerate() {
            assert_eq!(table.index, index, "{}", table.name);
            assert!(
                TABLES[..index].iter().all(|other| other.name != table.name),
                "{}",
                table.name
            );
            for (at, column) in table.columns.iter().enumerate() {
                assert!(table.columns[..at].iter().all(|other| other.name != column.name));
                assert!(column.about.ends_with('.'), "{}.{}", table.name, column.name);
            }
        }
    }

    #[test]
    fn the_page_is_fresh() {
        const BEGIN: &str = "<!-- The rest is made from query/tables/src/schema. -->\n\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tables.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (head, tail) = page.split_once(BEGIN).unwrap();
        if std::env::var_os("FERRETTO_WRITE_TABLES").is_some() {
            std::fs::write(path, format!("{head}{BEGIN}{}", documentation())).unwrap();
            return;
        }
        assert_eq!(
            tail,
            documentation(),
            "write it with FERRETTO_WRITE_TABLES=1 cargo test -p ferretto-tables page"
        );
    }
}
