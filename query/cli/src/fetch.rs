//! Traces that are fetched from elsewhere into temporary files.
//!
//! [`sources`](crate::sources) calls it. A fetched trace is there as a whole or not at all. It leaves room on the disk for others, and each wait for a server ends.

use std::error::Error as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferretto_sql::human_bytes;
use ferretto_store::object_store::{Error, GetOptions, ObjectMeta, ObjectStore};
use ferretto_store::whole;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::{Client, Url};
use tempfile::TempDir;

/// What the disk keeps for others, in bytes.
const RESERVE: u64 = 64 << 20;
/// What one request gets of an object, and how many there are at a time. One connection alone is slower than most lines to a cloud.
const PART: u64 = 8 << 20;
const AT_A_TIME: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest name of a file.
const LONGEST: usize = 200;

/// The traces that were fetched. They go with this value.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    folder: Option<TempDir>,
    traces: Vec<Trace>,
}

/// A trace that was fetched.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) path: PathBuf,
    /// Where it is from.
    pub(crate) name: String,
}

impl Fetched {
    pub(crate) fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// Fetches a URL of the web. A server may let it wait for as long as `patience`, again and again.
    pub(crate) async fn page(
        &mut self,
        url: &Url,
        name: &str,
        patience: Duration,
    ) -> Result<PathBuf, String> {
        let failed = |error: reqwest::Error| {
            // A URL may have a secret in it.
            let error = error.without_url();
            let why = match error.is_timeout() {
                true => format!("the server does not answer within {} s", patience.as_secs()),
                false => whole(error.source().unwrap_or(&error)),
            };
            format!("{name} cannot be fetched: {why}")
        };
        let client = Client::builder()
            .user_agent(concat!("ferretto-query/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(patience)
            .build()
            .map_err(failed)?;
        let mut response = client.get(url.clone()).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(format!(
                "{name} cannot be fetched: the server answers {}",
                response.status()
            ));
        }
        let mut draft = self.draft(name, response.content_length().unwrap_or(0))?;
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            draft.write(&bytes)?;
        }
        Ok(self.keep(draft))
    }

    /// Fetches an object.
    pub(crate) async fn object(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        object: &ObjectMeta,
        name: &str,
    ) -> Result<PathBuf, String> {
        let failed = |error: Error| match error {
            Error::Precondition { .. } => {
                format!("{name} was replaced while it was fetched; ask again")
            }
            error => format!("{name} cannot be fetched: {}", whole(&error)),
        };
        let mut draft = self.draft(name, object.size)?;
        let parts = (0..object.size).step_by(PART as usize).map(|at| {
            let options = GetOptions {
                range: Some((at..object.size.min(at + PART)).into()),
                if_match: object.e_tag.clone(),
                ..GetOptions::default()
            };
            async { store.get_opts(&object.location, options).await?.bytes().await }
        });
        let mut parts = stream::iter(parts).buffered(AT_A_TIME);
        while let Some(bytes) = parts.try_next().await.map_err(failed)? {
            draft.write(&bytes)?;
        }
        Ok(self.keep(draft))
    }

    fn keep(&mut self, draft: Draft) -> PathBuf {
        let path = draft.trace.path.clone();
        self.traces.push(draft.trace);
        path
    }

    /// Begins the file of a trace that has at least so many bytes.
    fn draft(&mut self, name: &str, bytes: u64) -> Result<Draft, String> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => tempfile::Builder::new()
                .prefix("ferretto-query")
                .tempdir()
                .map_err(|error| {
                    format!(
                        "{} cannot be written: {error}; set TMPDIR to a folder that can",
                        std::env::temp_dir().display()
                    )
                })?,
        };
        // Each has a folder of its own, as traces of several places may have one name.
        let its_own = self
            .folder
            .insert(folder)
            .path()
            .join(self.traces.len().to_string());
        let path = its_own.join(file_name(name));
        let file = std::fs::create_dir(&its_own).and_then(|()| File::create(&path));
        let draft = Draft {
            file: file.map_err(|error| format!("{} cannot be written: {error}", path.display()))?,
            trace: Trace {
                path,
                name: name.to_owned(),
            },
        };
        draft.has_room(bytes).map(|()| draft)
    }
}

/// Returns the name that a file has which is fetched: the last part of the URL, as far as it is a name.
fn file_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or_default();
    let last: String = last.chars().take(LONGEST).collect();
    match last.trim_matches('.') {
        "" => "trace".to_owned(),
        _ => last,
    }
}

/// A file that is being fetched.
struct Draft {
    file: File,
    trace: Trace,
}

impl Draft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.has_room(bytes.len() as u64)?;
        self.file.write_all(bytes).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> String {
        format!("{} cannot be written: {error}", self.trace.path.display())
    }

    /// Fails if the disk has no room for so many more bytes.
    fn has_room(&self, bytes: u64) -> Result<(), String> {
        let disk = rustix::fs::fstatvfs(&self.file).map_err(|error| self.failed(&error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free.saturating_sub(RESERVE) >= bytes {
            return Ok(());
        }
        let folder = self
            .trace
            .path
            .parent()
            .and_then(Path::parent)
            .and_then(Path::parent);
        Err(format!(
            "{} is too large for {}, which has {} left: {} more are needed, and {} stay free; set TMPDIR to a folder with more room",
            self.trace.name,
            folder.unwrap_or(Path::new("/")).display(),
            human_bytes(free as f64),
            human_bytes(bytes as f64),
            human_bytes(RESERVE as f64),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use ferretto_store::object_store::ObjectStoreExt;
    use ferretto_store::object_store::memory::InMemory;

    use super::*;

    /// Serves one request with these bytes, and then waits until the client is gone.
    fn serve(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!(
            "http://{}/a%20b/x.pftrace?key=secret",
            listener.local_addr().unwrap()
        );
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The request is short, and comes in one piece.
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        Url::parse(&url).unwrap()
    }

    async fn fetch(answer: &'static str) -> Result<String, String> {
        let mut fetched = Fetched::default();
        let url = serve(answer);
        let path = fetched
            .page(&url, "http://x/x.pftrace", Duration::from_secs(1))
            .await?;
        assert_eq!(path.file_name().unwrap(), "x.pftrace");
        let content = std::fs::read_to_string(&path).unwrap();
        drop(fetched);
        assert!(!path.exists());
        Ok(content)
    }

    #[tokio::test]
    async fn a_page_is_fetched_as_a_whole_or_not_at_all() {
        let whole = fetch("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!(whole, Ok("abc".to_owned()));
        let chunks =
            fetch("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
                .await;
        assert_eq!(chunks, Ok("abc".to_owned()));
        for (answer, why) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
                "does not answer within 1 s",
            ),
            ("", "does not answer within 1 s"),
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                "answers 404 Not Found",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n",
                "set TMPDIR to a folder with more room",
            ),
        ] {
            let error = fetch(answer).await.unwrap_err();
            assert!(
                error.starts_with("http://x/x.pftrace ") && error.contains(why),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_object_is_fetched_in_parts_that_are_of_one_version() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = "a/x".into();
        let content: Vec<u8> = (0..2 * PART as usize + 3).map(|at| (at / 1000) as u8).collect();
        store.put(&path, content.clone().into()).await.unwrap();
        let object = store.head(&path).await.unwrap();
        let mut fetched = Fetched::default();
        let first = fetched.object(&store, &object, "s3://b/a/x").await.unwrap();
        let second = fetched.object(&store, &object, "s3://c/a/x").await.unwrap();
        for file in [first, second] {
            assert!(std::fs::read(file).unwrap() == content);
        }
        store.put(&path, content.into()).await.unwrap();
        let error = fetched.object(&store, &object, "s3://b/a/x").await.unwrap_err();
        assert_eq!(error, "s3://b/a/x was replaced while it was fetched; ask again");
        assert_eq!(fetched.traces().len(), 2);
    }

    #[test]
    fn names_of_files_come_from_urls() {
        for (url, name) in [
            ("s3://bucket/a/x.pftrace", "x.pftrace"),
            ("https://host/", "trace"),
            ("https://host/a/..", "trace"),
            ("https://host/a%2Fb", "a%2Fb"),
        ] {
            assert_eq!(file_name(url), name);
        }
    }
}
