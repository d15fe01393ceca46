//! Losses in the kernel, with real events.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope, UnwindMode};
use ferretto_proto::messages::perf_events::{Counter, Timebase, timebase};
use ferretto_proto::messages::perf_sample::OptionalSampleSkippedReason;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, MessageField, PerfEventConfig, PerfSample, TracePacket};
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use super::*;
use crate::config::Counted;
use crate::cpu::OpenError;
use crate::event::RunningKernel;

/// Far longer than the test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A profiler of the CPU clock of the first CPU, with a sample every `period` ns and a ring of this size. If there is none, prints that the test is skipped.
fn profiler(period: u64, ring_pages: u32) -> Option<Profiler> {
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Period(period)),
            ..Default::default()
        }),
        ring_buffer_pages: Some(ring_pages),
        ..Default::default()
    };
    let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    match CpuEvents::open_each(&config, &[0], 1) {
        Ok(events) => Some(Profiler::new(&config, events, [])),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// A profiler that counts only this process on the first CPU. If there is none, prints that the test is skipped.
fn profiler_of_process(pid: u32, period: u64, ring_pages: u32) -> Option<Profiler> {
    let pid = pid.cast_signed();
    let scope = Scope {
        target_pid: vec![pid],
        ..Default::default()
    };
    profiler_of_scope(scope, &Counted::Processes([pid].into()), period, ring_pages)
}

/// A profiler that counts this process and all that it starts. If there is none, prints that the test is skipped.
fn profiler_of_family(pid: u32) -> Option<Profiler> {
    let pid = pid.cast_signed();
    let scope = Scope {
        family_of: Some(pid),
        ..Default::default()
    };
    profiler_of_scope(scope, &Counted::Family(pid), 1_000_000, 256)
}

fn profiler_of_scope(scope: Scope, counted: &Counted, period: u64, ring_pages: u32) -> Option<Profiler> {
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Frequency(1_000_000_000 / period)),
            ..Default::default()
        }),
        callstack_sampling: MessageField::some(CallstackSampling {
            scope: MessageField::some(scope),
            kernel_frames: Some(true),
            user_frames: Some(UnwindMode::UNWIND_SKIP),
            ..Default::default()
        }),
        ring_buffer_pages: Some(ring_pages),
        ..Default::default()
    };
    let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    assert_eq!(config.counted, *counted);
    let began = Instant::now();
    loop {
        match CpuEvents::open_each(&config, &[0], 1) {
            Ok(events) => return Some(Profiler::new(&config, events, [])),
            // If this process is counted, other tests may start threads in it all the time.
            Err(OpenError::NotAlone { .. }) if began.elapsed() < PATIENCE => std::thread::yield_now(),
            Err(error) => {
                println!("skipped: this kernel does not do it: {error}");
                return None;
            }
        }
    }
}

/// A shell that works on the first CPU until the end of the test.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        Busy::script("while :; do :; done")
    }

    /// Runs a script, which has what it starts work on the first CPU as well.
    fn script(script: &str) -> Busy {
        let busy = Busy(Command::new("sh").args(["-c", script]).spawn().unwrap());
        stay_on_first_cpu(Pid::from_child(&busy.0));
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles a C program; returns its path. If there is no compiler, prints that the test is skipped.
fn compile(folder: &Path, source: &str) -> Option<PathBuf> {
    let [program, file] = ["program", "program.c"].map(|name| folder.join(name));
    std::fs::write(&file, source).unwrap();
    let compiler = Command::new("cc")
        .args(["-pthread", "-o"])
        .args([&program, &file])
        .status();
    match compiler {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => {
            println!("skipped: cannot run cc: {error}");
            return None;
        }
    }
    Some(program)
}

fn stay_on_first_cpu(thread: Pid) {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(Some(thread), &first).unwrap();
}

/// The samples in packets, with those that were left out, in the order of time: some wait before they are written.
fn samples(packets: &[Vec<u8>]) -> Vec<PerfSample> {
    let sample = |packet: &Vec<u8>| {
        let packet = decode(packet);
        match packet.data {
            Some(Data::PerfSample(sample)) if sample.pid.is_some() => Some((packet.timestamp, *sample)),
            _ => None,
        }
    };
    let mut samples: Vec<_> = packets.iter().filter_map(sample).collect();
    samples.sort_by_key(|(timestamp, _)| *timestamp);
    samples.into_iter().map(|(_, sample)| sample).collect()
}

/// A profiler with the default config of an instance.
fn profiler_of(events: Vec<CpuEvents>, unavailable: impl IntoIterator<Item = u32>) -> Profiler {
    let config = PerfConfig::of(&PerfEventConfig::default(), None, &RunningKernel::default()).unwrap();
    Profiler::new(&config, events, unavailable)
}

fn decode(packet: &[u8]) -> TracePacket {
    TracePacket::decode_from_slice(packet).unwrap()
}

/// The events about CPUs in packets: the time, the CPU, and the event.
fn cpu_events(packets: &[Vec<u8>]) -> Vec<(Option<u64>, Option<u32>, CpuEvent)> {
    let event = |packet: &Vec<u8>| {
        let packet = decode(packet);
        match packet.data {
            Some(Data::PerfSample(sample)) => {
                Some((packet.timestamp, sample.cpu, sample.producer_event.cpu_event?))
            }
            _ => None,
        }
    };
    packets.iter().filter_map(event).collect()
}

/// The number of records that packets report as lost, in all.
fn reported(packets: &[Vec<u8>]) -> u64 {
    let lost = |packet: &Vec<u8>| match decode(packet).data {
        Some(Data::PerfSample(sample)) => sample.kernel_records_lost.unwrap_or(0),
        _ => 0,
    };
    packets.iter().map(lost).sum()
}

/// Waits until more than this many records are lost. `None` if this kernel does not count them.
fn await_losses(profiler: &Profiler, more_than: u64) -> Option<u64> {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "nothing more was lost");
        match profiler.cpus[0].lost_records() {
            Some(lost) if lost > more_than => return Some(lost),
            Some(_) => std::thread::yield_now(),
            None => {
                println!("skipped: this kernel does not count lost records (before Linux 6.0)");
                return None;
            }
        }
    }
}

#[test]
fn throttling_is_told_on_the_clock_of_samples() {
    let Profiler {
        mut samples,
        mut output,
        ..
    } = profiler_of(Vec::new(), []);
    let mut packets = Vec::new();
    for record in [
        Record::Throttled { timestamp: 5 },
        Record::Unthrottled { timestamp: 7 },
    ] {
        samples.on_record(1, &record, Instant::now(), &mut output, &mut packets);
    }
    let expected = [
        (Some(5), Some(1), CpuEvent::CPU_THROTTLED),
        (Some(7), Some(1), CpuEvent::CPU_UNTHROTTLED),
    ];
    assert_eq!(cpu_events(&packets), expected);
    assert_eq!(decode(&packets[2]).timestamp_clock_id, None);
}

#[test]
fn samples_that_the_processor_lost_are_lost_records() {
    let Profiler {
        mut samples,
        mut output,
        ..
    } = profiler_of(Vec::new(), []);
    let mut packets = Vec::new();
    samples.on_record(
        1,
        &Record::LostSamples(3),
        Instant::now(),
        &mut output,
        &mut packets,
    );
    assert_eq!(reported(&packets), 3);
}

#[test]
fn counters_that_cannot_be_polled_are_told() {
    let events = CpuEvents::unreadable(3).unwrap();
    let mut profiler = profiler_of(vec![events], []);
    let mut packets = Vec::new();
    profiler.poll(&mut packets);
    let told = cpu_events(&packets);
    assert!(
        matches!(told[..], [(Some(_), Some(3), CpuEvent::CPU_UNREADABLE)]),
        "{told:?}"
    );
}

#[test]
fn cpus_that_are_left_out_are_told_at_the_start() {
    let mut profiler = profiler_of(Vec::new(), [2]);
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let told = cpu_events(&packets);
    assert!(
        matches!(told[..], [(Some(_), Some(2), CpuEvent::CPU_UNAVAILABLE)]),
        "{told:?}"
    );
}

#[test]
fn losses_after_the_last_record_are_reported_and_none_twice() {
    let Some(mut profiler) = profiler(100_000, 1) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let Some(lost) = await_losses(&profiler, 10) else {
        return;
    };
    // This is a flush, and the kernel goes on sampling.
    profiler.catch_up(&mut packets);
    assert!(reported(&packets) >= lost, "{} of {lost}", reported(&packets));
    // The record about these losses comes now.
    if await_losses(&profiler, reported(&packets) + 10).is_none() {
        return;
    }
    profiler.disable();
    profiler.catch_up(&mut packets);
    profiler.catch_up(&mut packets);
    assert_eq!(Some(reported(&packets)), profiler.cpus[0].lost_records());
}

#[test]
fn other_processes_are_not_even_counted() {
    let (process, _other) = (Busy::start(), Busy::start());
    let Some(mut profiler) = profiler_of_process(process.0.id(), 1_000_000, 256) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let began = Instant::now();
    while samples(&packets).len() < 30 {
        assert!(began.elapsed() < PATIENCE, "no samples");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    let samples = samples(&packets);
    let pids: BTreeSet<_> = samples.iter().filter_map(|sample| sample.pid).collect();
    assert_eq!(pids, [process.0.id()].into());
    let counts: Vec<_> = samples
        .iter()
        .filter_map(|sample| sample.timebase_count)
        .collect();
    assert!(counts.is_sorted_by(|one, next| one < next), "{counts:?}");
    // The clock counts nanoseconds. It runs on while the whole machine stands still, so that single steps may be long.
    let total = counts.len() as u64 * 1_000_000;
    let mut steps: Vec<_> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    assert!(
        counts[counts.len() - 1] >= total && steps[steps.len() / 2] < 2_000_000,
        "{counts:?}"
    );
}

#[test]
fn threads_that_start_later_are_counted_and_processes_are_not() {
    let own = std::process::id();
    let Some(mut profiler) = profiler_of_process(own, 1_000_000, 256) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _child = Busy::start();
        stay_on_first_cpu(gettid());
        send.send(gettid().as_raw_pid().cast_unsigned()).unwrap();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {}
    });
    let later = Some(receive.recv().unwrap());
    let began = Instant::now();
    while samples(&packets)
        .iter()
        .filter(|sample| sample.tid == later)
        .count()
        < 30
    {
        assert!(began.elapsed() < PATIENCE, "no samples");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    drop(stop);
    thread.join().unwrap();
    assert!(samples(&packets).iter().all(|sample| sample.pid == Some(own)));
}

#[test]
fn processes_whose_threads_end_before_their_first_sample_are_told_and_go_on_with_other_events() {
    /// When it is told to, it starts threads that end at once.
    const PROGRAM: &str = r#"
        #include <pthread.h>
        #include <unistd.h>
        static void *run(void *nothing) { return nothing; }
        int main(void) {
            char told;
            pthread_t thread;
            if (read(0, &told, 1) != 1) return 1;
            while (!pthread_create(&thread, 0, run, 0)) pthread_join(thread, 0);
            return 1;
        }
    "#;
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), PROGRAM) else {
        return;
    };
    let mut process = Busy(Command::new(program).stdin(Stdio::piped()).spawn().unwrap());
    stay_on_first_cpu(Pid::from_child(&process.0));
    let Some(mut profiler) = profiler_of_process(process.0.id(), 1_000_000, 256) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    process.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let began = Instant::now();
    while !profiler.misses_threads() {
        let Samples { starts, kept, .. } = profiler.samples;
        assert!(began.elapsed() < PATIENCE, "{starts} starts, {kept} samples");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    drop(process);
    let config = PerfEventConfig {
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Period(1_000_000)),
            ..Default::default()
        }),
        ring_buffer_pages: Some(256),
        ..Default::default()
    };
    let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
    let _busy = Busy::start();
    let events = CpuEvents::open_each(&config, &[0], 1).unwrap();
    profiler.samples.stacks = None;
    let before = profiler.replace_events(&config, events, &mut packets).unwrap();
    assert_eq!(before.len(), 1);
    let known = samples(&packets).len();
    while samples(&packets).len() < known + 10 {
        assert!(began.elapsed() < PATIENCE, "no samples");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    let counts: Vec<_> = samples(&packets)
        .iter()
        .filter_map(|sample| sample.timebase_count)
        .collect();
    assert!(counts.is_sorted(), "{counts:?}");
}

#[test]
fn threads_without_a_rare_event_are_not_missed() {
    let misses = |event: Option<timebase::Event>, interval| {
        let config = PerfEventConfig {
            timebase: MessageField::some(Timebase {
                event,
                interval: Some(interval),
                ..Default::default()
            }),
            ..Default::default()
        };
        let config = PerfConfig::of(&config, None, &RunningKernel::default()).unwrap();
        let mut profiler = Profiler::new(&config, Vec::new(), []);
        profiler.samples.starts = FEWEST_STARTS;
        profiler.misses_threads()
    };
    let faults = timebase::Event::Counter(Counter::SW_PAGE_FAULTS);
    let every = timebase::Interval::Period(100_000);
    assert!(!misses(Some(faults.clone()), every.clone()));
    assert!(misses(Some(faults), timebase::Interval::Frequency(99)));
    assert!(misses(
        Some(timebase::Event::Counter(Counter::SW_TASK_CLOCK)),
        every.clone()
    ));
    assert!(misses(None, every));
}

#[test]
fn processes_that_a_family_starts_are_counted_and_others_are_not() {
    let other = Busy::start();
    // It goes on when the test has a profiler, and ends with it.
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let script = format!(
        "until [ -e {0} ]; do sleep 0.01; done; (i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done); exit 0",
        told.display()
    );
    let root = Busy::script(&script);
    let pid = root.0.id();
    let Some(mut profiler) = profiler_of_family(pid) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    std::fs::write(told, "").unwrap();
    let began = Instant::now();
    let of_child = |packets: &[Vec<u8>]| {
        let samples = samples(packets);
        let others = samples.iter().filter(|sample| sample.pid != Some(pid));
        others.filter_map(|sample| sample.pid).collect::<Vec<_>>()
    };
    while of_child(&packets).len() < 30 {
        assert!(began.elapsed() < PATIENCE, "no samples");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    let children = BTreeSet::from_iter(of_child(&packets));
    assert!(!children.contains(&other.0.id()), "{children:?}");
    let defaults = decode(&packets[0]).trace_packet_defaults;
    assert_eq!(defaults.perf_sample_defaults.family_of, Some(pid.cast_signed()));
}

#[test]
fn a_family_of_which_a_process_changes_its_rights_is_missed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root gives away a program");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("sleep");
    let copied = Command::new("install")
        .args(["-m", "4755", "-o", "65534", "/bin/sleep"])
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    let told = folder.path().join("told");
    let script = format!(
        "until [ -e {} ]; do sleep 0.01; done; exec {} 60",
        told.display(),
        program.display()
    );
    let root = Busy::script(&script);
    let Some(mut profiler) = profiler_of_family(root.0.id()) else {
        return;
    };
    let family = Counted::Family(root.0.id().cast_signed());
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    profiler.turn(&mut packets);
    // Those that sleep have ended.
    profiler.samples.starts = 0;
    assert_eq!(profiler.missing(&family, Look::OneOfMany), None);
    std::fs::write(told, "").unwrap();
    let began = Instant::now();
    loop {
        profiler.turn(&mut packets);
        profiler.samples.starts = 0;
        if let Some(why) = profiler.missing(&family, Look::OneOfMany) {
            assert!(why.contains("with other rights"), "{why}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "nothing is missing");
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_runs_a_program_in_its_process_is_not_missed() {
    /// When the file that the first argument names is there, a second thread runs the program that the others name.
    const PROGRAM: &str = r#"
        #include <pthread.h>
        #include <unistd.h>
        static void *run(void *words) { execv(*(char **)words, words); _exit(1); }
        int main(int argc, char **argv) {
            pthread_t thread;
            while (access(argv[1], F_OK)) usleep(1000);
            pthread_create(&thread, 0, run, argv + 2);
            for (;;) pause();
        }
    "#;
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), PROGRAM) else {
        return;
    };
    let told = folder.path().join("told");
    let words = [told.as_os_str(), "/bin/sleep".as_ref(), "60".as_ref()];
    let root = Busy(Command::new(program).args(words).spawn().unwrap());
    stay_on_first_cpu(Pid::from_child(&root.0));
    let pid = root.0.id();
    let Some(mut profiler) = profiler_of_family(pid) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    std::fs::write(&told, "").unwrap();
    let began = Instant::now();
    let cmdline = format!("/proc/{pid}/cmdline");
    while !std::fs::read(&cmdline).unwrap().starts_with(b"/bin/sleep") {
        assert!(began.elapsed() < PATIENCE, "the program does not run");
        profiler.turn(&mut packets);
        std::thread::yield_now();
    }
    profiler.catch_up(&mut packets);
    let family = Counted::Family(pid.cast_signed());
    assert_eq!(profiler.missing(&family, Look::Last), None);
}

#[test]
fn losses_of_a_process_are_counted_once() {
    let process = Busy::start();
    let Some(mut profiler) = profiler_of_process(process.0.id(), 100_000, 1) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    if await_losses(&profiler, 10).is_none() {
        return;
    }
    profiler.catch_up(&mut packets);
    if await_losses(&profiler, reported(&packets) + 10).is_none() {
        return;
    }
    profiler.disable();
    profiler.catch_up(&mut packets);
    assert_eq!(Some(reported(&packets)), profiler.cpus[0].lost_records());
}

#[test]
fn what_waits_when_the_profiler_gives_up_is_counted() {
    let stacks = PerfEventConfig {
        callstack_sampling: MessageField::some(CallstackSampling {
            kernel_frames: Some(true),
            ..Default::default()
        }),
        timebase: MessageField::some(Timebase {
            interval: Some(timebase::Interval::Period(1_000_000)),
            ..Default::default()
        }),
        ring_buffer_pages: Some(256),
        ..Default::default()
    };
    let config = PerfConfig::of(&stacks, None, &RunningKernel::default()).unwrap();
    let events = match CpuEvents::open_each(&config, &[0], 1) {
        Ok(events) => events,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut profiler = Profiler::new(&config, events, []);
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    // Samples wait in the queue, because there is no time for them, and more in the ring.
    let began = Instant::now();
    while profiler.samples.queue.samples() < 5 {
        assert!(began.elapsed() < PATIENCE, "no samples");
        profiler.read_rings(Instant::now().checked_sub(IN_PLACE).unwrap(), &mut packets);
    }
    let waiting = profiler.samples.queue.samples();
    packets.clear();
    profiler.give_up(&mut packets);
    let samples: Vec<_> = packets
        .iter()
        .filter_map(|packet| match decode(packet).data {
            Some(Data::PerfSample(sample)) => Some(sample),
            _ => None,
        })
        .collect();
    let skipped = samples
        .iter()
        .filter(|sample| {
            let reason = OptionalSampleSkippedReason::SampleSkippedReason(
                SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE,
            );
            sample.optional_sample_skipped_reason == Some(reason)
        })
        .count();
    assert!(skipped >= waiting, "{skipped} of {waiting}");
    let (last, others) = samples.split_last().unwrap();
    assert!(last.producer_event.is_set(), "the last word is that it stopped");
    assert!(others.iter().all(|sample| sample.callstack_iid.is_none()));
    assert!(profiler.samples.queue.is_empty());
    // Nothing more comes.
    packets.clear();
    profiler.turn(&mut packets);
    assert!(packets.is_empty());
}

#[test]
fn throttling_by_the_kernel_is_in_the_trace() {
    // The kernel's CPU clock fires at most this often.
    const MOST_A_SECOND: u64 = 100_000;
    // The kernel counts anew at each tick, so a clock that fires as often is throttled within one. Meanwhile the processor does little else, which other
    // tests need as well.
    const ENOUGH_TICKS: Duration = Duration::from_secs(1);
    let allowed = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    let allowed: u64 = allowed.unwrap_or_default().trim().parse().unwrap_or(u64::MAX);
    if allowed > MOST_A_SECOND {
        println!("skipped: this kernel allows {allowed} samples a second");
        return;
    }
    let Some(mut profiler) = profiler(1_000_000_000 / MOST_A_SECOND, 256) else {
        return;
    };
    let mut packets = Vec::new();
    profiler.enable(&mut packets).unwrap();
    let began = Instant::now();
    let mut lost_before = false;
    let events = loop {
        profiler.turn(&mut packets);
        if reported(&packets) > 0 {
            // These records may be among the lost ones.
            lost_before = true;
            packets.clear();
        }
        let mut events = cpu_events(&packets);
        if lost_before {
            let from = events.iter().position(|event| event.2 == CpuEvent::CPU_THROTTLED);
            events.drain(..from.unwrap_or(events.len()));
        }
        if events.len() >= 2 {
            break events;
        }
        if began.elapsed() > ENOUGH_TICKS {
            println!(
                "skipped: this kernel's clock does not fire as often as it may, so nothing was throttled"
            );
            return;
        }
        if events.is_empty() {
            packets.clear();
        }
    };
    let [
        (from, cpu, CpuEvent::CPU_THROTTLED),
        (to, _, CpuEvent::CPU_UNTHROTTLED),
        ..,
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert!(from < to && cpu == Some(0), "{events:?}");
}
