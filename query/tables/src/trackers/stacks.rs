//! Rows of call stacks: mappings, frames, call sites and symbols, numbered in the order in which samples first use them.
//!
//! The tokenizer's [pool](crate::tokenizer::stacks) has what samples refer to. A mapping of a process is a row for each time that a sequence has started over.

use std::collections::BTreeMap;

use ferretto_proto::write::{AddressSymbols, Line, ModuleSymbols};
use hashbrown::HashMap;

use super::Trackers;
use super::processes::Upid;
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, number_of};
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{
    STACK_PROFILE_CALLSITE, STACK_PROFILE_FRAME, STACK_PROFILE_MAPPING, STACK_PROFILE_SYMBOL,
};
use crate::strings::{StringId, Strings};
use crate::tokenizer::stacks::{Frame, Place, build_id};

/// The number of a row of `stack_profile_callsite`.
pub(crate) type Callsite = i64;
type Row = i64;

/// The states of sequences that are remembered. Events of earlier ones make new rows.
const MOST_GENERATIONS: usize = 64;
/// The name of the mapping of the kernel's functions, which has no addresses.
const KERNEL: &str = "/kernel";

/// What the stacks of a sequence became, until it starts over.
#[derive(Debug, Default)]
struct Known {
    mappings: HashMap<(Upid, u32), Row>,
    frames: HashMap<(Upid, u32), Row>,
    stacks: HashMap<(Upid, u32), Callsite>,
}

#[derive(Debug)]
struct FrameRow {
    name: StringId,
    mapping: Row,
    rel_pc: i64,
    symbols: Option<i64>,
}

/// All rows of stacks so far.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    known: BTreeMap<u32, Known>,
    mappings: Row,
    by_file: HashMap<(StringId, StringId), Vec<Row>>,
    shared: HashMap<Place, Row>,
    kernel: Option<Row>,
    frames: Vec<FrameRow>,
    frame_rows: HashMap<(Row, i64, StringId), Row>,
    by_address: HashMap<(Row, i64), Vec<Row>>,
    callsites: HashMap<(Option<Callsite>, Row), Callsite>,
    symbols: i64,
}

impl Stacks {
    /// Returns the call site of a stack of the pool, in a process. `None` if something of it is missing, which is counted.
    pub(crate) fn callsite(
        &mut self,
        generation: u32,
        upid: Upid,
        stack: u32,
        context: &mut Context<'_>,
    ) -> Option<Callsite> {
        if let Some(site) = self.known(generation).stacks.get(&(upid, stack)) {
            return Some(*site);
        }
        let Some(found) = context.stacks.stacks.get(stack as usize).cloned() else {
            context.stats.add("stackprofile_invalid_callstack_id", None, 1);
            return None;
        };
        let mut site = None;
        for (depth, frame) in found.frames.iter().enumerate() {
            let frame = self.frame(generation, upid, *frame, context)?;
            let next = self.callsites.len() as Callsite;
            let this = *self.callsites.entry((site, frame)).or_insert(next);
            if this == next {
                let row = [
                    Cell::from(this),
                    Cell::from(depth as i64),
                    Cell::from(site),
                    Cell::from(frame),
                ];
                context
                    .output
                    .push(&STACK_PROFILE_CALLSITE, &row, &context.strings);
            }
            site = Some(this);
        }
        if let Some(missing) = found.missing {
            context.stats.add(missing, None, 1);
            return None;
        }
        let site = site?;
        self.known(generation).stacks.insert((upid, stack), site);
        Some(site)
    }

    fn known(&mut self, generation: u32) -> &mut Known {
        if self.known.len() >= MOST_GENERATIONS && !self.known.contains_key(&generation) {
            self.known.pop_first();
        }
        self.known.entry(generation).or_default()
    }

    fn frame(&mut self, generation: u32, upid: Upid, number: u32, context: &mut Context<'_>) -> Option<Row> {
        if let Some(row) = self.known(generation).frames.get(&(upid, number)) {
            return Some(*row);
        }
        let frame: Frame = *context.stacks.frames.get(number as usize)?;
        let mapping = self.mapping(generation, upid, frame.mapping, context)?;
        let next = self.frames.len() as Row;
        let row = *self
            .frame_rows
            .entry((mapping, frame.rel_pc, frame.name))
            .or_insert(next);
        if row == next {
            self.frames.push(FrameRow {
                name: frame.name,
                mapping,
                rel_pc: frame.rel_pc,
                symbols: None,
            });
            self.by_address
                .entry((mapping, frame.rel_pc))
                .or_default()
                .push(row);
        }
        self.known(generation).frames.insert((upid, number), row);
        Some(row)
    }

    fn mapping(
        &mut self,
        generation: u32,
        upid: Upid,
        number: u32,
        context: &mut Context<'_>,
    ) -> Option<Row> {
        if let Some(row) = self.known(generation).mappings.get(&(upid, number)) {
            return Some(*row);
        }
        let place = context.stacks.mappings.get(number as usize)?.place;
        let is_empty = place.start == place.end;
        let is_kernel = is_empty
            && (place.start, place.exact_offset) == (0, 0)
            && context.strings.get(place.build_id).is_empty()
            && context.strings.get(place.name) == KERNEL;
        let known = match (is_kernel, is_empty) {
            (true, _) => self.kernel,
            (false, true) => self.shared.get(&place).copied(),
            (false, false) => None,
        };
        let row = match known {
            Some(row) => row,
            None => self.add_mapping(&place, context),
        };
        if is_kernel {
            self.kernel = Some(row);
        } else if is_empty {
            self.shared.insert(place, row);
        }
        self.known(generation).mappings.insert((upid, number), row);
        Some(row)
    }

    fn add_mapping(&mut self, place: &Place, context: &mut Context<'_>) -> Row {
        let id = self.mappings;
        self.mappings += 1;
        let row = [
            Cell::from(id),
            Cell::from(place.build_id),
            Cell::from(place.exact_offset),
            Cell::from(place.start_offset),
            Cell::from(place.start),
            Cell::from(place.end),
            Cell::from(place.load_bias),
            Cell::from(place.name),
        ];
        context
            .output
            .push(&STACK_PROFILE_MAPPING, &row, &context.strings);
        self.by_file
            .entry((place.name, place.build_id))
            .or_default()
            .push(id);
        id
    }

    /// Writes the table of frames, whose symbols may come late.
    pub(crate) fn write(&self, strings: &Strings, output: &mut Output<'_>) {
        for (id, frame) in self.frames.iter().enumerate() {
            let name = match strings.get(frame.name) {
                "" => Cell::NULL,
                _ => Cell::from(frame.name),
            };
            let row = [
                Cell::from(id as i64),
                name,
                Cell::from(frame.mapping),
                Cell::from(frame.rel_pc),
                Cell::from(frame.symbols),
                Cell::NULL,
            ];
            output.push(&STACK_PROFILE_FRAME, &row, strings);
        }
    }
}

impl Trackers {
    /// Names and lines of addresses in a file.
    pub(crate) fn module_symbols(&mut self, message: &[u8], context: &mut Context<'_>) {
        let path = context
            .strings
            .intern_bytes(bytes_of(message, ModuleSymbols::PATH).unwrap_or(&[]));
        let id = build_id(bytes_of(message, ModuleSymbols::BUILD_ID).unwrap_or(&[]), context);
        let stacks = &mut self.stacks;
        let Some(mappings) = stacks.by_file.get(&(path, id)) else {
            context.stats.add("stackprofile_invalid_mapping_id", None, 1);
            return;
        };
        for of_address in all_bytes(message, ModuleSymbols::ADDRESS_SYMBOLS) {
            let set = stacks.symbols;
            for line in all_bytes(of_address, AddressSymbols::LINES) {
                let function = bytes_of(line, Line::FUNCTION_NAME).unwrap_or(&[]);
                let function = context.strings.intern_bytes(function);
                let file = bytes_of(line, Line::SOURCE_FILE_NAME).filter(|file| !file.is_empty());
                let file = file.map(|file| context.strings.intern_bytes(file));
                let number = number_of(line, Line::LINE_NUMBER).filter(|_| file.is_some());
                let row = [
                    Cell::from(stacks.symbols),
                    Cell::from(set),
                    Cell::from(function),
                    Cell::from(file),
                    Cell::from(number.map(|line| line as u32)),
                ];
                stacks.symbols += 1;
                context.output.push(&STACK_PROFILE_SYMBOL, &row, &context.strings);
            }
            if stacks.symbols == set {
                continue;
            }
            let address = number_of(of_address, AddressSymbols::ADDRESS).unwrap_or(0) as i64;
            let mut is_found = false;
            for mapping in mappings {
                for frame in stacks.by_address.get(&(*mapping, address)).into_iter().flatten() {
                    if let Some(frame) = stacks.frames.get_mut(*frame as usize) {
                        frame.symbols = Some(set);
                        is_found = true;
                    }
                }
            }
            if !is_found {
                context.stats.add("stackprofile_invalid_frame_id", None, 1);
            }
        }
    }
}
