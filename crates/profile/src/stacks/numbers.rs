//! The number of a frame of a process, by which packets refer to it: its mapping, its function's name and its address in the file are interned.
//!
//! [`Stacks`](super::Stacks) asks for each frame whose number it does not know.

use ferretto_unwind::{Frame, Process};

use crate::interning::{FrameId, Interning, Mapping};
use crate::left_out::LeftOut;
use crate::names::{Names, Reading};

/// A frame with its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    pub(super) number: FrameId,
    pub(super) place: Place,
}

/// The address at which a frame is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Everywhere,
    /// Not before the first that is shown everywhere.
    LeftOutInFront,
}

/// How long the same address has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    AsLongAsMappings,
    /// Compilers replace code without a file, and list its name later.
    ThisTime,
}

/// The number of a frame of a process, which has this id and runs its program since this time.
pub(super) fn number(
    process: &Process,
    id: (i32, u64),
    frame: &Frame,
    reading: Reading,
    (names, left_out): (&mut Names, &LeftOut),
    interning: &mut Interning,
) -> (Numbered, Lasts) {
    let rel_pc = process.relative_pc(frame);
    let mapped = frame
        .mapping
        .and_then(|index| Some((index, process.mapping(index)?)));
    let Some((index, mapping)) = mapped else {
        let nowhere = interning.mapping(&Mapping::default());
        let numbered = Numbered {
            number: interning.frame(nowhere, b"", rel_pc),
            place: Place::Everywhere,
        };
        return (numbered, Lasts::AsLongAsMappings);
    };
    let module = process.module(index).and_then(Result::ok);
    let mapped = interning.mapping(&Mapping {
        build_id: module.map_or(b"", |module| module.build_id()),
        exact_offset: mapping.offset,
        start_offset: 0,
        start: mapping.start,
        end: mapping.end,
        load_bias: module.map_or(0, |module| module.load_bias()),
        path: &mapping.name,
    });
    let (name, lasts) = match module {
        Some(module) => match names.of_module(process, index, module, rel_pc, reading) {
            Some(name) => (name, Lasts::AsLongAsMappings),
            None => (&b""[..], Lasts::ThisTime),
        },
        None => {
            let pc = mapping.start.wrapping_sub(mapping.offset).wrapping_add(rel_pc);
            (names.of_compiled(process, id, pc, reading), Lasts::ThisTime)
        }
    };
    let numbered = Numbered {
        place: match left_out.leads(&mapping.name, name) {
            true => Place::LeftOutInFront,
            false => Place::Everywhere,
        },
        number: interning.frame(mapped, left_out.name(&mapping.name, name), rel_pc),
    };
    (numbered, lasts)
}
