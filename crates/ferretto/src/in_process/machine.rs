//! What the service in this process is told of the world: the time, the machine, random numbers.
//!
//! Called by [`super`] with each input. The daemon reads the same for its service.

use std::ffi::CStr;

use ferretto_service::{Identity, Now, SystemFacts};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use crate::clock;

/// The time, on every clock that traces refer to.
pub(super) fn now() -> Now {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    Now {
        boot: read(ClockId::Boottime),
        realtime_coarse: read(ClockId::RealtimeCoarse),
        monotonic_coarse: read(ClockId::MonotonicCoarse),
        realtime: read(ClockId::Realtime),
        monotonic: read(ClockId::Monotonic),
        monotonic_raw: read(ClockId::MonotonicRaw),
        tsc: clock::time_stamp_counter(),
    }
}

/// Who the service is and where it runs.
pub(super) fn identity() -> Identity {
    let uname = rustix::system::uname();
    let text = |name: &CStr| name.to_string_lossy().into_owned();
    let memory = rustix::system::sysinfo();
    let machine_name = std::env::var("PERFETTO_MACHINE_NAME").unwrap_or_else(|_| text(uname.sysname()));
    Identity {
        uid: rustix::process::geteuid().as_raw(),
        version: concat!("Ferretto v", env!("CARGO_PKG_VERSION")).to_owned(),
        machine_name,
        // The daemon's are the machine's. What a program extends the schema by, it can write itself.
        extension_descriptors: Vec::new(),
        system: SystemFacts {
            utsname: Some([
                text(uname.sysname()),
                text(uname.release()),
                text(uname.version()),
                text(uname.machine()),
            ]),
            // To know it takes the C library or a parser of its files.
            timezone_offset_minutes: None,
            page_size: u32::try_from(rustix::param::page_size()).ok(),
            cpus: configured_cpus(),
            ram_bytes: Some(memory.totalram as u64 * u64::from(memory.mem_unit)),
        },
    }
}

/// Processors that the kernel knows, online or not.
fn configured_cpus() -> Option<u32> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").ok()?;
    let is_cpu = |name: &str| {
        name.strip_prefix("cpu")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let count = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_cpu))
        .count();
    u32::try_from(count).ok().filter(|count| *count > 0)
}

/// 64 random bits.
pub(super) fn random() -> u64 {
    random_bits() as u64
}

/// A random (version 4) UUID.
pub(super) fn random_uuid() -> u128 {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0x3 << 62;
    random_bits() & !VERSION & !VARIANT | 0x4 << 76 | 0x2 << 62
}

fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    // It fails only before the kernel has gathered entropy at boot; then the time has to do.
    if getrandom(&mut bytes, GetRandomFlags::NONBLOCK) != Ok(16) {
        let now = now();
        return u128::from(now.realtime) << 64 | u128::from(now.monotonic_raw);
    }
    u128::from_ne_bytes(bytes)
}
