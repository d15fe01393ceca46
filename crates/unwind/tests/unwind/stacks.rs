//! Each shape of frame is unwound, from the innermost function to the thread's first.

use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_unwind::{
    End, Frame, FrameKind, ModuleCache, Process, Registers, StackCopy, Unwinder, WorkBudget,
};

use crate::stopped::{Program, compile};

pub(crate) const SHAPES: &str = include_str!("shapes.c");

/// Unwinds as a profiler does, and loads missing modules.
pub(crate) fn unwind_sample(
    process: &mut Process,
    (registers, stack): &(Registers, Vec<u8>),
    cache: &ModuleCache,
) -> (Vec<Frame>, End) {
    let mut unwinder = Unwinder::new(128);
    let stack = StackCopy {
        base: registers.stack_pointer(),
        bytes: stack,
        rest: &[],
    };
    let mut frames = Vec::new();
    // Far more than any honest stack needs, however many of its modules are loaded on the way.
    let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
    loop {
        match unwinder.unwind(process, registers, &stack, &work, &mut frames) {
            End::ModuleNeeded(mapping) => process.load(mapping, cache),
            end => return (frames, end),
        }
    }
}

/// Takes a sample and unwinds it.
pub(crate) fn unwind(process: &mut Process, program: &Program, cache: &ModuleCache) -> (Vec<Frame>, End) {
    unwind_sample(process, &program.sample(), cache)
}

/// The program's functions in a stack; `-` for those of other modules.
pub(crate) fn names(process: &Process, program: &Program, frames: &[Frame]) -> Vec<String> {
    let name = |frame: &Frame| {
        let mapping = process
            .mapping(frame.mapping.expect("a mapping"))
            .expect("a mapping");
        if mapping
            .path()
            .is_some_and(|path| path == program.path().as_os_str().as_encoded_bytes())
        {
            program.function(frame.pc - 1).to_owned()
        } else {
            "-".to_owned()
        }
    };
    let mut names: Vec<String> = frames.iter().map(name).collect();
    names.dedup();
    names
}

fn stack_of_shapes(flags: &[&str]) -> Option<(Vec<String>, End)> {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::start(&compile(folder.path(), "shapes", SHAPES, flags)?);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    Some((names(&process, &program, &frames), end))
}

const WITHOUT_FRAME_POINTERS: &str = "-fomit-frame-pointer";
/// A release build whose thread sleeps.
pub(crate) const FLAGS: [&str; 4] = ["-O2", WITHOUT_FRAME_POINTERS, "-DWAIT=pause()", "-DSIGNAL=0"];
const FUNCTIONS: [&str; 5] = ["bottom", "many_registers", "aligned", "variable", "large"];

#[test]
fn every_shape_of_frame_is_unwound_without_frame_pointers() {
    let Some((names, end)) = stack_of_shapes(&FLAGS) else {
        return;
    };
    let expected: Vec<&str> = [&["-"][..], &FUNCTIONS, &["interrupted", "thread", "-"]].concat();
    assert_eq!(names, expected);
    assert_eq!(end, End::Complete);
}

#[test]
fn a_signal_handler_s_stack_leads_to_the_function_that_was_interrupted() {
    let flags = ["-O2", WITHOUT_FRAME_POINTERS, "-DWAIT=pause()", "-DSIGNAL=1"];
    let Some((names, end)) = stack_of_shapes(&flags) else {
        return;
    };
    // The signal was raised in the C library.
    let expected: Vec<&str> = [
        &["-"][..],
        &FUNCTIONS,
        &["on_signal", "-", "interrupted", "thread", "-"],
    ]
    .concat();
    assert_eq!(names, expected);
    assert_eq!(end, End::Complete);
}

#[test]
fn code_of_the_kernel_in_the_process_is_unwound() {
    let flags = [
        "-O2",
        WITHOUT_FRAME_POINTERS,
        "-DWAIT={struct timespec now;clock_gettime(CLOCK_MONOTONIC,&now);}",
        "-DSIGNAL=0",
    ];
    let Some((names, end)) = stack_of_shapes(&flags) else {
        return;
    };
    assert_eq!(
        names[names.len() - 7..],
        [
            "many_registers",
            "aligned",
            "variable",
            "large",
            "interrupted",
            "thread",
            "-"
        ]
    );
    assert_eq!(end, End::Complete);
}

#[test]
fn a_function_is_active_as_long_as_its_return_address_is_where_it_was() {
    let mut process = Process::open(std::process::id()).expect("this process");
    process.refresh(0, 0).expect("its mappings");
    // Stands for a stack: the last of the equal words is the return address.
    let stack: Vec<AtomicU64> = [7, 4711, 8, 4711, 9].map(AtomicU64::new).into();
    let copied: Vec<u8> = stack
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .collect();
    let copy = StackCopy {
        base: stack.as_ptr() as u64,
        bytes: &copied,
        rest: &[],
    };
    let sampled = process.frame_at(1, FrameKind::Sampled);
    let caller = process.frame_at(4711, FrameKind::Caller);
    let elsewhere = process.frame_at(4712, FrameKind::Caller);
    assert!(process.is_active(&[sampled, caller], &copy));
    stack[1].store(1, Ordering::Relaxed);
    assert!(process.is_active(&[sampled, caller], &copy));
    stack[3].store(1, Ordering::Relaxed);
    assert!(!process.is_active(&[sampled, caller], &copy));
    // The copy does not show these.
    assert!(process.is_active(&[sampled], &copy));
    assert!(process.is_active(&[sampled, elsewhere], &copy));
}
