//! The executable mappings of a process, from the text of `/proc/PID/maps` (`proc_pid_maps(5)`).
//!
//! [`Process`](crate::Process) reads them. The text comes from the kernel, but the names in it come from the program that made the mapping, and their number
//! from the process: the parser takes any bytes, and reads no more than [`MOST_BYTES`] of them. Mappings that cannot be executed are left out,
//! because no pc is in them.

use std::io::{self, Read};
use std::sync::Arc;

/// Bytes of text that are read at most: some 500,000 mappings. The kernel allows 65,530 unless told otherwise (`vm.max_map_count`).
pub const MOST_BYTES: usize = 48 << 20;
/// Executable mappings that are kept at most.
pub(crate) const MOST_MAPPINGS: usize = 1 << 16;
/// Bytes of a line that are looked at. A longer name is cut: paths have at most 4096 bytes, of which the kernel writes some as four.
const LONGEST_LINE: usize = 20 << 10;

/// An executable range of a process's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address behind the last one.
    pub end: u64,
    /// Where in the file the mapping starts, in bytes; 0 if there is no file.
    pub offset: u64,
    /// Major and minor number of the device that the file is on; zeros if there is no file.
    pub device: (u32, u32),
    /// The file's inode; 0 if there is no file.
    pub inode: u64,
    /// The name as the kernel writes it: a path, perhaps with ` (deleted)` behind it, a name in brackets, or nothing. Mappings that follow each
    /// other share it.
    pub name: Arc<[u8]>,
}

/// The object of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappingKind {
    /// A file that may be an ELF file.
    File,
    /// A file that has no name any more. It may have been replaced by another of the same name.
    DeletedFile,
    /// Something in `/dev`: memory of a device, or shared memory without a file. It is never opened.
    Device,
    /// The kernel's code in the process, `[vdso]`.
    Vdso,
    /// The main thread's stack.
    Stack,
    /// Memory without a file. If it is executed, a just-in-time compiler has written it.
    Anonymous,
    /// Another of the kernel's names in brackets, such as `[vsyscall]` and `[uprobes]`.
    Special,
}

impl Mapping {
    /// The object of the mapping, as far as the line says.
    pub fn kind(&self) -> MappingKind {
        let name = &*self.name;
        match name {
            b"[vdso]" => MappingKind::Vdso,
            b"[stack]" => MappingKind::Stack,
            b"" | b"[heap]" => MappingKind::Anonymous,
            _ if name.starts_with(b"[anon") || name.starts_with(b"//anon") => MappingKind::Anonymous,
            _ if name.starts_with(b"[") => MappingKind::Special,
            _ if name.starts_with(b"/dev/") || name.starts_with(b"/SYSV") => MappingKind::Device,
            _ if name.ends_with(DELETED) => MappingKind::DeletedFile,
            _ => MappingKind::File,
        }
    }

    /// The file's path in the process's mount namespace, without the mark of deleted files. `None` if there is no file.
    pub fn path(&self) -> Option<&[u8]> {
        match self.kind() {
            MappingKind::File => Some(&self.name),
            MappingKind::DeletedFile => self.name.strip_suffix(DELETED),
            _ => None,
        }
    }
}

const DELETED: &[u8] = b" (deleted)";

/// The executable mappings of a process, in the order of their addresses.
#[derive(Debug, Clone, Default)]
pub struct Maps {
    mappings: Vec<Mapping>,
}

impl Maps {
    /// Parses text of the form of `/proc/PID/maps`. Lines of another form, and mappings that do not come after the ones before, are left out.
    ///
    /// # Errors
    /// If `text` cannot be read.
    pub fn read(mut text: impl Read) -> io::Result<Maps> {
        let mut maps = Maps::default();
        let mut buffer = vec![0; 2 * LONGEST_LINE];
        // Bytes at the start of the buffer; whether they continue a line that was too long.
        let (mut filled, mut in_long_line) = (0, false);
        let mut left = MOST_BYTES;
        loop {
            let room = (buffer.len() - filled).min(left);
            let read = match text.read(&mut buffer[filled..filled + room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            left -= read;
            filled += read;
            let mut rest = &buffer[..filled];
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                if !std::mem::take(&mut in_long_line) {
                    maps.add(&rest[..end]);
                }
                rest = &rest[end + 1..];
            }
            if read == 0 {
                if !rest.is_empty() && !in_long_line && left > 0 {
                    maps.add(rest);
                }
                return Ok(maps);
            }
            let kept = rest.len();
            if kept >= LONGEST_LINE {
                if !in_long_line {
                    maps.add(rest);
                }
                in_long_line = true;
                filled = 0;
            } else {
                buffer.copy_within(filled - kept..filled, 0);
                filled = kept;
            }
        }
    }

    fn add(&mut self, line: &[u8]) {
        if self.mappings.len() >= MOST_MAPPINGS {
            return;
        }
        let before = self.mappings.last();
        let Some(mapping) = parse_line(line, before.map(|before| &before.name)) else {
            return;
        };
        if before.is_none_or(|before| before.end <= mapping.start) {
            self.mappings.push(mapping);
        }
    }

    /// Adds a mapping that was made since. Those that it takes the place of, wholly or in part, are gone.
    pub fn insert(&mut self, mapping: Mapping) {
        if mapping.start >= mapping.end {
            return;
        }
        let first = self
            .mappings
            .partition_point(|before| before.end <= mapping.start);
        let replaced = self.mappings[first..].partition_point(|before| before.start < mapping.end);
        if self.mappings.len() - replaced >= MOST_MAPPINGS {
            return;
        }
        self.mappings.splice(first..first + replaced, [mapping]);
    }

    /// All of them.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The index of the mapping that `address` is in.
    pub fn find(&self, address: u64) -> Option<usize> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.mappings[index].end).then_some(index)
    }
}

/// The mapping of one line, if it is executable: `START-END PERMISSIONS OFFSET MAJOR:MINOR INODE NAME`, where blanks fill the room before the name.
fn parse_line(line: &[u8], name_before: Option<&Arc<[u8]>>) -> Option<Mapping> {
    let (start, rest) = split(line, b'-')?;
    let (end, rest) = split(rest, b' ')?;
    let (permissions, rest) = split(rest, b' ')?;
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let (offset, rest) = split(rest, b' ')?;
    let (major, rest) = split(rest, b':')?;
    let (minor, rest) = split(rest, b' ')?;
    let (inode, name) = split(rest, b' ').unwrap_or((rest, b""));
    let name = name.trim_ascii_start();
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    if start >= end {
        return None;
    }
    Some(Mapping {
        start,
        end,
        offset: hexadecimal(offset)?,
        device: (
            u32::try_from(hexadecimal(major)?).ok()?,
            u32::try_from(hexadecimal(minor)?).ok()?,
        ),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        name: match name_before {
            Some(before) if **before == *name => before.clone(),
            _ => name.into(),
        },
    })
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|&byte| byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &digit| {
        Some(number << 4 | u64::from(char::from(digit).to_digit(16)?))
    })
}

#[cfg(test)]
mod tests;
