//! The screen for newcomers to `ferretto`: first steps, subcommands, and where to read on.
//!
//! [`applet`](crate::applet) prints it for `ferretto` and `ferretto --help`, and `ferretto help` prints it too. It fits a terminal of usual size.

use clap::Command;

use super::tree;

/// Flags that the first recordings need, in the order of the screen. `ferretto help record` has the others.
const FIRST_FLAGS: &[&str] = &["time", "out"];

pub(super) const FIRST_STEPS: &str = "\
Start here (without sudo: leave out the events, and processes and counters are recorded):
  sudo ferretto -t 5s -o trace.pftrace sched/sched_switch sched/sched_waking
  ferretto open trace.pftrace";

const MORE: &str = "\
More: `ferretto help SUBCOMMAND`; all flags: `ferretto help record`; trouble: `ferretto doctor`.";

/// Returns the screen, as wide as the terminal but no wider than 100 columns.
pub(crate) fn overview() -> String {
    screen().render_help().to_string()
}

pub(super) fn screen() -> Command {
    tree()
        .override_usage(super::usage_of_recordings())
        .help_template(
            format!(
                "{{about}}\n{FIRST_STEPS}\n{{usage-heading}} {{usage}}\nFlags of recordings, the first few:\n{{options}}\n\
                 Subcommands:\n{{subcommands}}\n{MORE}"
            ),
        )
        .mut_args(|arg| {
            let first = FIRST_FLAGS.iter().position(|flag| arg.get_id() == flag);
            match first {
                Some(place) => arg.display_order(place).hide_short_help(false),
                None => arg.hide(true),
            }
        })
        .mut_subcommands(|subcommand| {
            let about = subcommand
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            subcommand.about(in_a_line(&about).to_owned())
        })
}

/// Returns a description without its details, which follow a colon, a semicolon, a dash, a bracket or a full stop.
pub(super) fn first_clause(about: &str) -> &str {
    let end = [": ", "; ", " - ", " (", ". ", "\n"]
        .iter()
        .filter_map(|mark| about.find(mark))
        .min()
        .unwrap_or(about.len());
    about[..end].trim_end_matches('.')
}

/// Returns the first clause; if that does not fit beside the names, its part before the first comma.
fn in_a_line(about: &str) -> &str {
    const ROOM: usize = 78;
    let clause = first_clause(about);
    match clause.split_once(", ") {
        Some((start, _)) if clause.chars().count() > ROOM => start,
        _ => clause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_screen() {
        let screen = screen().term_width(100).render_help().to_string();
        let lines: Vec<&str> = screen.lines().collect();
        // The prompt of the shell has the last line of a terminal of 40.
        assert!(lines.len() < 40, "{} lines\n{screen}", lines.len());
        for line in lines {
            assert!(line.chars().count() <= 100, "{line:?}");
        }
    }

    #[test]
    fn it_names_every_subcommand_on_a_line_of_its_own() {
        let screen = screen().term_width(100).render_help().to_string();
        for applet in crate::applet::subcommands() {
            let start = format!("  {} ", applet.name());
            let lines = screen.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(lines, 1, "{}\n{screen}", applet.name());
        }
    }

    #[test]
    fn a_description_is_cut_where_its_details_begin() {
        assert_eq!(first_clause("Records traces. Then more."), "Records traces");
        assert_eq!(first_clause("Sources: one, two"), "Sources");
        assert_eq!(first_clause("All of it"), "All of it");
        let long = "x".repeat(40);
        assert_eq!(in_a_line(&format!("{long}, {long}, {long}: more")), long);
        assert_eq!(in_a_line("One, and two"), "One, and two");
    }
}
