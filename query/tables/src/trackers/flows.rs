//! Flows: arrows between slices that carry one number.

use hashbrown::HashMap;

use super::args::{Pending, Value};
use super::slices::SliceId;
use crate::context::Context;
use crate::rows::Cell;
use crate::schema::FLOW;
use crate::strings::StringId;

/// The most flows that may go on. Further ones are passed over, and counted.
const MOST: usize = 1 << 20;

/// What flows of the oldest form are known by: a number, the category and the name of their events.
pub(crate) type Label = (u64, Option<StringId>, Option<StringId>);

/// All flows that may go on.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// The last slice of each flow, and when it began.
    last: HashMap<u64, (SliceId, i64)>,
    /// The numbers of flows of the oldest form, and the other way round.
    numbers: HashMap<Label, u64>,
    labels: HashMap<u64, Label>,
    rows: i64,
}

impl Flows {
    /// Returns the number of a flow of the oldest form. `None`, which is counted, if there is no room for another.
    pub(crate) fn labelled(&mut self, label: Label, context: &mut Context<'_>) -> Option<u64> {
        if let Some(number) = self.numbers.get(&label) {
            return Some(*number);
        }
        let number = self.numbers.len() as u64;
        if self.numbers.len() >= MOST {
            context.stats.add("ferretto_flows_passed_over", None, 1);
            return None;
        }
        self.numbers.insert(label, number);
        self.labels.insert(number, label);
        Some(number)
    }

    /// Whether another flow has no room.
    fn is_full(&self, flow: u64, context: &mut Context<'_>) -> bool {
        let is_full = self.last.len() >= MOST && !self.last.contains_key(&flow);
        if is_full {
            context.stats.add("ferretto_flows_passed_over", None, 1);
        }
        is_full
    }

    /// A slice is part of a flow, and begins it if it is the first.
    pub(crate) fn step(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        if self.is_full(flow, context) {
            return;
        }
        if let Some(before) = self.last.insert(flow, slice) {
            self.write_in_order(flow, before, slice, context);
        }
    }

    /// A slice ends a flow, if there is one.
    pub(crate) fn end(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        if let Some(before) = self.last.remove(&flow) {
            self.write_in_order(flow, before, slice, context);
        }
    }

    /// A slice begins a flow, unless that has begun.
    pub(crate) fn begin_once(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        if self.is_full(flow, context) {
            return;
        }
        match self.last.contains_key(&flow) {
            true => context.stats.add("flow_duplicate_id", None, 1),
            false => drop(self.last.insert(flow, slice)),
        }
    }

    /// A slice is part of a flow, if that has begun.
    pub(crate) fn go_on(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        match self.last.get_mut(&flow) {
            Some(last) => {
                let before = std::mem::replace(last, slice);
                self.write_in_order(flow, before, slice, context);
            }
            None => context.stats.add("flow_step_without_start", None, 1),
        }
    }

    /// A slice is an end of a flow, which others may be too.
    pub(crate) fn end_here(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        match self.last.get(&flow).copied() {
            Some(before) => self.write_in_order(flow, before, slice, context),
            None => context.stats.add("flow_end_without_start", None, 1),
        }
    }

    /// A flow that waited for a slice ends there. One that has not begun begins at the first slice of the trace, as in the trace processor.
    pub(crate) fn arrive(&mut self, flow: u64, slice: SliceId, context: &mut Context<'_>) {
        if self.is_full(flow, context) {
            return;
        }
        let before = *self.last.entry(flow).or_insert((0, 0));
        self.write(flow, before.0, slice, context);
    }

    /// An arrow that has no number.
    pub(crate) fn between(&mut self, out: SliceId, into: SliceId, context: &mut Context<'_>) {
        let row = [
            Cell::from(self.rows),
            Cell::from(out),
            Cell::from(into),
            Cell::NULL,
            Cell::NULL,
        ];
        self.rows += 1;
        context.output.push(&FLOW, &row, &context.strings);
    }

    fn write_in_order(
        &mut self,
        flow: u64,
        before: (SliceId, i64),
        after: (SliceId, i64),
        context: &mut Context<'_>,
    ) {
        match before.1 > after.1 {
            true => self.write(flow, after.0, before.0, context),
            false => self.write(flow, before.0, after.0, context),
        }
    }

    fn write(&mut self, flow: u64, out: SliceId, into: SliceId, context: &mut Context<'_>) {
        let Context {
            strings,
            output,
            args,
            ..
        } = context;
        let set = self.labels.get(&flow).and_then(|(_, category, name)| {
            let mut pending = Pending::default();
            for (key, value) in [("name", name), ("cat", category)] {
                let key = strings.intern(key);
                let value = value.unwrap_or_else(|| strings.intern(""));
                pending.add(key, key, Value::Text(value));
            }
            args.finish_with(&mut pending, strings, output)
        });
        let row = [
            Cell::from(self.rows),
            Cell::from(out),
            Cell::from(into),
            Cell::from(flow as i64),
            Cell::from(set),
        ];
        self.rows += 1;
        output.push(&FLOW, &row, strings);
    }
}
