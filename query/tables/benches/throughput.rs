//! How many megabytes of trace a processor makes tables of in a second: scheduling in the compact encoding, and track events. First without a sink, then
//! as Parquet files.
//!
//! `cargo bench -p ferretto-tables` in `query`; `FERRETTO_TABLES_MB` is the size of each trace, 64 if it is not set.
#![allow(clippy::unwrap_used)]

#[path = "../tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;

use std::time::Instant;

use ferretto_tables::{Error, Options, ParquetFolder, Sink, Table, import};

struct Nothing {
    rows: usize,
}

impl Sink for Nothing {
    fn write(&mut self, _: &'static Table, batch: arrow_array::RecordBatch) -> Result<(), Error> {
        self.rows += batch.num_rows();
        Ok(())
    }
}

fn main() {
    let megabytes: usize = std::env::var("FERRETTO_TABLES_MB")
        .ok()
        .and_then(|size| size.parse().ok())
        .unwrap_or(64);
    type Step = fn(&mut generator::Generator);
    let kinds: [(&str, Step); 2] = [
        ("sched", |it| it.compact(400)),
        ("track events", |it| it.track_events(1000)),
    ];
    for (name, step) in kinds {
        let mut generator = generator::Generator::new(7);
        generator.beginning();
        while generator.trace.len() < megabytes << 20 {
            step(&mut generator);
        }
        let trace = generator.trace.into_vec();
        let speed = |begin: Instant| trace.len() as f64 / 1e6 / begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let mut nothing = Nothing { rows: 0 };
        import(trace.as_slice(), &Options::default(), &mut nothing).unwrap();
        let (rows, alone) = (nothing.rows, speed(begin));
        let folder = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let mut parquet = ParquetFolder::create(folder.path()).unwrap();
        import(trace.as_slice(), &Options::default(), &mut parquet).unwrap();
        parquet.finish().unwrap();
        let written = speed(begin);
        let sizes = std::fs::read_dir(folder.path()).unwrap().map(|entry| {
            let file = entry.unwrap().path().join("part-0.parquet");
            file.metadata().unwrap().len()
        });
        let (parquet, compressed) = (
            sizes.sum::<u64>(),
            zstd::encode_all(trace.as_slice(), 3).unwrap().len(),
        );
        println!(
            "{name}: {:.0} MB, {rows} rows; {alone:.0} MB/s without a sink, {written:.0} MB/s as Parquet; {:.1} MB of Parquet, {:.1} MB of trace under zstd",
            trace.len() as f64 / 1e6,
            parquet as f64 / 1e6,
            compressed as f64 / 1e6,
        );
    }
}
