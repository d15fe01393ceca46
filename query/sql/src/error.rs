//! What ends a query early.

use std::fmt;

use datafusion::error::DataFusionError;

/// What went wrong, as a sentence for the user.
#[derive(Debug)]
pub enum Error {
    /// A source of tables cannot be opened or read.
    Source(String),
    /// The SQL is wrong, or cannot be run.
    Sql(DataFusionError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Source(message) => f.write_str(message),
            Error::Sql(error) => match error.find_root() {
                DataFusionError::SQL(error, _) => write!(f, "the SQL cannot be read: {error}"),
                DataFusionError::Plan(message)
                | DataFusionError::Execution(message)
                | DataFusionError::NotImplemented(message)
                | DataFusionError::ResourcesExhausted(message) => {
                    f.write_str(&message.replace("datafusion.public.", ""))
                }
                other => other.fmt(f),
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
