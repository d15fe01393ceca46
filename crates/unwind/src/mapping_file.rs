//! The way from a mapping to the bytes that are mapped.
//!
//! A path in `/proc/PID/maps` means something in the process's mount namespace only, and there may be another file of this name by now. So the
//! first way is `/proc/PID/map_files/START-END`, which is the mapped file itself, whatever became of its name; the kernel allows it with
//! `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`. The second is the path below `/proc/PID/root`, if it has the inode that is mapped. The device
//! is not compared: on btrfs and overlayfs, the mapping and the file have different ones.
//!
//! Only regular files are opened for reading, because opening anything else may have effects, and only on file systems that are
//! [known to answer](crate::file_system): a file system in user space can hold up the readers of its files; see [`LoadRequest`].

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::elf::Unusable;
use crate::file_system::{self, Untrusted};
use crate::maps::{Mapping, MappingKind};

/// Bytes of a vdso that are read at most. There are two to four pages of it.
const LARGEST_VDSO: u64 = 256 << 10;

/// The directory of a process in procfs. It never becomes that of another process: everything below it is gone when the process is.
#[derive(Debug, Clone)]
pub(crate) struct ProcessDir {
    directory: Arc<OwnedFd>,
    whose: Whose,
}

/// Whose directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The files of the process with the mappings.
    Its,
    /// This process's own, in the place of that of a process that has ended.
    Ours,
}

impl ProcessDir {
    pub(crate) fn open(pid: u32) -> io::Result<ProcessDir> {
        ProcessDir::at(&format!("/proc/{pid}"), Whose::Its)
    }

    /// Where the files of processes that have ended may be.
    pub(crate) fn for_ended() -> io::Result<ProcessDir> {
        ProcessDir::at("/proc/self", Whose::Ours)
    }

    fn at(path: &str, whose: Whose) -> io::Result<ProcessDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(ProcessDir {
            directory: Arc::new(directory),
            whose,
        })
    }

    /// Whether the process with the mappings has ended.
    pub(crate) fn is_for_ended(&self) -> bool {
        self.whose == Whose::Ours
    }

    pub(crate) fn open_file(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).map(File::from)
    }

    /// Interprets an error of a file in the directory: all files are gone when the process is.
    fn unusable(&self, error: Errno) -> Unusable {
        match error {
            Errno::SRCH => Unusable::ProcessGone,
            Errno::NOENT if !self.is_there() => Unusable::ProcessGone,
            error => Unusable::Unreadable(error.raw_os_error()),
        }
    }

    /// Whether the process has not ended.
    fn is_there(&self) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.directory, "root", flags, Mode::empty()).is_ok()
    }

    /// Names a file by a path in the process's root, out of which no link leads. On the way nothing is read from disks and no server is asked: the
    /// kernel keeps all folders on the way to a file that is mapped, and does not soon forget them.
    fn name_in_root(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        match self.resolve(path, OFlags::empty(), ResolveFlags::CACHED) {
            // A kernel before 5.12.
            Err(Errno::INVAL) => self.resolve(path, OFlags::empty(), ResolveFlags::empty()),
            named => named,
        }
    }

    fn resolve(&self, path: &[u8], flags: OFlags, how: ResolveFlags) -> Result<OwnedFd, Errno> {
        let named = OFlags::PATH | OFlags::CLOEXEC;
        let root = openat(&self.directory, "root", named | OFlags::DIRECTORY, Mode::empty())?;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | how;
        openat2(root, path, named | flags, Mode::empty(), how)
    }

    /// Opens the file at a path in the process's root, if it is a regular one on a file system that answers, and was used lately. The file itself must
    /// not be a link: it could lead to somebody else's. Kernels before 5.12 cannot promise not to ask a server on the way, so this fails there.
    pub(crate) fn open_in_root(&self, path: &[u8]) -> Result<File, Unusable> {
        self.open_regular(self.resolve(path, OFlags::NOFOLLOW, ResolveFlags::CACHED))
    }

    /// Opens a file that has been named but not opened, if it is a regular one on a file system that answers.
    fn open_regular(&self, named: Result<OwnedFd, Errno>) -> Result<File, Unusable> {
        let named = named.map_err(|error| self.unusable(error))?;
        let found = file_system::look(&named).map_err(|error| self.unusable(error))?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Err(Unusable::NotRegular);
        }
        // A process that has left its root for another has files of mounts that only others list.
        let theirs = std::iter::once_with(|| self.open_file("mountinfo").ok());
        let ours = std::iter::once_with(|| File::open("/proc/self/mountinfo").ok());
        let mounts = theirs.chain(ours).flatten();
        file_system::check(named.as_fd(), &found, mounts).map_err(|reason| match reason {
            Untrusted::Type(name) => Unusable::Untrusted(name),
            Untrusted::Unknown => Unusable::Untrusted("unknown".into()),
        })?;
        let again = format!("/proc/self/fd/{}", named.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(CWD, again, flags, Mode::empty())
            .map(File::from)
            .map_err(|error| self.unusable(error))
    }
}

/// Identifies the content of a file without reading it. Every write changes the time of the last change, which no program can set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    File {
        device: u64,
        inode: u64,
        size: u64,
        changed: (i64, i64),
    },
    /// The content itself. All processes have the same few.
    Memory(Arc<[u8]>),
}

#[derive(Debug)]
pub(crate) enum MappedFile {
    File(File),
    Memory(Arc<[u8]>),
}

impl MappedFile {
    pub(crate) fn identity(&self) -> Result<Identity, Unusable> {
        match self {
            MappedFile::File(file) => {
                let metadata = file.metadata().map_err(|error| Unusable::from_io(&error))?;
                Ok(Identity::File {
                    device: metadata.dev(),
                    inode: metadata.ino(),
                    size: metadata.len(),
                    changed: (metadata.ctime(), metadata.ctime_nsec()),
                })
            }
            MappedFile::Memory(bytes) => Ok(Identity::Memory(bytes.clone())),
        }
    }
}

/// Everything that it takes to load the module of one mapping: hand it to [`ModuleCache::load`](crate::ModuleCache::load).
///
/// Loading opens and reads files. It takes as long as this machine's disks do: files on a file system whose server any user may have started
/// are [not opened](Unusable::Untrusted). These cases remain in which loading waits for somebody else:
///
/// - an `overlay` with a layer on such a file system: the layers' file systems cannot be told from outside;
/// - a block device that has a server, such as `nbd` and `fuseblk`; only an administrator can set these up;
/// - a file on a network, whose server the administrator has chosen;
/// - a process whose memory is locked for long, because the kernel looks up mapped files in it. This holds for reading its mappings and its stack as
///   well ([`Process::refresh`](crate::Process::refresh), [`Process::read_stack`](crate::Process::read_stack)). A process can bring that about: while it
///   maps a file, the kernel may wait for the file's server with the lock held.
///
/// A caller that must not wait even then takes the request to another thread, and gives [`Process::provide`](crate::Process::provide) what comes
/// of it.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    pub(crate) directory: Option<ProcessDir>,
    pub(crate) mapping: Mapping,
}

impl LoadRequest {
    pub(crate) fn open(&self) -> Result<MappedFile, Unusable> {
        let directory = self.directory.as_ref().ok_or(Unusable::NoFile)?;
        match self.mapping.kind() {
            MappingKind::File | MappingKind::DeletedFile => self.open_file(directory),
            MappingKind::Vdso if directory.is_for_ended() => Err(Unusable::ProcessGone),
            MappingKind::Vdso => self.read_memory(directory),
            MappingKind::Device => Err(Unusable::NotRegular),
            MappingKind::Anonymous | MappingKind::Special | MappingKind::Stack => Err(Unusable::NoFile),
        }
    }

    fn open_file(&self, directory: &ProcessDir) -> Result<MappedFile, Unusable> {
        let mapping = &self.mapping;
        let mapped = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
        let named = || {
            openat(
                &directory.directory,
                mapped,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        let refused = match directory.is_for_ended() {
            true => Unusable::Replaced,
            false => match directory.open_regular(named()) {
                Ok(file) => return Ok(MappedFile::File(file)),
                Err(refused) => refused,
            },
        };
        if matches!(
            refused,
            Unusable::NotRegular | Unusable::Untrusted(_) | Unusable::ProcessGone
        ) {
            return Err(refused);
        }
        let path = mapping.path().filter(|path| path.starts_with(b"/"));
        let Some(path) = path else { return Err(refused) };
        let named = match directory.name_in_root(path) {
            Err(Errno::NOENT) => return Err(Unusable::Replaced),
            named => named.map_err(|error| directory.unusable(error))?,
        };
        // Only naming a file has no effects. A process may have chosen a path that leads to another file here.
        let found = file_system::look(&named).map_err(|error| directory.unusable(error))?;
        if found.stx_ino != mapping.inode {
            return Err(Unusable::Replaced);
        }
        directory.open_regular(Ok(named)).map(MappedFile::File)
    }

    fn read_memory(&self, directory: &ProcessDir) -> Result<MappedFile, Unusable> {
        let memory = directory
            .open_file("mem")
            .map_err(|error| directory.unusable(error))?;
        let size = (self.mapping.end - self.mapping.start).min(LARGEST_VDSO);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        // This reads nothing once the process has ended.
        match memory.read_exact_at(&mut bytes, self.mapping.start) {
            Ok(()) => Ok(MappedFile::Memory(bytes.into())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Unusable::ProcessGone),
            Err(error) => Err(Unusable::from_io(&error)),
        }
    }
}
