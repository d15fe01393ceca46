//! Records that come in any order and are read back by their times.
//!
//! The formats that are lists of events in time call it. The records are in a file without a name; memory has 24 bytes for each.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

/// The place of a record.
#[derive(Debug, Clone, Copy)]
struct Place {
    time: u64,
    offset: u64,
    length: u32,
}

/// Records on their way to be sorted.
pub(super) struct SortedSpool {
    out: BufWriter<File>,
    places: Vec<Place>,
    end: u64,
}

impl SortedSpool {
    /// Begins without records.
    ///
    /// # Errors
    /// If there can be no temporary file.
    pub(super) fn new() -> io::Result<SortedSpool> {
        Ok(SortedSpool {
            out: BufWriter::new(tempfile::tempfile()?),
            places: Vec::new(),
            end: 0,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub(super) fn push(&mut self, time: u64, record: &[u8]) -> io::Result<()> {
        self.out.write_all(record)?;
        self.places.push(Place {
            time,
            offset: self.end,
            length: record.len() as u32,
        });
        self.end += record.len() as u64;
        Ok(())
    }

    /// Passes the records to `visit` by their times; those of one time in the order in which they came.
    ///
    /// # Errors
    /// The errors of `visit`, or if the temporary file cannot be read.
    pub(super) fn each(mut self, mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        self.out.flush()?;
        self.places.sort_by_key(|place| place.time);
        let mut record = Vec::new();
        for place in &self.places {
            record.resize(place.length as usize, 0);
            self.out.get_ref().read_exact_at(&mut record, place.offset)?;
            visit(place.time, &record)?;
        }
        Ok(())
    }
}
