//! Files that a command line creates are readable by its user alone, whatever the umask; existing files keep their mode.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Program, Programs, Side, System};

const UMASKS: [&str; 4] = ["000", "022", "077", "777"];

/// The configs in the folder of each script.
const CONFIG: &str = "buffers { size_kb: 64 } duration_ms: 50\n";
const SNAPSHOTS: &str = "buffers { size_kb: 64 } trigger_config { trigger_mode: CLONE_SNAPSHOT trigger_timeout_ms: 60000 \
                         triggers { name: \"t\" } }\n";
const SCORED: &str = "buffers { size_kb: 64 } bugreport_score: 5 unique_session_name: \"scored\"\n";

/// Runs a script in a folder of its own, with the service's sockets; returns the modes of all regular files there.
fn modes(system: &System<'_>, umask: &str, script: &str) -> BTreeMap<String, u32> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("config", CONFIG),
        ("snapshots", SNAPSHOTS),
        ("scored", SCORED),
        ("old", "old"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let ferretto = system
        .program(Side::Ours, Program::Perfetto)
        .with_file_name("ferretto");
    let mut command: Command = system.command(Path::new("sh"), "script.log");
    let output = command
        .arg("-ec")
        .arg(format!("umask {umask}; {script}"))
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .env("ferretto", ferretto)
        .status()
        .unwrap();
    assert!(output.success(), "{script}: {}", system.log("script.log"));
    let entries = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
            (entry.file_name().into_string().unwrap(), mode)
        })
        .filter(|(name, _)| !["config", "snapshots", "scored"].contains(&name.as_str()))
        .collect()
}

#[test]
fn new_files_are_private_with_any_umask() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    for umask in UMASKS {
        for (script, made) in [
            // Traces of every kind.
            ("$ferretto -q -c config --txt -o new", &["new"][..]),
            (
                "pid=$($ferretto -q -c snapshots --txt -o new -D); $ferretto trigger t; \
                 until [ -s new.0 ]; do $ferretto --query >/dev/null; done; kill -INT $pid; \
                 while [ -e /proc/$pid/exe ]; do $ferretto --query >/dev/null; done",
                &["new", "new.0"],
            ),
            (
                "pid=$($ferretto -q -c scored --txt -o new -D); $ferretto -q --clone-by-name scored -o clone; \
                 $ferretto -q --save-for-bugreport; $ferretto -q --save-all-for-bugreport; kill -INT $pid; \
                 while [ -e /proc/$pid/exe ]; do $ferretto --query >/dev/null; done",
                &["new", "clone", "systrace.pftrace"],
            ),
            // Files made from traces and configs.
            (
                "$ferretto -q -c config --txt -o new; $ferretto text new -o text",
                &["new", "text"],
            ),
            (
                "$ferretto config encode config -o new; $ferretto config decode new -o text; \
                 $ferretto config new sched -o written",
                &["new", "text", "written"],
            ),
        ] {
            let script = script.replace("$ferretto trigger", "$(dirname $ferretto)/trigger_perfetto");
            // Existing files keep their mode, and so do files of a shell's redirection.
            let script = format!("{script}; chmod 644 old; $ferretto config encode config -o old");
            let found = modes(&system, umask, &script);
            let mut expected: BTreeMap<String, u32> =
                made.iter().map(|name| ((*name).to_owned(), 0o600)).collect();
            expected.insert("old".to_owned(), 0o644);
            assert_eq!(found, expected, "umask {umask}: {script}");
        }
    }
}
