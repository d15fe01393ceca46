//! Flows: arrows between slices that carry one number.

use hashbrown::HashMap;

use super::slices::SliceId;
use crate::context::Context;
use crate::rows::Cell;
use crate::schema::FLOW;

/// The most flows that may go on. Further ones are passed over, and counted.
const MOST: usize = 1 << 20;

/// All flows that may go on.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// The last slice of each flow, and when it began.
    last: HashMap<u64, (SliceId, i64)>,
    rows: i64,
}

impl Flows {
    /// A slice is part of a flow, and begins it if it is the first.
    pub(crate) fn step(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        if self.last.len() >= MOST && !self.last.contains_key(&flow) {
            context.stats.add("ferretto_flows_passed_over", None, 1);
            return;
        }
        if let Some(before) = self.last.insert(flow, slice) {
            self.write(flow, before, slice, context);
        }
    }

    /// A slice ends a flow, if there is one.
    pub(crate) fn end(&mut self, flow: u64, slice: (SliceId, i64), context: &mut Context<'_>) {
        if let Some(before) = self.last.remove(&flow) {
            self.write(flow, before, slice, context);
        }
    }

    fn write(&mut self, flow: u64, before: (SliceId, i64), after: (SliceId, i64), context: &mut Context<'_>) {
        let (out, into) = if before.1 > after.1 {
            (after, before)
        } else {
            (before, after)
        };
        let row = [
            Cell::from(self.rows),
            Cell::from(out.0),
            Cell::from(into.0),
            Cell::from(flow as i64),
            Cell::NULL,
        ];
        self.rows += 1;
        context.output.push(&FLOW, &row, &context.strings);
    }
}
