//! Filters one encoded message in place: forbidden fields are cut out and the rest moves together.
//!
//! The remaining fields are encoded as upstream encodes them, byte for byte: tags, numbers and lengths take as few bytes as they can, except that the
//! length of a nested message takes as many as the length before filtering needs. So nothing ever grows, and a message that keeps everything is not
//! touched at all. Called for each packet that is read back from a session with a filter; total on any bytes, in time linear in them (strings: see
//! [`StringFilter`]), without allocation once its memory is warm.

use std::fmt;
use std::ops::Range;

use crate::limits;
use crate::trace_filter::bytecode::{Action, FieldTable};
use crate::trace_filter::strings::{Groups, SearchTooLong, StringFilter};
use ferretto_wire::{
    MAX_FIELD_NUMBER, WireType, decode_varint_wrapping, field_number, put_padded_varint, varint_len,
    wire_type,
};

/// Why a packet cannot be filtered. Then nothing of it may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfilterable {
    /// It, or a nested message that would stay, is not a message.
    Malformed,
    /// Messages in it are nested too deep.
    TooDeep,
    /// A string in it takes too long to be searched.
    SearchTooLong,
}

impl fmt::Display for Unfilterable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfilterable::Malformed => f.write_str("it is no protobuf message, or holds one that is none"),
            Unfilterable::TooDeep => write!(
                f,
                "messages are nested more than {} deep",
                limits::MAX_FILTER_DEPTH
            ),
            Unfilterable::SearchTooLong => f.write_str("searching a string in it takes too long"),
        }
    }
}

impl std::error::Error for Unfilterable {}

impl From<SearchTooLong> for Unfilterable {
    fn from(_: SearchTooLong) -> Self {
        Unfilterable::SearchTooLong
    }
}

/// A message whose nested message is being filtered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    message: u32,
    /// The end of the message.
    end: usize,
    /// Bytes of the nested message before filtering.
    nested_size: usize,
    /// The positions of the nested message's length, and then of its content, in the filtered output.
    kept_length: usize,
    kept_nested: usize,
}

/// Filters the message of number `root` that is encoded in `packet`, and leaves the result at the start of `packet`. Returns its size in bytes.
/// `stack` and `groups` are memory to work in.
pub(super) fn filter_in_place(
    table: &FieldTable,
    strings: &StringFilter,
    root: u32,
    packet: &mut [u8],
    stack: &mut Vec<Outer>,
    groups: &mut Groups,
) -> Result<usize, Unfilterable> {
    use Unfilterable::Malformed;
    stack.clear();
    let mut message = root;
    let mut end = packet.len();
    let mut read = 0;
    let mut kept = Kept::default();
    loop {
        while read == end {
            let Some(outer) = stack.pop() else {
                kept.cut(packet, read..read);
                return Ok(kept.bytes);
            };
            let size = kept.size_at(read) - outer.kept_nested;
            if size != outer.nested_size {
                // The cuts in the nested message have moved its head to its final place.
                put_padded_varint(&mut packet[outer.kept_length..outer.kept_nested], size as u64);
            }
            (message, end) = (outer.message, outer.end);
        }
        let field_start = read;
        let (tag, value_start) = varint_at(&packet[..end], field_start).ok_or(Malformed)?;
        // Numbers that no field can have are never allowed, even if a decoder would cut bits off until they are.
        let action = match u32::try_from(field_number(tag)) {
            Ok(field @ 1..=MAX_FIELD_NUMBER) => table.action(message, field),
            _ => Action::Drop,
        };
        match wire_type(tag) {
            Ok(WireType::Varint) => {
                let (value, next) = varint_at(&packet[..end], value_start).ok_or(Malformed)?;
                read = next;
                match action {
                    Action::Keep => kept.keep_head(packet, field_start..next, tag, Some(value)),
                    _ => kept.cut(packet, field_start..next),
                }
            }
            Ok(fixed @ (WireType::Fixed64 | WireType::Fixed32)) => {
                let size = if fixed == WireType::Fixed64 { 8 } else { 4 };
                if end - value_start < size {
                    return Err(Malformed);
                }
                read = value_start + size;
                match action {
                    Action::Keep => kept.keep_head(packet, field_start..value_start, tag, None),
                    _ => kept.cut(packet, field_start..read),
                }
            }
            Ok(WireType::Bytes) => {
                let (length, body) = varint_at(&packet[..end], value_start).ok_or(Malformed)?;
                let length = usize::try_from(length)
                    .ok()
                    .filter(|length| *length <= end - body)
                    .ok_or(Malformed)?;
                read = body + length;
                if action == Action::Drop {
                    kept.cut(packet, field_start..read);
                    continue;
                }
                kept.keep_head(packet, field_start..body, tag, Some(length as u64));
                match action {
                    Action::Message(nested) if length > 0 => {
                        if stack.len() >= limits::MAX_FILTER_DEPTH {
                            return Err(Unfilterable::TooDeep);
                        }
                        let kept_nested = kept.size_at(body);
                        stack.push(Outer {
                            message,
                            end,
                            nested_size: length,
                            kept_length: kept_nested - varint_len(length as u64),
                            kept_nested,
                        });
                        (message, end, read) = (nested, read, body);
                    }
                    Action::Text(semantic_type) => {
                        strings.apply(&mut packet[body..read], semantic_type, groups)?;
                    }
                    _ => {}
                }
            }
            Err(_) => return Err(Malformed),
        }
    }
}

/// The filtered output of a message so far: the first `bytes`, and the bytes from `run` on, which are only moved there when something is cut out
/// behind them.
#[derive(Default)]
struct Kept {
    bytes: usize,
    run: usize,
}

impl Kept {
    /// Bytes that stay if everything from the run up to `read` does.
    fn size_at(&self, read: usize) -> usize {
        self.bytes + (read - self.run)
    }

    /// This does not stay, but all between the run and this does.
    #[inline]
    fn cut(&mut self, packet: &mut [u8], cut: Range<usize>) {
        if self.bytes != self.run {
            packet.copy_within(self.run..cut.start, self.bytes);
        }
        self.bytes = self.size_at(cut.start);
        self.run = cut.end;
    }

    /// A tag and a number, or the tag alone, stay. If they take more bytes than they need they are encoded anew.
    #[inline]
    fn keep_head(&mut self, packet: &mut [u8], head: Range<usize>, tag: u64, number: Option<u64>) {
        let varints = 1 + usize::from(number.is_some());
        if head.len() != varints {
            let needed = varint_len(tag) + number.map_or(0, varint_len);
            // The tenth byte of a number may hold bits that a number has no room for.
            if head.len() != needed || needed > 10 && packet[head.end - 1] > 1 {
                self.shorten_head(packet, head, tag, number);
            }
        }
    }

    #[cold]
    fn shorten_head(&mut self, packet: &mut [u8], head: Range<usize>, tag: u64, number: Option<u64>) {
        self.cut(packet, head);
        for varint in std::iter::once(tag).chain(number) {
            let end = self.bytes + varint_len(varint);
            put_padded_varint(&mut packet[self.bytes..end], varint);
            self.bytes = end;
        }
    }
}

/// The varint at `at` and where it ends; `None` if it is cut off or longer than ten bytes. Bits beyond the 64th are cut
/// off, as upstream does.
#[inline]
pub(super) fn varint_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    // One comparison checks both that there is a rest and that it is not empty.
    if at >= bytes.len() {
        return None;
    }
    let (value, len) = decode_varint_wrapping(&bytes[at..])?;
    Some((value, at + len))
}

#[cfg(test)]
mod tests;
