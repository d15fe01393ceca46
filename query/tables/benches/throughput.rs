//! How many megabytes of trace a processor makes tables of in a second: scheduling in the compact encoding, and track events. First without a sink, then
//! as Parquet files.
//!
//! `cargo bench -p ferretto-tables` in `query`; `FERRETTO_TABLES_MB` is the size of each trace, 64 if it is not set. A word behind `--` chooses the traces
//! whose name has it, a second word the sinks. Also says how much processor time all threads took, and how much memory was resident at most (Linux), as
//! traces come from files.
#![allow(clippy::unwrap_used)]

#[path = "../tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;

use std::fs::File;
use std::io::{Seek, Write};
use std::time::Instant;

use ferretto_wire::Writer;

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

/// The seconds of processor time that this process took so far. The kernel counts in ticks of 10 ms.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    let times = behind_name.split_whitespace().skip(11).take(2);
    times.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// The most MB that were resident since the last call.
fn most_resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    most.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1e3
}

/// Measures `work` on so many bytes and rows.
fn measure(name: &str, bytes: f64, work: impl FnOnce() -> Option<usize>) {
    most_resident();
    let (begin, processor) = (Instant::now(), processor_seconds());
    let rows = work();
    let (wall, processor) = (begin.elapsed().as_secs_f64(), processor_seconds() - processor);
    print!(
        "  {name}: {:.1} MB/s, {:.1} MB per second of processor time, {:.0} MB resident",
        bytes / 1e6 / wall,
        bytes / 1e6 / processor,
        most_resident()
    );
    match rows {
        Some(rows) => println!(", {rows} rows"),
        None => println!(),
    }
}

fn main() {
    let megabytes: u64 = std::env::var("FERRETTO_TABLES_MB")
        .ok()
        .and_then(|size| size.parse().ok())
        .unwrap_or(64);
    type Step = fn(&mut generator::Generator);
    let kinds: [(&str, Step); 2] = [
        ("sched", |it| it.compact(400)),
        ("track events", |it| it.track_events(1000)),
    ];
    // Cargo adds flags of its own.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (trace_word, sink_word) = (words.next(), words.next());
    let has =
        |name: &str, word: &Option<String>| word.as_ref().is_none_or(|word| name.contains(word.as_str()));
    let is_chosen = |name: &str| has(name, &trace_word);
    for (name, step) in kinds.into_iter().filter(|(name, _)| is_chosen(name)) {
        let mut generator = generator::Generator::new(7);
        generator.beginning();
        let mut trace = tempfile::tempfile().unwrap();
        let (mut size, mut compressed_size) = (0, 0);
        while size < megabytes << 20 {
            step(&mut generator);
            // A whole trace may be larger than memory.
            if generator.trace.len() >= 8 << 20 || size + generator.trace.len() as u64 >= megabytes << 20 {
                let piece = std::mem::replace(&mut generator.trace, Writer::new()).into_vec();
                size += piece.len() as u64;
                trace.write_all(&piece).unwrap();
                compressed_size += zstd::encode_all(&piece[..], 3).unwrap().len();
            }
        }
        let rewound = |mut trace: &File| {
            trace.rewind().unwrap();
            trace.try_clone().unwrap()
        };
        println!("{name}: {:.0} MB", size as f64 / 1e6);
        if has("without a sink", &sink_word) {
            measure("without a sink", size as f64, || {
                let mut nothing = Nothing { rows: 0 };
                import(rewound(&trace), &Options::default(), &mut nothing).unwrap();
                Some(nothing.rows)
            });
        }
        if !has("as Parquet", &sink_word) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        measure("as Parquet", size as f64, || {
            let mut parquet = ParquetFolder::create(folder.path()).unwrap();
            import(rewound(&trace), &Options::default(), &mut parquet).unwrap();
            parquet.finish().unwrap();
            None
        });
        let sizes = std::fs::read_dir(folder.path()).unwrap().map(|entry| {
            let file = entry.unwrap().path().join("part-0.parquet");
            file.metadata().unwrap().len()
        });
        println!(
            "  {:.1} MB of Parquet, {:.1} MB of trace under zstd",
            sizes.sum::<u64>() as f64 / 1e6,
            compressed_size as f64 / 1e6,
        );
    }
}
