//! The slice whose future a thread is polling. Slices that begin meanwhile are its children.

use std::cell::Cell;

use super::lanes::ParentSlice;

thread_local! {
    static CURRENT: Cell<Option<ParentSlice>> = const { Cell::new(None) };
}

/// The slice whose future this thread is polling, if it is recorded.
pub(super) fn parent() -> Option<ParentSlice> {
    // Events in the destructors of thread-locals have no parent.
    CURRENT
        .try_with(|current| {
            let parent = current.take();
            current.set(parent.clone());
            parent
        })
        .ok()
        .flatten()
}

/// Makes the slice in `slice`, if there is one, the thread's current slice until this is dropped. Moves it, so that a poll touches no counter.
pub(super) struct Entered<'a, P: From<ParentSlice>> {
    slice: &'a mut Option<P>,
    before: Option<ParentSlice>,
}

impl<'a, P: From<ParentSlice> + Into<ParentSlice>> Entered<'a, P> {
    #[inline(always)]
    pub(super) fn new(slice: &'a mut Option<P>) -> Option<Self> {
        let entered = slice.take()?;
        Self::of(slice, entered.into())
    }

    #[inline(never)]
    fn of(slice: &'a mut Option<P>, entered: ParentSlice) -> Option<Self> {
        // Polls in the destructors of thread-locals have no children.
        let Ok(before) = CURRENT.try_with(Cell::take) else {
            *slice = Some(entered.into());
            return None;
        };
        CURRENT.set(Some(entered));
        Some(Self { slice, before })
    }
}

impl<P: From<ParentSlice>> Drop for Entered<'_, P> {
    #[inline(never)]
    fn drop(&mut self) {
        // Polls are nested, so the thread-local holds this slice again.
        *self.slice = CURRENT.replace(self.before.take()).map(P::from);
    }
}
