use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::samples::{Keep, Recorder};

/// Bits of `sample_type`: address, thread, time, counters, call chain, processor, period.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8;
/// `PERF_FORMAT_GROUP` and `PERF_FORMAT_ID`.
const READ_FORMAT: u64 = 8 | 4;
const FREQUENCY: u64 = 1 << 10;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut record = kind.to_le_bytes().to_vec();
    record.extend(misc.to_le_bytes());
    record.extend((body.len() as u16 + 8).to_le_bytes());
    record.extend(body);
    record
}

/// A file mapped at 0x1000, at the offset 0x200 of the file.
fn mmap2() -> Vec<u8> {
    let mut body = words(&[pair(7, 7), 0x1000, 0x1000, 0x200]);
    body.extend([4, 0, 0, 0, 1, 2, 3, 4]);
    body.extend([0; 16]);
    body.extend(words(&[0]));
    body.extend(b"/bin/prog\0\0\0\0\0\0\0");
    record(10, 1 << 14 | 2, &body)
}

fn comm() -> Vec<u8> {
    let mut body = words(&[pair(7, 7)]);
    body.extend(b"prog\0\0\0\0");
    record(3, 0, &body)
}

/// A sample of the program, called from the kernel's mark on: address, thread, time, processor, period, two counters, call chain.
fn sample(time: u64, callers: &[u64]) -> Vec<u8> {
    let user = -512_i64 as u64;
    let mut body = vec![
        0x1010,
        pair(7, 8),
        time,
        pair(1, 0),
        1000,
        2,
        5,
        1,
        6,
        2,
        callers.len() as u64 + 1,
        user,
    ];
    body.extend(callers);
    record(9, 2, &words(&body))
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    let data: Vec<u8> = records.concat();
    let attr_size = 64 + 16;
    let mut file = b"PERFILE2".to_vec();
    file.extend(words(&[
        104,
        attr_size,
        104,
        attr_size,
        104 + attr_size,
        data.len() as u64,
        0,
        0,
        0,
        0,
        0,
        0,
    ]));
    file.extend(words(&[
        pair(1, 64),
        0,
        997,
        SAMPLE_TYPE,
        READ_FORMAT,
        FREQUENCY,
        0,
        0,
    ]));
    file.extend(words(&[0, 0]));
    file.extend(data);
    file
}

fn packets(file: &[u8]) -> Result<Vec<Vec<u8>>, ImportError> {
    let mut packets = Vec::new();
    import(Cursor::new(file), &mut |packet| {
        packets.push(packet.to_vec());
        Ok(())
    })?;
    Ok(packets)
}

fn usual() -> Vec<u8> {
    file(&[
        mmap2(),
        comm(),
        sample(20, &[0x1010, 0x1021]),
        sample(10, &[0x1010, 0x9001]),
        record(68, 0, &[]),
    ])
}

#[test]
fn samples_become_frames_of_mapped_files() {
    let mut recorder = Recorder::new(Keep::Samples, |_| true);
    for packet in packets(&usual()).unwrap() {
        recorder.packet(&packet);
    }
    let recording = recorder.finish();
    let profile = &recording.profile;
    let shown: Vec<Vec<String>> = recording
        .samples
        .iter()
        .map(|sample| {
            let frames = profile.stacks.frames(sample.stack.unwrap());
            frames
                .map(|frame| profile.lines(frame)[0].name.to_string())
                .collect()
        })
        .collect();
    // In the order of time. The address of a caller is moved back into its call; one in no file has no module.
    assert_eq!(
        shown,
        [["prog+0x210", "[unknown]+0x9000"], ["prog+0x210", "prog+0x220"]]
    );
    assert_eq!(profile.events[0].name, "cpu-clock");
    assert_eq!(profile.names.process(7), Some("prog"));
    let frame = profile
        .stacks
        .frames(recording.samples[0].stack.unwrap())
        .next()
        .unwrap();
    assert_eq!(profile.module_of(frame).unwrap().1.build_id_digits(), "01020304");
}

#[test]
fn damage_is_reported_with_its_offset() {
    let mut cut = usual();
    cut.truncate(cut.len() - 1);
    let message = packets(&cut).unwrap_err().to_string();
    assert_eq!(
        message,
        "damaged at byte 184: the records reach beyond the end of the file: was the recording interrupted?"
    );
    let short = file(&[comm(), record(9, 2, &[1, 2, 3])]);
    assert_eq!(
        packets(&short).unwrap_err().to_string(),
        "damaged at byte 208: a record is too short"
    );
}

#[test]
fn a_new_mapping_takes_the_place_of_old_ones() {
    let mapping = |start, end, offset| Mapping {
        start,
        end,
        offset,
        ..Mapping::default()
    };
    let mut mappings = Mappings::new();
    insert(&mut mappings, mapping(0, 100, 0));
    insert(&mut mappings, mapping(40, 60, 1000));
    let all: Vec<(u64, u64, u64)> = mappings
        .values()
        .map(|mapping| (mapping.start, mapping.end, mapping.offset))
        .collect();
    assert_eq!(all, [(0, 40, 0), (40, 60, 1000), (60, 100, 60)]);
    insert(&mut mappings, mapping(30, 70, 0));
    assert_eq!(find(&mappings, 70).unwrap().offset, 70);
    assert_eq!(find(&mappings, 50).unwrap().start, 30);
    assert!(find(&mappings, 100).is_none());
}

proptest! {
    #[test]
    fn damaged_recordings_are_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut file = usual();
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        let _ = packets(&file);
    }
}
