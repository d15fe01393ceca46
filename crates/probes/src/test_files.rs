//! Directories of made-up kernel files for tests: created empty, removed at the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own under the system's temporary directory.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(purpose: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!(
            "ferretto-probes-{}-{number}-{purpose}",
            std::process::id()
        ));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, making the directories on the way to it.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Makes a symbolic link to `target`, which need not exist, and the directories on the way to it.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// Removes a file or link, or a directory with all that is in it.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.0.join(path);
        if path.is_dir() && !path.is_symlink() {
            std::fs::remove_dir_all(path)
        } else {
            std::fs::remove_file(path)
        }
        .unwrap();
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nothing depends on the removal, and a failing test must not turn into an abort.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Damages texts, the same way for the same seed.
pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// A number below `end` (xorshift).
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % end.max(1) as u64) as usize
    }

    /// `text` with a few places changed: bytes replaced, removed or doubled, the end cut off, huge numbers put in.
    pub(crate) fn damage(&mut self, text: &[u8]) -> Vec<u8> {
        let mut damaged = text.to_vec();
        for _ in 0..self.below(5) {
            let at = self.below(damaged.len() + 1);
            match self.below(6) {
                0 => damaged.truncate(at),
                1 => damaged.insert(at, self.below(256) as u8),
                2 => drop(damaged.splice(at..at, *b"99999999999999999999999")),
                3 => drop(damaged.splice(
                    at..at,
                    [b"\n"[0], b' ', b':', 0, b'-', b')'][self.below(6)..].to_vec(),
                )),
                4 if at < damaged.len() => drop(damaged.remove(at)),
                _ => damaged.extend_from_within(at..),
            }
        }
        damaged
    }
}
