//! The kept state of processes, and the cost of a stack.

use ferretto_proto::messages::{InternedData, Message};
use ferretto_unwind::Unusable;

use super::*;
use crate::queue::OwnedMapped;
use crate::record::{Mapped, UserRegisters};

fn stacks(user: UserFrames) -> Stacks {
    Stacks::new(user)
}

/// Has the process begin a program at this time.
fn exec(stacks: &mut Stacks, pid: i32, timestamp: u64) {
    stacks.on_change(Item::Exec { pid, timestamp });
}

/// A sample from before the process's program began, so that nothing is read for it.
fn sample_late(stacks: &mut Stacks, pid: i32) {
    let callchain = [CONTEXT_USER.to_ne_bytes(), 0x1000u64.to_ne_bytes()];
    let sample = Sample {
        pid,
        timestamp: 0,
        callchain: callchain.as_slice().into(),
        ..Sample::default()
    };
    assert_eq!(
        stacks.find(&sample, &mut Interning::default()),
        Found::Skipped(SampleSkipReason::PROFILER_SKIP_READ_STAGE)
    );
}

#[test]
fn the_process_that_was_not_sampled_for_longest_is_forgotten_alone() {
    let mut stacks = stacks(UserFrames::KernelFramePointers);
    let most = i32::try_from(MOST_PROCESSES).expect("a pid");
    for pid in 1..=most {
        exec(&mut stacks, pid, 5);
    }
    sample_late(&mut stacks, 1);
    exec(&mut stacks, most + 1, 5);
    assert_eq!(stacks.processes.len(), MOST_PROCESSES);
    let is_known = |pid| stacks.processes.peek(&pid).is_some();
    assert!(is_known(1) && !is_known(2));
    assert!((3..=most + 1).all(is_known));
}

#[test]
fn a_program_that_starts_itself_anew_has_no_more_work_than_before_and_forks_share_it() {
    let mut stacks = stacks(UserFrames::Dwarf);
    let work = |stacks: &Stacks, pid| stacks.processes.peek(&pid).expect("it is known").work;
    exec(&mut stacks, 1, 5);
    assert_eq!(work(&stacks, 1), WorkBudget::FOR_SAMPLE);
    stacks.processes.peek_mut(&1).expect("it is known").work = 7;
    exec(&mut stacks, 1, 6);
    assert_eq!(work(&stacks, 1), 7);
    let fork = |pid| Item::Fork {
        pid,
        parent: 1,
        timestamp: 7,
    };
    stacks.on_change(fork(2));
    assert_eq!((work(&stacks, 1), work(&stacks, 2)), (3, WORK_PER_SAMPLE));
    stacks.processes.peek_mut(&1).expect("it is known").work = WorkBudget::FOR_SAMPLE;
    stacks.on_change(fork(3));
    let half = WorkBudget::FOR_SAMPLE / 2;
    assert_eq!((work(&stacks, 1), work(&stacks, 3)), (half, half));
}

/// A process with code at 0x40_0000 whose functions all have frame pointers.
fn with_frame_pointers(work: u32) -> Stacks {
    let mut stacks = stacks(UserFrames::FramePointers);
    let maps = Maps::read(&b"400000-800000 r-xp 0 8:1 7 /module\n"[..]).expect("text");
    let mut known = Known::new(Memory::Read(Process::with_maps(maps)), 0);
    // There is no file to load.
    if let Memory::Read(process) = &mut known.memory {
        process.provide(0, Err(Unusable::Untrusted("fuse".into())));
        known.generation = process.generation();
    }
    known.work = work;
    stacks.processes.get_or_insert_with(1, || known);
    stacks
}

/// The error, the names of the frames, and the remaining work, after a sample with a stack of ten functions.
#[cfg(target_arch = "x86_64")]
fn sample_ten_deep(stacks: &mut Stacks) -> (Option<StackUnwindError>, Vec<String>, u32) {
    const BASE: u64 = 0x7ffc_0000_0000;
    let frames = (1..10u64).flat_map(|number| [BASE + 16 * number, 0x40_1000 + number]);
    let stack: Vec<u8> = frames.chain([0, 0]).flat_map(u64::to_ne_bytes).collect();
    // AX, BX, CX, DX, SI, DI, BP, SP, IP and more.
    let mut registers = [[0; 8]; 20];
    registers[6] = BASE.to_ne_bytes();
    registers[7] = BASE.to_ne_bytes();
    registers[8] = 0x40_1000u64.to_ne_bytes();
    let sample = Sample {
        pid: 1,
        registers: Some(UserRegisters {
            is_64_bit: true,
            values: registers.as_slice().into(),
        }),
        stack: &stack,
        ..Sample::default()
    };
    let mut interning = Interning::default();
    let Found::Stack(unwound) = stacks.find(&sample, &mut interning) else {
        panic!("there is a stack");
    };
    let pending = interning.take_pending();
    let interned = InternedData::decode_from_slice(pending.as_slice()).expect("a message");
    let names = interned.function_names.iter();
    let names =
        names.map(|name| String::from_utf8_lossy(name.str.as_deref().unwrap_or_default()).into_owned());
    let work = stacks.processes.peek(&1).expect("it is known").work;
    (unwound.error, names.collect(), work)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_process_saves_up_work_and_its_stacks_end_without_it() {
    let mut roomy = with_frame_pointers(WorkBudget::FOR_SAMPLE);
    assert_eq!(
        sample_ten_deep(&mut roomy),
        (None, Vec::new(), WorkBudget::FOR_SAMPLE)
    );
    let mut poor = with_frame_pointers(4);
    let error = StackUnwindError::UNWIND_ERROR_UNWIND_INFO;
    let name = "ERROR UNWIND_INFO: the unwind tables take more work than one sample may";
    assert_eq!(
        sample_ten_deep(&mut poor),
        (Some(error), vec![name.to_owned()], WORK_PER_SAMPLE)
    );
    // Ten frames cost one unit each.
    assert_eq!(
        sample_ten_deep(&mut poor),
        (None, Vec::new(), 2 * WORK_PER_SAMPLE - 10)
    );
}

#[test]
fn a_file_that_may_not_be_opened_is_named_in_the_frame() {
    let mut stacks = with_frame_pointers(WorkBudget::FOR_SAMPLE);
    let Memory::Read(process) = &mut stacks.processes.get(&1).expect("it is known").memory else {
        panic!("its mappings are known");
    };
    assert_eq!(
        explanation(process, End::UnusableModule(0)).as_deref(),
        Some("it is on a file system of type fuse, which may not answer")
    );
    process.provide(0, Err(Unusable::NotElf));
    assert_eq!(explanation(process, End::UnusableModule(0)), None);
}

#[test]
fn a_mapping_is_known_as_soon_as_the_kernel_has_told_of_it() {
    let mut stacks = stacks(UserFrames::KernelFramePointers);
    let maps = Maps::read(&b"400000-800000 r-xp 0 8:1 7 /module\n"[..]).expect("text");
    let mut process = Process::with_maps(maps);
    // So it is always too soon to read them again.
    process.refresh(u64::MAX, 0).expect("there is nothing to read");
    let known = Known::new(Memory::Read(process), 0);
    stacks.processes.get_or_insert_with(1, || known);
    stacks.on_change(Item::Mapped(OwnedMapped::from(&Mapped {
        pid: 1,
        start: 0x90_0000,
        length: 0x1000,
        offset: 0,
        device: (8, 1),
        inode: 8,
        protection: 5,
        path: b"/young",
    })));
    let callchain = [CONTEXT_USER, 0x90_0010, 0x40_0010].map(u64::to_ne_bytes);
    let sample = Sample {
        pid: 1,
        callchain: callchain.as_slice().into(),
        ..Sample::default()
    };
    let mut interning = Interning::default();
    let Found::Stack(unwound) = stacks.find(&sample, &mut interning) else {
        panic!("there is a stack");
    };
    assert_eq!(unwound.error, None);
    let pending = interning.take_pending();
    let interned = InternedData::decode_from_slice(pending.as_slice()).expect("a message");
    let paths: Vec<_> = interned
        .mapping_paths
        .iter()
        .filter_map(|path| path.str.as_deref())
        .collect();
    assert!(paths.contains(&&b"young"[..]), "{paths:?}");
}

#[test]
fn samples_are_looked_up_in_the_process_that_was_met_and_in_no_other_with_its_id() {
    let own = std::process::id().cast_signed();
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("cat runs");
    let met = Met::open(child.id().cast_signed()).expect("it is there");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    // As if its id were this process's by now.
    let mut stacks = stacks(UserFrames::KernelFramePointers);
    stacks.meet(own, met);
    let this_function = (sample_late as *const () as u64).to_ne_bytes();
    let callchain = [CONTEXT_USER.to_ne_bytes(), this_function];
    let sample = Sample {
        pid: own,
        timestamp: 1,
        callchain: callchain.as_slice().into(),
        ..Sample::default()
    };
    let find = |stacks: &mut Stacks| stacks.find(&sample, &mut Interning::default());
    let gone = Found::Skipped(SampleSkipReason::PROFILER_SKIP_READ_STAGE);
    assert_eq!(find(&mut stacks), gone);
    stacks.meet(own, Met::open(own).expect("it is there"));
    assert_ne!(find(&mut stacks), gone);
}

/// The first address of the code in the file with this name.
fn code_of(pid: u32, file: &str) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it is there");
    let line = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with(file))
        .expect("it has mapped the file");
    let (start, _) = line.split_once('-').expect("a range");
    u64::from_str_radix(start, 16).expect("an address")
}

/// The file name of the only mapping in a stack with this one address.
fn file_at(stacks: &mut Stacks, pid: i32, address: u64) -> String {
    let callchain = [CONTEXT_USER.to_ne_bytes(), address.to_ne_bytes()];
    let sample = Sample {
        pid,
        timestamp: 1,
        callchain: callchain.as_slice().into(),
        ..Sample::default()
    };
    let mut interning = Interning::default();
    let found = stacks.find(&sample, &mut interning);
    assert!(
        matches!(found, Found::Stack(Unwound { error: None, .. })),
        "{found:?}"
    );
    let pending = interning.take_pending();
    let interned = InternedData::decode_from_slice(pending.as_slice()).expect("a message");
    let name = interned.mapping_paths.last().and_then(|path| path.str.as_deref());
    String::from_utf8_lossy(name.expect("a mapping")).into_owned()
}

#[test]
fn stacks_of_a_process_that_was_met_are_found_after_its_end_and_after_it_runs_another_program() {
    use std::io::{Read, Write};

    let mut child = std::process::Command::new("sh")
        .args(["-c", "echo; read line; exec cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh runs");
    let pid = child.id().cast_signed();
    let mut output = child.stdout.take().expect("a pipe");
    let mut byte = [0];
    // The kernel may still be loading the program before it has written.
    output.read_exact(&mut byte).expect("sh writes");
    let shell = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a link");
    let shell = shell
        .file_name()
        .expect("a file")
        .to_str()
        .expect("text")
        .to_owned();
    let address = code_of(child.id(), &format!("/{shell}"));
    let met = || Met::open(pid).expect("it is there");
    let (before_exec, before_end) = (met(), met());

    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"line\nx").expect("cat reads");
    output.read_exact(&mut byte).expect("cat writes");
    let mut stacks = stacks(UserFrames::KernelFramePointers);
    stacks.meet(pid, before_exec);
    assert_eq!(file_at(&mut stacks, pid, address), shell);

    drop(input);
    child.wait().expect("it ends");
    stacks.meet(pid, before_end);
    assert_eq!(file_at(&mut stacks, pid, address), shell);
}
