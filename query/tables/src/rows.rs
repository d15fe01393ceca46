//! Collects the rows of one table and makes record batches of them.
//!
//! The trackers push rows through [`Output`](crate::output::Output). A row is an array of [`Cell`]s in the order of the table's columns. A push is a store for
//! each cell into a small block, which lies in the cache. Full blocks are copied to the columns.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, OffsetBuffer, ScalarBuffer};

use crate::error::Error;
use crate::schema::{Kind, Table};
use crate::strings::{StringId, Strings};

/// The rows of a batch.
const ROWS: usize = 1 << 14;
/// The bytes of text of one column that end a batch early.
const TEXT: usize = 8 << 20;
/// The rows of a block. Divides [`ROWS`].
const BLOCK: usize = 256;
/// From one column of a block to the next: not a power of two, as the cells of a row would compete for one place in the cache.
const STRIDE: usize = BLOCK + 8;
/// Marks text that is not in the pool. Its place in [`Block::texts`] and its length follow, of 31 and 32 bits.
const OWN_TEXT: u64 = 1 << 63;

/// One value of a row, as a [`Block`] keeps it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    /// A number as it is, text as its number in the pool or as [`OWN_TEXT`].
    bits: u64,
    is_null: bool,
}

impl Cell {
    /// A value that is missing.
    pub(crate) const NULL: Cell = Cell {
        bits: 0,
        is_null: true,
    };
}

impl From<i64> for Cell {
    #[inline(always)]
    fn from(value: i64) -> Cell {
        Cell {
            bits: value as u64,
            is_null: false,
        }
    }
}

impl From<i32> for Cell {
    #[inline(always)]
    fn from(value: i32) -> Cell {
        i64::from(value).into()
    }
}

impl From<u32> for Cell {
    #[inline(always)]
    fn from(value: u32) -> Cell {
        i64::from(value).into()
    }
}

impl From<bool> for Cell {
    #[inline(always)]
    fn from(value: bool) -> Cell {
        i64::from(value).into()
    }
}

impl From<f64> for Cell {
    #[inline(always)]
    fn from(value: f64) -> Cell {
        Cell {
            bits: value.to_bits(),
            is_null: false,
        }
    }
}

impl From<StringId> for Cell {
    #[inline(always)]
    fn from(id: StringId) -> Cell {
        id.0.into()
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    #[inline(always)]
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::NULL, T::into)
    }
}

/// The latest rows, column by column.
struct Block {
    rows: usize,
    /// The cells of each column, [`STRIDE`] apart: numbers as they are, text as its number in the pool or as [`OWN_TEXT`].
    cells: Vec<u64>,
    /// Of each row, a bit for each cell that is null.
    nulls: [u64; BLOCK],
    /// Text that is not in the pool.
    texts: String,
}

impl Block {
    fn new(columns: usize) -> Block {
        Block {
            rows: 0,
            cells: vec![0; columns * STRIDE],
            nulls: [0; BLOCK],
            texts: String::new(),
        }
    }

    #[inline(always)]
    fn push<const N: usize>(&mut self, row: &[Cell; N]) {
        let at = self.rows % BLOCK;
        let cells = &mut self.cells[..N * STRIDE];
        let mut nulls = 0;
        for (column, cell) in row.iter().enumerate() {
            cells[column * STRIDE + at] = cell.bits;
            nulls |= u64::from(cell.is_null) << column;
        }
        self.nulls[at] = nulls;
        self.rows = at + 1;
    }

    /// Keeps text that is not in the pool, for the next row.
    fn own_text(&mut self, text: impl Display) -> Cell {
        let place = self.texts.len();
        // Texts take whatever is written, and what is shown here has no errors of its own.
        let _ = write!(self.texts, "{text}");
        let len = self.texts.len() - place;
        Cell {
            bits: OWN_TEXT | (place as u64) << 32 | len as u64,
            is_null: false,
        }
    }

    fn column(&self, at: usize) -> &[u64] {
        &self.cells[at * STRIDE..][..self.rows]
    }

    #[inline]
    fn append_text(&self, cell: u64, strings: &Strings, to: &mut Vec<u8>) {
        match cell & OWN_TEXT {
            0 => strings.append_to(StringId(cell as u32), to),
            _ => {
                let place = (cell & !OWN_TEXT) >> 32;
                to.extend_from_slice(&self.texts.as_bytes()[place as usize..][..cell as u32 as usize]);
            }
        }
    }
}

enum Values {
    Int(Vec<i64>),
    Float(Vec<f64>),
    /// Where each text ends, and all texts.
    Text(Vec<i32>, Vec<u8>),
}

/// A column of the batch.
struct Column {
    values: Values,
    /// `None` for a column that is never null.
    valid: Option<BooleanBufferBuilder>,
}

impl Column {
    fn new(kind: Kind, nullable: bool) -> Column {
        let values = match kind {
            Kind::Int => Values::Int(Vec::new()),
            Kind::Float => Values::Float(Vec::new()),
            Kind::Text => Values::Text(vec![0], Vec::new()),
        };
        Column {
            values,
            valid: nullable.then(|| BooleanBufferBuilder::new(0)),
        }
    }

    /// Takes over the column `at` of a block.
    fn extend(&mut self, block: &Block, at: usize, strings: &Strings) {
        let cells = block.column(at).iter();
        let nulls = &block.nulls[..block.rows];
        match &mut self.values {
            Values::Int(values) => values.extend(cells.map(|cell| *cell as i64)),
            Values::Float(values) => values.extend(cells.map(|cell| f64::from_bits(*cell))),
            Values::Text(ends, texts) => {
                for (cell, nulls) in cells.zip(nulls) {
                    if nulls >> at & 1 == 0 {
                        block.append_text(*cell, strings, texts);
                    }
                    ends.push(texts.len() as i32);
                }
            }
        }
        let Some(valid) = &mut self.valid else { return };
        let (any, all) = nulls
            .iter()
            .fold((0, u64::MAX), |(any, all), nulls| (any | nulls, all & nulls));
        if (any ^ all) >> at & 1 == 0 {
            valid.append_n(nulls.len(), any >> at & 1 == 0);
            return;
        }
        for nulls in nulls.chunks(64) {
            let bits = nulls
                .iter()
                .enumerate()
                .fold(0, |bits, (row, nulls)| bits | (!nulls >> at & 1) << row);
            valid.append_packed_range(0..nulls.len(), &u64::to_le_bytes(bits));
        }
    }

    /// Returns the values so far, and begins a new column.
    fn finish(&mut self) -> Result<ArrayRef, arrow_schema::ArrowError> {
        let nulls = self
            .valid
            .as_mut()
            .map(|valid| NullBuffer::new(valid.finish()))
            .filter(|nulls| nulls.null_count() > 0);
        Ok(match &mut self.values {
            Values::Int(values) => {
                let next = Vec::with_capacity(values.len());
                let values = ScalarBuffer::from(std::mem::replace(values, next));
                Arc::new(Int64Array::try_new(values, nulls)?)
            }
            Values::Float(values) => {
                let next = Vec::with_capacity(values.len());
                let values = ScalarBuffer::from(std::mem::replace(values, next));
                Arc::new(Float64Array::try_new(values, nulls)?)
            }
            Values::Text(ends, texts) => {
                let mut next = Vec::with_capacity(ends.len());
                next.push(0);
                let ends = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(ends, next)));
                let texts = std::mem::take(texts);
                Arc::new(StringArray::try_new(ends, texts.into(), nulls)?)
            }
        })
    }

    fn is_full(&self) -> bool {
        matches!(&self.values, Values::Text(_, texts) if texts.len() >= TEXT)
    }
}

/// The rows of one table that are in no batch yet.
pub(crate) struct Rows {
    table: &'static Table,
    block: Block,
    columns: Vec<Column>,
    /// The rows in `columns`.
    rows: usize,
}

impl Rows {
    pub(crate) fn new(table: &'static Table) -> Rows {
        let columns = table.columns.iter();
        Rows {
            table,
            block: Block::new(table.columns.len()),
            columns: columns
                .map(|column| Column::new(column.kind, column.nullable))
                .collect(),
            rows: 0,
        }
    }

    /// Keeps text that is not in the pool, for a cell of the next row.
    pub(crate) fn own_text(&mut self, text: impl Display) -> Cell {
        self.block.own_text(text)
    }

    /// Adds a row. Returns whether a block is full, so that [`settle`](Rows::settle) has to be called before the next row.
    #[inline(always)]
    pub(crate) fn push<const N: usize>(&mut self, row: &[Cell; N], strings: &Strings) -> bool {
        debug_assert_eq!(N, self.columns.len(), "{}", self.table.name);
        self.block.push(row);
        // So a block adds no more than this to a column, and one text.
        let rows = self.block.rows;
        rows == BLOCK || self.block.texts.len() >= TEXT || rows * strings.longest() >= TEXT
    }

    /// Moves the block to the columns. Returns whether a batch is full.
    pub(crate) fn settle(&mut self, strings: &Strings) -> bool {
        for (at, column) in self.columns.iter_mut().enumerate() {
            column.extend(&self.block, at, strings);
        }
        self.rows += self.block.rows;
        self.block.rows = 0;
        self.block.texts.clear();
        self.rows >= ROWS || self.columns.iter().any(Column::is_full)
    }

    /// Returns the rows since the last call, as far as they are settled; `None` if there are none.
    pub(crate) fn take(&mut self) -> Result<Option<RecordBatch>, Error> {
        if self.rows == 0 {
            return Ok(None);
        }
        self.rows = 0;
        let columns = self
            .columns
            .iter_mut()
            .map(Column::finish)
            .collect::<Result<_, _>>();
        columns
            .and_then(|columns| RecordBatch::try_new(self.table.arrow_schema(), columns))
            .map(Some)
            .map_err(|error| Error::Batch(self.table.name, error))
    }
}
