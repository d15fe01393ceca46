//! Walks directories one entry at a time, in upstream's order: the last root first, and in each directory the subdirectory that was read
//! last.
//!
//! Below a root, the walk follows no link and enters no other file system: its mount points are roots of their own, where they are
//! wanted. Between two steps only the directory that is being read is open. The list of directories still to be visited is bounded
//! ([`MOST_PENDING_BYTES`]); directories beyond that are counted.

use ferretto_proto::messages::inode_file_map::entry::Type;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::{Errno, retry_on_intr};
use std::sync::Arc;

use crate::ftrace::metadata::FileId;

/// Bytes that directories still to be visited may take.
pub(super) const MOST_PENDING_BYTES: usize = 16 << 20;
/// Bytes that a directory takes besides its path: its entry in the list, which doubles as it grows, and the allocator's overhead.
const PENDING_BYTES: usize = 2 * size_of::<Pending>() + 32;
/// The kernel takes no longer path (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An entry of a directory.
    Entry { id: FileId, kind: Type, path: Vec<u8> },
    /// A directory was opened, could not be opened, or has ended.
    Nothing,
    /// All directories have been read.
    Done,
}

/// A directory to visit: a root and the path from it.
#[derive(Debug)]
struct Pending {
    root: Arc<[u8]>,
    below: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    root: Arc<[u8]>,
    below: Vec<u8>,
    device: u64,
    entries: Dir,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Walk {
    pending: Vec<Pending>,
    pending_bytes: usize,
    open: Option<Open>,
    left_out: u64,
}

impl Walk {
    pub(super) fn new(roots: Vec<Vec<u8>>) -> Self {
        let pending = roots.into_iter().map(|root| Pending {
            root: Arc::from(root),
            below: Vec::new(),
        });
        Self {
            pending: pending.collect(),
            pending_bytes: 0,
            open: None,
            left_out: 0,
        }
    }

    /// Directories that were not visited because there were too many, or their paths too long.
    pub(super) fn directories_left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes one step. It waits for the file system.
    pub(super) fn step(&mut self) -> Step {
        let Some(open) = &mut self.open else {
            let Some(next) = self.pending.pop() else {
                return Step::Done;
            };
            self.pending_bytes = self
                .pending_bytes
                .saturating_sub(next.below.len() + PENDING_BYTES);
            // A directory that cannot be opened is skipped, as by upstream: it may be gone or private.
            self.open = Open::new(next).ok();
            return Step::Nothing;
        };
        let Some(Ok(entry)) = open.entries.next() else {
            self.open = None;
            return Step::Nothing;
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            return Step::Nothing;
        }
        let below = join(&open.below, name);
        let path = join(&open.root, &below);
        let kind = match entry.file_type() {
            FileType::Directory => Type::DIRECTORY,
            FileType::RegularFile => Type::FILE,
            _ => Type::UNKNOWN,
        };
        let id = FileId {
            device: open.device,
            inode: entry.ino(),
        };
        if kind == Type::DIRECTORY {
            if self.pending_bytes + below.len() + PENDING_BYTES > MOST_PENDING_BYTES
                || path.len() > LONGEST_PATH
            {
                self.left_out += 1;
            } else {
                self.pending_bytes += below.len() + PENDING_BYTES;
                self.pending.push(Pending {
                    root: open.root.clone(),
                    below,
                });
            }
        }
        Step::Entry { id, kind, path }
    }
}

impl Open {
    /// The root is opened anew each time, so that a scan that pauses does not keep its file system from being unmounted.
    fn new(next: Pending) -> Result<Self, Errno> {
        let root = retry_on_intr(|| openat(CWD, &*next.root, DIRECTORY, Mode::empty()))?;
        let device_of_root = fstat(&root)?.st_dev;
        let directory = match next.below.is_empty() {
            true => root,
            false => open_below(&root, &next.below, device_of_root)?,
        };
        let device = fstat(&directory)?.st_dev;
        Ok(Self {
            device,
            entries: Dir::new(directory)?,
            root: next.root,
            below: next.below,
        })
    }
}

/// Opens a directory without following links and without entering another file system.
fn open_below(root: &OwnedFd, below: &[u8], device_of_root: u64) -> Result<OwnedFd, Errno> {
    let flags = DIRECTORY.union(OFlags::NOFOLLOW);
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match retry_on_intr(|| openat2(root, below, flags, Mode::empty(), within)) {
        // The system is older than Linux 5.6, or a sandbox does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_step_by_step(root, below, device_of_root),
        result => result,
    }
}

fn open_step_by_step(root: &OwnedFd, below: &[u8], device_of_root: u64) -> Result<OwnedFd, Errno> {
    let flags = DIRECTORY.union(OFlags::NOFOLLOW);
    let mut directory = None::<OwnedFd>;
    for name in below.split(|&byte| byte == b'/') {
        let parent = directory.as_ref().unwrap_or(root).as_fd();
        let next = retry_on_intr(|| openat(parent, name, flags, Mode::empty()))?;
        if fstat(&next)?.st_dev != device_of_root {
            return Err(Errno::XDEV);
        }
        directory = Some(next);
    }
    directory.ok_or(Errno::NOENT)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !path.is_empty() && path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::test_files::TempDir;

    fn root(path: &Path) -> Vec<u8> {
        path.to_str().unwrap().as_bytes().to_vec()
    }

    fn walk(roots: Vec<Vec<u8>>) -> Vec<(FileId, Type, String)> {
        let mut walk = Walk::new(roots);
        let mut all = Vec::new();
        loop {
            match walk.step() {
                Step::Done => return all,
                Step::Nothing => {}
                Step::Entry { id, kind, path } => all.push((id, kind, String::from_utf8(path).unwrap())),
            }
        }
    }

    #[test]
    fn everything_below_a_root_is_found_once_with_its_inode_and_type() {
        let dir = TempDir::new("walk");
        for path in ["a/1", "a/deep/er/2", "b/3", "4"] {
            dir.write(path, "");
        }
        let found: BTreeMap<String, (FileId, Type)> = walk(vec![root(dir.path())])
            .into_iter()
            .map(|(id, kind, path)| (path, (id, kind)))
            .collect();
        let expected = ["4", "a", "a/1", "a/deep", "a/deep/er", "a/deep/er/2", "b", "b/3"];
        let expected: Vec<_> = expected.iter().map(|path| dir.path().join(path)).collect();
        assert_eq!(
            found.keys().map(Path::new).collect::<Vec<_>>(),
            expected.iter().map(|path| path.as_path()).collect::<Vec<_>>()
        );
        for (path, (id, kind)) in found {
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!((id.device, id.inode), (metadata.dev(), metadata.ino()), "{path}");
            assert_eq!(kind == Type::DIRECTORY, metadata.is_dir(), "{path}");
            assert_eq!(kind == Type::FILE, metadata.is_file(), "{path}");
        }
    }

    #[test]
    fn links_are_named_and_not_followed() {
        let dir = TempDir::new("walk");
        let elsewhere = TempDir::new("elsewhere");
        elsewhere.write("secret", "");
        dir.link("link", elsewhere.path().to_str().unwrap());
        let found = walk(vec![root(dir.path())]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, Type::UNKNOWN);
        assert!(found[0].2.ends_with("/link"));
    }

    #[test]
    fn a_directory_that_became_a_link_meanwhile_is_not_entered() {
        let elsewhere = TempDir::new("elsewhere");
        elsewhere.write("secret", "");
        for through in ["a", "a/b"] {
            let dir = TempDir::new("walk");
            dir.write("a/b/secret", "");
            let mut walk = Walk::new(vec![root(dir.path())]);
            let mut paths = Vec::new();
            loop {
                match walk.step() {
                    Step::Done => break,
                    Step::Nothing => {}
                    Step::Entry { path, .. } => {
                        let path = String::from_utf8(path).unwrap();
                        if path.ends_with("/b") || (through == "a" && path.ends_with("/a")) {
                            dir.remove(through);
                            dir.link(through, elsewhere.path().to_str().unwrap());
                        }
                        paths.push(path);
                    }
                }
            }
            assert!(paths.iter().all(|path| !path.ends_with("secret")), "{paths:?}");
            assert!(!paths.is_empty());
        }
    }

    #[test]
    fn the_fallback_for_old_kernels_keeps_the_same_rules() {
        let dir = TempDir::new("walk");
        dir.write("a/b/c", "");
        dir.link("a/link", dir.path().join("a/b").to_str().unwrap());
        let root = openat(CWD, dir.path(), DIRECTORY, Mode::empty()).unwrap();
        let device = fstat(&root).unwrap().st_dev;
        let inode = |fd: OwnedFd| fstat(fd).unwrap().st_ino;
        let expected = std::fs::metadata(dir.path().join("a/b")).unwrap().ino();
        for open in [open_below, open_step_by_step] {
            assert_eq!(open(&root, b"a/b", device).map(inode), Ok(expected));
            assert!(open(&root, b"a/link", device).is_err());
            assert!(open(&root, b"missing", device).is_err());
        }
        let top = openat(CWD, "/", DIRECTORY, Mode::empty()).unwrap();
        let device = fstat(&top).unwrap().st_dev;
        assert_eq!(
            open_step_by_step(&top, b"proc/self", device).err(),
            Some(Errno::XDEV)
        );
        assert_eq!(
            open_below(&top, b"proc/self/task", device).err(),
            Some(Errno::XDEV)
        );
    }

    #[test]
    fn other_file_systems_below_a_root_are_not_entered() {
        // Procfs is mounted below the root of every machine.
        let mut walk = Walk::new(vec![root(Path::new("/"))]);
        let mut proc_seen = false;
        // The test reads only the root's own entries: the folders below may be huge.
        while walk.open.is_none() {
            walk.step();
        }
        while walk.open.is_some() {
            if let Step::Entry { path, .. } = walk.step() {
                proc_seen |= path == b"/proc";
            }
        }
        assert!(proc_seen);
        walk.pending.retain(|pending| pending.below == b"proc");
        assert_eq!(walk.pending.len(), 1);
        assert_eq!(walk.step(), Step::Nothing);
        assert!(walk.open.is_none(), "procfs must not be entered");
    }

    #[test]
    fn roots_that_are_not_there_and_odd_spellings_do_no_harm() {
        let dir = TempDir::new("walk");
        dir.write("1", "");
        let mut with_slash = root(dir.path());
        with_slash.push(b'/');
        let missing = root(&dir.path().join("missing"));
        let empty = Vec::new();
        let found = walk(vec![with_slash, missing, empty]);
        assert_eq!(found.len(), 1);
        assert_eq!(Path::new(&found[0].2), dir.path().join("1"));
    }
}
