//! Checks the comments of `limits.rs` against the workspace: each gives upstream's value and names an existing test, and the service or its drivers
//! use the limit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A limit, with its comment.
struct Limit {
    name: String,
    comment: Vec<String>,
}

impl Limit {
    /// The names in the line about tests. A line that explains why no test meets the limit may have names too.
    fn tests(&self) -> Result<Vec<&str>, &str> {
        let last = self.comment.last().ok_or("it has no comment")?;
        let said = last
            .strip_prefix("Met by ")
            .ok_or("its comment does not end with the test that meets it")?;
        let names: Vec<&str> = said.split('`').skip(1).step_by(2).collect();
        let reason = said.strip_prefix("no test: ").unwrap_or_default();
        match names.is_empty() && reason.len() < 10 {
            true => Err("no test, and no reason why there is none"),
            false => Ok(names),
        }
    }
}

fn limits(source: &str) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut comment = Vec::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim().to_owned());
            continue;
        }
        let item = line
            .strip_prefix("pub const ")
            .or_else(|| line.strip_prefix("pub fn "));
        if let Some(item) = item {
            limits.push(Limit {
                name: words(item).next().expect("a name").to_owned(),
                comment: std::mem::take(&mut comment),
            });
        }
        comment.clear();
    }
    limits
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c| !is_part(c)).filter(|word| !word.is_empty())
}

/// All Rust sources below a folder.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            found.push((path, text));
        }
    }
}

/// The names of the functions with `#[test]`.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next()) {
            return std::mem::take(&mut is_test).then_some(name);
        }
        None
    })
}

/// The words of code, without comments and tests. Unit tests are at the end of a file, or in a file of their own.
fn words_of_product<'s>(path: &Path, source: &'s str) -> impl Iterator<Item = &'s str> {
    let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let product = if is_test { "" } else { source };
    let lines = product.lines().take_while(|line| *line != "#[cfg(test)]");
    lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(words)
}

#[test]
fn every_limit_is_met_by_a_test() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.join("../..");
    if !root.join("ARCHITECTURE.md").exists() {
        println!("skipped: this is not the workspace but a package of it");
        return;
    }
    let mut files = Vec::new();
    for package in std::fs::read_dir(root.join("crates")).unwrap() {
        for folder in ["src", "tests"].map(|name| package.as_ref().unwrap().path().join(name)) {
            if folder.exists() {
                sources(&folder, &mut files);
            }
        }
    }
    let source = std::fs::read_to_string(own.join("src/limits.rs")).unwrap();
    let all_tests: BTreeSet<&str> = files.iter().flat_map(|(_, text)| tests(text)).collect();
    let limits = limits(&source);
    assert!(limits.len() > 100, "{} were found", limits.len());
    let names: BTreeSet<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
    let used: Vec<&str> = files
        .iter()
        .flat_map(|(path, text)| words_of_product(path, text))
        .filter(|word| names.contains(word))
        .collect();
    let mut wrong = Vec::new();
    for limit in &limits {
        if !limit
            .comment
            .iter()
            .any(|line| line.to_lowercase().contains("upstream"))
        {
            wrong.push(format!(
                "{}: its comment does not say upstream's value",
                limit.name
            ));
        }
        match limit.tests() {
            Ok(names) => {
                let missing = names.iter().filter(|name| !all_tests.contains(**name));
                wrong.extend(missing.map(|name| format!("{}: there is no test {name}", limit.name)));
            }
            Err(why) => wrong.push(format!("{}: {why}", limit.name)),
        }
        // One occurrence is the definition, and another one the use. The use may be in another limit, which must be used itself.
        if used.iter().filter(|word| **word == limit.name).count() < 2 {
            wrong.push(format!("{}: nothing keeps to it", limit.name));
        }
    }
    assert!(wrong.is_empty(), "limits.rs:\n{}", wrong.join("\n"));
}
