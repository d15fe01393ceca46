//! A table with aligned columns.
//!
//! The subcommands that list things use it. On a terminal, a long cell in the last column continues on further lines, broken at spaces. In a pipe
//! each row is one line, for scripts.

use super::{Screen, harmless};

/// The least width of the last column on a terminal.
const NARROWEST: usize = 20;
const GAP: &str = "  ";

/// The alignment of a column's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    heading: &'static str,
    align: Align,
}

impl Column {
    /// Makes a column of text.
    pub(crate) const fn text(heading: &'static str) -> Column {
        Column {
            heading,
            align: Align::Left,
        }
    }

    /// Makes a column of numbers.
    pub(crate) const fn number(heading: &'static str) -> Column {
        Column {
            heading,
            align: Align::Right,
        }
    }
}

/// A table of rows under headings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows.
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Table {
        Table {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| harmless(cell.as_ref())).collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines. A table without rows has none, not even headings.
    pub(crate) fn print(&self, screen: Screen) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let widths = self.widths();
        let before: usize = widths.iter().rev().skip(1).map(|width| width + GAP.len()).sum();
        let room = match screen {
            Screen::Terminal(width, _) => width.saturating_sub(before).max(NARROWEST),
            Screen::Pipe => usize::MAX,
        };
        let mut out = String::new();
        let headings: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.heading.to_owned())
            .collect();
        out.push_str(&screen.bold(&self.line(&headings, &widths)));
        out.push('\n');
        for row in &self.rows {
            let mut row = row.clone();
            let last = row.pop().unwrap_or_default();
            for (index, part) in wrapped(&last, room).into_iter().enumerate() {
                if index == 1 {
                    row.iter_mut().for_each(String::clear);
                }
                row.push(part);
                out.push_str(&self.line(&row, &widths));
                out.push('\n');
                row.pop();
            }
        }
        out
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(index, column)| {
                let cells = self.rows.iter().filter_map(|row| row.get(index));
                let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
                longest.max(column.heading.len())
            })
            .collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (index, ((cell, column), width)) in cells.iter().zip(&self.columns).zip(widths).enumerate() {
            if index > 0 {
                line.push_str(GAP);
            }
            match column.align {
                Align::Left => line.push_str(&format!("{cell:<width$}")),
                Align::Right => line.push_str(&format!("{cell:>width$}")),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Splits a text at spaces into pieces of at most `room` letters. A longer word becomes a piece of its own.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    if text.chars().count() <= room {
        return vec![text.to_owned()];
    }
    let mut pieces: Vec<String> = Vec::new();
    let mut left = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        match pieces.last_mut() {
            Some(piece) if length < left => {
                piece.push(' ');
                piece.push_str(word);
                left -= length + 1;
            }
            _ => {
                pieces.push(word.to_owned());
                left = room.saturating_sub(length);
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::{BOLD, Style, USUAL};
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([
            Column::text("NAME"),
            Column::number("PID"),
            Column::text("OFFERS"),
        ]);
        table.row(["traced_probes", "7", "linux.ftrace, linux.process_stats"]);
        table.row(["größe", "12345", "a"]);
        table
    }

    #[test]
    fn scripts_get_a_line_for_each_row() {
        assert_eq!(
            table().print(Screen::Pipe),
            "NAME             PID  OFFERS\n\
             traced_probes      7  linux.ftrace, linux.process_stats\n\
             größe          12345  a\n"
        );
        assert_eq!(Table::new([Column::text("NAME")]).print(Screen::Pipe), "");
    }

    #[test]
    fn a_narrow_terminal_breaks_the_last_column() {
        assert_eq!(
            table().print(Screen::Terminal(45, Style::Plain)),
            "NAME             PID  OFFERS\n\
             traced_probes      7  linux.ftrace,\n                      linux.process_stats\n\
             größe          12345  a\n"
        );
    }

    #[test]
    fn only_the_headings_stand_out() {
        let coloured = table().print(Screen::Terminal(200, Style::Coloured));
        assert!(coloured.starts_with("\x1b[1mNAME"), "{coloured:?}");
        assert_eq!(
            coloured.replace(BOLD, "").replace(USUAL, ""),
            table().print(Screen::Pipe)
        );
    }
}
