//! What the words of a command name: files, folders, and URLs of these.
//!
//! `query` and `report` open them. A trace at a URL is fetched first. A folder of tables in object storage stays where it is.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferretto_sql::{Database, Error, ObjectFolder, Options};
use ferretto_store::object_store::client::HttpError;
use ferretto_store::object_store::{self, ObjectMeta, ObjectStore, ObjectStoreExt};
use ferretto_store::{Place, whole};
use ferretto_tables::{PartitionedFolder, TABLES};
use reqwest::Url;

use crate::fetch::Fetched;

/// How long a server may let a request wait. Of a large file, a few MB are asked for at a time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens what the words of a command name. The traces that were fetched for it have to stay for as long as the database.
pub(crate) async fn open(words: &[OsString], options: &Options) -> Result<(Database, Fetched), String> {
    let told = |error: Error| error.to_string();
    let mut fetched = Fetched::default();
    let mut paths: Vec<OsString> = Vec::new();
    for word in words {
        match Word::of(word)? {
            Word::Path(path) => paths.push(path.into()),
            Word::Page(url) => {
                let path = fetched.page(&url, &name(&url), PATIENCE).await?;
                paths.push(path.into());
            }
            Word::Object(url) => match found(&url).await? {
                Found::Trace(store, object) => {
                    let path = fetched.object(&store, &object, &name(&url)).await?;
                    paths.push(path.into());
                }
                Found::Folder(folder) if words.len() == 1 => {
                    let database = Database::open_objects(folder, options).await;
                    return Ok((database.map_err(told)?, fetched));
                }
                Found::Folder(folder) => {
                    return Err(format!(
                        "{folder} has tables, which are not queried together with others; export all traces into one folder first"
                    ));
                }
            },
        }
    }
    let database = match paths.as_slice() {
        [path] => Database::open(path, options).await,
        paths => Database::open_traces(paths, options).await,
    };
    let mut database = database.map_err(told)?;
    for trace in fetched.traces() {
        database.call(trace.path.as_os_str(), &trace.name);
    }
    Ok((database, fetched))
}

/// Returns the names of the tables that a folder of many traces has; `None` for anything else.
pub(crate) async fn tables_of_many(word: &OsStr) -> Result<Option<BTreeSet<&'static str>>, String> {
    let tables = TABLES.iter().map(|table| table.name);
    Ok(match Word::of(word)? {
        Word::Path(folder) if PartitionedFolder::is_one(&folder) => {
            Some(tables.filter(|table| folder.join(table).is_dir()).collect())
        }
        Word::Path(_) | Word::Page(_) => None,
        Word::Object(url) => match found(&url).await? {
            Found::Folder(folder) if folder.traces().is_some() => {
                Some(tables.filter(|table| folder.has(table)).collect())
            }
            Found::Folder(_) | Found::Trace(..) => None,
        },
    })
}

/// Whether a word is a URL.
pub(crate) fn is_url(word: &OsStr) -> bool {
    url(word).is_some()
}

fn url(word: &OsStr) -> Option<Url> {
    let word = word.to_str().filter(|word| word.contains("://"))?;
    Url::parse(word).ok()
}

/// A word of a command.
enum Word {
    /// A file or folder of this machine, or `-`.
    Path(PathBuf),
    /// The URL of something that is fetched as a whole.
    Page(Url),
    /// The URL of an object, or of a folder of objects.
    Object(Url),
}

impl Word {
    fn of(word: &OsStr) -> Result<Word, String> {
        let Some(url) = url(word) else {
            return Ok(Word::Path(word.into()));
        };
        match url.scheme() {
            "http" | "https" => Ok(Word::Page(url)),
            "file" => match url.to_file_path() {
                Ok(path) => Ok(Word::Path(path)),
                Err(()) => Err(format!(
                    "{url} names another machine; a file of this one is file:///PATH"
                )),
            },
            _ => Ok(Word::Object(url)),
        }
    }
}

/// Returns a URL as messages have it, without what may be secret.
fn name(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // A URL that cannot have these has none.
    let _ = url.set_password(None);
    if url.scheme().starts_with("http") {
        let _ = url.set_username("");
    }
    url.to_string()
}

/// What a URL of object storage names.
enum Found {
    Trace(Arc<dyn ObjectStore>, ObjectMeta),
    Folder(ObjectFolder),
}

async fn found(url: &Url) -> Result<Found, String> {
    let name = &name(url);
    let place =
        Place::open(url.as_str(), PATIENCE).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let store = place.store.objects();
    let problem = match ObjectFolder::open(store.clone(), place.path.clone(), name).await {
        Ok(Some(folder)) => return Ok(Found::Folder(folder)),
        Ok(None) => None,
        // Whoever may not list may still read an object; and its answer says more.
        Err(Error::Objects(error)) if is_answer(&error) => Some(error),
        Err(Error::Objects(error)) => return Err(told(url, &error, &error)),
        Err(error) => return Err(error.to_string()),
    };
    let is_bucket = place.path.as_ref().is_empty();
    match (store.head(&place.path).await, problem) {
        (Ok(object), _) if !is_bucket => Ok(Found::Trace(store, object)),
        (Ok(_) | Err(object_store::Error::NotFound { .. }), None) => Err(format!(
            "there is nothing at {name}; look for a mistake in its name"
        )),
        (Ok(_), Some(problem)) => Err(told(url, &problem, &problem)),
        (Err(error), Some(problem)) => Err(told(url, &error, &problem)),
        (Err(error), None) => Err(told(url, &error, &error)),
    }
}

/// Whether an error is what a server has answered, rather than that there was no answer.
fn is_answer(error: &object_store::Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |error| (*error).source());
    !causes.any(|error| error.is::<HttpError>())
}

/// Returns what kind of error keeps object storage from saying what it has, and why.
fn told(url: &Url, error: &object_store::Error, why: &object_store::Error) -> String {
    let (name, why) = (name(url), whole(why));
    let variables = match url.scheme() {
        "gs" => "GOOGLE_*",
        "az" | "adl" | "azure" | "abfs" | "abfss" => "AZURE_*",
        _ => "AWS_*",
    };
    match error {
        object_store::Error::NotFound { .. } => format!(
            "{name}: there is no bucket {}, or it may not be listed; {variables} say which server and credentials: {why}",
            url.host_str().unwrap_or_default()
        ),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            format!("{name} may not be read with the credentials in {variables}: {why}")
        }
        _ => format!("{name} cannot be read, with server and credentials as {variables} have them: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_paths_or_urls_and_sql_is_neither() {
        let kind = |word: &str| match Word::of(word.as_ref()) {
            Ok(Word::Path(path)) => format!("path {}", path.display()),
            Ok(Word::Page(url)) => format!("page {}", name(&url)),
            Ok(Word::Object(url)) => format!("object {}", name(&url)),
            Err(error) => error,
        };
        for (word, wanted) in [
            ("trace.pftrace", "path trace.pftrace"),
            ("-", "path -"),
            ("file:///a%20b/x", "path /a b/x"),
            ("https://u:p@host/x?sig=1#y", "page https://host/x"),
            ("s3://bucket/a", "object s3://bucket/a"),
            (
                "abfss://container@account.dfs.core.windows.net/a",
                "object abfss://container@account.dfs.core.windows.net/a",
            ),
        ] {
            assert_eq!(kind(word), wanted);
        }
        assert!(kind("file://host/x").contains("file:///PATH"));
        for sql in [
            "select 1",
            "select 's3://x'",
            "select * from t where a = 'http://b/c'",
        ] {
            assert!(!is_url(sql.as_ref()), "{sql}");
        }
    }
}
