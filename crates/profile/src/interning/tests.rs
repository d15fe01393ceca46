//! Numbers, and what readers are told about them.

use ferretto_proto::messages::{InternedData, Message};

use super::*;

const LIBRARY: Mapping<'static> = Mapping {
    build_id: b"\x01\x02",
    exact_offset: 0x1000,
    start_offset: 0,
    start: 0x7000,
    end: 0x8000,
    load_bias: 0x40,
    path: b"/usr/lib/libc.so.6",
};

fn told(interning: &mut Interning) -> InternedData {
    let pending = interning.take_pending();
    InternedData::decode_from_slice(pending.as_slice()).expect("it is interned data")
}

#[test]
fn everything_is_told_once_before_it_is_referred_to() {
    let mut interning = Interning::default();
    let library = interning.mapping(&LIBRARY);
    let inner = interning.frame(library, b"malloc", 0x10);
    let outer = interning.frame(library, b"", 0x20);
    let stack = interning.callstack(&[inner, outer]);
    let data = told(&mut interning);

    let texts = |strings: &[ferretto_proto::messages::InternedString]| -> Vec<Vec<u8>> {
        strings.iter().filter_map(|string| string.str.clone()).collect()
    };
    assert_eq!(texts(&data.build_ids), [b"\x01\x02".to_vec()]);
    assert_eq!(texts(&data.mapping_paths), [&b"usr"[..], b"lib", b"libc.so.6"]);
    assert_eq!(texts(&data.function_names), [b"malloc".to_vec()]);
    let mapping = &data.mappings[0];
    let paths: Vec<_> = data.mapping_paths.iter().filter_map(|path| path.iid).collect();
    assert_eq!(mapping.path_string_ids, paths);
    assert_eq!(mapping.build_id, data.build_ids[0].iid);
    assert_eq!((mapping.start, mapping.end), (Some(0x7000), Some(0x8000)));
    assert_eq!(
        (mapping.exact_offset, mapping.load_bias),
        (Some(0x1000), Some(0x40))
    );
    let frames: Vec<_> = data
        .frames
        .iter()
        .map(|frame| (frame.mapping_id, frame.rel_pc))
        .collect();
    assert_eq!(frames, [(mapping.iid, Some(0x10)), (mapping.iid, Some(0x20))]);
    assert_eq!(data.frames[0].function_name_id, data.function_names[0].iid);
    // 0 is the empty string, which readers know from the beginning.
    assert_eq!(data.frames[1].function_name_id, Some(0));
    // Readers want callers first.
    let callers_first: Vec<_> = data.frames.iter().rev().filter_map(|frame| frame.iid).collect();
    assert_eq!(data.callstacks[0].frame_ids, callers_first);
    assert_eq!(data.callstacks[0].iid, Some(stack.0));

    let again = interning.mapping(&LIBRARY);
    assert_eq!(again, library);
    assert_eq!(interning.frame(again, b"malloc", 0x10), inner);
    assert_eq!(interning.callstack(&[inner, outer]), stack);
    assert!(interning.take_pending().is_empty());
}

#[test]
fn a_name_that_is_also_part_of_a_path_is_told_as_both() {
    let mut interning = Interning::default();
    let mapping = interning.mapping(&Mapping {
        path: b"/bin/main",
        ..Mapping::default()
    });
    interning.frame(mapping, b"main", 0);
    let data = told(&mut interning);
    assert_eq!(data.mapping_paths.len(), 2);
    assert_eq!(data.function_names.len(), 1);
}

#[test]
fn numbers_differ_where_anything_does() {
    let mut interning = Interning::default();
    let mappings = [
        LIBRARY,
        Mapping { start: 0, ..LIBRARY },
        Mapping {
            build_id: b"",
            ..LIBRARY
        },
        Mapping {
            path: b"/lib/libc.so.6",
            ..LIBRARY
        },
    ];
    let mut numbers: Vec<u64> = mappings
        .iter()
        .map(|mapping| interning.mapping(mapping).0)
        .collect();
    numbers.dedup();
    assert_eq!(numbers.len(), mappings.len());
}

#[test]
fn it_is_full_after_many_stacks_and_empty_after_it_was_cleared() {
    let mut interning = Interning::default();
    let nowhere = interning.mapping(&Mapping::default());
    for pc in 0..MOST_CALLSTACKS as u64 {
        assert!(!interning.is_full());
        let frame = interning.frame(nowhere, b"", pc);
        interning.callstack(&[frame]);
    }
    assert!(interning.is_full());
    interning.clear();
    assert!(!interning.is_full());
    let nowhere = interning.mapping(&Mapping::default());
    assert_eq!(nowhere, MappingId(1));
}
