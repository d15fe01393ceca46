//! Has `tracing` ask again which call sites are of interest, whenever sessions start or stop.
//!
//! Called on the SDK's thread. `tracing` keeps the answers in the call sites themselves: this is why a span costs next to nothing while no
//! session records it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferretto::SessionEvent;
use tracing_core::dispatcher::{Dispatch, WeakDispatch, with_default};

use crate::fork;

/// Subscribers that have our layer.
static DISPATCHES: Mutex<Dispatches> = Mutex::new(Dispatches {
    all: Vec::new(),
    observing: false,
});

/// See [`DISPATCHES`].
pub(crate) struct Dispatches {
    all: Vec<WeakDispatch>,
    /// Whether the SDK tells of sessions.
    observing: bool,
}

pub(crate) fn dispatches() -> MutexGuard<'static, Dispatches> {
    DISPATCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscriber has our layer.
pub(crate) fn register(dispatch: &Dispatch) {
    let mut dispatches = dispatches();
    if !std::mem::replace(&mut dispatches.observing, true) {
        ferretto::private::hold_over_forks(fork::LOCKS);
        ferretto::observe_sessions(|event| match event {
            SessionEvent::Started(_) | SessionEvent::Stopped(_) => ask_again(),
            _ => {}
        })
        .forever();
    }
    dispatches.all.retain(|dispatch| dispatch.upgrade().is_some());
    dispatches.all.push(dispatch.downgrade());
}

fn ask_again() {
    let dispatch = dispatches().all.iter().find_map(WeakDispatch::upgrade);
    // While there is one subscriber only, `tracing` asks the default one of the thread, which need not be that.
    if let Some(dispatch) = dispatch {
        with_default(&dispatch, tracing_core::callsite::rebuild_interest_cache);
    }
}
