//! Messages through filters, one by one and against a naive filter.

use super::*;
use crate::trace_filter::bytecode::{Overlay, decode};
use crate::trace_filter::strings::{Policy, SemanticTypes};
use crate::trace_filter::tests::filter_bytecode::{Rule, bytecode};
use ferretto_wire::{Writer, push_varint};

/// A filter of these messages, the first of which is the root. In a string that begins with an `s`, the rest is hidden.
struct Filter {
    table: FieldTable,
    strings: StringFilter,
    stack: Vec<Outer>,
    groups: Groups,
}

impl Filter {
    fn new(messages: &[&[Rule]]) -> Filter {
        let words = decode(&bytecode(messages)).unwrap();
        let mut strings = StringFilter::new(crate::limits::MAX_REGEX_MEMORY);
        strings
            .add(
                Policy::MatchRedactGroups,
                r"s([^\n]*)",
                "",
                "",
                SemanticTypes::UNSPECIFIED,
            )
            .unwrap();
        Filter {
            table: FieldTable::new(&words, &Overlay::default()).unwrap(),
            groups: strings.groups(),
            strings,
            stack: Vec::new(),
        }
    }

    fn from(&mut self, root: u32, message: &[u8]) -> Result<Vec<u8>, Unfilterable> {
        let mut bytes = message.to_vec();
        let size = filter_in_place(
            &self.table,
            &self.strings,
            root,
            &mut bytes,
            &mut self.stack,
            &mut self.groups,
        )?;
        bytes.truncate(size);
        Ok(bytes)
    }

    fn of(&mut self, message: &[u8]) -> Result<Vec<u8>, Unfilterable> {
        self.from(0, message)
    }
}

fn message(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new();
    fill(&mut writer);
    writer.as_slice().to_vec()
}

#[test]
fn fields_of_every_kind_stay_or_go() {
    let mut filter = Filter::new(&[
        &[
            Rule::Keep(1),
            Rule::Keep(3),
            Rule::Nested(6, 1),
            Rule::KeepRange(11, 10),
        ],
        &[Rule::Keep(2), Rule::Keep(5)],
    ]);
    let numbers = |writer: &mut Writer| {
        for (field, value) in [(11, i32::MIN as i64), (12, i64::MIN), (13, i64::MAX), (14, 0)] {
            writer.varint_field(field, value as u64);
        }
        for field in [15, 16] {
            writer.fixed32_field(field, u32::MAX - field);
        }
        for field in [17, 18] {
            writer.fixed64_field(field, u64::MAX - u64::from(field));
        }
    };
    let whole = message(|writer| {
        writer.varint_field(1, -1_000_000_000i64 as u64);
        writer.varint_field(2, 42);
        writer.bytes_field(3, b"foobar");
        writer.fixed32_field(4, 10);
        numbers(writer);
        writer.nested(6, |nested| {
            nested.fixed64_field(1, 10);
            nested.fixed32_field(2, 7);
            nested.bytes_field(4, b"stripped");
            nested.bytes_field(5, b"");
        });
    });
    let stays = message(|writer| {
        writer.varint_field(1, -1_000_000_000i64 as u64);
        writer.bytes_field(3, b"foobar");
        numbers(writer);
        writer.nested(6, |nested| {
            nested.fixed32_field(2, 7);
            nested.bytes_field(5, b"");
        });
    });
    for _ in 0..3 {
        assert_eq!(filter.of(&whole).as_deref(), Ok(&stays[..]));
        assert_eq!(filter.of(&stays).as_deref(), Ok(&stays[..]));
    }
}

#[test]
fn a_field_that_is_kept_keeps_all_its_contents() {
    let mut filter = Filter::new(&[&[Rule::Keep(2), Rule::Nested(3, 1)], &[Rule::Keep(3)]]);
    let inside = message(|writer| {
        writer.varint_field(3, 100);
        writer.bytes_field(99, b"in no schema");
    });
    let whole = message(|writer| {
        writer.bytes_field(2, &inside);
        writer.bytes_field(3, &inside);
    });
    let stays = message(|writer| {
        writer.bytes_field(2, &inside);
        writer.nested(3, |nested| nested.varint_field(3, 100));
    });
    assert_eq!(filter.of(&whole), Ok(stays));
    assert_eq!(
        filter.of(b"\x12\x01\xff").as_deref(),
        Ok(&b"\x12\x01\xff"[..]),
        "not a message"
    );
}

#[test]
fn numbers_are_kept_only_by_rules_for_plain_fields() {
    let mut filter = Filter::new(&[&[Rule::Text(1), Rule::Nested(2, 0), Rule::Keep(3)]]);
    let numbers = |field: u32| {
        message(|writer| {
            writer.varint_field(field, 1);
            writer.fixed32_field(field, 1);
            writer.fixed64_field(field, 1);
        })
    };
    assert_eq!(filter.of(&numbers(1)).as_deref(), Ok(&[][..]));
    assert_eq!(filter.of(&numbers(2)).as_deref(), Ok(&[][..]));
    assert_eq!(filter.of(&numbers(3)), Ok(numbers(3)));
}

#[test]
fn any_message_can_be_the_root() {
    let mut filter = Filter::new(&[
        &[Rule::Keep(1), Rule::Nested(2, 1)],
        &[Rule::Keep(3), Rule::Nested(4, 2)],
        &[Rule::Keep(5)],
    ]);
    let whole = message(|writer| {
        for field in [1, 3, 5] {
            writer.varint_field(field, u64::from(100 + field));
        }
        writer.nested(4, |nested| nested.varint_field(5, 205));
    });
    assert_eq!(filter.from(0, &whole).as_deref(), Ok(&b"\x08\x65"[..]));
    assert_eq!(
        filter.from(1, &whole).as_deref(),
        Ok(&b"\x18\x67\x22\x03\x28\xcd\x01"[..])
    );
    assert_eq!(filter.from(2, &whole).as_deref(), Ok(&b"\x28\x69"[..]));
    assert_eq!(
        filter.from(3, &whole).as_deref(),
        Ok(&[][..]),
        "one that is not there keeps nothing"
    );
}

#[test]
fn strings_are_filtered_where_they_stay() {
    let mut filter = Filter::new(&[
        &[Rule::Keep(1), Rule::Text(2), Rule::Nested(3, 1)],
        &[Rule::Keep(1), Rule::Text(2), Rule::TextOf(3, 4)],
    ]);
    let with = |hidden: &[u8]| {
        message(|writer| {
            writer.bytes_field(1, b"secret");
            writer.bytes_field(2, hidden);
            writer.nested(3, |nested| {
                nested.bytes_field(2, hidden);
                nested.bytes_field(3, b"secret");
                nested.bytes_field(2, b"");
            });
            writer.bytes_field(2, b"not this one");
        })
    };
    let mut whole = with(b"secret");
    assert_eq!(filter.of(&whole), Ok(with(b"sP60RE")));
    // Fields before it do not matter.
    whole.splice(0..0, b"\xc0\x3e\x01".to_vec());
    assert_eq!(filter.of(&whole), Ok(with(b"sP60RE")));
}

#[test]
fn bytes_that_are_no_message_are_refused_and_the_next_message_is_not() {
    let mut filter = Filter::new(&[
        &[Rule::Keep(1), Rule::Keep(2), Rule::Nested(3, 1)],
        &[Rule::Keep(4), Rule::Keep(5)],
    ]);
    let good = b"\x08\x2a\x1a\x05\x25\0\0\0\x01\x38\x42";
    for bad in [
        &b"\x52\x21\xa0\xa4"[..],          // A string that is cut off, of a field that goes.
        b"\x08\x2a\x08\xff",               // A number that does not end.
        b"\x08\x2a\x1a\x04\x25\0\0\0\x01", // A number that reaches out of its message.
        b"\x1a\x03\x2a\x02a\x08\x01",      // A string that does.
        b"\x1a\x01\x08\x01",               // A tag that does.
        b"\x08",                           // A tag without a number.
        b"\x0d\0\0\0",                     // A short fixed32.
        b"\x09\0\0\0\0\0\0\0",             // A short fixed64.
        b"\x0b\x0c",                       // A group.
        b"\x0e\0",                         // A wire type that does not exist.
        b"\x0f\0",                         // Another one.
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // Eleven bytes of a number.
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0", // Of a tag.
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // A length of 64 bits.
    ] {
        assert_eq!(filter.of(bad), Err(Unfilterable::Malformed), "{bad:02x?}");
        assert_eq!(filter.of(good).as_deref(), Ok(&good[..good.len() - 2]));
    }
}

#[test]
fn rubbish_in_dropped_fields_does_not_matter() {
    let mut filter = Filter::new(&[&[Rule::Keep(1)]]);
    assert_eq!(
        filter.of(b"\x12\x03\xff\xff\xff\x08\x01").as_deref(),
        Ok(&b"\x08\x01"[..])
    );
}

#[test]
fn field_numbers_that_do_not_exist_are_cut_out_even_if_their_low_bits_are_allowed() {
    // As many fields as there are, and more than that.
    for count in [u32::MAX >> 3, u32::MAX >> 1] {
        let mut filter = Filter::new(&[&[Rule::KeepRange(1, count)]]);
        let largest = b"\xf8\xff\xff\xff\x0f\x01";
        assert_eq!(filter.of(largest).as_deref(), Ok(&largest[..]));
        for tag in [0, 1 << 32, 1 << 32 | 1 << 3, 1 << 34, 1 << 35 | 1 << 3, !7] {
            let bytes = message(|writer| {
                writer.varint(tag);
                writer.varint(5);
                writer.varint(tag | 2);
                writer.varint(2);
                writer.raw(b"\x08\x01");
                writer.varint_field(1, 9);
            });
            assert_eq!(filter.of(&bytes).as_deref(), Ok(&b"\x08\x09"[..]), "{tag:#x}");
        }
    }
}

#[test]
fn superfluous_bytes_of_tags_numbers_and_lengths_go() {
    let mut filter = Filter::new(&[
        &[Rule::Keep(1), Rule::Text(2), Rule::Nested(3, 1)],
        &[Rule::Keep(1)],
    ]);
    for (bytes, expected) in [
        (&b"\x88\x80\x00\x01"[..], &b"\x08\x01"[..]),
        (b"\x08\x81\x80\x80\x00", b"\x08\x01"),
        (b"\x8d\x00abcd", b"\x0dabcd"),
        (b"\x12\x83\x00sbc\x0a\x81\x00x", b"\x12\x03sP6\x0a\x01x"),
        // The length of a message keeps the bytes that its length before needs.
        (b"\x1a\x84\x00\x88\x00\x81\x00", b"\x1a\x02\x08\x01"),
        // More bits than there are in a number.
        (
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ),
    ] {
        assert_eq!(filter.of(bytes).as_deref(), Ok(expected), "{bytes:02x?}");
    }
}

#[test]
fn the_length_of_a_message_takes_the_bytes_that_it_needed_before() {
    let mut filter = Filter::new(&[&[Rule::Nested(1, 1)], &[Rule::Keep(1)]]);
    let whole = message(|writer| {
        writer.nested(1, |nested| {
            nested.varint_field(1, 5);
            nested.bytes_field(2, &[0; 200]);
        });
    });
    assert_eq!(filter.of(&whole).as_deref(), Ok(&b"\x0a\x82\x00\x08\x05"[..]));
}

#[test]
fn messages_may_be_nested_up_to_the_limit() {
    let mut filter = Filter::new(&[&[Rule::Nested(1, 0), Rule::Keep(2)]]);
    let nested = |depth: usize| {
        (0..depth).fold(b"\x10\x01".to_vec(), |inner, _| {
            message(|writer| writer.bytes_field(1, &inner))
        })
    };
    let deepest = nested(limits::MAX_FILTER_DEPTH);
    assert_eq!(filter.of(&deepest).as_deref(), Ok(&deepest[..]));
    assert_eq!(
        filter.of(&nested(limits::MAX_FILTER_DEPTH + 1)),
        Err(Unfilterable::TooDeep)
    );
    assert_eq!(filter.of(&deepest).as_deref(), Ok(&deepest[..]));
}

/// The same filter, by recursion and with a new message for each nested one.
mod naive {
    use super::*;

    fn varint<'a>(bytes: &mut &'a [u8]) -> Option<u64> {
        let size = 1 + bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        let (varint, rest): (&'a [u8], _) = bytes.split_at(size);
        *bytes = rest;
        let value = varint
            .iter()
            .rev()
            .fold(0u128, |value, byte| value << 7 | u128::from(byte & 0x7f));
        Some(value as u64)
    }

    fn put_varint(out: &mut Vec<u8>, mut value: u64, width: usize) {
        for index in 0.. {
            let last = value < 0x80 && index + 1 >= width;
            out.push(value as u8 & 0x7f | if last { 0 } else { 0x80 });
            value >>= 7;
            if last {
                return;
            }
        }
    }

    fn rule(rules: &[Rule], field: u64) -> Option<Rule> {
        rules.iter().copied().find(|rule| match *rule {
            Rule::KeepRange(first, count) => {
                (u64::from(first)..u64::from(first) + u64::from(count)).contains(&field)
            }
            Rule::Keep(number) | Rule::Nested(number, _) | Rule::Text(number) | Rule::TextOf(number, _) => {
                u64::from(number) == field
            }
        })
    }

    pub(super) fn filter(messages: &[&[Rule]], index: u32, mut message: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while !message.is_empty() {
            let tag = varint(&mut message)?;
            let rule = rule(messages[index as usize], tag >> 3);
            let keeps = matches!(rule, Some(Rule::Keep(_) | Rule::KeepRange(..)));
            match tag & 7 {
                0 => {
                    let value = varint(&mut message)?;
                    if keeps {
                        put_varint(&mut out, tag, 1);
                        put_varint(&mut out, value, 1);
                    }
                }
                wire_type @ (1 | 5) => {
                    let (value, rest) = message.split_at_checked(if wire_type == 1 { 8 } else { 4 })?;
                    message = rest;
                    if keeps {
                        put_varint(&mut out, tag, 1);
                        out.extend(value);
                    }
                }
                2 => {
                    let length = usize::try_from(varint(&mut message)?).ok()?;
                    let (body, rest) = message.split_at_checked(length)?;
                    message = rest;
                    let mut body = body.to_vec();
                    match rule {
                        None => continue,
                        Some(Rule::Nested(_, nested)) => body = filter(messages, nested, &body)?,
                        Some(Rule::Text(_)) if body.first() == Some(&b's') && !body.contains(&b'\n') => {
                            let mark = b"P60REDACTED".iter().chain(std::iter::repeat(&b'-'));
                            body = [b's'].iter().chain(mark).take(length).copied().collect();
                        }
                        Some(_) => {}
                    }
                    let mut width = Vec::new();
                    put_varint(&mut width, length as u64, 1);
                    put_varint(&mut out, tag, 1);
                    put_varint(&mut out, body.len() as u64, width.len());
                    out.extend(body);
                }
                _ => return None,
            }
        }
        Some(out)
    }
}

/// A generator of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn varint(&mut self, out: &mut Vec<u8>, value: u64) {
        push_varint(out, value);
        // More bytes than needed, now and then.
        if self.one_in(20) {
            let last = out.len() - 1;
            out[last] |= 0x80;
            out.push(0);
        }
    }

    fn message(&mut self, depth: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..self.below(6) {
            let field = [
                1,
                2,
                3,
                4,
                5,
                6,
                7,
                100,
                127,
                128,
                129,
                140,
                1000,
                1 << 28,
                0,
                1 << 40,
            ][self.below(16) as usize];
            let wire_type = if self.one_in(100) {
                self.below(8)
            } else {
                [0, 1, 2, 2, 2, 5][self.below(6) as usize]
            };
            self.varint(&mut out, field << 3 | wire_type);
            match wire_type {
                0 => {
                    let value = u64::MAX >> self.below(64);
                    self.varint(&mut out, value);
                }
                1 => out.extend([7; 8]),
                5 => out.extend([7; 4]),
                _ => {
                    let body = match self.below(4) {
                        0 => b"secrets of a name"[..self.below(18) as usize].to_vec(),
                        1 => vec![b'x'; self.below(300) as usize],
                        _ if depth > 0 => self.message(depth - 1),
                        _ => Vec::new(),
                    };
                    let off = u64::from(self.one_in(100));
                    self.varint(&mut out, body.len() as u64 + off);
                    out.extend(body);
                }
            }
        }
        out
    }

    fn rules(&mut self, messages: u32) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mut field = 0;
        loop {
            field += 1 + [0, 0, 0, 1, 2, 90, 25, 800][self.below(8) as usize];
            if field > 2000 {
                return rules;
            }
            rules.push(match self.below(8) {
                0 => {
                    let count = self.below(40) as u32;
                    field += count;
                    Rule::KeepRange(field - count, count)
                }
                1 | 2 => Rule::Text(field),
                3 => Rule::TextOf(field, 9),
                4 | 5 => Rule::Nested(field, self.below(messages.into()) as u32),
                _ => Rule::Keep(field),
            });
        }
    }
}

#[test]
fn random_messages_are_filtered_as_a_naive_filter_does() {
    let (mut refused, mut unchanged, mut changed) = (0, 0, 0);
    for seed in 1..=300u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let messages: Vec<Vec<Rule>> = (0..4).map(|_| random.rules(4)).collect();
        let messages: Vec<&[Rule]> = messages.iter().map(|rules| &rules[..]).collect();
        let mut filter = Filter::new(&messages);
        for _ in 0..100 {
            let bytes = random.message(4);
            let expected = naive::filter(&messages, 0, &bytes);
            let stays = filter.of(&bytes).ok();
            assert_eq!(stays, expected, "seed {seed}: {bytes:02x?} through {messages:?}");
            match stays {
                None => refused += 1,
                Some(stays) if stays == bytes => unchanged += 1,
                Some(stays) => {
                    changed += 1;
                    assert!(stays.len() <= bytes.len());
                    // Filtering the output again changes nothing but the bytes of lengths.
                    let again = filter.of(&stays).expect("it is a message");
                    assert_eq!(naive::filter(&messages, 0, &stays), Some(again), "seed {seed}");
                }
            }
        }
    }
    assert!(
        refused > 500 && unchanged > 1000 && changed > 5000,
        "{refused} refused, {unchanged} unchanged, {changed} changed: the generator does not do its job"
    );
}
