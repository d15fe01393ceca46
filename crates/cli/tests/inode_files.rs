//! `linux.inode_file_map` with either side's probes: the same files of a file system that only this test uses have the same paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ferretto_proto::messages::inode_file_map::entry::Type;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, Trace};

use crate::support::trace::{LOSSES, TraceProcessor};
use crate::support::tracefs::Tracefs;
use crate::support::{PATIENCE, Programs, Side, System};

/// Files in directories, some of them with a second name.
const FILES: [&str; 4] = ["a/first", "a/deep/er/second", "b/third", "top"];

/// An ext4 file system in a file, mounted until this is dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// `None`, with a line that says why, where nothing can be mounted.
    fn new() -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        let (image, point) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(&point).unwrap();
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F"]).arg(&image);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(&point);
        for command in [&mut make, &mut mount] {
            match command.output() {
                Ok(output) if output.status.success() => {}
                other => {
                    println!("skipped: {command:?}: {other:?}");
                    return None;
                }
            }
        }
        Some(Mount(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("mounted").join(name)
    }

    fn root(&self) -> String {
        self.0.path().join("mounted").to_str().unwrap().to_owned()
    }

    fn device(&self) -> u64 {
        fs::metadata(self.path("top")).unwrap().dev()
    }

    /// Creates the files.
    fn fill(&self) {
        for name in FILES {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), "before").unwrap();
        }
        fs::hard_link(self.path("b/third"), self.path("b/third too")).unwrap();
    }

    /// Makes events that name the files and their directories.
    fn touch(&self) {
        for name in FILES {
            let mut file = File::options().append(true).open(self.path(name)).unwrap();
            file.write_all(b"touched").unwrap();
            file.sync_all().unwrap();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path().join("mounted")).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            self.0.disable_cleanup(true);
        }
    }
}

/// The data that a trace has about the files of a device.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    mount_points: BTreeSet<String>,
    /// Type and paths by inode.
    files: BTreeMap<u64, (Type, BTreeSet<String>)>,
}

impl Mapped {
    fn of(trace: &Path, device: u64) -> Mapped {
        let mut mapped = Mapped {
            mount_points: BTreeSet::new(),
            files: BTreeMap::new(),
        };
        // The file may end in the middle of a packet, because the service is still writing it.
        let bytes = fs::read(trace).unwrap_or_default();
        let Ok(trace) = Trace::decode_from_slice(&bytes) else {
            return mapped;
        };
        for packet in trace.packet {
            let Some(Data::InodeFileMap(map)) = packet.data else {
                continue;
            };
            if map.block_device_id != Some(device) {
                continue;
            }
            mapped.mount_points.extend(map.mount_points);
            for entry in map.entries {
                let file = mapped
                    .files
                    .entry(entry.inode_number.unwrap())
                    .or_insert_with(|| (entry.r#type.unwrap(), BTreeSet::new()));
                file.1.extend(entry.paths);
            }
        }
        mapped
    }
}

fn record(
    programs: &Programs,
    probes: Side,
    mount: &Mount,
    config: &str,
) -> (PathBuf, Mapped, tempfile::TempDir) {
    let system = System::with_daemons(programs, Side::Ours, probes);
    let config = format!(
        "write_into_file: true file_write_period_ms: 100 flush_period_ms: 200 buffers {{ size_kb: 32768 }}
        data_sources {{ config {{ name: \"linux.ftrace\" ftrace_config {{ ftrace_events: \"ext4/ext4_sync_file_enter\" }} }} }}
        data_sources {{ config {{ name: \"linux.inode_file_map\" inode_file_config {{
            scan_delay_ms: 50 scan_interval_ms: 50 scan_mount_points: \"{}\" {config}
        }} }} }}",
        // Other programs that use this machine's disk cause events, too.
        mount.root()
    );
    let recording = system.record(Side::Ours, &config);
    let until = Instant::now() + PATIENCE;
    // The event that names a file also names its directory.
    let wanted: BTreeSet<u64> = FILES
        .iter()
        .map(|name| fs::metadata(mount.path(name)).unwrap().ino())
        .collect();
    loop {
        // The loop repeats the events, because upstream's probes may miss the first events of a recording on a busy machine.
        mount.touch();
        let mapped = Mapped::of(recording.trace(), mount.device());
        if wanted.iter().all(|inode| mapped.files.contains_key(inode)) {
            break;
        }
        assert!(Instant::now() < until, "{probes:?}: {mapped:?}");
    }
    let trace = recording.interrupt();
    let keep = tempfile::tempdir().unwrap();
    let kept = keep.path().join("trace");
    fs::copy(trace, &kept).unwrap();
    let mapped = Mapped::of(&kept, mount.device());
    (kept, mapped, keep)
}

#[test]
fn either_probes_map_the_same_inodes_to_the_same_paths() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(_lock) = Tracefs::lock() else { return };
    let Some(mount) = Mount::new() else { return };
    mount.fill();
    if !Path::new("/sys/kernel/tracing/events/ext4/ext4_sync_file_enter").exists() {
        println!("skipped: this kernel has no events of ext4");
        return;
    }
    let mut expected = BTreeMap::new();
    for name in FILES {
        // The trace has the files and their directories, except the root of the file system, which is not below any scanned directory.
        for name in [Path::new(name), Path::new(name).parent().unwrap()] {
            if name == Path::new("") {
                continue;
            }
            let path = mount.path(name.to_str().unwrap());
            let metadata = fs::metadata(&path).unwrap();
            let kind = match metadata.is_dir() {
                true => Type::DIRECTORY,
                false => Type::FILE,
            };
            expected.insert(metadata.ino(), (kind, path.to_str().unwrap().to_owned()));
        }
    }
    let root = mount.root();
    let processor = TraceProcessor::find();
    for probes in [Side::Upstream, Side::Ours] {
        let (trace, mapped, _keep) = record(&programs, probes, &mount, "");
        assert_eq!(mapped.mount_points, BTreeSet::from([root.clone()]), "{probes}");
        let third = fs::metadata(mount.path("b/third")).unwrap().ino();
        for (inode, (kind, path)) in &expected {
            let (found_kind, paths) = &mapped.files[inode];
            assert_eq!(found_kind, kind, "{probes}: {path}");
            // If an inode has two names, the trace has the one that comes first in the directory.
            let also = (*inode == third).then(|| mount.path("b/third too").to_str().unwrap().to_owned());
            assert_eq!(paths.len(), 1, "{probes}: {paths:?}");
            assert!(
                paths.contains(path) || also.is_some_and(|also| paths.contains(&also)),
                "{probes}: {path} is {paths:?}"
            );
        }
        assert_eq!(mapped.files.len(), expected.len(), "{probes}: {mapped:?}");
        if let Some(processor) = &processor {
            assert_eq!(
                processor.query(&trace, [LOSSES]),
                [Vec::<Vec<String>>::new()],
                "{probes}"
            );
        }
    }
}

#[test]
fn either_probes_scan_only_where_the_config_says() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(_lock) = Tracefs::lock() else { return };
    let Some(mount) = Mount::new() else { return };
    mount.fill();
    let root = mount.root();
    // Each file is below one of these directories.
    let roots: String = ["", "b", "a"]
        .map(|name| {
            format!(
                "scan_roots: \"{}\" ",
                mount.path(name).to_str().unwrap().trim_end_matches('/')
            )
        })
        .concat();
    let config = format!("mount_point_mapping {{ mountpoint: \"{root}\" {roots} }} scan_batch_size: 5");
    let mut all = Vec::new();
    for probes in [Side::Upstream, Side::Ours] {
        let (_, mapped, _keep) = record(&programs, probes, &mount, &config);
        all.push(mapped);
    }
    assert_eq!(all[0], all[1]);
}
