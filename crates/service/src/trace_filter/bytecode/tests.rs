//! Bytecode of every kind, good and bad, and the resulting table.

use super::*;
use crate::trace_filter::tests::filter_bytecode::{self, Rule, encode};

fn table(words: &[u32]) -> Result<FieldTable, BytecodeError> {
    FieldTable::new(&decode(&encode(words))?, &Overlay::default())
}

fn good(words: &[u32]) -> FieldTable {
    table(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn with_overlay(messages: &[&[Rule]], overlay: &[u32]) -> Result<FieldTable, BytecodeError> {
    let overlay = Overlay::new(&decode(&encode(overlay))?)?;
    FieldTable::new(&decode(&filter_bytecode::bytecode(messages))?, &overlay)
}

fn overlaid(messages: &[&[Rule]], overlay: &[(u32, Rule)]) -> FieldTable {
    let words = decode(&filter_bytecode::overlay(overlay)).unwrap();
    with_overlay(messages, &words).unwrap()
}

/// The fields of a message below 3000 that are not dropped, and their actions.
fn kept(table: &FieldTable, message: u32) -> Vec<(u32, Action)> {
    (0..3000)
        .map(|field| (field, table.action(message, field)))
        .filter(|(_, action)| *action != Action::Drop)
        .collect()
}

fn keep(fields: &[u32]) -> Vec<(u32, Action)> {
    fields.iter().map(|field| (*field, Action::Keep)).collect()
}

const END: u32 = 0;

#[test]
fn the_last_message_must_end() {
    assert_eq!(table(&[1 << 3 | 1]).unwrap_err(), BytecodeError::NoEnd);
    assert_eq!(table(&[1]).unwrap_err(), BytecodeError::FieldZero(0));
    // The word that looks like an end is an argument.
    assert_eq!(table(&[1 << 3 | 2, END]).unwrap_err(), BytecodeError::NoEnd);
    assert_eq!(table(&[4 << 3 | 3, END]).unwrap_err(), BytecodeError::NoEnd);
    for opcode in [2, 3, 5] {
        assert_eq!(
            table(&[END, 2 << 3 | opcode]).unwrap_err(),
            BytecodeError::NoArgument(1)
        );
    }
}

#[test]
fn no_bytecode_is_none_and_no_message_keeps_nothing() {
    assert_eq!(decode(&[]).unwrap_err(), BytecodeError::Empty);
    let table = good(&[]);
    for (message, field) in [(0, 0), (0, 1), (0, u32::MAX), (1, 0), (42, 42), (u32::MAX, 1)] {
        assert_eq!(table.action(message, field), Action::Drop);
    }
}

#[test]
fn damaged_bytes_are_refused() {
    let good = encode(&[2 << 3 | 1, END]);
    // Bits of the checksum beyond the 32nd, which are in the last byte, do not count.
    for at in 0..good.len() - 1 {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(decode(&bad).is_err(), "bit {bit} of byte {at}");
        }
        assert!(decode(&good[..=at]).is_err(), "cut off behind {at}");
    }
    assert_eq!(decode(&[0x80; 11]).unwrap_err(), BytecodeError::BadVarint(0));
    assert_eq!(decode(b"\x05\x80").unwrap_err(), BytecodeError::BadVarint(1));
}

#[test]
fn single_fields_of_any_number_are_found() {
    assert_eq!(kept(&good(&[2 << 3 | 1, END]), 0), keep(&[2]));
    let low = [1, 7, 8, 127];
    let words: Vec<u32> = low.map(|field| field << 3 | 1).into_iter().chain([END]).collect();
    assert_eq!(kept(&good(&words), 0), keep(&low));
    let high = [1000, 1001, 2000];
    let words: Vec<u32> = high
        .map(|field| field << 3 | 1)
        .into_iter()
        .chain([END])
        .collect();
    assert_eq!(kept(&good(&words), 0), keep(&high));
    let largest = u32::MAX >> 3;
    assert_eq!(good(&[largest << 3 | 1, END]).action(0, largest), Action::Keep);
}

#[test]
fn every_opcode_has_its_action_and_others_are_refused() {
    let rules = [
        Rule::Keep(1),
        Rule::Text(2),
        Rule::TextOf(3, 7),
        Rule::Nested(4, 0),
        Rule::TextOf(200, 0x1_0003),
        Rule::Nested(300, 0),
    ];
    let words = decode(&filter_bytecode::bytecode(&[&rules])).unwrap();
    let expected = [
        (1, Action::Keep),
        (2, Action::Text(0)),
        (3, Action::Text(7)),
        (4, Action::Message(0)),
        (200, Action::Text(3)),
        (300, Action::Message(0)),
    ];
    assert_eq!(kept(&good(&words), 0), expected);
    for opcode in [6, 7] {
        let error = table(&[1 << 3 | opcode, END]).unwrap_err();
        assert_eq!(error, BytecodeError::UnknownOpcode { word: 0, opcode });
    }
}

#[test]
fn ranges_reach_across_the_border_of_direct_fields() {
    let of = |rules: &[Rule]| {
        let words = decode(&filter_bytecode::bytecode(&[rules])).unwrap();
        kept(&good(&words), 0)
    };
    assert_eq!(
        of(&[
            Rule::KeepRange(2, 0),
            Rule::KeepRange(127, 0),
            Rule::KeepRange(128, 0),
            Rule::KeepRange(128, 0)
        ]),
        []
    );
    assert_eq!(
        of(&[Rule::KeepRange(2, 1), Rule::KeepRange(10, 5)]),
        keep(&[2, 10, 11, 12, 13, 14])
    );
    let mixed = [
        Rule::KeepRange(1, 2),
        Rule::Keep(4),
        Rule::KeepRange(126, 4),
        Rule::Keep(150),
    ];
    assert_eq!(of(&mixed), keep(&[1, 2, 4, 126, 127, 128, 129, 150]));
    // Going round keeps nothing, as upstream.
    assert_eq!(
        of(&[Rule::KeepRange(5, u32::MAX), Rule::KeepRange(200, u32::MAX)]),
        []
    );
}

#[test]
fn ranges_must_be_in_order_and_apart() {
    for rules in [
        [Rule::KeepRange(130, 10), Rule::KeepRange(139, 2)],
        [Rule::KeepRange(130, 10), Rule::Keep(139)],
        [Rule::Keep(500), Rule::Keep(400)],
        [Rule::Keep(500), Rule::Keep(500)],
    ] {
        let words = decode(&filter_bytecode::bytecode(&[&rules])).unwrap();
        assert!(
            matches!(table(&words), Err(BytecodeError::Overlap { message: 0, .. })),
            "{rules:?}"
        );
    }
    // Ranges may touch, and may overlap ranges of another message.
    let apart = filter_bytecode::bytecode(&[
        &[Rule::KeepRange(130, 10), Rule::KeepRange(140, 2)],
        &[Rule::Keep(130)],
    ]);
    assert_eq!(kept(&good(&decode(&apart).unwrap()), 0).len(), 12);
}

#[test]
fn nested_messages_are_found_by_their_index_even_in_circles() {
    assert_eq!(
        table(&[4 << 3 | 3, 1, END]).unwrap_err(),
        BytecodeError::NoSuchMessage { index: 1, count: 1 }
    );
    let words = decode(&filter_bytecode::bytecode(&[
        &[
            Rule::KeepRange(1, 2),
            Rule::Nested(4, 3),
            Rule::Keep(10),
            Rule::Nested(127, 1),
            Rule::Nested(128, 2),
        ],
        &[Rule::Nested(2, 1), Rule::Keep(11)],
        &[Rule::Nested(2, 3)],
        &[Rule::Nested(2, 2)],
    ]))
    .unwrap();
    let table = good(&words);
    let nested = |field, message| (field, Action::Message(message));
    assert_eq!(
        kept(&table, 0),
        [
            &keep(&[1, 2])[..],
            &[nested(4, 3)],
            &keep(&[10]),
            &[nested(127, 1), nested(128, 2)]
        ]
        .concat()
    );
    assert_eq!(kept(&table, 1), [&[nested(2, 1)][..], &keep(&[11])].concat());
    assert_eq!(kept(&table, 2), [nested(2, 3)]);
    assert_eq!(kept(&table, 3), [nested(2, 2)]);
    assert_eq!(kept(&table, 4), []);
}

#[test]
fn a_table_takes_no_more_memory_than_is_allowed() {
    // Four bytes of bytecode for 128 entries.
    let words = |messages| [127 << 3 | 1, END].repeat(messages);
    let most = limits::MAX_FILTER_TABLE_ENTRIES / 129;
    assert!(table(&words(most)).is_ok());
    assert_eq!(table(&words(most + 1)).unwrap_err(), BytecodeError::TooLarge);
    let ends = vec![END; limits::MAX_FILTER_TABLE_ENTRIES + 1];
    assert_eq!(table(&ends).unwrap_err(), BytecodeError::TooLarge);
}

#[test]
fn an_overlay_changes_fields_and_adds_others() {
    let base: &[Rule] = &[Rule::Keep(1), Rule::Keep(3), Rule::Keep(5), Rule::Keep(10)];
    let table = overlaid(
        &[base],
        &[
            (0, Rule::Text(2)),
            (0, Rule::TextOf(5, 3)),
            (0, Rule::Keep(7)),
            (0, Rule::Text(12)),
            (0, Rule::Text(200)),
        ],
    );
    let expected = [
        (1, Action::Keep),
        (2, Action::Text(0)),
        (3, Action::Keep),
        (5, Action::Text(3)),
        (7, Action::Keep),
        (10, Action::Keep),
        (12, Action::Text(0)),
        (200, Action::Text(0)),
    ];
    assert_eq!(kept(&table, 0), expected);
}

#[test]
fn an_overlay_reaches_every_message() {
    let table = overlaid(
        &[&[Rule::Keep(1)], &[Rule::Keep(2), Rule::Nested(300, 0)]],
        &[
            (0, Rule::Text(3)),
            (1, Rule::Text(4)),
            (1, Rule::Text(250)),
            (1, Rule::Text(300)),
        ],
    );
    assert_eq!(kept(&table, 0), [(1, Action::Keep), (3, Action::Text(0))]);
    assert_eq!(
        kept(&table, 1),
        [
            (2, Action::Keep),
            (4, Action::Text(0)),
            (250, Action::Text(0)),
            (300, Action::Text(0))
        ]
    );
}

#[test]
fn an_overlay_may_be_empty_and_replaces_single_fields_of_low_ranges() {
    let base: &[&[Rule]] = &[&[Rule::KeepRange(1, 3)]];
    assert_eq!(kept(&overlaid(base, &[]), 0), keep(&[1, 2, 3]));
    let table = overlaid(base, &[(0, Rule::Text(2))]);
    assert_eq!(
        kept(&table, 0),
        [(1, Action::Keep), (2, Action::Text(0)), (3, Action::Keep)]
    );
    // Above the border that is an overlap, as upstream has it.
    let error = with_overlay(&[&[Rule::KeepRange(150, 9)]], &[0, 152 << 3 | 4, 0]).unwrap_err();
    assert!(matches!(error, BytecodeError::Overlap { .. }));
}

#[test]
fn bad_overlays_are_refused() {
    let base: &[&[Rule]] = &[&[Rule::Keep(1)], &[Rule::Keep(2)]];
    let refused = |words: &[u32]| with_overlay(base, words).unwrap_err();
    for opcode in [0, 2, 3, 6, 7] {
        assert_eq!(
            refused(&[0, 1 << 3 | opcode, 0]),
            BytecodeError::UnknownOpcode { word: 1, opcode }
        );
    }
    assert_eq!(refused(&[0]), BytecodeError::NotTriples(1));
    assert_eq!(refused(&[0, 1 << 3 | 1, 0, 0]), BytecodeError::NotTriples(4));
    let text = |field: u32| field << 3 | 4;
    assert_eq!(
        refused(&[1, text(3), 0, 0, text(4), 0]),
        BytecodeError::NotSorted(3)
    );
    assert_eq!(
        refused(&[0, text(4), 0, 0, text(4), 0]),
        BytecodeError::NotSorted(3)
    );
    assert_eq!(
        refused(&[0, text(4), 0, 0, text(3), 0]),
        BytecodeError::NotSorted(3)
    );
    assert_eq!(
        refused(&[1, text(4), 0, 2, text(3), 0]),
        BytecodeError::OverlayUnused(2)
    );
}

#[test]
fn semantic_types_that_look_like_other_opcodes_upstream_are_types() {
    for semantic_type in [0xfffe, 0xffff] {
        let action = good(&[1 << 3 | 5, semantic_type, END]).action(0, 1);
        assert_eq!(action, Action::Text(semantic_type as u16));
    }
}
