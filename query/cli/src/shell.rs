//! The shell of `ferretto query`: statements that end with `;`, commands that begin with `.`; history and completion.

use std::io;
use std::path::PathBuf;

use ferretto_sql::datafusion::prelude::SessionContext;
use ferretto_sql::{Database, EXAMPLES, VIEWS};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use crate::interrupt::until_interrupted;
use crate::output::Format;
use crate::query::answer;
use crate::stderr;

const HELP: &str = "\
Statements end with `;`. Commands:
.tables         all tables and views
.schema TABLE   its columns
.examples       frequent questions; .example NAME runs one
.mode FORMAT    table, csv or json
.quit           ends, as Ctrl-D does
Ctrl-C ends the statement that runs.
Functions: human_duration(ns), human_bytes(n), time_bucket(ts, '10ms'), extract_arg(arg_set_id, 'key'), ancestor_slice(id),
  descendant_slice(id), following_flow(id), preceding_flow(id), span_join('a', 'b', 'columns'), span_left_join(..), interval_intersect(..)
";

/// Reads and answers until the end of the input.
pub(crate) async fn run(database: &mut Database, rows: usize) -> Result<(), String> {
    let failed = |error: ReadlineError| format!("the terminal cannot be read: {error}");
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<Words, FileHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Words::of(database.context())));
    let history = history();
    if let Some(path) = &history {
        let _ = editor.load_history(path);
    }
    stderr::tell(&format_args!(
        "SQL on {}. .help helps; Ctrl-D ends.",
        database.name()
    ));
    let mut format = Format::Table;
    loop {
        let line = match editor.readline("ferretto> ") {
            Ok(line) => line,
            // As in other shells, Ctrl-C forgets the line.
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        };
        let line = line.trim();
        let sql = match line.strip_prefix('.') {
            None => line.to_owned(),
            Some(command) => {
                let (command, argument) = command.split_once(' ').unwrap_or((command, ""));
                match (command, argument.trim()) {
                    ("quit" | "exit" | "q", _) => break,
                    ("tables", _) => {
                        let tables = ferretto_tables::TABLES
                            .iter()
                            .map(|table| (table.name, table.about));
                        for (name, about) in tables.chain(VIEWS.iter().map(|view| (view.name, view.about))) {
                            println!("{name:34} {about}");
                        }
                        continue;
                    }
                    ("schema", table) => format!("describe {table}"),
                    ("mode", "table") => {
                        format = Format::Table;
                        continue;
                    }
                    ("mode", "csv") => {
                        format = Format::Csv;
                        continue;
                    }
                    ("mode", "json") => {
                        format = Format::Json;
                        continue;
                    }
                    ("examples", _) => {
                        for example in EXAMPLES {
                            println!("{:24} {}", example.name, example.question);
                        }
                        continue;
                    }
                    ("example", name) => match EXAMPLES.iter().find(|example| example.name == name) {
                        Some(example) => {
                            let sql = example.of(database.traces());
                            println!("{sql};");
                            sql
                        }
                        None => {
                            stderr::tell(&format_args!(
                                "there is no example `{name}`; .examples lists them"
                            ));
                            continue;
                        }
                    },
                    ("help", _) => {
                        print!("{HELP}");
                        continue;
                    }
                    (other, _) => {
                        stderr::tell(&format_args!("there is no command `.{other}`; .help lists them"));
                        continue;
                    }
                }
            }
        };
        match database.parse(&sql) {
            Ok(statements) => {
                for statement in statements {
                    let mut stdout = io::stdout();
                    let answered = answer(database, statement, format, rows, &mut stdout);
                    if let Err(message) = until_interrupted(answered).await {
                        stderr::tell(&message);
                        break;
                    }
                }
            }
            Err(error) => stderr::tell(&error),
        }
    }
    if let Some(path) = &history {
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = folder
            .map_err(ReadlineError::from)
            .and_then(|()| editor.save_history(path))
        {
            stderr::say(&format_args!(
                "the history cannot be kept in {}: {error}",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Where the XDG base directories have the history.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("ferretto/query_history"))
}

/// What words are completed to.
struct Words {
    words: Vec<String>,
}

impl Words {
    fn of(context: &SessionContext) -> Words {
        let mut words: Vec<String> = [
            "select", "from", "where", "group by", "order by", "limit", "join", "using", "with", "having",
            "distinct", "describe", "explain",
        ]
        .map(str::to_owned)
        .into();
        for table in ferretto_tables::TABLES {
            words.push(table.name.to_owned());
            words.extend(table.columns.iter().map(|column| column.name.to_owned()));
        }
        words.extend(ferretto_tables::PARTITIONS.map(str::to_owned));
        words.extend(VIEWS.iter().map(|view| view.name.to_owned()));
        let state = context.state();
        words.extend(state.scalar_functions().keys().map(|name| format!("{name}(")));
        words.extend(state.aggregate_functions().keys().map(|name| format!("{name}(")));
        words.extend(state.table_functions().keys().map(|name| format!("{name}(")));
        words.extend(
            [
                ".tables",
                ".schema ",
                ".examples",
                ".example ",
                ".mode ",
                ".help",
                ".quit",
            ]
            .map(str::to_owned),
        );
        words.extend(EXAMPLES.iter().map(|example| example.name.to_owned()));
        words.sort();
        words.dedup();
        Words { words }
    }
}

impl Completer for Words {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let before = line.get(..at).unwrap_or(line);
        let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
        let from = before
            .rfind(|letter| !is_part(letter))
            .map_or(0, |place| place + 1);
        // A column behind the name of its table.
        let from = match before[from..].rfind('.') {
            Some(dot) if from + dot > 0 => from + dot + 1,
            _ => from,
        };
        let word = before[from..].to_lowercase();
        if word.is_empty() {
            return Ok((from, Vec::new()));
        }
        let found = self
            .words
            .iter()
            .filter(|known| known.starts_with(&word))
            .cloned();
        Ok((from, found.collect()))
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input().trim();
        Ok(
            match text.is_empty() || text.starts_with('.') || text.ends_with(';') {
                true => ValidationResult::Valid(None),
                false => ValidationResult::Incomplete,
            },
        )
    }
}

impl Highlighter for Words {}

impl Hinter for Words {
    type Hint = String;
}

impl Helper for Words {}
