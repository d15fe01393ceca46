//! What is known of files without a scan, for all instances of the process: the files below `/system`, and those that scans have found
//! lately.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferretto_proto::messages::inode_file_map::entry::Type;

use super::walk::{Step, Walk};
use crate::ftrace::metadata::FileId;
use crate::own_threads;

/// As many files as upstream keeps of what scans have found.
const CACHED_FILES: usize = 1000;
/// Bytes of paths below the static root that are kept at most.
const MOST_STATIC_BYTES: usize = 64 << 20;

/// A file with what is written of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) kind: Type,
    /// More than one for a file with several names, as far as they were found.
    pub(super) paths: BTreeSet<Vec<u8>>,
}

/// Shared by all instances.
#[derive(Debug)]
pub struct KnownFiles {
    static_root: Vec<u8>,
    static_files: OnceLock<StaticFiles>,
    began: OnceLock<()>,
    cache: Mutex<Cache>,
}

impl Default for KnownFiles {
    /// With the files of Android's system partition. Elsewhere there is usually no such directory.
    fn default() -> Self {
        Self::with_static_root("/system")
    }
}

impl KnownFiles {
    /// With the files below `static_root`.
    pub(super) fn with_static_root(static_root: &str) -> Self {
        Self {
            static_root: static_root.as_bytes().to_vec(),
            static_files: OnceLock::new(),
            began: OnceLock::new(),
            cache: Mutex::new(Cache::new(CACHED_FILES)),
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
            // Their files are looked for like others.
            let _ = self.static_files.set(StaticFiles::default());
        }
    }

    /// Whether [`KnownFiles::static_file`] knows all that it ever will.
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

    /// What a scan has found of a file, which counts as used now.
    pub(super) fn cached(&self, id: FileId) -> Option<File> {
        self.cache().get(id).cloned()
    }

    /// Remembers a name of a file; gives all that is known of it.
    pub(super) fn found(&self, id: FileId, kind: Type, path: Vec<u8>) -> File {
        self.cache().add(id, kind, path)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
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

/// Forgets what was not used for longest.
#[derive(Debug)]
struct Cache {
    capacity: usize,
    files: HashMap<FileId, (u64, File)>,
    /// The same by the time of their last use, which counts uses.
    by_use: BTreeMap<u64, FileId>,
    uses: u64,
}

impl Cache {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            files: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    fn get(&mut self, id: FileId) -> Option<&File> {
        let (last_use, file) = self.files.get_mut(&id)?;
        self.by_use.remove(last_use);
        self.uses += 1;
        *last_use = self.uses;
        self.by_use.insert(self.uses, id);
        Some(file)
    }

    fn add(&mut self, id: FileId, kind: Type, path: Vec<u8>) -> File {
        if self.get(id).is_none() {
            self.uses += 1;
            self.by_use.insert(self.uses, id);
            let file = File {
                kind,
                paths: BTreeSet::new(),
            };
            self.files.insert(id, (self.uses, file));
            if self.files.len() > self.capacity
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.files.remove(&oldest);
            }
        }
        match self.files.get_mut(&id) {
            Some((_, file)) => {
                file.paths.insert(path);
                file.clone()
            }
            // Only where nothing may be kept.
            None => File {
                kind,
                paths: BTreeSet::from([path]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_files::TempDir;

    fn id(inode: u64) -> FileId {
        FileId { device: 7, inode }
    }

    proptest! {
        #[test]
        fn the_cache_keeps_what_was_used_last(uses in prop::collection::vec((0u64..12, any::<bool>()), 0..60), capacity in 1usize..6) {
            let mut cache = Cache::new(capacity);
            // Least recently used first.
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (count, (inode, add)) in uses.into_iter().enumerate() {
                let known = model.iter().position(|(known, _)| *known == inode).map(|at| model.remove(at));
                match (known, add) {
                    (known, true) => {
                        let paths = known.map_or(0, |(_, paths)| paths) + 1;
                        let file = cache.add(id(inode), Type::FILE, count.to_string().into_bytes());
                        prop_assert_eq!(file.paths.len(), paths);
                        model.push((inode, paths));
                    }
                    (Some(known), false) => {
                        prop_assert_eq!(cache.get(id(inode)).map(|file| file.paths.len()), Some(known.1));
                        model.push(known);
                    }
                    (None, false) => prop_assert!(cache.get(id(inode)).is_none()),
                }
                if model.len() > capacity {
                    model.remove(0);
                }
                prop_assert_eq!(cache.files.len(), model.len());
                prop_assert_eq!(cache.by_use.len(), model.len());
            }
        }
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
