//! What the service in this process is told of the world: the time, the machine, random numbers.
//!
//! Called by [`super`] with each input. The daemon reads the same for its service.

use ferretto_ipc::time::{self, Clock};
use ferretto_service::{Identity, MachineId, Now, SystemFacts};

use crate::{clock, system};

/// The time, on every clock that traces refer to.
pub(super) fn now() -> Now {
    Now {
        boot: time::now(Clock::Boot),
        realtime_coarse: time::now(Clock::RealtimeCoarse),
        monotonic_coarse: time::now(Clock::MonotonicCoarse),
        realtime: time::now(Clock::Realtime),
        monotonic: time::now(Clock::Monotonic),
        monotonic_raw: time::now(Clock::MonotonicRaw),
        tsc: clock::time_stamp_counter(),
    }
}

/// Who the service is and where it runs. Its traces say that they are of `machine`.
pub(super) fn identity(machine: MachineId) -> Identity {
    let uname = system::uname();
    let machine_name = std::env::var("PERFETTO_MACHINE_NAME").ok();
    let system_name = || uname.as_ref().map(|uname| uname.system.clone());
    let machine_name = machine_name.or_else(system_name).unwrap_or_default();
    Identity {
        uid: system::effective_user(),
        version: concat!("Ferretto v", env!("CARGO_PKG_VERSION")).to_owned(),
        machine_name,
        machine,
        // The daemon's are the machine's. What a program extends the schema by, it can write itself.
        extension_descriptors: Vec::new(),
        system: SystemFacts {
            utsname: uname.map(|uname| [uname.system, uname.release, uname.version, uname.machine]),
            timezone_offset_minutes: system::timezone_offset_minutes(),
            page_size: system::page_size(),
            cpus: configured_cpus(),
            ram_bytes: system::total_memory(),
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
    system::random_bytes().map_or_else(
        || {
            // Early at boot; then the time has to do.
            let now = now();
            u128::from(now.realtime) << 64 | u128::from(now.monotonic_raw)
        },
        u128::from_ne_bytes,
    )
}
