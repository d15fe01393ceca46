//! The contexts that a thread has entered. The innermost is current.

use std::cell::Cell;
use std::marker::PhantomData;

use super::TraceContext;

/// Contexts with the numbers of their guards, which rise.
#[derive(Default)]
struct Entered {
    contexts: Vec<(u64, TraceContext)>,
    last: u64,
}

thread_local! {
    static ENTERED: Cell<Entered> = const { Cell::new(Entered { contexts: Vec::new(), last: 0 }) };
}

/// Calls `change`, unless the thread-local is gone. Meanwhile there is no current context for the allocator, which may trace.
fn with<R>(change: impl FnOnce(&mut Entered) -> R) -> Option<R> {
    let changed = ENTERED.try_with(|cell| {
        let mut entered = cell.take();
        let result = change(&mut entered);
        cell.set(entered);
        result
    });
    changed.ok()
}

pub(super) fn current() -> Option<TraceContext> {
    with(|entered| entered.contexts.last().map(|(_, context)| context.clone())).flatten()
}

/// A context that is current on this thread until this is dropped: see [`TraceContext::enter`].
///
/// It belongs to its thread:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>(_: T) {}
/// is_send(ferretto::TraceContext::start().enter());
/// ```
#[derive(Debug)]
#[must_use = "the context is current until this is dropped"]
pub struct EnteredContext {
    /// `None` if the thread is too close to its end to have a current context.
    number: Option<u64>,
    _of_thread: PhantomData<*const ()>,
}

impl EnteredContext {
    pub(super) fn new(context: TraceContext) -> Self {
        let number = with(|entered| {
            entered.last += 1;
            entered.contexts.push((entered.last, context));
            entered.last
        });
        Self {
            number,
            _of_thread: PhantomData,
        }
    }
}

impl Drop for EnteredContext {
    /// Ends the contexts that were entered later, too. If they are not over, their guards were forgotten or belong to a future that is not being
    /// polled.
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        with(|entered| {
            // Not there if it ended with an outer one.
            if let Ok(outer) = entered
                .contexts
                .binary_search_by_key(&number, |(other, _)| *other)
            {
                entered.contexts.truncate(outer);
            }
        });
    }
}
