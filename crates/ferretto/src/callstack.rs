//! Call stacks, of [track events](crate::track_event) and of [samples](crate::stack_sample).
//!
//! [`Callstack::capture`] finds the stack of the calling thread. It needs no debug information and no frame pointers. The trace gets addresses within
//! the program's files, with their build ids:
//!
//! ```
//! use ferretto::callstack::Callstack;
//! use ferretto::trace_event_instant;
//!
//! fn reconnect() {
//!     trace_event_instant!("network", "Reconnect", callstack = Callstack::capture());
//! }
//! # reconnect();
//! ```
//!
//! `ferretto symbolize TRACE` writes the names of functions into the trace later, also on another machine, if it finds the files there.
//!
//! Stacks from elsewhere, an interpreter for example, are slices of [`Frame`]s, or any type that is [`Frames`]:
//!
//! ```
//! use ferretto::callstack::Frame;
//! use ferretto::trace_event_instant;
//!
//! let stack = [
//!     Frame::named("resize").source("image.lua", 17),
//!     Frame::named("main").source("main.lua", 3),
//! ];
//! trace_event_instant!("scripts", "Slow call", callstack = &stack);
//! ```
//!
//! The closure `|event| …` of the macros takes a slice as well: `event.callstack(&stack[..])`.
//!
//! Perfetto's UI and trace processor show the stacks of events since version 53 (November 2025). A stack, and each of its frames, is written once for a
//! thread and a session, and repeated when the thread's sequence starts over, as names are. Further events take three bytes for it, and four once there
//! are 128 stacks. An event with a stack takes longer than one without, because the SDK looks the stack up. In
//! [`without_waiting`](crate::without_waiting) events with a stack are dropped.
//!
//! A thread remembers the files of addresses. If a library was unloaded, and another one loaded at its addresses, a thread that knows such an address may
//! name the first library for about a millisecond after the unloading. An address that is looked up for the first time while another thread forks stays
//! without a file until the thread's next event with a stack.

mod interning;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    path = "elsewhere/callstack_modules.rs"
)]
mod modules;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android"),
        not(target_arch = "arm")
    )),
    path = "elsewhere/callstack_unwind.rs"
)]
mod unwind;

use std::fmt;

use ferretto_wire::Writer;

pub(crate) use interning::InternedStacks;
pub(crate) use modules::NoLookUps;

use crate::track_event;

/// One function of a call stack: a name, an address, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    address: Option<usize>,
    function: Option<&'a str>,
    source: Option<(&'a str, u32)>,
}

impl<'a> Frame<'a> {
    /// A frame of the function with this name.
    pub const fn named(function: &'a str) -> Self {
        Self {
            address: None,
            function: Some(function),
            source: None,
        }
    }

    /// A frame at an instruction of this process: in the innermost frame the next one, in the others one that has begun, which is the return address
    /// less one. The trace gets the file that is loaded there, and the address within it.
    pub const fn at(address: usize) -> Self {
        Self {
            address: Some(address),
            function: None,
            source: None,
        }
    }

    /// The same frame, of the function with this name.
    #[must_use]
    pub const fn function(self, function: &'a str) -> Self {
        Self {
            function: Some(function),
            ..self
        }
    }

    /// The same frame, at this line of a source file.
    #[must_use]
    pub const fn source(self, file: &'a str, line: u32) -> Self {
        Self {
            source: Some((file, line)),
            ..self
        }
    }
}

/// A call stack, in whatever form.
///
/// Of more than 1024 frames, or 256 KB of their names, the outermost are left out: one with the name `[more frames]` takes their place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no call stack",
    label = "neither a `Callstack` nor frames",
    note = "`Callstack::capture()` is the stack of the calling thread; an array or a slice of `Frame`s is one, too"
)]
pub trait Frames {
    /// Calls `each` for every frame, the innermost first: the function that is running, then its caller.
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>));
}

#[diagnostic::do_not_recommend]
impl<T: Frames + ?Sized> Frames for &T {
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
        (**self).for_each(each);
    }
}

#[diagnostic::do_not_recommend]
impl Frames for [Frame<'_>] {
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
        self.iter().copied().for_each(each);
    }
}

#[diagnostic::do_not_recommend]
impl<const N: usize> Frames for [Frame<'_>; N] {
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
        self.as_slice().for_each(each);
    }
}

#[diagnostic::do_not_recommend]
impl Frames for Vec<Frame<'_>> {
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
        self.as_slice().for_each(each);
    }
}

/// The most frames that are captured. The outermost are left out.
const MAX_FRAMES: usize = 128;

/// Takes the place of frames that were left out.
const LEFT_OUT: Frame<'static> = Frame::named("[more frames]");

/// The call stack of a thread, as addresses.
#[derive(Clone)]
pub struct Callstack {
    /// Addresses of instructions, the innermost first.
    addresses: [usize; MAX_FRAMES],
    len: usize,
    is_whole: bool,
}

impl Callstack {
    /// The stack of the calling thread, from the caller of this function outwards: at most 128 frames, and one with the name `[more frames]` in place
    /// of the others.
    ///
    /// It takes some microseconds, because the unwinder that panics use finds the frames. The unwinder may wait for the C library's lock on loaded
    /// files, so signal handlers must not call this outside [`without_waiting`](crate::without_waiting). In there, where events with a stack are dropped,
    /// it does nothing, and the stack is empty. So it is on 32-bit Arm, and where nothing is recorded. Events with an empty stack are recorded without one.
    #[inline(never)]
    pub fn capture() -> Self {
        let mut stack = Self {
            addresses: [0; MAX_FRAMES],
            len: 0,
            is_whole: true,
        };
        if track_event::is_confined() {
            return stack;
        }
        // The first frame is this function's.
        let mut is_own = true;
        unwind::walk(&mut |address| {
            if std::mem::take(&mut is_own) {
                return true;
            }
            let Some(place) = stack.addresses.get_mut(stack.len) else {
                stack.is_whole = false;
                return false;
            };
            *place = address;
            stack.len += 1;
            true
        });
        stack
    }

    /// Addresses of instructions in this process, the innermost first, as [`Frame::at`] takes them.
    pub fn addresses(&self) -> &[usize] {
        &self.addresses[..self.len]
    }
}

impl Frames for Callstack {
    fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
        for address in self.addresses() {
            each(Frame::at(*address));
        }
        if !self.is_whole {
            each(LEFT_OUT);
        }
    }
}

impl fmt::Debug for Callstack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x?}", self.addresses())
    }
}

/// The most bytes of memory that is kept for the definitions of the next packet. A stack of named frames may need much more.
const KEPT_BYTES: usize = 64 << 10;

/// Clears definitions that were written.
pub(crate) fn clear(definitions: &mut Writer) {
    definitions.clear();
    if definitions.heap_capacity() > KEPT_BYTES {
        *definitions = Writer::new();
    }
}

#[cfg(test)]
mod tests;
