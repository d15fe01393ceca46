//! The place that files go to: a bucket or a folder, from a URL.
//!
//! [`uploader`](crate::uploader) calls it. Files of a machine are below its name, so that those of several machines do not meet.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferretto_recorder::FileName;
use ferretto_store::object_store::local::LocalFileSystem;
use ferretto_store::object_store::multipart::PartId;
use ferretto_store::object_store::path::Path;
use ferretto_store::object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use ferretto_store::{Cloud, Place, whole};

use crate::folder::{self, Draft};
use crate::stderr::say;

/// How long a request may take. A part of 5 MiB goes over a line of 20 KB a second in that time.
const PATIENCE: Duration = Duration::from_secs(300);

/// See the [module](self).
pub(crate) struct Store {
    kind: Kind,
    prefix: Path,
    /// As people read it.
    name: String,
}

enum Kind {
    /// A cloud, which takes a large file in parts.
    Cloud(Arc<dyn Cloud>),
    /// The files of this machine, and the folder among them.
    Folder(LocalFileSystem, PathBuf),
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
        let failed = |error: String| format!("cannot upload to {url}: {error}");
        let Place { store, path } = Place::open(url, PATIENCE).map_err(failed)?;
        let prefix = path.join(machine);
        let kind = match store {
            ferretto_store::Store::Cloud(cloud) => Kind::Cloud(cloud),
            ferretto_store::Store::Files(files) => {
                let folder = files.path_to_filesystem(&prefix);
                let folder = folder.map_err(|error| failed(whole(&error)))?;
                Kind::Folder(files, folder)
            }
        };
        Ok(Store {
            kind,
            prefix,
            name: format!("{}/{machine}", url.trim_end_matches('/')),
        })
    }

    fn objects(&self) -> &dyn ObjectStore {
        match &self.kind {
            Kind::Cloud(cloud) => cloud.as_ref(),
            Kind::Folder(files, _) => files,
        }
    }

    fn key(&self, file: &FileName) -> Path {
        self.prefix.clone().join(file.to_string())
    }

    /// Deletes what a killed uploader has left unfinished in a folder.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn sweep(&self) -> Result<(), String> {
        let Kind::Folder(_, folder) = &self.kind else {
            return Ok(());
        };
        folder::sweep(folder).map_err(|error| format!("cannot tidy up {}: {error}", folder.display()))
    }

    /// Begins a file in a folder.
    fn draft(&self, files: &LocalFileSystem, file: &FileName) -> Result<Draft, String> {
        let path = files.path_to_filesystem(&self.key(file));
        Draft::create(path.map_err(|error| whole(&error))?)
    }

    /// Returns the size of the object for a file, if there is one.
    ///
    /// # Errors
    /// If the store does not say.
    pub(crate) async fn size(&self, file: &FileName) -> Result<Option<u64>, String> {
        match self.objects().head(&self.key(file)).await {
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
        let read = self.objects().get_range(&self.key(file), range).await;
        read.map(|bytes| bytes.to_vec()).map_err(|error| whole(&error))
    }

    /// Stores a file in one piece.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(crate) async fn put(&self, file: &FileName, content: Vec<u8>) -> Result<(), String> {
        match &self.kind {
            Kind::Cloud(cloud) => {
                let put = cloud.put(&self.key(file), content.into()).await;
                put.map(drop).map_err(|error| whole(&error))
            }
            Kind::Folder(files, _) => {
                let mut draft = self.draft(files, file)?;
                draft.write(&content)?;
                draft.finish()
            }
        }
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
                    cloud: parts.as_ref(),
                    key,
                    id,
                    parts: Vec::new(),
                }))
            }
            Kind::Folder(files, _) => self.draft(files, file).map(Pieces::Folder),
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
                say(format_args!(
                    "an unfinished upload of {file} may stay at {self}: {}",
                    whole(&error)
                ));
                Ok(())
            }
            Err(error) => Err(whole(&error)),
        }
    }
}

/// An upload in parts.
pub(crate) enum Pieces<'a> {
    Cloud(CloudPieces<'a>),
    Folder(Draft),
}

/// That of a cloud.
pub(crate) struct CloudPieces<'a> {
    cloud: &'a dyn Cloud,
    key: Path,
    id: String,
    parts: Vec<PartId>,
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
        match self {
            Pieces::Cloud(pieces) => {
                let (index, content) = (pieces.parts.len(), PutPayload::from(content));
                let put = pieces.cloud.put_part(&pieces.key, &pieces.id, index, content);
                pieces.parts.push(put.await.map_err(|error| whole(&error))?);
                Ok(())
            }
            Pieces::Folder(draft) => draft.write(&content),
        }
    }

    /// Makes the parts an object.
    ///
    /// # Errors
    /// If the store does not do it. It may have done it all the same.
    pub(crate) async fn complete(self) -> Result<(), String> {
        match self {
            Pieces::Cloud(CloudPieces {
                cloud,
                key,
                id,
                parts,
            }) => {
                let completed = cloud.complete_multipart(&key, &id, parts).await;
                completed.map(drop).map_err(|error| whole(&error))
            }
            Pieces::Folder(draft) => draft.finish(),
        }
    }
}
