//! Trace files that sessions stream into (`write_into_file`).

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Slices in one write; the kernel takes no more.
const MAX_SLICES: usize = 1024;

/// An open trace file.
pub(super) struct TraceFile {
    file: File,
    /// Where it is, if the daemon made it itself.
    created: Option<PathBuf>,
}

impl TraceFile {
    /// The descriptor that a consumer passed.
    pub(super) fn passed(fd: OwnedFd) -> TraceFile {
        TraceFile {
            file: File::from(fd),
            created: None,
        }
    }

    /// Makes the file that `output_path` names; it must not exist yet.
    pub(super) fn create(path: &Path) -> Result<TraceFile, String> {
        let failed = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::AlreadyExists => "; remove it or choose another output_path",
                _ => "",
            };
            format!("cannot create the trace file {}: {error}{hint}", path.display())
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        // Not with the mode above, which the umask would cut.
        file.set_permissions(Permissions::from_mode(0o644))
            .map_err(failed)?;
        Ok(TraceFile {
            file,
            created: Some(path.to_owned()),
        })
    }

    /// Takes back a file that was made for a session which then was refused.
    pub(super) fn discard(self) {
        if let Some(path) = self.created {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes all of it; returns how many bytes that were.
    pub(super) fn write<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) -> io::Result<u64> {
        let mut batch: Vec<IoSlice<'a>> = Vec::with_capacity(MAX_SLICES);
        let mut written = 0;
        for slice in slices {
            batch.push(IoSlice::new(slice));
            if batch.len() == MAX_SLICES {
                written += write_all(&mut self.file, &mut batch)?;
                batch.clear();
            }
        }
        Ok(written + write_all(&mut self.file, &mut batch)?)
    }

    /// Has the kernel bring what was written to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self.file.sync_data() {
            // Pipes and sockets cannot.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }
}

fn write_all(file: &mut File, mut slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let mut written = 0;
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                written += bytes as u64;
                IoSlice::advance_slices(&mut slices, bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}
