//! Many traces in one folder: where they are, and what failures and interruptions leave.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ferretto_tables::{Error, Options, ParquetFolder, PartitionedFolder, TABLES, import, traces_in};
use ferretto_wire::Writer;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::generator::{Generator, Numbers};

const FILE: &str = "part-0.parquet";

/// A trace with the packet that distinguishes it from others.
fn with_uuid(seed: u64, uuid: u64) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.nested(1, |packet| {
        packet.varint_field(10, 1);
        packet.nested(89, |it| {
            it.varint_field(1, uuid);
            it.varint_field(2, uuid);
        });
    });
    [Generator::whole(seed), packet.into_vec()].concat()
}

fn open(folder: &Path) -> PartitionedFolder {
    PartitionedFolder::open(folder).unwrap()
}

fn add(folder: &mut PartitionedFolder, trace: &[u8], name: &str) -> String {
    let added = folder.add(trace, name, Some("here"), &Options::default());
    added.unwrap().place.to_string()
}

fn rows(path: &Path) -> i64 {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    file.metadata().file_metadata().num_rows()
}

/// All files but those of locks, with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with("lock") => {}
                false => {
                    found.insert(path.clone(), fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

#[test]
fn each_trace_is_a_partition_with_the_rows_that_it_has_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let many = scratch.path().join("many");
    let mut folder = open(&many);
    assert!(!PartitionedFolder::is_one(&many));
    let mut with_rows = 0;
    for seed in 0..4 {
        let trace = Generator::whole(seed);
        let added = folder
            .add(
                trace.as_slice(),
                &format!("trace {seed}.pftrace"),
                None,
                &Options::default(),
            )
            .unwrap();
        assert_eq!(added.place.date, "2006-07-14");
        assert!(added.place.machine.starts_with("Linux-6.1.0-"), "{}", added.place);
        assert_eq!(added.place.trace, format!("trace_{seed}.pftrace"));
        assert!(!added.has_replaced);
        let alone = scratch.path().join(format!("alone {seed}"));
        let mut files = ParquetFolder::create(&alone).unwrap();
        assert_eq!(
            added.report,
            import(trace.as_slice(), &Options::default(), &mut files).unwrap()
        );
        files.finish().unwrap();
        // Kernel events have no files unless they are asked for.
        assert!(!alone.join("ftrace_event").exists() && !many.join("ftrace_event").exists());
        for table in TABLES.iter().filter(|table| table.name != "ftrace_event") {
            let path = many.join(table.name).join(added.place.to_string()).join(FILE);
            let expected = rows(&alone.join(table.name).join(FILE));
            let is_needed = seed == 0 || table.name == "metadata";
            match path.exists() {
                true => assert!(
                    rows(&path) == expected && (expected > 0 || is_needed),
                    "{}",
                    table.name
                ),
                false => assert!(expected == 0 && !is_needed, "{}", table.name),
            }
            with_rows += usize::from(expected > 0);
        }
    }
    assert!(with_rows > 60, "{with_rows}");
    assert!(PartitionedFolder::is_one(&many));
    let traces = PartitionedFolder::traces(&many).unwrap();
    assert_eq!(traces.len(), 4);
    // The other layout is not mixed with this one, either way round.
    assert!(matches!(
        PartitionedFolder::open(&scratch.path().join("alone 0")),
        Err(Error::Unpartitioned(_))
    ));
    assert!(matches!(ParquetFolder::create(&many), Err(Error::Occupied(_))));
}

#[test]
fn a_trace_without_a_clock_of_days_and_without_a_machine_has_a_place_too() {
    let scratch = tempfile::tempdir().unwrap();
    let mut generator = Generator::new(2);
    generator.track_events(10);
    let trace = generator.trace.into_vec();
    assert!(!trace.is_empty());
    let added = open(scratch.path()).add(trace.as_slice(), "", None, &Options::default());
    assert_eq!(
        added.unwrap().place.to_string(),
        "date=1970-01-01/machine=unknown/trace=unknown"
    );
}

#[test]
fn a_trace_that_fails_leaves_the_folder_as_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let mut folder = open(scratch.path());
    add(&mut folder, &Generator::whole(1), "whole");
    let before = contents(scratch.path());
    let failed = folder.add(&b"no trace"[..], "garbage", None, &Options::default());
    assert!(matches!(failed, Err(Error::NoTrace(_))));
    assert_eq!(contents(scratch.path()), before);
    // A damaged one has tables as far as it goes.
    let mut damaged = Generator::whole(2);
    damaged.truncate(damaged.len() - 3);
    let added = folder.add(damaged.as_slice(), "damaged", Some("here"), &Options::default());
    let added = added.unwrap();
    assert!(added.report.losses > 0);
    assert!(
        rows(
            &scratch
                .path()
                .join("ferretto_loss")
                .join(added.place.to_string())
                .join(FILE)
        ) > 0
    );
}

#[test]
fn an_export_again_takes_the_place_and_another_trace_of_the_name_does_not() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, other) = (with_uuid(1, 0x11), with_uuid(2, 0x22));
    let mut folder = open(scratch.path());
    let place = add(&mut folder, &first, "trace");
    let before = contents(scratch.path());
    assert_eq!(add(&mut folder, &first, "trace"), place);
    assert_eq!(contents(scratch.path()), before);
    let of_other = add(&mut folder, &other, "trace");
    assert_eq!(of_other, format!("{place}-00000000-0000-0022-0000-000000000022"));
    let before = contents(scratch.path());
    for (trace, place) in [(&other, &of_other), (&first, &place)] {
        let added = open(scratch.path()).add(trace.as_slice(), "trace", Some("here"), &Options::default());
        let added = added.unwrap();
        assert!(
            added.has_replaced && added.place.to_string() == *place,
            "{added:?}"
        );
    }
    assert_eq!(contents(scratch.path()), before);
    // A later run replaces a trace without a number. Another trace of the same run does not.
    let nameless = Generator::whole(3);
    let mut folder = open(scratch.path());
    add(&mut folder, &nameless, "nameless");
    let again = folder.add(nameless.as_slice(), "nameless", Some("here"), &Options::default());
    assert!(matches!(again, Err(Error::Taken(_))));
    let again = open(scratch.path()).add(nameless.as_slice(), "nameless", Some("here"), &Options::default());
    assert!(again.unwrap().has_replaced);
    assert_eq!(PartitionedFolder::traces(scratch.path()).unwrap().len(), 3);
}

#[test]
fn an_interrupted_export_is_finished_or_removed_by_the_next() {
    let trace = Generator::whole(1);
    let mut numbers = Numbers::new(1);
    for (replaces, moved) in [(false, 0), (false, 9), (true, 1), (true, usize::MAX)] {
        let scratch = tempfile::tempdir().unwrap();
        let mut folder = open(scratch.path());
        if replaces {
            // It had a table that it has no more.
            add(&mut folder, &Generator::whole(9), "trace");
            folder = open(scratch.path());
        }
        let place = add(&mut folder, &trace, "trace");
        drop(folder);
        let whole = contents(scratch.path());
        // As if the process had ended after so many renames, in any order.
        let stage = scratch.path().join(".ferretto/incoming-x");
        let mut tables: Vec<&str> = Vec::new();
        for table in TABLES {
            if scratch.path().join(table.name).join(&place).join(FILE).exists() {
                tables.insert(numbers.below(tables.len() as u64 + 1) as usize, table.name);
            }
        }
        for table in tables.iter().skip(moved) {
            fs::create_dir_all(stage.join("tables").join(table)).unwrap();
            let from = scratch.path().join(table).join(&place).join(FILE);
            fs::rename(from, stage.join("tables").join(table).join(FILE)).unwrap();
        }
        fs::create_dir_all(&stage).unwrap();
        fs::write(stage.join("place"), &place).unwrap();
        open(scratch.path());
        assert_eq!(contents(scratch.path()), whole, "{moved} were moved");

        // Not complete: as if it had never begun, unless somebody is still at it.
        fs::create_dir_all(stage.join("tables/thread")).unwrap();
        fs::write(stage.join("tables/thread").join(FILE), "half").unwrap();
        let lock = File::create(stage.join("lock")).unwrap();
        lock.lock().unwrap();
        open(scratch.path());
        assert!(stage.join("tables/thread").join(FILE).exists());
        drop(lock);
        open(scratch.path());
        assert_eq!(contents(scratch.path()), whole);
    }
}

#[test]
fn exports_into_one_folder_at_a_time_do_not_disturb_each_other() {
    let scratch = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let path = scratch.path();
            scope.spawn(move || {
                for trace in 0..3 {
                    let mut folder = open(path);
                    add(
                        &mut folder,
                        &Generator::whole(worker),
                        &format!("{worker}-{trace}"),
                    );
                }
            });
        }
    });
    assert_eq!(PartitionedFolder::traces(scratch.path()).unwrap().len(), 12);
    let left: Vec<_> = fs::read_dir(scratch.path().join(".ferretto")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_folder_of_traces_is_searched_to_its_ground() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir_all(scratch.path().join("b/c")).unwrap();
    for name in ["a", "b/c/d", ".hidden", "e"] {
        fs::write(scratch.path().join(name), "").unwrap();
    }
    open(&scratch.path().join("b/tables"));
    fs::write(scratch.path().join("b/tables/x"), "").unwrap();
    std::os::unix::fs::symlink(scratch.path(), scratch.path().join("f")).unwrap();
    let found = traces_in(scratch.path()).unwrap();
    assert_eq!(found, ["a", "b/c/d", "e"].map(|name| scratch.path().join(name)));
}
