//! The kernel's data about this process and its threads, for the descriptors of their tracks.
//!
//! Called when a sequence begins. Names that are not UTF-8 are converted: the kernel cuts the names of threads at 15 bytes, also in the middle of a
//! character.

use std::sync::atomic::{AtomicBool, Ordering};

use ferretto_proto::write;

use super::identity;
use crate::system;

/// The place of a thread's events, if the system records events of the same thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SystemTracks {
    /// On one track with the system's events.
    #[default]
    Merged,
    /// On tracks of their own: for events whose times are too coarse to nest among the system's.
    Separate,
}

static KEEP_APART: AtomicBool = AtomicBool::new(false);

/// Decides for all threads; to be called before anything is recorded.
pub(crate) fn set_system_tracks(choice: SystemTracks) {
    KEEP_APART.store(choice == SystemTracks::Separate, Ordering::Relaxed);
}

/// Writes the fields that make a track that of this process.
pub(super) fn write_process(descriptor: &mut write::TrackDescriptor<'_>) {
    let cmdline = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    descriptor.process(|process| {
        process.pid(identity::process_id());
        write_cmdline(&cmdline, process);
    });
}

/// Writes `cmdline`, arguments that each end with a zero byte, the first of which is the name. Empty ones are left out, as upstream does.
pub(super) fn write_cmdline(cmdline: &[u8], process: &mut write::ProcessDescriptor<'_>) {
    if let Some(name) = cmdline
        .split(|&byte| byte == 0)
        .next()
        .filter(|name| !name.is_empty())
    {
        process.process_name(&*String::from_utf8_lossy(name));
    }
    for argument in cmdline
        .split(|&byte| byte == 0)
        .filter(|argument| !argument.is_empty())
    {
        process.cmdline(&*String::from_utf8_lossy(argument));
    }
}

/// Writes the fields that make a track that of the thread `tid` of this process.
pub(super) fn write_thread(tid: u32, descriptor: &mut write::TrackDescriptor<'_>) {
    descriptor.thread(|thread| {
        thread.pid(identity::process_id()).tid(i64::from(tid));
        if let Some(name) = thread_name(tid) {
            thread.thread_name(name);
        }
    });
    if KEEP_APART.load(Ordering::Relaxed) {
        descriptor.disallow_merging_with_system_tracks(true);
    }
}

/// Returns the name of a thread; `None` if the thread is gone.
fn thread_name(tid: u32) -> Option<String> {
    let name = if tid == identity::thread_id() {
        system::thread_name()?
    } else {
        std::fs::read(format!("/proc/self/task/{tid}/comm")).ok()?
    };
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(String::from_utf8_lossy(name).into_owned())
}
