//! Modules of real processes: files that were deleted or replaced, memory without a file, and the cache of all processes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use ferretto_unwind::{
    End, MappingKind, Module, ModuleCache, PerfMap, PerfMapError, Process, Refreshed, StackCopy, Unusable,
    Unwinder, WorkBudget,
};

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
    let mut found = names(&process, &program, &frames);
    // It may still be printing that it is ready.
    found.retain(|name| name != "-");
    let expected = [
        "bottom",
        "many_registers",
        "aligned",
        "variable",
        "large",
        "interrupted",
        "thread",
    ];
    assert_eq!(found, expected);
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
        let stack = StackCopy {
            base,
            bytes,
            rest: &[],
        };
        let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
        Unwinder::new(most).unwind(&process, &registers, &stack, &work, &mut frames)
    };
    assert_eq!(end(3, &stack), End::TooManyFrames);
    assert!(matches!(end(100, &stack[..1000]), End::StackEnds(_)));
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

const AS_USER: &str = "FERRETTO_UNWIND_AS_USER";

/// Without privileges, the kernel does not give the mapped files themselves. Runs the next test as the user nobody.
#[test]
fn without_privileges_modules_are_found_by_their_paths() {
    let folder = tempfile::tempdir().expect("a folder");
    // In a place where that user may read it.
    let copy = folder.path().join("tests");
    fs::copy(std::env::current_exe().expect("a path"), &copy).expect("a copy");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a folder");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["--exact", "files::as_an_ordinary_user", "--nocapture"])
        .env(AS_USER, "1")
        .output();
    match output {
        Err(error) => println!("skipped: cannot run setpriv: {error}"),
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("setpriv: ") => {
            println!("skipped: cannot become another user");
        }
        Ok(output) => assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// The one before calls this as another user; called by itself it does nothing.
#[test]
fn as_an_ordinary_user() {
    if std::env::var_os(AS_USER).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cat");
    fs::copy("/bin/cat", &path).expect("a copy");
    let mut child = Command::new(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program that starts");
    // It has started when it answers.
    child
        .stdin
        .as_mut()
        .expect("a pipe")
        .write_all(b"x")
        .expect("a pipe");
    child
        .stdout
        .as_mut()
        .expect("a pipe")
        .read_exact(&mut [0])
        .expect("a pipe");
    let mut process = Process::open(child.id()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let index = index_of(&process, |name| name.ends_with(b"/cat"));
    let request = process.load_request(index).expect("a mapping");
    let cache = ModuleCache::new(64 << 20);
    let module = cache.load(&request).expect("a module");
    assert_eq!(
        module.build_id(),
        Module::read(&fs::File::open("/bin/cat").expect("a file"))
            .expect("a module")
            .build_id()
    );
    // Another file of the same name, while the first still exists and so keeps its inode.
    fs::rename(&path, folder.path().join("elsewhere")).expect("a file");
    fs::copy("/bin/true", &path).expect("a copy");
    assert_eq!(
        cache.load(&request).expect_err("another file"),
        Unusable::Replaced
    );
    fs::remove_file(&path).expect("a file");
    assert_eq!(cache.load(&request).expect_err("no file"), Unusable::Replaced);
    child.kill().expect("a process");
    child.wait().expect("a process");
}

/// A function in memory without a file, which calls another: `push rbp; mov rbp, rsp; call rdi; pop rbp; ret`, or `sub rsp, 8; call rdi; add rsp, 8; ret`.
const JIT: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
volatile int sink;
static void bottom(void) {
  printf("ready %ld\n", (long)syscall(SYS_gettid));
  fflush(stdout);
  for (;;) pause();
}
__attribute__((noinline)) static void outer(void (*code)(void (*)(void))) {
  code(bottom);
  sink = 1;
}
int main(void) {
#ifdef WITHOUT_FRAME_POINTER
  static const unsigned char bytes[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x08, 0xc3};
#else
  static const unsigned char bytes[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
#endif
  char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(page + 64, bytes, sizeof bytes);
  char name[64];
  snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
  FILE *map = fopen(name, "w");
  fprintf(map, "%lx %lx jitted function\n", (long)page + 64, (long)sizeof bytes);
  fclose(map);
  printf("bottom %p\nouter %p\nmain %p\n", (void *)bottom, (void *)outer, (void *)main);
  outer((void (*)(void (*)(void)))(page + 64));
  return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_trampoline_without_a_file_and_without_a_frame_pointer_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["-O2", "-fomit-frame-pointer", "-DWITHOUT_FRAME_POINTER"];
    let Some(path) = compile(folder.path(), "trampoline", JIT, &flags) else {
        return;
    };
    let program = Program::start(&path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    fs::remove_file(format!("/tmp/perf-{}.map", program.pid())).expect("the program's file");
    assert_eq!(end, End::Complete);
    let named: Vec<&str> = frames.iter().map(|frame| program.function(frame.pc)).collect();
    assert!(named.contains(&"outer"), "{named:?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn code_without_a_file_is_left_by_its_frame_pointer() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = compile(folder.path(), "jit", JIT, &["-O2", "-fomit-frame-pointer"]) else {
        return;
    };
    let program = Program::start(&path);
    let map = format!("/tmp/perf-{}.map", program.pid());
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    let mut names = PerfMap::default();
    assert!(names.renew(&process, 1 << 20).expect("a list"));
    assert!(!names.renew(&process, 1 << 20).expect("the same list"));
    // The last bytes of a longer file are read, and a new file of the same length as well.
    let line = fs::read_to_string(&map).expect("the program's file");
    fs::write(&map, format!("{:>1$}\n{line}", "", 100)).expect("a list");
    assert!(
        names
            .renew(&process, line.len() as u64 + 20)
            .expect("a longer list")
    );
    assert_eq!(names.len(), 1);
    fs::remove_file(&map).expect("the program's file");
    fs::write(&map, format!("{:>1$}\n{line}", "", 100)).expect("a list");
    assert!(names.renew(&process, 1 << 20).expect("another list"));
    // Earlier processes with the same id have left their lists.
    let list = fs::File::options().append(true).open(&map).expect("the new list");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    list.set_modified(long_ago).expect("another time");
    let earlier = PerfMap::default().renew(&process, 1 << 20);
    assert!(
        matches!(&earlier, Err(PerfMapError::OfAnEarlierProcess { .. })),
        "{earlier:?}"
    );
    let elsewhere = folder.path().join("list");
    fs::rename(&map, &elsewhere).expect("the program's file");
    std::os::unix::fs::symlink(&elsewhere, &map).expect("a link");
    let linked = PerfMap::default().renew(&process, 1 << 20);
    let is_refused = matches!(
        &linked,
        Err(PerfMapError::Unusable {
            reason: Unusable::NotRegular,
            ..
        })
    );
    assert!(is_refused, "{linked:?}");
    fs::remove_file(map).expect("the program's file");
    assert_eq!(end, End::Complete);
    let jitted = frames.iter().position(|frame| {
        let mapping = process
            .mapping(frame.mapping.expect("a mapping"))
            .expect("a mapping");
        mapping.kind() == MappingKind::Anonymous
    });
    let jitted = jitted.expect("a frame without a file");
    assert_eq!(program.function(frames[jitted - 1].pc), "bottom");
    assert_eq!(program.function(frames[jitted + 1].pc), "outer");
    assert_eq!(process.relative_pc(&frames[jitted]), 64 + 6 - 1);
    assert_eq!(names.lookup(frames[jitted].pc - 1), Some("jitted function"));
}
