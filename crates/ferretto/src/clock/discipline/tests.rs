//! Trace time on simulated machines, whose true time is known.

use proptest::prelude::*;

use super::super::anchor::Anchor;
use super::{BASELINE_PER_PIECE, Discipline, MAX_PIECE_NS, MIN_BASELINE_NS, Reading, WINDOW_NS};

const ONE: u128 = 1 << 32;

/// A counter and a kernel clock. Both are kept in units of 2^-32.
#[derive(Clone, Debug)]
struct Machine {
    counter: u128,
    kernel: u128,
    ticks_per_ns: u128,
    /// Of the kernel's clock.
    ppm: i64,
}

impl Machine {
    fn new(hz: u64, counter: u64, kernel: u64, ppm: i64) -> Self {
        Self {
            counter: u128::from(counter) << 32,
            kernel: u128::from(kernel) << 32,
            ticks_per_ns: (u128::from(hz) << 32) / 1_000_000_000,
            ppm,
        }
    }

    fn pass(&mut self, ns: u64) {
        self.counter += u128::from(ns) * self.ticks_per_ns;
        self.kernel += u128::from(ns) * ONE * (1_000_000 + i128::from(self.ppm)) as u128 / 1_000_000;
    }

    fn counter(&self) -> u64 {
        (self.counter >> 32) as u64
    }

    fn kernel(&self) -> u64 {
        (self.kernel >> 32) as u64
    }

    /// The worst that a tick can be off, in ns, rounded up.
    fn tick_ns(&self) -> u64 {
        (ONE / self.ticks_per_ns) as u64 + 1
    }
}

/// How long the two halves of a reading take, in ns.
type Halves = (u64, u64);

/// A machine and its clock's discipline.
struct Simulation {
    machine: Machine,
    discipline: Discipline,
    renewals: u64,
    /// The error of the last time: its distance from the interval between the kernel's times before and after the reading.
    error: u64,
}

impl Simulation {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            discipline: Discipline::default(),
            renewals: 0,
            error: 0,
        }
    }

    /// The time that a thread would get now.
    fn now(&mut self, halves: Halves) -> u64 {
        let before = self.machine.kernel();
        let ns = self.tell(halves);
        self.error = before
            .saturating_sub(ns)
            .max(ns.saturating_sub(self.machine.kernel()));
        ns
    }

    fn tell(&mut self, halves: Halves) -> u64 {
        if let Some(ns) = self.discipline.anchor.at(self.machine.counter()) {
            return ns;
        }
        self.renewals += 1;
        let machine = &mut self.machine;
        let reading = self.discipline.read(|| {
            let before = machine.counter();
            machine.pass(halves.0);
            let ns = machine.kernel();
            machine.pass(halves.1);
            (before, ns, machine.counter())
        });
        let Some(reading) = reading else {
            return self.machine.kernel().max(self.discipline.anchor.end());
        };
        self.discipline.advance(reading);
        self.discipline.anchor.ns
    }
}

fn hz() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1_000_000),
        Just(24_000_000),
        Just(1_000_000_000),
        1_000_000..6_000_000_000_u64
    ]
}

/// Times between events: of all magnitudes up to that of `longest`.
fn gap(longest: u32) -> impl Strategy<Value = u64> {
    (0..longest, any::<u64>()).prop_map(|(bits, random)| random & ((2 << bits) - 1))
}

fn halves() -> impl Strategy<Value = Halves> {
    (10..40_u64, 10..40_u64)
}

/// How far the middle of a reading can be from where the kernel's clock was read.
const OFF_CENTRE_NS: u64 = 15;

prop_compose! {
    fn machine()(hz in hz(), counter in any::<u64>(), kernel in 0..1_u64 << 62, ppm in -500..500_i64) -> Machine {
        Machine::new(hz, counter, kernel, ppm)
    }
}

/// Uses a simulation until its pieces are as long as they get.
fn settle(simulation: &mut Simulation) {
    for _ in 0..4 * WINDOW_NS / MAX_PIECE_NS {
        simulation.now((20, 20));
        simulation.machine.pass(MAX_PIECE_NS / 2);
    }
}

proptest! {
    #[test]
    fn time_never_goes_backwards_and_stays_with_the_kernels(
        machine in machine(),
        steps in prop::collection::vec((gap(31), halves()), 1..400),
    ) {
        let mut simulation = Simulation::new(machine);
        // This is the error of a reading, and as much again for the pieces that are computed from readings.
        let bound = 2 * (OFF_CENTRE_NS + simulation.machine.tick_ns());
        let mut last = 0;
        for (gap, halves) in steps {
            let ns = simulation.now(halves);
            prop_assert!(ns >= last, "{ns} after {last}");
            let error = simulation.error;
            prop_assert!(error <= bound, "{error} ns off, at most {bound}: {:?}", simulation.discipline);
            last = ns;
            simulation.machine.pass(gap);
        }
        prop_assert!(!simulation.discipline.is_hopeless());
    }

    #[test]
    fn time_follows_a_kernel_clock_that_changes_its_speed(
        machine in machine(),
        steps in prop::collection::vec((gap(24), halves(), prop::option::weighted(0.02, -400..400_i64)), 1..1000),
    ) {
        let mut simulation = Simulation::new(machine);
        let bound = 2 * (OFF_CENTRE_NS + simulation.machine.tick_ns()) + 2 * MAX_PIECE_NS * 900 / 1_000_000;
        let mut last = 0;
        for (gap, halves, ppm) in steps {
            let ns = simulation.now(halves);
            prop_assert!(ns >= last, "{ns} after {last}");
            let error = simulation.error;
            prop_assert!(error <= bound, "{error} ns off, at most {bound}: {:?}", simulation.discipline);
            last = ns;
            simulation.machine.pass(gap);
            simulation.machine.ppm = ppm.unwrap_or(simulation.machine.ppm);
        }
    }

    #[test]
    fn time_is_right_one_piece_after_a_suspend(
        machine in machine(),
        before in prop::collection::vec((gap(24), halves()), 0..100),
        asleep_ns in 20_000_000..1_u64 << 48,
        counter in prop_oneof![Just(Suspended::GoesOn), Just(Suspended::Stops), any::<u64>().prop_map(Suspended::Shows)],
        after in prop::collection::vec((gap(24), halves()), 1..100),
    ) {
        let mut simulation = Simulation::new(machine);
        let bound = 2 * (OFF_CENTRE_NS + simulation.machine.tick_ns());
        let mut last = 0;
        for (gap, halves) in before {
            last = simulation.now(halves);
            simulation.machine.pass(gap);
        }
        simulation.machine.suspend(asleep_ns, counter);
        let awake = simulation.machine.kernel();
        for (gap, halves) in after {
            let ns = simulation.now(halves);
            prop_assert!(ns >= last, "{ns} after {last}");
            last = ns;
            // Before this, the thread may still have used its old piece, or the new counter may have been within it.
            if simulation.machine.kernel() - awake > MAX_PIECE_NS + 1_000_000 {
                let error = simulation.error;
                prop_assert!(error <= bound, "{error} ns off, at most {bound}: {:?}", simulation.discipline);
            }
            simulation.machine.pass(gap);
        }
        prop_assert!(!simulation.discipline.is_hopeless());
    }

    #[test]
    fn words_keep_everything(counters in any::<[u64; 4]>(), times in any::<[u64; 4]>(), rest in any::<[u64; 4]>()) {
        let discipline = Discipline {
            anchor: Anchor { counter: counters[0], ns: times[0], multiplier: rest[0], limit: rest[1] },
            oldest: Reading { counter: counters[1], ns: times[1] },
            middle: Reading { counter: counters[2], ns: times[2] },
            latest: Reading { counter: counters[3], ns: times[3] },
            shortest: rest[2],
            mistrust: rest[3],
        };
        prop_assert_eq!(Discipline::from_words(discipline.to_words()), discipline);
    }
}

/// The behaviour of a counter while the machine is suspended.
#[derive(Clone, Copy, Debug)]
enum Suspended {
    GoesOn,
    Stops,
    Shows(u64),
}

impl Machine {
    fn suspend(&mut self, ns: u64, counter: Suspended) {
        let before = self.counter;
        self.pass(ns);
        match counter {
            Suspended::GoesOn => {}
            Suspended::Stops => self.counter = before,
            Suspended::Shows(value) => self.counter = u128::from(value) << 32,
        }
    }
}

#[test]
fn the_kernel_is_asked_once_a_piece() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 1 << 50, 1 << 40, 20));
    settle(&mut simulation);
    let before = simulation.renewals;
    for _ in 0..1_000_000 {
        simulation.now((20, 20));
        simulation.machine.pass(1_000);
    }
    let pieces = 1_000_000_000 / MAX_PIECE_NS;
    let renewals = simulation.renewals - before;
    assert!(
        (pieces..=pieces + 5).contains(&renewals),
        "{renewals} in {pieces} pieces"
    );
}

#[test]
fn the_counter_is_used_after_the_first_baseline() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 0, 0, 0));
    let mut asked = 0;
    for _ in 0..10_000_000 / 500 {
        let before = simulation.renewals;
        simulation.now((20, 20));
        asked += simulation.renewals - before;
        simulation.machine.pass(500);
    }
    // Each 540 ns in the first baseline, then pieces that grow by a quarter.
    let bound = MIN_BASELINE_NS / 500 + 40;
    assert!(asked < bound, "asked {asked} times in 10 ms");
}

#[test]
fn a_frame_of_work_every_16_ms_needs_no_new_start() {
    let mut simulation = Simulation::new(Machine::new(2_400_000_000, 0, 0, 100));
    for frame in 0..60 {
        let before = simulation.renewals;
        for _ in 0..1000 {
            simulation.now((20, 20));
            simulation.machine.pass(1_000);
        }
        let renewals = simulation.renewals - before;
        assert!(frame < 2 || renewals <= 2, "frame {frame} asked {renewals} times");
        simulation.machine.pass(15_000_000);
    }
}

#[test]
fn a_kernel_clock_that_is_set_back_is_followed() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 0, 1 << 50, 0));
    settle(&mut simulation);
    simulation.machine.kernel -= u128::from(3_600_000_000_000_u64) << 32;
    simulation.machine.pass(MAX_PIECE_NS);
    settle(&mut simulation);
    simulation.now((20, 20));
    assert!(simulation.error < 50, "{} ns off", simulation.error);
}

#[test]
fn time_that_ran_ahead_waits_at_half_speed() {
    let mut simulation = Simulation::new(Machine::new(1_000_000_000, 0, 1 << 50, 0));
    settle(&mut simulation);
    // This simulates a counter that was ahead of those of the other processors.
    simulation.machine.kernel -= u128::from(MAX_PIECE_NS) << 32;
    let mut last = 0;
    for _ in 0..100 {
        let ns = simulation.now((20, 20));
        assert!(ns >= last, "{ns} after {last}");
        last = ns;
        simulation.machine.pass(MAX_PIECE_NS / 8);
    }
    assert!(simulation.error < 50, "{} ns off", simulation.error);
}

#[test]
fn a_counter_that_keeps_jumping_is_given_up() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 1 << 60, 1 << 50, 0));
    settle(&mut simulation);
    assert!(!simulation.discipline.is_hopeless());
    // Two processors whose counters are apart by 100 us.
    for step in 0..1000 {
        simulation.now((20, 20));
        simulation.machine.pass(40_000);
        let apart = 300_000_u128 << 32;
        simulation.machine.counter = match step % 2 {
            0 => simulation.machine.counter + apart,
            _ => simulation.machine.counter - apart,
        };
    }
    assert!(simulation.discipline.is_hopeless(), "{:?}", simulation.discipline);
}

#[test]
fn a_clock_that_is_no_longer_made_of_the_counter_is_given_up() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 1 << 60, 1 << 50, 0));
    settle(&mut simulation);
    for _ in 0..50 {
        simulation.now((700, 700));
        simulation.machine.pass(MAX_PIECE_NS);
    }
    assert!(simulation.discipline.is_hopeless(), "{:?}", simulation.discipline);
}

#[test]
fn a_processor_that_becomes_slower_is_put_up_with() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 1 << 60, 1 << 50, 0));
    settle(&mut simulation);
    for _ in 0..50 {
        simulation.now((120, 120));
        simulation.machine.pass(MAX_PIECE_NS);
    }
    assert!(
        !simulation.discipline.is_hopeless(),
        "{:?}",
        simulation.discipline
    );
    simulation.now((120, 120));
    assert!(
        simulation
            .discipline
            .anchor
            .at(simulation.machine.counter())
            .is_some(),
        "its readings are used"
    );
}

#[test]
fn a_machine_that_is_suspended_once_a_minute_is_not_given_up() {
    let mut simulation = Simulation::new(Machine::new(3_000_000_000, 1 << 60, 1 << 50, 0));
    for _ in 0..100 {
        settle(&mut simulation);
        simulation.machine.suspend(900_000_000, Suspended::Stops);
    }
    assert!(
        !simulation.discipline.is_hopeless(),
        "{:?}",
        simulation.discipline
    );
}

#[test]
fn an_interrupted_reading_is_tried_again() {
    let mut discipline = Discipline::default();
    let mut readings = [(100, 7, 160), (1_000, 8, 9_000), (10_000, 9, 10_070)].into_iter();
    let mut read =
        |discipline: &mut Discipline| discipline.read(|| readings.next().expect("no more are needed"));
    // The first one has nothing to be compared with.
    assert_eq!(read(&mut discipline), Some(Reading { counter: 130, ns: 7 }));

    let mut readings = [(20_000, 10, 29_000), (30_000, 11, 30_120)].into_iter();
    let reading = discipline.read(|| readings.next().expect("the second one is good"));
    assert_eq!(
        reading,
        Some(Reading {
            counter: 30_060,
            ns: 11
        })
    );

    let mut readings = [(1, 12, 9_001), (40_000, 13, 40_121), (50_000, 14, 50_150)].into_iter();
    let reading = discipline.read(|| readings.next().expect("tried three times"));
    assert_eq!(reading, None, "all of them took more than twice the shortest");
}

#[test]
fn a_piece_is_a_part_of_its_baseline() {
    let mut discipline = Discipline::default();
    discipline.advance(Reading {
        counter: 1_000,
        ns: 5_000_000,
    });
    assert_eq!(discipline.anchor.limit, 0);
    discipline.advance(Reading {
        counter: 1_000 + MIN_BASELINE_NS - 1,
        ns: 5_000_000 + MIN_BASELINE_NS - 1,
    });
    assert_eq!(discipline.anchor.limit, 0, "the baseline is too short");
    discipline.advance(Reading {
        counter: 1_000 + 2_000_000,
        ns: 5_000_000 + 2_000_000,
    });
    assert_eq!(discipline.anchor.limit, 2_000_000 / BASELINE_PER_PIECE);
    assert_eq!(discipline.anchor.multiplier, 1 << 32);
}
