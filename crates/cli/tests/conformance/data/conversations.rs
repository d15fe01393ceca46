//! The conversations about data.

use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_wire::Writer;

use super::{Chunk, Step, chunk, packet};

/// The conversations about data: name, policy, steps.
pub(super) fn conversations() -> Vec<(&'static str, FillPolicy, Vec<Step>)> {
    use FillPolicy::{DISCARD, RING_BUFFER};
    use Step::Read;
    let text = packet("a text in three parts");
    let (head, rest) = text.split_at(8);
    let (middle, tail) = rest.split_at(6);
    let chunks = |chunks: Vec<Chunk>| -> Vec<Step> {
        let mut steps: Vec<Step> = chunks.into_iter().map(Step::Chunk).collect();
        steps.push(Read);
        steps
    };
    let interleaved = |steps: Vec<Chunk>| -> Vec<Step> {
        steps
            .into_iter()
            .flat_map(|chunk| [Step::Chunk(chunk), Read])
            .collect()
    };
    let patch = |writer, chunk, offset, data: &[u8], more| Step::Patch {
        writer,
        chunk,
        offset,
        data: data.to_vec(),
        more,
    };
    let parts = || {
        [
            chunk(1, 0).whole("before").fragment(head).flags(2),
            chunk(1, 1).fragment(middle).flags(3),
            chunk(1, 2).fragment(tail).whole("after").flags(1),
        ]
    };
    let [first, second, third] = parts();
    let forged = |field: u32| {
        let mut packet = Writer::new();
        packet.varint_field(field, 1);
        packet.as_slice().to_vec()
    };
    vec![
        (
            "packets of several writers, some empty",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).whole("a").fragment(b"").whole("b"),
                chunk(2, 0).whole("c"),
                chunk(1, 1).whole("d"),
                chunk(2, 1).whole("e").whole("f"),
            ]),
        ),
        (
            "an empty chunk",
            RING_BUFFER,
            chunks(vec![chunk(1, 0).whole("a"), chunk(1, 1), chunk(1, 2).whole("b")]),
        ),
        ("a packet in three chunks", RING_BUFFER, chunks(parts().to_vec())),
        (
            "a packet in three chunks, read in between",
            RING_BUFFER,
            interleaved(parts().to_vec()),
        ),
        (
            "a packet in three chunks that come out of order",
            RING_BUFFER,
            chunks(vec![first.clone(), third.clone(), second.clone()]),
        ),
        (
            "a packet whose middle is missing",
            RING_BUFFER,
            chunks(vec![first.clone(), third.clone(), chunk(1, 3).whole("next")]),
        ),
        (
            "a packet whose start is missing",
            RING_BUFFER,
            chunks(vec![second.clone(), third.clone()]),
        ),
        (
            "a packet that is not continued",
            RING_BUFFER,
            chunks(vec![first.clone(), chunk(1, 1).whole("another")]),
        ),
        (
            "gaps",
            RING_BUFFER,
            [
                chunks(vec![chunk(1, 0).whole("0"), chunk(1, 2).whole("2")]),
                chunks(vec![
                    chunk(1, 3).whole("3"),
                    chunk(1, 7).whole("7"),
                    chunk(1, 8).whole("8"),
                ]),
            ]
            .concat(),
        ),
        (
            "ids that wrap around",
            RING_BUFFER,
            chunks(vec![
                chunk(1, u32::MAX - 1).whole("a"),
                chunk(1, u32::MAX).whole("b"),
                chunk(1, 0).whole("c"),
                chunk(1, 2).whole("e"),
                chunk(1, 1).whole("d"),
            ]),
        ),
        (
            "more than a ring holds",
            RING_BUFFER,
            chunks((0..30).map(|id| chunk(1, id).large(900 + id as usize)).collect()),
        ),
        (
            "more than a ring holds, of two writers, read in between",
            RING_BUFFER,
            (0..40)
                .flat_map(|id| {
                    let chunk = Step::Chunk(chunk(1 + (id % 2) as u16, id / 2).large(700 + 13 * id as usize));
                    let read = (id % 12 == 11).then_some(Read);
                    std::iter::once(chunk).chain(read)
                })
                .collect(),
        ),
        (
            "more than fits where nothing is overwritten",
            DISCARD,
            [
                chunks((0..12).map(|id| chunk(1, id).large(900)).collect()),
                chunks(vec![chunk(2, 0).whole("small, and too late")]),
            ]
            .concat(),
        ),
        (
            "patches hold up their own sequence only",
            RING_BUFFER,
            [
                chunks(vec![
                    chunk(1, 0).fragment(b"\xa2\x38\x00\x00\x00\x00").flags(2 | 4),
                    chunk(1, 1).fragment(b"\x0a\x04late").flags(1),
                    chunk(2, 0).whole("not held up"),
                ]),
                vec![
                    patch(1, 0, 3, &[0x86, 0x80, 0x80, 0x00], true),
                    Read,
                    patch(1, 0, 3, &[0x86, 0x80, 0x80, 0x00], false),
                    Read,
                ],
            ]
            .concat(),
        ),
        (
            "patches that find nothing",
            RING_BUFFER,
            vec![
                Step::Chunk(chunk(1, 0).whole("as it was")),
                patch(1, 1, 0, b"1234", false),
                patch(2, 0, 0, b"1234", false),
                patch(1, 0, 10_000, b"1234", false),
                patch(1, 0, 0, b"123", false),
                patch(0, 0, 0, b"1234", false),
                Read,
            ],
        ),
        (
            "a scraped chunk that is committed later",
            RING_BUFFER,
            [
                chunks(vec![
                    chunk(1, 0)
                        .whole("a")
                        .whole("b")
                        .whole("half")
                        .padded_to(500)
                        .scraped(),
                ]),
                chunks(vec![chunk(2, 0).whole("another")]),
                chunks(vec![
                    chunk(1, 0)
                        .whole("a")
                        .whole("b")
                        .whole("whole")
                        .whole("d")
                        .padded_to(500),
                ]),
                chunks(vec![chunk(1, 1).whole("e")]),
            ]
            .concat(),
        ),
        (
            "a scraped chunk that is scraped again before it is read",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).whole("a").whole("half").padded_to(500).scraped(),
                chunk(1, 0)
                    .whole("a")
                    .whole("b")
                    .whole("half")
                    .padded_to(500)
                    .scraped(),
                chunk(1, 0).whole("a").whole("b").whole("c").padded_to(500),
                chunk(1, 1).whole("d"),
            ]),
        ),
        (
            "the same chunk twice, before and after it is read",
            RING_BUFFER,
            [
                chunks(vec![chunk(1, 0).whole("a"), chunk(1, 0).whole("a")]),
                chunks(vec![chunk(1, 0).whole("a"), chunk(1, 1).whole("b")]),
            ]
            .concat(),
        ),
        (
            "a chunk again with less",
            RING_BUFFER,
            chunks(vec![chunk(1, 0).whole("a").whole("b"), chunk(1, 0).whole("a")]),
        ),
        (
            "a writer that gave up",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).whole("a").raw(&[0xff, 0xff, 0xff, 0x7f]),
                chunk(1, 1).whole("b"),
            ]),
        ),
        (
            "fragments that are not there",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).whole("a").raw(&[]).raw(&[]),
                chunk(2, 0).raw(&[0x7f, 1, 2]),
                chunk(3, 0).raw(&[0xff; 40]),
                chunk(4, 0).whole("b"),
            ]),
        ),
        (
            "packets that a producer may not write",
            RING_BUFFER,
            chunks(
                [3, 10, 33, 35, 36, 50, 69, 79, 98]
                    .iter()
                    .enumerate()
                    .map(|(id, field)| {
                        chunk(1, id as u32)
                            .whole("before")
                            .fragment(&forged(*field))
                            .whole("after")
                    })
                    .collect(),
            ),
        ),
        (
            "packets that are none",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).fragment(b"\x08"),
                chunk(1, 1).fragment(b"\xa2\x38\x7f"),
                chunk(1, 2).fragment(b"\x0b\x0c"),
                chunk(1, 3).whole("a packet"),
            ]),
        ),
        (
            "chunks for a buffer that the producer has no part in",
            RING_BUFFER,
            chunks(vec![
                chunk(1, 0).whole("astray").astray(),
                chunk(1, 0).whole("at home"),
            ]),
        ),
    ]
}
