//! What many small traces cost: to export into one folder, and to ask together. Run by `bench/many-traces`.
//!
//! `FERRETTO_TRACES` is their number, 1000 if it is not set; `FERRETTO_TRACE_KB` the size of each, 100. They have scheduling in the compact encoding, names
//! of processes and threads, and track events, of random events. `FERRETTO_KEEP` names a folder that keeps the tables.
#![allow(clippy::unwrap_used)]

#[path = "../../tables/tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;

use std::path::{Path, PathBuf};
use std::time::Instant;

use ferretto_sql::datafusion::arrow::util::pretty::pretty_format_batches;
use ferretto_sql::{Database, Options};
use ferretto_tables::PartitionedFolder;
use generator::Generator;

const LATENCY: &str = "select process.name as process, count(*) as waits, approx_percentile_cont(0.99) within group (order by latency_dur) as p99
from sched_latency_for_running_interval join thread using (utid) join process using (upid)
group by process.name order by p99 desc, process limit 10";

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

/// A trace of about so many bytes.
fn trace(seed: u64, bytes: usize) -> Vec<u8> {
    let mut generator = Generator::new(seed);
    generator.beginning();
    while generator.trace.len() < bytes {
        generator.process_tree();
        generator.compact(400);
        generator.track_events(25);
    }
    generator.trace.into_vec()
}

/// The files below a folder, and their bytes.
fn size(folder: &Path) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (of_files, of_bytes) = match entry.file_type().unwrap().is_dir() {
            true => size(&entry.path()),
            false => (1, entry.metadata().unwrap().len()),
        };
        files += of_files;
        bytes += of_bytes;
    }
    (files, bytes)
}

/// The most MB that were resident since the last call (Linux).
fn most_resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    most.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1e3
}

/// Asks and says how long that took. Returns the answer.
async fn ask(database: &mut Database, what: &str, sql: &str) -> String {
    most_resident();
    let begin = Instant::now();
    let statement = database.parse(sql).unwrap().remove(0);
    let batches = database.run(statement).await.unwrap().collect().await.unwrap();
    println!(
        "{what}: {:.2} s, {:.0} MB resident",
        begin.elapsed().as_secs_f64(),
        most_resident()
    );
    pretty_format_batches(&batches).unwrap().to_string()
}

fn main() {
    let (count, kilobytes) = (number("FERRETTO_TRACES", 1000), number("FERRETTO_TRACE_KB", 100));
    let scratch = tempfile::tempdir().unwrap();
    let tables =
        std::env::var_os("FERRETTO_KEEP").map_or_else(|| scratch.path().join("tables"), PathBuf::from);
    let mut folder = PartitionedFolder::open(&tables).unwrap();
    let (mut seconds, mut bytes, mut compressed) = (0.0, 0, 0);
    most_resident();
    for seed in 0..count {
        let trace = trace(seed, kilobytes as usize * 1000);
        bytes += trace.len();
        compressed += zstd::encode_all(trace.as_slice(), 3).unwrap().len();
        let begin = Instant::now();
        // A machine for each ten of them.
        let (name, machine) = (format!("{seed}.pftrace"), format!("machine-{}", seed / 10));
        folder
            .add(
                trace.as_slice(),
                &name,
                Some(&machine),
                &ferretto_tables::Options::default(),
            )
            .unwrap();
        seconds += begin.elapsed().as_secs_f64();
    }
    let per_trace = |total: u64| total as f64 / count as f64;
    let (files, parquet) = size(&tables);
    println!(
        "{count} traces of {:.1} kB ({:.1} kB under zstd): {:.1} ms each to export, {:.1} kB of Parquet in {:.1} files, {:.0} MB resident",
        per_trace(bytes as u64) / 1e3,
        per_trace(compressed as u64) / 1e3,
        seconds * 1e3 / count as f64,
        per_trace(parquet) / 1e3,
        per_trace(files),
        most_resident()
    );
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let begin = Instant::now();
        let mut database = Database::open(tables.as_os_str(), &Options::default()).await.unwrap();
        println!("opened: {:.2} s", begin.elapsed().as_secs_f64());
        let answer = ask(&mut database, "p99 of scheduling latency by process, all traces", LATENCY).await;
        ask(&mut database, "the same again", LATENCY).await;
        let of_machine = LATENCY.replace(
            "\ngroup by",
            "\nwhere sched_latency_for_running_interval.machine = 'machine-0' and thread.machine = 'machine-0' and process.machine = 'machine-0'\ngroup by",
        );
        ask(&mut database, "the same of one machine, ten traces", &of_machine).await;
        println!("{answer}");
    });
}
