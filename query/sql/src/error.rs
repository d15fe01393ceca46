//! What ends a query early.

use std::error::Error as _;
use std::fmt;

use datafusion::error::DataFusionError;

/// The queries that DataFusion cannot join with the one around them.
pub(crate) const NO_JOIN: &str = "a query or function within this query depends on its columns in a way that cannot be planned: it may compare them by `=` only, and may stand in WHERE and SELECT; write it as a join";

/// What went wrong, as a sentence for the user.
#[derive(Debug)]
pub enum Error {
    /// A source of tables cannot be opened or read.
    Source(String),
    /// Object storage does not say what it has.
    Objects(datafusion::object_store::Error),
    /// The SQL is wrong, or cannot be run.
    Sql(DataFusionError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Error::Sql(error) = self
            && error.to_string().contains("metadata differs")
        {
            return f.write_str(
                "a value of json_extract may have any type, and a recursion or union needs one: write CAST(json_extract(..) AS TEXT) in both parts",
            );
        }
        // They join a query with the one around it.
        let rules = ["'scalar_subquery_to_join' failed", "'decorrelate_"];
        match self {
            Error::Source(message) => f.write_str(message),
            Error::Objects(error) => error.fmt(f),
            Error::Sql(error) => match error.find_root() {
                DataFusionError::SQL(error, _) => write!(f, "the SQL cannot be read: {error}"),
                DataFusionError::Plan(message)
                | DataFusionError::Execution(message)
                | DataFusionError::NotImplemented(message)
                | DataFusionError::ResourcesExhausted(message) => {
                    let what = ["ScalarSubquery", "InSubquery", "Exists", "OuterReferenceColumn"];
                    match message.starts_with("Physical plan does not support")
                        && what.iter().any(|it| message.contains(it))
                    {
                        true => f.write_str(NO_JOIN),
                        false => f.write_str(&message.replace("datafusion.public.", "")),
                    }
                }
                DataFusionError::ObjectStore(error) => {
                    // Its text has all causes but the first one.
                    let text = error.to_string();
                    let first = std::iter::successors(error.source(), |cause| (*cause).source()).last();
                    let first = first.map(ToString::to_string).filter(|it| !text.contains(it));
                    let first = first.map_or_else(String::new, |first| format!(": {first}"));
                    write!(f, "tables in object storage cannot be read: {text}{first}")
                }
                other => match rules.iter().any(|rule| error.to_string().contains(rule)) {
                    true => f.write_str(NO_JOIN),
                    false => other.fmt(f),
                },
            },
        }
    }
}

impl std::error::Error for Error {}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Error {
        Error::Sql(error)
    }
}
