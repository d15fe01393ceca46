//! Events where one would not expect them: in the allocator, in signal handlers, before `main` and after it, in threads that end.
//!
//! Each test is a program in a process of its own, whose allocator traces everything, and which is given up when it hangs.
#![cfg(all(feature = "in-process", target_os = "linux"))]
#![allow(clippy::unwrap_used, unsafe_code)]

mod programs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferretto::data_source::{DataSourceHandle, SetUp, Start};
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::track::{
    CounterTrack, CounterUnit, Track, erase_track_descriptor, set_track_descriptor, track_descriptor,
};
use ferretto::{
    Category, Options, SampledCategory, nested_events, trace_counter, trace_event, trace_event_begin,
    trace_event_end, trace_event_instant, without_waiting,
};
use programs::{Trace, finish, in_own_process, session};

/// An allocator that traces all its operations, written by someone who knows nothing of tracing.
struct Tracing;

#[global_allocator]
static ALLOCATOR: Tracing = Tracing;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static LIVE: CounterTrack = CounterTrack::new("Live").unit(CounterUnit::SizeBytes);

fn count(bytes: i64) {
    let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    trace_counter!("memory", &LIVE, live);
}

/// Whether the allocator also traces a category of which a part is recorded.
static SAMPLES: AtomicBool = AtomicBool::new(false);
static SAMPLED: SampledCategory = Category::new("sampled").sample(0.5);

// SAFETY: as the system's, with events around it that allocate as anybody does.
unsafe impl GlobalAlloc for Tracing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        trace_event!("memory", "alloc");
        if SAMPLES.load(Ordering::Relaxed) {
            trace_event_instant!(&SAMPLED, "sampled");
        }
        count(layout.size() as i64);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        trace_event_instant!("memory", "dealloc", "size" => layout.size());
        count(-(layout.size() as i64));
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        trace_event_begin!("memory", "realloc");
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's.
        let moved = unsafe { System.realloc(place, layout, size) };
        trace_event_end!("memory");
        moved
    }
}

/// Calls `run` on this many threads, and waits for them.
fn on_threads(threads: usize, run: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let run = &run;
            scope.spawn(move || run(thread));
        }
    });
}

fn allocate(times: usize) {
    for size in 0..times {
        std::hint::black_box(vec![0u8; size % 100 + 1]);
    }
}

static BEFORE_MAIN: AtomicBool = AtomicBool::new(false);

extern "C" fn before_main() {
    allocate(10);
    trace_event_instant!("life", "before main");
    BEFORE_MAIN.store(true, Ordering::Relaxed);
}

#[used]
// SAFETY: the section is one of pointers to such functions, which the C library calls before `main`.
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = before_main;

#[test]
fn an_allocator_may_trace_a_sampled_category() {
    in_own_process("an_allocator_may_trace_a_sampled_category", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        // The first event of the category registers it, which allocates.
        SAMPLES.store(true, Ordering::Relaxed);
        allocate(1000);
        SAMPLES.store(false, Ordering::Relaxed);
        // This is the first event of its call site, and it may neither allocate nor wait.
        without_waiting(|| trace_event_instant!(&SAMPLED, "another place"));
        let trace = finish(session);
        let recorded = trace.named("sampled") as u64;
        assert!(
            recorded > 100 && SAMPLED.left_out() > 100,
            "{recorded} {SAMPLED:?}"
        );
    });
}

#[test]
fn an_allocator_that_traces_is_recorded_and_nothing_hangs() {
    in_own_process("an_allocator_that_traces_is_recorded_and_nothing_hangs", || {
        assert!(BEFORE_MAIN.load(Ordering::Relaxed));
        assert_eq!(nested_events(), 0, "nobody has recorded anything");
        ferretto::initialize(Options::in_process());
        let session = session();
        const THREADS: usize = 2;
        const EACH: usize = 1000;
        on_threads(THREADS, |_| allocate(EACH));
        let trace = finish(session);
        // The threads themselves allocate, too. The allocations of their sequences are not recorded.
        assert!(trace.named("alloc") >= THREADS * (EACH - 1), "{trace:?}");
        assert!(trace.named("dealloc") >= THREADS * (EACH - 1), "{trace:?}");
        assert!(trace.counters >= 2 * THREADS * (EACH - 1), "{trace:?}");
        assert_eq!(trace.unmatched.0, 0, "{trace:?}");
        assert!(nested_events() > 0, "the SDK allocates too");
    });
}

#[test]
fn four_threads_allocate_while_sessions_come_and_go_and_the_process_forks() {
    in_own_process(
        "four_threads_allocate_while_sessions_come_and_go_and_the_process_forks",
        || {
            ferretto::initialize(Options::in_process());
            let until = Instant::now() + Duration::from_secs(1);
            let (recorded, children) = (AtomicUsize::new(0), AtomicUsize::new(0));
            on_threads(4 + 2, |thread| match thread {
                // Once at least, however long the start took.
                0 => loop {
                    let trace = finish(session());
                    recorded.fetch_add(trace.counters, Ordering::Relaxed);
                    if Instant::now() >= until {
                        break;
                    }
                },
                1 => loop {
                    assert_eq!(in_forked_child(|| allocate(10)), 0);
                    children.fetch_add(1, Ordering::Relaxed);
                    if Instant::now() >= until {
                        break;
                    }
                },
                _ => {
                    while Instant::now() < until {
                        allocate(100);
                        // Without this, sessions would have too much to read.
                        std::thread::sleep(Duration::from_millis(1));
                        std::thread::spawn(|| allocate(10)).join().unwrap();
                    }
                }
            });
            assert!(recorded.into_inner() > 0);
            assert!(children.into_inner() > 0);
        },
    );
}

/// Forks, does something in the child, which must take less than a minute, and returns its status.
fn in_forked_child(act: impl FnOnce()) -> i32 {
    // SAFETY: the child does only things that a child of a single thread may do. The SDK and this test's allocator promise the same, which is tested
    // here. It ends without returning.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: takes no pointers.
            unsafe { libc::alarm(60) };
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

#[test]
fn a_forked_child_traces_its_allocations_itself() {
    in_own_process("a_forked_child_traces_its_allocations_itself", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        allocate(10);
        let status = in_forked_child(|| {
            ferretto::initialize(Options::in_process());
            let session = self::session();
            trace_event_instant!("life", "child");
            allocate(100);
            let trace = finish(session);
            assert_eq!(trace.named("child"), 1);
            assert!(trace.named("alloc") >= 100);
        });
        assert_eq!(status, 0);
        trace_event_instant!("life", "parent");
        let trace = finish(session);
        assert_eq!((trace.named("parent"), trace.named("child")), (1, 0));
    });
}

/// Makes the kernel send SIGPROF to a running thread, about once in each period.
fn interrupt(handler: extern "C" fn(i32), every: Duration) {
    // SAFETY: an action of zeroes is none, with no flags; the handler is a function of this program and does only things that are safe there, which
    // is tested here.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    set_timer(every);
}

fn set_timer(every: Duration) {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: every.as_micros() as i64,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the pointer is to a live local.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Lets the profiling signal interrupt this thread, and threads that it starts, or blocks it.
fn mask_profile(how: i32) {
    // SAFETY: the pointers are to a live local.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGPROF);
        assert_eq!(
            libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut()),
            0
        );
    }
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn set_errno(errno: i32) {
    // SAFETY: the C library's, of this thread.
    unsafe { *libc::__errno_location() = errno };
}

fn tick(cause: &'static str) {
    trace_event!("signals", "tick");
    trace_event_instant!("signals", "tock", "cause" => cause);
}

extern "C" fn on_profile(_: i32) {
    let before = errno();
    set_errno(4711);
    without_waiting(|| tick("signal"));
    if errno() != 4711 {
        // SAFETY: ends the process, and the test fails.
        unsafe { libc::abort() };
    }
    set_errno(before);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn handlers_may_interrupt_the_sdk_and_allocator_anywhere() {
    in_own_process("handlers_may_interrupt_the_sdk_and_allocator_anywhere", || {
        interrupt(on_profile, Duration::from_micros(100));
        ferretto::initialize(Options::in_process());
        let until = Instant::now() + Duration::from_secs(1);
        let mut recorded = 0;
        // Once at least, however long the start took.
        loop {
            let session = session();
            on_threads(4, |thread| {
                tick("thread");
                for round in 0..100 {
                    allocate(20);
                    // Names, tracks and sites that are told in the middle of it.
                    trace_event_instant!("life", format!("round {round}"));
                    let track = ferretto::track::NamedTrack::new("interrupted").id(round);
                    trace_event_instant!("life", "elsewhere", track = track);
                    let category = ferretto::DynamicCategory("dynamic");
                    trace_event_instant!(category, "of dynamic category", "thread" => thread);
                    tick("thread");
                }
            });
            let trace = finish(session);
            assert_eq!(trace.unmatched.0, 0, "{trace:?}");
            recorded += trace.named("tick");
            if Instant::now() >= until {
                break;
            }
        }
        set_timer(Duration::ZERO);
        assert!(recorded > 0);
        assert!(HANDLED.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn an_event_in_a_handler_that_interrupts_ordinary_code_is_recorded() {
    in_own_process(
        "an_event_in_a_handler_that_interrupts_ordinary_code_is_recorded",
        || {
            // The SDK's thread is not to be interrupted: it does nothing but the SDK's work.
            mask_profile(libc::SIG_BLOCK);
            ferretto::initialize(Options::in_process());
            let session = session();
            // The thread has its sequence, and its readers know the sites.
            tick("thread");
            // The signals come so rarely that the clock has to be read anew.
            interrupt(on_profile, Duration::from_millis(10));
            mask_profile(libc::SIG_UNBLOCK);
            while HANDLED.load(Ordering::Relaxed) < 20 {
                std::hint::spin_loop();
            }
            mask_profile(libc::SIG_BLOCK);
            // The thread has recorded nothing for a while.
            std::thread::sleep(Duration::from_millis(400));
            on_profile(libc::SIGPROF);
            let trace = finish(session);
            let handled = HANDLED.load(Ordering::Relaxed);
            let lost = 1 + handled - trace.named("tick");
            // On a busy machine the SDK's thread may stand still while it holds a lock that a handler would have to wait for. Such events are
            // counted.
            assert!(
                lost <= nested_events() as usize && lost <= handled / 4,
                "{lost}: {trace:?}"
            );
            assert_eq!(trace.named("tock"), 1 + handled - lost, "{trace:?}");
            assert_eq!(trace.unmatched, (0, 0));
        },
    );
}

#[test]
fn slices_nest_even_if_a_handler_drops_events() {
    in_own_process("slices_nest_even_if_a_handler_drops_events", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        std::thread::Builder::new()
            .spawn(|| {
                tick("thread");
                let dropped = nested_events();
                for _ in 0..3 {
                    trace_event!("life", "around");
                    without_waiting(|| {
                        trace_event!("life", "a site that is new here");
                        // These events take more than a chunk.
                        (0..10_000).for_each(|_| tick("no signal"));
                    });
                }
                assert!(nested_events() > dropped);
            })
            .unwrap()
            .join()
            .unwrap();
        let trace = finish(session);
        assert_eq!(trace.named("around"), 3);
        assert!(trace.named("tick") > 1);
        assert_eq!(trace.unmatched, (0, 0), "{trace:?}");
    });
}

struct Late(&'static str);

impl Drop for Late {
    fn drop(&mut self) {
        trace_event_instant!("life", self.0);
        allocate(10);
    }
}

thread_local! {
    static FIRST: Late = const { Late("first thread-local") };
    static LAST: Late = const { Late("last thread-local") };
}

extern "C" fn key_destructor(_: *mut libc::c_void) {
    trace_event_instant!("life", "key");
    allocate(10);
}

unsafe extern "C-unwind" {
    /// Unwinds, which the `libc` crate does not say.
    fn pthread_exit(value: *mut libc::c_void) -> !;
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        run: extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
        argument: *mut libc::c_void,
    ) -> i32;
}

extern "C-unwind" fn ends_by_pthread_exit(_: *mut libc::c_void) -> *mut libc::c_void {
    FIRST.with(|_| ());
    trace_event_instant!("life", "pthread");
    // SAFETY: there is nothing on this stack that has to be dropped.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

#[test]
fn threads_trace_to_the_last() {
    in_own_process("threads_trace_to_the_last", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        // SAFETY: the pointers are to live locals, the functions of this program.
        unsafe {
            let mut key = 0;
            assert_eq!(libc::pthread_key_create(&raw mut key, Some(key_destructor)), 0);
            std::thread::spawn(move || {
                FIRST.with(|_| ());
                trace_event_instant!("life", "thread");
                LAST.with(|_| ());
                assert_eq!(libc::pthread_setspecific(key, (&raw const INIT).cast()), 0);
            })
            .join()
            .unwrap();
            let mut thread = std::mem::zeroed();
            let none = std::ptr::null_mut();
            assert_eq!(
                pthread_create(&raw mut thread, std::ptr::null(), ends_by_pthread_exit, none),
                0
            );
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        }
        let trace = finish(session);
        for (name, times) in [
            ("thread", 1),
            ("pthread", 1),
            ("first thread-local", 2),
            ("last thread-local", 1),
            ("key", 1),
        ] {
            assert_eq!(trace.named(name), times, "{name}: {trace:?}");
        }
        assert!(trace.named("alloc") >= 40, "{trace:?}");
    });
}

#[test]
fn panics_are_traced_in_the_hook_and_as_they_unwind() {
    in_own_process("panics_are_traced_in_the_hook_and_as_they_unwind", || {
        ferretto::initialize(Options::in_process());
        let session = session();
        std::panic::set_hook(Box::new(|_| {
            trace_event!("life", "hook");
            allocate(10);
        }));
        let result = std::panic::catch_unwind(|| {
            trace_event!("life", "unwound");
            let _late = Late("dropped as it unwinds");
            panic!("for this test");
        });
        assert!(result.is_err());
        drop(std::panic::take_hook());
        let trace = finish(session);
        for name in ["hook", "unwound", "dropped as it unwinds"] {
            assert_eq!(trace.named(name), 1, "{name}");
        }
        assert_eq!(trace.unmatched, (0, 0));
    });
}

extern "C" fn at_exit() {
    trace_event_instant!("life", "at exit");
    allocate(10);
}

extern "C" fn after_all() {
    if std::env::var_os(TRACE).is_some() {
        trace_event_instant!("life", "after all");
        allocate(10);
    }
}

#[used]
// SAFETY: as of `INIT`; these are called when the process exits.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = after_all;

/// Says where the program is to stream its trace to.
const TRACE: &str = "FERRETTO_TEST_TRACE";

#[test]
fn the_end_of_the_process_is_traced() {
    let path = std::env::temp_dir().join(format!("ferretto-anywhere-{}", std::process::id()));
    if let Some(path) = std::env::var_os(TRACE) {
        ferretto::initialize(Options::in_process());
        // Registered after the SDK's, and so called before.
        // SAFETY: a function of this program.
        assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
        let session = Session::in_process();
        let config = TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::track_event())
            .write_into_file(Duration::from_secs(3600));
        session
            .setup_with_file(&config, std::fs::File::create(path).unwrap())
            .unwrap();
        session.start_blocking().unwrap();
        trace_event_instant!("life", "main");
        std::process::exit(0);
    }
    programs::run("the_end_of_the_process_is_traced", &[(TRACE, path.as_os_str())]);
    let trace = Trace::new(&std::fs::read(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!((trace.named("main"), trace.named("at exit")), (1, 1), "{trace:?}");
}

struct Custom;

static CUSTOM: DataSourceHandle<Custom> = DataSourceHandle::new();

impl ferretto::data_source::DataSource for Custom {
    const NAME: &'static str = "ferretto.test.anywhere";
    type Incremental = ();
    type Thread = ();

    fn set_up(_: &SetUp<'_>) -> Self {
        allocate(10);
        Custom
    }

    fn start(&self, start: Start) {
        // On the SDK's thread, whose own work is not recorded.
        trace_event!("life", "start of a data source");
        allocate(10);
        drop(start);
    }
}

#[test]
fn data_sources_and_descriptors_of_the_applications_own_bear_an_allocator_that_traces() {
    in_own_process(
        "data_sources_and_descriptors_of_the_applications_own_bear_an_allocator_that_traces",
        || {
            // All that the threads write has room.
            ferretto::initialize(Options::in_process().shared_memory_size(16 << 20));
            CUSTOM.register();
            let session = session();
            let custom = Session::in_process();
            let config = TraceConfig::new()
                .buffer_kb(4096)
                .data_source(DataSource::new("ferretto.test.anywhere"));
            custom.setup(&config).unwrap();
            custom.start_blocking().unwrap();
            on_threads(4, |thread| {
                for packet in 0..2000 {
                    CUSTOM.trace(|context| {
                        context.packet(|packet| {
                            packet.for_testing(|event| {
                                allocate(1);
                                event.str("x".repeat(100));
                            });
                        });
                        if packet % 100 == 0 {
                            context.writer.flush();
                        }
                    });
                    if packet % 100 == 0 {
                        let track = Track::new(thread as u64 * 1000 + packet);
                        set_track_descriptor(&track, track_descriptor(&track));
                        trace_event_instant!("life", "described", track = track);
                        erase_track_descriptor(&track);
                    }
                }
            });
            custom.stop_blocking().unwrap();
            let trace = finish(session);
            assert_eq!(trace.named("start of a data source"), 1);
            assert_eq!(trace.named("described"), 4 * 20);
            assert!(trace.named("alloc") >= 10 + 4 * 2000, "{trace:?}");
        },
    );
}
