//! The state file, and `ferretto recorder status` and `list`, which print what it and the folder say.
//!
//! [`run`](super::run) writes the state file whenever something has changed. So `status` works without the recorder too, and says what was so when it
//! ended.

use std::collections::BTreeMap;
use std::fmt::Write;

use chrono::{DateTime, Local};
use ferretto_recorder::{Counters, Settings};
use serde_json::{Value, json};

use super::folder::{is_in_use, sealed_files, state};
use super::{NOT_RUNNING, SUCCESS, upload};
use crate::figures::{Bytes, Counted};
use crate::stdout::{Column, Screen, Table, print};

/// The version of the state file's form.
const VERSION: u64 = 1;

/// A session in the state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionState {
    /// `running`, `waiting` or `refused`.
    pub(super) state: &'static str,
    /// How often it has ended.
    pub(super) ends: u64,
    /// Why it does not run, or ended last.
    pub(super) reason: Option<String>,
}

/// Makes the content of the state file.
pub(super) fn encode(sessions: &BTreeMap<String, SessionState>, counters: &Counters, used: u64) -> Vec<u8> {
    let sessions: BTreeMap<&str, Value> = sessions
        .iter()
        .map(|(name, session)| {
            let told = json!({"state": session.state, "ends": session.ends, "reason": session.reason});
            (name.as_str(), told)
        })
        .collect();
    let counters: BTreeMap<&str, Value> = counters
        .iter()
        .map(|(key, tally)| {
            let told = json!({"sealed": tally.sealed, "cut": tally.cut, "refused": tally.refused});
            (key, told)
        })
        .collect();
    let state = json!({
        "version": VERSION,
        "pid": std::process::id(),
        "sessions": sessions,
        "seals": counters,
        "used_bytes": used,
    });
    format!("{state:#}\n").into_bytes()
}

/// Returns the counters in a state file.
///
/// # Errors
/// If it is no state file.
pub(super) fn counters(state: &[u8]) -> Result<Counters, serde_json::Error> {
    let state: Value = serde_json::from_slice(state)?;
    serde_json::from_value(state["seals"].clone())
}

/// Prints the state; returns the exit code.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn status(settings: &Settings) -> Result<u8, String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", settings.folder.display());
    let runs = is_in_use(&settings.folder).map_err(|error| failed(&error))?;
    let Some(state) = state(&settings.folder).map_err(|error| failed(&error))? else {
        let verb = if runs { "is starting" } else { "has never run" };
        print(format!("a recorder for {} {verb}\n", settings.folder.display()).as_bytes())?;
        return Ok(if runs { SUCCESS } else { NOT_RUNNING });
    };
    let state: Value = serde_json::from_slice(&state).map_err(|error| failed(&error))?;
    let files = sealed_files(&settings.folder).map_err(|error| failed(&error))?;
    let used = files.iter().map(|(_, size)| size).sum();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match runs {
        true => writeln!(text, "runs, as process {}", state["pid"]),
        false => writeln!(text, "does not run; this is from its end"),
    };
    let _ = writeln!(
        text,
        "{} with {} of {} in {}",
        Counted(files.len() as u64, "sealed file"),
        Bytes(used),
        Bytes(settings.quota),
        settings.folder.display()
    );
    if let Some(upload) = &settings.upload {
        text.push_str(&upload::status(upload));
    }
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let screen = Screen::look();
    let mut table = Table::new([
        Column::text("SESSION"),
        Column::text("STATE"),
        Column::number("ENDS"),
        Column::text("REASON"),
    ]);
    for (name, session) in state["sessions"].as_object().into_iter().flatten() {
        let ends = session["ends"].as_u64().unwrap_or_default().to_string();
        table.row([
            name.clone(),
            word(&session["state"]),
            ends,
            word(&session["reason"]),
        ]);
    }
    let _ = write!(text, "\n{}", table.print(screen));
    let mut table = Table::new([
        Column::text("SEALS OF"),
        Column::number("FILES"),
        Column::number("CUT"),
        Column::text("REFUSED"),
    ]);
    for (key, tally) in state["seals"].as_object().into_iter().flatten() {
        let refused = tally["refused"].as_object().into_iter().flatten();
        let refused: Vec<String> = refused.map(|(why, count)| format!("{count} {why}")).collect();
        table.row([
            key.clone(),
            tally["sealed"].to_string(),
            tally["cut"].to_string(),
            refused.join(", "),
        ]);
    }
    let _ = write!(text, "\n{}", table.print(screen));
    print(text.as_bytes())?;
    Ok(if runs { SUCCESS } else { NOT_RUNNING })
}

/// Lists the sealed files; returns the exit code.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn list(settings: &Settings) -> Result<u8, String> {
    let files = sealed_files(&settings.folder)
        .map_err(|error| format!("cannot read {}: {error}", settings.folder.display()))?;
    let mut table = Table::new([
        Column::text("TIME"),
        Column::text("SESSION"),
        Column::text("REASON"),
        Column::number("SIZE"),
        Column::text("FILE"),
    ]);
    for (name, size) in files {
        let time = DateTime::from_timestamp_millis(name.time).unwrap_or_default();
        table.row([
            time.with_timezone(&Local).format("%F %T").to_string(),
            name.session.to_string(),
            name.reason.to_string(),
            Bytes(size).to_string(),
            settings.folder.join(name.to_string()).display().to_string(),
        ]);
    }
    print(table.print(Screen::look()).as_bytes())?;
    Ok(SUCCESS)
}
