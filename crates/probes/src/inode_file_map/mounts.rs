//! The table of mounts: mount points by device, from `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
//!
//! The file has the device numbers that kernel events have. Upstream calls `stat` for each mount point instead, and would wait for network
//! file systems whose server is gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ferretto_client::runtime::probe::BootTime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;

use crate::kernel_files::{for_each_line, open_file_at};
use crate::kernel_text::{whole_u32, words};

/// Mount points that are remembered at most.
const MOST_MOUNTS: usize = 100_000;
/// Least nanoseconds between two readings for unknown devices, if the table has changed.
const PERIOD: BootTime = 1_000_000_000;
/// The same interval if the kernel does not report a change.
const PERIOD_UNCHANGED: BootTime = 60 * PERIOD;

/// The kernel's table of mounts, as it was when it was last needed.
#[derive(Debug)]
pub(super) struct MountTable {
    path: PathBuf,
    /// Has an exceptional condition once something has been mounted or unmounted since this was last polled.
    watch: Option<OwnedFd>,
    mounts: Mounts,
    /// When it was read.
    read: Option<BootTime>,
}

impl MountTable {
    /// The table at `path`, which is not read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            watch: None,
            mounts: Mounts::default(),
            read: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Reads the table again if it may have `device` by now.
    ///
    /// # Errors
    /// If the table cannot be read. The earlier table stays then.
    pub(super) fn look_for(&mut self, device: u64, now: BootTime) -> io::Result<()> {
        // Device 0 stands for an event without a device.
        if device == 0 || self.mounts.knows(device) || !self.is_worth_reading(now) {
            return Ok(());
        }
        self.read = Some(now);
        if self.watch.is_none() {
            // Opened before the table is read, so that no change between the two goes unnoticed.
            self.watch = Some(open_file_at(CWD, &*self.path)?);
        }
        self.mounts = Mounts::read(&self.path)?;
        Ok(())
    }

    fn is_worth_reading(&self, now: BootTime) -> bool {
        match self.read.map(|read| now.saturating_sub(read)) {
            None | Some(PERIOD_UNCHANGED..) => true,
            Some(PERIOD..) => self.has_changed(),
            Some(_) => false,
        }
    }

    /// Whether something was mounted or unmounted since the last call.
    fn has_changed(&self) -> bool {
        let Some(watch) = &self.watch else { return false };
        let mut polled = [PollFd::new(watch, PollFlags::PRI)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|changed| changed > 0)
    }
}

/// Mount points by device, in the kernel's order.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    by_device: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Mounts {
    /// Reads the table at `path`.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
        for_each_line(path, |line| {
            if all.len() < MOST_MOUNTS {
                all.extend(parse(line));
            }
        })?;
        // If several mounts share a place, only the last is visible.
        let mut visible: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (index, (_, point)) in all.iter().enumerate() {
            visible.insert(point.clone(), index);
        }
        let mut mounts = Self::default();
        for (index, (device, point)) in all.into_iter().enumerate() {
            if visible.get(&point) == Some(&index) {
                mounts.by_device.entry(device).or_default().push(point);
            }
        }
        Ok(mounts)
    }

    pub(super) fn knows(&self, device: u64) -> bool {
        self.by_device.contains_key(&device)
    }

    pub(super) fn points_of(&self, device: u64) -> impl Iterator<Item = &[u8]> {
        self.by_device
            .get(&device)
            .into_iter()
            .flatten()
            .map(Vec::as_slice)
    }
}

/// Device and mount point of a line `id parent major:minor root mount-point …`.
fn parse(line: &[u8]) -> Option<(u64, Vec<u8>)> {
    let mut words = words(line).skip(2);
    let device = words.next()?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (major, minor) = (whole_u32(&device[..colon])?, whole_u32(&device[colon + 1..])?);
    let point = words.nth(1)?;
    Some((rustix::fs::makedev(major, minor), unescape(point)))
}

/// Decodes the kernel's escapes: blanks, line ends and backslashes are `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(first));
        rest = match octal {
            Some(_) => &after[3..],
            None => after,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::test_files::{Mutator, TempDir};
    use crate::test_processes::spawn;

    const TABLE: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
23 21 8:17 /home /home rw - ext4 /dev/sdb1 rw
24 21 8:17 /home /mnt/with\\040blank\\134 rw - ext4 /dev/sdb1 rw
25 21 0:30 / /dev/shm rw - tmpfs tmpfs rw
26 21 0:31 / /dev/shm rw - tmpfs tmpfs rw
27 21 259:1048575 / /far rw - ext4 /dev/far rw
";

    fn read(table: &[u8]) -> Mounts {
        let dir = TempDir::new("mounts");
        dir.write("mountinfo", table);
        Mounts::read(&dir.path().join("mountinfo")).unwrap()
    }

    fn points(mounts: &Mounts, major: u32, minor: u32) -> Vec<&[u8]> {
        mounts.points_of(rustix::fs::makedev(major, minor)).collect()
    }

    #[test]
    fn a_device_has_all_its_mount_points_in_order_and_without_escapes() {
        let mounts = read(TABLE.as_bytes());
        assert_eq!(points(&mounts, 8, 1), [b"/"]);
        assert_eq!(
            points(&mounts, 8, 17),
            [b"/home".as_slice(), b"/mnt/with blank\\"]
        );
        assert_eq!(points(&mounts, 259, 1_048_575), [b"/far"]);
        assert!(mounts.knows(rustix::fs::makedev(0, 5)));
    }

    #[test]
    fn a_mount_that_another_hides_is_none() {
        let mounts = read(TABLE.as_bytes());
        assert!(!mounts.knows(rustix::fs::makedev(0, 30)));
        assert_eq!(points(&mounts, 0, 31), [b"/dev/shm"]);
    }

    #[test]
    fn damaged_tables_are_read_as_far_as_they_make_sense() {
        for seed in 0..500 {
            read(&Mutator::new(seed).damage(TABLE.as_bytes()));
        }
    }

    #[test]
    fn this_machine_has_its_root() {
        let root = std::fs::metadata("/").unwrap();
        let mounts = Mounts::read(Path::new("/proc/self/mountinfo")).unwrap();
        let device = std::os::unix::fs::MetadataExt::dev(&root);
        if !mounts.knows(device) {
            println!("skipped: the file system of / has other numbers for its files than for its mount");
            return;
        }
        assert!(mounts.points_of(device).any(|point| point == b"/"));
    }

    #[test]
    fn the_table_is_read_again_once_something_was_mounted() {
        // A namespace of its own, where nobody else mounts anything.
        let mut cat = Command::new("unshare");
        cat.args(["--mount", "--propagation", "private", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut holder) = spawn(&mut cat) else {
            println!("skipped: unshare is not installed");
            return;
        };
        let mut stdin = holder.stdin.take().unwrap();
        // It answers once it is there.
        let mut answer = String::new();
        let asked = stdin.write_all(b"there\n");
        let answered = BufReader::new(holder.stdout.take().unwrap()).read_line(&mut answer);
        if asked.is_err() || answered.is_err() || answer.is_empty() {
            println!("skipped: this user may not make mount namespaces");
            holder.wait().unwrap();
            return;
        }
        let dir = TempDir::new("mounted");
        let mut table = MountTable::new(format!("/proc/{}/mountinfo", holder.id()).into());
        let unknown = rustix::fs::makedev(4000, 17);
        let is_mounted = |table: &MountTable| {
            let mut points = table.mounts.by_device.values().flatten();
            points.any(|point| Path::new(std::str::from_utf8(point).unwrap()) == dir.path())
        };
        let mut look = |seconds: u64| {
            table.look_for(unknown, seconds * PERIOD).unwrap();
            (table.read, is_mounted(&table))
        };
        assert_eq!(look(5), (Some(5 * PERIOD), false));
        assert_eq!(look(8), (Some(5 * PERIOD), false), "nothing was mounted");
        let mut mount = Command::new("nsenter");
        mount
            .arg(format!("--mount=/proc/{}/ns/mnt", holder.id()))
            .args(["mount", "-t", "tmpfs", "none"])
            .arg(dir.path());
        let mounted = spawn(&mut mount).and_then(|mut mount| mount.wait());
        assert!(mounted.is_ok_and(|status| status.success()));
        assert_eq!(look(9), (Some(9 * PERIOD), true));
        assert_eq!(look(60), (Some(9 * PERIOD), true), "nothing else was mounted");
        assert_eq!(look(69), (Some(69 * PERIOD), true), "now and then all the same");
        drop(stdin);
        holder.wait().unwrap();
    }
}
