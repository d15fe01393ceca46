//! What readers make of the definitions, by the rules of upstream's trace processor (`stack_profile_sequence_state.cc`).

use std::collections::{HashMap, HashSet};

use ferretto_proto::messages::{self, Message};
use proptest::prelude::*;

use super::*;

/// A reader of a sequence's interned data.
#[derive(Default)]
struct Reader {
    known: messages::InternedData,
}

impl Reader {
    fn read(&mut self, definitions: &mut Writer) {
        let new = messages::InternedData::decode_from_slice(definitions.as_slice()).unwrap();
        definitions.clear();
        self.known.frames.extend(new.frames);
        self.known.callstacks.extend(new.callstacks);
        self.known.mappings.extend(new.mappings);
        self.known.function_names.extend(new.function_names);
        self.known.source_paths.extend(new.source_paths);
        self.known.build_ids.extend(new.build_ids);
        self.known.mapping_paths.extend(new.mapping_paths);
    }

    /// The frames of a stack, the outermost first: function, file and line, and the path of the mapping with the address there.
    fn stack(&self, id: u64) -> Vec<String> {
        let stack = only(self.known.callstacks.iter().filter(|stack| stack.iid == Some(id)));
        let frames = stack.frame_ids.iter().map(|id| {
            let frame = only(self.known.frames.iter().filter(|frame| frame.iid == Some(*id)));
            let mut text = String::new();
            if let Some(id) = frame.function_name_id {
                text += &text_of(&self.known.function_names, id);
            }
            if let Some(id) = frame.source_path_iid {
                text += &format!(
                    " {}:{}",
                    text_of(&self.known.source_paths, id),
                    frame.line_number.unwrap()
                );
            }
            if let Some(id) = frame.mapping_id {
                let mapping = only(
                    self.known
                        .mappings
                        .iter()
                        .filter(|mapping| mapping.iid == Some(id)),
                );
                if let Some(id) = mapping.build_id {
                    assert!(!text_of(&self.known.build_ids, id).is_empty());
                }
                let [path] = mapping.path_string_ids[..] else {
                    panic!("{mapping:?}")
                };
                text += &format!(
                    " {}@{:#x}",
                    text_of(&self.known.mapping_paths, path),
                    frame.rel_pc.unwrap()
                );
            }
            text
        });
        frames.collect()
    }
}

fn only<T>(mut of: impl Iterator<Item = T>) -> T {
    let first = of.next().expect("it was defined");
    assert!(of.next().is_none(), "it was defined once");
    first
}

fn text_of(strings: &[messages::InternedString], id: u64) -> String {
    let entry = only(strings.iter().filter(|entry| entry.iid == Some(id)));
    String::from_utf8_lossy(entry.str.as_deref().unwrap()).into_owned()
}

#[test]
fn a_stack_is_defined_once_and_shares_its_frames_and_names() {
    let (mut stacks, mut definitions, mut reader) =
        (InternedStacks::default(), Writer::new(), Reader::default());
    let main = Frame::named("main").source("main.rs", 3);
    let inner = [Frame::named("inner").source("main.rs", 20), main];
    let other = [Frame::named("main").source("main.rs", 4)];
    let first = stacks.id(&inner, &mut definitions).unwrap();
    reader.read(&mut definitions);
    assert_eq!(stacks.id(&inner, &mut definitions), Some(first));
    assert!(definitions.is_empty(), "it is known");
    let second = stacks.id(&other, &mut definitions).unwrap();
    let third = stacks.id(&[main], &mut definitions).unwrap();
    reader.read(&mut definitions);
    assert_eq!(reader.stack(first), ["main main.rs:3", "inner main.rs:20"]);
    assert_eq!(reader.stack(second), ["main main.rs:4"]);
    assert_eq!(reader.stack(third), ["main main.rs:3"]);
    let known = &reader.known;
    assert_eq!(
        (
            known.frames.len(),
            known.function_names.len(),
            known.source_paths.len()
        ),
        (3, 2, 1)
    );
}

#[test]
fn a_stack_without_frames_has_no_id() {
    let (mut stacks, mut definitions) = (InternedStacks::default(), Writer::new());
    assert_eq!(stacks.id(&[], &mut definitions), None);
    assert!(definitions.is_empty());
}

#[cfg(not(feature = "off"))]
#[test]
fn addresses_are_in_files_or_are_names() {
    let (mut stacks, mut definitions, mut reader) =
        (InternedStacks::default(), Writer::new(), Reader::default());
    let here = addresses_are_in_files_or_are_names as fn() as usize;
    let frames = [
        Frame::at(16),
        Frame::at(here),
        Frame::at(here).function("named"),
        Frame::at(here + 1),
    ];
    let id = stacks.id(&frames, &mut definitions).unwrap();
    reader.read(&mut definitions);
    let program = std::env::current_exe().unwrap();
    let Place::In(mapping, rel_pc) = modules::find(here) else {
        panic!("this function is in no file");
    };
    let at = |rel_pc| format!(" {}@{rel_pc:#x}", program.display());
    assert_eq!(
        reader.stack(id),
        [
            at(rel_pc + 1),
            format!("named{}", at(rel_pc)),
            at(rel_pc),
            "0x10".to_owned()
        ]
    );
    let [known] = &reader.known.mappings[..] else {
        panic!("{:?}", reader.known.mappings)
    };
    assert_eq!((known.start, known.end), (Some(mapping.start), Some(mapping.end)));
    assert_eq!(
        (known.exact_offset, known.load_bias),
        (Some(mapping.exact_offset), Some(mapping.load_bias))
    );
}

/// The bytes of keys and texts.
fn kept(stacks: &InternedStacks) -> usize {
    let keys = stacks.stacks.keys().chain(stacks.frames.keys());
    let texts = stacks.functions.keys().chain(stacks.sources.keys());
    keys.map(|key| key.len()).sum::<usize>() + texts.map(|text| text.len()).sum::<usize>()
}

#[test]
fn the_outermost_frames_of_a_long_stack_are_left_out() {
    let (mut stacks, mut definitions, mut reader) =
        (InternedStacks::default(), Writer::new(), Reader::default());
    let names: Vec<String> = (0..3 * MAX_FRAMES).map(|number| format!("f{number}")).collect();
    let frames: Vec<Frame<'_>> = names.iter().map(|name| Frame::named(name)).collect();
    for len in [MAX_FRAMES, MAX_FRAMES + 1, frames.len()] {
        let id = stacks.id(&&frames[..len], &mut definitions).unwrap();
        reader.read(&mut definitions);
        let mut read = reader.stack(id);
        if len > MAX_FRAMES {
            assert_eq!(read.remove(0), "[more frames]");
        }
        read.reverse();
        assert_eq!(read, names[..MAX_FRAMES]);
    }
}

#[test]
fn a_stack_takes_a_limited_number_of_bytes() {
    let (mut stacks, mut definitions, mut reader) =
        (InternedStacks::default(), Writer::new(), Reader::default());
    let long = "x".repeat(MAX_BYTES);
    let half = &long[..MAX_KEY_BYTES * 2 / 3];
    let main = Frame::named("main");
    for (frames, expected) in [
        (
            vec![main, Frame::named(&long), main],
            vec!["[more frames]", "main"],
        ),
        (
            vec![Frame::named("inner").source(&long, 3)],
            vec!["[more frames]"],
        ),
        (
            vec![Frame::named(half), Frame::named(half), main],
            vec!["[more frames]", half],
        ),
    ] {
        let id = stacks.id(&frames, &mut definitions).unwrap();
        assert!(stacks.bytes <= MAX_BYTES && kept(&stacks) <= stacks.bytes);
        reader.read(&mut definitions);
        assert_eq!(reader.stack(id), expected);
    }
    assert_eq!(
        stacks.id(&[main], &mut definitions),
        stacks.id(&[main], &mut definitions)
    );
    assert!(
        stacks.key.bytes.capacity() <= KEPT_BYTES,
        "what a long stack took is given back"
    );
    super::super::clear(&mut definitions);
    assert!(definitions.heap_capacity() <= KEPT_BYTES);
}

#[test]
fn a_stack_has_the_frames_of_one_call() {
    /// Has frames the first time only.
    struct Once(std::cell::Cell<bool>);
    impl Frames for Once {
        fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
            if !self.0.replace(true) {
                each(Frame::named("main"));
            }
        }
    }
    let (mut stacks, mut definitions, mut reader) =
        (InternedStacks::default(), Writer::new(), Reader::default());
    let id = stacks.id(&Once(false.into()), &mut definitions).unwrap();
    reader.read(&mut definitions);
    assert_eq!(reader.stack(id), ["main"]);
    assert_eq!(stacks.id(&[Frame::named("main")], &mut definitions), Some(id));
}

#[test]
fn a_limited_number_of_stacks_is_kept_and_ids_keep_their_meaning() {
    let (mut stacks, mut definitions) = (InternedStacks::default(), Writer::new());
    let mut given = HashSet::new();
    for line in 0..3 * MAX_STACKS as u32 {
        let id = stacks.id(
            &[Frame::named("function").source("file.rs", line)],
            &mut definitions,
        );
        assert!(given.insert(id.unwrap()), "an id has two meanings");
        assert!(stacks.stacks.len() <= MAX_STACKS);
    }
    let text = "x".repeat(MAX_BYTES / 8);
    for end in text.len() - 100..text.len() {
        let id = stacks.id(&[Frame::named(&text[..end])], &mut definitions);
        assert!(given.insert(id.unwrap()), "an id has two meanings");
        assert!(stacks.bytes <= MAX_BYTES && kept(&stacks) <= stacks.bytes);
    }
    let mut reader = Reader::default();
    reader.read(&mut definitions);
    let callstacks = reader.known.callstacks.iter().map(|stack| stack.iid);
    assert_eq!(callstacks.collect::<HashSet<_>>().len(), given.len());
}

fn frame() -> impl Strategy<Value = (Option<usize>, Option<String>, Option<(String, u32)>)> {
    (
        proptest::option::of(0usize..4),
        proptest::option::of("[ab]{0,2}"),
        proptest::option::of(("[ab]{0,2}", 0u32..3)),
    )
}

proptest! {
    #[test]
    fn two_stacks_have_one_id_exactly_if_they_are_the_same(
        all in proptest::collection::vec(proptest::collection::vec(frame(), 1..4), 1..40)
    ) {
        let (mut stacks, mut definitions) = (InternedStacks::default(), Writer::new());
        let mut ids = HashMap::new();
        for stack in all {
            let frames: Vec<Frame<'_>> = stack.iter().map(|(address, function, source)| Frame {
                address: *address,
                function: function.as_deref(),
                source: source.as_ref().map(|(file, line)| (file.as_str(), *line)),
            }).collect();
            let id = stacks.id(&frames, &mut definitions).unwrap();
            let new = ids.len() as u64 + 1;
            prop_assert_eq!(id, *ids.entry(stack).or_insert(new));
        }
    }
}
