//! Messages while a recording runs: lines on stderr, and on a terminal one line that changes in place, perhaps with rows below it.
//!
//! [`run`](super::run), [`record`](super::record) and [`query`](super::query) call it. On a pipe, and on a dumb terminal, it prints plain lines only
//! and no escape codes. stdout is reserved for data that scripts read: the trace, the process id of `-d`, the state.
//!
//! The cursor rests at the start of the changing line. So other output (a `^C` that the terminal echoes, a shell's message about a stopped job)
//! begins there. Clearing down from the cursor clears the whole line, even if the terminal became narrower and wrapped it. The line is shown only
//! while this process is in the foreground of the terminal.

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::Program;
use super::suspension;
use crate::stderr::tell;

/// stderr, for people.
#[derive(Debug)]
pub(crate) struct Console {
    voice: Voice,
    kind: StderrKind,
    palette: Palette,
    /// Lines that are kept for another console instead of being printed.
    kept: Option<Vec<String>>,
    /// The text below the changing line.
    below: Option<Box<dyn Below>>,
}

/// Rows that a terminal shows below the changing line, and that change with it.
pub(crate) trait Below: std::fmt::Debug {
    /// The service is about to write the trace into this file, which is empty.
    fn begin(&mut self, trace: &Path);

    /// Returns the rows as they are now. Must not block.
    fn rows(&self) -> Vec<String>;
}

/// The speaker of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Voice {
    /// The program whose name begins the messages.
    pub(crate) program: Program,
    pub(crate) loudness: Loudness,
}

/// The destination of stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StderrKind {
    /// A terminal, which can redraw a line.
    Terminal,
    /// A file, a pipe, or a dumb terminal.
    Plain,
}

/// The amount of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Loudness {
    /// Events and the outcome.
    #[default]
    Usual,
    /// Errors and losses.
    Quiet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Palette {
    Coloured,
    /// No colours, as <https://no-color.org> specifies.
    None,
}

/// Makes a message about missing data stand out.
const ALARM: &str = "\x1b[31m";
const USUAL: &str = "\x1b[0m";

/// Clears down from the start of the line, and so also the rows below it.
pub(super) const CLEAR: &str = "\r\x1b[J";
/// Between these, the terminal cuts off an overlong line instead of wrapping it.
const DO_NOT_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// Held while the screen and the state of the line may differ.
static DRAWING: Mutex<()> = Mutex::new(());

const NARROWEST: usize = 20;
const USUAL_WIDTH: usize = 80;
const USUAL_HEIGHT: usize = 24;

/// The changing line: its parts in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    text: String,
    tone: Tone,
    /// When the line is too long, parts with the highest number are left out first. A part with 0 stays.
    rank: u8,
}

/// The look of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Usual,
    /// Data are missing.
    Alarm,
}

impl Line {
    /// Makes a line that begins with this text.
    pub(crate) fn new(text: impl Display) -> Line {
        let mut line = Line::default();
        line.push(0, Tone::Usual, text);
        line
    }

    /// Appends a part, including its separator. The higher its `rank`, the sooner it is left out.
    pub(crate) fn push(&mut self, rank: u8, tone: Tone, text: impl Display) {
        let text = text.to_string();
        self.0.push(Part { text, tone, rank });
    }

    fn width(&self) -> usize {
        self.0.iter().map(|part| part.text.chars().count()).sum()
    }

    /// Leaves out the parts for which there is no room.
    fn fitting(mut self, width: usize) -> Line {
        while self.width() > width {
            let last = self.0.iter().map(|part| part.rank).max().unwrap_or(0);
            if last == 0 {
                break;
            }
            self.0.retain(|part| part.rank < last);
        }
        self
    }

    fn painted(&self, palette: Palette) -> String {
        self.0
            .iter()
            .map(|part| palette.paint(part.tone, &part.text))
            .collect()
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|part| f.write_str(&part.text))
    }
}

impl Palette {
    fn paint(self, tone: Tone, text: &str) -> String {
        match (self, tone) {
            (Palette::Coloured, Tone::Alarm) => format!("{ALARM}{text}{USUAL}"),
            _ => text.to_owned(),
        }
    }
}

impl Console {
    /// Makes the console of this process.
    pub(crate) fn new(voice: Voice) -> Console {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let kind = if std::io::stderr().is_terminal() && !dumb {
            StderrKind::Terminal
        } else {
            StderrKind::Plain
        };
        let palette = match (kind, set("NO_COLOR")) {
            (StderrKind::Terminal, None) => Palette::Coloured,
            _ => Palette::None,
        };
        Console {
            voice,
            kind,
            palette,
            kept: None,
            below: None,
        }
    }

    /// Makes a console for a thread that does not own the terminal. It keeps its lines for the owner.
    pub(crate) fn kept(voice: Voice) -> Console {
        Console {
            voice,
            kind: StderrKind::Plain,
            palette: Palette::None,
            kept: Some(Vec::new()),
            below: None,
        }
    }

    /// Shows rows below the changing line from now on, also when quiet. Elsewhere than on a terminal they are not shown.
    pub(crate) fn show_below(&mut self, below: Option<Box<dyn Below>>) {
        self.below = below.filter(|_| self.kind == StderrKind::Terminal);
    }

    /// Takes the rows below the changing line away.
    pub(crate) fn take_below(&mut self) -> Option<Box<dyn Below>> {
        self.below.take()
    }

    /// Whether there are rows below the changing line.
    pub(crate) fn has_rows_below(&self) -> bool {
        self.below.is_some()
    }

    /// Is told that the service is about to write the trace into this file.
    pub(crate) fn recording_into(&mut self, trace: &Path) {
        if let Some(below) = &mut self.below {
            below.begin(trace);
        }
    }

    /// Returns the kept lines.
    pub(crate) fn into_kept(mut self) -> Vec<String> {
        self.kept.take().unwrap_or_default()
    }

    /// Returns the speaker.
    pub(crate) fn voice(&self) -> Voice {
        self.voice
    }

    /// Returns the destination of stderr.
    pub(crate) fn kind(&self) -> StderrKind {
        self.kind
    }

    /// Prints a line that starts with the program's name, even when quiet: errors and losses.
    pub(crate) fn say(&mut self, text: impl Display) {
        let name = self.voice.program.name();
        self.pass_on(format_args!("{name}: {text}"));
    }

    /// Prints a line that starts with the program's name, unless quiet: progress and the outcome.
    pub(crate) fn notice(&mut self, text: impl Display) {
        if self.voice.loudness == Loudness::Usual {
            self.say(text);
        }
    }

    /// Prints a line that continues the one before, unless quiet.
    pub(crate) fn line(&mut self, text: impl Display) {
        if self.voice.loudness == Loudness::Usual {
            self.pass_on(text);
        }
    }

    /// Prints a line about missing data, which continues the one before and stands out.
    pub(crate) fn alarm(&mut self, text: &str) {
        match self.voice.loudness {
            Loudness::Usual => self.pass_on(self.palette.paint(Tone::Alarm, text)),
            // When quiet, there is no line before.
            Loudness::Quiet => self.say(self.palette.paint(Tone::Alarm, text.trim_start())),
        }
    }

    /// Prints a line unchanged, such as one that was kept.
    pub(crate) fn pass_on(&mut self, text: impl Display) {
        if let Some(lines) = &mut self.kept {
            return lines.push(text.to_string());
        }
        put_line(&text);
    }

    /// Is told that the user pressed a key that the terminal echoes (`^C`). The next line overwrites the echo.
    pub(crate) fn key_pressed(&mut self) {
        if self.kind == StderrKind::Terminal {
            suspension::line_is_there();
        }
    }

    /// Replaces the changing line on a terminal; prints a plain line elsewhere.
    pub(crate) fn progress(&mut self, line: Line) {
        match self.kind {
            StderrKind::Plain => self.line(line),
            StderrKind::Terminal => self.live(line),
        }
    }

    /// Replaces the changing line on a terminal; prints nothing elsewhere.
    pub(crate) fn live(&mut self, line: Line) {
        let is_quiet = self.voice.loudness == Loudness::Quiet && self.below.is_none();
        if self.kind == StderrKind::Plain || is_quiet || !in_foreground() {
            return;
        }
        // The last column stays free, because some terminals wrap when it is filled.
        let line = line.fitting(terminal_width() - 1).painted(self.palette);
        let rows = self.below.as_ref().map_or_else(Vec::new, |below| below.rows());
        // The cursor goes back up, so nothing may scroll away. One row stays free for other output.
        let rows = &rows[..rows.len().min(terminal_height().saturating_sub(2))];
        let below: String = rows.iter().map(|row| format!("\n{row}")).collect();
        let up = match rows.len() {
            0 => String::new(),
            rows => format!("\x1b[{rows}A"),
        };
        let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
        suspension::line_is_there();
        tell(&format!("{CLEAR}{DO_NOT_WRAP}{line}{below}{WRAP}{up}\r"));
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if suspension::line_is_gone() {
            tell(CLEAR);
        }
    }
}

/// Prints a line from a process that this one has started. Any thread may call it.
pub(crate) fn interject(text: &str) {
    // Indented lines continue a message.
    let name = if text.starts_with(' ') { "" } else { "ferretto: " };
    put_line(&format_args!("{name}{text}"));
}

fn put_line(text: &dyn Display) {
    let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    let clear = if suspension::line_is_gone() { CLEAR } else { "" };
    tell(&format!("{clear}{text}\n"));
}

/// Whether this process may draw on the terminal, which it may not after a shell has put it into the background.
fn in_foreground() -> bool {
    match rustix::termios::tcgetpgrp(std::io::stderr()) {
        Ok(foreground) => foreground == rustix::process::getpgrp(),
        // This is not the controlling terminal, so no shell manages jobs there.
        Err(_) => true,
    }
}

fn terminal_height() -> usize {
    let rows = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_row);
    if rows == 0 {
        USUAL_HEIGHT
    } else {
        usize::from(rows)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let mut line = Line::new("recording");
        line.push(2, Tone::Usual, ", full");
        line.push(1, Tone::Alarm, ", LOST");
        line.push(2, Tone::Usual, ", rate");
        line
    }

    #[test]
    fn a_long_line_loses_its_least_important_parts() {
        let at = |width| line().fitting(width).to_string();
        assert_eq!(at(27), "recording, full, LOST, rate");
        assert_eq!(at(26), "recording, LOST");
        assert_eq!(at(14), "recording");
        assert_eq!(at(3), "recording", "the terminal cuts it");
    }

    #[test]
    fn only_alarms_are_coloured_and_only_if_wanted() {
        assert_eq!(
            line().painted(Palette::Coloured),
            "recording, full\x1b[31m, LOST\x1b[0m, rate"
        );
        assert_eq!(line().painted(Palette::None), line().to_string());
    }
}
