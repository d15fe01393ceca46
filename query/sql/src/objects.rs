//! A folder of tables in object storage, as `ferretto export` has written it and somebody has copied it there.
//!
//! Whoever opens it makes a [`Database`](crate::Database) of it. Two listings say what it has, so that a statement costs requests for the tables that it
//! names only: nothing is downloaded but the ends of their files and the columns that it needs.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::ObjectStore;
use datafusion::object_store::path::Path;
use datafusion::object_store::prefix::PrefixStore;
use datafusion::prelude::SessionContext;
use ferretto_tables::{Place, TABLES, Table};
use futures::TryStreamExt;

use crate::error::Error;

/// The name of the folder in a session, below which each table is: no storage that SQL can name otherwise.
const HERE: &str = "ferretto://tables";
/// The table that has a file of each trace, even without rows.
const LISTS_TRACES: &str = "metadata";

/// See the [module](self).
#[derive(Debug)]
pub struct ObjectFolder {
    name: String,
    /// What is in the folder.
    inside: Arc<dyn ObjectStore>,
    tables: BTreeSet<&'static str>,
    /// Those of a folder with partitions.
    traces: Option<Vec<Place>>,
}

impl ObjectFolder {
    /// Looks at what a folder has; `None` if there is nothing. `name` is what people call it, such as its URL.
    ///
    /// # Errors
    /// If the storage does not say it, or there is something, but no tables.
    pub async fn open(
        storage: Arc<dyn ObjectStore>,
        folder: Path,
        name: &str,
    ) -> Result<Option<ObjectFolder>, Error> {
        let inside: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(storage, folder));
        let listed = inside.list_with_delimiter(None).await.map_err(Error::Objects)?;
        let folders = || listed.common_prefixes.iter().filter_map(Path::filename);
        let tables = TABLES.iter().map(|table| table.name);
        let tables: BTreeSet<&str> = tables
            .filter(|table| folders().any(|folder| folder == *table))
            .collect();
        if listed.common_prefixes.is_empty() && listed.objects.is_empty() {
            return Ok(None);
        }
        if tables.is_empty() {
            return Err(Error::Source(format!(
                "{name} has no tables; name a single trace in it, or a folder that `ferretto export` has written"
            )));
        }
        let traces = places(&inside, &Path::from(LISTS_TRACES)).await;
        let traces = traces.map_err(Error::Objects)?;
        Ok(Some(ObjectFolder {
            name: name.to_owned(),
            inside,
            tables,
            traces: (!traces.is_empty()).then(|| traces.into_iter().collect()),
        }))
    }

    /// Whether it has a table of this name.
    pub fn has(&self, table: &str) -> bool {
        self.tables.contains(table)
    }

    /// The traces, in the order of their places, if it is a folder of many.
    pub fn traces(&self) -> Option<&[Place]> {
        self.traces.as_deref()
    }

    /// Makes the folder known to a session.
    pub(crate) fn register(&self, context: &SessionContext) -> datafusion::error::Result<()> {
        let here = ObjectStoreUrl::parse(HERE)?;
        context.register_object_store(here.as_ref(), self.inside.clone());
        Ok(())
    }

    /// Returns where such a session finds the files of a table.
    pub(crate) fn files(table: &Table) -> String {
        format!("{HERE}/{}/", table.name)
    }
}

/// Lists the traces of which a table has files.
async fn places(
    inside: &Arc<dyn ObjectStore>,
    table: &Path,
) -> datafusion::object_store::Result<BTreeSet<Place>> {
    let files = inside.list(Some(table)).try_filter_map(|file| async move {
        let path = file.location.as_ref().strip_prefix(table.as_ref());
        Ok(path.and_then(|path| Place::of_path(path.strip_prefix('/')?)))
    });
    files.try_collect().await
}

impl fmt::Display for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
