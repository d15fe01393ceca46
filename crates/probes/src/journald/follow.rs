//! The journal from its end onwards, for code that wants the entries to come: the data source, and the flight recorder with its triggers.

use super::entry::LONGEST_FIELD;
use super::libsystemd::{Error, Journal};
use super::place::{Absence, Places, Remark};

/// Why the journal cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The library is missing, or fails.
    #[error(transparent)]
    Library(#[from] Error),
    /// There is nothing to read.
    #[error(transparent)]
    Absence(#[from] Absence),
}

/// Opens this machine's journal for `program`, at the end. The entries to come that match (`Journal::add_match`) follow. The second value says why some
/// of them may be missing.
///
/// # Errors
/// If the journal cannot be read, or there is none.
pub fn follow(
    program: &'static str,
    matches: impl IntoIterator<Item = String>,
) -> Result<(Journal, Option<Remark>), FollowError> {
    let mut journal = Journal::open()?;
    let remark = Places::of_system().examine(journal.files()?, program)?;
    move_to_end(&mut journal, matches)?;
    Ok((journal, remark))
}

/// Moves to the end of an open journal.
pub(super) fn move_to_end(
    journal: &mut Journal,
    matches: impl IntoIterator<Item = String>,
) -> Result<(), Error> {
    // One byte more shows that a field is longer.
    journal.set_data_threshold(LONGEST_FIELD + 1)?;
    for condition in matches {
        journal.add_match(condition.as_bytes())?;
    }
    journal.seek_to_end()?;
    // The watch begins before the first look, so that no entry between the two goes unnoticed.
    journal.watch().map(drop)
}
