//! Tracing at the end and at the fork of a process.
//!
//! The code that sets tracing up calls [`install`]. Then:
//! - **`exit`**, and so the end of `main` (by a panic too): [`Hooks::at_exit`] is called, once, on the thread that exits, which may be any. By then
//!   this thread's thread-locals are gone; all other threads still run.
//! - **`fork`**: the child has one thread and copies of all memory, including locks that other threads held. It shares the parent's shared memory,
//!   sockets and pollers. So the child must not continue the parent's tracing. Before `fork` returns in the child, the following is done: the
//!   thread's earlier recordings can no longer be written to, [`generation`] has changed, the descriptors that are [kept from
//!   children](KeptFromChildren) are no longer the parent's, and [`Hooks::in_forked_child`] has been called. The parent only waits for a few locks.
//!   The child may set tracing up anew. Children that only live until `exec` are treated alike; children of `vfork`, `posix_spawn` (which
//!   `std::process::Command` uses), `_Fork` and bare `clone` call no handlers.
//! - **`abort`, a signal, `_exit`, a panic that aborts**: nothing is called, and nothing has to be. Events are in shared memory as soon as they are
//!   recorded. When a producer's connection ends, the service takes the contents of the chunks of all writers that are registered with it. The first
//!   events of a thread (of an instance) are lost if the process ends before the SDK's thread, which was woken for that, has sent their writer's
//!   registration: within some 100 µs, or for as long as a service does not read. The same holds of upstream's SDK, where another thread's task
//!   registers writers too. To send it at once would cost a system call, and a lock on the connection, at each thread's first event.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::clock;

/// The callbacks for ends and forks of the process.
pub(crate) struct Hooks {
    /// The process is about to be forked by this thread. Takes the locks that parent and child go on using, because the child has no other thread
    /// that could release them.
    pub(crate) before_fork: fn(),
    /// The fork is over, successful or not, in parent or child. Releases the locks.
    pub(crate) after_fork: fn(),
    /// The process exits. Finishes work that takes no longer than this, or whose data would be lost for good. The calling thread may be any thread,
    /// and may hold any lock under which the application's code is called, so this must not wait for such a lock or for that thread.
    pub(crate) at_exit: fn(Duration),
    /// The process is a child that was just forked, and this is its only thread. May do only async-signal-safe things: atomics and bare system calls;
    /// no lock, no allocation, no destructor.
    pub(crate) in_forked_child: fn(),
}

/// How long tracing may hold up the end of a process, unless only this process has data that a file still lacks.
const PATIENCE: Duration = Duration::from_millis(100);

/// From a `&'static Hooks`, or null.
static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());

/// Whether libc knows the handlers. It does in children too.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// How many forks lie between the process that first had hooks and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// One more than the generation whose exit hook is still to be called; 0 if there is none.
static ARMED: AtomicU32 = AtomicU32::new(0);

/// Descriptors that children must not have; [`NONE`] in free places.
static KEPT: [AtomicI32; 64] = [const { AtomicI32::new(NONE) }; 64];
const NONE: RawFd = -1;

/// A meaningless eventfd, which takes the place of the connections' descriptors in children.
static SUBSTITUTE: AtomicI32 = AtomicI32::new(NONE);

/// Has `hooks` called in this process from now on. A forked child that sets tracing up anew has to call it again; otherwise further calls change
/// nothing.
///
/// # Errors
/// If libc has no memory for the handlers, or there is no descriptor left. Then no hook is called.
pub(crate) fn install(hooks: &'static Hooks) -> io::Result<()> {
    if SUBSTITUTE.load(Ordering::Acquire) == NONE {
        let substitute = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into_raw_fd();
        // A substitute that comes second stays open: a descriptor costs less than closing it safely while a fork may come between.
        let _ = SUBSTITUTE.compare_exchange(NONE, substitute, Ordering::AcqRel, Ordering::Acquire);
    }
    HOOKS.store(ptr::from_ref(hooks).cast_mut(), Ordering::Release);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        register().inspect_err(|_| REGISTERED.store(false, Ordering::Release))?;
    }
    ARMED.store(GENERATION.load(Ordering::Acquire) + 1, Ordering::Release);
    Ok(())
}

/// Returns a number that is different in a forked child. Objects that write into shared memory or to sockets when they are used or dropped remember
/// the generation they were made in, and do neither in another one.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// An object with a socket that children must not have: the connection to a service.
///
/// In a child that is forked while this exists, a meaningless descriptor takes the socket's number, so that dropping the child's copy does no harm.
/// Otherwise a peer would not see that the parent has gone for as long as one of its children lives. Where there are more of these than there is room
/// for, children do have the descriptor. Dropping this shuts the connection down, even if another process has the descriptor as well.
///
/// The object inside keeps its descriptor for life: it must not be replaced through `DerefMut`.
#[derive(Debug)]
pub(crate) struct KeptFromChildren<T> {
    fd: RawFd,
    place: Option<&'static AtomicI32>,
    generation: u32,
    inner: T,
}

impl<T: AsFd> KeptFromChildren<T> {
    pub(crate) fn new(inner: T) -> Self {
        let fd = inner.as_fd().as_raw_fd();
        let place = KEPT.iter().find(|place| {
            place
                .compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        Self {
            fd,
            place,
            generation: generation(),
            inner,
        }
    }
}

impl<T> Deref for KeptFromChildren<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for KeptFromChildren<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for KeptFromChildren<T> {
    /// Before the descriptor is closed, because then its number may get another owner.
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // In a child the place has been emptied, and may have been taken again for another descriptor.
            let _ = place.compare_exchange(self.fd, NONE, Ordering::AcqRel, Ordering::Relaxed);
        }
        if self.generation == generation() {
            // SAFETY: takes no pointers. The descriptor is open, because `inner` keeps it for life.
            unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
        }
    }
}

fn register() -> io::Result<()> {
    // SAFETY: the handlers are functions of this program. A thread of the parent calls the parent's handlers in the ordinary course of things; the
    // child's handler does only async-signal-safe work, and releases locks that its own thread has taken.
    let failed = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child)) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // SAFETY: the handler is a function of this program and does not unwind. If its library is unloaded, libc calls it then.
    match unsafe { libc::atexit(at_exit) } {
        0 => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

fn hooks() -> Option<&'static Hooks> {
    // SAFETY: null, or from a reference that lives as long as the process.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

extern "C" fn at_exit() {
    // Once, on whichever thread comes first, and not in a child that has the handler only from its parent.
    let due = GENERATION.load(Ordering::Acquire) + 1;
    if ARMED
        .compare_exchange(due, 0, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return;
    }
    if let Some(hooks) = hooks() {
        // A panic must not turn an exit into an abort.
        let _ = catch_unwind(AssertUnwindSafe(|| (hooks.at_exit)(PATIENCE)));
    }
}

/// Takes locks: forking in a signal handler may wait for ever.
extern "C" fn before_fork() {
    if let Some(hooks) = hooks() {
        (hooks.before_fork)();
    }
}

extern "C" fn after_fork() {
    if let Some(hooks) = hooks() {
        (hooks.after_fork)();
    }
}

/// Async-signal-safe but for the locks that its own thread took in [`before_fork`].
extern "C" fn in_forked_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let substitute = SUBSTITUTE.load(Ordering::Acquire);
    for place in &KEPT {
        let fd = place.swap(NONE, Ordering::AcqRel);
        if fd != NONE {
            // SAFETY: replaces a descriptor in the child's own table only. The owner of the number goes on owning it. By its number, because the
            // bindings for Android lack the function.
            unsafe { libc::syscall(libc::SYS_dup3, substitute, fd, libc::O_CLOEXEC) };
        }
    }
    clock::recover_in_forked_child();
    if let Some(hooks) = hooks() {
        (hooks.after_fork)();
        (hooks.in_forked_child)();
    }
}

#[cfg(test)]
mod tests;
