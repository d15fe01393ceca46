//! The data source with directories of its own, which a made-up table of mounts calls file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ferretto_proto::messages::inode_file_config::MountPointMappingEntry;
use ferretto_proto::messages::inode_file_map::entry::Type;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{InodeFileConfig, InodeFileMap as Map, Message, MessageField, TracePacket};

use super::walk::Walk;
use super::*;
use crate::test_files::TempDir;

const MS: u64 = 1_000_000;
/// The time after which a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that counts as a file system, and instances that know of it.
struct Fixture {
    files: TempDir,
    proc: TempDir,
    static_files: TempDir,
    known: Arc<KnownFiles>,
}

impl Fixture {
    fn new() -> Self {
        let (files, proc, static_files) = (
            TempDir::new("files"),
            TempDir::new("proc"),
            TempDir::new("system"),
        );
        let known = KnownFiles::with_static_root(static_files.path().to_str().unwrap());
        let fixture = Self {
            files,
            proc,
            static_files,
            known: Arc::new(known),
        };
        fixture.mount(&[&fixture.path("")]);
        fixture
    }

    /// Makes the table of mounts say that the device of the files is mounted there.
    fn mount(&self, points: &[&str]) {
        let device = self.device();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let lines = points
            .iter()
            .map(|point| format!("9 1 {major}:{minor} / {point} rw - ext4 /dev/x rw\n"));
        self.proc.write("self/mountinfo", lines.collect::<String>());
    }

    fn device(&self) -> u64 {
        std::fs::metadata(self.files.path()).unwrap().dev()
    }

    fn path(&self, name: &str) -> String {
        let path = match name {
            "" => self.files.path().to_owned(),
            name => self.files.path().join(name),
        };
        path.to_str().unwrap().to_owned()
    }

    fn id(&self, name: &str) -> FileId {
        let metadata = std::fs::symlink_metadata(self.path(name)).unwrap();
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    fn instance(&self, config: InodeFileConfig) -> Instance {
        let config = DataSourceConfig {
            inode_file_config: MessageField::some(config),
            ..Default::default()
        };
        let roots = KernelRoots {
            procfs: self.proc.path().to_owned(),
            ..KernelRoots::default()
        };
        let mut instance = Instance {
            source: InodeFileMap::from_config(&config, &roots, self.known.clone()),
            sink: Vec::new(),
            now: 0,
        };
        instance.source.start(0, &mut instance.sink);
        instance
    }
}

struct Instance {
    source: InodeFileMap,
    sink: Vec<Vec<u8>>,
    now: u64,
}

impl Instance {
    fn see(&mut self, files: &[FileId]) {
        let files = files.iter().copied().collect();
        self.source.on_files_seen(&files, self.now, &mut self.sink);
    }

    /// Goes from deadline to deadline until there is none.
    fn run(&mut self) {
        let end = Instant::now() + PATIENCE;
        while let Some(due) = self.source.next_deadline() {
            assert!(Instant::now() < end, "no end of deadlines");
            self.now = self.now.max(due);
            self.source.on_deadline(self.now, &mut self.sink);
            std::thread::yield_now();
        }
        self.source.flush(self.now, &mut self.sink);
    }

    fn maps(&mut self) -> Vec<Map> {
        let packets = self.sink.drain(..);
        let packets = packets.map(|packet| TracePacket::decode_from_slice(&packet).unwrap());
        packets
            .map(|packet| match packet.data {
                Some(Data::InodeFileMap(map)) => *map,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// Type and paths by inode.
    fn entries(&mut self) -> BTreeMap<u64, (Type, Vec<String>)> {
        let entries = self.maps().into_iter().flat_map(|map| map.entries);
        entries
            .map(|entry| (entry.inode_number.unwrap(), (entry.r#type.unwrap(), entry.paths)))
            .collect()
    }
}

fn fast() -> InodeFileConfig {
    InodeFileConfig {
        scan_delay_ms: Some(1),
        scan_interval_ms: Some(1),
        ..Default::default()
    }
}

#[test]
fn inodes_get_their_paths_after_the_delay() {
    let fixture = Fixture::new();
    fixture.files.write("dir/file", "");
    let mut instance = fixture.instance(InodeFileConfig::default());
    // This makes the first deadline that of the scan.
    while !fixture.known.are_static_files_read() {
        std::thread::yield_now();
    }
    let (file, dir) = (fixture.id("dir/file"), fixture.id("dir"));
    instance.now = 5 * MS;
    instance.see(&[file, dir]);
    assert_eq!(
        instance.source.next_deadline(),
        Some(10_005 * MS),
        "ten seconds unless the config says otherwise"
    );
    assert_eq!(instance.maps(), []);
    instance.run();
    let maps = instance.maps();
    assert_eq!(maps.len(), 1, "one device, one packet: {maps:?}");
    assert_eq!(maps[0].block_device_id, Some(fixture.device()));
    assert_eq!(maps[0].mount_points, [fixture.path("")]);
    let entries: BTreeMap<_, _> = maps[0]
        .entries
        .iter()
        .map(|entry| (entry.inode_number, (entry.r#type, entry.paths.clone())))
        .collect();
    let expected = BTreeMap::from([
        (
            Some(file.inode),
            (Some(Type::FILE), vec![fixture.path("dir/file")]),
        ),
        (
            Some(dir.inode),
            (Some(Type::DIRECTORY), vec![fixture.path("dir")]),
        ),
    ]);
    assert_eq!(entries, expected);
    assert_eq!(
        instance.source.next_deadline(),
        None,
        "there is nothing left to do"
    );
}

#[test]
fn what_one_instance_has_found_all_know_without_a_scan() {
    let fixture = Fixture::new();
    fixture.files.write("file", "");
    let file = fixture.id("file");
    let mut first = fixture.instance(fast());
    first.see(&[file]);
    first.run();
    assert_eq!(first.entries().len(), 1);
    let mut second = fixture.instance(InodeFileConfig {
        do_not_scan: Some(true),
        ..Default::default()
    });
    for _ in 0..2 {
        second.see(&[file]);
        second.source.flush(0, &mut second.sink);
        assert_eq!(
            second.entries(),
            BTreeMap::from([(file.inode, (Type::FILE, vec![fixture.path("file")]))]),
            "each time that it is seen"
        );
    }
}

#[test]
fn without_scans_static_files_have_paths_and_others_have_none() {
    let fixture = Fixture::new();
    fixture.files.write("file", "");
    fixture.static_files.write("lib/libc.so", "");
    let metadata = std::fs::metadata(fixture.static_files.path().join("lib/libc.so")).unwrap();
    let library = FileId {
        device: metadata.dev(),
        inode: metadata.ino(),
    };
    let mut instance = fixture.instance(InodeFileConfig {
        do_not_scan: Some(true),
        ..Default::default()
    });
    // The static files may have been read by now or not.
    instance.see(&[fixture.id("file"), library]);
    instance.run();
    let path = fixture.static_files.path().join("lib/libc.so");
    let paths = vec![path.to_str().unwrap().to_owned()];
    assert_eq!(
        instance.entries(),
        BTreeMap::from([(library.inode, (Type::FILE, paths))])
    );
}

#[test]
fn only_the_listed_mount_points_are_scanned() {
    let fixture = Fixture::new();
    fixture.files.write("file", "");
    for (listed, found) in [(fixture.path(""), 1), ("/elsewhere".to_owned(), 0)] {
        let mut instance = fixture.instance(InodeFileConfig {
            scan_mount_points: vec![listed],
            ..fast()
        });
        // The cache is empty, so inodes without a path come first.
        if found == 0 {
            fixture.files.write("another", "");
            instance.see(&[fixture.id("another")]);
        } else {
            instance.see(&[fixture.id("file")]);
        }
        instance.run();
        assert_eq!(instance.entries().len(), found);
    }
    // A device that is mounted at another place as well is not scanned at all, as by upstream.
    fixture.mount(&[&fixture.path(""), "/elsewhere"]);
    let mut instance = fixture.instance(InodeFileConfig {
        scan_mount_points: vec![fixture.path("")],
        ..fast()
    });
    fixture.files.write("third", "");
    instance.see(&[fixture.id("third")]);
    instance.run();
    assert_eq!(instance.maps(), []);
}

#[test]
fn a_mount_point_can_be_replaced_by_the_directories_that_matter() {
    let fixture = Fixture::new();
    fixture.files.write("here/file", "");
    fixture.files.write("there/file", "");
    let mut instance = fixture.instance(InodeFileConfig {
        mount_point_mapping: vec![MountPointMappingEntry {
            mountpoint: Some(fixture.path("")),
            scan_roots: vec![fixture.path("here")],
            ..Default::default()
        }],
        ..fast()
    });
    let (here, there) = (fixture.id("here/file"), fixture.id("there/file"));
    instance.see(&[here, there]);
    instance.run();
    let expected = (Type::FILE, vec![fixture.path("here/file")]);
    assert_eq!(instance.entries(), BTreeMap::from([(here.inode, expected)]));
}

#[test]
fn of_a_device_without_a_file_that_was_found_the_mount_points_are_told_once() {
    let fixture = Fixture::new();
    let mut instance = fixture.instance(fast());
    let gone = FileId {
        inode: u64::MAX,
        ..fixture.id("")
    };
    instance.see(&[gone]);
    instance.run();
    let maps = instance.maps();
    assert_eq!(maps.len(), 1);
    assert_eq!(maps[0].block_device_id, Some(gone.device));
    assert_eq!(maps[0].mount_points, [fixture.path("")]);
    assert_eq!(maps[0].entries, []);
    instance.see(&[gone]);
    instance.run();
    assert_eq!(instance.maps(), []);
    // The packets so far may be gone.
    instance.source.clear_incremental_state();
    instance.see(&[gone]);
    instance.run();
    assert_eq!(instance.maps().len(), 1);
}

#[test]
fn inodes_of_no_device_that_is_mounted_are_forgotten() {
    let fixture = Fixture::new();
    let mut instance = fixture.instance(fast());
    let nowhere = FileId { device: 0, inode: 2 };
    instance.see(&[nowhere]);
    instance.run();
    let maps = instance.maps();
    assert_eq!(maps.len(), 1);
    assert_eq!(
        (maps[0].block_device_id, &maps[0].mount_points[..]),
        (Some(0), &[][..])
    );
    assert_eq!(instance.source.take_notices(), Vec::<String>::new());
}

#[test]
fn a_mount_that_comes_later_is_known() {
    let fixture = Fixture::new();
    fixture.files.write("file", "");
    fixture.proc.write("self/mountinfo", "");
    let mut instance = fixture.instance(fast());
    let file = fixture.id("file");
    instance.see(&[file]);
    instance.run();
    assert_eq!(instance.entries().len(), 0);
    fixture.mount(&[&fixture.path("")]);
    // The kernel tells of changes of its own table only.
    instance.now += 60_000 * MS;
    instance.see(&[file]);
    instance.run();
    assert_eq!(instance.entries().len(), 1);
}

#[test]
fn without_a_table_of_mounts_the_log_is_told_once() {
    let fixture = Fixture::new();
    fixture.proc.remove("self/mountinfo");
    let mut instance = fixture.instance(fast());
    for _ in 0..2 {
        instance.see(&[fixture.id("")]);
        instance.run();
        instance.now += 60_000 * MS;
    }
    let notices = instance.source.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("mountinfo"), "{notices:?}");
}

#[test]
fn packets_are_about_one_device_and_of_bounded_length() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..1000).map(|number| format!("{number:0100}")).collect();
    names.iter().for_each(|name| fixture.files.write(name, ""));
    let mut instance = fixture.instance(fast());
    let ids: Vec<FileId> = names.iter().map(|name| fixture.id(name)).collect();
    instance.see(&ids);
    instance.run();
    assert!(instance.sink.len() > 1);
    assert!(instance.sink.iter().all(|packet| packet.len() < 40_000));
    assert_eq!(instance.entries().len(), names.len());
}

#[test]
fn a_scan_rests_after_each_batch_and_finds_everything() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..12).map(|number| format!("file{number}")).collect();
    names.iter().for_each(|name| fixture.files.write(name, ""));
    let inodes = names.iter().map(|name| fixture.id(name).inode).collect();
    let rest = Duration::from_millis(20);
    let began = Instant::now();
    let scan = Scan::start(
        vec![fixture.path("").into_bytes()],
        Inodes::from([(fixture.device(), inodes)]),
        Pace { batch: 4, rest },
    )
    .unwrap();
    let mut all = Vec::new();
    loop {
        let (found, ending) = scan.take();
        all.extend(found);
        if let Some((ending, not_found)) = ending {
            assert_eq!((ending, not_found), (Ending::default(), Inodes::new()));
            break;
        }
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    // Twelve files and their directory.
    assert!(began.elapsed() >= 3 * rest, "{:?}", began.elapsed());
    let found: BTreeSet<String> = all
        .into_iter()
        .map(|found| String::from_utf8(found.path).unwrap())
        .collect();
    assert_eq!(found, names.iter().map(|name| fixture.path(name)).collect());
}

#[test]
fn inodes_join_the_scan_of_their_device_and_the_next_one_looks_for_those_it_has_passed() {
    let fixture = Fixture::new();
    let mut instance = fixture.instance(InodeFileConfig {
        scan_batch_size: Some(1),
        ..fast()
    });
    let names: Vec<String> = (0..50).map(|number| format!("file{number}")).collect();
    names.iter().for_each(|name| fixture.files.write(name, ""));
    let end = Instant::now() + PATIENCE;
    let mut entries = BTreeMap::new();
    let mut names = names.iter();
    // One more at each deadline, whatever the scan has come to by then.
    loop {
        match names.next() {
            Some(name) => instance.see(&[fixture.id(name)]),
            None if entries.len() == 50 => break,
            None => {}
        }
        if let Some(due) = instance.source.next_deadline() {
            instance.now = instance.now.max(due);
            instance.source.on_deadline(instance.now, &mut instance.sink);
        }
        instance.source.flush(instance.now, &mut instance.sink);
        entries.append(&mut instance.entries());
        assert!(Instant::now() < end, "{} of 50 found", entries.len());
        std::thread::yield_now();
    }
    assert_eq!(instance.source.take_notices(), Vec::<String>::new());
}

#[test]
fn a_list_that_is_full_is_told_and_takes_no_more() {
    let fixture = Fixture::new();
    let mut instance = fixture.instance(InodeFileConfig::default());
    let device = fixture.device();
    let many: Vec<FileId> = (1 << 40..(1 << 40) + MOST_WAITING as u64 + 5)
        .map(|inode| FileId { device, inode })
        .collect();
    while !fixture.known.are_static_files_read() {
        std::thread::yield_now();
    }
    instance.see(&many);
    let waiting: usize = instance.source.missing.values().map(BTreeSet::len).sum();
    assert_eq!(waiting, MOST_WAITING);
    let notices = instance.source.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("200000 inodes"), "{notices:?}");
}

#[test]
fn a_deep_tree_is_walked_as_far_as_the_kernel_takes_its_paths() {
    let fixture = Fixture::new();
    // Each name is as long as a name can be, and the last path is longer than a path can be.
    let name = "d".repeat(255);
    let mut dir = rustix::fs::open(
        fixture.files.path(),
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(&dir, &name, rustix::fs::Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &name, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    }
    let mut walk = Walk::new(vec![fixture.path("").into_bytes()]);
    let mut entries = 0;
    loop {
        match walk.step() {
            walk::Step::Done => break,
            walk::Step::Nothing => {}
            walk::Step::Entry { .. } => entries += 1,
        }
    }
    assert!((15..20).contains(&entries), "{entries}");
    assert_eq!(walk.directories_left_out(), 1);
}
