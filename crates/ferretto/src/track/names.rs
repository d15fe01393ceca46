//! Names of the process and its threads that the program chooses, in place of the kernel's.

use super::{Track, TrackLike, descriptor_of, register, registry};
use crate::off::OFF;

/// Sets the name of the calling thread in traces, present and later ones, until it ends. The kernel's name, which is cut at 15 bytes, stays as it is.
///
/// ```
/// use ferretto::track::set_thread_name;
///
/// for number in 0..4 {
///     std::thread::spawn(move || {
///         set_thread_name(&format!("Decoder of camera {number}"));
///         // …
///     });
/// }
/// ```
///
/// It takes a lock and some memory, so call it once for each thread, and not for each piece of work. A forked child begins with the kernel's names.
pub fn set_thread_name(name: &str) {
    // A thread that is ending has no use for a name, and could not give it back.
    if OFF || END.try_with(|_| ()).is_err() {
        return;
    }
    let track = Track::thread();
    let mut descriptor = descriptor_of(&track);
    descriptor.thread.get_or_insert_default().thread_name = Some(name.to_owned());
    register(&track, descriptor);
}

/// Sets the name of this process in traces, present and later ones, in place of the first word of its command line.
///
/// ```
/// ferretto::track::set_process_name("frontend (blue)");
/// ```
pub fn set_process_name(name: &str) {
    if OFF {
        return;
    }
    let track = Track::process();
    let mut descriptor = descriptor_of(&track);
    descriptor.process.get_or_insert_default().process_name = Some(name.to_owned());
    register(&track, descriptor);
}

thread_local! {
    static END: End = const { End };
}

/// Forgets the thread's name when the thread ends: the kernel gives its number to another one.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        registry::erase(Track::thread().uuid());
    }
}
