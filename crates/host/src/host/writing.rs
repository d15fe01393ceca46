//! Trace files: batches on their way to the files' threads, and the reports of these threads on their way to the service.

use std::fs::File;
use std::io;
use std::time::Instant;

use ferretto_service::SessionId;
use ferretto_service::compression::Fit;

use super::{FILE_BATCH, Host};
use crate::clocks::TurnTime;
use crate::files::{Done, Written};
use crate::trace_file::TraceFile;

impl Host {
    pub(super) fn open_file(&mut self, session: SessionId, file: TraceFile) {
        match self.files.writer(session, file) {
            Ok(writer) => drop(self.writers.insert(session, writer)),
            // The session ends with the first batch, which has no file.
            Err(error) => self
                .program
                .warning(format_args!("cannot start the thread of a trace file: {error}")),
        }
    }

    /// Hands the next batch for a file to its thread.
    pub(super) fn write_file(&mut self, session: SessionId, turn: &TurnTime) {
        self.service.local_time_offset(self.program.local_time_offset());
        let begun = Instant::now();
        let Some(batch) = self.service.read_for_file(session, FILE_BATCH, turn.now()) else {
            return;
        };
        let (filtered, took) = (batch.filtered, begun.elapsed());
        match self.writers.get_mut(&session) {
            Some(file) => file.write(batch),
            None => self.service.file_written(
                session,
                Err("its thread could not be started; the service's log says why".into()),
                turn.now(),
            ),
        }
        if filtered.is_some() {
            self.service.filtering_took(session, took);
        }
    }

    /// Handles the reports of the threads of files.
    pub(super) fn files_progressed(&mut self, turn: &TurnTime) {
        while let Some(done) = self.files.next_done() {
            self.file_progressed(done, turn);
        }
    }

    pub(super) fn file_progressed(&mut self, done: Done, turn: &TurnTime) {
        match done {
            Done::Written(session, batch, result) => {
                match batch {
                    Some(batch) => {
                        if let Some(file) = self.writers.get_mut(&session) {
                            file.take_back(batch);
                        }
                    }
                    None => self.freed = true,
                }
                match result {
                    Ok(Written { bytes, fit }) => match fit {
                        Fit::Whole => self.service.file_written(session, Ok(bytes), turn.now()),
                        Fit::Cut => self.service.file_full(session, bytes, turn.now()),
                    },
                    Err(error) => self.service.file_written(session, Err(error), turn.now()),
                }
            }
            Done::Shared(clone, shared) => self.copy_file(clone, shared, turn),
            Done::Copied(clone, result) => {
                if result.is_err() {
                    self.writers.remove(&clone);
                }
                self.service
                    .file_copied(clone, result.map_err(|error| error.to_string()), turn.now());
            }
            Done::Synced(_, Ok(())) => {}
            Done::Synced(session, Err(error)) => self.service.file_sync_failed(session, &error.to_string()),
            Done::Closed(session, result) => {
                self.writers.remove(&session);
                self.service
                    .file_closed(session, result.map_err(|error| error.to_string()), turn.now());
            }
        }
        self.carry_out(turn);
    }

    /// Has the file of a clone begin with the contents of the original's file.
    fn copy_file(&mut self, clone: SessionId, shared: io::Result<(File, u64)>, turn: &TurnTime) {
        let writer = shared.and_then(|original| {
            // The consumer may be gone, and its descriptor with it.
            let file = self
                .files_of_clones
                .remove(&clone)
                .ok_or(io::ErrorKind::NotFound)?;
            let writer = self.files.writer(clone, file)?;
            writer.copy(original);
            Ok(writer)
        });
        match writer {
            Ok(writer) => drop(self.writers.insert(clone, writer)),
            Err(error) => self
                .service
                .file_copied(clone, Err(error.to_string()), turn.now()),
        }
    }
}
