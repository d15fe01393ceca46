//! The result of a check, and its formatting.
//!
//! The checks make findings; [`run`](super::run) prints them.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::stdout::Style;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// As it should be.
    Ok,
    /// Recording works, but something will be missing from some traces.
    Note,
    /// Nothing can be recorded.
    Problem,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Problem => "problem",
        }
    }

    /// Returns the colour of the word on a terminal: green, yellow, red.
    fn colour(self) -> &'static str {
        match self {
            Mark::Ok => "\x1b[32m",
            Mark::Note => "\x1b[33m",
            Mark::Problem => "\x1b[31m",
        }
    }
}

/// The result of examining one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) mark: Mark,
    /// One word.
    pub(super) topic: &'static str,
    /// The present state.
    pub(super) what: String,
    /// The disadvantage of that state.
    pub(super) costs: Option<String>,
    /// Commands that fix it, one a line.
    pub(super) mend: Vec<String>,
}

impl Finding {
    fn new(mark: Mark, topic: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            mark,
            topic,
            what: what.into(),
            costs: None,
            mend: Vec::new(),
        }
    }

    /// Reports that something is as it should be.
    pub(super) fn ok(topic: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Mark::Ok, topic, what)
    }

    /// Reports that some data will be missing; [`Finding::costs`] says which.
    pub(super) fn note(topic: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Mark::Note, topic, what)
    }

    /// Reports that nothing can be recorded.
    pub(super) fn problem(topic: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Mark::Problem, topic, what)
    }

    /// Adds the disadvantage of the present state.
    pub(super) fn costs(mut self, costs: impl Into<String>) -> Finding {
        self.costs = Some(costs.into());
        self
    }

    /// Adds a command that fixes it.
    pub(super) fn mend(mut self, command: impl Into<String>) -> Finding {
        self.mend.push(command.into());
        self
    }
}

/// The columns of mark and topic, each with a space after it.
const MARK_COLUMN: usize = 8;
const TOPIC_COLUMN: usize = 11;
const TEXT_COLUMN: usize = MARK_COLUMN + TOPIC_COLUMN;
/// The least width of the text's column.
const NARROWEST_TEXT: usize = 30;

/// Formats all findings for a terminal of this width, with the conclusion at the end. Commands are never wrapped, so that they can be copied.
pub(super) fn report(findings: &[Finding], width: usize, style: Style) -> String {
    let mut out = String::new();
    for finding in findings {
        let word = finding.mark.word();
        let gap = " ".repeat(MARK_COLUMN - word.len());
        match style {
            Style::Plain => out.push_str(word),
            // Writing to a string cannot fail.
            Style::Coloured => drop(write!(out, "{}{word}\x1b[0m", finding.mark.colour())),
        }
        let _ = write!(out, "{gap}{:<width$}", finding.topic, width = TOPIC_COLUMN);
        let text = width.saturating_sub(TEXT_COLUMN).max(NARROWEST_TEXT);
        push_wrapped(&mut out, "", &finding.what, text);
        if let Some(costs) = &finding.costs {
            indent(&mut out);
            push_wrapped(&mut out, "costs: ", costs, text);
        }
        for command in &finding.mend {
            indent(&mut out);
            let _ = writeln!(out, "mend:  {command}");
        }
    }
    let _ = writeln!(out, "\n{}", judgement(findings));
    out
}

fn indent(out: &mut String) {
    let _ = write!(out, "{:TEXT_COLUMN$}", "");
}

/// Returns the worst mark.
pub(super) fn worst(findings: &[Finding]) -> Mark {
    findings
        .iter()
        .map(|finding| finding.mark)
        .max()
        .unwrap_or(Mark::Ok)
}

/// Formats the findings for scripts, as `docs/schema/doctor.json` describes it.
pub(super) fn json(findings: &[Finding]) -> Value {
    let worst = worst(findings);
    let findings = findings.iter().map(|finding| {
        json!({
            "mark": finding.mark.word(),
            "topic": finding.topic,
            "what": finding.what,
            "costs": finding.costs,
            "mend": finding.mend,
        })
    });
    json!({
        "recording_works": worst != Mark::Problem,
        "worst": worst.word(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn judgement(findings: &[Finding]) -> &'static str {
    match worst(findings) {
        Mark::Ok => "Recording works.",
        Mark::Note => "Recording works; the notes say what will be missing.",
        Mark::Problem => "Recording does not work until each problem is mended.",
    }
}

/// Appends words in lines of at most `width` characters. The first line begins at the cursor, later ones below it, indented by the length of `lead`.
/// A longer word gets a line of its own.
fn push_wrapped(out: &mut String, lead: &str, text: &str, width: usize) {
    out.push_str(lead);
    let mut column = lead.len();
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > lead.len() && column + 1 + length > width {
            out.push('\n');
            indent(out);
            out.push_str(&" ".repeat(lead.len()));
            column = lead.len();
        }
        if column > lead.len() {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("kernel", "Linux 6.12"),
            Finding::note("tracefs", "it is not there and so nobody can use it at all")
                .costs("no kernel events; linux.process_stats still works")
                .mend("sudo mount -t tracefs nodev /sys/kernel/tracing"),
        ]
    }

    #[test]
    fn columns_line_up_and_commands_stay_whole() {
        let expected = "\
ok      kernel     Linux 6.12
note    tracefs    it is not there and so nobody
                   can use it at all
                   costs: no kernel events;
                          linux.process_stats
                          still works
                   mend:  sudo mount -t tracefs nodev /sys/kernel/tracing

Recording works; the notes say what will be missing.
";
        assert_eq!(report(&findings(), 49, Style::Plain), expected);
    }

    #[test]
    fn colours_change_nothing_else() {
        let coloured = report(&findings(), 80, Style::Coloured);
        let mut plain = coloured.clone();
        for code in ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, report(&findings(), 80, Style::Plain));
        assert!(
            coloured.starts_with("\x1b[32mok\x1b[0m      kernel"),
            "{coloured}"
        );
    }

    #[test]
    fn no_line_but_a_command_is_wider_than_the_terminal() {
        for width in 49..120 {
            for line in report(&findings(), width, Style::Plain).lines() {
                assert!(
                    line.chars().count() <= width || line.contains("mend:") || line.starts_with("Recording"),
                    "{width}: {line}"
                );
            }
        }
    }

    #[test]
    fn the_judgement_is_that_of_the_worst() {
        let mut all = findings();
        assert_eq!(worst(&all), Mark::Note);
        assert_eq!(worst(&all[..1]), Mark::Ok);
        all.push(Finding::problem("service", "it hangs"));
        assert_eq!(worst(&all), Mark::Problem);
        let text = report(&all, 80, Style::Plain);
        assert!(text.contains("\nproblem service    it hangs\n"), "{text}");
        assert!(text.ends_with("Recording does not work until each problem is mended.\n"));
    }
}
