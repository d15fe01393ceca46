//! Checks a packet that a producer wrote before the service vouches for it. The service calls
//! [`PacketValidator::check`] for every packet it reads out of a trace buffer, on the fragments as they lie
//! there, and drops the packet when it fails.
//!
//! Guarantees about a packet that passes: it is a sequence of whole protobuf fields (so that fields which the service appends do not become the end
//! of the producer's last one), and none of its top-level fields is one that only the service may write. Nested messages are skipped, not looked
//! into.

use std::fmt;

use ferretto_proto::write::TracePacket;
use ferretto_wire::{MAX_FIELD_NUMBER, WireType, field_number, load_varint, wire_type};

/// Fields of `TracePacket` that only the service writes: a producer that sets one could pass for another, or
/// smuggle packets past this check inside a packet.
const RESERVED_FIELDS: [u32; 12] = [
    TracePacket::TRUSTED_UID,
    TracePacket::TRUSTED_PACKET_SEQUENCE_ID,
    TracePacket::TRACE_CONFIG,
    TracePacket::TRACE_STATS,
    TracePacket::SYNCHRONIZATION_MARKER,
    TracePacket::COMPRESSED_PACKETS,
    TracePacket::SERVICE_EVENT,
    TracePacket::TRUSTED_PID,
    TracePacket::MACHINE_ID,
    TracePacket::TRACE_PROVENANCE,
    TracePacket::PROTOVMS,
    TracePacket::ZSTD_COMPRESSED_PACKETS,
];

/// [`RESERVED_FIELDS`] as a bit set.
const RESERVED_SET: [u64; 3] = {
    let mut set = [0; 3];
    let mut index = 0;
    while index < RESERVED_FIELDS.len() {
        let field = RESERVED_FIELDS[index];
        set[(field / 64) as usize] |= 1 << (field % 64);
        index += 1;
    }
    set
};

/// Largest length a field can have, in bytes: lengths that trace writers patch in are padded to four bytes.
const MAX_FIELD_LENGTH: u64 = (1 << 28) - 1;

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPacket {
    /// It sets a field that only the service may set.
    ReservedField(u32),
    /// A tag whose field number is 0 or above 2^29 - 1, for which decoders disagree about its meaning.
    BadFieldNumber,
    /// A wire type that is neither varint, 64-bit, length-delimited nor 32-bit.
    BadWireType(u8),
    /// A varint of more than ten bytes.
    BadVarint,
    /// A length-delimited field of 2^28 bytes or more.
    FieldTooLong(u64),
    /// It ends in the middle of a field.
    Truncated,
}

impl fmt::Display for InvalidPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidPacket::ReservedField(value) => {
                write!(f, "the packet sets field {value}, which only the service may set")
            }
            InvalidPacket::BadFieldNumber => {
                f.write_str("the packet has a tag with an impossible field number")
            }
            InvalidPacket::BadWireType(value) => {
                write!(f, "the packet has a field of the unknown wire type {value}")
            }
            InvalidPacket::BadVarint => f.write_str("the packet has a varint of more than ten bytes"),
            InvalidPacket::FieldTooLong(value) => write!(
                f,
                "the packet has a field of {value} bytes, more than a packet can hold"
            ),
            InvalidPacket::Truncated => f.write_str("the packet ends in the middle of a field"),
        }
    }
}

impl std::error::Error for InvalidPacket {}

/// The meaning of the next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Tag,
    Value,
    Length,
}

/// State carried from one fragment to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketValidator {
    /// The varint that the last fragment ended in, or in front of.
    expect: Expect,
    varint: u64,
    varint_bytes: u32,
    /// Bytes of the current field that are still to be skipped.
    skip: usize,
}

impl PacketValidator {
    /// Checks the packet whose bytes are `fragments`, one after the other.
    ///
    /// # Errors
    /// The first rule that the packet breaks.
    #[inline]
    pub fn check<'a>(fragments: impl IntoIterator<Item = &'a [u8]>) -> Result<(), InvalidPacket> {
        let mut validator = Self::default();
        for fragment in fragments {
            validator.push_fragment(fragment)?;
        }
        validator.finish()
    }

    /// Checks the next fragment of a packet, which may come in several turns.
    ///
    /// # Errors
    /// The first rule that the packet breaks.
    #[inline]
    pub(crate) fn push_fragment(&mut self, fragment: &[u8]) -> Result<(), InvalidPacket> {
        match fragment.get(self.skip..) {
            Some(rest) => self.skip = self.push(rest)?,
            None => self.skip -= fragment.len(),
        }
        Ok(())
    }

    /// Checks that the packet may end here.
    ///
    /// # Errors
    /// If it ends within a field.
    #[inline]
    pub fn finish(&self) -> Result<(), InvalidPacket> {
        if self.skip == 0 && self.is_between_fields() {
            Ok(())
        } else {
            Err(InvalidPacket::Truncated)
        }
    }

    #[inline]
    fn is_between_fields(&self) -> bool {
        self.expect == Expect::Tag && self.varint_bytes == 0
    }

    /// Goes on with `bytes`. Returns how many of the bytes after them belong to the last field.
    #[inline]
    fn push(&mut self, bytes: &[u8]) -> Result<usize, InvalidPacket> {
        if !self.is_between_fields() {
            return self.push_bytewise(bytes);
        }
        match whole_fields(bytes)? {
            Fields::Until { beyond } => Ok(beyond),
            Fields::Before(rest) => self.push_bytewise(rest),
        }
    }

    /// As [`PacketValidator::push`], for bytes that begin within a varint or with one that cannot be loaded at once.
    #[cold]
    fn push_bytewise(&mut self, mut bytes: &[u8]) -> Result<usize, InvalidPacket> {
        loop {
            let Some(varint) = self.varint(&mut bytes)? else {
                return Ok(0);
            };
            let mut skip = 0;
            match self.expect {
                Expect::Tag => match field_type(varint)? {
                    FieldType::Varint => self.expect = Expect::Value,
                    FieldType::Length => self.expect = Expect::Length,
                    FieldType::Fixed(size) => skip = size.into(),
                },
                Expect::Value => self.expect = Expect::Tag,
                Expect::Length => {
                    skip = field_length(varint)? as usize;
                    self.expect = Expect::Tag;
                }
            }
            match bytes.get(skip..) {
                Some(rest) => bytes = rest,
                None => return Ok(skip - bytes.len()),
            }
            if self.expect == Expect::Tag {
                match whole_fields(bytes)? {
                    Fields::Until { beyond } => return Ok(beyond),
                    Fields::Before(rest) => bytes = rest,
                }
            }
        }
    }

    /// Takes a varint, or the existing part of it, off `bytes`: the only decoder that has to wait for bytes. For a value or a length, bits beyond the
    /// 64th are cut off, as by `decode_varint_wrapping`.
    fn varint(&mut self, bytes: &mut &[u8]) -> Result<Option<u64>, InvalidPacket> {
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if self.varint_bytes == 9 && byte > 1 && self.expect == Expect::Tag {
                // More than 64 bits: cutting the excess off might leave a valid tag.
                return Err(InvalidPacket::BadFieldNumber);
            }
            self.varint |= u64::from(byte & 0x7f) << (7 * self.varint_bytes);
            self.varint_bytes += 1;
            if byte & 0x80 == 0 {
                self.varint_bytes = 0;
                return Ok(Some(std::mem::take(&mut self.varint)));
            }
            if self.varint_bytes == 10 {
                return Err(InvalidPacket::BadVarint);
            }
        }
        Ok(None)
    }
}

/// The result of [`whole_fields`].
enum Fields<'a> {
    /// It got to the end. The last field may go on for this many bytes.
    Until { beyond: usize },
    /// It got to a field with a varint that cannot be loaded at once. Not empty.
    Before(&'a [u8]),
}

/// Takes fields off `bytes` as long as their varints can be loaded at once.
#[inline]
fn whole_fields(mut bytes: &[u8]) -> Result<Fields<'_>, InvalidPacket> {
    while let [first, body @ ..] = bytes {
        let (field, body) = match ONE_BYTE_TAGS[usize::from(*first)] {
            Some(field) => (field, body),
            None => match load_varint(bytes) {
                Some((tag, size)) => (field_type(tag)?, &bytes[size..]),
                None => return Ok(Fields::Before(bytes)),
            },
        };
        let skip = match field {
            FieldType::Fixed(size) => usize::from(size),
            FieldType::Varint => match varint_size(body) {
                Some(size) => size,
                None => return Ok(Fields::Before(bytes)),
            },
            FieldType::Length => match load_varint(body) {
                Some((length, size)) => size + field_length(length)? as usize,
                None => return Ok(Fields::Before(bytes)),
            },
        };
        match body.get(skip..) {
            Some(rest) => bytes = rest,
            None => {
                return Ok(Fields::Until {
                    beyond: skip - body.len(),
                });
            }
        }
    }
    Ok(Fields::Until { beyond: 0 })
}

/// How the rest of a field is encoded.
#[derive(Clone, Copy)]
enum FieldType {
    Varint,
    Length,
    /// This many bytes.
    Fixed(u8),
}

/// The result of [`field_type`] for tags of one byte, which are the most common: `None` for bytes that are no whole tag, and for tags that it
/// refuses.
static ONE_BYTE_TAGS: [Option<FieldType>; 256] = {
    let mut types = [None; 256];
    let mut tag = 0;
    while tag < 0x80 {
        if let Ok(field) = field_type(tag) {
            types[tag as usize] = Some(field);
        }
        tag += 1;
    }
    types
};

/// Checks a tag.
#[inline]
const fn field_type(tag: u64) -> Result<FieldType, InvalidPacket> {
    let number = field_number(tag);
    if number == 0 || number > MAX_FIELD_NUMBER as u64 {
        return Err(InvalidPacket::BadFieldNumber);
    }
    let field = number as u32;
    let set = (field / 64) as usize;
    if set < RESERVED_SET.len() && RESERVED_SET[set] >> (field % 64) & 1 != 0 {
        return Err(InvalidPacket::ReservedField(field));
    }
    match wire_type(tag) {
        Ok(WireType::Varint) => Ok(FieldType::Varint),
        Ok(WireType::Fixed64) => Ok(FieldType::Fixed(8)),
        Ok(WireType::Bytes) => Ok(FieldType::Length),
        Ok(WireType::Fixed32) => Ok(FieldType::Fixed(4)),
        Err(bits) => Err(InvalidPacket::BadWireType(bits)),
    }
}

/// Checks the length of a length-delimited field.
#[inline]
fn field_length(length: u64) -> Result<u64, InvalidPacket> {
    if length > MAX_FIELD_LENGTH {
        Err(InvalidPacket::FieldTooLong(length))
    } else {
        Ok(length)
    }
}

/// The size of the varint at the start of `bytes`, under the conditions of [`load_varint`] or when it has nine bytes, as times of
/// day have, or ten, as negative numbers do.
#[inline]
fn varint_size(bytes: &[u8]) -> Option<usize> {
    if let Some((_, size)) = load_varint(bytes) {
        return Some(size);
    }
    match bytes {
        [_, _, _, _, _, _, _, _, 0..0x80, ..] => Some(9),
        [_, _, _, _, _, _, _, _, _, 0..0x80, ..] => Some(10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_wire::{push_varint, tag};

    /// `TracePacket { timestamp: 150, for_testing.str: "hello", fixed64 9, fixed32 8, field 2000: bytes }`.
    const GOOD: &[u8] = b"\x40\x96\x01\xa2\x38\x07\x0a\x05hello\x49abcdefgh\x45abcd\x82\x7d\x03xyz";

    fn check(packet: &[u8]) -> Result<(), InvalidPacket> {
        PacketValidator::check([packet])
    }

    #[test]
    fn ordinary_packets_pass_in_one_piece_and_cut_anywhere() {
        assert_eq!(PacketValidator::check([]), Ok(()));
        assert_eq!(check(GOOD), Ok(()));
        for first in 0..=GOOD.len() {
            for second in first..=GOOD.len() {
                let cut = [&GOOD[..first], &GOOD[first..second], &GOOD[second..]];
                assert_eq!(PacketValidator::check(cut), Ok(()), "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn truncated_packets_fail() {
        let ends = [0, 3, 13, 22, 27, GOOD.len()];
        for length in 0..GOOD.len() {
            let expected = if ends.contains(&length) {
                Ok(())
            } else {
                Err(InvalidPacket::Truncated)
            };
            assert_eq!(check(&GOOD[..length]), expected, "length {length}");
        }
    }

    #[test]
    fn fields_of_the_service_are_refused_with_any_value_and_type() {
        for field in RESERVED_FIELDS {
            for wire_type in [
                WireType::Varint,
                WireType::Fixed64,
                WireType::Bytes,
                WireType::Fixed32,
            ] {
                let mut packet = GOOD.to_vec();
                push_varint(&mut packet, tag(field, wire_type).into());
                packet.extend([0; 8]);
                assert_eq!(check(&packet), Err(InvalidPacket::ReservedField(field)));
                for cut in 0..packet.len() {
                    let (head, tail) = packet.split_at(cut);
                    assert_eq!(
                        PacketValidator::check([head, tail]),
                        Err(InvalidPacket::ReservedField(field))
                    );
                }
            }
        }
    }

    #[test]
    fn reserved_fields_inside_nested_messages_are_not_our_business() {
        assert_eq!(check(b"\xa2\x38\x02\x18\x01"), Ok(()));
    }

    #[test]
    fn tags_beyond_29_bits_are_refused_even_if_their_low_bits_look_fine() {
        // Field 8 with bit 32 set: a decoder that truncates tags to 32 bits sees a timestamp.
        assert_eq!(
            check(b"\xc0\x80\x80\x80\x10\x01"),
            Err(InvalidPacket::BadFieldNumber)
        );
        assert_eq!(
            check(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
            Err(InvalidPacket::BadFieldNumber)
        );
        // Field 8 with bit 64 set, which no 64-bit decoder sees.
        assert_eq!(
            check(b"\xc0\x80\x80\x80\x80\x80\x80\x80\x80\x02\x01"),
            Err(InvalidPacket::BadFieldNumber)
        );
        assert_eq!(check(b"\x00\x00"), Err(InvalidPacket::BadFieldNumber));
        assert_eq!(
            check(b"\xf8\xff\xff\xff\x0f\x01"),
            Ok(()),
            "2^29 - 1 is the largest field number"
        );
    }

    #[test]
    fn padded_tags_do_not_hide_reserved_fields() {
        assert_eq!(
            check(b"\x98\x80\x80\x80\x00\x01"),
            Err(InvalidPacket::ReservedField(3))
        );
    }

    #[test]
    fn groups_endless_varints_and_huge_lengths_are_refused() {
        for wire_type in [3, 4, 6, 7] {
            assert_eq!(
                check(&[8 << 3 | wire_type, 0]),
                Err(InvalidPacket::BadWireType(wire_type))
            );
        }
        assert_eq!(
            check(b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            Err(InvalidPacket::BadVarint)
        );
        assert_eq!(check(b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(()));
        assert_eq!(
            check(b"\xa2\x38\x80\x80\x80\x80\x01"),
            Err(InvalidPacket::FieldTooLong(1 << 28))
        );
        assert_eq!(check(b"\xa2\x38\xff\xff\xff\x7f"), Err(InvalidPacket::Truncated));
    }

    #[test]
    fn trailing_garbage_is_refused() {
        assert!(check(&[GOOD, b"bike is short for bichael"].concat()).is_err());
    }

    /// Splits a varint off the start of `bytes`.
    fn split_varint(bytes: &[u8]) -> Option<(u128, &[u8])> {
        let size = 1 + bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        let (varint, rest) = bytes.split_at(size);
        let value = varint
            .iter()
            .rev()
            .fold(0, |value, byte| value << 7 | u128::from(byte & 0x7f));
        Some((value, rest))
    }

    /// The same rules, a field at a time.
    fn check_naively(packet: &[u8]) -> Option<()> {
        let mut rest = packet;
        while !rest.is_empty() {
            let (tag, after_tag) = split_varint(rest)?;
            let field = u32::try_from(tag).ok()? >> 3;
            if field == 0 || RESERVED_FIELDS.contains(&field) {
                return None;
            }
            rest = match tag & 7 {
                0 => split_varint(after_tag)?.1,
                1 => after_tag.get(8..)?,
                2 => {
                    let (length, body) = split_varint(after_tag)?;
                    body.get((length as u64).try_into().ok()?..)?
                }
                5 => after_tag.get(4..)?,
                _ => return None,
            };
        }
        Some(())
    }

    #[test]
    fn random_packets_cut_at_random_agree_with_a_naive_reading() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..50_000 {
            let mut packet = Vec::new();
            for _ in 0..random(5) {
                let field = [1, 2, 8, 11, 58, 900, 5_000, 3, 133, 200, 1 << 28][random(11) as usize];
                let wire_type = [0, 0, 1, 2, 2, 5, 3][random(7) as usize];
                // By hand, because some are no valid tags.
                push_varint(&mut packet, field << 3 | wire_type);
                packet.extend((0..random(12)).map(|_| [0, 1, 2, 5, 0x80, 0xff][random(6) as usize]));
            }
            let expected = check_naively(&packet).is_some();
            if expected {
                good += 1
            } else {
                bad += 1
            };
            let cut = random(packet.len() as u64 + 1) as usize;
            let (head, tail) = packet.split_at(cut);
            assert_eq!(check(&packet).is_ok(), expected, "{packet:x?}");
            assert_eq!(
                PacketValidator::check([head, tail]),
                check(&packet),
                "{packet:x?} cut at {cut}"
            );
        }
        assert!(
            good > 1_000 && bad > 1_000,
            "{good} good, {bad} bad: the generator does not do its job"
        );
    }
}
