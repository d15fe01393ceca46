//! Kernel events that nothing follows from: those of tracepoints that the schema does not have, in both encodings, and one that it has.

use ferretto_wire::Writer;

use super::Numbers;

/// Tracepoints described in the trace have numbers from here on.
const DESCRIBED: u32 = 65_536;
const NOT_DESCRIBED: u32 = DESCRIBED + 7;
/// The fields of the described tracepoint: name and type, as in a `FieldDescriptorProto`.
const FIELDS: [(&[u8], u64); 8] = [
    (b"int64", 3),
    (b"uint64", 4),
    (b"int32", 5),
    (b"uint32", 13),
    (b"string", 9),
    (b"bytes", 12),
    (b"truth", 8),
    (b"sint64", 18),
];

/// Adds a message to an event.
pub(super) fn event(event: &mut Writer, numbers: &mut Numbers) {
    let big = u64::MAX - numbers.below(3);
    match numbers.below(4) {
        0 => event.nested(327, |generic| {
            generic.bytes_field(1, b"in_words");
            let mut field = |name: &[u8], number: u32, fill: &dyn Fn(&mut Writer)| {
                generic.nested(2, |field| {
                    field.bytes_field(1, name);
                    if number > 0 {
                        fill(field);
                    }
                });
            };
            field(b"text", 3, &|it| it.bytes_field(3, b"a text"));
            field(b"signed", 4, &|it| it.varint_field(4, big));
            field(b"unsigned", 5, &|it| it.varint_field(5, big));
            field(b"nothing", 0, &|_| {});
            field(b"text", 3, &|it| it.bytes_field(3, b"the later one"));
        }),
        1 => event.nested(DESCRIBED, |described| {
            for number in 1..=3 {
                described.varint_field(number, big);
            }
            described.varint_field(4, numbers.below(1 << 32));
            described.bytes_field(5, b"a text");
            described.bytes_field(6, b"bytes");
            described.varint_field(7, 1);
            described.varint_field(8, numbers.below(1 << 40));
            if numbers.one_in(3) {
                described.varint_field(9, 1);
            }
        }),
        2 => event.nested(NOT_DESCRIBED, |unknown| unknown.varint_field(1, 1)),
        // `ext4_da_write_begin`, with a field that it does not have.
        _ => event.nested(41, |write| {
            for number in 1..=5 {
                write.varint_field(number, numbers.below(1 << 20));
            }
            write.varint_field(30, 1);
        }),
    }
}

/// Describes the tracepoint that is described, and one with a type that does not exist.
pub(super) fn descriptors(bundle: &mut Writer) {
    for (number, name, wrong) in [(DESCRIBED, &b"described"[..], 0), (NOT_DESCRIBED, b"wrong", 99)] {
        bundle.nested(11, |descriptor| {
            descriptor.varint_field(1, number.into());
            descriptor.bytes_field(3, b"group");
            descriptor.nested(2, |message| {
                message.bytes_field(1, name);
                for (number, (name, kind)) in (1..).zip(FIELDS) {
                    message.nested(2, |field| {
                        field.bytes_field(1, name);
                        field.varint_field(3, number);
                        field.varint_field(5, kind + wrong);
                    });
                }
            });
        });
    }
}
