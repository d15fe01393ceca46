//! Man pages and completions: up to date, and accepted by the programs that read them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;
use crate::applet::APPLETS;

/// The variable that makes the test write the checked-in pages.
const WRITE: &str = "FERRETTO_WRITE_MANUAL";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man")
}

#[test]
fn the_man_pages_are_fresh() {
    let made = pages::pages();
    if std::env::var_os(WRITE).is_some() {
        // Pages of removed subcommands disappear as well.
        let _ = fs::remove_dir_all(folder());
        fs::create_dir_all(folder()).unwrap();
        for (name, page) in &made {
            fs::write(folder().join(name), page).unwrap();
        }
    }
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        found.insert(
            entry.file_name().into_string().unwrap(),
            fs::read(entry.path()).unwrap(),
        );
    }
    let differ = |name: &&String| made.get(*name) != found.get(*name);
    let stale: Vec<&String> = made.keys().chain(found.keys()).filter(differ).collect();
    assert!(
        stale.is_empty(),
        "stale: {stale:?}; run: {WRITE}=1 cargo test -p ferretto-cli manual"
    );
}

/// Returns the complaints of a program that reads pages, from both streams. `None` if the program is not installed.
fn complaints(program: &str, arguments: &[&str], page: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(page)
        .env("MANWIDTH", "80")
        .env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null());
    if program != "mandoc" {
        // Its stdout is the page.
        command.stdout(Stdio::null());
    }
    match command.output() {
        Ok(output) => Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        Err(_) => {
            println!("skipped: {program} is not installed");
            None
        }
    }
}

#[test]
fn the_man_pages_render_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (name, page) in pages::pages() {
        let path = folder.path().join(&name);
        fs::write(&path, page).unwrap();
        let readers: [(&str, &[&str]); 2] = [
            ("man", &["--warnings", "-E", "UTF-8", "-l"]),
            ("mandoc", &["-Tlint", "-Wwarning"]),
        ];
        for (program, arguments) in readers {
            let Some(said) = complaints(program, arguments, &path) else {
                return;
            };
            // The pages have no date on purpose.
            let said: Vec<&str> = said
                .lines()
                .filter(|line| !line.contains("missing date"))
                .collect();
            assert!(said.is_empty(), "{program} {name}: {said:?}");
        }
    }
}

#[test]
fn every_flag_of_every_program_is_in_its_page_and_completed() {
    let pages = pages::pages();
    for applet in APPLETS {
        let page = String::from_utf8(pages[&format!("{}.1", applet.name())].clone()).unwrap();
        let scripts = ["bash", "zsh", "fish"].map(|shell| {
            let script = completions::script(shell, applet.name());
            String::from_utf8(script).unwrap()
        });
        for flag in applet
            .command()
            .get_arguments()
            .filter(|arg| !arg.is_positional())
        {
            let long = flag.get_long().unwrap();
            let typed = format!("--{long}").replace('-', "\\-");
            let paragraph = page
                .split(".TP")
                .find(|text| text.trim_start().starts_with("\\fB") && text.contains(&typed));
            let lines = paragraph.map(|text| text.trim().lines().count());
            assert!(lines >= Some(2), "{long} is not, or not explained, in\n{page}");
            for script in &scripts {
                assert!(script.contains(long), "{long} is not in\n{script}");
            }
        }
    }
}

#[test]
fn help_finds_subcommands_of_subcommands_and_no_others() {
    let page = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        help::page(words.iter())
    };
    assert!(page(&[]).unwrap().contains("Start here"));
    assert!(page(&["record"]).unwrap().contains("--clone-by-name"));
    assert!(page(&["traced"]).unwrap().contains("--set-socket-permissions"));
    assert_eq!(page(&["record", "nothing"]), Err("nothing".to_owned()));
}
