//! The cost of hostile programs and packets: each limit at and past it.

use super::*;
use crate::limits;

/// Bytes that a field of the state counts beside its contents.
const ENTRY: u64 = 96;

#[test]
fn the_state_takes_the_memory_it_may_and_no_more() {
    let packet = Fields::new()
        .number(1, 1)
        .number(2, 2)
        .with(|out| out.bytes_field(3, &[7; 100]));
    let needed = 3 * ENTRY + 100;
    let mut machine = Machine::with_memory(vec![merge()], needed);
    machine.merges(&packet);
    machine.has_state(&packet);
    assert_eq!(machine.0.memory_used(), needed);
    // The same packet again takes no more: the new values take the place of the old ones.
    machine.merges(&Fields::new().number(1, 1).number(2, 2));
    let mut machine = Machine::with_memory(vec![merge()], needed - 1);
    let why = machine.aborts(&packet);
    assert!(
        why.contains(&format!("more than the {} bytes", needed - 1)),
        "{why}"
    );
    machine.has_state(&Fields::new().number(1, 1).number(2, 2));
    // The machine goes on with packets that do fit.
    machine.merges(&Fields::new().number(2, 3));
    machine.has_state(&Fields::new().number(1, 1).number(2, 3));
}

#[test]
fn every_change_that_does_not_fit_leaves_the_old_state() {
    let state = Fields::new()
        .message(
            1,
            Fields::new()
                .number(1, 1)
                .with(|out| out.bytes_field(2, &[7; 50])),
        )
        .message(1, Fields::new().number(1, 2));
    let changes = [
        merge(),
        set(),
        make(&[field(5)]).then(set()),
        make(&[field(1), at(0), field(2)]),
        make(&[field(1), at(2)]).then(set()),
        src(&[field(3)])
            .then(load(0))
            .then(make(&[field(1), keyed(1, 0)])),
        dst(&[each(1), field(1)]),
    ];
    let packet = Fields::new()
        .number(3, 2)
        .number(1, 1)
        .number(1, 2)
        .with(|out| out.bytes_field(4, &[7; 80]));
    let mut aborted = 0;
    let size = state.0.len() as u64;
    for change in changes {
        for spare in (0..800).step_by(16) {
            let first = src(&[field(8)])
                .then(set())
                .on_failure(AbortLevel::SKIP_CURRENT_INSTRUCTION);
            let program = vec![first, src(&[field(3)]), change.clone()];
            let mut machine = Machine::with_memory(program, size + spare);
            machine.fails(&Fields::new().message(8, state.clone()));
            machine.has_state(&state);
            match machine.apply(&packet) {
                Outcome::Aborted(abort) => {
                    assert!(abort.is_limit(), "{abort}");
                    aborted += 1;
                }
                Outcome::Merged | Outcome::Failed => {}
            }
            assert!(machine.0.memory_used() <= size + spare);
        }
    }
    assert!(aborted > 50, "only {aborted} changes came to the limit");
}

#[test]
fn a_program_has_as_many_parts_as_it_may() {
    let with = |parts: usize| {
        let path = vec![field(1); 9];
        let mut instructions = vec![src(&path); parts / 10];
        instructions.extend(vec![set(); parts % 10]);
        ProtoVm::new(&program(instructions), MEMORY).map(drop)
    };
    assert_eq!(with(limits::MAX_PROTOVM_INSTRUCTIONS), Ok(()));
    let error = with(limits::MAX_PROTOVM_INSTRUCTIONS + 1).unwrap_err();
    assert_eq!(error, ProgramError::TooLong);
    assert!(error.to_string().contains("4096"), "{error}");
}

#[test]
fn a_program_is_as_deep_as_it_may_be_and_runs_on_a_small_stack() {
    let nested = |levels: usize, parts: usize, leaf: VmInstruction| {
        let path = vec![field(1); parts];
        (0..levels).fold(leaf, |inner, _| make(&path).then(inner))
    };
    for (levels, parts) in [
        (limits::MAX_PROTOVM_DEPTH - 1, 0),
        (1, limits::MAX_PROTOVM_DEPTH - 2),
        (63, 1),
    ] {
        let run = move || {
            let mut machine = Machine::new(vec![nested(levels, parts, merge())]);
            let packet = Fields::new().number(1, 7);
            machine.merges(&packet);
            let mut state = packet;
            for _ in 0..levels * parts {
                state = Fields::new().message(1, state);
            }
            machine.has_state(&state);
            let mut machine = Machine::new(vec![nested(levels, parts, merge()), del()]);
            machine.merges(&Fields::new().number(1, 7));
            assert_eq!(machine.0.memory_used(), 0);
        };
        let thread = std::thread::Builder::new().stack_size(512 * 1024).spawn(run);
        thread.expect("a thread").join().expect("a machine that runs");
        let deeper = program(vec![nested(levels, parts, make(&[field(1), field(1)]))]);
        let error = ProtoVm::new(&deeper, MEMORY).map(drop).unwrap_err();
        assert_eq!(error, ProgramError::TooDeep);
        assert!(error.to_string().contains("128"), "{error}");
    }
}

#[test]
fn packets_earn_the_work_that_may_be_used() {
    // Each element of the packet visits each element of the state.
    let visits = src(&[each(1)]).then(dst(&[each(2)]));
    let fill = src(&[field(3)])
        .then(merge())
        .on_failure(AbortLevel::SKIP_CURRENT_INSTRUCTION);
    // And looks at every field of the packet, again and again.
    let look = src(&[field(5)]).on_failure(AbortLevel::SKIP_CURRENT_INSTRUCTION);
    let mut program = vec![fill, visits];
    program.resize(40, look);
    let mut machine = Machine::new(program);
    let numbers = |field: u32, count: usize| (0..count).fold(Fields::new(), |all, _| all.number(field, 1));
    machine.merges(&Fields::new().message(3, numbers(2, 10_000)));
    // An instruction, a step and 10,000 elements for each packet; the saved work pays for them.
    let mut paid = 0;
    loop {
        match machine.apply(&numbers(1, 100)) {
            Outcome::Merged => paid += 100,
            Outcome::Aborted(abort) => {
                assert!(abort.to_string().contains("takes too long"), "{abort}");
                break;
            }
            Outcome::Failed => panic!("nothing to visit"),
        }
    }
    let most = limits::MAX_PROTOVM_WORK / 10_000;
    assert!((most / 2..=most + most / 10).contains(&paid), "{paid} of {most}");
    // From then on there is only the work that each packet earns: less than the 10,000 of one visit.
    let earned = limits::PROTOVM_WORK_PER_PACKET + 2 * limits::PROTOVM_WORK_PER_BYTE;
    assert!(earned < 10_000);
    assert!(machine.aborts(&numbers(1, 1)).contains("takes too long"));
    // Packets without visits save up again.
    let enough = 10_100_u64.div_ceil(limits::PROTOVM_WORK_PER_PACKET);
    for _ in 0..enough {
        machine.merges(&Fields::new());
    }
    machine.merges(&numbers(1, 1));
    // A packet of many fields brings enough for each to be looked at many times.
    machine.merges(&numbers(6, 1000));
}

#[test]
fn fields_that_are_passed_over_take_work_too() {
    const COUNT: usize = 1000;
    let far = (0..COUNT).fold(Fields::new(), |all, _| all.number(1 << 24, 1));
    let packet = far.number(1, 7);
    let inside = Fields::new().number(1, 7).message(2, packet.clone());
    let by_key = vec![
        src(&[field(1)]).then(load(0)),
        merge(),
        dst(&[field(2), keyed(1, 0)]),
    ];
    let runs = [
        (vec![src(&[field(1)])], &packet),
        (vec![merge()], &packet),
        (vec![set(), dst(&[field(1)])], &packet),
        (by_key, &inside),
    ];
    for (index, (instructions, packet)) in runs.into_iter().enumerate() {
        let mut machine = Machine::new(instructions);
        let mut left = limits::MAX_PROTOVM_WORK;
        assert_eq!(machine.0.apply_within(&packet.0, &mut left), Outcome::Merged);
        let used = limits::MAX_PROTOVM_WORK - left;
        assert!(
            used > COUNT as u64,
            "run {index} looked at {COUNT} fields for {used}"
        );
    }
}
