//! Real programs with the library preloaded, and a daemon that reads what it writes.
//!
//! The programs are `programs.c`, compiled here; without a C compiler most tests are skipped. Cargo builds the library beside this test's binary, because
//! the package has tests and its library is one that tests could link.

#[path = "../../../heap-client/tests/client/daemon.rs"]
mod daemon;
mod ends;
mod heaps;
mod out_of_reach;
mod processes;
mod samples;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use ferretto_heap_client::handshake::{HEAP_SOCK_NAME, Welcome, WhenFull};

use crate::daemon::Daemon;

/// 8 MiB, upstream's default.
const RING_WORDS: usize = 1 << 20;

/// The library, which cargo puts beside the binaries of tests.
fn library() -> PathBuf {
    let binary = std::env::current_exe().expect("a path");
    let library = binary.with_file_name("libferretto_heap.so");
    assert!(library.exists(), "cargo has not built {}", library.display());
    library
}

/// The programs; `None` if there is no compiler.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-O1", "-g", "-w", "-pthread", "-I"])
            .arg(here.join("include"))
            .arg(here.join("tests/preload/programs.c"))
            .arg("-o")
            .arg(&into)
            .arg("-ldl")
            .status();
        match status {
            Ok(status) => {
                assert!(status.success(), "programs.c does not compile");
                Some(into)
            }
            Err(_) => None,
        }
    });
    if programs.is_none() {
        println!("skipped: there is no C compiler (cc)");
    }
    programs.as_deref()
}

/// A command with the library preloaded, which finds this daemon.
fn preloaded(command: impl AsRef<std::ffi::OsStr>, daemon: &Daemon) -> Command {
    let mut command = Command::new(command);
    command
        .env("LD_PRELOAD", library())
        .env(HEAP_SOCK_NAME, daemon.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// One of the programs; `None` if there is no compiler.
fn program(arguments: &[&str], daemon: &Daemon) -> Option<Command> {
    let mut command = preloaded(programs()?, daemon);
    command.args(arguments);
    Some(command)
}

/// A session of `libc.malloc` alone, in which no sample is lost.
fn lossless(interval: u64) -> Welcome {
    of_malloc(interval, WhenFull::Wait { at_most_us: 0 })
}

fn of_malloc(interval: u64, when_full: WhenFull) -> Welcome {
    let mut welcome = Welcome::new(0, when_full);
    assert!(welcome.set_interval(b"libc.malloc", interval));
    welcome
}

/// Waits for the program, which must end well. Returns what it printed.
fn output(child: Child) -> String {
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).expect("text")
}
