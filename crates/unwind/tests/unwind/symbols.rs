//! Names and lines of a program, with debug information in all its places.

use std::path::{Path, PathBuf};
use std::process::Command;

use ferretto_unwind::symbols::{DebugFiles, Symbols, SymbolsError};
use ferretto_unwind::{End, Frame, ModuleCache, Process};

use crate::stacks::unwind;
use crate::stopped::{Program, compile};

const SOURCE: &str = r#"
#include <stdio.h>
#include <unistd.h>
volatile int sink;
static inline __attribute__((always_inline)) void inner(void) {
  sink++; /* inner */
}
static inline __attribute__((always_inline)) void middle(void) {
  inner(); /* middle */
}
__attribute__((noinline)) void outer(void) {
  middle(); /* outer */
}
int main(void) { outer(); return 0; }
"#;

fn line_of(marker: &str) -> u32 {
    let place = SOURCE
        .lines()
        .position(|line| line.contains(&format!("/* {marker} */")));
    place.expect("a line") as u32 + 1
}

/// The program and the address of `outer`.
fn program(folder: &Path, flags: &[&str]) -> Option<(PathBuf, u64)> {
    let path = compile(folder, "program", SOURCE, flags)?;
    let outer = address_of(&path, "outer");
    Some((path, outer))
}

fn address_of(program: &Path, function: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {function}")))
        .expect("a symbol");
    u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("a number")
}

/// All places in the source from which the instructions of `outer` come.
fn places(symbols: &Symbols, start: u64) -> Vec<Vec<(String, u32)>> {
    let mut places: Vec<Vec<(String, u32)>> = (start..start + 24)
        .map(|address| {
            let stack = symbols.lookup(address).into_iter();
            stack
                .map(|place| (place.function.expect("a name"), place.line.unwrap_or(0)))
                .collect()
        })
        .collect();
    places.dedup();
    places
}

fn assert_inlined(symbols: &Symbols, start: u64) {
    let expected = [("inner", "inner"), ("middle", "middle"), ("outer", "outer")];
    let expected: Vec<(String, u32)> = expected
        .map(|(name, line)| (name.to_owned(), line_of(line)))
        .to_vec();
    let found = places(symbols, start);
    assert!(found.contains(&expected), "{found:?}");
}

#[test]
fn inlined_functions_have_their_callers_and_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    for compression in ["-gz=none", "-gz=zlib"] {
        let Some((path, outer)) = program(folder.path(), &["-O2", "-g", compression]) else {
            return;
        };
        let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
        assert!(symbols.has_lines(), "{compression}");
        assert_inlined(&symbols, outer);
    }
}

#[test]
fn without_debug_information_functions_have_names_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((path, outer)) = program(folder.path(), &["-O2"]) else {
        return;
    };
    let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
    assert!(!symbols.has_lines());
    let stack = symbols.lookup(outer + 1);
    assert_eq!(stack.len(), 1);
    assert_eq!(stack[0].function.as_deref(), Some("outer"));
}

#[test]
fn a_function_without_a_size_ends_with_its_section() {
    let folder = tempfile::tempdir().expect("a folder");
    // `_init` is alone in the section before that of the stubs by which other libraries are called.
    let Some((path, _)) = program(folder.path(), &["-O2"]) else {
        return;
    };
    let output = Command::new("objdump")
        .args(["-hw"])
        .arg(&path)
        .output()
        .expect("objdump");
    let text = String::from_utf8(output.stdout).expect("text");
    let section = |name: &str| {
        let words: Vec<&str> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.get(1) == Some(&name))
            .expect("a section");
        let number = |digits| u64::from_str_radix(digits, 16).expect("a number");
        number(words[3])..number(words[3]) + number(words[2])
    };
    let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
    let init = symbols.lookup(section(".init").start);
    assert_eq!(init[0].function.as_deref(), Some("_init"));
    assert_eq!(symbols.lookup(section(".plt").start), []);
}

#[test]
fn stubs_have_the_names_of_the_functions_that_they_call() {
    const SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>
        int main(int count, char **words) { puts(words[0]); void (*volatile end)(int) = exit; end(atoi(words[0])); exit(0); }";
    let folder = tempfile::tempdir().expect("a folder");
    let linked: [&[&str]; 4] = [
        &["-O1", "-Wl,-z,lazy"],
        &["-O1", "-Wl,-z,now", "-s"],
        &["-O1", "-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-O1", "-static"],
    ];
    for flags in linked {
        let flags: Vec<&str> = match cfg!(target_arch = "x86_64") {
            true => flags.to_vec(),
            false => flags
                .iter()
                .copied()
                .filter(|flag| !flag.contains("cf-") && !flag.contains("ibt"))
                .collect(),
        };
        let Some(path) = compile(folder.path(), "stubs", SOURCE, &flags) else {
            return;
        };
        // The disassembler names the stub at each call, and in front of its code.
        let output = Command::new("objdump")
            .arg("-d")
            .arg(&path)
            .output()
            .expect("objdump");
        let text = String::from_utf8(output.stdout).expect("text");
        let labels = text
            .lines()
            .filter_map(|line| line.strip_suffix("@plt>:")?.split_once(" <"));
        let labels: Vec<(u64, &str)> = labels
            .map(|(address, name)| (u64::from_str_radix(address, 16).expect("an address"), name))
            .filter(|(_, name)| !name.starts_with("*ABS*"))
            .collect();
        let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
        for (address, name) in &labels {
            let found = symbols.lookup(address + 2);
            let found = found.first().and_then(|place| place.function.as_deref());
            assert_eq!(found, Some(format!("{name}@plt").as_str()), "{flags:?}");
        }
        let is_static = flags.contains(&"-static");
        assert!(
            is_static || labels.iter().any(|(_, name)| *name == "puts"),
            "{flags:?}: {text}"
        );
    }
}

/// An alias, as the C library has for `read`.
const ALIASES: &str = r#"
volatile int sink;
__attribute__((noinline)) void __GI___libc_work(void) { sink++; }
extern void __work(void) __attribute__((alias("__GI___libc_work")));
extern void work(void) __attribute__((weak, alias("__GI___libc_work")));
int main(void) { work(); return 0; }
"#;

#[test]
fn of_several_names_a_function_has_the_one_that_people_write() {
    let folder = tempfile::tempdir().expect("a folder");
    for flags in [&["-O1"][..], &["-O1", "-g"]] {
        let Some(path) = compile(folder.path(), "aliases", ALIASES, flags) else {
            return;
        };
        let work = address_of(&path, "work");
        let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
        let stack = symbols.lookup(work + 1);
        assert_eq!(stack.len(), 1, "{flags:?}");
        assert_eq!(stack[0].function.as_deref(), Some("work"), "{flags:?}");
    }
}

#[test]
fn with_lines_only_a_function_of_rust_has_the_path_of_its_symbol() {
    const SOURCE: &str = "mod inner { #[inline(never)] pub fn work(x: u64) -> u64 { std::hint::black_box(x) } } fn main() { inner::work(1); }";
    let folder = tempfile::tempdir().expect("a folder");
    let (source, path) = (folder.path().join("paths.rs"), folder.path().join("paths"));
    std::fs::write(&source, SOURCE).expect("a file");
    let mut rustc = Command::new("rustc");
    rustc.args(["-O", "-C", "debuginfo=line-tables-only", "-o"]);
    assert!(rustc.args([&path, &source]).status().expect("rustc").success());
    let output = Command::new("nm").arg("-C").arg(&path).output().expect("nm");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("inner::work"));
    let digits = line.and_then(|line| line.split(' ').next()).expect("a symbol");
    let address = u64::from_str_radix(digits, 16).expect("an address");
    let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
    assert!(symbols.has_lines());
    let stack = symbols.lookup(address);
    let outermost = stack.last().and_then(|place| place.function.as_deref());
    assert_eq!(outermost, Some("paths::inner::work"), "{stack:?}");
}

fn objcopy(arguments: &[&str]) {
    assert!(
        Command::new("objcopy")
            .args(arguments)
            .status()
            .expect("objcopy")
            .success()
    );
}

fn build_id(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).expect("a file");
    ferretto_unwind::Module::read(&file)
        .expect("a module")
        .build_id()
        .to_vec()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

#[test]
fn debug_information_is_found_by_link_by_build_id_and_in_debuginfod_s_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((path, outer)) = program(folder.path(), &["-O2", "-g"]) else {
        return;
    };
    let id = build_id(&path);
    let debug = folder.path().join("program.debug");
    objcopy(&["--only-keep-debug", text(&path), text(&debug)]);
    objcopy(&["--strip-all", text(&path)]);
    let nowhere = DebugFiles::default();
    assert!(
        nowhere
            .open(&id, Some(&path))
            .expect("a binary")
            .lookup(outer)
            .is_empty()
    );

    objcopy(&[&format!("--add-gnu-debuglink={}", text(&debug)), text(&path)]);
    assert_inlined(&nowhere.open(&id, Some(&path)).expect("by link"), outer);

    let hexadecimal: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let by_id = folder.path().join(".build-id").join(&hexadecimal[..2]);
    std::fs::create_dir_all(&by_id).expect("a folder");
    std::fs::copy(&debug, by_id.join(format!("{}.debug", &hexadecimal[2..]))).expect("a copy");
    let folders = DebugFiles {
        debug_folders: vec![folder.path().to_owned()],
        ..DebugFiles::default()
    };
    assert_inlined(&folders.open(&id, None).expect("by build id"), outer);

    let cache = folder.path().join("cache");
    std::fs::create_dir_all(cache.join(&hexadecimal)).expect("a folder");
    std::fs::rename(&debug, cache.join(&hexadecimal).join("debuginfo")).expect("a file");
    let cached = DebugFiles {
        debuginfod_cache: Some(cache),
        ..DebugFiles::default()
    };
    assert_inlined(&cached.open(&id, None).expect("in the cache"), outer);
}

#[test]
fn a_binary_of_another_build_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((path, _)) = program(folder.path(), &["-O2"]) else {
        return;
    };
    match DebugFiles::default().open(&[1, 2, 3, 4], Some(&path)) {
        Err(SymbolsError::Unusable { path: which, .. }) => assert_eq!(which, path),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("another build was used"),
    }
    match DebugFiles::default().open(&[1, 2, 3, 4], None) {
        Err(SymbolsError::NotFound(_)) => {}
        _ => panic!("there is nothing to be found"),
    }
}

const AS_PROGRAM: &str = "FERRETTO_UNWIND_AS_PROGRAM";

/// The test below runs this as a program; called by itself it does nothing.
#[test]
fn sleeps_below_functions_of_rust() {
    if std::env::var_os(AS_PROGRAM).is_some() {
        outer_of_rust(5);
    }
}

#[inline(never)]
fn outer_of_rust(value: u64) {
    [value].iter().for_each(|value| generic_of_rust(*value as u32));
    std::hint::black_box(value);
}

#[inline(never)]
fn generic_of_rust<T: std::fmt::Display>(value: T) {
    inner_of_rust(&value.to_string());
    std::hint::black_box(value);
}

#[inline(never)]
fn inner_of_rust(text: &str) {
    println!("\nready {}", nix::unistd::gettid());
    loop {
        std::thread::park();
        std::hint::black_box(text);
    }
}

#[test]
fn a_stack_of_rust_has_its_functions_names() {
    let path = std::env::current_exe().expect("a path");
    let mut command = Command::new(&path);
    command.args([
        "--exact",
        "symbols::sleeps_below_functions_of_rust",
        "--nocapture",
    ]);
    let program = Program::run(&path, command.env(AS_PROGRAM, "1"));
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (frames, end) = unwind(&mut process, &program, &ModuleCache::new(64 << 20));
    assert_eq!(end, End::Complete);
    let symbols = DebugFiles::default().open(&[], Some(&path)).expect("symbols");
    let own = |frame: &&Frame| {
        let mapping = process
            .mapping(frame.mapping.expect("a mapping"))
            .expect("a mapping");
        mapping.path() == Some(path.as_os_str().as_encoded_bytes())
    };
    let names: Vec<String> = frames
        .iter()
        .filter(own)
        .flat_map(|frame| symbols.lookup(process.relative_pc(frame)))
        .filter_map(|place| place.function)
        .collect();
    let ours: Vec<&str> = names
        .iter()
        .filter_map(|name| {
            ["inner_of_rust", "generic_of_rust", "outer_of_rust"]
                .into_iter()
                .find(|ours| name.contains(ours))
        })
        .collect();
    // `outer_of_rust` has the closure in which it calls.
    assert_eq!(
        ours,
        [
            "inner_of_rust",
            "generic_of_rust",
            "outer_of_rust",
            "outer_of_rust"
        ],
        "{names:#?}"
    );
    assert!(
        names.iter().any(|name| name.starts_with("std::thread::")),
        "{names:#?}"
    );
}
