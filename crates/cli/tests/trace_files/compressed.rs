//! Traces that are compressed as a whole are read like others, with any name and from any source.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::{ferretto, made, run, stderr, stdout, with_little_memory};
use crate::support::schema;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Gzip,
    Zstd,
    Xz,
}

const FORMATS: [Format; 3] = [Format::Gzip, Format::Zstd, Format::Xz];

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Gzip => "gzip",
            Format::Zstd => "zstd",
            Format::Xz => "xz",
        }
    }

    fn compress(self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.compress_from(bytes, &mut out);
        out
    }

    fn compress_from(self, mut bytes: impl Read, out: &mut Vec<u8>) {
        match self {
            Format::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::default());
                io::copy(&mut bytes, &mut encoder).unwrap();
                encoder.finish().unwrap();
            }
            Format::Zstd => {
                let mut encoder = zstd::Encoder::new(out, 1).unwrap();
                encoder.include_checksum(true).unwrap();
                io::copy(&mut bytes, &mut encoder).unwrap();
                encoder.finish().unwrap();
            }
            Format::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(0);
                let mut encoder = lzma_rust2::XzWriter::new(out, options).unwrap();
                io::copy(&mut bytes, &mut encoder).unwrap();
                encoder.finish().unwrap();
            }
        }
    }
}

/// Runs a subcommand with these bytes on stdin.
fn piped(subcommand: &str, flags: &[&str], bytes: &[u8]) -> Output {
    let mut command = ferretto(&[subcommand]);
    let mut child = command
        .args(flags)
        .arg("-")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        let output = scope.spawn(|| child.wait_with_output().unwrap());
        // The program may have ended after reading enough.
        let _ = stdin.write_all(bytes);
        drop(stdin);
        output.join().unwrap()
    })
}

/// A file with a name that does not show its compression.
fn file(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("t.pftrace");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Packets that differ, so that they cannot be compressed to almost nothing.
fn varied(count: u64) -> Vec<u8> {
    let mut trace = ferretto_wire::Writer::new();
    for index in 0..count {
        trace.nested(1, |packet| {
            packet.varint_field(8, 1000 + index);
            let noise = index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            packet.nested(900, |event| event.bytes_field(1, &noise));
            packet.varint_field(3, 0);
            packet.varint_field(10, 2);
        });
    }
    trace.into_vec()
}

/// Returns the number of printed packets, which have to be the first ones.
fn printed(output: &Output) -> usize {
    let times = stdout(output)
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("timestamp: "));
    let times: Vec<u64> = times.map(|time| time.parse().unwrap()).collect();
    assert!(times.iter().copied().eq(1000..1000 + times.len() as u64));
    times.len()
}

#[test]
fn they_say_the_same_as_the_trace_itself() {
    let folder = tempfile::tempdir().unwrap();
    let trace = varied(3000);
    let plain = file(&folder, &trace);
    let text = run("text", &plain, &[]);
    let mut plain_info = schema::check("info", &run("info", &plain, &["--json"]).stdout);
    for format in FORMATS {
        let compressed = format.compress(&trace);
        let path = file(&folder, &compressed);
        for output in [run("text", &path, &[]), piped("text", &[], &compressed)] {
            assert_eq!(
                (output.status.code(), stderr(&output)),
                (Some(0), ""),
                "{format:?}"
            );
            assert!(output.stdout == text.stdout, "{format:?}");
        }
        let info = run("info", &path, &["--json"]);
        assert_eq!((info.status.code(), stderr(&info)), (Some(0), ""), "{format:?}");
        let info = schema::check("info", &info.stdout);
        assert_eq!(info["file_size"], compressed.len());
        assert_eq!(info["size"], trace.len());
        let from_pipe = schema::check("info", &piped("info", &["--json"], &compressed).stdout);
        for (mut info, size) in [(info, Value::from(compressed.len())), (from_pipe, Value::Null)] {
            assert_eq!(info["compression"], format.name());
            for (field, value) in [
                ("compression", Value::Null),
                ("file_size", size),
                ("file", Value::Null),
            ] {
                if field == "file_size" {
                    assert_eq!(info[field], value);
                }
                plain_info[field] = Value::Null;
                info[field] = Value::Null;
            }
            assert_eq!(info, plain_info);
        }
        let report = run("info", &path, &[]);
        let said = format!(" compressed with {}), 3,000 packets", format.name());
        assert!(stdout(&report).contains(&said), "{}", stdout(&report));
    }
}

#[test]
fn members_that_follow_one_another_are_one_trace() {
    let trace = made(1000);
    // Within packets, where `split` and compressors with several threads cut.
    let (first, rest) = trace.split_at(12_345);
    let (second, third) = rest.split_at(7);
    for format in FORMATS {
        let mut bytes = Vec::new();
        for part in [first, second, &[], third] {
            bytes.extend(format.compress(part));
        }
        let output = piped("text", &[], &bytes);
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), ""),
            "{format:?}"
        );
        assert_eq!(printed(&output), 1000, "{format:?}");
        // Tapes and disks fill up with zeros.
        bytes.extend([0; 4096]);
        let output = piped("text", &[], &bytes);
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), ""),
            "{format:?}"
        );
        // Other data after the end are reported.
        let behind = bytes.len();
        bytes.extend(b"something else");
        let output = piped("text", &[], &bytes);
        assert_eq!(
            (output.status.code(), printed(&output)),
            (Some(1), 1000),
            "{format:?}"
        );
        let said = format!(
            "behind the file's {} data, from byte {behind} of the file on, is something else",
            format.name()
        );
        assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    }
}

#[test]
fn a_cut_anywhere_leaves_the_data_before_it_and_is_reported_with_its_offset() {
    const PACKETS: u64 = 20_000;
    let trace = varied(PACKETS);
    for format in FORMATS {
        let bytes = format.compress(&trace);
        let mut before = 0;
        for tenth in 4..10 {
            let length = bytes.len() * tenth / 10;
            let output = piped("text", &[], &bytes[..length]);
            assert_eq!(output.status.code(), Some(1), "{format:?}");
            let said = format!(
                "the file's {} data end too early, at byte {length} of the file",
                format.name()
            );
            assert!(
                stderr(&output).contains(&said) && stdout(&output).contains(&said),
                "{format:?}: {}",
                stderr(&output)
            );
            assert!(
                !stderr(&output).contains("ends inside the packet"),
                "{}",
                stderr(&output)
            );
            let packets = printed(&output);
            // Contents come block by block, of 128 KB or less for zstd.
            let expected =
                (PACKETS as usize * tenth / 10).saturating_sub(128 * 1024 * PACKETS as usize / trace.len());
            assert!(
                packets >= expected * 9 / 10,
                "{format:?}: {packets} of at least {expected}"
            );
            assert!(packets >= before, "{format:?}: fewer with more of it");
            before = packets;
            let info = piped("info", &["--json"], &bytes[..length]);
            assert_eq!(info.status.code(), Some(1));
            let info = schema::check("info", &info.stdout);
            assert_eq!(info["packets"], packets);
            assert_eq!(info["damaged_places"], 1);
            assert!(info["damages"][0]["reason"].as_str().unwrap().starts_with(&said));
        }
        // None of the contents is there.
        let output = piped("info", &[], &bytes[..10]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
        let said = format!(
            "stdin cannot be read: the file's {} data end too early",
            format.name()
        );
        assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    }
}

#[test]
fn damage_leaves_the_data_before_it_and_is_reported_with_its_offset() {
    const PACKETS: u64 = 20_000;
    let trace = varied(PACKETS);
    for format in FORMATS {
        let mut bytes = format.compress(&trace);
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].fill(0xff);
        let output = piped("text", &[], &bytes);
        assert_eq!(output.status.code(), Some(1), "{format:?}");
        let said = format!("the file's {} data are damaged at byte ", format.name());
        let (_, place) = stderr(&output)
            .split_once(&said)
            .unwrap_or_else(|| panic!("{}", stderr(&output)));
        let place: usize = place.split(' ').next().unwrap().parse().unwrap();
        // The reported place is after the damage, where it can be noticed.
        assert!(
            place <= bytes.len() && place + (256 << 10) > middle,
            "{format:?}: {place} of {middle}"
        );
        let times = stdout(&output).matches("timestamp: ").count();
        assert!(times > PACKETS as usize / 4, "{format:?}: {times}");
    }
}

#[test]
fn a_file_that_expands_without_end_takes_no_more_memory() {
    const KB: u64 = 16 << 10;
    let part = made(20_000);
    let times = 2 * (KB << 10) / part.len() as u64;
    for format in FORMATS {
        let mut bomb = Vec::new();
        let repeated: Box<dyn Read> = (0..times).fold(Box::new(io::empty()), |all: Box<dyn Read>, _| {
            Box::new(all.chain(part.as_slice()))
        });
        format.compress_from(repeated, &mut bomb);
        let output = with_little_memory("info --json -", KB, |stdin| stdin.write_all(&bomb));
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), ""),
            "{format:?}"
        );
        let info = schema::check("info", &output.stdout);
        assert_eq!(info["packets"], times * 20_000);
        // The same with contents that are no trace.
        let mut bomb = Vec::new();
        format.compress_from(io::repeat(0).take(3 * (KB << 10)), &mut bomb);
        let output = with_little_memory("info --json -", KB, |stdin| stdin.write_all(&bomb));
        assert_eq!(output.status.code(), Some(1), "{format:?}");
        assert!(
            stderr(&output).contains("is no Perfetto trace"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_file_that_needs_too_much_memory_is_refused_with_advice() {
    // Frame headers that require much memory: a window of 2 GB, and a dictionary of 1 GB (with its checksum).
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0, 0];
    let mut xz = Format::Xz.compress(b"x");
    let header = 12;
    // Size, flags, filter, size of its properties, the properties, and padding to a multiple of 4.
    assert_eq!(xz[header..header + 4], [2, 0, 0x21, 1]);
    xz[header + 4] = 36;
    let sum = flate2_crc(&xz[header..header + 8]);
    xz[header + 8..header + 12].copy_from_slice(&sum.to_le_bytes());
    for (name, bytes, command) in [("zstd", &zstd[..], "`zstd -d --long=31`"), ("xz", &xz, "`xz -d`")] {
        for subcommand in ["info", "text"] {
            let output = with_little_memory(&format!("{subcommand} -"), 64 << 10, |stdin| {
                stdin.write_all(bytes)
            });
            assert_eq!(output.status.code(), Some(1), "{name}");
            let said = format!("stdin cannot be read: the file's {name} data at byte ");
            assert!(
                stderr(&output).contains(&said)
                    && stderr(&output).contains(&format!("of memory; expand them with {command}")),
                "{}",
                stderr(&output)
            );
        }
    }
}

fn flate2_crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[test]
fn a_lack_of_memory_is_not_called_damage() {
    // The header of a frame with a window of 128 MB.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0, 0];
    let output = with_little_memory("info -", 64 << 10, |stdin| stdin.write_all(&zstd));
    assert_eq!(output.status.code(), Some(1));
    let said = "stdin cannot be read: there is too little memory to expand the file's zstd data at byte ";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
}

#[test]
fn a_compressed_file_that_is_no_trace_is_reported_with_its_format() {
    for format in FORMATS {
        let output = piped("info", &[], &format.compress(b"{\"traceEvents\": []}"));
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("is no Perfetto trace: it is JSON"),
            "{}",
            stderr(&output)
        );
        let output = piped("info", &[], &format.compress(b""));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("is empty"), "{}", stderr(&output));
    }
}
