//! Modules of real processes: files that were deleted or replaced, memory without a file, and the cache of all processes.

use std::fs;

use ferretto_unwind::{End, ModuleCache, Process, Refreshed, StackCopy, Unusable, Unwinder};

use crate::stacks::{FLAGS, SHAPES, names, unwind, unwind_sample};
use crate::stopped::{Program, compile};

fn index_of(process: &Process, what: impl Fn(&[u8]) -> bool) -> u32 {
    let place = process
        .maps()
        .mappings()
        .iter()
        .position(|mapping| what(&mapping.name));
    place.expect("a mapping") as u32
}

#[test]
fn a_deleted_binary_is_unwound_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "deleted", SHAPES, &FLAGS) else {
        return;
    };
    let program = Program::start(&path);
    fs::remove_file(&path).expect("a file");
    // Another file takes its name.
    fs::copy("/bin/true", &path).expect("a copy");
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    assert_eq!(end, End::Complete);
    assert!(names(&process, &program, &frames).contains(&"many_registers".to_owned()));
}

#[test]
fn a_module_is_read_once_for_all_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "shared", SHAPES, &FLAGS) else {
        return;
    };
    let cache = ModuleCache::new(64 << 20);
    let load = || {
        let program = Program::start(&path);
        let mut process = Process::open(program.pid()).expect("a process");
        process.refresh(0, 0).expect("mappings");
        let index = index_of(&process, |name| name.ends_with(b"/shared"));
        process.load(index, &cache);
        let module = process.module(index).expect("loaded").expect("a module").clone();
        assert_eq!(module.build_id().len(), 20);
        (module, cache.files_known())
    };
    let ((first, known), (second, known_then)) = (load(), load());
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    assert_eq!(known, known_then);
}

#[test]
fn tables_leave_the_cache_when_it_is_full_and_come_back_when_they_are_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "full", SHAPES, &FLAGS) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let sample = program.sample();
    let roomy = ModuleCache::new(64 << 20);
    let (expected, _) = unwind_sample(&mut process, &sample, &roomy);
    let limit = roomy.table_bytes() - 1;
    process.clear();
    process.refresh(1, 0).expect("mappings");
    let cache = ModuleCache::new(limit);
    let (frames, end) = unwind_sample(&mut process, &sample, &cache);
    assert_eq!(end, End::Complete);
    assert_eq!(frames, expected);
    assert!(cache.table_bytes() <= limit);
}

#[test]
fn a_module_larger_than_the_cache_is_named_as_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "large", SHAPES, &FLAGS) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (_, end) = unwind(&mut process, &program, &ModuleCache::new(1000));
    let End::UnusableModule(mapping) = end else {
        panic!("{end:?}")
    };
    let reason = process.module(mapping).expect("tried").expect_err("too large");
    assert!(
        matches!(
            reason,
            Unusable::TooLarge {
                what: "unwind tables",
                ..
            }
        ),
        "{reason}"
    );
}

#[test]
fn files_that_are_no_modules_are_told_apart() {
    let mut process = Process::open(std::process::id()).expect("this process");
    process.refresh(0, 0).expect("mappings");
    let cache = ModuleCache::new(64 << 20);
    let vdso = index_of(&process, |name| name == b"[vdso]");
    process.load(vdso, &cache);
    let module = process.module(vdso).expect("loaded").expect("a module");
    assert!(!module.build_id().is_empty());
}

#[test]
fn mappings_are_not_read_more_often_than_is_asked_for() {
    let mut process = Process::open(std::process::id()).expect("this process");
    assert_eq!(process.refresh(10, 100).expect("mappings"), Refreshed::Read);
    let generation = process.generation();
    assert_eq!(process.refresh(109, 100).expect("mappings"), Refreshed::TooSoon);
    assert_eq!(process.generation(), generation);
    assert_eq!(process.refresh(110, 100).expect("mappings"), Refreshed::Read);
    assert_ne!(process.generation(), generation);
}

#[test]
fn a_process_that_has_ended_is_not_mistaken_for_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "ended", SHAPES, &FLAGS) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let request =
        |what: fn(&[u8]) -> bool| process.load_request(index_of(&process, what)).expect("a mapping");
    let requests = [
        request(|name| name.ends_with(b"/ended")),
        request(|name| name == b"[vdso]"),
    ];
    drop(program);
    assert!(process.refresh(1, 0).is_err());
    for request in requests {
        let reason = ModuleCache::new(1 << 20).load(&request).expect_err("no process");
        assert_eq!(reason, Unusable::ProcessGone);
    }
}

#[test]
fn functions_without_tables_are_left_by_their_frame_pointers() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = [
        "-O2",
        "-fno-omit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-DWAIT={}",
        "-DSIGNAL=0",
    ];
    let Some(path) = compile(folder.path(), "bare", SHAPES, &flags) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    let found = names(&process, &program, &frames);
    assert_eq!(
        found[..7],
        [
            "bottom",
            "many_registers",
            "aligned",
            "variable",
            "large",
            "interrupted",
            "thread"
        ]
    );
    assert_eq!(end, End::Complete);
}

#[test]
fn a_stack_deeper_than_its_copy_or_than_was_asked_for_ends_with_that() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "deep", SHAPES, &FLAGS) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    let (registers, stack) = program.sample();
    let mut frames = Vec::new();
    let mut end = |most, bytes: &[u8]| {
        let base = registers.stack_pointer();
        let stack = StackCopy { base, bytes };
        Unwinder::new(most).unwind(&process, &registers, &stack, &mut frames)
    };
    assert_eq!(end(3, &stack), End::TooManyFrames);
    assert_eq!(end(100, &stack[..1000]), End::StackEnds);
    assert_eq!(end(100, &stack), End::Complete);
}

#[test]
fn tables_for_debuggers_serve_where_there_are_no_others_compressed_or_not() {
    let folder = tempfile::tempdir().expect("a folder");
    for compression in ["-gz=none", "-gz=zlib"] {
        let flags = [
            "-O2",
            "-g",
            compression,
            "-fomit-frame-pointer",
            "-fno-asynchronous-unwind-tables",
            "-fno-unwind-tables",
            "-DWAIT=pause()",
            "-DSIGNAL=0",
        ];
        let Some(path) = compile(folder.path(), "debugged", SHAPES, &flags) else {
            return;
        };
        let program = Program::start(&path);
        let mut process = Process::open(program.pid()).expect("a process");
        process.refresh(0, 0).expect("mappings");
        let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
        assert_eq!(end, End::Complete, "{compression}");
        let found = names(&process, &program, &frames);
        let expected = [
            "-",
            "bottom",
            "many_registers",
            "aligned",
            "variable",
            "large",
            "interrupted",
            "thread",
            "-",
        ];
        assert_eq!(found, expected, "{compression}");
    }
}
