//! Many traces in one folder, partitioned as Hive does: `DIR/sched_slice/date=2026-11-27/machine=NAME/trace=NAME/part-0.parquet`.
//!
//! `ferretto-query` uses it for several traces. Engines read such a folder as tables with three further columns. Numbers such as `utid` are those of each
//! trace.
//!
//! A trace is there as a whole or not at all. Its files are written into a folder of their own below `DIR/.ferretto`, where no engine looks. A file `place`
//! says that they are complete and where they belong; then they are renamed into their tables. Whoever opens the folder next finishes such a move that was
//! interrupted, and removes what was not complete. Locks keep apart those who export into one folder at a time. A trace that is exported again takes the place
//! of its earlier tables.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use arrow_array::temporal_conversions::date32_to_datetime;
use arrow_array::{Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use crate::error::Error;
use crate::import::{Options, Report, import};
use crate::parquet_folder::{FILE, ParquetFolder, usual};
use crate::schema::{CLOCK_SNAPSHOT, MACHINE_TABLE, METADATA, TABLES, Table};
use crate::sink::Sink;

/// The folder for what is not complete. Spark, Hive and DataFusion pass over names that begin with a dot.
const OWN: &str = ".ferretto";
const LOCK: &str = "lock";
const PLACE: &str = "place";
const FILES: &str = "tables";
/// The value of a partition that the trace does not tell.
const UNKNOWN: &str = "unknown";
/// The date of a trace without a clock that knows it.
const NO_DATE: &str = "1970-01-01";
/// The most letters of a name; a file system has 255 bytes for it.
const LONGEST: usize = 200;

/// The columns that each table of such a folder has beyond its own, as they follow each other in paths.
pub const PARTITIONS: [&str; 3] = ["date", "machine", "trace"];

/// Where the tables of one trace are: the values of its partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The day on which the trace began, in UTC, such as `2026-11-27`.
    pub date: String,
    /// The machine that recorded it.
    pub machine: String,
    /// The name of the trace.
    pub trace: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [date, machine, trace] = PARTITIONS;
        write!(
            f,
            "{date}={}/{machine}={}/{trace}={}",
            self.date, self.machine, self.trace
        )
    }
}

impl Place {
    /// Returns the place of a trace from the path of one of its files, as it follows the folder of a table: `date=…/machine=…/trace=…/part-0.parquet`.
    pub fn of_path(path: &str) -> Option<Place> {
        let mut parts = path.split('/');
        let mut next = |name| value(parts.next()?.as_ref(), name);
        let [date, machine, trace] = PARTITIONS;
        Some(Place {
            date: next(date)?,
            machine: next(machine)?,
            trace: next(trace)?,
        })
    }
}

/// What has become of a trace in the folder.
#[derive(Debug, Clone)]
pub struct Added {
    /// What was read.
    pub report: Report,
    /// Where its tables are.
    pub place: Place,
    /// Whether it has taken the place of an earlier export.
    pub has_replaced: bool,
}

/// A folder that gets the tables of many traces.
#[derive(Debug)]
pub struct PartitionedFolder {
    folder: PathBuf,
    /// What this has added.
    added: BTreeSet<Place>,
}

impl PartitionedFolder {
    /// Makes the folder, if it does not exist, and tidies what an interrupted export has left.
    ///
    /// # Errors
    /// If it cannot be made or written, or has the tables of one trace, without partitions.
    pub fn open(folder: &Path) -> Result<PartitionedFolder, Error> {
        let own = folder.join(OWN);
        fs::create_dir_all(folder).map_err(|error| Error::Write(folder.to_owned(), error))?;
        if TABLES
            .iter()
            .any(|table| folder.join(table.name).join(FILE).exists())
        {
            return Err(Error::Unpartitioned(folder.to_owned()));
        }
        fs::create_dir_all(&own).map_err(|error| Error::Write(own, error))?;
        let opened = PartitionedFolder {
            folder: folder.to_owned(),
            added: BTreeSet::new(),
        };
        let _lock = opened.lock()?;
        opened.tidy()?;
        Ok(opened)
    }

    /// Whether a folder has tables with partitions.
    pub fn is_one(folder: &Path) -> bool {
        let has_date = |table: &&Table| {
            let entries = fs::read_dir(folder.join(table.name))
                .into_iter()
                .flatten()
                .flatten();
            entries
                .into_iter()
                .any(|entry| value(&entry.file_name(), PARTITIONS[0]).is_some())
        };
        TABLES.iter().any(has_date)
    }

    /// Lists the traces of a folder, in the order of their places.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn traces(folder: &Path) -> Result<Vec<Place>, Error> {
        // A trace has this table even if it has no rows.
        let metadata = folder.join(METADATA.name);
        let mut places = Vec::new();
        for (date, folder) in partitions(&metadata, PARTITIONS[0])? {
            for (machine, folder) in partitions(&folder, PARTITIONS[1])? {
                for (trace, _) in partitions(&folder, PARTITIONS[2])? {
                    places.push(Place {
                        date: date.clone(),
                        machine: machine.clone(),
                        trace,
                    });
                }
            }
        }
        places.sort();
        Ok(places)
    }

    /// Makes tables of a trace and adds them. `name` is the trace's; if another trace has it on this machine and day, its `trace_uuid` follows it. A machine
    /// without a name is called by its kernel and architecture.
    ///
    /// # Errors
    /// If the trace cannot be read, or the tables cannot be stored. The folder is then as it was.
    pub fn add(
        &mut self,
        source: impl Read,
        name: &str,
        machine: Option<&str>,
        options: &Options,
    ) -> Result<Added, Error> {
        let (stage, _its_lock, always) = self.stage()?;
        let files = stage.path().join(FILES);
        fs::create_dir(&files).map_err(|error| Error::Write(files.clone(), error))?;
        let mut sink = Watched {
            files: ParquetFolder::start(&files, always)?,
            known: Known::default(),
        };
        let imported = import(source, options, &mut sink);
        let Watched { files: writer, known } = sink;
        let report = match imported {
            Ok(report) => report,
            Err(error) => {
                writer.abandon();
                return Err(error);
            }
        };
        writer.finish()?;

        let _lock = self.lock()?;
        let place = Place {
            date: known.realtime.and_then(day).unwrap_or_else(|| NO_DATE.to_owned()),
            machine: plain(machine.unwrap_or(&known.machine.unwrap_or_default())),
            trace: plain(name),
        };
        let place = self.free(place, known.uuid.as_deref())?;
        let has_replaced = self.file(&METADATA, &place.to_string()).exists();
        // Where the earlier export has rows and this one has none, an empty file replaces them.
        let gone = |table: &&&'static Table| {
            self.file(table, &place.to_string()).exists() && !files.join(table.name).exists()
        };
        let gone: Vec<_> = TABLES.iter().filter(gone).copied().collect();
        ParquetFolder::start(&files, gone)?.finish()?;
        self.complete(stage, &place)?;
        self.added.insert(place.clone());
        Ok(Added {
            report,
            place,
            has_replaced,
        })
    }

    /// Returns the place for a trace: that of its name unless another trace has it.
    fn free(&self, place: Place, uuid: Option<&str>) -> Result<Place, Error> {
        let file = self.file(&METADATA, &place.to_string());
        if !file.exists() {
            return Ok(place);
        }
        match (uuid, uuid_in(&file)?) {
            (Some(uuid), Some(known)) if uuid != known => Ok(Place {
                trace: format!("{}-{uuid}", place.trace),
                ..place
            }),
            (Some(_), Some(_)) => Ok(place),
            // Without a number nothing tells them apart but that nobody names one trace twice at once.
            _ if self.added.contains(&place) => Err(Error::Taken(place.to_string())),
            _ => Ok(place),
        }
    }

    /// Makes a folder for the files of one trace, with a lock that says that somebody writes there, and says which tables need a file.
    fn stage(&self) -> Result<(TempDir, File, Vec<&'static Table>), Error> {
        let _lock = self.lock()?;
        let own = self.folder.join(OWN);
        let stage = tempfile::Builder::new()
            .prefix("incoming-")
            .tempdir_in(&own)
            .map_err(|error| Error::Write(own, error))?;
        let lock = locked(&stage.path().join(LOCK))?;
        // Each table has at least one file, as engines cannot read a table without. `metadata` lists the traces.
        let needs =
            |table: &&'static Table| table.name == METADATA.name || !self.folder.join(table.name).exists();
        let always = usual().filter(needs).collect();
        Ok((stage, lock, always))
    }

    /// Says that the files are complete, and moves them into their tables.
    fn complete(&self, stage: TempDir, place: &Place) -> Result<(), Error> {
        let path = stage.path().to_owned();
        let written = path.join("place.part");
        fs::write(&written, place.to_string())
            .and_then(|()| fs::rename(&written, path.join(PLACE)))
            .map_err(|error| Error::Write(written, error))?;
        // From here on the trace is there, whatever happens: what fails is done when the folder is opened next.
        let path = stage.keep();
        self.move_in(&path)?;
        fs::remove_dir_all(&path).map_err(|error| Error::Write(path, error))
    }

    /// Moves the files of a complete trace into their tables, as far as they are not there yet.
    fn move_in(&self, stage: &Path) -> Result<(), Error> {
        let failed = |path: &Path, error| Error::Write(path.to_owned(), error);
        let list = stage.join(PLACE);
        let place = fs::read_to_string(&list).map_err(|error| failed(&list, error))?;
        // Last comes the table that lists the traces.
        let is_list = |table: &&&Table| table.name == METADATA.name;
        let others = TABLES.iter().filter(|table| !is_list(table));
        for table in others.chain(TABLES.iter().filter(is_list)) {
            let from = stage.join(FILES).join(table.name).join(FILE);
            if !from.exists() {
                continue;
            }
            let to = self.file(table, &place);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
            }
            fs::rename(from, &to).map_err(|error| failed(&to, error))?;
        }
        Ok(())
    }

    /// Finishes what was complete, and removes what was not. The folder is locked.
    fn tidy(&self) -> Result<(), Error> {
        let own = self.folder.join(OWN);
        let entries = fs::read_dir(&own).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(|error| Error::Write(own, error))? {
            let stage = entry.path();
            if !stage.is_dir() {
                continue;
            }
            let lock = File::open(stage.join(LOCK));
            if lock.is_ok_and(|lock| lock.try_lock().is_err()) {
                continue;
            }
            if stage.join(PLACE).exists() {
                self.move_in(&stage)?;
            }
            fs::remove_dir_all(&stage).map_err(|error| Error::Write(stage, error))?;
        }
        Ok(())
    }

    fn lock(&self) -> Result<File, Error> {
        locked(&self.folder.join(OWN).join(LOCK))
    }

    fn file(&self, table: &Table, place: &str) -> PathBuf {
        self.folder.join(table.name).join(place).join(FILE)
    }
}

/// Lists the files in a folder and the folders below it, which may be traces: those without a dot at the beginning, in the order of their names. Folders of
/// tables are passed over.
///
/// # Errors
/// If a folder cannot be read.
pub fn traces_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // A link to a folder could lead back here.
        match entry.file_type()?.is_dir() {
            true if entry.path().join(OWN).is_dir() => {}
            true => found.extend(traces_in(&entry.path())?),
            false if entry.path().is_file() => found.push(entry.path()),
            false => {}
        }
    }
    Ok(found)
}

fn locked(path: &Path) -> Result<File, Error> {
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let lock = lock.and_then(|lock| lock.lock().map(|()| lock));
    lock.map_err(|error| Error::Write(path.to_owned(), error))
}

/// The folders `NAME=VALUE` of a folder, with their values.
fn partitions(folder: &Path, name: &str) -> Result<Vec<(String, PathBuf)>, Error> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| Error::Folder(folder.to_owned(), error))?;
    let partition = |entry: fs::DirEntry| Some((value(&entry.file_name(), name)?, entry.path()));
    Ok(entries.into_iter().filter_map(partition).collect())
}

fn value(file_name: &std::ffi::OsStr, name: &str) -> Option<String> {
    let value = file_name.to_str()?.strip_prefix(name)?.strip_prefix('=')?;
    Some(value.to_owned())
}

/// A name as all engines read it from a path alike, which differ in what they escape.
fn plain(name: &str) -> String {
    let letter = |letter: char| match letter.is_ascii_alphanumeric() || "._-+@,".contains(letter) {
        true => letter,
        false => '_',
    };
    match name.is_empty() {
        true => UNKNOWN.to_owned(),
        false => name.chars().map(letter).take(LONGEST).collect(),
    }
}

/// The day of a time in ns.
fn day(realtime: i64) -> Option<String> {
    let days = realtime.div_euclid(86_400_000_000_000);
    let time = date32_to_datetime(i32::try_from(days).ok()?)?;
    Some(time.date().to_string())
}

/// The number that distinguishes the trace of these tables from others.
fn uuid_in(metadata: &Path) -> Result<Option<String>, Error> {
    let failed = |error: io::Error| Error::Folder(metadata.to_owned(), error);
    let file = File::open(metadata).map_err(failed)?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|builder| builder.build());
    let mut known = Known::default();
    for batch in reader.map_err(|error| failed(io::Error::other(error)))? {
        known.metadata(&batch.map_err(|error| failed(io::Error::other(error)))?);
    }
    Ok(known.uuid)
}

/// What the tables themselves say about the place of a trace.
#[derive(Debug, Default)]
struct Known {
    uuid: Option<String>,
    machine: Option<String>,
    /// The first reading of the clock of days.
    realtime: Option<i64>,
}

fn texts<'a>(batch: &'a RecordBatch, column: &str) -> Option<&'a StringArray> {
    batch.column_by_name(column)?.as_any().downcast_ref()
}

fn numbers<'a>(batch: &'a RecordBatch, column: &str) -> Option<&'a Int64Array> {
    batch.column_by_name(column)?.as_any().downcast_ref()
}

impl Known {
    fn metadata(&mut self, batch: &RecordBatch) {
        if let (Some(names), Some(values)) = (texts(batch, "name"), texts(batch, "str_value")) {
            let row = names.iter().position(|name| name == Some("trace_uuid"));
            self.uuid = row
                .filter(|row| values.is_valid(*row))
                .map(|row| values.value(row).to_owned())
                .or(self.uuid.take());
        }
    }

    fn clocks(&mut self, batch: &RecordBatch) {
        if let (Some(names), Some(values)) = (texts(batch, "clock_name"), numbers(batch, "clock_value"))
            && self.realtime.is_none()
        {
            let row = names.iter().position(|name| name == Some("REALTIME"));
            self.realtime = row.map(|row| values.value(row));
        }
    }

    fn machine(&mut self, batch: &RecordBatch) {
        let words = ["sysname", "release", "arch"].map(|column| {
            let values = texts(batch, column)?;
            (values.len() > 0 && values.is_valid(0) && !values.value(0).is_empty()).then(|| values.value(0))
        });
        let words: Vec<&str> = words.into_iter().flatten().collect();
        self.machine = Some(words.join("-"));
    }
}

/// Writes files and notes what says where they belong.
struct Watched {
    files: ParquetFolder,
    known: Known,
}

impl Sink for Watched {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        match table.name {
            name if name == METADATA.name => self.known.metadata(&batch),
            name if name == CLOCK_SNAPSHOT.name => self.known.clocks(&batch),
            name if name == MACHINE_TABLE.name => self.known.machine(&batch),
            _ => {}
        }
        self.files.write(table, batch)
    }
}
