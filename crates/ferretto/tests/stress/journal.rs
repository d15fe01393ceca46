//! When each thread began each of its steps: a file for each thread, written before every step, so that it is there however the
//! process ended. A step is known to be over when the next one has begun.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::now;

/// One thread's.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(folder: &Path, stream: u64) -> Journal {
        Journal(File::create(folder.join(stream.to_string())).unwrap())
    }

    /// The next step begins, or the last one is over.
    pub(crate) fn note(&mut self) {
        self.0.write_all(&now().to_le_bytes()).unwrap();
    }
}

/// By stream, when each step began; the last of these times is when the one before was over.
pub(crate) fn read(folder: &Path) -> BTreeMap<u64, Vec<u64>> {
    let mut journals = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let stream = entry.file_name().to_str().unwrap().parse().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let (times, _) = bytes.as_chunks::<8>();
        journals.insert(
            stream,
            times.iter().map(|time| u64::from_le_bytes(*time)).collect(),
        );
    }
    journals
}
