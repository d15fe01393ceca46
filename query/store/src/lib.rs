//! Places in object storage by their URLs: `s3://bucket/path`, `gs://`, `az://`, `file:///path`.
//!
//! `ferretto query` asks tables there, and `ferretto-upload` copies files there. The library `object_store` speaks to the clouds, and tries a request a few
//! times before it fails. Credentials come from the variables that the clouds' own tools read. A request ends within a bounded time, whatever the server does.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, Error, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

pub use object_store;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest text of an error: a server may answer with a page.
const LONGEST: usize = 1000;

/// A place that files are in or go to.
#[derive(Debug)]
pub struct Place {
    /// What has it.
    pub store: Store,
    /// Where in that it is.
    pub path: Path,
}

/// What has objects.
#[derive(Debug)]
pub enum Store {
    /// A bucket of a cloud.
    Cloud(Arc<dyn Cloud>),
    /// The files of this machine. `path` begins at the root.
    Files(LocalFileSystem),
}

/// A bucket, which takes a large object in parts.
pub trait Cloud: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Cloud for T {}

impl Store {
    /// Returns it as what reads and lists.
    pub fn objects(self) -> Arc<dyn ObjectStore> {
        match self {
            Store::Cloud(cloud) => cloud,
            Store::Files(files) => Arc::new(files),
        }
    }
}

impl Place {
    /// Prepares to speak to the place. Nothing is sent yet. A request, with its answer, may take as long as `patience`, unless `AWS_TIMEOUT` and the like say
    /// otherwise, and is tried again for 30 s.
    ///
    /// # Errors
    /// If the URL or the credentials make no sense. The text follows on what was to be done.
    pub fn open(url: &str, patience: Duration) -> Result<Place, String> {
        let plain = |error: &dyn fmt::Display| error.to_string();
        let parsed = Url::parse(url).map_err(|error| plain(&error))?;
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|error| plain(&error))?;
        let library = |error: Error| whole(&error);
        let timeouts = |variables: &str| {
            let all = [
                ("TIMEOUT", ClientConfigKey::Timeout, patience),
                (
                    "CONNECT_TIMEOUT",
                    ClientConfigKey::ConnectTimeout,
                    CONNECT_TIMEOUT,
                ),
            ];
            let unsaid = all
                .into_iter()
                .filter(|(name, ..)| std::env::var_os(format!("{variables}_{name}")).is_none());
            Vec::from_iter(unsaid.map(|(_, key, time)| (key, format!("{} seconds", time.as_secs()))))
        };
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retries());
                for (key, value) in timeouts("AWS") {
                    builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
                }
                Store::Cloud(Arc::new(builder.build().map_err(library)?))
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries());
                for (key, value) in timeouts("GOOGLE") {
                    builder = builder.with_config(GoogleConfigKey::Client(key), value);
                }
                Store::Cloud(Arc::new(builder.build().map_err(library)?))
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let mut builder = MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries());
                for (key, value) in timeouts("AZURE") {
                    builder = builder.with_config(AzureConfigKey::Client(key), value);
                }
                Store::Cloud(Arc::new(builder.build().map_err(library)?))
            }
            ObjectStoreScheme::Local => Store::Files(LocalFileSystem::new()),
            _ => return Err("it has to begin with s3://, gs://, az:// or file://".to_owned()),
        };
        Ok(Place { store, path })
    }
}

/// How often the library tries again: short disturbances only. Longer ones are the caller's.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            max_backoff: Duration::from_secs(2),
            ..BackoffConfig::default()
        },
        max_retries: 3,
        retry_timeout: Duration::from_secs(30),
    }
}

/// Returns an error with all its causes, which the library does not always name.
pub fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(LONGEST).collect()
}
