//! Reads the kernel's descriptions of its own ring buffer: `events/<group>/<event>/format`, `events/header_page` and
//! `events/header_event` of tracefs.
//!
//! Called by the translation table (one event at a time) and when the per-CPU buffers are opened. Takes the text of the
//! files and never opens them. The results are consistent in themselves: no field ends beyond 65,535 bytes and no name
//! is empty. The `print fmt` line is ignored: it says how to print an event, not how to read it.

use super::field::FieldKind;
use std::ops::RangeInclusive;
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Larger than the pages and sub-buffers of any kernel, which have at most 64 KiB on most machines.
const LARGEST_PAGE: u32 = 1 << 24;

/// Every event of a kernel starts with fields whose names begin like this.
const COMMON_PREFIX: &str = "common_";

/// Why a file is no format file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// A line is neither a field nor another known line of this place.
    #[error("format file: line {line} is not understood: {text:?}")]
    UnknownLine {
        /// Counted from 1.
        line: usize,
        /// The line as it is.
        text: String,
    },
    /// There is no such line in the file.
    #[error("format file: there is no {0} line; is this a tracefs format file?")]
    Missing(&'static str),
    /// An event id that cannot occur in the ring buffer, where ids are 16 bits wide and zero is none.
    #[error("format file: event id {0} does not fit the 16 bits it has in the ring buffer")]
    EventId(u32),
    /// A field does not lie within the bounds of an event or a page.
    #[error("format file: field {name:?} (offset {offset}, size {size}) is not where or what it must be")]
    Placement {
        /// Name of the field.
        name: String,
        /// Byte offset from the start of the event or page.
        offset: u32,
        /// Size in bytes.
        size: u32,
    },
    /// The kernel's records are built differently from those that [`super::page`] reads.
    #[error("header_event: {name} is {found:?} and not {expected:?}: this ring buffer format is unknown")]
    RecordHeader {
        /// Which property.
        name: &'static str,
        /// The value that this program was written for.
        expected: &'static str,
        /// The value that the kernel gives.
        found: String,
    },
}

/// Whether an integer field has a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signedness {
    /// Two's complement.
    Signed,
    /// No negative values.
    Unsigned,
}

/// One field of an event, as declared by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// The C declaration, such as `char prev_comm[16]`.
    pub declaration: String,
    /// Offset from the start of the event in bytes.
    pub offset: u16,
    /// Size in bytes; zero for an array that fills the rest of the event.
    pub size: u16,
    /// Whether the kernel calls the field signed. Only meaningful for integers.
    pub(crate) signedness: Signedness,
}

impl FormatField {
    /// The declared name: the identifier at the end, before any array bounds. `None` for declarations that do not end
    /// in one.
    pub fn name(&self) -> Option<&str> {
        name_in(&self.declaration)
    }

    /// How to understand the bytes of this field; `None` if nothing here can read them (a struct, an array of integers).
    pub fn kind(&self) -> Option<FieldKind> {
        FieldKind::of(&self.declaration, self.size, self.signedness)
    }

    /// Offset of the first byte behind the field. Parsing has checked that it fits.
    pub fn end(&self) -> u16 {
        self.offset.saturating_add(self.size)
    }
}

/// The contents of `events/<group>/<event>/format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFormat {
    /// The number at the start of every such event in the ring buffer. Never zero.
    pub id: u16,
    /// The event's name, without its group.
    pub name: String,
    /// Fields that all events of the kernel have (`common_…`).
    pub common: Vec<FormatField>,
    /// Fields of this event.
    pub fields: Vec<FormatField>,
}

impl EventFormat {
    /// Reads a format file.
    ///
    /// # Errors
    /// If a line is unknown or missing, or has an impossible value.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let mut name = None;
        let mut id = None;
        let mut in_body = false;
        let (mut common, mut fields) = (Vec::new(), Vec::new());
        for (line, text) in numbered_lines(text) {
            if text.starts_with("print fmt:") && in_body {
                break;
            } else if in_body {
                let field = FieldLine::parse(line, text)?.into_event_field()?;
                match field.name() {
                    Some(name) if name.starts_with(COMMON_PREFIX) => common.push(field),
                    _ => fields.push(field),
                }
            } else if let Some(value) = text.strip_prefix("name:") {
                name = Some(value.trim().to_owned());
            } else if let Some(value) = text.strip_prefix("ID:") {
                let number = value.trim().parse().map_err(|_| unknown_line(line, text))?;
                id = Some(
                    u16::try_from(number)
                        .ok()
                        .filter(|id| *id != 0)
                        .ok_or(FormatError::EventId(number))?,
                );
            } else if text.trim_end() == "format:" {
                in_body = true;
            } else {
                return Err(unknown_line(line, text));
            }
        }
        if common.is_empty() {
            return Err(FormatError::Missing("common_type field"));
        }
        Ok(Self {
            id: id.ok_or(FormatError::Missing("ID:"))?,
            name: name
                .filter(|name| !name.is_empty())
                .ok_or(FormatError::Missing("name:"))?,
            common,
            fields,
        })
    }
}

/// The layout of a ring-buffer page, from `events/header_page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Where the 64-bit timestamp of the page lies.
    pub(super) timestamp_offset: usize,
    /// Where the length of the data and the loss flags lie.
    pub(super) commit_offset: usize,
    /// 8 bytes on a 64-bit kernel, 4 on a 32-bit one.
    pub(super) commit_size: usize,
    /// Where the records start.
    pub(super) data_offset: usize,
    /// Header and data together.
    page_size: usize,
}

impl PageLayout {
    /// The layout of 64-bit kernels with pages (or sub-buffers) of `page_size` bytes.
    pub const fn sixty_four_bit(page_size: usize) -> Self {
        Self {
            timestamp_offset: 0,
            commit_offset: 8,
            commit_size: 8,
            data_offset: 16,
            page_size,
        }
    }

    /// The layout of kernels whose words are as long as this program's; for when `header_page` cannot be read.
    pub(crate) const fn usual(page_size: usize) -> Self {
        let word = size_of::<usize>();
        Self {
            commit_size: word,
            data_offset: 8 + word,
            ..Self::sixty_four_bit(page_size)
        }
    }

    /// Reads `events/header_page`. The kernel gives its contents to the first `read` of the open file only:
    /// `std::fs::read_to_string`, which starts with a small one, gets 32 bytes.
    ///
    /// # Errors
    /// If a line is unknown or missing, or has an impossible value.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let mut fields = Vec::new();
        for (line, text) in numbered_lines(text) {
            fields.push(FieldLine::parse(line, text)?);
        }
        let find = |name: &str, what: &'static str, sizes: RangeInclusive<u32>| {
            let field = fields
                .iter()
                .find(|field| name_in(field.declaration) == Some(name));
            let field = field.ok_or(FormatError::Missing(what))?;
            if sizes.contains(&field.size) {
                Ok(field)
            } else {
                Err(field.misplaced())
            }
        };
        let timestamp = find("timestamp", "timestamp field", 8..=8)?;
        let commit = find("commit", "commit field", 4..=8)?;
        let data = find("data", "data field", 1..=LARGEST_PAGE)?;
        let header_end = timestamp.end().max(commit.end());
        if header_end > u64::from(data.offset) || data.end() > u64::from(LARGEST_PAGE) {
            return Err(data.misplaced());
        }
        Ok(Self {
            timestamp_offset: timestamp.offset as usize,
            commit_offset: commit.offset as usize,
            commit_size: commit.size as usize,
            data_offset: data.offset as usize,
            page_size: data.end() as usize,
        })
    }

    /// Bytes that one read of `trace_pipe_raw` returns: the machine's page size, or the size of the sub-buffers where
    /// the kernel was told to use larger ones.
    pub fn page_size(&self) -> usize {
        self.page_size
    }
}

/// Checks that `events/header_event` describes the records that [`super::page`] reads. Read that file at once as well.
///
/// The format has been the same since Linux 2.6.30 (`time_stamp` has been of use since 4.17); the file exists so that
/// readers can notice when it changes.
///
/// # Errors
/// If the kernel describes other records.
pub fn check_record_header(text: &str) -> Result<(), FormatError> {
    const EXPECTED: [(&str, &str); 7] = [
        ("type_len", "5 bits"),
        ("time_delta", "27 bits"),
        ("array", "32 bits"),
        ("padding", "type == 29"),
        ("time_extend", "type == 30"),
        ("time_stamp", "type == 31"),
        ("data max type_len", "28"),
    ];
    for (name, expected) in EXPECTED {
        let found = numbered_lines(text)
            .filter_map(|(_, line)| line.trim().strip_prefix(name))
            .find_map(|rest| {
                rest.trim_start()
                    .strip_prefix(':')
                    .or(rest.trim_start().strip_prefix("=="))
            })
            .ok_or(FormatError::Missing(name))?;
        let words_match = found.split_whitespace().eq(expected.split_whitespace());
        if !words_match {
            return Err(FormatError::RecordHeader {
                name,
                expected,
                found: found.trim().to_owned(),
            });
        }
    }
    Ok(())
}

/// The identifier that ends a declaration, before any array bounds.
fn name_in(declaration: &str) -> Option<&str> {
    let without_bounds = match declaration.strip_suffix(']') {
        Some(rest) => &rest[..rest.rfind('[')?],
        None => declaration,
    };
    let name = &without_bounds[without_bounds.rfind(' ')? + 1..];
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_identifier = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (starts_well && is_identifier).then_some(name)
}

/// Lines that are not empty, with their number counted from 1.
fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
}

/// A `field:` line. Numbers are as wide as the kernel prints them: a page may be larger than an event can be.
struct FieldLine<'a> {
    declaration: &'a str,
    offset: u32,
    size: u32,
    signedness: Signedness,
}

impl<'a> FieldLine<'a> {
    /// Reads `field:<declaration>; offset:<n>; size:<n>; signed:<0 or 1>;`. The whitespace after the colons differs
    /// between kernels.
    fn parse(line: usize, text: &'a str) -> Result<Self, FormatError> {
        let mut parts = text.trim().split(';').map(str::trim);
        let mut next = |label: &str| {
            parts
                .next()
                .and_then(|part| part.strip_prefix(label))
                .map(str::trim)
        };
        let (Some(declaration), Some(offset), Some(size), Some(signed)) =
            (next("field:"), next("offset:"), next("size:"), next("signed:"))
        else {
            return Err(unknown_line(line, text));
        };
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| unknown_line(line, text));
        let signedness = if number(signed)? == 1 {
            Signedness::Signed
        } else {
            Signedness::Unsigned
        };
        Ok(Self {
            declaration,
            offset: number(offset)?,
            size: number(size)?,
            signedness,
        })
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.size)
    }

    fn misplaced(&self) -> FormatError {
        FormatError::Placement {
            name: self.declaration.to_owned(),
            offset: self.offset,
            size: self.size,
        }
    }

    /// Converts to a field of an event, whose offsets have 16 bits.
    fn into_event_field(self) -> Result<FormatField, FormatError> {
        match (u16::try_from(self.offset), u16::try_from(self.size)) {
            (Ok(offset), Ok(size)) if self.end() <= u64::from(u16::MAX) => Ok(FormatField {
                declaration: self.declaration.to_owned(),
                offset,
                size,
                signedness: self.signedness,
            }),
            _ => Err(self.misplaced()),
        }
    }
}

fn unknown_line(line: usize, text: &str) -> FormatError {
    FormatError::UnknownLine {
        line,
        text: text.to_owned(),
    }
}
