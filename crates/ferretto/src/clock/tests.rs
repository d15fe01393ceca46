//! Trace time on this machine, and the arithmetic of anchors.

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// The time of an event, as sequences take it.
fn stamp(anchor: &mut Anchor, last: u64) -> u64 {
    match anchor.now() {
        Some(ns) => ns,
        None => anchor.renew(last),
    }
}

/// Whether this machine's counter is used; says so if not.
fn has_counter() -> bool {
    let has = timeline::uses_counter();
    if !has {
        println!("skipped: the kernel does not rely on this machine's time-stamp counter");
    }
    has
}

#[test]
fn clocks_have_the_numbers_of_builtin_clock() {
    use ferretto_proto::messages::BuiltinClock;
    assert_eq!(
        TraceClock::Boottime.id(),
        BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32
    );
    assert_eq!(
        TraceClock::Monotonic.id(),
        BuiltinClock::BUILTIN_CLOCK_MONOTONIC as u32
    );
    assert_eq!(
        TraceClock::MonotonicRaw.id(),
        BuiltinClock::BUILTIN_CLOCK_MONOTONIC_RAW as u32
    );
    assert_eq!(TraceClock::default(), TraceClock::Boottime);
}

#[test]
fn the_trace_clock_is_chosen_once() {
    assert_eq!(choose(TraceClock::Boottime), Ok(()));
    assert_eq!(choose(TraceClock::Boottime), Ok(()), "the same again");
    let refused = choose(TraceClock::Monotonic).expect_err("another one");
    assert_eq!(
        refused,
        AlreadyChosen {
            wanted: TraceClock::Monotonic,
            chosen: TraceClock::Boottime
        }
    );
    assert!(
        refused.to_string().contains("Monotonic") && refused.to_string().contains("Boottime"),
        "{refused}"
    );
    assert_eq!(chosen(), TraceClock::Boottime);
}

#[test]
fn now_is_the_kernels_time() {
    let before = time::now(Clock::Boot);
    let now = now();
    assert!((before..=time::now(Clock::Boot)).contains(&now));
}

#[test]
fn thread_time_is_of_this_thread() {
    let before = thread_time_ns();
    thread::scope(|scope| {
        scope.spawn(|| {
            while thread_time_ns() < 20_000_000 {
                std::hint::spin_loop();
            }
        });
    });
    let waited = thread_time_ns() - before;
    assert!(waited < 15_000_000, "{waited} ns for waiting");
    let spinning = thread_time_ns();
    while thread_time_ns() == spinning {}
}

#[test]
fn clock_sources_other_than_the_counter_are_recognised() {
    for other in [
        "hpet",
        "acpi_pm",
        "jiffies",
        "refined-jiffies",
        "tsc-early",
        "hyperv_clocksource_msr",
        "",
        "unstable",
    ] {
        assert!(!counter::is_made_of_counter(other), "{other}");
    }
    if cfg!(target_arch = "x86_64") {
        for own in ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"] {
            assert!(counter::is_made_of_counter(own), "{own}");
        }
    }
}

#[test]
fn stamps_are_within_50_ns_of_the_kernels_clock() {
    if has_counter() {
        choose(TraceClock::Boottime).expect("no test chooses another one in this process");
        look_at_stamps();
    }
}

/// Environment variable: the clock that a test's own process uses.
const CLOCK: &str = "FERRETTO_CLOCK_OF_TEST";

#[test]
fn stamps_of_the_other_clocks_are_as_near() {
    if let Ok(id) = env::var(CLOCK) {
        let clock = CHOICES
            .into_iter()
            .find(|clock| clock.id().to_string() == id)
            .expect("a clock");
        // The choice discards the state of the default clock.
        let mut anchor = Anchor::EXPIRED;
        anchor.renew(0);
        choose(clock).expect("the first choice");
        return look_at_stamps();
    }
    if !has_counter() {
        return;
    }
    for clock in [TraceClock::Monotonic, TraceClock::MonotonicRaw] {
        let output = Command::new(env::current_exe().expect("this program"))
            .args([
                "clock::tests::stamps_of_the_other_clocks_are_as_near",
                "--exact",
                "--nocapture",
            ])
            .env(CLOCK, clock.id().to_string())
            .output()
            .expect("this program runs");
        let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        println!("{clock:?}: {printed}");
        assert!(
            output.status.success() && printed.contains(" stamps, "),
            "{clock:?}: {errors}"
        );
    }
}

/// Looks until stamps were near for a while. On a busy machine, the readings of which pieces are made take longer, and then pieces are less precise.
fn look_at_stamps() {
    assert!(
        (0..20).any(|_| are_near()),
        "too many stamps are further off than 50 ns"
    );
}

fn are_near() -> bool {
    let mut anchor = Anchor::EXPIRED;
    let mut last = 0;
    let (mut stamps, mut far, mut furthest, mut renewals) = (0_u64, 0_u64, 0_u64, 0_u64);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        for _ in 0..100 {
            let before = now();
            let known = anchor.now();
            let after = now();
            let Some(ns) = known else {
                last = anchor.renew(last);
                renewals += 1;
                continue;
            };
            assert!(ns >= last, "{ns} after {last}");
            last = ns;
            // The stamp must be between the two, however long this thread was interrupted.
            let off = before.saturating_sub(ns).max(ns.saturating_sub(after));
            stamps += 1;
            far += u64::from(off > 50);
            furthest = furthest.max(off);
        }
    }
    println!("{stamps} stamps, {renewals} renewals; {far} further off than 50 ns, one by {furthest} ns");
    assert!(
        stamps > 1000 && renewals < stamps / 10,
        "{renewals} renewals for {stamps} stamps"
    );
    // Time synchronisation may speed up the clock at this very moment.
    assert!(furthest < 10_000, "one stamp is {furthest} ns off");
    far <= stamps / 100
}

#[test]
fn an_earlier_event_of_another_thread_has_an_earlier_stamp() {
    if !has_counter() {
        return;
    }
    const ROUNDS: u64 = 20_000;
    /// The largest difference between a time from the kernel, which a thread uses while another one is interrupted, and a time from the counter.
    const OFF_NS: u64 = 1_000;
    let latest = AtomicU64::new(0);
    let worst = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut anchor = Anchor::EXPIRED;
                let mut own = 0;
                for _ in 0..ROUNDS {
                    let before = latest.load(Ordering::Acquire);
                    // Without this, the processor may read the counter before the load is complete.
                    counter::read_in_order();
                    let ns = stamp(&mut anchor, own);
                    assert!(ns >= own, "{ns} after {own}");
                    own = ns;
                    worst.fetch_max(before.saturating_sub(ns), Ordering::Relaxed);
                    latest.fetch_max(ns, Ordering::Release);
                }
            });
        }
    });
    let worst = worst.into_inner();
    println!("at worst {worst} ns before what happened before");
    assert!(worst < OFF_NS, "stamped {worst} ns before what happened before");
}

#[test]
fn threads_have_the_same_time() {
    if !has_counter() {
        return;
    }
    // Repeats until there is a piece.
    let renewed = || {
        let mut anchor = Anchor::EXPIRED;
        while anchor.now().is_none() {
            anchor.renew(0);
        }
        anchor
    };
    let mine = renewed();
    let theirs = thread::spawn(renewed).join().expect("the other thread");
    // Both threads have the same piece, unless the first piece is over. Then the second one begins where the first ended.
    assert!(
        theirs == mine || theirs.ns >= mine.end(),
        "{theirs:?} beside {mine:?}"
    );
}

#[test]
fn a_time_that_is_far_ahead_is_not_waited_for() {
    let mut anchor = Anchor::EXPIRED;
    let far = now() + 3_600_000_000_000;
    let ns = anchor.renew(far);
    assert!(ns < far, "{ns}");
    let near = ns + 1_000_000;
    let ns = anchor.renew(near);
    assert!(ns >= near, "{ns} after {near}");
}

prop_compose! {
    fn piece()(
        counter in any::<u64>(),
        ns in 0..1_u64 << 62,
        multiplier in 1..1_u64 << 42,
        length in 1..=discipline::MAX_PIECE_NS,
    ) -> Anchor {
        Anchor { counter, ns, multiplier, limit: (length << 32) / multiplier }
    }
}

proptest! {
    #[test]
    fn a_piece_never_decreases_and_ends(piece in piece(), ticks in any::<[u64; 2]>()) {
        let end = piece.counter.wrapping_add(piece.limit);
        prop_assert_eq!(piece.at(end), None);
        prop_assert_eq!(piece.at(piece.counter.wrapping_sub(1)), None);
        if piece.limit > 0 {
            let [first, second] = ticks.map(|ticks| ticks % piece.limit);
            let at = |ticks: u64| piece.at(piece.counter.wrapping_add(ticks)).expect("within the piece");
            prop_assert!(at(first.min(second)) <= at(first.max(second)));
            prop_assert!(at(first) <= piece.end());
        }
    }

    #[test]
    fn a_thread_that_is_ahead_pauses(piece in piece(), ticks in any::<u64>(), ahead in 0..2 * discipline::MAX_PIECE_NS) {
        prop_assume!(piece.limit > 0);
        let ticks = ticks % piece.limit;
        let counter = piece.counter.wrapping_add(ticks);
        let at_least = piece.at(counter).expect("within the piece") + ahead;
        let own = piece.not_before(at_least, counter);
        prop_assert_eq!(own.at(counter), Some(at_least));
        // The piece is valid until this point, or until the process's time has passed it.
        let end = own.counter.wrapping_add(own.limit);
        prop_assert_eq!(own.at(end), None);
        if let Some(then) = piece.at(end) {
            prop_assert!(then >= at_least, "{then} after {at_least}");
        }
        prop_assert!(ticks + own.limit <= piece.limit || own == piece);
    }
}
