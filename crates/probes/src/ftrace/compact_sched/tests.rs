use super::super::fixtures::format_of;
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #[test]
    fn columns_hold_what_the_wire_format_says(values in prop::collection::vec((any::<u64>(), 0u32..64, any::<bool>()), 0..900)) {
        let (mut columns, mut expected) = (Columns::<1>::default(), Writer::new());
        for (value, shift, mostly_small) in values {
            let value = value >> shift;
            let [column] = columns.row();
            if mostly_small {
                column.push_mostly_small(value);
            } else {
                column.push(value);
            }
            expected.varint(value);
        }
        prop_assert_eq!(columns.columns[0].len(), expected.len());
        columns.spill();
        prop_assert_eq!(&columns.columns[0].spilled, expected.as_slice());
    }

    #[test]
    fn equal_names_share_an_index_and_others_do_not(names in prop::collection::vec((0u32..900, any::<[u8; 4]>(), any::<bool>()), 0..1500)) {
        let mut table = NameTable::default();
        for _ in 0..2 {
            let mut model: HashMap<Vec<u8>, u32> = HashMap::new();
            for (number, garbage, dirty) in &names {
                let clean = format!("thread-{number}").into_bytes();
                let mut bytes = [0u8; NAME_LEN];
                bytes[..clean.len()].copy_from_slice(&clean);
                if *dirty {
                    bytes[12..].copy_from_slice(garbage);
                }
                let next = model.len() as u32;
                let expected = *model.entry(clean.clone()).or_insert(next);
                prop_assert_eq!(table.intern(bytes), expected);
                prop_assert_eq!(table.names[expected as usize].as_bytes(), &clean);
            }
            prop_assert_eq!(table.names.len(), model.len());
            table.clear();
        }
    }

    #[test]
    fn unusual_layouts_give_the_same_columns(
        events in prop::collection::vec((any::<u32>(), any::<i32>(), any::<i32>(), any::<[u8; 16]>()), 0..40),
    ) {
        // As if the kernel had moved all fields up by four bytes.
        let usual = EventFormat::parse(format_of("sched", "sched_switch")).unwrap();
        let mut moved = usual.clone();
        moved.fields.iter_mut().for_each(|field| field.offset += 4);
        let formats = [usual, moved].map(|format| SwitchFormat::of(&format).unwrap());
        prop_assert_eq!(formats.map(|format| format.layout), [Layout::Usual, Layout::Other]);

        let written = [(formats[0], 0), (formats[1], 4)].map(|(format, shift)| {
            let (mut compact, mut metadata, mut out) = (CompactSched::default(), Metadata::default(), Writer::new());
            for (timestamp, pid, prio, name) in &events {
                let mut payload = [0u8; 68];
                payload[32 + shift..][..8].copy_from_slice(&i64::from(*prio).to_le_bytes());
                payload[40 + shift..][..16].copy_from_slice(name);
                payload[56 + shift..][..4].copy_from_slice(&pid.to_le_bytes());
                payload[60 + shift..][..4].copy_from_slice(&prio.to_le_bytes());
                compact.add_switch(&format, (*timestamp).into(), &payload[..64 + shift], &mut metadata).unwrap();
            }
            compact.write(&mut out);
            (out.as_slice().to_vec(), metadata.threads().to_vec())
        });
        prop_assert_eq!(&written[0], &written[1]);
    }

    #[test]
    fn the_announced_length_is_the_written_one(events in prop::collection::vec((any::<bool>(), any::<u32>(), any::<i32>(), any::<i32>(), any::<[u8; 16]>()), 0..200)) {
        let switch_format = SwitchFormat::of(&EventFormat::parse(format_of("sched", "sched_switch")).unwrap()).unwrap();
        let waking_format = WakingFormat::of(&EventFormat::parse(format_of("sched", "sched_waking")).unwrap()).unwrap();
        let (mut compact, mut metadata, mut now) = (CompactSched::default(), Metadata::default(), 0);
        for (is_switch, delta, pid, number, name) in events {
            now += u64::from(delta);
            let mut payload = [0u8; 64];
            if is_switch {
                payload[32..40].copy_from_slice(&i64::from(number).to_le_bytes());
                payload[40..56].copy_from_slice(&name);
                payload[56..60].copy_from_slice(&pid.to_le_bytes());
                prop_assert_eq!(compact.add_switch(&switch_format, now, &payload, &mut metadata), Ok(()));
            } else {
                payload[8..24].copy_from_slice(&name);
                payload[24..28].copy_from_slice(&pid.to_le_bytes());
                payload[28..32].copy_from_slice(&number.to_le_bytes());
                prop_assert_eq!(compact.add_waking(&waking_format, now, &payload, &mut metadata), Ok(()));
            }
        }
        let announced = compact.encoded_len();
        let mut out = Writer::new();
        compact.write(&mut out);
        prop_assert_eq!(out.len(), announced);
        compact.clear();
        prop_assert!(compact.is_empty() && compact.encoded_len() == 0);
    }
}

#[test]
fn a_name_without_a_nul_is_taken_whole_and_no_further() {
    let mut table = NameTable::default();
    assert_eq!(table.intern(*b"sixteen-letters!"), 0);
    assert_eq!(table.names[0].as_bytes(), b"sixteen-letters!");
}

#[test]
fn the_table_starts_over_when_generations_run_out() {
    let mut table = NameTable::default();
    table.intern(*b"old\0\0\0\0\0\0\0\0\0\0\0\0\0");
    table.generation = u32::MAX;
    table.clear();
    assert_eq!(table.intern(*b"new\0\0\0\0\0\0\0\0\0\0\0\0\0"), 0);
    assert_eq!(
        table.find(b"old\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        None,
        "of generation 1 before, and not of this one"
    );
}

#[test]
fn formats_with_unexpected_fields_are_not_compacted() {
    let switch = |from: &str, to: &str| {
        SwitchFormat::of(&EventFormat::parse(&format_of("sched", "sched_switch").replace(from, to)).unwrap())
    };
    assert!(switch("", "").is_some());
    assert!(
        switch(
            "long prev_state;\toffset:32;\tsize:8",
            "int prev_state;\toffset:32;\tsize:4"
        )
        .is_some()
    );
    assert_eq!(
        switch(
            "long prev_state;\toffset:32;\tsize:8",
            "short prev_state;\toffset:32;\tsize:2"
        ),
        None
    );
    assert_eq!(
        switch(
            "char next_comm[16];\toffset:40;\tsize:16",
            "char next_comm[8];\toffset:40;\tsize:8"
        ),
        None
    );
    assert_eq!(switch("next_pid", "new_pid"), None);
    let waking = |from: &str, to: &str| {
        WakingFormat::of(&EventFormat::parse(&format_of("sched", "sched_waking").replace(from, to)).unwrap())
    };
    assert!(waking("", "").is_some());
    assert_eq!(waking("common_flags", "common_bits"), None);
    assert_eq!(waking("int target_cpu", "unsigned target_cpu_id"), None);
}

#[test]
fn an_event_that_is_too_short_leaves_no_trace() {
    let format = SwitchFormat::of(&EventFormat::parse(format_of("sched", "sched_switch")).unwrap()).unwrap();
    let (mut compact, mut metadata) = (CompactSched::default(), Metadata::default());
    let mut payload = [0u8; 64];
    payload[56] = 9;
    for len in 0..64 {
        assert_eq!(
            compact.add_switch(&format, 1, &payload[..len], &mut metadata),
            Err(TooShort)
        );
    }
    assert!(compact.is_empty() && metadata.threads().is_empty());
    assert_eq!(compact.add_switch(&format, 1, &payload, &mut metadata), Ok(()));
    assert_eq!(metadata.threads(), [9]);
}
