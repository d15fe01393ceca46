//! Generates the man pages from the flags.
//!
//! A test calls it to prove that the pages in `docs/man` are up to date, or to write them again.

use std::collections::BTreeMap;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{overview, tree};
use crate::applet::{APPLETS, DEFAULT, subcommands};

/// Returns the text of every page by file name: `ferretto.1`, `ferretto-record.1`, `perfetto.1`, …
pub(super) fn pages() -> BTreeMap<String, Vec<u8>> {
    let mut pages = BTreeMap::new();
    let mut tree = tree();
    tree.build();
    add(&mut pages, DEFAULT.name(), &tree);
    for applet in APPLETS {
        let mut command = applet.command();
        command.build();
        add(&mut pages, applet.name(), &command);
    }
    pages
}

fn add(pages: &mut BTreeMap<String, Vec<u8>>, name: &str, command: &Command) {
    pages.insert(format!("{name}.1"), page(name, command));
    for subcommand in command.get_subcommands() {
        // Programs have pages of their own.
        if !is_program(name, subcommand) {
            add(pages, &page_name(name, subcommand), subcommand);
        }
    }
}

/// Whether this subcommand of `parent` is a program too.
fn is_program(parent: &str, command: &Command) -> bool {
    let mut programs = APPLETS.iter().map(|applet| applet.name());
    parent == DEFAULT.name() && programs.any(|program| program == command.get_name())
}

/// Returns the name of the page, as given to `man`.
fn page_name(parent: &str, command: &Command) -> String {
    match is_program(parent, command) {
        true => command.get_name().to_owned(),
        false => format!("{parent}-{}", command.get_name()),
    }
}

fn page(name: &str, command: &Command) -> Vec<u8> {
    let command = command
        .clone()
        .display_name(name.to_owned())
        // The page shows flags that only the long help explains.
        .mut_args(|arg| with_values_in_a_row(arg.hide_short_help(false)));
    let man = Man::new(command.clone());
    // The page has no date, so it depends only on the flags.
    let mut page = format!(
        ".\\\" Made from the flags by `FERRETTO_WRITE_MANUAL=1 cargo test -p ferretto-cli manual`.\n\
         .TH \"{name}\" 1 \"\" \"Ferretto {}\" \"Ferretto Manual\"\n",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes();
    let parts = [
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
    ];
    for part in parts {
        part(&man, &mut page).expect("memory takes everything");
    }
    if name == DEFAULT.name() {
        let mut rest = Roff::new();
        rest.text([
            roman("Without a subcommand it records, with the flags of "),
            bold("ferretto-record"),
            roman("(1), and starts a tracing service for that if none is running."),
        ]);
        rest.control("PP", []);
        verbatim(&mut rest, overview::FIRST_STEPS);
        rest.to_writer(&mut page).expect("memory takes everything");
    } else if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)
            .expect("memory takes everything");
    }
    let mut more = Roff::new();
    if command.get_subcommands().next().is_some() {
        more.control("SH", ["SUBCOMMANDS"]);
        for subcommand in command.get_subcommands() {
            let about = subcommand
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            more.control("TP", []);
            more.text([bold(page_name(name, subcommand)), roman("(1)")]);
            more.text([roman(overview::first_clause(&about).to_owned())]);
        }
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        text.to_string()
            .split("\n\n")
            .for_each(|block| section(&mut more, block));
    }
    see_also(&mut more, name);
    more.to_writer(&mut page).expect("memory takes everything");
    page
}

/// Puts the possible values of an argument into its help. As a list of paragraphs, they make page checkers complain.
fn with_values_in_a_row(arg: Arg) -> Arg {
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if values.is_empty() || arg.is_hide_possible_values_set() || !arg.get_action().takes_values() {
        return arg;
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.hide_possible_values(true)
        .help(format!("{help} [one of: {}]", values.join(", ")))
}

/// Writes one block of the text after a command's flags. A block that begins with a title and a colon becomes a section of that title.
fn section(roff: &mut Roff, block: &str) {
    let titled = block
        .split_once(":\n")
        .filter(|(title, _)| title.split(' ').count() <= 2);
    let (title, lines) = titled.unwrap_or(("Notes", block));
    roff.control("SH", [title.to_uppercase().as_str()]);
    verbatim(roff, lines);
}

/// Writes text with its line breaks.
fn verbatim(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn see_also(roff: &mut Roff, name: &str) {
    let all = subcommands().map(|applet| match applet.is_program() {
        true => applet.name().to_owned(),
        false => format!("{}-{}", DEFAULT.name(), applet.name()),
    });
    let others: Vec<String> = std::iter::once(DEFAULT.name().to_owned())
        .chain(all)
        .filter(|other| other != name)
        .collect();
    roff.control("SH", ["SEE ALSO"]);
    let mut words = Vec::new();
    for (index, other) in others.iter().enumerate() {
        if index > 0 {
            words.push(roman(", "));
        }
        words.extend([bold(other), roman("(1)")]);
    }
    roff.text(words);
    roff.control("PP", []);
    roff.text([roman("Traces are looked at with https://ui.perfetto.dev; configs are explained at https://perfetto.dev/docs.")]);
}
