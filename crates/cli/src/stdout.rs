//! stdout: its width, whether to use colours, and the printing of a whole answer.
//!
//! The subcommands that answer a question call it: `list`, `status`, `doctor`, `config new`. Recordings print to stderr, see `perfetto/console.rs`.

mod table;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::{Arg, ArgAction};
use serde_json::Value;

pub(crate) use table::{Column, Table};

/// Whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Coloured,
    Plain,
}

/// The destination of stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Screen {
    /// A terminal with this many columns.
    Terminal(usize, Style),
    /// A pipe or a file.
    Pipe,
}

const BOLD: &str = "\x1b[1m";
const USUAL: &str = "\x1b[0m";
/// The width of a terminal that does not report it, and of a pipe.
const USUAL_WIDTH: usize = 100;

impl Screen {
    /// Finds out where stdout leads. Colours follow <https://no-color.org>.
    pub(crate) fn look() -> Screen {
        Screen::of(&io::stdout())
    }

    /// Finds out where stderr leads.
    pub(crate) fn of_stderr() -> Screen {
        Screen::of(&io::stderr())
    }

    fn of(stream: &(impl IsTerminal + AsFd)) -> Screen {
        if !stream.is_terminal() {
            return Screen::Pipe;
        }
        let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let style = match (set("NO_COLOR"), set("TERM")) {
            (Some(_), _) => Style::Plain,
            (None, Some(term)) if term == "dumb" => Style::Plain,
            (None, _) => Style::Coloured,
        };
        Screen::Terminal(if columns == 0 { USUAL_WIDTH } else { columns }, style)
    }

    /// Whether to use colours.
    pub(crate) fn style(self) -> Style {
        match self {
            Screen::Terminal(_, style) => style,
            Screen::Pipe => Style::Plain,
        }
    }

    /// Returns a text in bold, if there are colours.
    pub(crate) fn bold(self, text: &str) -> String {
        match self.style() {
            Style::Coloured => format!("{BOLD}{text}{USUAL}"),
            Style::Plain => text.to_owned(),
        }
    }

    /// Returns the number of columns. A pipe counts like a terminal that does not report it.
    pub(crate) fn width(self) -> usize {
        match self {
            Screen::Terminal(width, _) => width,
            Screen::Pipe => USUAL_WIDTH,
        }
    }
}

/// Returns the flag of subcommands that can print JSON; its id is `json`.
pub(crate) fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON, for scripts: see docs/json.md")
}

/// Prints an answer for scripts.
///
/// # Errors
/// The same as those of [`print`].
pub(crate) fn print_json(answer: &Value) -> Result<(), String> {
    print(format!("{answer:#}\n").as_bytes())
}

/// Prints a whole answer.
///
/// # Errors
/// If it cannot be written. A reader that closes the pipe early (`| head`) is no error.
pub(crate) fn print(answer: &[u8]) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(answer).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {error}"))
        }
        _ => Ok(()),
    }
}

/// Makes a name from outside harmless for a terminal: control characters become escapes.
pub(crate) fn harmless(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_cannot_draw() {
        assert_eq!(harmless("größe 1/2"), "größe 1/2");
        assert_eq!(harmless("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
    }
}
