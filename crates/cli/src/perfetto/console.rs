//! What the user sees while a recording runs: lines on stderr, and on a terminal one line that changes in place.
//!
//! Called by [`run`](super::run), [`record`](super::record) and [`query`](super::query). On a pipe there are plain lines only
//! and no escape codes. stdout is left to what scripts read: the trace, the process id of `-d`, the state.

use std::io::{IsTerminal, Write};

use super::Program;

/// stderr, for people.
#[derive(Debug)]
pub(crate) struct Console {
    program: Program,
    kind: Kind,
    /// Whether the changing line is on the screen.
    live: bool,
    /// Lines that are kept for another console, instead of printed.
    kept: Option<Vec<String>>,
}

/// Where stderr goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To a terminal, which can redraw a line.
    Terminal,
    /// Into a file or a pipe.
    Plain,
}

const RETURN_AND_CLEAR: &str = "\r\x1b[2K";
const NARROWEST: usize = 20;
const USUAL_WIDTH: usize = 80;

impl Console {
    /// The console of this process.
    pub(crate) fn new(program: Program) -> Console {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let kind = if std::io::stderr().is_terminal() && !dumb {
            Kind::Terminal
        } else {
            Kind::Plain
        };
        Console {
            program,
            kind,
            live: false,
            kept: None,
        }
    }

    /// One for a thread that does not own the terminal: keeps its lines for whoever does.
    pub(crate) fn kept(program: Program) -> Console {
        Console {
            program,
            kind: Kind::Plain,
            live: false,
            kept: Some(Vec::new()),
        }
    }

    /// The lines that were kept.
    pub(crate) fn into_kept(mut self) -> Vec<String> {
        self.kept.take().unwrap_or_default()
    }

    /// Under which name it speaks.
    pub(crate) fn program(&self) -> Program {
        self.program
    }

    /// Where it goes.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// A line that starts with the program's name: what goes wrong or is about to happen.
    pub(crate) fn say(&mut self, text: impl std::fmt::Display) {
        let name = self.program.name();
        self.line(format_args!("{name}: {text}"));
    }

    /// A line that starts with the program's name: what is about to happen, and how it ended.
    pub(crate) fn notice(&mut self, text: impl std::fmt::Display) {
        self.say(text);
    }

    /// A line.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) {
        if let Some(lines) = &mut self.kept {
            return lines.push(text.to_string());
        }
        let clear = if std::mem::take(&mut self.live) {
            RETURN_AND_CLEAR
        } else {
            ""
        };
        // Nobody is left to tell when stderr is closed.
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    /// Replaces the changing line, on a terminal; a plain line elsewhere.
    pub(crate) fn progress(&mut self, text: &str) {
        match self.kind {
            Kind::Plain => self.line(text),
            Kind::Terminal => {
                self.live = true;
                let text = fitting(text, terminal_width());
                let _ = write!(std::io::stderr(), "{RETURN_AND_CLEAR}{text}");
            }
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if self.live {
            let _ = write!(std::io::stderr(), "{RETURN_AND_CLEAR}");
        }
    }
}

fn terminal_width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 {
        USUAL_WIDTH
    } else {
        usize::from(columns).max(NARROWEST)
    }
}

/// What of `text` fits in a line, so that it never wraps and can be cleared. The last column stays free: some terminals
/// wrap when it is filled.
fn fitting(text: &str, width: usize) -> &str {
    text.char_indices()
        .nth(width.saturating_sub(1))
        .map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_before_the_edge() {
        assert_eq!(fitting("12345", 6), "12345");
        assert_eq!(fitting("123456", 6), "12345");
        assert_eq!(fitting("äöüß", 3), "äö");
    }
}
