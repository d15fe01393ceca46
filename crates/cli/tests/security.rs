//! SECURITY.md names tests and fuzz targets that exist, and every fuzz target.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::file_stems;

/// The code spans in the last column of tables whose header has this name there.
fn named(document: &str, column: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_wanted = false;
    for line in document.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            is_wanted = false;
            continue;
        };
        let last = row.rsplit('|').next().unwrap_or_default().trim();
        is_wanted |= last == column;
        if is_wanted {
            let spans = last.split('`').skip(1).step_by(2);
            names.extend(spans.map(str::to_owned));
            assert!(
                last == column || last.contains('`') || last == "---",
                "nothing holds: {line}"
            );
        }
    }
    names
}

/// Collects the names of the functions in a folder's Rust files that follow a `#[test]`.
fn collect_tests(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_tests(&path, tests);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let after_marks = text.split("#[test]").skip(1);
            tests.extend(after_marks.filter_map(|after| {
                let (_, function) = after.split_once("fn ")?;
                Some(function.split(['(', '<']).next()?.to_owned())
            }));
        }
    }
}

#[test]
fn each_line_names_tests_and_fuzz_targets_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let mut tests = BTreeSet::new();
    collect_tests(&root.join("crates"), &mut tests);
    collect_tests(&root.join("tunnel/tests"), &mut tests);
    collect_tests(&root.join("upload/tests"), &mut tests);
    let held = named(&document, "tests");
    assert!(held.len() > 10, "{held:?}");
    let missing: Vec<_> = held.difference(&tests).collect();
    assert!(missing.is_empty(), "no such test: {missing:?}");

    let targets = file_stems(&root.join("fuzz/fuzz_targets"));
    assert_eq!(named(&document, "fuzz target"), targets);
}
