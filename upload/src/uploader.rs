//! The loop: looks for sealed files, uploads those that were not uploaded yet, the oldest first, and tries again after failures.
//!
//! `main` runs it. Sealed files appear in the recorder's folder whole, by their names, and never change, but the recorder's quota may delete them at
//! any time. [`Memory`] knows what was uploaded. When it does not, after a kill between an upload and its note or when its file is lost, what is stored
//! is read back and compared, so that nothing is uploaded twice and nothing half counts as uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferretto_recorder::FileName;

use crate::pace::{BackOff, Pace};
use crate::state::{Failure, Memory, Parts, State};
use crate::stderr::say;
use crate::store::Store;

/// How often the folder is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// The bytes that are sent at once, and the memory for them. S3 takes no smaller parts.
const PART: u64 = 5 << 20;
/// The parts of an upload at most. S3 takes 10,000.
const MOST_PARTS: u64 = 9000;

/// When to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Never.
    Killed,
    /// Once all files that are there have been uploaded, or one could not be.
    AllIsThere,
}

/// The fate of a file.
enum Uploaded {
    /// It is stored, with so many bytes.
    Stored(u64),
    /// The recorder has deleted it.
    Gone,
}

/// See the [module](self).
pub(crate) struct Uploader {
    folder: PathBuf,
    store: Store,
    memory: Memory,
    /// As it is in the file.
    saved: State,
    pace: Pace,
    back_off: BackOff,
    /// The file that failed last. The next round begins behind it, so that one bad file does not hold up the others.
    failed: Option<FileName>,
    is_swept: bool,
}

impl Uploader {
    pub(crate) fn new(
        folder: PathBuf,
        store: Store,
        memory: Memory,
        max_bytes_per_second: Option<u64>,
    ) -> Uploader {
        Uploader {
            folder,
            store,
            memory,
            saved: State::default(),
            pace: Pace::new(max_bytes_per_second),
            back_off: BackOff::default(),
            failed: None,
            is_swept: false,
        }
    }

    /// Uploads.
    ///
    /// # Errors
    /// If it should end, and a file could not be uploaded.
    pub(crate) async fn run(mut self, until: Until) -> Result<(), String> {
        loop {
            let round = self.round().await;
            match &round {
                Ok(()) => self.memory.state.last_error = None,
                Err(problem) => {
                    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    self.memory.state.failures += 1;
                    self.memory.state.last_error = Some(Failure {
                        at: since_1970.as_secs(),
                        text: problem.clone(),
                    });
                }
            }
            let saved = self.save();
            let pause = match (round.and(saved), until) {
                (result, Until::AllIsThere) => return result,
                (Ok(()), Until::Killed) => {
                    self.back_off.reset();
                    LOOK_PERIOD
                }
                (Err(problem), Until::Killed) => {
                    let pause = self.back_off.next();
                    say(format_args!(
                        "not uploaded, and tried again in {:.0} s: {problem}",
                        pause.as_secs_f64()
                    ));
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn save(&mut self) -> Result<(), String> {
        if self.saved != self.memory.state {
            self.memory.save()?;
            self.saved = self.memory.state.clone();
        }
        Ok(())
    }

    /// Uploads all that waits, until one fails.
    async fn round(&mut self) -> Result<(), String> {
        let waiting = self.look()?;
        self.save()?;
        if !self.is_swept {
            self.store.sweep()?;
            self.is_swept = true;
        }
        self.forget_parts().await?;
        let behind = |file: &&FileName| self.failed.as_ref().is_some_and(|failed| *file > failed);
        let (first, then): (Vec<&FileName>, Vec<&FileName>) = waiting.keys().partition(behind);
        for file in first.into_iter().chain(then) {
            let uploaded = self.upload(file).await;
            let uploaded = uploaded.map_err(|problem| {
                self.failed = Some(file.clone());
                format!("{file}: {problem}")
            })?;
            let state = &mut self.memory.state;
            state.waiting -= 1;
            state.waiting_bytes -= waiting[file];
            state.known.remove(&file.to_string());
            match uploaded {
                Uploaded::Stored(bytes) => {
                    state.uploaded += 1;
                    state.uploaded_bytes += bytes;
                    state.done.insert(file.to_string());
                    // The program that started it may not listen any more.
                    let _ = writeln!(io::stdout(), "uploaded {file}: {bytes} bytes");
                }
                Uploaded::Gone => state.missed += 1,
            }
            self.save()?;
            self.back_off.reset();
        }
        self.failed = None;
        Ok(())
    }

    /// Has the store forget the parts that an upload has left that was interrupted.
    async fn forget_parts(&mut self) -> Result<(), String> {
        if let Some(Parts { file, id }) = &self.memory.state.parts {
            if let Some(file) = FileName::parse(file) {
                let forgotten = self.store.forget(&file, id).await;
                forgotten.map_err(|problem| {
                    format!("cannot tidy up after an interrupted upload of {file}: {problem}")
                })?;
            }
            self.memory.state.parts = None;
            self.save()?;
        }
        Ok(())
    }

    /// Looks into the folder; returns the files that wait, with their sizes.
    fn look(&mut self) -> Result<BTreeMap<FileName, u64>, String> {
        let failed = |error: io::Error| format!("cannot read {}: {error}", self.folder.display());
        let mut waiting = BTreeMap::new();
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(file) = name.to_str().and_then(FileName::parse) else {
                continue;
            };
            // It may be gone by now.
            let Some(metadata) = entry.metadata().ok().filter(std::fs::Metadata::is_file) else {
                continue;
            };
            there.insert(file.to_string());
            if !self.memory.state.done.contains(&file.to_string()) {
                waiting.insert(file, metadata.len());
            }
        }
        let state = &mut self.memory.state;
        state.missed += state.known.iter().filter(|file| !there.contains(*file)).count() as u64;
        state.done.retain(|file| there.contains(file));
        state.known = waiting.keys().map(FileName::to_string).collect();
        state.waiting = waiting.len() as u64;
        state.waiting_bytes = waiting.values().sum();
        Ok(waiting)
    }

    async fn upload(&mut self, file: &FileName) -> Result<Uploaded, String> {
        let failed = |error: io::Error| format!("cannot read it: {error}");
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.folder.join(file.to_string()));
        let mut content = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Uploaded::Gone),
            opened => opened.map_err(failed)?,
        };
        let size = content.metadata().map_err(failed)?.len();
        match self.store.size(file).await? {
            Some(stored) if stored == size && self.is_stored(file, &mut content, size).await? => {}
            Some(_) => {
                return Err(format!(
                    "{} has another object of this name, which is not replaced; delete it, or give this machine another name, as machine in [upload]",
                    self.store
                ));
            }
            None => {
                self.send(file, &mut content, size).await?;
                let stored = self.store.size(file).await?;
                if stored != Some(size) {
                    return Err(format!("of {size} bytes the store has {stored:?}; delete that"));
                }
            }
        }
        Ok(Uploaded::Stored(size))
    }

    /// Whether the object for a file has its content.
    async fn is_stored(&mut self, file: &FileName, content: &mut File, size: u64) -> Result<bool, String> {
        for at in (0..size).step_by(PART as usize) {
            let piece = piece(content, PART.min(size - at))?;
            self.pace.admit(piece.len() as u64).await;
            if self.store.read(file, at..at + piece.len() as u64).await? != piece {
                return Ok(false);
            }
        }
        content
            .seek(SeekFrom::Start(0))
            .map_err(|error| format!("cannot read it: {error}"))?;
        Ok(true)
    }

    /// Sends a file.
    async fn send(&mut self, file: &FileName, content: &mut File, size: u64) -> Result<(), String> {
        if size <= PART {
            let whole = piece(content, size)?;
            self.pace.admit(size).await;
            return self.store.put(file, whole).await;
        }
        let length = PART.max(size.div_ceil(MOST_PARTS));
        let mut pieces = self.store.begin(file).await?;
        if let Some(id) = pieces.id() {
            self.memory.state.parts = Some(Parts {
                file: file.to_string(),
                id: id.to_owned(),
            });
            self.memory.save()?;
        }
        for at in (0..size).step_by(length as usize) {
            let piece = piece(content, length.min(size - at))?;
            self.pace.admit(piece.len() as u64).await;
            pieces.put(piece).await?;
        }
        pieces.complete().await?;
        self.memory.state.parts = None;
        Ok(())
    }
}

/// Reads the next bytes of a file.
fn piece(content: &mut File, length: u64) -> Result<Vec<u8>, String> {
    let mut piece = vec![0; usize::try_from(length).map_err(|_| "it is too large for this machine")?];
    content
        .read_exact(&mut piece)
        .map_err(|error| format!("cannot read it: {error}"))?;
    Ok(piece)
}
