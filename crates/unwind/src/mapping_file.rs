//! The way from a mapping to the bytes that are mapped.
//!
//! A path in `/proc/PID/maps` means something in the process's mount namespace only, and there may be another file of this name by now. So the
//! first way is `/proc/PID/map_files/START-END`, which is the mapped file itself, whatever became of its name; the kernel allows it with
//! `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`. The second is the path below `/proc/PID/root`, if it has the inode that is mapped. The device
//! is not compared: on btrfs and overlayfs, the mapping and the file have different ones.
//!
//! Only regular files are opened for reading, because opening anything else may have effects. A file system in user space or on a network can
//! hold up whoever reads its files; see [`LoadRequest`].

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, openat2};
use rustix::io::Errno;

use crate::elf::Unusable;
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
    /// That of the process with the mappings.
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

    /// What an error of a file in the directory means: all files are gone when the process is.
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

    /// Names a file by a path in the process's root, out of which no link leads.
    fn name_in_root(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = openat(&self.directory, "root", flags | OFlags::DIRECTORY, Mode::empty())?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(root, path, flags, Mode::empty(), resolve)
    }

    /// Opens a file that has been named but not opened, if it is a regular one.
    fn open_regular(&self, named: Result<OwnedFd, Errno>) -> Result<File, Unusable> {
        let file = File::from(named.map_err(|error| self.unusable(error))?);
        let metadata = file.metadata().map_err(|error| Unusable::from_io(&error))?;
        if !metadata.is_file() || is_of_kernel(&file) {
            return Err(Unusable::NotRegular);
        }
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(CWD, again, flags, Mode::empty())
            .map(File::from)
            .map_err(|error| self.unusable(error))
    }
}

/// Whether it is a file of one of the kernel's own file systems, whose files do something when they are opened, read or closed. Programs are elsewhere.
fn is_of_kernel(file: &File) -> bool {
    /// procfs, sysfs, tracefs, debugfs, securityfs, configfs, both versions of cgroups, the file system of BPF, selinuxfs: the kernel's
    /// `uapi/linux/magic.h`.
    const OF_KERNEL: [u64; 10] = [
        0x9fa0,
        0x6265_6572,
        0x7472_6163,
        0x6462_6720,
        0x7363_6673,
        0x6265_6570,
        0x27_e0eb,
        0x6367_7270,
        0xcafe_4a11,
        0xf97c_ff8c,
    ];
    // A file system that does not say what it is is not trusted.
    fstatfs(file).map_or(true, |found| {
        OF_KERNEL.contains(&(found.f_type as u64 & 0xffff_ffff))
    })
}

/// What identifies the content of a file without reading it. Every write changes the time of the last change, which no program can set.
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
/// Loading opens and reads files, which may be on a file system whose server takes its time. A caller that must not wait for that takes the request
/// to another thread, and gives [`Process::provide`](crate::Process::provide) what comes of it.
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
        if refused == Unusable::NotRegular || refused == Unusable::ProcessGone {
            return Err(refused);
        }
        let path = mapping.path().filter(|path| path.starts_with(b"/"));
        let Some(path) = path else { return Err(refused) };
        let named = match directory.name_in_root(path) {
            Err(Errno::NOENT) => return Err(Unusable::Replaced),
            named => named.map_err(|error| directory.unusable(error))?,
        };
        // Only naming a file has no effects. A process may have chosen a path that leads to another file here.
        let found = fstat(&named).map_err(|error| Unusable::Unreadable(error.raw_os_error()))?;
        if found.st_ino != mapping.inode {
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
