//! The messages of the macros about wrong code: `tests/wrong.rs.txt` is compiled, and each line of it that ends in `//~ ERROR text` has to be
//! reported with that text, and no other line.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that this test was built with.
fn macros() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = |path: &Path| path.metadata().and_then(|file| file.modified()).unwrap();
    let libraries = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.contains("ferretto_macros-")
            && path
                .extension()
                .is_some_and(|end| end == std::env::consts::DLL_EXTENSION)
    };
    libraries
        .filter(is_library)
        .max_by_key(|path| built(path))
        .unwrap()
}

#[test]
fn errors_are_reported_at_their_places() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong.rs.txt");
    let text = std::fs::read_to_string(&source).unwrap();
    let expected: Vec<(usize, &str)> = text
        .lines()
        .zip(1..)
        .filter_map(|(line, number)| Some((number, line.split_once("//~ ERROR ")?.1)))
        .collect();
    assert_ne!(expected, []);

    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args([
            "--edition=2024",
            "--crate-type=lib",
            "--emit=metadata",
            "--error-format=short",
        ])
        .args(["--crate-name=wrong", "-o", "/dev/null", "--extern"])
        .arg(format!("ferretto_macros={}", macros().display()))
        .arg(&source)
        .output();
    // Another user may have installed it in a closed folder.
    let Ok(output) = output else {
        println!("skipped: this user cannot run rustc");
        return;
    };
    let said = String::from_utf8(output.stderr).unwrap();
    let mut reported: Vec<(usize, &str)> = said
        .lines()
        .filter_map(|line| {
            let (place, message) = line
                .split_once(" error: ")
                .or_else(|| line.split_once(" error["))?;
            let number = place.strip_prefix(source.to_str()?)?.split(':').nth(1)?;
            Some((number.parse().ok()?, message))
        })
        .collect();
    reported.sort_unstable();
    assert_eq!(reported, expected, "{said}");
}
