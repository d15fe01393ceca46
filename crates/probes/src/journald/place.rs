//! The place of the journal's files, and why this process may see none of them, or not all.
//!
//! Called once for each follower. The library itself opens the files that it can and says nothing about the
//! others.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Why there is nothing to read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// There are no files.
    #[error(
        "this machine has no journal: there is none in {}; it takes systemd-journald, and a Storage= in journald.conf other than none",
        list(_0)
    )]
    NoJournal(Vec<PathBuf>),
    /// There are files, but this user may not read them.
    #[error(
        "this user may not read the journal ({}); start {program} as root or as a member of the group systemd-journal",
        file.display()
    )]
    Forbidden {
        /// The system's part of it.
        file: PathBuf,
        /// The program that wants to read it.
        program: &'static str,
    },
}

/// Why the session may get fewer entries than expected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Remark {
    /// This user may not read the files of the system and of other users.
    #[error(
        "of the journal only what this user may read is seen, which does not include {}; \
         start {program} as root or as a member of the group systemd-journal",
        file.display()
    )]
    Partial {
        /// The system's part of it.
        file: PathBuf,
        /// The program that wants to read it.
        program: &'static str,
    },
    /// There are files, but nobody writes them.
    #[error("systemd-journald does not seem to run ({} is missing): nothing will come to the journal", _0.display())]
    NotRunning(PathBuf),
}

/// The files of this machine's journal, as the library sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalFiles {
    /// At least one file that this process may read.
    Some,
    /// No such file.
    None,
}

/// The places of files and sockets.
#[derive(Debug)]
pub(super) struct Places {
    /// Folders of journals, for this boot and for longer.
    folders: Vec<PathBuf>,
    /// The file with the machine's id, which is the name of the journal's folder within `folders`.
    machine_id: PathBuf,
    /// The socket to which programs send their messages.
    socket: PathBuf,
}

impl Places {
    /// The places that systemd uses.
    pub(super) fn of_system() -> Places {
        Places {
            folders: vec!["/run/log/journal".into(), "/var/log/journal".into()],
            machine_id: "/etc/machine-id".into(),
            socket: "/run/systemd/journal/socket".into(),
        }
    }

    /// Judges the library's finding.
    pub(super) fn examine(
        &self,
        found: JournalFiles,
        program: &'static str,
    ) -> Result<Option<Remark>, Absence> {
        self.judge(found, self.forbidden(), program)
    }

    fn judge(
        &self,
        found: JournalFiles,
        forbidden: Option<PathBuf>,
        program: &'static str,
    ) -> Result<Option<Remark>, Absence> {
        match (found, forbidden) {
            (JournalFiles::None, None) => Err(Absence::NoJournal(self.folders.clone())),
            (JournalFiles::None, Some(file)) => Err(Absence::Forbidden { file, program }),
            (JournalFiles::Some, Some(file)) => Ok(Some(Remark::Partial { file, program })),
            (JournalFiles::Some, None) => {
                let is_missing = std::fs::symlink_metadata(&self.socket)
                    .is_err_and(|error| error.kind() == ErrorKind::NotFound);
                Ok(is_missing.then(|| Remark::NotRunning(self.socket.clone())))
            }
        }
    }

    /// The system's part of the journal, if it is there and this process may not read it.
    fn forbidden(&self) -> Option<PathBuf> {
        let machine_id = std::fs::read_to_string(&self.machine_id).ok()?;
        let files = self
            .folders
            .iter()
            .map(|folder| folder.join(machine_id.trim()).join("system.journal"));
        let mut files = files
            .filter(|file| File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied));
        files.next()
    }
}

fn list(folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    folders.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_files::TempDir;

    fn places(dir: &TempDir) -> Places {
        dir.write("machine-id", "0123\n");
        Places {
            folders: vec![dir.path().join("run"), dir.path().join("var")],
            machine_id: dir.path().join("machine-id"),
            socket: dir.path().join("socket"),
        }
    }

    #[test]
    fn a_machine_without_a_journal_is_told_from_one_whose_journal_is_not_written() {
        let dir = TempDir::new("places");
        let places = places(&dir);
        let none = places
            .examine(JournalFiles::None, "a_program")
            .unwrap_err()
            .to_string();
        let folders = format!("{0}/run and {0}/var", dir.path().display());
        assert!(
            none.starts_with(&format!(
                "this machine has no journal: there is none in {folders}; "
            )),
            "{none}"
        );
        let idle = places
            .examine(JournalFiles::Some, "a_program")
            .unwrap()
            .unwrap()
            .to_string();
        assert!(
            idle.contains("socket is missing): nothing will come to the journal"),
            "{idle}"
        );
        dir.write("socket", "");
        assert_eq!(places.examine(JournalFiles::Some, "a_program"), Ok(None));
    }

    #[test]
    fn a_journal_that_others_may_read_is_told_from_none() {
        let dir = TempDir::new("places");
        let places = places(&dir);
        let file = || PathBuf::from("/var/log/journal/0123/system.journal");
        let forbidden = places
            .judge(JournalFiles::None, Some(file()), "a_program")
            .unwrap_err()
            .to_string();
        let told = "this user may not read the journal (/var/log/journal/0123/system.journal); start a_program as root or";
        assert!(forbidden.starts_with(told), "{forbidden}");
        assert_eq!(
            places.judge(JournalFiles::Some, Some(file()), "a_program"),
            Ok(Some(Remark::Partial {
                file: file(),
                program: "a_program"
            }))
        );
    }
}
