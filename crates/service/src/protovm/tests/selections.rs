//! Paths: their results in packets and in the state, and the types that nodes of the state get by being entered.

use super::*;

fn element(key: u64, value: u64) -> Fields {
    Fields::new().number(1, key).number(2, value)
}

/// A state of two elements in field 1.
fn two() -> Fields {
    Fields::new()
        .message(1, element(0, 10))
        .message(1, element(1, 11))
}

/// A machine whose state is the first message that it gets, and that does this with packets that have a field 9.
fn edits(instructions: Vec<VmInstruction>) -> Machine {
    let skip = AbortLevel::SKIP_CURRENT_INSTRUCTION;
    let first = src(&[field(8)]).then(set()).on_failure(skip);
    let mut edit = src(&[field(9)]);
    edit.nested_instructions = instructions;
    Machine::new(vec![first, edit])
}

/// The first message. There is nothing in it to be edited, so the program fails.
fn initial(state: Fields) -> Fields {
    Fields::new().message(8, state)
}

fn edit() -> Fields {
    Fields::new().number(9, 100)
}

#[test]
fn a_path_through_a_packet_finds_the_first_the_nth_or_each() {
    let packet = Fields::new()
        .number(1, 5)
        .message(3, element(1, 10))
        .message(3, element(2, 20))
        .message(3, element(3, 30));
    let copies: [(&[PathComponent], Option<Fields>); 6] = [
        (&[field(3)], Some(element(1, 10))),
        (&[field(3), at(0)], Some(element(1, 10))),
        (&[field(3), at(2)], Some(element(3, 30))),
        (&[field(3), at(3)], None),
        (&[field(4)], None),
        (&[each(3)], Some(element(3, 30))),
    ];
    for (path, found) in copies {
        let mut machine = Machine::new(vec![src(path).then(make(&[field(7)]).then(set()))]);
        match found {
            Some(found) => {
                machine.merges(&packet);
                machine.has_state(&Fields::new().message(7, found));
            }
            None => {
                machine.fails(&packet);
                machine.has_state(&Fields::new());
            }
        }
    }
    // Iterating over nothing succeeds.
    Machine::new(vec![src(&[each(4)]).then(set())]).merges(&packet);
    let mut machine = Machine::new(vec![
        src(&[each(3), field(2)])
            .then(load(0))
            .then(make(&[field(5), keyed(1, 0)])),
    ]);
    machine.merges(&packet);
    assert_eq!(machine.0.memory_used(), 4 * 96, "a list of three");
}

#[test]
fn numbers_of_a_packet_are_found_by_index_too() {
    let packet = Fields::new().number(1, 5).number(1, 6);
    let mut machine = Machine::new(vec![src(&[field(1), at(1)]).then(make(&[field(2)]).then(set()))]);
    machine.merges(&packet);
    machine.has_state(&Fields::new().number(2, 6));
}

#[test]
fn fields_behind_damage_in_a_packet_are_ignored() {
    let damaged = Fields::new()
        .number(1, 5)
        .with(|out| out.raw(&[0x0f]))
        .number(2, 6);
    Machine::new(vec![src(&[field(2)])]).fails(&damaged);
    Machine::new(vec![src(&[field(1)])]).merges(&damaged);
    // Nor are fields of numbers that upstream's decoder passes over.
    let far = Fields::new().number(1 << 24, 5).number((1 << 24) - 1, 6);
    Machine::new(vec![src(&[field(1 << 24)])]).fails(&far);
    let mut machine = Machine::new(vec![merge()]);
    machine.merges(&far);
    machine.has_state(&Fields::new().number((1 << 24) - 1, 6));
}

#[test]
fn fields_of_the_state_are_made_only_if_asked_for() {
    let path = [field(1), field(2)];
    let mut machine = Machine::new(vec![dst(&path).then(set())]);
    machine.fails(&element(0, 10));
    machine.has_state(&Fields::new());
    let mut machine = Machine::new(vec![make(&path).then(set())]);
    machine.merges(&element(0, 10));
    machine.has_state(&Fields::new().message(1, Fields::new().message(2, element(0, 10))));
    // A node that was entered and not set does not exist.
    let mut machine = Machine::new(vec![make(&[field(1)])]);
    machine.merges(&element(0, 10));
    machine.has_state(&Fields::new());
}

#[test]
fn bytes_become_a_message_when_they_are_entered_and_numbers_do_not() {
    let copy = src(&[field(9)]).then(set());
    let mut machine = edits(vec![dst(&[field(1), at(1), field(2)]).then(copy.clone())]);
    machine.fails(&initial(two()));
    let why = machine.aborts(&edit().message(9, Fields::new()));
    assert!(
        why.contains("number"),
        "nothing of a number can be entered: {why}"
    );
    let mut machine = edits(vec![dst(&[field(1), at(1), field(2), field(1)])]);
    machine.fails(&initial(two()));
    let why = machine.aborts(&edit());
    assert!(why.contains("is a number and cannot become a message"), "{why}");
    let mut machine = edits(vec![dst(&[field(1), at(1), field(2)]).then(set())]);
    machine.fails(&initial(two()));
    machine.merges(&edit());
    let changed = Fields::new()
        .message(1, element(0, 10))
        .message(1, element(1, 100));
    machine.has_state(&changed);
}

#[test]
fn elements_are_added_behind_the_last_whether_or_not_that_is_asked_for() {
    let mut machine = edits(vec![
        dst(&[field(1), at(2), field(2)]).on_failure(AbortLevel::SKIP_CURRENT_INSTRUCTION),
    ]);
    machine.fails(&initial(two()));
    machine.merges(&edit());
    machine.has_state(&two().message(1, Fields::new()));
    let mut machine = edits(vec![
        make(&[field(1), at(2)]).then(src(&[]).then(dst(&[field(4)]))),
    ]);
    machine.fails(&initial(two()));
    machine.fails(&edit());
    let mut machine = edits(vec![dst(&[field(1), at(3)])]);
    machine.fails(&initial(two()));
    assert!(machine.aborts(&edit()).contains("right behind the last"));
    // A field that came once was not known to be repeated.
    let mut machine = edits(vec![dst(&[field(1), at(1)]).then(make(&[field(1)]).then(set()))]);
    machine.fails(&initial(Fields::new().message(1, element(0, 10))));
    machine.merges(&edit());
    let added = Fields::new()
        .message(1, element(0, 10))
        .message(1, Fields::new().number(1, 100));
    machine.has_state(&added);
}

#[test]
fn deleted_elements_leave_a_gap() {
    let delete = || dst(&[field(1), at(0)]).then(del());
    let mut machine = edits(vec![delete()]);
    machine.fails(&initial(two()));
    machine.merges(&edit());
    machine.has_state(&Fields::new().message(1, element(1, 11)));
    // The next value that goes there fills it.
    machine.merges(&edit());
    machine.has_state(&Fields::new().message(1, element(1, 11)));
    let mut machine = edits(vec![delete(), dst(&[field(1), at(0), field(5)])]);
    machine.fails(&initial(two()));
    machine.fails(&edit());
    machine.has_state(&Fields::new().message(1, Fields::new()).message(1, element(1, 11)));
}

#[test]
fn elements_of_the_state_are_visited_in_order() {
    let mut machine = edits(vec![dst(&[each(1), field(2)]).then(set())]);
    machine.fails(&initial(two()));
    machine.merges(&edit());
    let all = Fields::new()
        .message(1, element(0, 100))
        .message(1, element(1, 100));
    machine.has_state(&all);
    // None, and one that was not known to be repeated.
    let mut machine = edits(vec![
        dst(&[each(4)]).then(del()),
        dst(&[each(1), field(2)]).then(del()),
    ]);
    machine.fails(&initial(Fields::new().message(1, element(0, 10))));
    machine.merges(&edit());
    machine.has_state(&Fields::new().message(1, Fields::new().number(1, 0)));
    // Deleted, they are not there any more, but their places are.
    let mut machine = edits(vec![dst(&[each(1)]).then(del()), dst(&[each(1)]).then(set())]);
    machine.fails(&initial(two()));
    machine.merges(&edit());
    machine.has_state(&Fields::new().number(1, 100).number(1, 100));
}

#[test]
fn lists_come_to_be_by_key_and_stay_so() {
    let key = || src(&[]).then(load(0));
    let find = || make(&[field(1), keyed(1, 0), field(2)]).then(set());
    // A list, a single message, one that was entered, and nothing.
    let states = [
        Fields::new()
            .message(1, element(100, 10))
            .message(1, element(1, 11)),
        Fields::new().message(1, element(100, 10)),
        Fields::new(),
    ];
    for state in states {
        for enter in [None, Some(dst(&[each(1), field(1)]))] {
            let mut program = vec![key(), find()];
            program.splice(0..0, enter);
            let mut machine = edits(program);
            machine.fails(&initial(state.clone()));
            machine.merges(&edit());
            let found = Fields::new().number(2, 100);
            let expected = match state.0.len() {
                0 => Fields::new().message(1, found),
                // Ordered by key.
                len if len > 10 => Fields::new()
                    .message(1, element(1, 11))
                    .message(1, element(100, 100)),
                _ => Fields::new().message(1, element(100, 100)),
            };
            machine.has_state(&expected);
        }
    }
    for other_way in [dst(&[field(1), at(0)]), dst(&[each(1)]), dst(&[field(1)])] {
        let mut machine = edits(vec![key(), find(), other_way]);
        machine.fails(&initial(two()));
        let why = machine.aborts(&edit());
        assert!(why.contains("is a list by key and cannot become"), "{why}");
    }
    let mut machine = edits(vec![dst(&[field(1)])]);
    machine.fails(&initial(two()));
    let why = machine.aborts(&edit());
    assert!(
        why.contains("is a list by index and cannot become a single field"),
        "{why}"
    );
}

#[test]
fn elements_without_a_key_make_no_list_by_key_and_stay_as_they_are() {
    let by_key = |key_field| vec![src(&[]).then(load(0)), dst(&[field(1), keyed(key_field, 0)])];
    let second_without = Fields::new()
        .message(1, element(0, 10))
        .message(1, Fields::new().number(2, 11));
    let states = [
        (second_without, 1),
        (two(), 3),
        (Fields::new().message(1, element(0, 10)), 3),
        (
            Fields::new().message(1, Fields::new().message(1, Fields::new())),
            1,
        ),
    ];
    for (state, key_field) in states {
        let mut machine = edits(by_key(key_field));
        machine.fails(&initial(state.clone()));
        let why = machine.aborts(&edit());
        assert!(
            why.contains(&format!("no number in its field {key_field}")),
            "{why}"
        );
        machine.has_state(&state);
    }
    let mut machine = edits(by_key(1));
    machine.fails(&initial(Fields::new().number(1, 7)));
    let why = machine.aborts(&edit());
    assert!(
        why.contains("is a number and cannot become a list by key"),
        "{why}"
    );
}

#[test]
fn of_elements_with_the_same_key_the_first_is_kept() {
    let mut machine = edits(vec![
        src(&[]).then(load(0)),
        make(&[field(1), keyed(1, 0), field(2)]),
    ]);
    let state = Fields::new()
        .message(1, element(7, 10))
        .message(1, element(7, 11))
        .message(1, element(100, 12));
    machine.fails(&initial(state));
    machine.merges(&edit());
    let kept = Fields::new()
        .message(1, element(7, 10))
        .message(1, element(100, 12));
    machine.has_state(&kept);
}

#[test]
fn keys_are_compared_by_their_lower_half() {
    let mut machine = Machine::new(vec![
        src(&[field(1)]).then(load(0)),
        make(&[field(1), keyed(1, 0)]).then(set()),
    ]);
    machine.merges(&element(5, 10));
    machine.merges(&element(5 | 1 << 32, 11));
    machine.has_state(&Fields::new().message(1, element(5 | 1 << 32, 11)));
}
