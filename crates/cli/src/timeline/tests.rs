use ferretto_proto::messages::clock_snapshot::Clock as Reading;

use super::*;

const MONOTONIC: u32 = 3;
const COUNTER: u32 = 64;

fn reading(id: u32, value: u64) -> Reading {
    Reading {
        clock_id: Some(id),
        timestamp: Some(value),
        ..Default::default()
    }
}

fn snapshot(clocks: impl IntoIterator<Item = Reading>) -> ClockSnapshot {
    ClockSnapshot {
        clocks: clocks.into_iter().collect(),
        ..Default::default()
    }
}

#[test]
fn without_any_snapshot_only_boot_time_is_known() {
    let mut timeline = Timeline::default();
    assert_eq!(timeline.boot_time(5, None, 100), Some(100));
    assert_eq!(timeline.boot_time(5, Some(BOOTTIME), 100), Some(100));
    assert_eq!(timeline.boot_time(5, Some(MONOTONIC), 100), None);
    assert_eq!(timeline.wall_time(100), None);
}

#[test]
fn the_last_snapshot_before_a_time_counts() {
    let mut timeline = Timeline::default();
    // The machine slept for 500 between the two: boot time advanced, the monotonic clock did not.
    timeline.snapshot(
        1,
        &snapshot([
            reading(BOOTTIME, 1000),
            reading(MONOTONIC, 900),
            reading(REALTIME, 5000),
        ]),
    );
    timeline.snapshot(
        1,
        &snapshot([
            reading(BOOTTIME, 2500),
            reading(MONOTONIC, 1900),
            reading(REALTIME, 6500),
        ]),
    );
    for (monotonic, boot) in [(850, 950), (900, 1000), (1899, 1999), (1900, 2500), (2000, 2600)] {
        assert_eq!(timeline.boot_time(7, Some(MONOTONIC), monotonic), Some(boot));
    }
    for (boot, wall) in [(990, 4990), (1000, 5000), (2600, 6600)] {
        assert_eq!(timeline.wall_time(boot), Some(wall));
    }
}

#[test]
fn clocks_of_a_sequence_count_in_steps_from_their_last_value() {
    let mut timeline = Timeline::default();
    let counter = Reading {
        is_incremental: Some(true),
        unit_multiplier_ns: Some(10),
        ..reading(COUNTER, 3)
    };
    timeline.snapshot(7, &snapshot([reading(BOOTTIME, 1000), counter.clone()]));
    assert_eq!(timeline.boot_time(7, Some(COUNTER), 0), Some(1000));
    assert_eq!(timeline.boot_time(7, Some(COUNTER), 5), Some(1050));
    assert_eq!(timeline.boot_time(7, Some(COUNTER), 5), Some(1100));
    assert_eq!(
        timeline.boot_time(8, Some(COUNTER), 5),
        None,
        "another sequence's is another clock"
    );
    timeline.snapshot(7, &snapshot([reading(BOOTTIME, 9000), counter]));
    assert_eq!(
        timeline.boot_time(7, Some(COUNTER), 1),
        Some(9010),
        "a snapshot starts it over"
    );
}

#[test]
fn a_snapshot_without_boot_time_is_placed_by_a_clock_that_is_known() {
    let mut timeline = Timeline::default();
    timeline.snapshot(1, &snapshot([reading(BOOTTIME, 1000), reading(MONOTONIC, 900)]));
    timeline.snapshot(7, &snapshot([reading(MONOTONIC, 950), reading(COUNTER, 0)]));
    assert_eq!(timeline.boot_time(7, Some(COUNTER), 30), Some(1080));
}

#[test]
fn times_without_a_clock_are_on_the_primary_one() {
    let mut timeline = Timeline::default();
    let mut first = snapshot([reading(BOOTTIME, 1000), reading(MONOTONIC, 900)]);
    first.primary_trace_clock = Some(BuiltinClock::BUILTIN_CLOCK_MONOTONIC);
    timeline.snapshot(1, &first);
    assert_eq!(timeline.boot_time(7, None, 910), Some(1010));
    assert_eq!(timeline.boot_time(7, Some(BOOTTIME), 910), Some(910));
}

#[test]
fn extremes_saturate_and_memory_is_bounded() {
    let mut timeline = Timeline::default();
    for at in 0..3 * MAX_READINGS as u64 {
        timeline.snapshot(1, &snapshot([reading(BOOTTIME, at), reading(MONOTONIC, at)]));
    }
    for clock in timeline.clocks.values() {
        assert!(clock.readings.len() <= MAX_READINGS);
    }
    let huge = Reading {
        unit_multiplier_ns: Some(u64::MAX),
        is_incremental: Some(true),
        ..reading(COUNTER, u64::MAX)
    };
    timeline.snapshot(2, &snapshot([reading(BOOTTIME, u64::MAX), huge]));
    assert_eq!(timeline.boot_time(2, Some(COUNTER), u64::MAX), Some(u64::MAX));
    for sequence in 0..2 * MAX_CLOCKS as u32 {
        timeline.snapshot(
            sequence,
            &snapshot([reading(BOOTTIME, u64::MAX), reading(COUNTER, 1)]),
        );
    }
    assert!(timeline.clocks.len() <= MAX_CLOCKS);
}
