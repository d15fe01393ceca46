//! The names that a just-in-time compiler writes down for `perf`: `/tmp/perf-PID.map`, lines of `START SIZE NAME` with hexadecimal numbers
//! (`tools/perf/Documentation/jit-interface.txt` of Linux).
//!
//! The file is the process's own: its names are only shown. It is looked for below the process's root, under the process's id in its own pid namespace.
//! The CPU profiler names frames of memory without a file with it. Compilers append to it as they go, so when it has grown, the rest is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime};

use rustix::param::clock_ticks_per_second;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::elf::Unusable;
use crate::mapping_file::ProcessDir;
use crate::process::Process;

/// Functions that are kept: the latest.
const MOST: usize = 1 << 18;
/// Bytes of a line that are looked at.
const LONGEST_LINE: u64 = 4 << 10;
/// Bytes before the rest of a file by which it is known to be the file that was read before, and not one that was written anew.
const REMEMBERED: usize = 64;
/// The memory of an entry of the map, with the tree's own share.
const ENTRY_BYTES: usize = 48;

/// Times of files and of processes are rounded by less than this.
const ROUNDED: Duration = Duration::from_secs(1);

/// Why there are no names of just-in-time compiled functions.
#[derive(Debug, Error)]
pub enum PerfMapError {
    /// There is no such file, as for most processes, or it may not be read.
    #[error("cannot read {path}: {reason}")]
    Unusable {
        /// The file, in the process's root.
        path: String,
        /// Why not.
        reason: Unusable,
    },
    /// Anybody may put a file into `/tmp`.
    #[error("{path} belongs to user {owner}, who neither runs the process nor this program")]
    OtherOwner {
        /// The file, in the process's root.
        path: String,
        /// Its owner's user id.
        owner: u32,
    },
    /// It was written by a process that had the same id before.
    #[error("{path} was written before the process began")]
    OfAnEarlierProcess {
        /// The file, in the process's root.
        path: String,
    },
    /// The process is not there.
    #[error("the process is not there")]
    NoProcess,
}

/// Functions by absolute address. The later of two overlapping lines counts: compilers reuse memory.
#[derive(Debug, Default, Clone)]
pub struct PerfMap {
    /// By start; they do not overlap.
    functions: BTreeMap<u64, Function>,
    names: String,
    /// Lines so far.
    lines: u32,
    /// The identity of the file when it was read.
    version: Version,
    /// Bytes of the file up to the end of the last whole line.
    read: u64,
    /// The last of these bytes.
    last: Vec<u8>,
}

/// Tells a file from others and from its earlier states.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Version {
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

#[derive(Debug, Clone, Copy)]
struct Function {
    end: u64,
    name: (u32, u32),
    line: u32,
}

impl PerfMap {
    /// Reads the list of a process, the first time or if it has changed; returns whether it has. Appended entries are read on. Only the
    /// last `most_bytes` of a longer file are read. As for `perf`, the file has to belong to root or to the user of this program; the user whom the process acts for will
    /// do too.
    ///
    /// # Errors
    /// If there is no such file, or it is another user's or of another process. The names that are known stay.
    pub fn renew(&mut self, process: &Process, most_bytes: u64) -> Result<bool, PerfMapError> {
        let directory = process.live_directory().ok_or(PerfMapError::NoProcess)?;
        let (id, user) = identity(directory).ok_or(PerfMapError::NoProcess)?;
        let path = format!("/tmp/perf-{id}.map");
        let unusable = |reason| PerfMapError::Unusable {
            path: path.clone(),
            reason,
        };
        let file = directory.open_in_root(path.as_bytes()).map_err(unusable)?;
        let metadata = file
            .metadata()
            .map_err(|error| unusable(Unusable::from_io(&error)))?;
        let owner = metadata.uid();
        if owner != 0 && owner != geteuid().as_raw() && owner != user {
            return Err(PerfMapError::OtherOwner { path, owner });
        }
        let is_older = |began: SystemTime| {
            metadata
                .modified()
                .is_ok_and(|modified| modified + ROUNDED < began)
        };
        if began(directory).is_some_and(is_older) {
            return Err(PerfMapError::OfAnEarlierProcess { path });
        }
        let version = Version {
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        if version == self.version {
            return Ok(false);
        }
        let rest = version.length.checked_sub(self.read);
        let has_room = |rest| self.names.len() as u64 + rest <= most_bytes;
        let is_longer = version.inode == self.version.inode && rest.is_some_and(has_room);
        if !(is_longer && self.ends_in(&file)) {
            // Both would take memory at a time.
            *self = PerfMap::default();
        }
        let read = || {
            let mut file = BufReader::new(file);
            let left_out = version.length.saturating_sub(most_bytes);
            if self.read == 0 && left_out > 0 {
                // The line that is cut is left out as well.
                file.seek(SeekFrom::Start(left_out - 1))?;
                self.read = left_out - 1 + file.skip_until(b'\n')? as u64;
            } else {
                file.seek(SeekFrom::Start(self.read))?;
            }
            self.read_on(file.take(most_bytes))
        };
        read().map_err(|error| unusable(Unusable::from_io(&error)))?;
        self.version = version;
        Ok(true)
    }

    /// Whether the file has what was read last, where it was.
    fn ends_in(&self, file: &File) -> bool {
        let mut there = [0; REMEMBERED];
        let there = &mut there[..self.last.len()];
        let start = self.read.checked_sub(self.last.len() as u64);
        start.is_some_and(|start| file.read_exact_at(there, start).is_ok()) && there == self.last
    }

    /// Parses such a file. Lines of another form are left out, and a last one that is not whole.
    ///
    /// # Errors
    /// If `text` cannot be read.
    #[cfg(test)]
    fn read(text: impl BufRead) -> io::Result<PerfMap> {
        let mut map = PerfMap::default();
        map.read_on(text)?;
        Ok(map)
    }

    fn read_on(&mut self, mut text: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        let mut length = 0;
        loop {
            line.clear();
            let read = (&mut text).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            let starts_line = length == 0;
            length += read as u64;
            if line.last() != Some(&b'\n') {
                continue;
            }
            if starts_line {
                self.add(&line);
            }
            self.read += std::mem::take(&mut length);
            self.last.clear();
            self.last
                .extend_from_slice(&line[line.len().saturating_sub(REMEMBERED)..]);
            if self.functions.len() >= 2 * MOST {
                self.forget_oldest();
            }
        }
        self.forget_oldest();
        Ok(())
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let line = std::str::from_utf8(line).ok()?;
        let (start, rest) = line.trim_end().split_once(' ')?;
        let (size, name) = rest.split_once(' ')?;
        let number = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok();
        let (start, size) = (number(start)?, number(size)?);
        let end = start.checked_add(size).filter(|&end| end > start)?;
        let from = u32::try_from(self.names.len()).ok()?;
        let to = u32::try_from(self.names.len() + name.len()).ok()?;
        self.names.push_str(name);
        self.lines = self.lines.saturating_add(1);
        self.cut(start, end);
        let function = Function {
            end,
            name: (from, to),
            line: self.lines,
        };
        self.functions.insert(start, function);
        Some(())
    }

    /// Takes these addresses from the functions that have them. One that reaches over both ends keeps both.
    fn cut(&mut self, start: u64, end: u64) {
        let mut behind = None;
        if let Some((_, before)) = self.functions.range_mut(..start).next_back()
            && before.end > start
        {
            behind = Some(*before).filter(|before| before.end > end);
            before.end = start;
        }
        while let Some((&inside, &function)) = self.functions.range(start..end).next() {
            self.functions.remove(&inside);
            behind = behind.or(Some(function).filter(|function| function.end > end));
        }
        if let Some(behind) = behind {
            self.functions.insert(end, behind);
        }
    }

    fn forget_oldest(&mut self) {
        if self.functions.len() > MOST {
            let oldest = self.lines.saturating_sub(MOST as u32);
            self.functions.retain(|_, function| function.line > oldest);
        }
    }

    /// The name of the function that `pc` is in.
    pub fn lookup(&self, pc: u64) -> Option<&str> {
        let (_, function) = self.functions.range(..=pc).next_back()?;
        if pc >= function.end {
            return None;
        }
        self.names.get(function.name.0 as usize..function.name.1 as usize)
    }

    /// Bytes that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.names.len() + self.functions.len() * ENTRY_BYTES
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The process's id in its own pid namespace, which is the last number of `NSpid`, and the user whom it acts for.
fn identity(directory: &ProcessDir) -> Option<(u32, u32)> {
    let mut status = Vec::new();
    let file = directory.open_file("status").ok()?;
    file.take(64 << 10).read_to_end(&mut status).ok()?;
    // The process's name may be cut within a character.
    let status = String::from_utf8_lossy(&status);
    let field = |name| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().into())
    };
    let id = field("NSpid:")?.next_back()?.parse().ok()?;
    // Real, effective, saved, and of files.
    let user = field("Uid:")?.nth(1)?.parse().ok()?;
    Some((id, user))
}

/// When the process began: field 22 of `stat`, in clock ticks since the machine started.
fn began(directory: &ProcessDir) -> Option<SystemTime> {
    let mut stat = Vec::new();
    let file = directory.open_file("stat").ok()?;
    file.take(4 << 10).read_to_end(&mut stat).ok()?;
    // The process's name, in brackets, may have any characters.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let ticks = stat[after_name..]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .nth(22 - 3)?;
    let ticks: u64 = std::str::from_utf8(ticks).ok()?.parse().ok()?;
    let ticks_per_second = clock_ticks_per_second().max(1);
    let since_start = Duration::from_millis(ticks.checked_mul(1000)? / ticks_per_second);
    let now = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    SystemTime::now().checked_sub(now.checked_sub(since_start)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn later_lines_replace_what_they_overlap_of_earlier_ones() {
        let text = "1000 100 first\n2000 10 LazyCompile:~f file.js:1\nno line\n1040 20 second\n";
        let map = PerfMap::read(text.as_bytes()).expect("text");
        assert_eq!(map.lookup(0x1000), Some("first"));
        assert_eq!(map.lookup(0x1040), Some("second"));
        assert_eq!(map.lookup(0x105f), Some("second"));
        assert_eq!(map.lookup(0x1060), Some("first"));
        assert_eq!(map.lookup(0x1100), None);
        assert_eq!(map.lookup(0x2005), Some("LazyCompile:~f file.js:1"));
    }

    #[test]
    fn of_a_long_list_the_latest_functions_are_kept_and_an_unfinished_line_is_not() {
        let count = 3 * MOST as u64;
        let lines = (0..count).map(|number| format!("{:x} 10 f{number}\n", number * 16));
        let text: String = lines.chain(["0 10 unfin".to_owned()]).collect();
        let map = PerfMap::read(text.as_bytes()).expect("text");
        assert_eq!(map.lookup(0), None);
        assert!(map.len() <= MOST, "{}", map.len());
        let last = format!("f{}", count - 1);
        assert_eq!(map.lookup((count - 1) * 16), Some(last.as_str()));
    }

    /// A file that grows, is written anew and is cut, each time looked at as a process's list would be.
    #[test]
    fn a_list_that_grows_is_read_on() {
        let text = |range: std::ops::Range<u32>| -> String {
            range
                .map(|number| format!("{:x} 10 f{number}\n", number * 16))
                .collect()
        };
        let mut map = PerfMap::default();
        let whole = text(0..50) + "320 1";
        map.read_on(whole.as_bytes()).expect("text");
        assert_eq!((map.len(), map.read), (50, text(0..50).len() as u64));
        // The line that was cut comes whole.
        map.read_on(text(50..51).as_bytes()).expect("text");
        assert_eq!(map.lookup(0x320), Some("f50"));
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(text(0..51).as_bytes(), 0).expect("a list");
        assert!(map.ends_in(&file));
        file.write_all_at(b"X", text(0..51).len() as u64 - 2)
            .expect("another list");
        assert!(!map.ends_in(&file));
        file.set_len(20).expect("a shorter list");
        assert!(!map.ends_in(&file));
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_list_gives(
            lines in prop::collection::vec((0u64..64, 1u64..20), 0..20),
            cuts in prop::collection::vec(0usize..300, 0..4),
        ) {
            let text: String = lines
                .iter()
                .enumerate()
                .map(|(number, (start, size))| format!("{start:x} {size:x} {number}\n"))
                .collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut map = PerfMap::default();
            for end in cuts.into_iter().chain([text.len()]) {
                let from = map.read as usize;
                map.read_on(&text.as_bytes()[from..end]).expect("text");
            }
            let whole = PerfMap::read(text.as_bytes()).expect("text");
            for address in 0..100 {
                prop_assert_eq!(map.lookup(address), whole.lookup(address));
            }
        }

        #[test]
        fn every_address_has_the_name_of_the_last_line_that_has_it(lines in prop::collection::vec((0u64..64, 1u64..20), 0..20)) {
            let text: String = lines
                .iter()
                .enumerate()
                .map(|(number, (start, size))| format!("{start:x} {size:x} {number}\n"))
                .collect();
            let map = PerfMap::read(text.as_bytes()).expect("text");
            for address in 0..100 {
                let last = lines.iter().rposition(|(start, size)| (*start..start + size).contains(&address));
                let expected = last.map(|number| number.to_string());
                prop_assert_eq!(map.lookup(address), expected.as_deref());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            PerfMap::read(bytes.as_slice()).expect("bytes");
        }
    }
}
