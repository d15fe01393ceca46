//! Where record batches go.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;

use crate::error::Error;
use crate::schema::Table;

/// Takes the record batches of all tables, in any order of tables. Rows of a table come in an order of their own; columns such as `id` and `ts` say which.
pub trait Sink {
    /// Takes one batch.
    ///
    /// # Errors
    /// If it cannot be stored.
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error>;
}

/// Keeps all batches in memory, by the name of the table.
#[derive(Debug, Default)]
pub struct Memory {
    /// The batches.
    pub tables: BTreeMap<&'static str, Vec<RecordBatch>>,
}

impl Sink for Memory {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        self.tables.entry(table.name).or_default().push(batch);
        Ok(())
    }
}
