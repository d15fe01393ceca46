//! C programs that a test brings along as source.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program into `folder`; or prints that the test is skipped, because there is no compiler.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (from, to) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&from, source).unwrap();
    let Ok(output) = Command::new("cc")
        .args(flags)
        .arg("-o")
        .args([&to, &from])
        .output()
    else {
        println!("skipped: there is no C compiler");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(to)
}
