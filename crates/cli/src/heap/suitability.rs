//! Whether a program can be profiled: whether the dynamic linker will load the library into it.
//!
//! [`run`](super::run) asks before it records, because otherwise people would learn it from an empty profile. A script is run by its interpreter, which
//! is looked at instead.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferretto_heap_client::LIBRARY_FILE;
use ferretto_heap_client::handshake::MARK;
use ferretto_unwind::DynamicLinking;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, Sym};

use crate::perfetto::find_program;

/// Interpreters that may run each other; the kernel's limit.
const MAX_INTERPRETERS: usize = 4;
/// The kernel reads no longer first line of a script.
const MAX_FIRST_LINE: u64 = 256;
/// The bytes of a program that have its headers and the name of its dynamic linker; linkers write them first.
const MAX_HEADERS: u64 = 1 << 20;
/// The most bytes of a program that are searched for the client and for other allocators.
const MAX_PROGRAM: u64 = 1 << 30;
/// Functions of allocators that programs have in them under names of their own: jemalloc and mimalloc, as crates for Rust build them, and snmalloc.
const OWN_ALLOCATORS: [&str; 4] = ["_rjem_malloc", "je_malloc", "mi_malloc", "sn_rust_alloc"];
/// The variable that has the settings of such a jemalloc. Its name is left in a program without symbols.
const JEMALLOC_SETTINGS: &[u8] = b"_RJEM_MALLOC_CONF\0";
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
/// The attribute with a file's capabilities.
const CAPABILITIES: &str = "security.capability";

/// The reason why a program cannot be profiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unsuitable {
    /// It has no dynamic linker, nor the client.
    Static,
    /// It runs with the rights of somebody else, so the dynamic linker trusts no libraries of ours.
    Privileged,
    /// It is for another processor.
    OtherMachine,
    /// It has this C library, and the library to be preloaded has the other one.
    OtherLibrary(CLibrary),
    /// It has a `malloc` of its own, which the dynamic linker finds before that of a preloaded library.
    OwnMalloc,
    /// It has another allocator beside that of the C library, with this function.
    OwnAllocator(&'static str),
}

impl Unsuitable {
    /// Says why, and what to do.
    pub(super) fn explained(&self, program: &Path) -> String {
        let program = program.display();
        match self {
            Unsuitable::Static => format!(
                "{program} is linked statically, so nothing can be preloaded into it; link it dynamically, or build it with the allocator of the crate ferretto-heap-client"
            ),
            Unsuitable::Privileged => format!(
                "{program} runs with the rights of another user or with capabilities, so the system preloads nothing into it; run it as that user, as in `sudo ferretto heap`"
            ),
            Unsuitable::OtherMachine => format!(
                "{program} is for another kind of processor than {LIBRARY_FILE}, which cannot be preloaded into it; build it for {}",
                std::env::consts::ARCH
            ),
            Unsuitable::OtherLibrary(of_program) => format!(
                "{program} has another C library, {of_program}, than {LIBRARY_FILE}, which cannot be preloaded into it; use a library built for {of_program} with --library"
            ),
            Unsuitable::OwnMalloc => format!(
                "{program} defines malloc itself, so what it allocates does not reach {LIBRARY_FILE}, and the profile will have little or nothing of it; build it without its own allocator (such as jemalloc), or have it report allocations with AHeapProfile_reportAllocation"
            ),
            Unsuitable::OwnAllocator(function) => format!(
                "{program} has an allocator of its own ({function}), and what that allocates does not reach {LIBRARY_FILE}: the profile will have only the rest; build it with the allocator of the crate ferretto-heap-client, which can stand in front of another one"
            ),
        }
    }
}

/// Implementations of the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CLibrary {
    Glibc,
    Musl,
}

impl std::fmt::Display for CLibrary {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            CLibrary::Glibc => "glibc",
            CLibrary::Musl => "musl",
        })
    }
}

impl CLibrary {
    /// That of programs with this dynamic linker. `None` for one that is not known.
    fn of_linker(linker: &Path) -> Option<CLibrary> {
        let name = linker.file_name()?.as_bytes();
        let is = |prefix: &[u8]| name.starts_with(prefix);
        match () {
            () if is(b"ld-musl") => Some(CLibrary::Musl),
            () if is(b"ld-linux") => Some(CLibrary::Glibc),
            () => None,
        }
    }

    /// The one that a library needs. `None` if it needs none that is known, or cannot be read.
    fn needed_by(library: &Path) -> Option<CLibrary> {
        let linking = DynamicLinking::read(&File::open(library).ok()?).ok()?;
        linking.needed().find_map(|name| match name {
            b"libc.so.6" => Some(CLibrary::Glibc),
            b"libc.so" => Some(CLibrary::Musl),
            _ if name.starts_with(b"libc.musl-") => Some(CLibrary::Musl),
            _ => None,
        })
    }
}

/// Looks at the program of a command, and at the interpreters that run it. Returns the first into which this library cannot be preloaded, with the reason.
/// Nothing is claimed about files that cannot be read.
pub(super) fn unsuitable(program: &OsStr, library: &Path) -> Option<(PathBuf, Unsuitable)> {
    let mut file = find_program(program).ok()?;
    for _ in 0..MAX_INTERPRETERS {
        match interpreter(&file) {
            Some(interpreter) => file = interpreter,
            None => break,
        }
    }
    let reason = reason(&file, library)?;
    Some((file, reason))
}

/// Returns the program that runs a script; `None` if it is none.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(script)
        .ok()?
        .take(MAX_FIRST_LINE)
        .read_to_end(&mut start)
        .ok()?;
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let program = Path::new(OsStr::from_bytes(words.next()?));
    if program.file_name() == Some(OsStr::new("env")) {
        // Flags and variables may come before the program.
        let mut named = words.filter(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        return find_program(OsStr::from_bytes(named.next()?)).ok();
    }
    Some(program.to_owned())
}

fn reason(program: &Path, library: &Path) -> Option<Unsuitable> {
    let file = File::open(program).ok()?;
    let linking = Linking::of(&file)?;
    if is_privileged(program, &file) {
        return Some(Unsuitable::Privileged);
    }
    match linking {
        Linking::OtherMachine => Some(Unsuitable::OtherMachine),
        Linking::Static if carries_client(&whole(&file)?) => None,
        Linking::Static => Some(Unsuitable::Static),
        Linking::Dynamic(linker) => {
            let of_program = CLibrary::of_linker(Path::new(&linker));
            if let (Some(ours), Some(theirs)) = (CLibrary::needed_by(library), of_program)
                && ours != theirs
            {
                return Some(Unsuitable::OtherLibrary(theirs));
            }
            // Definitions in libraries that the program needs come after those in preloaded ones.
            let linking = DynamicLinking::read(&file).ok()?;
            if linking.defines(b"malloc") {
                return Some(Unsuitable::OwnMalloc);
            }
            let program = whole(&file)?;
            let function = own_allocator(&program).filter(|_| !carries_client(&program));
            function.map(Unsuitable::OwnAllocator)
        }
    }
}

/// How a program is linked.
#[derive(Debug, PartialEq, Eq)]
enum Linking {
    Static,
    /// With this dynamic linker.
    Dynamic(OsString),
    OtherMachine,
}

impl Linking {
    /// Reads the headers of a program; `None` if it is none.
    fn of(file: &File) -> Option<Linking> {
        let mut start = Vec::new();
        file.take(MAX_HEADERS).read_to_end(&mut start).ok()?;
        let data = &*start;
        if !data.starts_with(&elf::ELFMAG) {
            return None;
        }
        let header = elf::FileHeader64::<object::Endianness>::parse(data).ok();
        let Some((header, endian)) = header.and_then(|header| Some((header, header.endian().ok()?))) else {
            return Some(Linking::OtherMachine);
        };
        let ours = match std::env::consts::ARCH {
            "x86_64" => elf::EM_X86_64,
            "aarch64" => elf::EM_AARCH64,
            // No stack can be unwound on others, and the profiler says so.
            _ => header.e_machine(endian),
        };
        if header.e_machine(endian) != ours {
            return Some(Linking::OtherMachine);
        }
        let segments = header.program_headers(endian, data).ok()?;
        let linker = segments
            .iter()
            .find_map(|segment| segment.interpreter(endian, data).ok()?);
        Some(match linker {
            Some(linker) => Linking::Dynamic(OsStr::from_bytes(linker).to_owned()),
            None => Linking::Static,
        })
    }
}

/// The bytes of a program.
fn whole(mut file: &File) -> Option<Vec<u8>> {
    let mut program = Vec::new();
    std::io::Seek::rewind(&mut file).ok()?;
    file.take(MAX_PROGRAM).read_to_end(&mut program).ok()?;
    Some(program)
}

/// Whether a program was built with the client: it has the name of the client's mark in it.
fn carries_client(program: &[u8]) -> bool {
    has(program, MARK.as_bytes())
}

fn has(program: &[u8], part: &[u8]) -> bool {
    program.windows(part.len()).any(|bytes| bytes == part)
}

/// The function of an allocator that a program has in it under a name of its own. Its symbols say so; without them, what is left of a jemalloc.
fn own_allocator(program: &[u8]) -> Option<&'static str> {
    match defined_among(program, &OWN_ALLOCATORS) {
        Some(defined) => defined,
        None => has(program, JEMALLOC_SETTINGS).then_some(OWN_ALLOCATORS[0]),
    }
}

/// The first of these functions that the symbols of a program define. `None` if it has no symbols.
fn defined_among(program: &[u8], names: &[&'static str]) -> Option<Option<&'static str>> {
    let header = elf::FileHeader64::<object::Endianness>::parse(program).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, program).ok()?;
    let symbols = sections.symbols(endian, program, elf::SHT_SYMTAB).ok()?;
    if symbols.is_empty() {
        return None;
    }
    let functions = symbols.iter().filter(|symbol| {
        symbol.is_definition(endian, symbols.strings()) && symbol.st_type() == elf::STT_FUNC
    });
    let mut names_of_program = functions.filter_map(|symbol| symbol.name(endian, symbols.strings()).ok());
    Some(names_of_program.find_map(|found| names.iter().copied().find(|name| name.as_bytes() == found)))
}

/// Whether the dynamic linker would distrust the environment of this program, because it gains rights by running it.
fn is_privileged(program: &Path, file: &File) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let mode = metadata.mode();
    let by_user = mode & SETUID != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    let by_group = mode & SETGID != 0 && metadata.gid() != rustix::process::getegid().as_raw();
    let is_root = rustix::process::geteuid().is_root();
    let has_capabilities = || {
        let mut value = [0_u8; 64];
        rustix::fs::getxattr(program, CAPABILITIES, &mut value).is_ok()
    };
    by_user || by_group || (!is_root && has_capabilities())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_dynamically_linked_program_is_suitable_and_so_are_its_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let of_sh = script(folder.path(), "of-sh", "#!/bin/sh\nexit 0\n");
        let of_script = script(folder.path(), "of-script", &format!("#!{}\n", of_sh.display()));
        let of_env = script(folder.path(), "of-env", "#! /usr/bin/env -S sh -e\n");
        for program in [
            OsStr::new("sh"),
            of_sh.as_ref(),
            of_script.as_ref(),
            of_env.as_ref(),
        ] {
            assert_eq!(unsuitable(program, any_library()), None, "{program:?}");
        }
        assert_eq!(interpreter(&of_sh), Some("/bin/sh".into()));
        assert!(interpreter(&of_env).unwrap().ends_with("sh"));
    }

    /// One that needs no C library.
    fn any_library() -> &'static Path {
        Path::new("/dev/null")
    }

    /// Compiles a program in C; or prints that the test is skipped.
    fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let (from, to) = (folder.join(format!("{name}.c")), folder.join(name));
        std::fs::write(&from, source).unwrap();
        let mut compiler = std::process::Command::new("cc");
        let compiled = compiler.arg("-o").args([&to, &from]).args(flags).status();
        if compiled.is_err() {
            println!("skipped: there is no C compiler");
            return None;
        }
        assert!(compiled.unwrap().success());
        Some(to)
    }

    #[test]
    fn a_program_with_its_own_malloc_is_told_apart_from_those_that_only_call_one() {
        const OWN: &str = "#include <stddef.h>
            static char memory[1 << 20]; static size_t used;
            void *malloc(size_t size) { used += size + 15 & ~(size_t)15; return memory + used; }";
        const CALLS: &str = "#include <stdlib.h>
            int main(void) { void *(*volatile function)(size_t) = malloc; return !function(10); }";
        let folder = tempfile::tempdir().unwrap();
        let own = format!("{OWN} int main(void) {{ return !malloc(10); }}");
        let Some(own) = compile(folder.path(), "own", &own, &["-rdynamic", "-fno-builtin"]) else {
            return;
        };
        assert_eq!(
            unsuitable(own.as_os_str(), any_library()),
            Some((own.clone(), Unsuitable::OwnMalloc))
        );
        let said = Unsuitable::OwnMalloc.explained(&own);
        assert!(said.contains("own defines malloc itself"), "{said}");
        // Not even if the address of a stub stands for the function, or a library that it needs has one.
        let library = compile(
            folder.path(),
            "libown.so",
            OWN,
            &["-shared", "-fPIC", "-fno-builtin"],
        )
        .unwrap();
        let library = library.to_str().unwrap();
        for (name, flags) in [
            ("pie", vec!["-fPIE", "-pie"]),
            ("stub", vec!["-fno-pie", "-no-pie", "-rdynamic"]),
            ("needs", vec!["-Wl,--no-as-needed", library]),
        ] {
            let program = compile(folder.path(), name, CALLS, &flags).unwrap();
            assert_eq!(unsuitable(program.as_os_str(), any_library()), None, "{name}");
        }
    }

    #[test]
    fn a_program_with_another_allocator_beside_that_of_the_c_library_is_told() {
        const JEMALLOC: &str = "#include <stdlib.h>
            const char *volatile settings = \"_RJEM_MALLOC_CONF\";
            void *_rjem_malloc(size_t size) { return getenv(settings) ? 0 : malloc(size); }
            int main(void) { return !_rjem_malloc(10); }";
        // Naming it, as tools do that know allocators, is not having it.
        const NAMES: &str = "#include <stdio.h>
            int main(void) { return puts(\"_rjem_malloc\") < 0; }";
        let folder = tempfile::tempdir().unwrap();
        let own = Some(Unsuitable::OwnAllocator("_rjem_malloc"));
        for (name, source, flags, expected) in [
            ("jemalloc", JEMALLOC, &[][..], own.clone()),
            ("stripped", JEMALLOC, &["-s"][..], own),
            ("names", NAMES, &[][..], None),
            ("names-stripped", NAMES, &["-s"][..], None),
        ] {
            let Some(program) = compile(folder.path(), name, source, flags) else {
                return;
            };
            assert_eq!(reason(&program, any_library()), expected, "{name}");
        }
        let said = Unsuitable::OwnAllocator("_rjem_malloc").explained(Path::new("server"));
        assert!(
            said.contains("server has an allocator of its own (_rjem_malloc)"),
            "{said}"
        );
        // One that reports what it allocates.
        let reporting = JEMALLOC.replace(
            "int main",
            &format!("const char *volatile mark = \"{MARK}\"; int main"),
        );
        let program = compile(folder.path(), "reporting", &reporting, &[]).unwrap();
        assert_eq!(reason(&program, any_library()), None);
    }

    /// Has a compiler link a file against its own C library.
    fn linked_by(compiler: &str, to: &Path, flags: &[&str]) -> bool {
        let from = to.with_extension("c");
        let source = "#include <stdlib.h>\nvoid *block(void) { return malloc(10); }\nint main(void) { return !block(); }";
        std::fs::write(&from, source).unwrap();
        let mut command = std::process::Command::new(compiler);
        let linked = command.args(flags).arg("-o").args([to, &from]).status();
        linked.is_ok_and(|status| status.success())
    }

    #[test]
    fn what_counts_is_the_c_library_that_the_preloaded_library_needs() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for (compiler, c_library) in [("gcc", CLibrary::Glibc), ("musl-gcc", CLibrary::Musl)] {
            let program = folder.path().join(compiler);
            let library = folder.path().join(format!("{compiler}.so"));
            if !linked_by(compiler, &program, &["-fPIE", "-pie"])
                || !linked_by(compiler, &library, &["-fPIC", "-shared"])
            {
                println!("skipped: {compiler} cannot link for {c_library}");
                return;
            }
            files.push((program, library, c_library));
        }
        for (program, _, of_program) in &files {
            for (_, library, of_library) in &files {
                let expected = (of_program != of_library).then_some(Unsuitable::OtherLibrary(*of_program));
                assert_eq!(
                    reason(program, library),
                    expected,
                    "{of_program} and {of_library}"
                );
            }
            assert_eq!(reason(program, any_library()), None);
        }
        let said = Unsuitable::OtherLibrary(CLibrary::Musl).explained(&files[1].0);
        assert!(said.contains("built for musl with --library"), "{said}");
    }

    #[test]
    fn a_program_that_runs_as_somebody_else_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("su");
        std::fs::copy("/bin/sh", &program).unwrap();
        assert_eq!(unsuitable(program.as_os_str(), any_library()), None);
        if rustix::fs::chown(&program, Some(rustix::fs::Uid::from_raw(65_534)), None).is_err() {
            println!("skipped: only root gives files to others");
            return;
        }
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(
            unsuitable(program.as_os_str(), any_library()),
            Some((program, Unsuitable::Privileged))
        );
    }

    #[test]
    fn static_programs_and_those_of_other_machines_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = std::fs::read("/bin/sh").unwrap();
        // The machine is at byte 18 of the header.
        let machine = [shell[18], shell[19]];
        shell[18..20].copy_from_slice(&elf::EM_S390.0.to_le_bytes());
        let other = folder.path().join("other");
        std::fs::write(&other, &shell).unwrap();
        assert_eq!(reason(&other, any_library()), Some(Unsuitable::OtherMachine));
        shell[18..20].copy_from_slice(&machine);
        // Without its segments, no linker is named.
        shell[56..58].copy_from_slice(&[0, 0]);
        std::fs::write(&other, &shell).unwrap();
        assert_eq!(reason(&other, any_library()), Some(Unsuitable::Static));
        shell.extend_from_slice(MARK.as_bytes());
        std::fs::write(&other, &shell).unwrap();
        assert_eq!(reason(&other, any_library()), None);
        std::fs::write(&other, "text").unwrap();
        assert_eq!(reason(&other, any_library()), None);
    }
}
