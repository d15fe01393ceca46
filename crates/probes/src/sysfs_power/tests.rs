//! The data source against made-up batteries.

use std::sync::Mutex;

use ferretto_ipc::reactor::boot_now;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{BatteryCounters, Message, TracePacket};

use super::*;
use crate::test_files::{Mutator, TempDir};

/// A sysfs with these files below `class/power_supply`.
fn sysfs(files: &[(&str, &str)]) -> (TempDir, KernelRoots) {
    let dir = TempDir::new("power");
    for (path, content) in files {
        dir.write(&format!("class/power_supply/{path}"), content);
    }
    let roots = KernelRoots {
        procfs: dir.path().join("proc"),
        sysfs: dir.path().to_path_buf(),
    };
    (dir, roots)
}

/// Notes which threads have joined which instances.
#[derive(Default)]
struct Joined(Mutex<Vec<(String, u32)>>);

impl ProducerProgram for Joined {
    fn info(&self, _line: &str) {}

    fn warning(&self, _line: &str) {}

    fn is_own_thread(&self) -> bool {
        true
    }

    fn join_instance(&self, instance: u32) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push((thread, instance));
    }
}

/// An instance that has begun its first sample.
fn started(roots: &KernelRoots) -> SysfsPower {
    started_of(roots, Arc::default())
}

fn started_of(roots: &KernelRoots, program: Arc<Joined>) -> SysfsPower {
    let mut power = SysfsPower::new(roots, program, 17);
    power.start(5, &mut Vec::new());
    power
}

/// The packets that are written once the sample under way has ended.
fn written(power: &mut SysfsPower) -> Vec<BatteryCounters> {
    if let Some(reader) = &power.reader {
        reader.settle();
    }
    let mut sink: Vec<Vec<u8>> = Vec::new();
    power.flush(5, &mut sink);
    decode(&sink)
}

fn decode(packets: &[Vec<u8>]) -> Vec<BatteryCounters> {
    let battery = |packet: &Vec<u8>| {
        let packet = TracePacket::decode_from_slice(packet).unwrap();
        assert!((1..=boot_now()).contains(&packet.timestamp.unwrap()));
        assert_eq!(packet.timestamp_clock_id, None);
        match packet.data {
            Some(Data::Battery(battery)) => *battery,
            other => panic!("{other:?}"),
        }
    };
    let mut batteries: Vec<BatteryCounters> = packets.iter().map(battery).collect();
    batteries.sort_by(|one, other| one.name.cmp(&other.name));
    batteries
}

const LAPTOP: &[(&str, &str)] = &[
    ("AC/type", "Mains\n"),
    ("AC/online", "1\n"),
    ("BAT0/type", "Battery\n"),
    ("BAT0/present", "1\n"),
    ("BAT0/capacity", "95\n"),
    ("BAT0/charge_now", "3074000\n"),
    ("BAT0/current_now", "-245000\n"),
    ("BAT0/current_avg", "-240000\n"),
    ("BAT0/energy_now", "56680000\n"),
    ("BAT0/voltage_now", "17356000\n"),
];

#[test]
fn each_file_of_a_battery_has_its_field() {
    let (_dir, roots) = sysfs(LAPTOP);
    let mut power = started(&roots);
    assert_eq!(
        written(&mut power),
        [BatteryCounters {
            charge_counter_uah: Some(3_074_000),
            capacity_percent: Some(95.0),
            current_ua: Some(-245_000),
            current_avg_ua: Some(-240_000),
            energy_counter_uwh: Some(56_680_000),
            voltage_uv: Some(17_356_000),
            ..Default::default()
        }]
    );
    assert_eq!(power.take_notices(), [""; 0]);
}

#[test]
fn a_device_with_a_battery_may_have_no_more_than_its_percentage() {
    let (_dir, roots) = sysfs(&[
        ("hid-1/type", "Battery\n"),
        ("hid-1/present", "1\n"),
        ("hid-1/capacity", "88\n"),
    ]);
    let expected = BatteryCounters {
        capacity_percent: Some(88.0),
        ..Default::default()
    };
    assert_eq!(written(&mut started(&roots)), [expected]);
}

#[test]
fn several_batteries_are_told_apart_by_name() {
    let (dir, roots) = sysfs(LAPTOP);
    for (file, content) in [("type", "Battery\n"), ("present", "1\n"), ("capacity", "7\n")] {
        dir.write(&format!("class/power_supply/BAT1/{file}"), content);
    }
    let batteries = written(&mut started(&roots));
    let told: Vec<_> = batteries
        .iter()
        .map(|battery| (battery.name.as_deref(), battery.capacity_percent))
        .collect();
    assert_eq!(told, [(Some("BAT0"), Some(95.0)), (Some("BAT1"), Some(7.0))]);
}

#[test]
fn what_is_no_battery_or_not_there_is_left_out() {
    let (dir, roots) = sysfs(LAPTOP);
    dir.write("class/power_supply/BAT1/type", "Battery\n");
    dir.write("class/power_supply/BAT1/present", "0\n");
    dir.write("class/power_supply/BAT1/capacity", "0\n");
    // Without a file that says so.
    dir.write("class/power_supply/BAT2/type", "Battery\n");
    assert_eq!(written(&mut started(&roots)).len(), 1);
}

const MS: u64 = 1_000_000;

#[test]
fn samples_come_at_the_start_and_at_each_full_second_and_are_written_soon_after() {
    let (dir, roots) = sysfs(LAPTOP);
    let mut power = started(&roots);
    assert_eq!(power.next_deadline(), Some(100 * MS));
    power.reader.as_ref().unwrap().settle();
    let mut sink: Vec<Vec<u8>> = Vec::new();
    power.on_deadline(100 * MS, &mut sink);
    assert_eq!(decode(&sink)[0].capacity_percent, Some(95.0));
    assert_eq!(power.next_deadline(), Some(1000 * MS));

    dir.write("class/power_supply/BAT0/capacity", "94\n");
    power.on_deadline(999 * MS, &mut sink);
    assert_eq!(power.next_deadline(), Some(1000 * MS), "too early");
    power.on_deadline(1000 * MS, &mut sink);
    assert_eq!(sink.len(), 1, "nothing waits for a battery");
    assert_eq!(power.next_deadline(), Some(1100 * MS));
    power.reader.as_ref().unwrap().settle();
    power.on_deadline(1100 * MS, &mut sink);
    assert_eq!(decode(&sink[1..])[0].capacity_percent, Some(94.0));

    power.on_deadline(3700 * MS, &mut sink);
    assert_eq!(power.next_sample, Some(4000 * MS));
    power.stop(3800 * MS, &mut sink);
    assert_eq!(power.next_deadline(), None);
}

#[test]
fn a_battery_that_does_not_answer_holds_up_nobody() {
    let (_dir, roots) = sysfs(LAPTOP);
    let mut power = started(&roots);
    written(&mut power);
    power.reader = Some(Reader::without_an_answer());
    let mut sink: Vec<Vec<u8>> = Vec::new();
    for (now, next) in [(1000, 1100), (1100, 1200), (2000, 2100)] {
        power.on_deadline(now * MS, &mut sink);
        assert_eq!(power.next_deadline(), Some(next * MS), "it looks again");
    }
    power.flush(2050 * MS, &mut sink);
    power.stop(2060 * MS, &mut sink);
    assert!(sink.is_empty(), "nothing was read");
    assert_eq!(power.next_deadline(), None);
}

#[test]
fn batteries_are_read_at_the_priority_of_their_own_session() {
    let (_dir, roots) = sysfs(LAPTOP);
    let program = Arc::<Joined>::default();
    written(&mut started_of(&roots, program.clone()));
    assert_eq!(*program.0.lock().unwrap(), [("battery-reader".to_owned(), 17)]);
}

#[test]
fn a_battery_that_says_nothing_any_more_leaves_no_packets() {
    let (dir, roots) = sysfs(LAPTOP);
    let mut power = started(&roots);
    assert_eq!(written(&mut power).len(), 1);
    for (path, _) in LAPTOP {
        dir.write(&format!("class/power_supply/{path}"), "");
    }
    power.on_deadline(1000 * MS, &mut Vec::new());
    assert_eq!(written(&mut power), []);
}

#[test]
fn a_machine_without_batteries_is_told_once_and_costs_nothing() {
    let (dir, roots) = sysfs(&LAPTOP[..2]);
    let mut power = started(&roots);
    assert_eq!(written(&mut power), []);
    let place = dir.path().join("class/power_supply");
    let told = format!("linux.sysfs_power: there is no battery in {}", place.display());
    assert_eq!(power.take_notices(), [format!("{told}; nothing is recorded")]);
    assert_eq!(power.next_deadline(), None);

    let (_dir, roots) = sysfs(&[]);
    let mut power = started(&roots);
    assert_eq!(written(&mut power), []);
    let notices = power.take_notices();
    assert_eq!(notices.len(), 1);
    assert!(
        notices[0].contains("linux.sysfs_power: cannot read"),
        "{}",
        notices[0]
    );
    assert_eq!(power.next_deadline(), None);
}

#[test]
fn more_batteries_than_are_sampled_are_told() {
    let (dir, roots) = sysfs(&[]);
    for battery in 0..=MOST_BATTERIES {
        for (file, content) in [("type", "Battery\n"), ("present", "1\n"), ("capacity", "7\n")] {
            dir.write(&format!("class/power_supply/B{battery}/{file}"), content);
        }
    }
    let mut power = started(&roots);
    assert_eq!(written(&mut power).len(), MOST_BATTERIES);
    let told = "linux.sysfs_power: this machine has 17 batteries; the first 16 are recorded";
    assert_eq!(power.take_notices(), [told]);
}

#[test]
fn damaged_files_do_no_harm() {
    for seed in 0..200 {
        let (dir, roots) = sysfs(LAPTOP);
        let mut mutator = Mutator::new(seed);
        for (path, content) in LAPTOP {
            dir.write(
                &format!("class/power_supply/{path}"),
                mutator.damage(content.as_bytes()),
            );
        }
        // Decodes, whatever it says.
        written(&mut started(&roots));
    }
}
