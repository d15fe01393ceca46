//! Slices: a stack for each track.
//!
//! A slice is written when it leaves the stack of its track, as nothing can change it then; at the end of the trace those that are open, with the duration -1.

use hashbrown::HashMap;

use super::args::Pending;
use super::frames::Frame;
use super::tracks::TrackId;
use crate::context::Context;
use crate::rows::Cell;
use crate::schema::SLICE;
use crate::strings::{StringId, Strings};

/// The number of a slice.
pub(crate) type SliceId = i64;
/// The duration of a slice that has not ended.
const OPEN: i64 = -1;
/// Slices deeper than this are not nested.
const MOST_DEPTH: usize = 512;

/// The most flows that wait for the next slice of a track.
const MOST_AWAITED: usize = 1 << 12;

/// A slice that may still change.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) id: SliceId,
    pub(crate) ts: i64,
    dur: i64,
    category: Option<StringId>,
    name: Option<StringId>,
    stack: i64,
    pub(crate) args: Pending,
    pub(crate) thread_ts: Option<i64>,
    pub(crate) thread_dur: Option<i64>,
    pub(crate) instructions: Option<i64>,
    pub(crate) instruction_delta: Option<i64>,
    /// What else it is, if it is a frame.
    pub(super) frame: Option<Box<Frame>>,
}

/// What begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) category: Option<StringId>,
    pub(crate) name: Option<StringId>,
}

/// All slices that are open.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// By track.
    stacks: Vec<Vec<Slice>>,
    rows: SliceId,
    /// Flows that end at the next slice of a track.
    awaited: HashMap<TrackId, Vec<u64>>,
    /// Such flows whose slice has begun.
    arrived: Vec<(u64, SliceId)>,
}

impl Slices {
    /// Begins a slice, or adds one of a known duration. `None` if it would overlap another one partly.
    pub(crate) fn begin(
        &mut self,
        ts: i64,
        track: TrackId,
        named: Named,
        dur: Option<i64>,
        context: &mut Context<'_>,
    ) -> Option<&mut Slice> {
        let dur = dur.unwrap_or(OPEN);
        let at = track as usize;
        if at >= self.stacks.len() {
            self.stacks.resize_with(at + 1, Vec::new);
        }
        let stack = &mut self.stacks[at];
        if !close(stack, ts, dur, track, context) {
            return None;
        }
        let id = self.rows;
        self.rows += 1;
        let parent = stack.last();
        let mut slice = Slice {
            id,
            ts,
            dur,
            category: named.category,
            name: named.name,
            stack: 0,
            args: Pending::default(),
            thread_ts: None,
            thread_dur: None,
            instructions: None,
            instruction_delta: None,
            frame: None,
        };
        if stack.len() >= MOST_DEPTH {
            write(&mut slice, track, 0, None, context);
            return None;
        }
        slice.stack = stack_id(parent, named);
        if !self.awaited.is_empty() {
            let flows = self.awaited.remove(&track).unwrap_or_default();
            self.arrived.extend(flows.into_iter().map(|flow| (flow, id)));
        }
        stack.push(slice);
        stack.last_mut()
    }

    /// Returns the innermost slice of a track, and when it began.
    pub(crate) fn innermost(&self, track: TrackId) -> Option<(SliceId, i64)> {
        let slice = self.stacks.get(track as usize)?.last()?;
        Some((slice.id, slice.ts))
    }

    /// Lets a flow end at the next slice of a track. Returns whether there is room for it.
    pub(crate) fn await_with(&mut self, track: TrackId, flow: u64) -> bool {
        let flows = self.awaited.entry(track).or_default();
        let has_room = flows.len() < MOST_AWAITED;
        if has_room {
            flows.push(flow);
        }
        has_room
    }

    /// Returns the flows that have ended in this way since the last call, with their slices.
    pub(crate) fn take_arrived(&mut self) -> Vec<(u64, SliceId)> {
        std::mem::take(&mut self.arrived)
    }

    /// Whether a track has slices that may still change.
    pub(crate) fn is_empty(&self, track: TrackId) -> bool {
        self.stacks.get(track as usize).is_none_or(Vec::is_empty)
    }

    /// Ends the innermost open slice that has this name and category, as far as they are given. `visit` may change it first.
    pub(crate) fn end(
        &mut self,
        ts: i64,
        track: TrackId,
        named: Named,
        context: &mut Context<'_>,
        visit: impl FnOnce(&mut Slice, &mut Strings),
    ) -> Option<(SliceId, i64)> {
        let stack = self.stacks.get_mut(track as usize)?;
        if !close(stack, ts, OPEN, track, context) {
            return None;
        }
        let at = stack.iter().rposition(|slice| {
            slice.dur == OPEN
                && named
                    .category
                    .is_none_or(|category| slice.category == Some(category))
                && named
                    .name
                    .is_none_or(|name| slice.name.is_none_or(|known| known == name))
        })?;
        let slice = &mut stack[at];
        slice.dur = ts.wrapping_sub(slice.ts);
        visit(slice, &mut context.strings);
        let ended = (slice.id, slice.ts);
        if at + 1 == stack.len() {
            pop(stack, track, context);
        }
        Some(ended)
    }

    /// Writes all that is open.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        for (track, mut stack) in (0..).zip(std::mem::take(&mut self.stacks)) {
            while !stack.is_empty() {
                pop(&mut stack, track, context);
            }
        }
    }
}

/// Takes the slices off a stack that have ended at `ts`, when something begins that lasts `dur`. Returns whether it fits.
fn close(stack: &mut Vec<Slice>, ts: i64, dur: i64, track: TrackId, context: &mut Context<'_>) -> bool {
    let mut has_open_above = false;
    for at in (0..stack.len()).rev() {
        let slice = &stack[at];
        if slice.dur == OPEN {
            has_open_above = true;
            continue;
        }
        let end = slice.ts.wrapping_add(slice.dur);
        if has_open_above {
            if ts <= end {
                continue;
            }
            // Slices within this one have not ended although it has: they end with it.
            context.stats.add("misplaced_end_event", None, 1);
            while stack.len() > at + 1 {
                if let Some(above) = stack.last_mut() {
                    above.dur = end.wrapping_sub(above.ts);
                }
                pop(stack, track, context);
            }
            pop(stack, track, context);
            has_open_above = false;
            continue;
        }
        let both_moments = slice.dur == 0 && dur == 0;
        if end < ts || (end == ts && !both_moments) {
            pop(stack, track, context);
            continue;
        }
        if dur != OPEN && ts < end && ts.wrapping_add(dur) > end {
            context
                .stats
                .add("slice_drop_overlapping_complete_event", None, 1);
            return false;
        }
    }
    true
}

fn pop(stack: &mut Vec<Slice>, track: TrackId, context: &mut Context<'_>) {
    let Some(mut slice) = stack.pop() else { return };
    write(&mut slice, track, stack.len(), stack.last(), context);
}

fn write(slice: &mut Slice, track: TrackId, depth: usize, parent: Option<&Slice>, context: &mut Context<'_>) {
    let Context {
        strings,
        output,
        args,
        ..
    } = context;
    let set = match slice.args.is_empty() {
        true => None,
        false => args.finish_with(&mut slice.args, strings, output),
    };
    let category = Cell::from(slice.category);
    let row = [
        Cell::from(slice.id),
        Cell::from(slice.ts),
        Cell::from(slice.dur),
        Cell::from(track),
        category,
        Cell::from(slice.name),
        Cell::from(depth as i64),
        Cell::from(slice.stack),
        Cell::from(parent.map_or(0, |parent| parent.stack)),
        Cell::from(parent.map(|parent| parent.id)),
        Cell::from(set),
        Cell::from(slice.thread_ts),
        Cell::from(slice.thread_dur),
        Cell::from(slice.instructions),
        Cell::from(slice.instruction_delta),
        category,
        Cell::from(slice.id),
    ];
    output.time(slice.ts, slice.dur);
    output.push(&SLICE, &row, strings);
    if let (Some(frame), Some(of_slice)) = (&slice.frame, row.first_chunk::<8>()) {
        let [id, ts, dur, track, category, name, depth, _] = *of_slice;
        let (parent, set) = (row[9], row[10]);
        frame.write(
            [id, ts, dur, track, category, name, depth, parent, set],
            strings,
            output,
        );
    }
}

/// Distinguishes stacks of names and categories, in 53 bits, which all programs can hold.
fn stack_id(parent: Option<&Slice>, named: Named) -> i64 {
    let parts = [
        parent.map_or(0, |parent| parent.stack as u64),
        named.category.map_or(0, |category| u64::from(category.0) + 1),
        named.name.map_or(0, |name| u64::from(name.0) + 1),
    ];
    let hash = parts
        .iter()
        .flat_map(|part| part.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    (hash & ((1 << 53) - 1)) as i64
}
