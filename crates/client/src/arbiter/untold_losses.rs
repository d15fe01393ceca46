//! The losses that no chunk has reported yet, by the buffer that lacks the packets. The arbiter notes and reports them.
//!
//! Each row of lost packets takes a chunk of its own, because a service counts one loss in a chunk.

use ferretto_proto::ids::BufferId;

/// The number of targets with losses that wait to be reported. Beyond it, the oldest ones are dropped, which belong to ended sessions.
pub(super) const MAX_TARGETS: usize = 64;

/// The number of losses per target that wait to be reported. Beyond this many the exact number no longer matters.
pub(super) const MAX_ROWS: u16 = 1000;

#[derive(Default)]
pub(super) struct UntoldLosses(Vec<Untold>);

/// The losses for one target.
pub(super) struct Untold {
    pub(super) target: BufferId,
    /// The number of rows of lost packets: at least one.
    pub(super) rows: u16,
    /// So many of them precede the flush that is to be acknowledged.
    before_flush: u16,
}

impl UntoldLosses {
    /// The list, to make room for another target before [`UntoldLosses::note`].
    pub(super) fn room(&mut self) -> &mut Vec<Untold> {
        &mut self.0
    }

    /// Adds a loss.
    pub(super) fn note(&mut self, target: BufferId) {
        if let Some(known) = self.0.iter_mut().find(|known| known.target == target) {
            known.rows = (known.rows + 1).min(MAX_ROWS);
            return;
        }
        if self.0.len() == MAX_TARGETS {
            self.0.remove(0);
        }
        self.0.push(Untold {
            target,
            rows: 1,
            before_flush: 0,
        });
    }

    /// Data sources have flushed: all losses so far precede the flush.
    pub(super) fn precede_flush(&mut self) {
        for untold in &mut self.0 {
            untold.before_flush = untold.rows;
        }
    }

    /// Whether all that precede the flush have been reported.
    pub(super) fn is_flushed(&self) -> bool {
        self.0.iter().all(|untold| untold.before_flush == 0)
    }

    /// The target of the loss to report next: one that precedes the flush, if there is one.
    pub(super) fn next(&self) -> Option<BufferId> {
        let awaited = self.0.iter().find(|untold| untold.before_flush > 0);
        awaited.or(self.0.last()).map(|untold| untold.target)
    }

    /// A loss for `target` has been reported.
    pub(super) fn told(&mut self, target: BufferId) {
        if let Some(at) = self.0.iter().position(|untold| untold.target == target) {
            let untold = &mut self.0[at];
            untold.rows -= 1;
            untold.before_flush = untold.before_flush.saturating_sub(1);
            if untold.rows == 0 {
                self.0.remove(at);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Untold] {
        &self.0
    }
}
