//! `ferretto export`, `query` and `report`: how they start `ferretto-query`, for which a script stands in.

use std::process::{Command, Output};

use super::outcome;
use crate::support::write_script;

/// Runs `ferretto` with a `PATH` of one folder.
fn ferretto(path: &std::path::Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferretto"))
        .args(words)
        .env("PATH", path)
        .output()
        .unwrap()
}

#[test]
fn words_are_passed_on_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ferretto-query");
    write_script(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n");
    for words in [
        &["export", "trace with spaces", "-o", "DIR"][..],
        &["query", "-", "select '--help'", "--rows", "3", ""],
        &["report", "all", "-", "--gibberish"],
    ] {
        let (printed, said, code) = outcome(&ferretto(folder.path(), words));
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!((printed, said.as_str(), code), (expected, "", Some(7)));
    }
}

#[test]
fn help_needs_no_other_program_and_its_absence_is_explained() {
    let empty = tempfile::tempdir().unwrap();
    for word in ["export", "query", "report"] {
        let (printed, said, code) = outcome(&ferretto(empty.path(), &[word, "--help"]));
        assert_eq!((said.as_str(), code), ("", Some(0)));
        assert!(printed.contains(&format!("Usage: ferretto {word}")), "{printed}");
        let (printed, said, code) = outcome(&ferretto(empty.path(), &[word, "trace"]));
        assert_eq!((printed.as_str(), code), ("", Some(1)));
        let start = format!("ferretto {word}: ferretto-query cannot be started");
        assert!(
            said.starts_with(&start) && said.contains("cargo install"),
            "{said}"
        );
    }
}
