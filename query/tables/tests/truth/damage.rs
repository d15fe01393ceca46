//! Traces that are damaged, cut off or compressed, and memory.

use arrow_array::RecordBatch;
use ferretto_tables::{Error, Memory, Options, Report, Selection, Sink, Table, expanded, import};

use crate::generator::{Generator, Numbers};
use crate::ours;

fn tables(bytes: &[u8]) -> Result<(Report, Memory), Error> {
    let mut memory = Memory::default();
    let (_, source) = expanded(bytes).unwrap();
    let report = import(source, &Options::default(), &mut memory)?;
    Ok((report, memory))
}

fn rows(memory: &Memory) -> Vec<Vec<String>> {
    ferretto_tables::TABLES
        .iter()
        .map(|table| ours::rows(table, memory))
        .collect()
}

#[test]
fn compressed_traces_have_the_same_tables() {
    let whole = Generator::whole(3);
    let (report, memory) = tables(&whole).unwrap();
    assert_eq!(report.losses, 0);
    let (same, compressed) = tables(&zstd::encode_all(whole.as_slice(), 1).unwrap()).unwrap();
    assert_eq!(same, report);
    assert_eq!(rows(&compressed), rows(&memory));
}

#[test]
fn less_memory_gives_the_same_tables() {
    let whole = Generator::whole(4);
    let (_, much) = tables(&whole).unwrap();
    let mut little = Memory::default();
    import(
        whole.as_slice(),
        &Options {
            memory: 1000,
            ..Options::default()
        },
        &mut little,
    )
    .unwrap();
    assert_eq!(rows(&little), rows(&much));
}

#[test]
fn what_is_cut_off_is_a_loss_and_the_rest_is_there() {
    let whole = Generator::whole(5);
    let mut numbers = Numbers::new(1);
    let mut cut_inside = 0;
    for _ in 0..40 {
        let length = 1 + numbers.below(whole.len() as u64 - 1) as usize;
        match tables(&whole[..length]) {
            Ok((report, memory)) => {
                assert_eq!(report.bytes, length as u64);
                cut_inside += report.losses;
                let lost = ours::rows(loss(), &memory);
                assert_eq!(
                    lost.iter().filter(|row| row.contains("\tcut\t")).count() as u64,
                    report.losses
                );
            }
            Err(error) => assert!(matches!(error, Error::NoTrace(_)) || length < 40, "{error}"),
        }
    }
    assert!(cut_inside > 20);
}

fn loss() -> &'static Table {
    ferretto_tables::TABLES
        .iter()
        .find(|table| table.name == "ferretto_loss")
        .unwrap()
}

#[test]
fn any_damage_is_survived_and_told() {
    let mut numbers = Numbers::new(2);
    let mut told = 0;
    for seed in 0..60 {
        let mut bytes = Generator::whole(seed % 7);
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(bytes.len() as u64) as usize;
            bytes[at] = numbers.below(256) as u8;
        }
        if let Ok((report, memory)) = tables(&bytes) {
            told += report.losses;
            let lost = ours::rows(loss(), &memory);
            let damaged = lost
                .iter()
                .filter(|row| row.contains("\tdamage\t") || row.contains("\tcut\t"))
                .count();
            assert_eq!(damaged as u64, report.losses);
        }
    }
    assert!(told > 0);
}

#[test]
fn an_empty_file_is_an_error() {
    let error = tables(b"").err().unwrap();
    assert!(
        matches!(&error, Error::NoTrace(what) if what == "is empty"),
        "{error}"
    );
}

#[test]
fn what_is_no_trace_is_an_error() {
    for bytes in [&b"{\"traceEvents\": []}"[..], b"no trace at all"] {
        let error = tables(bytes).err().unwrap();
        assert!(
            matches!(&error, Error::NoTrace(what) if what.contains("no Perfetto trace")),
            "{error}"
        );
    }
}

/// Drops all rows, and watches how much memory the process has.
struct Nothing {
    most: u64,
}

impl Sink for Nothing {
    fn write(&mut self, _: &'static Table, _: RecordBatch) -> Result<(), Error> {
        self.most = self.most.max(resident());
        Ok(())
    }
}

/// Returns the bytes of memory that the process has.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A trace that is made while it is read.
struct Endless {
    generator: Generator,
    ready: Vec<u8>,
    at: usize,
    left: u64,
}

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.ready.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.generator.compact(400);
            self.generator.track_events(100);
            self.ready =
                std::mem::replace(&mut self.generator.trace, ferretto_wire::Writer::new()).into_vec();
            self.at = 0;
            self.left = self.left.saturating_sub(self.ready.len() as u64);
        }
        let count = buffer.len().min(self.ready.len() - self.at);
        buffer[..count].copy_from_slice(&self.ready[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn memory_does_not_grow_with_the_trace() {
    const MEMORY: usize = 4 << 20;
    /// Batches of all tables, the packet, and what the other tests of this process have.
    const BESIDES: u64 = 200 << 20;
    let megabytes = std::env::var("FERRETTO_TABLES_MB")
        .ok()
        .and_then(|size| size.parse().ok())
        .unwrap_or(12_u64);
    let mut generator = Generator::new(1);
    generator.beginning();
    let trace = Endless {
        generator,
        ready: Vec::new(),
        at: 0,
        left: megabytes << 20,
    };
    let mut nothing = Nothing { most: 0 };
    let report = import(
        trace,
        &Options {
            memory: MEMORY,
            ..Options::default()
        },
        &mut nothing,
    )
    .unwrap();
    println!(
        "{} bytes of trace, at most {} bytes resident",
        report.bytes, nothing.most
    );
    assert!(report.bytes >= megabytes << 20);
    assert!(nothing.most < BESIDES, "{} bytes", nothing.most);
}

#[test]
fn only_tables_that_are_asked_for_are_made() {
    let trace = Generator::whole(3);
    let mut all = Memory::default();
    import(trace.as_slice(), &Options::default(), &mut all).unwrap();
    assert!(all.tables.len() > 10);
    for (name, batches) in &all.tables {
        let mut one = Memory::default();
        let options = Options {
            tables: Selection::Named([*name].into()),
            ..Options::default()
        };
        import(trace.as_slice(), &options, &mut one).unwrap();
        assert_eq!(one.tables.keys().collect::<Vec<_>>(), [name]);
        assert_eq!(one.tables[name], *batches);
    }
}
