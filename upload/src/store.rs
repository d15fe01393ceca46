//! The place that files go to: a bucket or a folder, from a URL.
//!
//! [`uploader`](crate::uploader) calls it. Files of a machine are below its name, so that those of several machines do not meet. The library
//! `object_store` speaks to the clouds, and tries a request a few times before it fails.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferretto_recorder::FileName;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutPayload,
    RetryConfig,
};
use url::Url;

/// How long a request may take. A part of 5 MiB goes over a line of 20 KB a second in that time.
const TIMEOUT: &str = "5 minutes";
const CONNECT_TIMEOUT: &str = "10 seconds";

/// How often the library tries again: short disturbances only. Longer ones are the uploader's.
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

/// See the [module](self).
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    kind: Kind,
    prefix: Path,
    /// As people read it.
    name: String,
}

enum Kind {
    /// A cloud, which takes a large file in parts.
    Cloud(Arc<dyn MultipartStore>),
    /// A folder. The library writes a file beside it, `NAME#1`, and renames it.
    Folder(PathBuf),
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Store {
    /// Prepares to speak to the place. Nothing is sent yet.
    ///
    /// # Errors
    /// If the URL or the credentials make no sense.
    pub(crate) fn open(url: &str, machine: &str) -> Result<Store, String> {
        let failed = |error: &dyn fmt::Display| format!("cannot upload to {url}: {error}");
        let parsed = Url::parse(url).map_err(|error| failed(&error))?;
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|error| failed(&error))?;
        let prefix = path.join(machine);
        let library = |error: Error| failed(&whole(&error));
        let timeouts = [
            (ClientConfigKey::Timeout, TIMEOUT),
            (ClientConfigKey::ConnectTimeout, CONNECT_TIMEOUT),
        ];
        let (objects, kind): (Arc<dyn ObjectStore>, Kind) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retries());
                for (key, value) in timeouts {
                    builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
                }
                let store = Arc::new(builder.build().map_err(library)?);
                (store.clone(), Kind::Cloud(store))
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries());
                for (key, value) in timeouts {
                    builder = builder.with_config(GoogleConfigKey::Client(key), value);
                }
                let store = Arc::new(builder.build().map_err(library)?);
                (store.clone(), Kind::Cloud(store))
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let mut builder = MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries());
                for (key, value) in timeouts {
                    builder = builder.with_config(AzureConfigKey::Client(key), value);
                }
                let store = Arc::new(builder.build().map_err(library)?);
                (store.clone(), Kind::Cloud(store))
            }
            ObjectStoreScheme::Local => {
                let store = LocalFileSystem::new().with_fsync(true);
                let folder = store.path_to_filesystem(&prefix).map_err(library)?;
                (Arc::new(store), Kind::Folder(folder))
            }
            _ => return Err(failed(&"it has to begin with s3://, gs://, az:// or file://")),
        };
        Ok(Store {
            objects,
            kind,
            prefix,
            name: format!("{}/{machine}", url.trim_end_matches('/')),
        })
    }

    fn key(&self, file: &FileName) -> Path {
        self.prefix.clone().join(file.to_string())
    }

    /// Deletes what a killed uploader has left unfinished in a folder.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn sweep(&self) -> Result<(), String> {
        let Kind::Folder(folder) = &self.kind else {
            return Ok(());
        };
        let failed = |error: std::io::Error| format!("cannot tidy up {}: {error}", folder.display());
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let staged = name.to_str().and_then(|name| name.rsplit_once('#'));
            if let Some((file, number)) = staged
                && FileName::parse(file).is_some()
                && number.bytes().all(|byte| byte.is_ascii_digit())
            {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Returns the size of the object for a file, if there is one.
    ///
    /// # Errors
    /// If the store does not say.
    pub(crate) async fn size(&self, file: &FileName) -> Result<Option<u64>, String> {
        match self.objects.head(&self.key(file)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(whole(&error)),
        }
    }

    /// Returns a piece of the object for a file.
    ///
    /// # Errors
    /// If the store does not give it.
    pub(crate) async fn read(&self, file: &FileName, range: std::ops::Range<u64>) -> Result<Vec<u8>, String> {
        let read = self.objects.get_range(&self.key(file), range).await;
        read.map(|bytes| bytes.to_vec()).map_err(|error| whole(&error))
    }

    /// Stores a file in one piece.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(crate) async fn put(&self, file: &FileName, content: Vec<u8>) -> Result<(), String> {
        let put = self.objects.put(&self.key(file), content.into()).await;
        put.map(drop).map_err(|error| whole(&error))
    }

    /// Begins to store a file in parts.
    ///
    /// # Errors
    /// If the store does not want that.
    pub(crate) async fn begin(&self, file: &FileName) -> Result<Pieces<'_>, String> {
        let key = self.key(file);
        match &self.kind {
            Kind::Cloud(parts) => {
                let id = parts
                    .create_multipart(&key)
                    .await
                    .map_err(|error| whole(&error))?;
                Ok(Pieces::Cloud(CloudPieces {
                    store: parts.as_ref(),
                    key,
                    id,
                    parts: Vec::new(),
                }))
            }
            Kind::Folder(_) => {
                let upload = self.objects.put_multipart(&key).await;
                upload.map(Pieces::Folder).map_err(|error| whole(&error))
            }
        }
    }

    /// Has the store forget the parts of an upload that was not finished. Whether it knew of it makes no difference.
    ///
    /// # Errors
    /// If the store does not answer, so that it should be asked again.
    pub(crate) async fn forget(&self, file: &FileName, id: &str) -> Result<(), String> {
        let Kind::Cloud(parts) = &self.kind else {
            return Ok(());
        };
        match parts.abort_multipart(&self.key(file), &id.to_owned()).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error @ (Error::PermissionDenied { .. } | Error::Unauthenticated { .. })) => {
                eprintln!(
                    "an unfinished upload of {file} may stay at {self}: {}",
                    whole(&error)
                );
                Ok(())
            }
            Err(error) => Err(whole(&error)),
        }
    }
}

/// An upload in parts.
pub(crate) enum Pieces<'a> {
    Cloud(CloudPieces<'a>),
    Folder(Box<dyn object_store::MultipartUpload>),
}

/// That of a cloud.
pub(crate) struct CloudPieces<'a> {
    store: &'a dyn MultipartStore,
    key: Path,
    id: String,
    parts: Vec<object_store::multipart::PartId>,
}

impl Pieces<'_> {
    /// Returns the store's name for it, by which it can be [forgotten](Store::forget) later.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Pieces::Cloud(cloud) => Some(&cloud.id),
            Pieces::Folder(_) => None,
        }
    }

    /// Stores the next part.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(crate) async fn put(&mut self, content: Vec<u8>) -> Result<(), String> {
        let content = PutPayload::from(content);
        match self {
            Pieces::Cloud(cloud) => {
                let index = cloud.parts.len();
                let put = cloud.store.put_part(&cloud.key, &cloud.id, index, content).await;
                cloud.parts.push(put.map_err(|error| whole(&error))?);
                Ok(())
            }
            Pieces::Folder(upload) => upload.put_part(content).await.map_err(|error| whole(&error)),
        }
    }

    /// Makes the parts an object.
    ///
    /// # Errors
    /// If the store does not do it. It may have done it all the same.
    pub(crate) async fn complete(self) -> Result<(), String> {
        let completed = match self {
            Pieces::Cloud(cloud) => {
                cloud
                    .store
                    .complete_multipart(&cloud.key, &cloud.id, cloud.parts)
                    .await
            }
            Pieces::Folder(mut upload) => upload.complete().await,
        };
        completed.map(drop).map_err(|error| whole(&error))
    }
}

/// The longest text of an error: a server may answer with a page.
const LONGEST: usize = 1000;

/// Returns an error with all its causes, which the library does not always name.
fn whole(error: &dyn std::error::Error) -> String {
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
