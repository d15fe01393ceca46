//! What the daemon knows of the machine: its name, and what the `SystemInfo` packet says of it.

use ferretto_service::{Identity, MachineId, SystemFacts};

/// Who the service is and where it runs.
pub(super) fn identity() -> Identity {
    let uname = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let memory = rustix::system::sysinfo();
    let machine_name = std::env::var("PERFETTO_MACHINE_NAME").unwrap_or_else(|_| text(uname.sysname()));
    Identity {
        uid: rustix::process::geteuid().as_raw(),
        version: crate::VERSION.to_owned(),
        machine_name,
        machine: MachineId::HOST,
        extension_descriptors: super::descriptors::load(),
        system: SystemFacts {
            utsname: Some([
                text(uname.sysname()),
                text(uname.release()),
                text(uname.version()),
                text(uname.machine()),
            ]),
            timezone_offset_minutes: local_time_offset(),
            page_size: u32::try_from(rustix::param::page_size()).ok(),
            cpus: configured_cpus(),
            ram_bytes: Some(memory.totalram as u64 * u64::from(memory.mem_unit)),
        },
    }
}

/// How many minutes local time is ahead of UTC now.
pub(super) fn local_time_offset() -> Option<i32> {
    Some(chrono::Local::now().offset().local_minus_utc() / 60)
}

/// Processors that the kernel knows, online or not.
fn configured_cpus() -> Option<u32> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").ok()?;
    let is_cpu = |name: &str| {
        name.strip_prefix("cpu")
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let count = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_cpu))
        .count();
    u32::try_from(count).ok().filter(|count| *count > 0)
}
