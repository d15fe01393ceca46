//! The resources of a process: its threads, its descriptors, and the chunks of its shared memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::PATIENCE;

/// How many of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    threads: usize,
    descriptors: usize,
    /// Pages of shared memory that are not free.
    pages: usize,
}

impl Resources {
    pub(crate) fn of(process: u32) -> Resources {
        let entries = |folder: &str| std::fs::read_dir(format!("/proc/{process}/{folder}")).unwrap();
        let mut descriptors: Vec<_> = entries("fd").map(|entry| entry.unwrap().path()).collect();
        // The folder's own, if it is this process that looks.
        descriptors.retain(|descriptor| descriptor.exists() || std::fs::read_link(descriptor).is_ok());
        let pages = descriptors
            .iter()
            .filter(|path| {
                let target = std::fs::read_link(path).unwrap_or_default();
                target.to_string_lossy().contains("memfd:")
            })
            .map(|path| pages_in_use(&File::open(path).unwrap()))
            .sum();
        Resources {
            threads: entries("task").count(),
            descriptors: descriptors.len(),
            pages,
        }
    }
}

/// Pages whose header word says that some of their chunks are in use.
fn pages_in_use(memory: &File) -> usize {
    const PAGE_SIZE: u64 = 4096;
    let pages = memory.metadata().unwrap().len() / PAGE_SIZE;
    let is_in_use = |page: &u64| {
        let mut word = [0; 4];
        memory.read_exact_at(&mut word, page * PAGE_SIZE).unwrap();
        word != [0; 4]
    };
    (0..pages).filter(is_in_use).count()
}

/// Waits until a process has no more than it had `before`, and no page of shared memory is in use.
pub(crate) fn await_none(process: u32, before: &Resources) {
    let until = Instant::now() + PATIENCE;
    loop {
        let now = Resources::of(process);
        if now.threads <= before.threads && now.descriptors <= before.descriptors && now.pages == 0 {
            return;
        }
        assert!(Instant::now() < until, "there were {before:?}, and now {now:?}");
        std::thread::yield_now();
    }
}
