//! The locks of this crate over forks.
//!
//! A forked child has copies of the locks, and none of the threads that would release them. So a thread that forks holds all of them meanwhile.
//! [`ferretto`] calls this before it takes its own locks, because some of its locks are taken under some of these. The locks of `tracing` itself (for
//! new call sites and subscribers) are out of our reach.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::MutexGuard;

use ferretto::private::ForkLocks;

use crate::counters::{self, Sums, Total};
use crate::interest::{self, Dispatches};
use crate::lanes::Free;
use crate::sites::{LOG_SITES, LogCallSites, SITES};

/// The locks of this crate, to be passed to the SDK before any of them is first taken.
pub(crate) const LOCKS: ForkLocks = ForkLocks { hold, release };

/// The locks that a thread holds while it forks. The lists keep their memory: releasing frees none, which a child had better not do.
struct Held {
    few: Option<Few>,
    sums: Vec<MutexGuard<'static, Total>>,
    lanes: Vec<MutexGuard<'static, VecDeque<Free>>>,
}

struct Few {
    _dispatches: MutexGuard<'static, Dispatches>,
    _making: MutexGuard<'static, ()>,
    _log_sites: MutexGuard<'static, LogCallSites>,
    _sums: MutexGuard<'static, Sums>,
}

thread_local! {
    static HELD: RefCell<Held> = const {
        RefCell::new(Held {
            few: None,
            sums: Vec::new(),
            lanes: Vec::new(),
        })
    };
}

fn hold() {
    // A thread that is past its thread-locals forks as it can.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        // In this order: the SDK tells of subscribers with its list of observers locked after this lock, and while a site is made its sums are looked
        // up. The other locks are taken alone.
        let dispatches = interest::dispatches();
        let making = SITES.hold();
        let log_sites = LOG_SITES.hold();
        let sums = counters::sums();
        held.sums.extend(sums.values().map(|sum| sum.hold()));
        // No lane is added meanwhile.
        held.lanes.extend(SITES.all().map(|site| site.lanes.hold()));
        held.few = Some(Few {
            _dispatches: dispatches,
            _making: making,
            _log_sites: log_sites,
            _sums: sums,
        });
    });
}

fn release() {
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.lanes.clear();
        held.sums.clear();
        held.few = None;
    });
}

#[cfg(test)]
mod tests;
