//! The manual page, made from the flags. A test proves that `man/ferretto-tunnel.1` is up to date, or writes it again.

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::Args;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/man/ferretto-tunnel.1");
/// Set to have the page written.
const WRITE: &str = "FERRETTO_WRITE_MANUAL";

fn page() -> Vec<u8> {
    let command = Args::command();
    let man = Man::new(command.clone());
    // Without a date, so it depends only on the flags.
    let mut page = format!(
        ".\\\" Made from the flags by `{WRITE}=1 cargo test --manifest-path tunnel/Cargo.toml manual`.\n\
         .TH \"ferretto-tunnel\" 1 \"\" \"Ferretto {}\" \"Ferretto Manual\"\n",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes();
    for part in [
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ] {
        part(&man, &mut page).unwrap();
    }
    let mut environment = Roff::new();
    environment.control("SH", ["ENVIRONMENT"]).control("nf", []);
    let after = command.get_after_long_help().unwrap().to_string();
    for line in after.lines().skip(1) {
        environment.text([roman(line)]);
    }
    environment.control("fi", []).control("SH", ["SEE ALSO"]);
    environment.text([roman("traced_relay(1), traced(1)")]);
    environment.to_writer(&mut page).unwrap();
    page
}

#[test]
fn the_manual_page_is_that_of_the_flags() {
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read(PAGE).unwrap_or_default();
    assert!(written == page, "{PAGE} is old: {WRITE}=1 writes it again");
}
