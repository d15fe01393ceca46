//! Arbitrary bytes as a trace file, for the tables of `ferretto export`.

#![no_main]

use arrow_array::RecordBatch;
use ferretto_tables::{Error, Options, Selection, Sink, Table, expanded, import};
use libfuzzer_sys::fuzz_target;

/// Drops all rows.
struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, _: &'static Table, _: RecordBatch) -> Result<(), Error> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok((_, source)) = expanded(data) else { return };
    // Compressed input may expand to anything; other tests cover large traces.
    let source = std::io::Read::take(source, 1 << 20);
    // Little memory, so events go through the temporary file too.
    let _ = import(
        source,
        &Options {
            memory: 4096,
            tables: Selection::All,
        },
        &mut Nothing,
    );
});
