//! Call stacks and the dynamic loader's lock, which the C library takes to tell what is loaded.
#![cfg(all(feature = "in-process", target_os = "linux"))]
#![allow(clippy::unwrap_used, unsafe_code)]

#[allow(dead_code, reason = "other tests use all of it")]
mod programs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferretto::callstack::{Callstack, Frame};
use ferretto::{Options, trace_event_instant};
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::messages::{InternedData, Message, TracePacket, trace_packet, track_event};
use ferretto_wire::Reader;
use programs::{finish, in_own_process, session};

/// An allocator that finds out whether the loader's lock is held while it is called.
struct Asking;

#[global_allocator]
static ALLOCATOR: Asking = Asking;

thread_local! {
    /// Whether the allocations of this thread are looked at.
    static IS_LOOKED_AT: Cell<bool> = const { Cell::new(false) };
}

/// How many times another thread was asked to take the lock, and how many times it did.
static ASKED: AtomicU64 = AtomicU64::new(0);
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// The lock was held during an allocation.
static WAS_HELD: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    1
}

/// A lock that is not released within this is held for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes the loader's lock.
fn take_loaders_lock() {
    // SAFETY: the function takes any arguments.
    unsafe { libc::dl_iterate_phdr(Some(end), std::ptr::null_mut()) };
}

/// Has the other thread take the lock.
fn look() {
    if !IS_LOOKED_AT.get() {
        return;
    }
    let number = ASKED.fetch_add(1, Ordering::AcqRel) + 1;
    let began = Instant::now();
    while ANSWERED.load(Ordering::Acquire) < number {
        if began.elapsed() > PATIENCE {
            WAS_HELD.store(true, Ordering::Release);
            return IS_LOOKED_AT.set(false);
        }
        std::thread::yield_now();
    }
}

// SAFETY: the system's.
unsafe impl GlobalAlloc for Asking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        look();
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }
}

/// An address in this program.
fn here() -> usize {
    take_loaders_lock as fn() as usize
}

/// An allocator may hold a lock and walk stacks, for which it waits for the loader's lock.
#[test]
fn nothing_is_allocated_under_the_loaders_lock() {
    in_own_process("nothing_is_allocated_under_the_loaders_lock", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    if ANSWERED.load(Ordering::Relaxed) < ASKED.load(Ordering::Acquire) {
                        take_loaders_lock();
                        ANSWERED.fetch_add(1, Ordering::AcqRel);
                    }
                    std::thread::yield_now();
                }
            });
            IS_LOOKED_AT.set(true);
            for offset in 0..10 {
                trace_event_instant!("stacks", "At", callstack = [Frame::at(here() + offset)]);
                trace_event_instant!("stacks", "Captured", callstack = Callstack::capture());
            }
            IS_LOOKED_AT.set(false);
            is_over.store(true, Ordering::Release);
        });
        assert!(ASKED.load(Ordering::Relaxed) > 0, "to look files up allocates");
        assert!(!WAS_HELD.load(Ordering::Relaxed));
        assert_eq!(finish(session).named("At"), 10);
    });
}

/// The C library itself does not prevent it.
#[test]
fn a_forked_child_does_not_find_the_loaders_lock_held_for_a_look_up() {
    const CHILDREN: u64 = 400;
    in_own_process(
        "a_forked_child_does_not_find_the_loaders_lock_held_for_a_look_up",
        || {
            ferretto::initialize(Options::in_process());
            let session = session();
            let is_over = AtomicBool::new(false);
            let looked_up = AtomicU64::new(0);
            let mut all_ended = false;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let addresses = (here()..).take_while(|_| !is_over.load(Ordering::Acquire));
                    for address in addresses {
                        trace_event_instant!("stacks", "At", callstack = [Frame::at(address)]);
                        looked_up.fetch_add(1, Ordering::AcqRel);
                    }
                });
                let mut place = 7u64;
                all_ended = (0..CHILDREN).all(|_| {
                    // At any point of a look-up.
                    let before = looked_up.load(Ordering::Acquire);
                    while looked_up.load(Ordering::Acquire) == before {
                        std::hint::spin_loop();
                    }
                    place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    for _ in 0..(place >> 33) % 1000 {
                        std::hint::spin_loop();
                    }
                    status_of_child(take_loaders_lock) == 0
                });
                is_over.store(true, Ordering::Release);
            });
            assert!(all_ended, "a child has waited for the lock");
            session.stop_blocking().unwrap();
        },
    );
}

/// Records an event with an address that was in none before.
fn trace_new_address() {
    static ADDRESS: AtomicU64 = AtomicU64::new(1);
    let stack = [Frame::at(ADDRESS.fetch_add(1, Ordering::Relaxed) as usize)];
    trace_event_instant!("stacks", "New", callstack = &stack);
}

extern "C" fn trace_under_the_lock(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    trace_new_address();
    1
}

#[test]
fn a_thread_that_holds_the_loaders_lock_traces_stacks_beside_others_and_forks() {
    const TIMES: usize = 2000;
    in_own_process(
        "a_thread_that_holds_the_loaders_lock_traces_stacks_beside_others_and_forks",
        || {
            ferretto::initialize(Options::in_process());
            let session = session();
            trace_new_address();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        // SAFETY: the function ignores its arguments.
                        unsafe { libc::dl_iterate_phdr(Some(trace_under_the_lock), std::ptr::null_mut()) };
                    }
                });
                scope.spawn(|| (0..TIMES).for_each(|_| trace_new_address()));
                // The test itself holds the loader's lock, so the children do not take it.
                scope.spawn(|| (0..20).for_each(|_| assert_eq!(status_of_child(|| ()), 0)));
            });
            let trace = finish(session);
            assert!(trace.named("New") > TIMES, "{}", trace.named("New"));
        },
    );
}

/// The status of a forked child that calls `act`. A signal ends it if it waits for ever.
fn status_of_child(act: fn()) -> c_int {
    // SAFETY: the child makes system calls and takes locks at most, and ends without returning.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: takes no pointers.
            unsafe { libc::alarm(10) };
            act();
            // SAFETY: does not return.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the pointer is to a live local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

/// The paths of the files that the innermost frames of events with stacks are in, in the order of the events; `None` for those in no file.
fn files(trace: &[u8]) -> Vec<Option<String>> {
    const CLEARED: u32 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32;
    let mut known = InternedData::default();
    let mut files = Vec::new();
    for field in Reader::new(trace) {
        let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
        if packet.sequence_flags.is_some_and(|flags| flags & CLEARED != 0) {
            known = InternedData::default();
        }
        if let Some(data) = packet.interned_data.as_option() {
            known.callstacks.extend_from_slice(&data.callstacks);
            known.frames.extend_from_slice(&data.frames);
            known.mappings.extend_from_slice(&data.mappings);
            known.mapping_paths.extend_from_slice(&data.mapping_paths);
        }
        let Some(trace_packet::Data::TrackEvent(event)) = packet.data else {
            continue;
        };
        let Some(track_event::CallstackField::CallstackIid(id)) = event.callstack_field else {
            continue;
        };
        let stack = known
            .callstacks
            .iter()
            .find(|stack| stack.iid == Some(id))
            .unwrap();
        let id = stack.frame_ids.last();
        let frame = known
            .frames
            .iter()
            .find(|frame| frame.iid.as_ref() == id)
            .unwrap();
        files.push(frame.mapping_id.map(|id| {
            let mapping = known
                .mappings
                .iter()
                .find(|mapping| mapping.iid == Some(id))
                .unwrap();
            let id = mapping.path_string_ids.first();
            let path = known
                .mapping_paths
                .iter()
                .find(|path| path.iid.as_ref() == id)
                .unwrap();
            String::from_utf8(path.str.clone().unwrap()).unwrap()
        }));
    }
    files
}

/// In a process of its own, because other tests rely on files that stay.
#[cfg(target_env = "gnu")]
#[test]
fn addresses_of_a_file_that_was_unloaded_are_looked_up_again() {
    in_own_process(
        "addresses_of_a_file_that_was_unloaded_are_looked_up_again",
        || {
            // A library of the C library's that nothing uses.
            // SAFETY: the name ends in zero. No code of the library runs when it is loaded or unloaded.
            let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
            assert!(!library.is_null(), "the C library lacks one of its files");
            // SAFETY: the library is loaded, and the name ends in zero.
            let address = unsafe { libc::dlsym(library, c"__ctype_get_mb_cur_max".as_ptr()) }.addr();
            ferretto::initialize(Options::in_process());
            let session = session();
            let event = || trace_event_instant!("stacks", "At", callstack = [Frame::at(address)]);
            event();
            event();
            // SAFETY: nothing uses the library.
            unsafe { libc::dlclose(library) };
            // The SDK's promise is about a millisecond. Events meanwhile may name the file.
            let unloaded = Instant::now();
            while unloaded.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            event();
            session.stop_blocking().unwrap();
            let files = files(&session.read_to_end().unwrap());
            let is_there =
                |file: &Option<String>| file.as_ref().is_some_and(|path| path.contains("libBrokenLocale"));
            let named: Vec<bool> = files.iter().map(is_there).collect();
            assert_eq!(named, [true, true, false], "{files:?}");
        },
    );
}
