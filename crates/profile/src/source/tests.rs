//! What is opened, with real events.

use std::process::Command;

use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope, UnwindMode};
use ferretto_proto::messages::{MessageField, PerfEventConfig};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::*;
use crate::test_log::Log;

#[test]
fn if_a_process_has_ended_when_its_threads_are_listed_all_are_counted() {
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&ended);
    // It stays there, without a thread that could be counted, until this process waits for it in earnest.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), options).unwrap();
    let config = PerfEventConfig {
        callstack_sampling: MessageField::some(CallstackSampling {
            scope: MessageField::some(Scope {
                target_pid: vec![pid.as_raw_pid()],
                ..Default::default()
            }),
            kernel_frames: Some(true),
            user_frames: Some(UnwindMode::UNWIND_SKIP),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    assert_eq!(config.counted.named(), Some([pid.as_raw_pid()].into()));
    let log = Arc::new(Log::default());
    let opened = LinuxPerf::new(log.clone()).open(&mut config);
    ended.wait().unwrap();
    if let Err(error) = opened {
        return println!("skipped: {error}");
    }
    assert_eq!(config.counted, Counted::Everybody);
    let lines = log.lines();
    assert!(
        matches!(&lines[..], [line] if line.contains("they have ended; all processes are sampled")),
        "{lines:?}"
    );
}
