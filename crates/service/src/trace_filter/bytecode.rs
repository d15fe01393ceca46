//! Filter bytecode: which fields of which message may stay in a trace.
//!
//! Bytecode is a row of varints of 32 bits, the last of which is a checksum: the low half of the FNV-1a hash of all words before it, each hashed as
//! four bytes, lowest first. A word is an opcode (three bits) below a field number. Fields belong to the message whose end comes next; messages are
//! numbered in the order of their ends, the first is the root. There is no version number: the second version has one opcode more than the first, and
//! later additions reach older services as an *overlay*, a row of triples (message, word, argument) that adds fields or changes their actions.
//!
//! Used when a session begins to make a [`FieldTable`], and by the message filter to look fields up in it. On any bytes, parsing takes time and
//! memory in proportion to them, up to [`MAX_FILTER_TABLE_ENTRIES`](limits::MAX_FILTER_TABLE_ENTRIES).

use std::fmt;
use std::ops::Range;

use crate::limits;
use crate::trace_filter::message::varint_at;

/// The action on a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Action {
    /// It goes.
    #[default]
    Drop,
    /// It stays as it is, whatever its contents.
    Keep,
    /// It stays if it is a message, and its contents are filtered as the message of this number.
    Message(u32),
    /// It stays if it is a string, which the rules for strings of this semantic type apply to.
    Text(u16),
}

/// Why bytes are not the bytecode of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BytecodeError {
    /// There is nothing, not even a checksum.
    Empty,
    /// A varint is cut off or longer than ten bytes.
    BadVarint(usize),
    /// The last word is not the checksum of the others.
    BadChecksum {
        /// The expected value.
        expected: u32,
        /// The last word.
        actual: u32,
    },
    /// An opcode that no version has.
    UnknownOpcode {
        /// Index of the word.
        word: usize,
        /// The opcode.
        opcode: u32,
    },
    /// A field has number 0.
    FieldZero(usize),
    /// The argument of the last word is missing.
    NoArgument(usize),
    /// Ranges of fields overlap, or do not come in order.
    Overlap {
        /// Index of the message.
        message: usize,
        /// First field of the later range.
        start: u32,
        /// First field behind the earlier range.
        end: u32,
    },
    /// The last message has no end.
    NoEnd,
    /// A nested field is of a message that does not exist.
    NoSuchMessage {
        /// Index of the message.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// The table would take too much memory.
    TooLarge,
    /// An overlay does not consist of triples.
    NotTriples(usize),
    /// Entries of an overlay are not sorted by message and field.
    NotSorted(usize),
    /// Entries of an overlay are for messages that the bytecode does not have.
    OverlayUnused(u32),
}

impl fmt::Display for BytecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BytecodeError::Empty => {
                f.write_str("it is empty; make it with proto_filter of the Perfetto tools")
            }
            BytecodeError::BadVarint(value) => write!(
                f,
                "byte {value} begins no varint: the bytecode is cut off or damaged"
            ),
            BytecodeError::BadChecksum { expected, actual } => write!(
                f,
                "the checksum is {actual:#x}, that of the words is {expected:#x}: the bytecode is damaged"
            ),
            BytecodeError::UnknownOpcode { word, opcode } => write!(
                f,
                "word {word} has opcode {opcode}, which this version of the service does not know"
            ),
            BytecodeError::FieldZero(value) => {
                write!(f, "word {value} is about field 0, which does not exist")
            }
            BytecodeError::NoArgument(value) => {
                write!(f, "word {value} lacks its argument: the bytecode ends there")
            }
            BytecodeError::Overlap { message, start, end } => write!(
                f,
                "message {message}: the fields from {start} on come after or within the range that ends with {}",
                end - 1
            ),
            BytecodeError::NoEnd => f.write_str("it does not end with the end of a message"),
            BytecodeError::NoSuchMessage { index, count } => {
                write!(f, "a field is of message {index}, but there are only {count}")
            }
            BytecodeError::TooLarge => {
                write!(f, "it has more than {} entries", limits::MAX_FILTER_TABLE_ENTRIES)
            }
            BytecodeError::NotTriples(value) => {
                write!(f, "it has {value} words and not three for each entry")
            }
            BytecodeError::NotSorted(value) => write!(
                f,
                "the entry at word {value} does not come after the one before it, by message and field"
            ),
            BytecodeError::OverlayUnused(value) => write!(
                f,
                "the overlay has an entry for message {value}, which the bytecode does not have"
            ),
        }
    }
}

impl std::error::Error for BytecodeError {}

const OPCODE_BITS: u32 = 3;
const END_OF_MESSAGE: u32 = 0;
const SIMPLE_FIELD: u32 = 1;
const SIMPLE_FIELD_RANGE: u32 = 2;
const NESTED_FIELD: u32 = 3;
const FILTER_STRING: u32 = 4;
const FILTER_STRING_WITH_TYPE: u32 = 5;

fn split(word: u32) -> (u32, u32) {
    (word & ((1 << OPCODE_BITS) - 1), word >> OPCODE_BITS)
}

/// The words of bytecode or of an overlay, without the checksum, which is right.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<u32>, BytecodeError> {
    let mut words = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let (word, next) = varint_at(bytes, at).ok_or(BytecodeError::BadVarint(at))?;
        words.push(word as u32);
        at = next;
    }
    let actual = words.pop().ok_or(BytecodeError::Empty)?;
    let expected = checksum(&words);
    if actual != expected {
        return Err(BytecodeError::BadChecksum { expected, actual });
    }
    Ok(words)
}

fn checksum(words: &[u32]) -> u32 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    }) as u32
}

/// An overlay's entry for one field.
#[derive(Clone, Copy, Debug)]
struct OverlayEntry {
    message: u32,
    field: u32,
    action: Action,
}

/// An overlay, whose entries are in order.
#[derive(Default)]
pub(super) struct Overlay(Vec<OverlayEntry>);

impl Overlay {
    /// The overlay in these words.
    pub(super) fn new(words: &[u32]) -> Result<Overlay, BytecodeError> {
        let (triples, []) = words.as_chunks::<3>() else {
            return Err(BytecodeError::NotTriples(words.len()));
        };
        let mut entries: Vec<OverlayEntry> = Vec::with_capacity(triples.len());
        for (index, [message, word, argument]) in triples.iter().enumerate() {
            let (opcode, field) = split(*word);
            let action = match opcode {
                SIMPLE_FIELD => Action::Keep,
                FILTER_STRING => Action::Text(0),
                // Upstream keeps 16 bits. It takes 0xffff and 0xfffe for other opcodes, which lets text pass that should be filtered. So here they
                // are types like all others.
                FILTER_STRING_WITH_TYPE => Action::Text(*argument as u16),
                _ => {
                    return Err(BytecodeError::UnknownOpcode {
                        word: 3 * index + 1,
                        opcode,
                    });
                }
            };
            let in_order = |last: &OverlayEntry| (last.message, last.field) < (*message, field);
            if !entries.last().is_none_or(in_order) {
                return Err(BytecodeError::NotSorted(3 * index));
            }
            entries.push(OverlayEntry {
                message: *message,
                field,
                action,
            });
        }
        Ok(Overlay(entries))
    }
}

/// Fields with the same fate.
#[derive(Clone, Debug)]
struct FieldRange {
    fields: Range<u32>,
    action: Action,
}

/// The range of a message's fields in the table.
#[derive(Clone, Debug, Default)]
struct Message {
    direct: Range<usize>,
    ranges: Range<usize>,
}

/// The action on each field of each message. Looking up a field below 128 takes constant time, others take the logarithm of the number of ranges in
/// the message.
#[derive(Debug)]
pub(super) struct FieldTable {
    messages: Vec<Message>,
    /// For each message, by field number, up to the largest one below [`DIRECT_FIELDS`] that stays.
    direct: Vec<Action>,
    /// For each message, the other fields that stay, in order.
    ranges: Vec<FieldRange>,
}

/// Fields below this are found by their number.
const DIRECT_FIELDS: u32 = 128;

impl FieldTable {
    /// The table for the words of bytecode and an overlay.
    pub(super) fn new(words: &[u32], overlay: &Overlay) -> Result<FieldTable, BytecodeError> {
        let mut builder = Builder {
            table: FieldTable {
                messages: Vec::new(),
                direct: Vec::new(),
                ranges: Vec::new(),
            },
            message: Message::default(),
            overlay: &overlay.0,
        };
        let mut ended = true;
        let mut largest_message = 0;
        let mut rest = words.iter().copied().enumerate();
        while let Some((index, word)) = rest.next() {
            let (opcode, field) = split(word);
            let mut argument = || match rest.next() {
                Some((_, argument)) => Ok(argument),
                None => Err(BytecodeError::NoArgument(index)),
            };
            ended = opcode == END_OF_MESSAGE;
            if field == 0 && !ended {
                return Err(BytecodeError::FieldZero(index));
            }
            match opcode {
                END_OF_MESSAGE => builder.end_message()?,
                SIMPLE_FIELD => builder.field(field, Action::Keep)?,
                FILTER_STRING => builder.field(field, Action::Text(0))?,
                FILTER_STRING_WITH_TYPE => builder.field(field, Action::Text(argument()? as u16))?,
                NESTED_FIELD => {
                    let message = argument()?;
                    largest_message = largest_message.max(message);
                    builder.field(field, Action::Message(message))?;
                }
                SIMPLE_FIELD_RANGE => {
                    // A range that goes round is empty upstream, so it is here.
                    let end = field.wrapping_add(argument()?);
                    builder.add(field..end, Action::Keep)?;
                }
                _ => return Err(BytecodeError::UnknownOpcode { word: index, opcode }),
            }
        }
        if !ended {
            return Err(BytecodeError::NoEnd);
        }
        if let Some(entry) = builder.overlay.first() {
            return Err(BytecodeError::OverlayUnused(entry.message));
        }
        let count = builder.table.messages.len();
        if largest_message > 0 && largest_message as usize >= count {
            return Err(BytecodeError::NoSuchMessage {
                index: largest_message,
                count,
            });
        }
        Ok(builder.table)
    }

    /// The action on a field of a message. A message that is not there keeps nothing.
    #[inline]
    pub(super) fn action(&self, message: u32, field: u32) -> Action {
        let Some(message) = self.messages.get(message as usize) else {
            return Action::Drop;
        };
        match self.direct[message.direct.clone()].get(field as usize) {
            Some(action) => *action,
            None => self.action_in_ranges(message, field),
        }
    }

    fn action_in_ranges(&self, message: &Message, field: u32) -> Action {
        let ranges = &self.ranges[message.ranges.clone()];
        let next = ranges.partition_point(|range| range.fields.end <= field);
        match ranges.get(next) {
            Some(range) if range.fields.contains(&field) => range.action,
            _ => Action::Drop,
        }
    }
}

/// A table while it is made, a message at a time.
struct Builder<'a> {
    table: FieldTable,
    /// The message whose end has not come yet; its ends are those of the table.
    message: Message,
    /// Entries not used yet.
    overlay: &'a [OverlayEntry],
}

impl Builder<'_> {
    /// The bytecode has a field, which the overlay may change.
    fn field(&mut self, field: u32, action: Action) -> Result<(), BytecodeError> {
        self.add_from_overlay(field)?;
        let mut action = action;
        if let Some((entry, rest)) = self.overlay.split_first()
            && entry.message as usize == self.table.messages.len()
            && entry.field == field
        {
            (action, self.overlay) = (entry.action, rest);
        }
        self.add(field..field + 1, action)
    }

    /// Adds the overlay's fields of this message that come before `field`.
    fn add_from_overlay(&mut self, field: u32) -> Result<(), BytecodeError> {
        let message = self.table.messages.len();
        while let Some((entry, rest)) = self.overlay.split_first()
            && entry.message as usize == message
            && entry.field < field
        {
            self.overlay = rest;
            self.add(entry.field..entry.field + 1, entry.action)?;
        }
        Ok(())
    }

    /// Adds fields: those below the limit to the part that is found by number, the others as a range. In the first part a later field replaces an
    /// earlier one; ranges must not overlap, as in upstream.
    fn add(&mut self, fields: Range<u32>, action: Action) -> Result<(), BytecodeError> {
        let FieldTable {
            messages,
            direct,
            ranges,
        } = &mut self.table;
        let start = fields.start.max(DIRECT_FIELDS);
        if fields.start < fields.end && fields.start < DIRECT_FIELDS {
            let end = self.message.direct.start + fields.end.min(DIRECT_FIELDS) as usize;
            if direct.len() < end {
                direct.resize(end, Action::Drop);
            }
            direct[self.message.direct.start + fields.start as usize..end].fill(action);
        }
        if start < fields.end {
            if let Some(last) = ranges[self.message.ranges.start..].last()
                && start < last.fields.end
            {
                return Err(BytecodeError::Overlap {
                    message: messages.len(),
                    start,
                    end: last.fields.end,
                });
            }
            ranges.push(FieldRange {
                fields: start..fields.end,
                action,
            });
        }
        self.check_size()
    }

    fn check_size(&self) -> Result<(), BytecodeError> {
        let FieldTable {
            messages,
            direct,
            ranges,
        } = &self.table;
        if messages.len() + direct.len() + ranges.len() > limits::MAX_FILTER_TABLE_ENTRIES {
            return Err(BytecodeError::TooLarge);
        }
        Ok(())
    }

    fn end_message(&mut self) -> Result<(), BytecodeError> {
        self.add_from_overlay(u32::MAX)?;
        let ends = (self.table.direct.len(), self.table.ranges.len());
        self.message.direct.end = ends.0;
        self.message.ranges.end = ends.1;
        let next = Message {
            direct: ends.0..ends.0,
            ranges: ends.1..ends.1,
        };
        self.table
            .messages
            .push(std::mem::replace(&mut self.message, next));
        self.check_size()
    }
}

#[cfg(test)]
mod tests;
