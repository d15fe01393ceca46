//! The modules of all processes, each file once, in bounded memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::elf::{Image, Unusable};
use crate::mapping_file::{Identity, LoadRequest, MappedFile};
use crate::module::Module;

/// Files that are remembered at most, with or without tables.
const MOST_FILES: usize = 16 << 10;

/// The modules that processes have in common, and the reasons why files are none.
///
/// All unwinding threads share one. A file is known by device, inode, size and time of the last change, so that a binary that was replaced or
/// written to is read anew. The unwind tables together take no more than a given number of bytes: those that were not used for the longest time are
/// dropped, and read again when they are needed.
#[derive(Debug)]
pub struct ModuleCache {
    most_bytes: usize,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    known: HashMap<Identity, Known>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Known {
    outcome: Result<Arc<Module>, Unusable>,
    /// Of the module's tables.
    bytes: usize,
    /// Uses that the module counted when it was last looked at, and the time of the cache's clock at which they had changed.
    uses: u64,
    used_at: u64,
}

impl ModuleCache {
    /// An empty cache, whose unwind tables take at most `most_bytes`.
    pub fn new(most_bytes: usize) -> ModuleCache {
        ModuleCache {
            most_bytes,
            files: Mutex::default(),
        }
    }

    /// The module that a mapping is of. Opens the file, and reads it if no other process has had it read. May wait for the file's disk or server.
    ///
    /// # Errors
    /// Why there is no module. A mistake in a file's content is remembered, so that the file is not read again.
    pub fn load(&self, request: &LoadRequest) -> Result<Arc<Module>, Unusable> {
        let file = request.open()?;
        let identity = file.identity()?;
        let known = self
            .files()
            .known
            .get(&identity)
            .map(|known| known.outcome.clone());
        let before = match known {
            Some(Ok(module)) if !module.has_tables() => Some(module),
            Some(outcome) => return outcome,
            None => None,
        };
        let read = match &file {
            MappedFile::File(file) => self.read(file),
            MappedFile::Memory(bytes) => {
                let bytes: &[u8] = bytes;
                self.read(&bytes)
            }
        };
        let outcome = match (before, read) {
            (Some(module), Ok(again)) => {
                module.take_tables_of(&again);
                Ok(module)
            }
            (_, read) => read.map(Arc::new),
        };
        self.remember(identity, outcome)
    }

    fn read(&self, image: &dyn Image) -> Result<Module, Unusable> {
        let module = Module::read(image)?;
        let bytes = module.table_bytes();
        if bytes > self.most_bytes {
            return Err(Unusable::TooLarge {
                what: "unwind tables",
                bytes: bytes as u64,
                limit: self.most_bytes as u64,
            });
        }
        Ok(module)
    }

    fn remember(
        &self,
        identity: Identity,
        outcome: Result<Arc<Module>, Unusable>,
    ) -> Result<Arc<Module>, Unusable> {
        // Failures that have nothing to do with the content may not repeat.
        if let Err(Unusable::Unreadable(_)) = outcome {
            return outcome;
        }
        let mut files = self.files();
        // Another thread may have read the same file at the same time.
        if let Some(known) = files.known.get(&identity)
            && let (Ok(theirs), Ok(ours)) = (&known.outcome, &outcome)
            && !Arc::ptr_eq(theirs, ours)
            && theirs.has_tables()
        {
            return Ok(theirs.clone());
        }
        let bytes = outcome.as_ref().map_or(0, |module| module.table_bytes());
        files.clock += 1;
        let known = Known {
            outcome: outcome.clone(),
            bytes,
            uses: 0,
            used_at: files.clock,
        };
        files.bytes += bytes;
        if let Some(before) = files.known.insert(identity, known) {
            files.bytes -= before.bytes;
        }
        files.shrink(self.most_bytes);
        outcome
    }

    /// Forgets all files. Modules that processes hold keep their tables until the processes let go of them ([`Process::clear`](crate::Process::clear)).
    pub fn clear(&self) {
        *self.files() = Files::default();
    }

    /// Bytes of all unwind tables.
    pub fn table_bytes(&self) -> usize {
        self.files().bytes
    }

    /// Number of files that are remembered, usable or not.
    pub fn files_known(&self) -> usize {
        self.files().known.len()
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Drops tables and files until both limits hold. The one that is used most recently stays: its tables are about to be needed.
    fn shrink(&mut self, most_bytes: usize) {
        if self.bytes <= most_bytes && self.known.len() <= MOST_FILES {
            return;
        }
        let clock = self.clock;
        for known in self.known.values_mut() {
            let uses = known.outcome.as_ref().map_or(known.uses, |module| module.uses());
            if uses != known.uses {
                known.uses = uses;
                known.used_at = known.used_at.max(clock - 1);
            }
        }
        let mut oldest: Vec<(u64, Identity)> = self
            .known
            .iter()
            .filter(|(_, known)| known.used_at < clock)
            .map(|(identity, known)| (known.used_at, identity.clone()))
            .collect();
        oldest.sort_unstable_by_key(|&(used_at, _)| used_at);
        // A tenth more than needed, so that not every new file has to look at all others.
        let (most_bytes, most_files) = (most_bytes - most_bytes / 10, MOST_FILES - MOST_FILES / 10);
        for (_, identity) in oldest {
            if self.bytes <= most_bytes && self.known.len() <= most_files {
                return;
            }
            let Some(known) = self.known.get_mut(&identity) else {
                continue;
            };
            self.bytes -= std::mem::take(&mut known.bytes);
            if let Ok(module) = &known.outcome {
                module.drop_tables();
            }
            if self.known.len() > most_files {
                self.known.remove(&identity);
            }
        }
    }
}
