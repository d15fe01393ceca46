//! The disk with the trace files.

use ferretto_service::SessionId;
use ferretto_service::compression::{Compressor, FileCompression, Fit};

use super::World;

/// How the disk behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disk {
    /// It writes at once.
    #[default]
    Fast,
    /// It accepts data at once, and writes when [`World::disk_catches_up`] is called.
    Slow,
    /// It refuses to write.
    Full,
}

impl World {
    pub(super) fn write_file(&mut self, session: SessionId) {
        let Some(batch) = self.service.read_for_file(session, 4096, &self.now) else {
            return;
        };
        let mut packets = batch.slices().collect::<Vec<_>>().concat();
        let mut fit = Fit::Whole;
        if let Some(FileCompression { codec, room }) = batch.compression {
            let mut compressed = Vec::new();
            let mut compressor = Compressor::new(codec).expect("memory");
            let compresses = compressor.compress_into(&mut compressed, &packets, room);
            fit = compresses.expect("memory");
            packets = compressed;
        }
        let written = packets.len() as u64;
        if self.disk != Disk::Full {
            self.files.get_mut(&session).expect("open").extend(packets);
        }
        match self.disk {
            Disk::Fast => self.written(session, written, fit),
            Disk::Slow => self.being_written.push((session, written, fit)),
            Disk::Full => {
                let error = "no space left on device".to_owned();
                self.service.file_written(session, Err(error), &self.now);
            }
        }
    }

    fn written(&mut self, session: SessionId, bytes: u64, fit: Fit) {
        match fit {
            Fit::Whole => self.service.file_written(session, Ok(bytes), &self.now),
            Fit::Cut => self.service.file_full(session, bytes, &self.now),
        }
    }

    /// Has a slow disk finish all its jobs.
    pub(crate) fn disk_catches_up(&mut self) {
        self.finish_writes();
        for clone in std::mem::take(&mut self.being_copied) {
            self.service.file_copied(clone, Ok(()), &self.now);
        }
        for session in std::mem::take(&mut self.being_closed) {
            self.service.file_closed(session, Ok(()), &self.now);
        }
        self.run();
    }

    /// Has a slow disk finish its writes. It closes nothing.
    pub(crate) fn finish_writes(&mut self) {
        for (session, written, fit) in std::mem::take(&mut self.being_written) {
            self.written(session, written, fit);
        }
        self.run();
    }
}
