//! The identities of this process and this thread, as uuids and numbers; and the hash that uuids are made with.
//!
//! Called for each event on a track other than its thread's, so both are cached: the process's uuid in an atomic, the
//! thread's number in thread-local memory. After a fork the child must call [`reset_after_fork`].

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{split_mix, system};

/// 0: not computed yet.
static PROCESS_UUID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// 0: not asked for yet.
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
}

const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a of 64 bits, the hash in the uuids of all of Perfetto's client libraries.
pub(super) const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = FNV_OFFSET_BASIS;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(FNV_PRIME);
        index += 1;
    }
    hash
}

/// The uuid of this process's track.
#[inline]
pub(crate) fn process_uuid() -> u64 {
    match PROCESS_UUID.load(Ordering::Relaxed) {
        0 => compute_process_uuid(),
        uuid => uuid,
    }
}

/// Gives the process's track this uuid in place of the computed one. To be called before anything is recorded.
pub(crate) fn set_process_uuid(uuid: u64) {
    PROCESS_UUID.store(uuid, Ordering::Relaxed);
}

#[cold]
fn compute_process_uuid() -> u64 {
    // Threads that come here at once all compute the same.
    let uuid = uuid_of_process(start_time().unwrap_or_else(substitute_start_time), process_id());
    PROCESS_UUID.store(uuid, Ordering::Relaxed);
    uuid
}

/// The hash of both numbers as they are in memory (of 64 and 32 bits): unique on this machine until it is started
/// again, and the same for every copy of Perfetto in this process.
pub(super) fn uuid_of_process(start_time: u64, pid: i32) -> u64 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&start_time.to_ne_bytes());
    bytes[8..].copy_from_slice(&pid.to_ne_bytes());
    fnv1a(&bytes)
}

/// When this process started, in the kernel's clock ticks since boot.
fn start_time() -> Option<u64> {
    parse_start_time(&std::fs::read("/proc/self/stat").ok()?)
}

/// Field 22 of `/proc/PID/stat` (`proc_pid_stat(5)`), if it is not 0. Fields are counted from the end of field 2, the
/// name in parentheses, which may itself contain any bytes.
pub(super) fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let name_end = stat.windows(2).rposition(|pair| pair == b") ")?;
    let field = stat[name_end + 2..].split(|&byte| byte == b' ').nth(22 - 3)?;
    std::str::from_utf8(field)
        .ok()?
        .parse()
        .ok()
        .filter(|&ticks| ticks != 0)
}

/// A random number in place of the start time, where there is no `/proc`. Then other copies of Perfetto in this process have a different one.
fn substitute_start_time() -> u64 {
    static RANDOM: OnceLock<u64> = OnceLock::new();
    *RANDOM.get_or_init(split_mix::seed)
}

/// The process's number.
pub(super) fn process_id() -> i32 {
    system::process_id() as i32
}

/// The calling thread's number.
#[inline]
pub(crate) fn thread_id() -> u32 {
    match THREAD_ID.get() {
        0 => ask_for_thread_id(),
        tid => tid,
    }
}

#[cold]
fn ask_for_thread_id() -> u32 {
    let tid = system::thread_id();
    THREAD_ID.set(tid);
    tid
}

/// Makes a forked child a process of its own: it gets other uuids, and loses the descriptors that its parent had registered for tracks.
///
/// To be called in the child by its only thread, the one that forked, before it records anything. Takes no lock and
/// does not allocate.
pub(crate) fn reset_after_fork() {
    PROCESS_UUID.store(0, Ordering::Relaxed);
    THREAD_ID.set(0);
    super::registry::abandon();
}

#[cfg(test)]
mod tests;
