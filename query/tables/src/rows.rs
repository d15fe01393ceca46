//! Collects the rows of one table and makes record batches of them.
//!
//! The trackers push rows through [`Output`](crate::output::Output). A row is a slice of [`Cell`]s in the order of the table's columns.

use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};

use crate::error::Error;
use crate::schema::{Kind, Table};
use crate::strings::{StringId, Strings};

/// The rows of a batch.
const ROWS: usize = 1 << 16;
/// The bytes of text of one column that end a batch early.
const TEXT: usize = 8 << 20;

/// One value of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    Int(i64),
    Float(f64),
    Text(StringId),
    /// Text that is not in the pool.
    Str(&'a str),
}

impl Cell<'_> {
    /// A number that may be missing.
    pub(crate) fn int<T: Into<i64>>(value: Option<T>) -> Cell<'static> {
        value.map_or(Cell::Null, |value| Cell::Int(value.into()))
    }

    /// Text that may be missing.
    pub(crate) fn text(value: Option<StringId>) -> Cell<'static> {
        value.map_or(Cell::Null, Cell::Text)
    }
}

enum Column {
    Int(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
}

impl Column {
    fn new(kind: Kind) -> Column {
        match kind {
            Kind::Int => Column::Int(Int64Builder::new()),
            Kind::Float => Column::Float(Float64Builder::new()),
            Kind::Text => Column::Text(StringBuilder::new()),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Int(builder) => Arc::new(builder.finish()),
            Column::Float(builder) => Arc::new(builder.finish()),
            Column::Text(builder) => Arc::new(builder.finish()),
        }
    }

    #[inline]
    fn push(&mut self, cell: Cell<'_>, strings: &Strings) {
        match (self, cell) {
            (Column::Int(builder), Cell::Int(value)) => builder.append_value(value),
            (Column::Int(builder), Cell::Null) => builder.append_null(),
            (Column::Text(builder), Cell::Text(id)) => builder.append_value(strings.get(id)),
            (Column::Text(builder), Cell::Str(text)) => builder.append_value(text),
            (Column::Text(builder), Cell::Null) => builder.append_null(),
            (Column::Float(builder), Cell::Float(value)) => builder.append_value(value),
            (Column::Float(builder), Cell::Null) => builder.append_null(),
            // A row of another shape than its table is a mistake in a tracker. Its tests would see it.
            (Column::Int(builder), _) => builder.append_null(),
            (Column::Float(builder), _) => builder.append_null(),
            (Column::Text(builder), _) => builder.append_null(),
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Column::Text(builder) if builder.values_slice().len() >= TEXT)
    }
}

/// The rows of one table that are in no batch yet.
pub(crate) struct Rows {
    table: &'static Table,
    columns: Vec<Column>,
    rows: usize,
}

impl Rows {
    pub(crate) fn new(table: &'static Table) -> Rows {
        let columns = table
            .columns
            .iter()
            .map(|column| Column::new(column.kind))
            .collect();
        Rows {
            table,
            columns,
            rows: 0,
        }
    }

    /// Adds a row. Returns whether a batch is full.
    #[inline]
    pub(crate) fn push(&mut self, row: &[Cell<'_>], strings: &Strings) -> bool {
        debug_assert_eq!(row.len(), self.columns.len(), "{}", self.table.name);
        for (column, cell) in self.columns.iter_mut().zip(row) {
            column.push(*cell, strings);
        }
        self.rows += 1;
        self.rows >= ROWS || (self.rows.is_multiple_of(256) && self.columns.iter().any(Column::is_full))
    }

    /// Returns the rows since the last call; `None` if there are none.
    pub(crate) fn take(&mut self) -> Result<Option<RecordBatch>, Error> {
        if self.rows == 0 {
            return Ok(None);
        }
        self.rows = 0;
        let columns = self.columns.iter_mut().map(Column::finish).collect();
        RecordBatch::try_new(self.table.arrow_schema(), columns)
            .map(Some)
            .map_err(|error| Error::Batch(self.table.name, error))
    }
}
