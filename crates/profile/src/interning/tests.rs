//! The numbers of interned data, and the entries that readers get.

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
    // Readers expect callers first.
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
    for pc in 0..Limits::CPU_PROFILE.callstacks as u64 {
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

const SMALL: Limits = Limits {
    callstacks: 4,
    ..Limits::HEAP_PROFILE
};

/// The number of a call stack of one function at this address.
fn at(interning: &mut Interning, pc: u64) -> CallstackId {
    let library = interning.mapping(&LIBRARY);
    let frame = interning.frame(library, b"malloc", pc);
    interning.callstack(&[frame])
}

#[test]
fn without_room_everything_new_counts_as_one_named_stack_and_what_is_known_keeps_its_number() {
    let mut interning = Interning::with_overflow(SMALL, "too many");
    let overflow = interning.overflow().expect("it has one");
    let numbers: Vec<CallstackId> = (1..=3).map(|pc| at(&mut interning, pc)).collect();
    assert!(interning.is_full());
    let size = interning.memory_bytes();
    for pc in 4..100 {
        assert_eq!(at(&mut interning, pc), overflow);
        let elsewhere = interning.mapping(&Mapping {
            start: pc,
            path: format!("/lib/{pc}").as_bytes(),
            ..LIBRARY
        });
        let frame = interning.frame(elsewhere, format!("function {pc}").as_bytes(), 1);
        assert_eq!(interning.callstack(&[frame]), overflow);
    }
    assert_eq!(interning.memory_bytes(), size);
    let again: Vec<CallstackId> = (1..=3).map(|pc| at(&mut interning, pc)).collect();
    assert_eq!(again, numbers);
    let data = told(&mut interning);
    assert_eq!(data.callstacks.len(), 4);
    assert_eq!(data.function_names[0].str.as_deref(), Some(&b"too many"[..]));
}

#[test]
fn growth_can_be_refused_for_a_while() {
    let mut interning = Interning::with_overflow(Limits::HEAP_PROFILE, "too many");
    let known = at(&mut interning, 1);
    interning.set_growth(Growth::Refused);
    assert_eq!(Some(at(&mut interning, 2)), interning.overflow());
    assert_eq!(at(&mut interning, 1), known);
    interning.set_growth(Growth::Allowed);
    assert_ne!(Some(at(&mut interning, 2)), interning.overflow());
}

#[test]
fn an_edition_has_numbers_of_its_own_for_the_same_frames() {
    let mut interning = Interning::default();
    let first = at(&mut interning, 1);
    interning.set_edition(Edition(7));
    let second = at(&mut interning, 1);
    assert_ne!(second, first);
    assert_eq!(at(&mut interning, 1), second);
    interning.set_edition(Edition::default());
    assert_eq!(at(&mut interning, 1), first);
    let data = told(&mut interning);
    assert_eq!(data.callstacks[0].frame_ids, data.callstacks[1].frame_ids);
}

#[test]
fn what_is_pending_goes_out_in_pieces_in_which_nothing_refers_forward() {
    let mut interning = Interning::default();
    for pc in 0..200 {
        at(&mut interning, pc);
    }
    let whole = interning.take_pending().as_slice().len();
    interning.forget_told();
    let (mut pieces, mut bytes, mut strings, mut mappings, mut frames, mut callstacks) = (0, 0, 0, 0, 0, 0);
    loop {
        let piece = interning.take_some_pending(100);
        if piece.is_empty() {
            break;
        }
        assert!(piece.len() < 200, "{} bytes", piece.len());
        let data = InternedData::decode_from_slice(piece.as_slice()).expect("it is interned data");
        strings += data.function_names.len();
        mappings += data.mappings.len();
        frames += data.frames.len() as u64;
        callstacks += data.callstacks.len();
        for frame in &data.frames {
            assert_eq!((strings, mappings), (1, 1), "{frame:?}");
        }
        for callstack in &data.callstacks {
            assert!(callstack.frame_ids.iter().all(|frame| *frame <= frames));
        }
        pieces += 1;
        bytes += piece.len();
    }
    assert!(pieces > 10);
    assert_eq!((bytes, callstacks), (whole, 200));
}

#[test]
fn what_is_forgotten_leaves_the_numbers_of_the_rest_and_is_never_told_again() {
    let mut interning = Interning::with_overflow(Limits::HEAP_PROFILE, "too many");
    let numbers: Vec<CallstackId> = (0..10).map(|pc| at(&mut interning, pc)).collect();
    interning.take_pending();
    let late = at(&mut interning, 10);
    let size = interning.memory_bytes();
    interning.retain(|id| id == numbers[3] || id == late);
    assert!(interning.memory_bytes() < size);
    // Readers need only the late one.
    let data = told(&mut interning);
    assert_eq!((data.frames.len(), data.callstacks.len()), (1, 1));
    assert_eq!(data.callstacks[0].iid, Some(late.0));
    assert_eq!(at(&mut interning, 3), numbers[3]);
    // The others are new.
    let again = at(&mut interning, 4);
    assert!(again.0 > late.0);
    interning.forget_told();
    let data = told(&mut interning);
    let known: Vec<_> = data.callstacks.iter().filter_map(|stack| stack.iid).collect();
    let overflow = interning.overflow().expect("it has one");
    assert_eq!(known, [overflow.0, numbers[3].0, late.0, again.0]);
    let frames: Vec<_> = data.frames.iter().filter_map(|frame| frame.iid).collect();
    assert!(
        data.callstacks
            .iter()
            .flat_map(|stack| &stack.frame_ids)
            .all(|frame| frames.contains(frame))
    );
}
