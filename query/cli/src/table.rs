//! Rows as text in columns: numbers to the right, text to the left, as wide as what is in them.

use std::io::IsTerminal;

use ferretto_sql::datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use ferretto_sql::datafusion::arrow::datatypes::DataType;
use ferretto_sql::datafusion::arrow::error::ArrowError;
use ferretto_sql::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::UnicodeWidthStr;

/// Whether long text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// For a terminal or a report: a column has at most this many places.
    AtMost(usize),
    /// For a file or another program.
    Whole,
}

impl Width {
    /// What suits stdout.
    pub(crate) fn of_stdout() -> Width {
        match std::io::stdout().is_terminal() {
            true => Width::AtMost(80),
            false => Width::Whole,
        }
    }
}

/// A column as text.
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    pub(crate) is_number: bool,
}

/// Turns rows into text.
pub(crate) fn columns(names: &[String], batches: &[RecordBatch]) -> Result<Vec<Column>, ArrowError> {
    let mut columns: Vec<Column> = names
        .iter()
        .map(|name| Column {
            name: plain(name),
            values: Vec::new(),
            is_number: false,
        })
        .collect();
    for batch in batches {
        for (column, array) in columns.iter_mut().zip(batch.columns()) {
            column.is_number = is_number(array);
            let options = FormatOptions::default().with_null("NULL");
            let formatter = ArrayFormatter::try_new(array, &options)?;
            for row in 0..array.len() {
                column.values.push(plain(&formatter.value(row).try_to_string()?));
            }
        }
    }
    Ok(columns)
}

fn is_number(array: &ArrayRef) -> bool {
    let of_dictionary = matches!(array.data_type(), DataType::Dictionary(_, value) if value.is_numeric());
    array.data_type().is_numeric() || of_dictionary
}

/// Escapes what would move the cursor of a terminal or begin a line.
fn plain(text: &str) -> String {
    match text.contains(char::is_control) {
        true => text
            .chars()
            .flat_map(|letter| match letter.is_control() {
                true => letter.escape_default().collect::<Vec<_>>(),
                false => vec![letter],
            })
            .collect(),
        false => text.to_owned(),
    }
}

/// Returns the lines of a table: the names, a rule, the rows.
pub(crate) fn lines(columns: &[Column], width: Width) -> Vec<String> {
    let widths: Vec<usize> = columns
        .iter()
        .map(|column| {
            let widest = column.values.iter().map(|value| value.width()).max().unwrap_or(0);
            let most = match width {
                Width::AtMost(most) => most,
                Width::Whole => usize::MAX,
            };
            widest.max(column.name.width()).min(most)
        })
        .collect();
    let rows = columns
        .iter()
        .map(|column| column.values.len())
        .max()
        .unwrap_or(0);
    let line = |of: &dyn Fn(&Column) -> &str| {
        let cells = columns.iter().zip(&widths).map(|(column, width)| {
            let text = cut(of(column), *width);
            let room = " ".repeat(width.saturating_sub(text.width()));
            match column.is_number {
                true => format!("{room}{text}"),
                false => format!("{text}{room}"),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&|column| &column.name)];
    lines.push(
        widths
            .iter()
            .map(|width| "─".repeat(*width))
            .collect::<Vec<_>>()
            .join("  "),
    );
    lines.extend((0..rows).map(|row| line(&|column| column.values.get(row).map_or("", String::as_str))));
    lines
}

fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        let longer = short.width() + unicode_width::UnicodeWidthChar::width(letter).unwrap_or(0);
        if longer + 1 > width {
            break;
        }
        short.push(letter);
    }
    short + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, values: &[&str], is_number: bool) -> Column {
        Column {
            name: name.to_owned(),
            values: values.iter().map(|value| plain(value)).collect(),
            is_number,
        }
    }

    #[test]
    fn numbers_stand_right_and_text_left() {
        let columns = [
            column("name", &["a", "日本"], false),
            column("n", &["1", "-20"], true),
        ];
        assert_eq!(
            lines(&columns, Width::Whole),
            ["name    n", "────  ───", "a       1", "日本  -20"]
        );
    }

    #[test]
    fn nothing_moves_the_cursor_and_long_text_is_cut() {
        let columns = [column("x", &["a\x1b[2J\nb", &"y".repeat(100)], false)];
        let lines = lines(&columns, Width::AtMost(80));
        assert_eq!(lines[2], "a\\u{1b}[2J\\nb");
        assert_eq!(lines[3], format!("{}…", "y".repeat(79)));
    }
}
