//! Files that are known without a scan, shared by all instances of the process: the files below `/system`, and files that scans have
//! found lately.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferretto_proto::messages::inode_file_map::entry::Type;

use super::walk::{Step, Walk};
use crate::ftrace::metadata::FileId;
use crate::lru::LruMap;
use crate::own_threads;

/// Files from scans that are kept at most, as many as upstream keeps.
const CACHED_FILES: usize = 1000;
/// Bytes of paths below the static root that are kept at most.
const MOST_STATIC_BYTES: usize = 64 << 20;

/// The data that packets have about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) kind: Type,
    /// The names that were found; a file may have several.
    pub(super) paths: BTreeSet<Vec<u8>>,
}

/// Shared by all instances.
#[derive(Debug)]
pub struct KnownFiles {
    static_root: Vec<u8>,
    static_files: OnceLock<StaticFiles>,
    began: OnceLock<()>,
    cache: Mutex<LruMap<FileId, File>>,
}

impl Default for KnownFiles {
    /// Knows the files of Android's system partition. Other systems usually have no such directory.
    fn default() -> Self {
        Self::with_static_root("/system")
    }
}

impl KnownFiles {
    /// Knows the files below `static_root`.
    pub(super) fn with_static_root(static_root: &str) -> Self {
        Self {
            static_root: static_root.as_bytes().to_vec(),
            static_files: OnceLock::new(),
            began: OnceLock::new(),
            cache: Mutex::new(LruMap::new(CACHED_FILES)),
        }
    }

    /// Starts reading the static files on a thread of their own, if that has not started yet.
    pub(super) fn read_static_files(self: &Arc<Self>) {
        if self.began.set(()).is_err() {
            return;
        }
        let known = self.clone();
        let started = own_threads::spawn("static-inodes", move || {
            let _ = known.static_files.set(StaticFiles::read(&known.static_root));
        });
        if started.is_err() {
            // Scans look for these files as for others.
            let _ = self.static_files.set(StaticFiles::default());
        }
    }

    /// Whether the static files have been read, so that [`KnownFiles::static_file`] will not learn more.
    pub(super) fn are_static_files_read(&self) -> bool {
        self.static_files.get().is_some()
    }

    /// Whether there are more static files than are kept.
    pub(super) fn are_static_files_cut_off(&self) -> bool {
        self.static_files.get().is_some_and(|files| files.cut_off)
    }

    pub(super) fn static_file(&self, id: FileId) -> Option<&File> {
        self.static_files.get()?.files.get(&id)
    }

    /// The names that scans have found of a file. The file counts as used now.
    pub(super) fn cached(&self, id: FileId) -> Option<File> {
        self.cache().get(&id).cloned()
    }

    /// Remembers a name of a file. Returns all its known names.
    pub(super) fn found(&self, id: FileId, kind: Type, path: Vec<u8>) -> File {
        let mut cache = self.cache();
        let file = cache.get_or_insert_with(id, || File {
            kind,
            paths: BTreeSet::new(),
        });
        file.paths.insert(path);
        file.clone()
    }

    fn cache(&self) -> MutexGuard<'_, LruMap<FileId, File>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All files below a directory.
#[derive(Debug, Default)]
struct StaticFiles {
    files: HashMap<FileId, File>,
    cut_off: bool,
}

impl StaticFiles {
    fn read(root: &[u8]) -> Self {
        let mut all = Self::default();
        let mut bytes = 0;
        let mut walk = Walk::new(vec![root.to_vec()]);
        loop {
            match walk.step() {
                Step::Done => break,
                Step::Nothing => {}
                Step::Entry { id, kind, path } => {
                    bytes += path.len();
                    if bytes > MOST_STATIC_BYTES {
                        all.cut_off = true;
                        break;
                    }
                    let file = all.files.entry(id).or_insert_with(|| File {
                        kind,
                        paths: BTreeSet::new(),
                    });
                    file.kind = kind;
                    file.paths.insert(path);
                }
            }
        }
        all.cut_off |= walk.directories_left_out() > 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_files::TempDir;

    #[test]
    fn a_file_keeps_all_names_that_scans_have_found() {
        let known = KnownFiles::with_static_root("/nowhere");
        let id = FileId { device: 7, inode: 1 };
        known.found(id, Type::FILE, b"/a".to_vec());
        let file = known.found(id, Type::FILE, b"/b".to_vec());
        assert_eq!(file.paths, BTreeSet::from([b"/a".to_vec(), b"/b".to_vec()]));
        assert_eq!(known.cached(id), Some(file));
        assert_eq!(known.cached(FileId { device: 8, inode: 1 }), None);
    }

    #[test]
    fn static_files_have_all_their_names() {
        use std::os::unix::fs::MetadataExt;

        let dir = TempDir::new("static");
        dir.write("bin/sh", "");
        std::fs::hard_link(dir.path().join("bin/sh"), dir.path().join("bin/bash")).unwrap();
        let known = Arc::new(KnownFiles::with_static_root(dir.path().to_str().unwrap()));
        known.read_static_files();
        while !known.are_static_files_read() {
            std::thread::yield_now();
        }
        let path = |name: &str| dir.path().join(name).to_str().unwrap().as_bytes().to_vec();
        let file_of = |name: &str| {
            let metadata = std::fs::metadata(dir.path().join(name)).unwrap();
            let id = FileId {
                device: metadata.dev(),
                inode: metadata.ino(),
            };
            known.static_file(id).cloned()
        };
        let expected = |kind, names: &[&str]| {
            let paths = names.iter().map(|name| path(name)).collect();
            Some(File { kind, paths })
        };
        assert_eq!(file_of("bin/sh"), expected(Type::FILE, &["bin/sh", "bin/bash"]));
        assert_eq!(file_of("bin"), expected(Type::DIRECTORY, &["bin"]));
        assert!(!known.are_static_files_cut_off());
    }
}
