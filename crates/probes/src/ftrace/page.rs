//! Reads raw pages of the kernel's ring buffer: the page's header and the records behind it.
//!
//! Called by the bundle writer, once per page and session; this is the outer half of the hot path. Any bytes are valid
//! input: the results are records that lie within the page, or a [`ParseStatus`] that names the error. Nothing
//! allocates.
//!
//! The format is that of `kernel/trace/ring_buffer.c` on little-endian machines. A page starts with the time of its
//! first record and the number of bytes that hold records. Bits 30 and 31 of that number report events lost before the
//! page. A record starts with 32 bits: five for its type or length, 27 for the time since the record before it.

use super::format::PageLayout;

#[cfg(test)]
mod tests;

/// An error in a page or an event. The numbers are those of `FtraceParseStatus` in the trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ParseStatus {
    /// Reading the buffer failed in an unexpected way.
    UnexpectedReadError = 2,
    /// A read returned less than a page.
    PartialPageRead = 3,
    /// The header is cut short, or its length is zero or more than the page.
    InvalidPageHeader = 4,
    /// The data ends within a record's header.
    ShortEventHeader = 5,
    /// Padding of no length within the data.
    NullPadding = 6,
    /// The data ends before the length of a padding.
    ShortPaddingLength = 7,
    /// A padding shorter than its own length field.
    InvalidPaddingLength = 8,
    /// The data ends within a time extension.
    ShortTimeExtend = 9,
    /// The data ends within an absolute time.
    ShortTimeStamp = 10,
    /// The data ends before the length of a long record.
    ShortDataLength = 11,
    /// A long record of no length: zeroes where data should be.
    ZeroDataLength = 12,
    /// A long record shorter than its own length field.
    InvalidDataLength = 13,
    /// A record too short for an event id.
    ShortEventId = 14,
    /// A record that reaches beyond the data.
    EndOverflow = 15,
    /// A scheduler event shorter than its format says.
    ShortCompactEvent = 16,
    /// Any other event that contradicts its format.
    InvalidEvent = 17,
}

/// Events that the kernel dropped between the last page read from the same CPU and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing was lost.
    None,
    /// Some were; the page had no room for their number.
    Unknown,
    /// This many.
    Events(u64),
}

/// A page whose header makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Time of the first record in nanoseconds of the trace clock.
    pub timestamp: u64,
    /// Whether events are missing before it.
    pub loss: Loss,
    data: &'a [u8],
}

/// Why a page cannot be read at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPage {
    /// The time of the page in its header; zero if the header has none.
    pub timestamp: u64,
}

/// Set in the length when events were lost before this page (`RB_MISSED_EVENTS`).
const MISSED_EVENTS: u32 = 1 << 31;
/// Set as well when their number stands behind the data (`RB_MISSED_STORED`).
const MISSED_STORED: u32 = 1 << 30;
/// The kernel names no mask for the length. Its own documentation and `trace-cmd` use 27 bits.
pub(super) const LENGTH_MASK: u32 = (1 << 27) - 1;

impl<'a> Page<'a> {
    /// Reads the header of `page`, which is one page as the kernel returned it.
    ///
    /// # Errors
    /// If the page is empty, or shorter than its header says.
    #[inline]
    pub fn parse(layout: &PageLayout, page: &'a [u8]) -> Result<Self, InvalidPage> {
        let timestamp = read_u64(page, layout.timestamp_offset).ok_or(InvalidPage { timestamp: 0 })?;
        // The flags are in the lower half of a 64-bit field too: the kernel adds them to an int's worth of length.
        let commit = read_u32(page, layout.commit_offset).ok_or(InvalidPage { timestamp })?;
        let length = (commit & LENGTH_MASK) as usize;
        let rest = page.get(layout.data_offset..).ok_or(InvalidPage { timestamp })?;
        let Some((data, behind)) = rest.split_at_checked(length).filter(|(data, _)| !data.is_empty()) else {
            return Err(InvalidPage { timestamp });
        };
        let loss = if commit & MISSED_EVENTS == 0 {
            Loss::None
        } else if commit & MISSED_STORED == 0 {
            Loss::Unknown
        } else {
            // An `unsigned long` of the kernel, as the length is.
            let count = if layout.commit_size == 8 {
                read_u64(behind, 0)
            } else {
                read_u32(behind, 0).map(u64::from)
            };
            count.map_or(Loss::Unknown, Loss::Events)
        };
        Ok(Self {
            timestamp,
            loss,
            data,
        })
    }

    /// The page's events in the order in which they happened. Ends after the first error.
    #[inline]
    pub fn records(&self) -> Records<'a> {
        Records {
            rest: self.data,
            time: self.timestamp,
        }
    }
}

/// One event as it lies in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in nanoseconds of the trace clock.
    pub timestamp: u64,
    /// The number of the event's kind: see [`super::format::EventFormat::id`].
    pub event_id: u16,
    /// The event from its id on, where the format file's offsets start. At least two bytes; the kernel pads it to a
    /// multiple of four.
    pub payload: &'a [u8],
}

/// Iterator over the events of a page.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    time: u64,
}

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Bits of a time difference in a record's header; the rest follows in the next word.
const TIME_DELTA_BITS: u32 = 27;

/// An absolute time has 27 + 32 bits. The highest five are those of the time before it.
const ABSOLUTE_TIME_BITS: u32 = TIME_DELTA_BITS + 32;

impl<'a> Records<'a> {
    /// The next event, or the reason why there is none although data is left.
    #[inline(always)]
    fn advance(&mut self) -> Result<Option<Record<'a>>, ParseStatus> {
        while !self.rest.is_empty() {
            let header = self.word(ParseStatus::ShortEventHeader)?;
            let (kind, delta) = (header & 0x1f, u64::from(header >> 5));
            match kind {
                1..PADDING => {
                    self.time = self.time.wrapping_add(delta);
                    return self.event(kind as usize * 4).map(Some);
                }
                0 => {
                    self.time = self.time.wrapping_add(delta);
                    // The length counts its own four bytes.
                    let length = self.word(ParseStatus::ShortDataLength)? as usize;
                    return match length {
                        0 => Err(ParseStatus::ZeroDataLength),
                        1..4 => Err(ParseStatus::InvalidDataLength),
                        _ => self.event(length - 4).map(Some),
                    };
                }
                PADDING => {
                    // An event that was discarded after it was reserved. The padding at the end of a page has no length
                    // either, but lies behind the data.
                    // lies behind the data.
                    if delta == 0 {
                        return Err(ParseStatus::NullPadding);
                    }
                    self.time = self.time.wrapping_add(delta);
                    let length = self.word(ParseStatus::ShortPaddingLength)? as usize;
                    let skip = length.checked_sub(4).ok_or(ParseStatus::InvalidPaddingLength)?;
                    self.rest = self.rest.get(skip..).unwrap_or_default();
                }
                TIME_EXTEND => {
                    let high = u64::from(self.word(ParseStatus::ShortTimeExtend)?);
                    self.time = self
                        .time
                        .wrapping_add(delta)
                        .wrapping_add(high << TIME_DELTA_BITS);
                }
                TIME_STAMP.. => {
                    let high = u64::from(self.word(ParseStatus::ShortTimeStamp)?);
                    self.time = complete_absolute_time(delta | high << TIME_DELTA_BITS, self.time);
                }
            }
        }
        Ok(None)
    }

    /// Takes the next four bytes.
    #[inline(always)]
    fn word(&mut self, otherwise: ParseStatus) -> Result<u32, ParseStatus> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(otherwise)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*word))
    }

    /// Takes the next `size` bytes as an event.
    #[inline(always)]
    fn event(&mut self, size: usize) -> Result<Record<'a>, ParseStatus> {
        let (payload, rest) = self.rest.split_at_checked(size).ok_or(ParseStatus::EndOverflow)?;
        let id = payload.first_chunk().ok_or(ParseStatus::ShortEventId)?;
        self.rest = rest;
        Ok(Record {
            timestamp: self.time,
            event_id: u16::from_le_bytes(*id),
            payload,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ParseStatus>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let result = self.advance();
        if result.is_err() {
            self.rest = &[];
        }
        result.transpose()
    }
}

/// Adds the high bits that an absolute time's record has no room for, as the kernel's own reader does. They are zero
/// for clocks that count from boot for the first 18 years.
#[inline]
fn complete_absolute_time(low: u64, before: u64) -> u64 {
    let high = before >> ABSOLUTE_TIME_BITS << ABSOLUTE_TIME_BITS;
    let time = low | high;
    if high != 0 && time < before {
        // The low bits have wrapped around since.
        time.wrapping_add(1 << ABSOLUTE_TIME_BITS)
    } else {
        time
    }
}

#[inline(always)]
pub(super) fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes
        .get(offset..)?
        .first_chunk()
        .copied()
        .map(u64::from_le_bytes)
}

#[inline(always)]
pub(super) fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes
        .get(offset..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}
