//! Has `tracing` ask again which call sites are of interest, whenever sessions start or stop.
//!
//! Called on the SDK's thread. `tracing` keeps the answers in the call sites themselves: this is why a span costs next to nothing while no
//! session records it.

use std::sync::{Mutex, Once, PoisonError};

use tracing_core::dispatcher::{Dispatch, WeakDispatch, with_default};

/// Subscribers that have our layer.
static DISPATCHES: Mutex<Vec<WeakDispatch>> = Mutex::new(Vec::new());

/// A subscriber has our layer.
pub(crate) fn register(dispatch: &Dispatch) {
    static OBSERVING: Once = Once::new();
    OBSERVING.call_once(|| ferretto::private::observe_sessions(ask_again));
    let mut dispatches = DISPATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    dispatches.retain(|dispatch| dispatch.upgrade().is_some());
    dispatches.push(dispatch.downgrade());
}

fn ask_again() {
    let dispatch = {
        let dispatches = DISPATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        dispatches.iter().find_map(WeakDispatch::upgrade)
    };
    // While there is one subscriber only, `tracing` asks the default one of the thread, which need not be that.
    if let Some(dispatch) = dispatch {
        with_default(&dispatch, tracing_core::callsite::rebuild_interest_cache);
    }
}
