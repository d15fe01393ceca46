//! `linux.sysfs_power` in whole systems: batteries that a mount namespace shows, as our probes and upstream's see them.

use std::path::Path;
use std::process::Command;

use crate::support::trace::{LOSSES, TraceProcessor};
use crate::support::{Program, Programs, Recording, Side, System};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{BatteryCounters, Message, Trace};

/// Has the kernel show a laptop with a wireless mouse.
const BATTERIES: &str = r#"
mount -t tmpfs none /sys/class/power_supply
cd /sys/class/power_supply
battery() { mkdir "$1"; echo Battery >"$1/type"; echo 1 >"$1/present"; }
mkdir AC; echo Mains >AC/type; echo 1 >AC/online
battery BAT0
echo 95 >BAT0/capacity
echo 3074000 >BAT0/charge_now
echo -245000 >BAT0/current_now
echo 56680000 >BAT0/energy_now
echo 17356000 >BAT0/voltage_now
battery hid-1-battery
echo 88 >hid-1-battery/capacity
cd /
"#;

const CONFIG: &str = "buffers { size_kb: 1024 } data_sources { config { name: 'linux.sysfs_power' } }";

/// Starts probes that see those batteries.
fn start(system: &mut System<'_>, side: Side) {
    let probes = system.program(side, Program::TracedProbes);
    system.start_copy(Path::new("unshare"), Program::TracedProbes, |command| {
        let script = format!("{BATTERIES}\nexec \"$0\"");
        command
            .args(["--mount", "--", "sh", "-euc"])
            .arg(script)
            .arg(probes);
    });
}

/// The counters in a trace, once for each battery, and the number of packets.
fn read(trace: &Path) -> (Vec<BatteryCounters>, usize) {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let counters = trace.packet.into_iter().filter_map(|packet| match packet.data {
        Some(Data::Battery(counters)) => Some(*counters),
        _ => None,
    });
    let mut counters: Vec<BatteryCounters> = counters.collect();
    let packets = counters.len();
    counters.sort_by(|one, other| one.name.cmp(&other.name));
    counters.dedup();
    (counters, packets)
}

#[test]
fn batteries_are_recorded_as_by_upstream_and_read_by_its_trace_processor() {
    if !Path::new("/sys/class/power_supply").is_dir() {
        println!("skipped: this kernel has no power supplies");
        return;
    }
    let can_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        println!("skipped: this user may not make mount namespaces");
        return;
    }
    let (Some(programs), Some(processor)) = (Programs::of_both(), TraceProcessor::find()) else {
        return;
    };
    let sides = [Side::Ours, Side::Upstream].map(|side| {
        let mut system = System::new(&programs);
        system.start(side, Program::Traced);
        start(&mut system, side);
        system
    });
    let record = |milliseconds: u64| {
        let config = format!("{CONFIG} duration_ms: {milliseconds}");
        let recordings = sides.each_ref().map(|system| system.record(Side::Ours, &config));
        let traces = recordings.map(Recording::finish);
        let [(ours, packets), (upstreams, upstreams_packets)] = traces.each_ref().map(|trace| read(trace));
        println!("{packets} and upstream's {upstreams_packets} packets in {milliseconds} ms");
        // At the start and twice later. On a busy machine that takes longer.
        let is_long_enough = packets >= 2 * 3 && upstreams_packets >= 2;
        is_long_enough.then_some((ours, upstreams, traces))
    };
    let recorded = [2_500, 10_000, 30_000].into_iter().find_map(record);
    let (ours, upstreams, traces) = recorded.expect("the batteries are read again and again");
    assert_eq!(ours, upstreams);
    assert_eq!(ours.len(), 2, "{ours:?}");
    let query =
        "select t.name, cast(c.value as text) from counter c join counter_track t on t.id = c.track_id
        group by t.name, c.value order by t.name";
    let [ours, upstreams] = traces.map(|trace| processor.query(&trace, [LOSSES, query]));
    assert!(ours[0].is_empty(), "{:?}", ours[0]);
    assert_eq!(ours[1], upstreams[1]);
    assert!(ours[1].len() >= 6, "{:?}", ours[1]);
}
