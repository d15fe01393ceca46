//! What the log says of processes that are counted alone, with real events.

use std::path::PathBuf;

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, Notify, Wake};
use ferretto_ipc::channel::channel;
use ferretto_proto::ids::BufferId;
use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope, UnwindMode};
use ferretto_proto::messages::perf_events::{Timebase, timebase};
use ferretto_proto::messages::{MessageField, PerfEventConfig};
use ferretto_smb::{PageLayout, PageSize};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::*;
use crate::event::RunningKernel;
use crate::test_log::Log;

/// More threads than it takes for their number to say anything.
const THREADS: u32 = 100;

/// Nobody reads the packets.
struct Nobody;

impl Notify for Nobody {
    fn wake(&self, _wake: Wake) {}
}

/// The thread of an instance that counts only this process, on the first CPU. It looks at nothing before it stops. If there is none, prints that the test is
/// skipped.
fn thread_of_own_process() -> Option<(PerfThread, Arc<Log>)> {
    let pid = rustix::process::getpid().as_raw_pid();
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Frequency(99)),
            ..Default::default()
        }),
        callstack_sampling: MessageField::some(CallstackSampling {
            scope: MessageField::some(Scope {
                target_pid: vec![pid],
                ..Default::default()
            }),
            kernel_frames: Some(true),
            user_frames: Some(UnwindMode::UNWIND_SKIP),
            ..Default::default()
        }),
        ring_buffer_read_period_ms: Some(u32::MAX),
        target_cpu: vec![0],
        ..Default::default()
    };
    let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    let events = match CpuEvents::open_each(&config, &[0], 1) {
        Ok(events) => events,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let log = Arc::new(Log::default());
    let size = PageSize::new(4096).unwrap();
    let arbiter = Arbiter::emulating(size, PageLayout::Div1, Nobody).unwrap();
    let writer = arbiter.create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop);
    let thread = PerfThread {
        program: log.clone(),
        instance: 1,
        profiler: Profiler::new(&config, events, []),
        hotplug: Hotplug::new(PathBuf::from("/sys")),
        config,
        writer: writer.unwrap(),
        has_told_missing: false,
    };
    Some((thread, log))
}

/// Starts threads on the first CPU, which end at once.
fn start_threads() {
    let mut first = CpuSet::new();
    first.set(0);
    for _ in 0..THREADS {
        let start = move || sched_setaffinity(None, &first).unwrap();
        std::thread::spawn(start).join().unwrap();
    }
}

#[test]
fn threads_that_had_no_sample_before_the_end_are_told_at_the_end() {
    let Some((thread, log)) = thread_of_own_process() else {
        return;
    };
    let (commands, inbox) = Inbox::new().unwrap();
    let waker = inbox.reactor.waker();
    let (started, has_started) = channel();
    let started = Acknowledge::new(move || drop(started));
    let running = std::thread::spawn(move || thread.run(inbox, started));
    assert_eq!(has_started.receive(), None::<()>);
    start_threads();
    let (stopped, has_stopped) = channel();
    let stop = Command {
        what: What::Stop,
        done: Acknowledge::new(move || drop(stopped)),
    };
    assert!(commands.send(stop).is_ok());
    waker.wake();
    assert_eq!(has_stopped.receive(), None::<()>);
    running.join().unwrap();
    let lines = log.lines();
    assert!(
        matches!(&lines[..], [line] if line.contains("before they have a sample; samples are missing: ")),
        "{lines:?}"
    );
}

#[test]
fn if_not_all_processes_can_be_counted_that_is_told_once_and_those_counted_stay() {
    let Some((mut thread, log)) = thread_of_own_process() else {
        return;
    };
    let reactor = Reactor::new().unwrap();
    thread.profiler.enable(&mut thread.writer).unwrap();
    start_threads();
    thread.catch_up();
    // No kernel has such events.
    thread.config.leader.attr_type = u32::MAX >> 1;
    let before = thread.config.clone();
    thread.look_at_threads(&reactor);
    let lines = log.lines();
    assert!(
        matches!(&lines[..], [line] if line.contains("samples are missing, because not all processes can be sampled")),
        "{lines:?}"
    );
    assert_eq!(thread.config, before);
    thread.look_at_threads(&reactor);
    thread.tell_missing();
    assert_eq!(log.lines().len(), 1);
}
