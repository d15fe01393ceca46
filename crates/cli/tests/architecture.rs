//! Checks the structure of the workspace. ARCHITECTURE.md has every crate and every arrow between crates, and remains a tour. The daemons contain no
//! tools, no two tools need each other, and no session needs the service.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The most words, as `wc -w` counts them. Longer texts belong in `docs`.
const MAX_WORDS: usize = 3500;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    std::fs::read_to_string(path).unwrap()
}

/// A crate of the workspace.
struct Package {
    name: String,
    /// Crates of the workspace that it uses as normal dependencies, including those of features and of single systems.
    uses: BTreeSet<String>,
}

/// Returns a crate's name in the document.
fn short_name(package: &Value) -> &str {
    let name = package["name"].as_str().unwrap();
    name.strip_prefix("ferretto-").unwrap_or(name)
}

/// Returns the crates of the workspace; `None` if cargo cannot be run.
fn packages() -> Option<Vec<Package>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let output = match cargo.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: cannot run {}: {error}", env!("CARGO"));
            return None;
        }
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<&str> = all.iter().map(short_name).collect();
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap();
        let normal = dependencies.iter().filter(|it| it["kind"].is_null());
        // Dependencies inside the workspace have a path.
        let own = normal.filter(|it| it["path"].is_string()).map(short_name);
        Package {
            name: short_name(package).to_owned(),
            uses: own
                .inspect(|name| assert!(names.contains(name), "{name}"))
                .map(str::to_owned)
                .collect(),
        }
    };
    let mut packages: Vec<Package> = all.iter().map(package).collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Some(packages)
}

/// Returns the document's line on a crate.
fn arrows(of: &Package) -> String {
    let uses = match of.uses.is_empty() {
        true => "nothing".to_owned(),
        false => Vec::from_iter(of.uses.iter().map(String::as_str)).join(", "),
    };
    format!("{} uses {uses}", of.name)
}

#[test]
fn the_list_below_the_picture_has_the_arrows_of_the_manifests() {
    let Some(packages) = packages() else { return };
    let lines: Vec<String> = packages.iter().map(arrows).collect();
    let document = document();
    let blocks = document.split("```").skip(1).step_by(2);
    let is_list = |block: &&str| block.lines().skip(1).all(|line| line.contains(" uses "));
    let list = blocks.filter(is_list).collect::<Vec<_>>();
    let [list] = list.as_slice() else {
        panic!("one block has lines such as `{}` alone", lines.first().unwrap());
    };
    let told: Vec<&str> = list.lines().skip(1).collect();
    assert_eq!(
        told,
        lines,
        "the list in ARCHITECTURE.md should be\n{}\nand the picture above it should agree",
        lines.join("\n")
    );
}

#[test]
fn every_crate_has_a_section() {
    let Some(packages) = packages() else { return };
    let document = document();
    let headings = document.lines().filter(|line| line.starts_with("### "));
    let named: BTreeSet<&str> = headings
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect();
    for package in packages {
        assert!(
            named.contains(&*package.name),
            "{}: ARCHITECTURE.md has no section on it",
            package.name
        );
    }
}

/// Whether a program has symbols from the crate with the tools.
fn has_tools(program: &str) -> bool {
    // Both of the compiler's manglings contain the name in this form.
    const CRATE: &[u8] = b"12ferretto_cli";
    let binary = std::fs::read(program).unwrap();
    binary.windows(CRATE.len()).any(|bytes| bytes == CRATE)
}

#[test]
fn daemons_hold_no_tool() {
    if !has_tools(env!("CARGO_BIN_EXE_perfetto")) {
        println!("skipped: the programs were built without symbols");
        return;
    }
    for daemon in [env!("CARGO_BIN_EXE_traced"), env!("CARGO_BIN_EXE_traced_probes")] {
        assert!(!has_tools(daemon), "{daemon}");
    }
}

/// Returns all Rust files below a folder, except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let product = paths.filter(|path| !path.file_stem().unwrap().to_str().unwrap().contains("tests"));
    product
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// Returns the modules of a crate, each with the others that its code names by `crate::`.
fn modules(crate_name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(crate_name)
        .join("src");
    let mut modules = BTreeMap::<String, BTreeSet<String>>::new();
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).unwrap();
        let first = inside.components().next().unwrap().as_os_str();
        let module = Path::new(first).file_stem().unwrap().to_str().unwrap().to_owned();
        // These files name all modules.
        if ["bin", "lib", "main"].contains(&module.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let code = product
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join(" ");
        let used = modules.entry(module).or_default();
        for part in code.split("crate::").skip(1) {
            let several = part.strip_prefix('{').and_then(|part| part.split("};").next());
            let names = several.unwrap_or(part).split(',');
            let names = names.take(if several.is_some() { usize::MAX } else { 1 });
            used.extend(names.map(|name| {
                let name = name.trim_start();
                let end = name.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
                name[..end.unwrap_or(name.len())].to_owned()
            }));
        }
    }
    let known: BTreeSet<String> = modules.keys().cloned().collect();
    for (module, used) in &mut modules {
        used.retain(|name| known.contains(name) && name != module);
    }
    modules
}

/// Returns the modules of a crate that need each other. Fails if there are no more than `arrows` arrows between its modules.
fn circles(crate_name: &str, arrows: usize) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = modules(crate_name);
    let found: usize = modules.values().map(BTreeSet::len).sum();
    assert!(found > arrows, "{found} arrows are not all there are");
    // Repeatedly removes the modules that use none of the remaining ones.
    loop {
        let left: BTreeSet<String> = modules.keys().cloned().collect();
        modules.retain(|_, used| used.iter().any(|name| left.contains(name)));
        if modules.len() == left.len() {
            return modules;
        }
    }
}

#[test]
fn no_module_of_the_command_line_is_in_a_circle() {
    assert!(modules("cli")["applet"].contains("doctor"));
    let circles = circles("cli", 50);
    assert!(circles.is_empty(), "circles: {circles:#?}");
}

#[test]
fn sessions_are_below_the_service_and_their_common_modules_below_both() {
    assert!(modules("service")["service"].contains("session"));
    let circles = circles("service", 50);
    assert!(circles.is_empty(), "circles: {circles:#?}");
}

/// Examples of all crates are built into one folder, where tests look for them.
#[test]
fn no_two_examples_have_one_name() {
    let mut names = BTreeSet::new();
    let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
    for entry in crates {
        let Ok(examples) = std::fs::read_dir(entry.unwrap().path().join("examples")) else {
            continue;
        };
        let examples = examples.map(|example| example.unwrap().path());
        for example in examples.filter(|path| path.extension().is_some_and(|ending| ending == "rs")) {
            let name = example.file_stem().unwrap().to_owned();
            assert!(names.insert(name), "{} is not the only one", example.display());
        }
    }
    assert!(names.len() > 10, "{names:?}");
}

#[test]
fn the_tour_is_short() {
    let words = document().split_whitespace().count();
    assert!(
        words <= MAX_WORDS,
        "ARCHITECTURE.md has {words} words; at most {MAX_WORDS} make a tour"
    );
}
