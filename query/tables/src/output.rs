//! The rows of all tables on their way to the sink.
//!
//! All trackers write here.

use std::fmt::{Display, Write as _};

use crate::bounds::Bounds;
use crate::error::Error;
use crate::import::Selection;
use crate::rows::{Cell, Row, Rows};
use crate::schema::{TABLES, TRACE_BOUNDS, Table};
use crate::sink::Sink;
use crate::strings::Strings;

/// The rows that are in no batch yet, and where batches go.
pub(crate) struct Output<'a> {
    sink: &'a mut dyn Sink,
    tables: Vec<Rows>,
    /// The times of all that counts for it, if `trace_bounds` is wanted.
    bounds: Option<Bounds>,
    /// What went wrong first. Trackers go on; the import stops soon.
    failed: Option<Error>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(sink: &'a mut dyn Sink, tables: &Selection) -> Output<'a> {
        Output {
            sink,
            tables: TABLES.iter().map(|table| Rows::new(table, tables)).collect(),
            bounds: tables.has(&TRACE_BOUNDS).then(Bounds::new),
            failed: None,
        }
    }

    /// Whether somebody reads this table.
    #[inline]
    pub(crate) fn wants(&self, table: &'static Table) -> bool {
        self.tables[table.index].is_wanted
    }

    /// Makes a cell of text that is not in the pool. Only the next row of this table may have it.
    pub(crate) fn text(&mut self, table: &'static Table, text: impl Display) -> Cell {
        match self.wants(table) {
            true => self.tables[table.index].own_text(|to| {
                // A string takes all that is written, and the values here never fail to be shown.
                let _ = write!(to, "{text}");
            }),
            false => Cell::NULL,
        }
    }

    /// As [`text`](Output::text), of what `write` appends.
    #[inline]
    pub(crate) fn written(&mut self, table: &'static Table, write: impl FnOnce(&mut String)) -> Cell {
        match self.wants(table) {
            true => self.tables[table.index].own_text(write),
            false => Cell::NULL,
        }
    }

    /// Adds a row to a table.
    #[inline(always)]
    pub(crate) fn push<const N: usize>(&mut self, table: &'static Table, row: &[Cell; N], strings: &Strings) {
        self.push_row(table, &Row::new(*row), strings);
    }

    /// Adds a row that was kept until nothing could change it.
    #[inline(always)]
    pub(crate) fn push_row<const N: usize>(
        &mut self,
        table: &'static Table,
        row: &Row<N>,
        strings: &Strings,
    ) {
        let rows = &mut self.tables[table.index];
        if rows.is_wanted && rows.push(row, strings) {
            self.settle(table, strings);
        }
    }

    /// Notes when something was that counts for the bounds of the trace, and how long it lasted.
    #[inline]
    pub(crate) fn time(&mut self, ts: i64, dur: i64) {
        if let Some(bounds) = &mut self.bounds {
            bounds.time(ts, dur);
        }
    }

    #[cold]
    fn settle(&mut self, table: &'static Table, strings: &Strings) {
        if self.tables[table.index].settle(strings) {
            self.send(table);
        }
    }

    fn send(&mut self, table: &'static Table) {
        let sent = match self.tables[table.index].take() {
            Ok(Some(batch)) if self.failed.is_none() => self.sink.write(table, batch),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            self.failed.get_or_insert(error);
        }
    }

    /// Fails if a batch could not be written.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Sends the last batches.
    pub(crate) fn finish(mut self, strings: &Strings) -> Result<(), Error> {
        if let Some((start, end)) = self.bounds.take().map(|bounds| bounds.get()) {
            self.push(&TRACE_BOUNDS, &[Cell::from(start), Cell::from(end)], strings);
        }
        for table in TABLES {
            self.tables[table.index].settle(strings);
            self.send(table);
        }
        self.check()
    }
}
