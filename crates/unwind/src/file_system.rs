//! Decides whether a file may be opened: only if the kernel or the administrator answers for its file system, so that no user can hold up the reader.
//!
//! Any user may mount a file system in user space (FUSE), whose server then never answers. A process that opens, reads or even asks for the status of such
//! a file waits for ever. [`mapping_file`](crate::mapping_file) asks here before it opens a file that it has named with `O_PATH`; nothing here
//! asks a server. File systems on a network have servers as well, but those that the administrator has chosen: programs are often kept there.
//!
//! A file system on a block device is taken for one that answers. Only the administrator can mount one of those that has a server all the same
//! (`fuseblk`). The types of all others are in the list of mounts of the process, or in this process's own (`proc_pid_mountinfo(5)`). A mount that is in
//! neither is not trusted, apart from that of anonymous files (`memfd_create(2)`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::OnceLock;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, MemfdFlags, Statx, StatxFlags, memfd_create, statx};
use rustix::io::Errno;

/// Bytes of a list of mounts that are read at most: some 50,000 mounts.
const MOST_BYTES: u64 = 8 << 20;

/// Types of file systems without a block device that keep files on this machine, with the host of this virtual machine, or on a network. Users
/// can mount only `overlay`, `ramfs` and `tmpfs` among them. Those that are not here have a server that users may choose, or are the kernel's own, such as procfs,
/// whose files do something when they are opened, read or closed.
const TRUSTED: [&str; 22] = [
    "9p",
    "afs",
    "aufs",
    "bcachefs",
    "btrfs",
    "ceph",
    "cifs",
    "ecryptfs",
    "erofs",
    "hugetlbfs",
    "jffs2",
    "lustre",
    "nfs",
    "nfs4",
    "overlay",
    "ramfs",
    "rootfs",
    "smb3",
    "tmpfs",
    "ubifs",
    "virtiofs",
    "zfs",
];

/// Why a file may not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// Its file system is of this type.
    Type(Box<str>),
    /// Its mount is in no list.
    Unknown,
}

/// The type, inode and device of a file, as far as the kernel knows them without asking a server.
pub(crate) fn look(file: impl AsFd) -> Result<Statx, Errno> {
    statx(
        file,
        c"",
        AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
        StatxFlags::TYPE | StatxFlags::INO,
    )
}

/// Whether a file that was [looked at](look) is on a file system that no user answers for. `mounts` are lists of mounts.
pub(crate) fn check(
    file: BorrowedFd<'_>,
    found: &Statx,
    mounts: impl IntoIterator<Item = File>,
) -> Result<(), Untrusted> {
    if found.stx_dev_major != 0 {
        return Ok(());
    }
    let mount = mount_of(file).ok_or(Untrusted::Unknown)?;
    let Some(name) = mounts.into_iter().find_map(|list| type_of(mount, list)) else {
        return match mount_of_anonymous_files() == Some(mount) {
            true => Ok(()),
            false => Err(Untrusted::Unknown),
        };
    };
    match TRUSTED.contains(&&*name) {
        true => Ok(()),
        false => Err(Untrusted::Type(name)),
    }
}

/// The number of the mount that an open file was named through. No other mount gets it as long as the file is open.
fn mount_of(file: BorrowedFd<'_>) -> Option<u64> {
    let about = File::open(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let lines = BufReader::new(about.take(4096)).lines().map_while(Result::ok);
    let mut numbers = lines.filter_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    numbers.next()
}

/// The kernel mounts the file system of anonymous files where nobody sees it.
fn mount_of_anonymous_files() -> Option<u64> {
    static MOUNT: OnceLock<Option<u64>> = OnceLock::new();
    *MOUNT.get_or_init(|| {
        let file = memfd_create(c"mount", MemfdFlags::CLOEXEC).ok()?;
        mount_of(file.as_fd())
    })
}

/// The type of a mount, without what FUSE's servers add behind a dot.
fn type_of(mount: u64, list: impl Read) -> Option<Box<str>> {
    let mut list = BufReader::new(list.take(MOST_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split(|&byte| byte == b' ' || byte == b'\n');
        let number = std::str::from_utf8(words.next()?).ok()?;
        if number.parse() != Ok(mount) {
            continue;
        }
        // Any number of optional words, each `NAME:VALUE`, and a hyphen come before it. Blanks in names are written in another way.
        words.by_ref().skip(5).find(|&word| word == b"-")?;
        let name = words.next()?.split(|&byte| byte == b'.').next()?;
        return Some(std::str::from_utf8(name).ok()?.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
122 27 0:40 / /a\\040-\\040b rw shared:3 master:1 - fuse.sshfs u@h:/ rw,user_id=7
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
5 1 0:44 /";

    #[test]
    fn a_mount_s_type_is_found_by_its_number() {
        assert_eq!(type_of(22, MOUNTS).as_deref(), Some("proc"));
        assert_eq!(type_of(122, MOUNTS).as_deref(), Some("fuse"));
        assert_eq!(type_of(27, MOUNTS).as_deref(), Some("ext4"));
        assert_eq!(type_of(2, MOUNTS), None);
        assert_eq!(type_of(5, MOUNTS), None);
    }

    fn own_mounts() -> Option<File> {
        File::open("/proc/self/mountinfo").ok()
    }

    #[test]
    fn anonymous_files_are_trusted_and_files_of_the_kernel_are_not() {
        let anonymous = memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file");
        let found = look(&anonymous).expect("a status");
        assert_eq!(check(anonymous.as_fd(), &found, own_mounts()), Ok(()));
        let kernel = File::open("/proc/self/status").expect("procfs");
        let found = look(&kernel).expect("a status");
        let refused = Err(Untrusted::Type("proc".into()));
        assert_eq!(check(kernel.as_fd(), &found, own_mounts()), refused);
        assert_eq!(check(kernel.as_fd(), &found, None), Err(Untrusted::Unknown));
    }
}
