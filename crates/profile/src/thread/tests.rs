//! What the log says of processes that are counted alone, with real events.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, Notify, Wake};
use ferretto_ipc::channel::channel;
use ferretto_proto::ids::BufferId;
use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope, UnwindMode};
use ferretto_proto::messages::perf_events::{Timebase, timebase};
use ferretto_proto::messages::{MessageField, PerfEventConfig};
use ferretto_smb::{PageLayout, PageSize};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::*;
use crate::event::RunningKernel;
use crate::test_log::Log;

/// A shell that waits for a line, and then starts more processes than it takes for their number to say anything. They end at once. All stay on the first CPU.
struct Shell(Child);

impl Shell {
    fn start() -> Shell {
        let script = "read -r line; i=0; while [ $i -lt 100 ]; do (:); i=$((i+1)); done";
        let shell = Program::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = CpuSet::new();
        first.set(0);
        sched_setaffinity(Some(Pid::from_child(&shell)), &first).unwrap();
        Shell(shell)
    }

    /// Returns when all processes have ended.
    fn start_processes(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nobody reads the packets.
struct Nobody;

impl Notify for Nobody {
    fn wake(&self, _wake: Wake) {}
}

/// The thread of an instance that counts only the shell and what it starts, on the first CPU. It looks at nothing before it stops. If there is none, prints
/// that the test is skipped.
fn thread_of(shell: &Shell) -> Option<(PerfThread, Arc<Log>)> {
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Frequency(99)),
            ..Default::default()
        }),
        callstack_sampling: MessageField::some(CallstackSampling {
            scope: MessageField::some(Scope {
                family_of: Some(shell.0.id().cast_signed()),
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

#[test]
fn processes_that_had_no_sample_before_the_end_are_told_at_the_end() {
    let mut shell = Shell::start();
    let Some((thread, log)) = thread_of(&shell) else {
        return;
    };
    let (commands, inbox) = Inbox::new().unwrap();
    let waker = inbox.reactor.waker();
    let (started, has_started) = channel();
    let started = Acknowledge::new(move || drop(started));
    let running = std::thread::spawn(move || thread.run(inbox, started));
    assert_eq!(has_started.receive(), None::<()>);
    shell.start_processes();
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
    let mut shell = Shell::start();
    let Some((mut thread, log)) = thread_of(&shell) else {
        return;
    };
    let reactor = Reactor::new().unwrap();
    thread.profiler.enable(&mut thread.writer).unwrap();
    shell.start_processes();
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
