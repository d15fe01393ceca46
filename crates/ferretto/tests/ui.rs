//! The compiler's messages about wrong uses of macros: exactly those of the comments `//~ …` in `tests/ui`, for each line.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that the cases are compiled with. `None` without cargo.
fn library() -> Option<PathBuf> {
    // Cargo knows which of the libraries in its folder this test has been built with.
    let output = Command::new(std::env::var_os("CARGO")?)
        .args(["test", "--no-run", "--offline", "--test", "ui"])
        .args(["--message-format", "json-render-diagnostics"])
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ])
        .output()
        .ok()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).unwrap();
    let quoted = said.split('"').find(|text| {
        let name = text.rsplit('/').next().unwrap_or_default();
        name.starts_with("libferretto-") && name.ends_with(".rlib")
    });
    Some(PathBuf::from(
        quoted.expect("the library is among what was built"),
    ))
}

/// The compiler's messages about a file: each error with the lines that it quotes.
fn compile(library: &Path, case: &Path) -> Vec<(Vec<usize>, String)> {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(case).unwrap();
    // Without the expected messages, because the compiler would quote them.
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split("//~").next().unwrap_or_default().trim())
        .collect();
    let stripped = folder.path().join("case.rs");
    std::fs::write(&stripped, lines.join("\n")).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
            "--out-dir",
        ])
        .arg(folder.path())
        .arg("--extern")
        .arg(format!("ferretto={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg(&stripped)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{} compiles", case.display());
    let quoted = |error: &str| {
        let lines = error.lines().filter_map(|quoted| {
            let (number, code) = quoted.split_once('|')?;
            let number: usize = number.trim().parse().ok()?;
            let line = lines.get(number.checked_sub(1)?)?;
            (!line.is_empty() && *line == code.trim()).then_some(number)
        });
        lines.collect()
    };
    let errors = said
        .split("\nerror")
        .map(|error| (quoted(error), error.to_owned()));
    errors.collect()
}

#[test]
fn wrong_uses_of_macros_are_errors_with_the_right_name() {
    let Some(library) = library() else {
        println!("skipped: not run by cargo, so there is no compiler to ask");
        return;
    };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    for case in std::fs::read_dir(cases).unwrap() {
        let case = case.unwrap().path();
        let errors = compile(&library, &case);
        let text = std::fs::read_to_string(&case).unwrap();
        let mut wanted = 0;
        for (number, line) in text.lines().enumerate() {
            let told: Vec<&String> = errors
                .iter()
                .filter(|(lines, _)| lines.contains(&(number + 1)))
                .map(|(_, error)| error)
                .collect();
            let Some((_, sentence)) = line.split_once("//~ ") else {
                continue;
            };
            wanted += 1;
            assert!(
                told.iter().any(|error| error.contains(sentence.trim())),
                "{}:{}: of `{}` the compiler does not say `{sentence}`, but {told:#?}",
                case.display(),
                number + 1,
                line.trim(),
            );
        }
        assert!(wanted > 0, "{} wants nothing", case.display());
    }
}
