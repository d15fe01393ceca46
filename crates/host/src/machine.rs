//! The identity of a service and the facts about its machine, for the `SystemInfo` packet.
//!
//! Programs call this for [`Host::new`](crate::Host::new). It asks the C library directly: the crate for system calls offers all of this too, but
//! takes twice as long to compile with it.
#![allow(unsafe_code)]

use ferretto_service::{Identity, MachineId, SystemFacts};

/// The identity of a service of this version, on this machine. Its traces say that they are of `machine`. It has no extension descriptors.
pub fn identity(version: &str, machine: MachineId) -> Identity {
    let uname = uname();
    let machine_name = std::env::var("PERFETTO_MACHINE_NAME").ok();
    let system_name = || uname.as_ref().map(|uname| uname.system.clone());
    let machine_name = machine_name.or_else(system_name).unwrap_or_default();
    Identity {
        uid: effective_user(),
        version: version.to_owned(),
        machine_name,
        machine,
        extension_descriptors: Vec::new(),
        system: SystemFacts {
            utsname: uname.map(|uname| [uname.system, uname.release, uname.version, uname.machine]),
            // The program knows.
            timezone_offset_minutes: None,
            page_size: page_size(),
            cpus: configured_cpus(),
            ram_bytes: total_memory(),
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

/// The user that this process acts as.
fn effective_user() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

/// The size of a page of memory, in bytes.
fn page_size() -> Option<u32> {
    // SAFETY: takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).ok().filter(|size| *size > 0)
}

/// The machine's memory, in bytes.
fn total_memory() -> Option<u64> {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the pointer is to a live local of the written type, which consists of integers, for which zeroes are valid.
    let (result, info) = unsafe { (libc::sysinfo(info.as_mut_ptr()), info.assume_init()) };
    #[allow(clippy::unnecessary_cast, reason = "it is as wide as a pointer")]
    (result == 0).then(|| info.totalram as u64 * u64::from(info.mem_unit))
}

/// The result of `uname`.
struct Uname {
    system: String,
    release: String,
    version: String,
    machine: String,
}

/// Calls `uname`.
fn uname() -> Option<Uname> {
    let mut names = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the pointer is to a live local of the written type, which consists of bytes.
    let (result, names) = unsafe { (libc::uname(names.as_mut_ptr()), names.assume_init()) };
    let text = |name: &[libc::c_char]| {
        let bytes: Vec<u8> = name
            .iter()
            .map(|&byte| byte as u8)
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (result == 0).then(|| Uname {
        system: text(&names.sysname),
        release: text(&names.release),
        version: text(&names.version),
        machine: text(&names.machine),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_the_one_that_proc_describes() {
        let proc = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).expect("a /proc");
            text.trim_end().to_owned()
        };
        let uname = uname().expect("a name");
        assert_eq!(
            [uname.system, uname.release, uname.version],
            [proc("ostype"), proc("osrelease"), proc("version")]
        );
        assert!(!uname.machine.is_empty());
        let memory = std::fs::read_to_string("/proc/meminfo").expect("a /proc");
        let total: u64 = memory
            .split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse().ok())
            .expect("MemTotal comes first");
        assert_eq!(total_memory(), Some(total * 1024));
        assert!(page_size().is_some_and(u32::is_power_of_two));
    }
}
