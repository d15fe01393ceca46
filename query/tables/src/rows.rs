//! Collects the rows of one table and makes record batches of them.
//!
//! The trackers push rows through [`Output`](crate::output::Output). A row has [`Cell`]s in the order of the table's columns. A push is a store for
//! each cell into a small block, which lies in the cache. Full blocks are copied to the columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use crate::error::Error;
use crate::import::Selection;
use crate::schema::{Kind, Table};
use crate::strings::{PADDING, Pool, SHORT, StringId, Strings};

/// The rows of a batch.
const ROWS: usize = 1 << 14;
/// The bytes of text of one column that end a batch early.
const TEXT: usize = 8 << 20;
/// The rows of a block. Divides [`ROWS`].
const BLOCK: usize = 256;
/// The room for a column of a block: not a power of two, as the cells of a row would compete for one place in the cache.
const STRIDE: usize = BLOCK + 8;
/// The most columns of a table.
const MOST_COLUMNS: usize = 24;
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

/// A row as a [`Block`] takes it. What may still change keeps its row in this form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<const N: usize> {
    bits: [u64; N],
    /// A bit for each cell that is null.
    nulls: u32,
}

impl<const N: usize> Row<N> {
    #[inline(always)]
    pub(crate) fn new(cells: [Cell; N]) -> Row<N> {
        let nulls = cells.iter().enumerate();
        Row {
            bits: cells.map(|cell| cell.bits),
            nulls: nulls.fold(0, |nulls, (column, cell)| {
                nulls | u32::from(cell.is_null) << column
            }),
        }
    }

    /// Returns a number that is not null.
    #[inline(always)]
    pub(crate) fn int(&self, column: usize) -> i64 {
        self.bits[column] as i64
    }

    /// Changes a cell.
    #[inline(always)]
    pub(crate) fn set(&mut self, column: usize, cell: Cell) {
        self.bits[column] = cell.bits;
        self.nulls = self.nulls & !(1 << column) | u32::from(cell.is_null) << column;
    }
}

/// The latest rows, column by column.
struct Block {
    rows: usize,
    /// The cells of each column: numbers as they are, text as its number in the pool or as [`OWN_TEXT`].
    cells: Vec<[u64; STRIDE]>,
    /// For each eight columns and each row, a bit for each cell that is null.
    nulls: [[u8; BLOCK]; MOST_COLUMNS / 8],
    /// A bit for each column that has a null, and one for each that has nothing else.
    some_null: u32,
    all_null: u32,
    /// Text that is not in the pool.
    texts: String,
}

impl Block {
    fn new(columns: usize) -> Block {
        Block {
            rows: 0,
            cells: vec![[0; STRIDE]; columns],
            nulls: [[0; BLOCK]; MOST_COLUMNS / 8],
            some_null: 0,
            all_null: u32::MAX,
            texts: String::new(),
        }
    }

    #[inline(always)]
    fn push<const N: usize>(&mut self, row: &Row<N>) {
        let at = self.rows % BLOCK;
        // Known sizes, so that no cell needs a check of its place.
        if let Some(columns) = self.cells.first_chunk_mut::<N>() {
            for (cells, bits) in columns.iter_mut().zip(&row.bits) {
                cells[at] = *bits;
            }
        }
        let nulls = row.nulls.to_le_bytes();
        for (nulls, bits) in self.nulls.iter_mut().zip(nulls).take(N.div_ceil(8)) {
            nulls[at] = bits;
        }
        self.some_null |= row.nulls;
        self.all_null &= row.nulls;
        self.rows = at + 1;
    }

    /// Begins anew.
    fn clear(&mut self) {
        self.rows = 0;
        self.some_null = 0;
        self.all_null = u32::MAX;
        self.texts.clear();
    }

    /// Keeps text that is not in the pool, for the next row.
    #[inline]
    fn own_text(&mut self, write: impl FnOnce(&mut String)) -> Cell {
        let place = self.texts.len();
        write(&mut self.texts);
        let len = self.texts.len() - place;
        Cell {
            bits: OWN_TEXT | (place as u64) << 32 | len as u64,
            is_null: false,
        }
    }

    fn column(&self, at: usize) -> &[u64] {
        &self.cells[at][..self.rows]
    }

    /// Returns which cells of a column are null.
    fn nulls(&self, at: usize) -> Nulls {
        match (self.some_null >> at & 1 != 0, self.all_null >> at & 1 != 0) {
            (false, _) => Nulls::None,
            (true, true) => Nulls::All,
            (true, false) => Nulls::But(self.valid(at)),
        }
    }

    /// Returns a bit for each cell of a column that is not null. Bits behind the last row mean nothing.
    fn valid(&self, at: usize) -> [u8; BLOCK / 8] {
        let rows = self.nulls[at / 8].as_chunks::<8>().0;
        let of_column = 0x0101_0101_0101_0101_u64 << (at % 8);
        let mut valid = [0; BLOCK / 8];
        for (valid, rows) in valid.iter_mut().zip(&rows[..self.rows.div_ceil(8)]) {
            // One bit of each byte is left, in its lowest place; the product has all of them side by side in its highest byte.
            let bits = (!u64::from_le_bytes(*rows) & of_column) >> (at % 8);
            *valid = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
        valid
    }

    /// Returns the text of a cell.
    fn text<'a>(&'a self, cell: u64, strings: &'a Strings) -> &'a [u8] {
        match cell & OWN_TEXT {
            0 => strings.get(StringId(cell as u32)).as_bytes(),
            _ => {
                let place = (cell & !OWN_TEXT) >> 32;
                &self.texts.as_bytes()[place as usize..][..cell as u32 as usize]
            }
        }
    }
}

/// The cells of a column of a block that are null.
enum Nulls {
    None,
    All,
    /// All but those that have a bit here.
    But([u8; BLOCK / 8]),
}

enum Values {
    Int(Vec<u64>),
    /// Their bits.
    Float(Vec<u64>),
    /// Where each text ends, and all texts. Bytes behind the last end mean nothing.
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
        let cells = block.column(at);
        let nulls = block.nulls(at);
        match (&mut self.values, &nulls) {
            (Values::Int(values) | Values::Float(values), _) => values.extend_from_slice(cells),
            (Values::Text(ends, _), Nulls::All) => {
                let end = ends.last().copied().unwrap_or(0);
                ends.resize(ends.len() + cells.len(), end);
            }
            (Values::Text(ends, texts), Nulls::None) => {
                put_texts(cells, |_| true, ends, texts, block, strings);
            }
            (Values::Text(ends, texts), Nulls::But(valid)) => {
                let is_valid = |row| valid[row / 8 % valid.len()] >> (row % 8) & 1 != 0;
                put_texts(cells, is_valid, ends, texts, block, strings);
            }
        }
        match (&mut self.valid, nulls) {
            (Some(all), Nulls::But(valid)) => all.append_packed_range(0..cells.len(), &valid),
            (Some(all), Nulls::None) => all.append_n(cells.len(), true),
            (Some(all), Nulls::All) => all.append_n(cells.len(), false),
            (None, _) => {}
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
                let values = Buffer::from_vec(std::mem::replace(values, next));
                Arc::new(Int64Array::try_new(values.into(), nulls)?)
            }
            Values::Float(values) => {
                let next = Vec::with_capacity(values.len());
                let values = Buffer::from_vec(std::mem::replace(values, next));
                Arc::new(Float64Array::try_new(values.into(), nulls)?)
            }
            Values::Text(ends, texts) => {
                let rows = ends.len() - 1;
                if nulls.as_ref().is_some_and(|nulls| nulls.null_count() == rows) {
                    // Many columns have nothing, and nothing needs no check.
                    ends.truncate(1);
                    return Ok(Arc::new(StringArray::new_null(rows)));
                }
                let mut next = Vec::with_capacity(ends.len());
                next.push(0);
                let ends = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(ends, next)));
                let mut texts = std::mem::take(texts);
                texts.truncate(last_end(&ends));
                Arc::new(StringArray::try_new(ends, texts.into(), nulls)?)
            }
        })
    }

    fn is_full(&self) -> bool {
        matches!(&self.values, Values::Text(ends, _) if last_end(ends) >= TEXT)
    }
}

/// Returns where the last text ends.
fn last_end(ends: &[i32]) -> usize {
    ends.last().map_or(0, |end| *end as usize)
}

/// Puts the texts of those cells that are valid behind the texts of a column, and where they end behind its ends. Bytes behind the last end mean nothing.
fn put_texts(
    cells: &[u64],
    is_valid: impl Fn(usize) -> bool,
    ends: &mut Vec<i32>,
    texts: &mut Vec<u8>,
    block: &Block,
    strings: &Strings,
) {
    let mut end = last_end(ends);
    let first = ends.len();
    ends.resize(first + cells.len(), 0);
    let ends = &mut ends[first..];
    let short = ShortTexts {
        pool: strings.short_texts(),
        own: block.texts.as_bytes(),
    };
    let mut row = 0;
    loop {
        let put;
        (put, end) = short.put(
            &cells[row..],
            |at| is_valid(row + at),
            &mut ends[row..],
            texts,
            end,
        );
        row += put;
        let Some(cell) = cells.get(row) else { return };
        let text = block.text(*cell, strings);
        let begin = end;
        end += text.len();
        // Room for the others, if they are short.
        let room = end + (cells.len() - row) * SHORT;
        if texts.len() < room {
            texts.resize(room + BLOCK * SHORT, 0);
        }
        texts[begin..end].copy_from_slice(text);
        ends[row] = end as i32;
        row += 1;
    }
}

/// Where short texts are.
#[derive(Clone, Copy)]
struct ShortTexts<'a> {
    pool: Pool<'a>,
    /// Those that are not in the pool, with [`PADDING`] behind them.
    own: &'a [u8],
}

impl ShortTexts<'_> {
    /// Puts texts, up to one that is not short or has no room. Returns how many cells that were, and where the texts end. A copy of a fixed size needs no call.
    #[inline]
    fn put(
        self,
        cells: &[u64],
        is_valid: impl Fn(usize) -> bool,
        ends: &mut [i32],
        texts: &mut [u8],
        mut end: usize,
    ) -> (usize, usize) {
        for (row, (cell, to)) in cells.iter().zip(ends).enumerate() {
            if is_valid(row) {
                let place = texts
                    .get_mut(end..)
                    .and_then(|rest| rest.first_chunk_mut::<SHORT>());
                let (Some((bytes, len)), Some(place)) = (self.get(*cell), place) else {
                    return (row, end);
                };
                *place = *bytes;
                end += len;
            }
            *to = end as i32;
        }
        (cells.len(), end)
    }

    /// Returns bytes that begin with a text, and its length, if it is short.
    #[inline(always)]
    fn get(&self, cell: u64) -> Option<(&[u8; SHORT], usize)> {
        if cell & OWN_TEXT == 0 {
            return self.pool.short(StringId(cell as u32));
        }
        let (place, len) = ((cell & !OWN_TEXT) >> 32, cell as u32 as usize);
        let bytes = self.own.get(place as usize..)?.first_chunk()?;
        (len <= SHORT).then_some((bytes, len))
    }
}

/// The rows of one table that are in no batch yet.
pub(crate) struct Rows {
    table: &'static Table,
    block: Block,
    columns: Vec<Column>,
    /// The rows in `columns`.
    rows: usize,
    /// Whether somebody reads the table.
    pub(crate) is_wanted: bool,
}

impl Rows {
    pub(crate) fn new(table: &'static Table, tables: &Selection) -> Rows {
        let columns = table.columns.iter();
        Rows {
            table,
            block: Block::new(table.columns.len()),
            columns: columns
                .map(|column| Column::new(column.kind, column.nullable))
                .collect(),
            rows: 0,
            is_wanted: tables.has(table),
        }
    }

    /// Keeps text that is not in the pool, for a cell of the next row.
    #[inline]
    pub(crate) fn own_text(&mut self, write: impl FnOnce(&mut String)) -> Cell {
        self.block.own_text(write)
    }

    /// Adds a row. Returns whether a block is full, so that [`settle`](Rows::settle) has to be called before the next row.
    #[inline(always)]
    pub(crate) fn push<const N: usize>(&mut self, row: &Row<N>, strings: &Strings) -> bool {
        debug_assert_eq!(N, self.columns.len(), "{}", self.table.name);
        self.block.push(row);
        // So a block adds no more than this to a column, and one text.
        let rows = self.block.rows;
        rows == BLOCK || self.block.texts.len() >= TEXT || rows * strings.longest() >= TEXT
    }

    /// Moves the block to the columns. Returns whether a batch is full.
    pub(crate) fn settle(&mut self, strings: &Strings) -> bool {
        self.block.texts.push_str(PADDING);
        for (at, column) in self.columns.iter_mut().enumerate() {
            column.extend(&self.block, at, strings);
        }
        self.rows += self.block.rows;
        self.block.clear();
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
