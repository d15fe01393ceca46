//! Facts about the whole trace: clocks, the machine, the config, the life of the recording.

use ferretto_proto::write::clock_snapshot::Clock;
use ferretto_proto::write::{ClockSnapshot, CpuInfo, SystemInfo, Utsname};

use crate::clocks::{Reading, clock_of};
use crate::context::{Context, Known};
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number, number_of};
use crate::rows::Cell;
use crate::schema::{CLOCK_SNAPSHOT, CPU_AVAILABLE_FREQUENCIES};
use crate::trackers::args::Value;
use crate::trackers::syscalls::Architecture;

/// Takes in a snapshot of clocks.
pub(super) fn clock_snapshot(snapshot: &[u8], sequence: u32, context: &mut Context<'_>) {
    if let Some(primary @ 1..) = number_of(snapshot, ClockSnapshot::PRIMARY_TRACE_CLOCK) {
        context.clocks.set_trace_clock(primary as i64);
        let clock = context.clocks.trace_clock();
        context.metadata.set("trace_time_clock_id", Known::Int(clock));
    }
    let mut readings = Vec::new();
    for clock in all_bytes(snapshot, ClockSnapshot::CLOCKS) {
        let get = |field| number_of(clock, field).unwrap_or(0);
        let Some(id) = clock_of(sequence, get(Clock::CLOCK_ID) as u32) else {
            return;
        };
        readings.push(Reading {
            clock: id,
            value: get(Clock::TIMESTAMP) as i64,
            step: (get(Clock::UNIT_MULTIPLIER_NS) as i64).max(1),
            is_incremental: get(Clock::IS_INCREMENTAL) != 0,
        });
    }
    let Ok(number) = context.clocks.snapshot(&readings) else {
        context.stats.add("invalid_clock_snapshots", None, 1);
        return;
    };
    if !context.clocks.is_used() {
        let clock = context.clocks.trace_clock();
        context.metadata.set("trace_time_clock_id", Known::Int(clock));
    }
    let trace_clock = context.clocks.trace_clock();
    let of_snapshot = readings
        .iter()
        .find(|reading| reading.clock == trace_clock)
        .map(|reading| reading.value);
    for reading in &readings {
        let value = if reading.is_incremental { 0 } else { reading.value };
        let Some(ts) = context.clocks.trace_time(reading.clock, value).or(of_snapshot) else {
            continue;
        };
        let name = match reading.clock {
            1 => Some("REALTIME"),
            2 => Some("REALTIME_COARSE"),
            3 => Some("MONOTONIC"),
            4 => Some("MONOTONIC_COARSE"),
            5 => Some("MONOTONIC_RAW"),
            6 => Some("BOOTTIME"),
            _ => None,
        };
        let row = [
            Cell::from(context.clock_rows),
            Cell::from(ts),
            Cell::from(reading.clock),
            name.map_or(Cell::NULL, |name| context.output.text(&CLOCK_SNAPSHOT, name)),
            Cell::from(reading.value.wrapping_mul(reading.step)),
            Cell::from(number),
            Cell::NULL,
        ];
        context.clock_rows += 1;
        context.output.push(&CLOCK_SNAPSHOT, &row, &context.strings);
    }
}

/// Takes in a moment of the recording's life.
pub(super) fn service_event(event: &[u8], ts: i64, context: &mut Context<'_>) {
    const TRACING_STARTED: u32 = 2;
    const ALL_DATA_SOURCES_STARTED: u32 = 1;
    const ALL_DATA_SOURCES_FLUSHED: u32 = 3;
    const TRACING_DISABLED: u32 = 5;
    const SLOW_STARTING: u32 = 10;
    let has = |field| number_of(event, field).is_some_and(|value| value != 0);
    let set = |context: &mut Context<'_>, key| context.metadata.set(key, Known::Int(ts));
    if has(TRACING_STARTED) {
        set(context, "tracing_started_ns");
    }
    if has(TRACING_DISABLED) {
        set(context, "tracing_disabled_ns");
    }
    if has(ALL_DATA_SOURCES_STARTED) {
        set(context, "all_data_source_started_ns");
    }
    if has(ALL_DATA_SOURCES_FLUSHED) {
        context.metadata.add("all_data_source_flushed_ns", Known::Int(ts));
    }
    for source in all_bytes(event, SLOW_STARTING).flat_map(|sources| all_bytes(sources, 1)) {
        let text = |field| String::from_utf8_lossy(bytes_of(source, field).unwrap_or(&[])).into_owned();
        let words = format!("{} {}", text(1), text(2));
        context.metadata.add("slow_start_data_source", Known::Text(words));
    }
}

/// Takes in what the machine is.
pub(super) fn system_info(info: &[u8], context: &mut Context<'_>) {
    const PAGE_SIZE: u32 = 6;
    const FINGERPRINT: u32 = 2;
    const SDK_VERSION: u32 = 5;
    const NUM_CPUS: u32 = 8;
    const MANUFACTURER: u32 = 14;
    if let Some(utsname) = bytes_of(info, SystemInfo::UTSNAME) {
        let text = |field| String::from_utf8_lossy(bytes_of(utsname, field).unwrap_or(&[])).into_owned();
        let [name, version, release, machine] = [
            Utsname::SYSNAME,
            Utsname::VERSION,
            Utsname::RELEASE,
            Utsname::MACHINE,
        ]
        .map(text);
        context.set_kernel(kernel_version(&name, &release));
        context.architecture = Architecture::of_machine(&machine).or(context.architecture);
        let of_kernel = [&name, &release, &version, &machine];
        context.machine.kernel = of_kernel.map(|text| Some(context.strings.intern(text)));
        for (key, value) in [
            ("system_name", name),
            ("system_version", version),
            ("system_release", release),
            ("system_machine", machine),
        ] {
            context.metadata.set(key, Known::Text(value));
        }
    }
    if let Some(minutes) = number_of(info, SystemInfo::TIMEZONE_OFF_MINS) {
        context
            .metadata
            .set("timezone_off_mins", Known::Int((minutes as i32).into()));
    }
    let mut text = |field| bytes_of(info, field).map(|text| context.strings.intern_bytes(text));
    let (fingerprint, manufacturer) = (text(FINGERPRINT), text(MANUFACTURER));
    let machine = &mut context.machine;
    machine.fingerprint = fingerprint.or(machine.fingerprint);
    machine.manufacturer = manufacturer.or(machine.manufacturer);
    machine.cpus = number_of(info, NUM_CPUS)
        .map(|cpus| i64::from(cpus as u32))
        .or(machine.cpus);
    machine.sdk = number_of(info, SDK_VERSION)
        .map(|version| version as i64)
        .or(machine.sdk);
    context.page_size = match number_of(info, PAGE_SIZE) {
        None | Some(0) => 4096,
        Some(size) => i64::from(size as u32),
    };
}

/// Returns the first two numbers of a release of Linux.
fn kernel_version(name: &str, release: &str) -> Option<(u32, u32)> {
    if name != "Linux" {
        return None;
    }
    let mut numbers = release.split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

/// Takes in the list of CPUs.
pub(super) fn cpu_info(info: &[u8], context: &mut Context<'_>) {
    use ferretto_proto::write::cpu_info::Cpu;
    const ARM: u32 = 3;
    const ARM_KEYS: [&str; 5] = ["implementer", "architecture", "variant", "part", "revision"];
    let cpus: Vec<&[u8]> = all_bytes(info, CpuInfo::CPUS)
        .take(crate::context::MOST_CPUS as usize)
        .collect();
    let capacities: Vec<Option<u64>> = cpus.iter().map(|cpu| number_of(cpu, Cpu::CAPACITY)).collect();
    let highest: Vec<Option<u64>> = cpus
        .iter()
        .map(|cpu| {
            let mut highest = None;
            for field in fields(cpu).filter(|field| field.number == Cpu::FREQUENCIES) {
                each_varint(field.value, |frequency| highest = highest.max(Some(frequency)));
            }
            highest
        })
        .collect();
    // CPUs of equal capacity are a cluster; where the kernel gives none, those of equal highest frequency.
    let all = |values: &[Option<u64>]| values.iter().copied().collect::<Option<Vec<u64>>>();
    let judged = all(&capacities)
        .or_else(|| all(&highest))
        .unwrap_or_else(|| vec![0; cpus.len()]);
    let mut levels = judged.clone();
    levels.sort_unstable();
    levels.dedup();
    let mut order: Vec<usize> = (0..cpus.len()).collect();
    if all(&capacities).is_some() {
        order.sort_by_key(|cpu| capacities[*cpu]);
    }
    for number_of_cpu in order {
        available_frequencies(number_of_cpu, cpus[number_of_cpu], context);
    }
    for (number_of_cpu, cpu) in cpus.iter().enumerate() {
        let processor = bytes_of(cpu, Cpu::PROCESSOR).filter(|processor| !processor.is_empty());
        let processor = processor.map(|processor| context.strings.intern_bytes(processor));
        let arm = bytes_of(cpu, ARM).map(|arm| {
            for (at, key) in ARM_KEYS.iter().enumerate() {
                let value = fields(arm)
                    .filter(|field| field.number == at as u32 + 1)
                    .filter_map(|it| number(it.value));
                let key = context.strings.intern(&format!("arm_cpu_{key}"));
                context.args.add(key, key, Value::Uint(value.last().unwrap_or(0)));
            }
            context.args.finish(&context.strings, &mut context.output)
        });
        if let Some(known) = context.cpus.mention(number_of_cpu as u32) {
            known.processor = processor.or(known.processor);
            known.cluster = levels.binary_search(&judged[number_of_cpu]).unwrap_or(0) as i64;
            known.capacity = capacities[number_of_cpu]
                .map(|capacity| i64::from(capacity as u32))
                .or(known.capacity);
            known.arg_set = arm.flatten().or(known.arg_set);
        }
    }
}

fn available_frequencies(number: usize, cpu: &[u8], context: &mut Context<'_>) {
    use ferretto_proto::write::cpu_info::Cpu;
    let number = Cell::from(number as i64);
    for field in fields(cpu).filter(|field| field.number == Cpu::FREQUENCIES) {
        each_varint(field.value, |frequency| {
            let frequency = i64::from(frequency as u32);
            let row = [
                Cell::from(context.frequency_rows),
                number,
                Cell::from(frequency),
                number,
            ];
            context.frequency_rows += 1;
            context
                .output
                .push(&CPU_AVAILABLE_FREQUENCIES, &row, &context.strings);
        });
    }
}

/// Takes in the number that distinguishes the trace from all others.
pub(super) fn trace_uuid(message: &[u8], context: &mut Context<'_>) {
    let half = |field| number_of(message, field).unwrap_or(0) as i64;
    set_uuid(half(2), half(1), context);
}

fn set_uuid(lsb: i64, msb: i64, context: &mut Context<'_>) {
    if (lsb, msb) == (0, 0) {
        return;
    }
    let (msb, lsb) = (msb as u64, lsb as u64);
    let uuid = format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        msb >> 32,
        msb >> 16 & 0xffff,
        msb & 0xffff,
        lsb >> 48,
        lsb & 0xffff_ffff_ffff
    );
    context.metadata.set("trace_uuid", Known::Text(uuid));
}

/// Takes in the config, as far as it matters to the tables.
pub(super) fn trace_config(config: &[u8], context: &mut Context<'_>) {
    const UNIQUE_SESSION_NAME: u32 = 22;
    const TRACE_UUID_MSB: u32 = 27;
    const TRACE_UUID_LSB: u32 = 28;
    if let Some(name) = bytes_of(config, UNIQUE_SESSION_NAME) {
        context.metadata.set(
            "unique_session_name",
            Known::Text(String::from_utf8_lossy(name).into_owned()),
        );
    }
    if context.metadata.text("trace_uuid").is_none() {
        let half = |field| number_of(config, field).unwrap_or(0) as i64;
        set_uuid(half(TRACE_UUID_LSB), half(TRACE_UUID_MSB), context);
    }
}
