//! The effects of instructions, and the consequences of an instruction that cannot be carried out.

use super::*;

/// Fields of the patches of [`incremental`].
const TO_DELETE: u32 = 1;
const TO_MERGE: u32 = 2;
const TO_SET: u32 = 3;
/// Fields of its state: elements with an id and a value.
const ELEMENTS: u32 = 1;
const ID: u32 = 1;
const VALUE: u32 = 2;

/// Keeps a list of elements by their ids, as real programs do.
fn incremental() -> Vec<VmInstruction> {
    let changes = |patches: u32, change: VmInstruction| {
        src(&[each(patches)])
            .then(src(&[field(ID)]).then(load(0)))
            .then(make(&[field(ELEMENTS), keyed(ID, 0)]).then(change))
    };
    vec![
        src(&[each(TO_DELETE)])
            .then(load(0))
            .then(dst(&[field(ELEMENTS), keyed(ID, 0)]).then(del())),
        changes(TO_MERGE, merge()),
        changes(TO_SET, set()),
    ]
}

fn element(id: u64) -> Fields {
    Fields::new().number(ID, id)
}

fn with_value(id: u64, value: u64) -> Fields {
    element(id).number(VALUE, value)
}

fn two_elements() -> Fields {
    Fields::new()
        .message(TO_SET, with_value(0, 10))
        .message(TO_SET, with_value(1, 11))
}

#[test]
fn elements_are_set_merged_and_deleted_by_their_keys() {
    let mut machine = Machine::new(incremental());
    machine.has_state(&Fields::new());
    machine.merges(&two_elements());
    let state = Fields::new()
        .message(ELEMENTS, with_value(0, 10))
        .message(ELEMENTS, with_value(1, 11));
    machine.has_state(&state);
    // A merge keeps fields that the patch lacks. A set keeps no field.
    machine.merges(
        &Fields::new()
            .message(TO_MERGE, element(0))
            .message(TO_MERGE, with_value(7, 17))
            .message(TO_SET, element(1)),
    );
    let state = Fields::new()
        .message(ELEMENTS, with_value(0, 10))
        .message(ELEMENTS, element(1))
        .message(ELEMENTS, with_value(7, 17));
    machine.has_state(&state);
    machine.merges(&Fields::new().number(TO_DELETE, 0).number(TO_DELETE, 5));
    let state = Fields::new()
        .message(ELEMENTS, element(1))
        .message(ELEMENTS, with_value(7, 17));
    machine.has_state(&state);
}

#[test]
fn an_abort_says_where_and_why_and_leaves_earlier_changes() {
    let mut machine = Machine::new(incremental());
    machine.merges(&two_elements());
    let before = machine.state();
    let patch = Fields::new()
        .number(TO_DELETE, 0)
        .message(TO_DELETE, Fields::new());
    assert_eq!(
        machine.aborts(&patch),
        "instructions[0].nested_instructions[0]: the field of the packet is no number"
    );
    assert_ne!(machine.state(), before, "the first was deleted");
    machine.has_state(&Fields::new().message(ELEMENTS, with_value(1, 11)));
    machine.merges(&Fields::new().message(TO_SET, with_value(2, 12)));
}

#[test]
fn the_state_can_be_deleted_within_any_selection() {
    let mut machine = Machine::new(vec![set(), dst(&[]).then(src(&[]).then(del()))]);
    machine.merges(&two_elements());
    machine.has_state(&Fields::new());
    assert_eq!(machine.0.memory_used(), 0);
}

#[test]
fn a_selection_cannot_delete_an_enclosing_one() {
    let inner = [src(&[field(TO_SET)]), dst(&[]), src(&[])];
    for inner in inner {
        let mut machine = Machine::new(vec![make(&[field(1)]).then(inner.then(del()))]);
        let why = machine.aborts(&two_elements());
        assert!(why.contains("still selected outside"), "{why}");
    }
    let mut machine = Machine::new(vec![make(&[field(1)]).then(make(&[field(2)]).then(del()))]);
    machine.merges(&two_elements());
    machine.has_state(&Fields::new().message(1, Fields::new()));
}

#[test]
fn a_deleted_element_cannot_be_used_and_is_gone_afterwards() {
    let uses = [del(), set(), merge(), make(&[field(1)]), load_from_state()];
    for usage in uses {
        for after in [del().then(usage.clone()), del()] {
            let mut machine = Machine::new(vec![make(&[field(1)]).then(after).then(usage.clone())]);
            let why = machine.aborts(&two_elements());
            assert!(why.contains("was deleted"), "{why}");
            machine.has_state(&Fields::new());
            assert_eq!(machine.0.memory_used(), 0);
        }
    }
}

fn load_from_state() -> VmInstruction {
    instruction(Operation::RegLoad(Box::new(VmOpRegLoad {
        cursor: Some(VmCursorEnum::VM_CURSOR_DST),
        ..Default::default()
    })))
}

#[test]
fn a_failure_goes_as_far_out_as_its_level_says() {
    const MISSING: u32 = 9;
    let mark = |number| make(&[field(number)]).then(src(&[field(1)]).then(set()));
    let packet = Fields::new().number(1, 7);
    let marked = |numbers: &[u32]| {
        numbers
            .iter()
            .fold(Fields::new(), |state, number| state.number(*number, 7))
    };
    let failing = || src(&[field(MISSING)]);

    let skip = AbortLevel::SKIP_CURRENT_INSTRUCTION;
    let mut machine = Machine::new(vec![mark(1), failing().on_failure(skip), mark(2)]);
    machine.merges(&packet);
    machine.has_state(&marked(&[1, 2]));

    let break_outer = AbortLevel::SKIP_CURRENT_INSTRUCTION_AND_BREAK_OUTER;
    for failing in [failing(), failing().on_failure(break_outer)] {
        let mut machine = Machine::new(vec![mark(1), failing.clone(), mark(2)]);
        machine.fails(&packet);
        machine.has_state(&marked(&[1]));
        // The instruction around it fails, and may be skipped.
        let outer = dst(&[]).then(failing).then(mark(3)).on_failure(skip);
        let mut machine = Machine::new(vec![outer, mark(2)]);
        machine.merges(&packet);
        machine.has_state(&marked(&[2]));
    }

    let abort = AbortLevel::ABORT;
    let inner = dst(&[]).then(failing().on_failure(abort)).on_failure(skip);
    let mut machine = Machine::new(vec![mark(1), inner, mark(2)]);
    let why = machine.aborts(&packet);
    assert_eq!(
        why,
        "instructions[1].nested_instructions[0]: it found nothing to work on, and its abort_level is ABORT"
    );
    machine.has_state(&marked(&[1]));
}

#[test]
fn levels_and_cursors_of_newer_programs_mean_the_same_as_in_upstream() {
    const ABORT_LEVEL: u32 = 6;
    const CURSOR: u32 = 1;
    // To go on.
    let mut failing = src(&[field(9)]);
    failing.unknown_fields.push_varint(ABORT_LEVEL, 77);
    let mut machine = Machine::new(vec![failing, set()]);
    machine.merges(&two_elements());
    machine.has_state(&two_elements());
    // The state, but for iterations.
    for path in [field(1), each(1)] {
        let mut select = VmOpSelect {
            relative_path: vec![path.clone()],
            create_if_not_exist: Some(true),
            ..Default::default()
        };
        select.unknown_fields.push_varint(CURSOR, 77);
        let selection = instruction(Operation::Select(Box::new(select))).then(set());
        let mut machine = Machine::new(vec![selection]);
        if path.is_repeated.is_some() {
            assert!(machine.aborts(&two_elements()).contains("is_repeated"));
        } else {
            machine.merges(&two_elements());
            machine.has_state(&Fields::new().message(1, two_elements()));
        }
    }
}

#[test]
fn a_faulty_instruction_aborts_when_it_is_reached() {
    let create_in_packet = {
        let mut select = make(&[field(1)]);
        if let Some(Operation::Select(select)) = &mut select.operation {
            select.cursor = None;
        }
        select
    };
    let without_register = PathComponent {
        register_to_match: None,
        ..keyed(1, 0)
    };
    let cases = [
        (VmInstruction::default(), "knows no such instruction"),
        (create_in_packet, "nothing can be created in a packet"),
        (dst(&[at(0)]), "no field_id"),
        (make(&[field(0)]), "no field can have the number 0"),
        (make(&[field(1 << 24)]), "no field can have the number 16777216"),
        (select(VmCursorEnum::VM_CURSOR_BOTH, &[each(1)]), "is_repeated"),
        (src(&[field(3), keyed(1, 0)]), "not found by key"),
        (make(&[field(1), without_register]), "needs a register_to_match"),
        (make(&[field(1), keyed(1, 32)]), "there is no register 32"),
        (
            make(&[field(1), keyed(1, 31)]),
            "nothing was loaded into register 31",
        ),
        (src(&[field(1)]).then(load(32)), "there is no register 32"),
        (load(0), "is no number"),
        (load_from_state(), "is no number"),
        (src(&[field(1), field(1)]), "is a number and no message"),
        (src(&[field(1), each(1)]), "is a number and no message"),
        (src(&[field(1)]).then(merge()), "is a number and no message"),
        (src(&[field(1)]).then(set()), "cannot become a number"),
    ];
    let packet = Fields::new().number(1, 7).message(3, Fields::new());
    for (instruction, why) in cases {
        let mut machine = Machine::new(vec![instruction.clone()]);
        let said = machine.aborts(&packet);
        assert!(said.contains(why), "{said}, not {why}: {instruction:?}");
        let unreached = src(&[field(9)]).then(instruction);
        Machine::new(vec![unreached]).fails(&packet);
    }
}

#[test]
fn registers_keep_their_values_for_later_packets() {
    let skip = AbortLevel::SKIP_CURRENT_INSTRUCTION;
    let mut machine = Machine::new(vec![
        src(&[field(1)]).then(load(31)).on_failure(skip),
        make(&[field(5), keyed(1, 31)]).then(set()),
    ]);
    machine.merges(&Fields::new().number(1, 4));
    machine.merges(&Fields::new().number(2, 8));
    machine.has_state(&Fields::new().message(5, Fields::new().number(2, 8)));
}

#[test]
fn a_number_stays_as_it_was_encoded() {
    let packet = Fields::new()
        .number(1, u64::MAX)
        .with(|out| out.fixed32_field(2, 32))
        .with(|out| out.fixed64_field(3, u64::MAX - 1));
    let copy = |number| src(&[field(number)]).then(make(&[field(number)]).then(set()));
    let mut machine = Machine::new(vec![copy(1), copy(2), copy(3)]);
    machine.merges(&packet);
    machine.has_state(&packet);
    let mut machine = Machine::new(vec![merge()]);
    machine.merges(&packet);
    machine.has_state(&packet);
}

#[test]
fn a_set_value_must_keep_its_kind() {
    let message_into_number = vec![
        make(&[field(1)]).then(src(&[field(1)]).then(set())),
        make(&[field(1)]).then(set()),
    ];
    let number_into_message = vec![
        make(&[field(1)]).then(set()),
        make(&[field(1)]).then(src(&[field(1)]).then(set())),
    ];
    let packet = Fields::new().number(1, 7);
    let why = Machine::new(message_into_number).aborts(&packet);
    assert!(why.contains("is a number and cannot become a message"), "{why}");
    let why = Machine::new(number_into_message).aborts(&packet);
    assert!(why.contains("cannot become a number"), "{why}");
    let empty = Fields::new().message(1, Fields::new());
    let mut machine = Machine::new(vec![src(&[field(1)]).then(make(&[field(2)]).then(set()))]);
    machine.merges(&empty);
    machine.has_state(&Fields::new().message(2, Fields::new()));
}

#[test]
fn a_merge_replaces_single_fields_and_all_elements_of_repeated_ones() {
    let mut machine = Machine::new(vec![merge()]);
    machine.merges(&Fields::new().number(1, 1).number(2, 2).message(3, element(3)));
    machine.merges(&Fields::new().number(2, 20).number(4, 40).number(4, 41));
    let kept = || Fields::new().number(1, 1).number(2, 20).message(3, element(3));
    machine.has_state(&kept().number(4, 40).number(4, 41));
    machine.merges(&Fields::new().number(4, 400));
    machine.has_state(&kept().number(4, 400));
    machine.merges(&Fields::new().number(4, 5).number(4, 6).number(4, 7));
    machine.has_state(&kept().number(4, 5).number(4, 6).number(4, 7));
    machine.merges(&Fields::new());
    machine.has_state(&kept().number(4, 5).number(4, 6).number(4, 7));
    // A single field may become repeated.
    machine.merges(&Fields::new().number(1, 8).number(1, 9));
    let repeated = Fields::new().number(1, 8).number(1, 9);
    machine.has_state(
        &repeated
            .number(2, 20)
            .message(3, element(3))
            .number(4, 5)
            .number(4, 6)
            .number(4, 7),
    );
}

#[test]
fn a_merge_may_keep_messages_that_were_entered() {
    let skipping = || merge_with(|merge| merge.skip_submessages = Some(true));
    let inner = || src(&[field(3)]).then(make(&[field(3)]).then(merge()));
    let packets = [
        Fields::new().number(1, 1).message(3, with_value(1, 2)),
        Fields::new().number(1, 5).message(3, element(7)),
    ];
    let mut machine = Machine::new(vec![inner(), skipping()]);
    packets.iter().for_each(|packet| machine.merges(packet));
    machine.has_state(&Fields::new().number(1, 5).message(3, with_value(7, 2)));
    let mut machine = Machine::new(vec![inner(), merge()]);
    packets.iter().for_each(|packet| machine.merges(packet));
    machine.has_state(&Fields::new().number(1, 5).message(3, element(7)));
}

#[test]
fn a_merge_may_delete_fields_that_are_empty_in_the_packet() {
    let deleting = |skip| {
        merge_with(|merge| {
            merge.del_if_src_empty = Some(true);
            merge.skip_submessages = Some(skip);
        })
    };
    for skip in [false, true] {
        let enter = make(&[field(3)]).on_failure(AbortLevel::SKIP_CURRENT_INSTRUCTION);
        let mut machine = Machine::new(vec![src(&[field(1)]).then(dst(&[]).then(enter)), deleting(skip)]);
        let full = Fields::new()
            .number(1, 1)
            .message(4, element(1))
            .message(4, element(2));
        machine.merges(&full);
        machine.merges(
            &Fields::new()
                .number(1, 1)
                .message(3, Fields::new())
                .message(4, Fields::new()),
        );
        machine.has_state(&Fields::new().number(1, 1));
        // A field that is not there is not deleted but made.
        machine.merges(&Fields::new().number(1, 1).message(5, Fields::new()));
        machine.has_state(&Fields::new().number(1, 1).message(5, Fields::new()));
    }
}

#[test]
fn elements_by_key_cannot_be_merged_over() {
    let mut machine = Machine::new(incremental());
    machine.merges(&two_elements());
    let mut program = incremental();
    program.push(merge());
    let mut machine = Machine::new(program);
    let why = machine.aborts(&two_elements().message(ELEMENTS, element(3)));
    assert!(
        why.contains("no number"),
        "field 1 is what is to be deleted: {why}"
    );
    let mut machine = Machine::new(vec![
        src(&[field(3), field(ID)]).then(load(0)),
        make(&[field(3), keyed(ID, 0)]).then(src(&[field(3)]).then(set())),
        merge(),
    ]);
    let why = machine.aborts(&two_elements());
    assert_eq!(
        why,
        "instructions[2]: field 3 of the state is a list by key, and those cannot be merged"
    );
}
