//! The programs of a buffer, and the packets that each of them gets.

use ferretto_proto::messages::Message;

use super::*;
use crate::ids::ProducerId;
use crate::limits;

const ONE: ProducerId = ProducerId(1);
const TWO: ProducerId = ProducerId(2);

/// Takes over packets with this field, and ignores other packets.
fn takes(field_number: u32) -> VmProgram {
    program(vec![src(&[field(field_number)]), merge()])
}

fn apply(vms: &mut ProtoVms, producer: ProducerId, packet: &Fields) {
    vms.apply(producer, std::iter::once(packet.0.as_slice()));
}

/// The written form of each instance: program, state, limit and producers.
fn written(vms: &ProtoVms) -> Vec<Vec<u8>> {
    let each = vms.instances().map(|instance| {
        let mut out = Writer::new();
        instance.write(&mut out);
        out.into_vec()
    });
    each.collect()
}

fn instance(program: &VmProgram, state: &Fields, kb: u64, producers: &[u64]) -> Vec<u8> {
    let mut out = Writer::new();
    out.bytes_field(1, &program.encode_to_vec());
    out.bytes_field(2, &state.0);
    out.varint_field(3, kb);
    producers.iter().for_each(|id| out.varint_field(4, *id));
    out.into_vec()
}

#[test]
fn producers_with_the_same_program_for_a_data_source_share_its_state() {
    let mut vms = ProtoVms::default();
    let program = takes(1);
    vms.set_up("a", &program, 16, TWO).expect("a program");
    vms.set_up("a", &program, 99, ONE).expect("the same");
    vms.set_up("a", &takes(2), 16, ONE).expect("another program");
    vms.set_up("b", &program, 16, TWO).expect("another data source");
    apply(&mut vms, ONE, &Fields::new().number(1, 5));
    apply(&mut vms, TWO, &Fields::new().number(1, 6).number(4, 7));
    let state = Fields::new().number(1, 6).number(4, 7);
    let expected = [
        instance(&program, &state, 16, &[1, 2]),
        instance(&takes(2), &Fields::new(), 16, &[1]),
        instance(&program, &Fields::new(), 16, &[2]),
    ];
    assert_eq!(written(&vms), expected);
    assert_eq!(
        vms.memory_used(),
        2 * 96 + 2 * program.encode_to_vec().len() as u64 + takes(2).encode_to_vec().len() as u64
    );
}

#[test]
fn a_packet_goes_on_until_a_program_merges_it() {
    let mut vms = ProtoVms::default();
    let aborting = program(vec![src(&[field(1)]).then(merge())]);
    vms.set_up("a", &aborting, 16, ONE).expect("a program");
    vms.set_up("b", &takes(1), 16, ONE).expect("a program");
    vms.set_up("c", &takes(1), 16, TWO).expect("a program");
    vms.set_up("d", &takes(2), 16, ONE).expect("a program");
    apply(&mut vms, ONE, &Fields::new().number(1, 5).number(2, 6));
    apply(&mut vms, ONE, &Fields::new().number(2, 7));
    let states = [
        Fields::new(),
        Fields::new().number(1, 5).number(2, 6),
        Fields::new(),
        Fields::new().number(2, 7),
    ];
    let programs = [aborting, takes(1), takes(1), takes(2)];
    let producers = [[1], [1], [2], [1]];
    let expected: Vec<Vec<u8>> = std::iter::zip(&programs, std::iter::zip(&states, &producers))
        .map(|(program, (state, producers))| instance(program, state, 16, producers))
        .collect();
    assert_eq!(written(&vms), expected);
    let complaints: Vec<String> = vms.complaints().collect();
    assert_eq!(
        complaints,
        [
            "ProtoVM of data source \"a\": 1 packets that were overwritten could not be merged; the first at \
             instructions[0].nested_instructions[0]: the field of the packet is a number and no message"
        ]
    );
}

#[test]
fn packets_come_whole_from_any_pieces() {
    let packet = Fields::new()
        .number(1, 5)
        .message(2, Fields::new().number(1, 300));
    for cut in 0..packet.0.len() {
        let mut vms = ProtoVms::default();
        vms.set_up("a", &takes(1), 16, ONE).expect("a program");
        let (start, end) = packet.0.split_at(cut);
        vms.apply(ONE, [start, end].into_iter());
        assert_eq!(written(&vms), [instance(&takes(1), &packet, 16, &[1])]);
    }
}

#[test]
fn forbidden_packets_of_a_producer_are_not_merged() {
    const TRUSTED_UID: u32 = 3;
    let mut vms = ProtoVms::default();
    vms.set_up("a", &takes(1), 16, ONE).expect("a program");
    apply(&mut vms, ONE, &Fields::new().number(1, 5).number(TRUSTED_UID, 0));
    apply(
        &mut vms,
        ONE,
        &Fields::new().number(1, 5).with(|out| out.raw(&[0x08])),
    );
    assert_eq!(written(&vms), [instance(&takes(1), &Fields::new(), 16, &[1])]);
}

#[test]
fn the_producers_with_the_same_program_are_limited() {
    let mut vms = ProtoVms::default();
    let mut bring = |producer| vms.set_up("a", &takes(1), 16, ProducerId(producer));
    let most = limits::MAX_PROTOVM_PRODUCERS as u32;
    (1..=most).for_each(|producer| bring(producer).expect("room"));
    assert_eq!(bring(most + 1), Err(SetUpError::TooManyProducers));
    assert_eq!(bring(most), Ok(()), "it is one of them");
}

#[test]
fn only_packets_of_producers_with_a_program_are_wanted() {
    let mut vms = ProtoVms::default();
    assert!(!vms.want(ONE));
    vms.set_up("a", &takes(1), 16, ONE).expect("a program");
    assert!(vms.want(ONE) && !vms.want(TWO));
}

#[test]
fn all_programs_together_do_the_work_that_may_be_done_and_no_more() {
    let packet = |value: u64| {
        Fields::new()
            .number(2, value)
            .with(|out| out.bytes_field(5, &[value as u8; 6400]))
    };
    let mut vms = ProtoVms::default();
    for (name, takes_field) in [("a", 1), ("b", 2)] {
        vms.set_up(name, &takes(takes_field), 64, ONE).expect("a program");
    }
    let has = |vms: &ProtoVms, value| {
        let states = [Fields::new(), packet(value)];
        let of = |(number, state)| instance(&takes(number), state, 64, &[1]);
        written(vms) == std::iter::zip([1, 2], &states).map(of).collect::<Vec<_>>()
    };
    const PLENTY: u64 = 10_000;
    vms.restrict_work(PLENTY);
    apply(&mut vms, ONE, &packet(1));
    assert!(has(&vms, 1));
    // The cost includes copying, and the first program's useless work.
    let cost = PLENTY - vms.work_left();
    assert!((100 + 2..200).contains(&cost), "{cost}");
    vms.restrict_work(2 * cost);
    apply(&mut vms, ONE, &packet(2));
    assert_eq!(vms.work_left(), cost);
    apply(&mut vms, ONE, &packet(3));
    assert!(has(&vms, 3));
    assert_eq!((vms.work_left(), vms.complaints().count()), (0, 0));
    vms.restrict_work(cost - 1);
    apply(&mut vms, ONE, &packet(4));
    assert_eq!(vms.work_left(), 0, "what is left is not for others either");
    assert_eq!(vms.complaints().count(), 1);
    assert!(!has(&vms, 4));
    vms.restrict_work(cost);
    apply(&mut vms, ONE, &packet(5));
    assert!(has(&vms, 5));
}

#[test]
fn a_copy_has_the_state_of_its_time() {
    let mut vms = ProtoVms::default();
    vms.set_up("a", &takes(1), 16, ONE).expect("a program");
    apply(&mut vms, ONE, &Fields::new().number(1, 5));
    let mut copy = vms.clone_read_only();
    assert_eq!(written(&copy), written(&vms));
    let program = takes(1).encode_to_vec().len() as u64;
    assert_eq!(copy.memory_used(), program + 2, "encoded");
    apply(&mut vms, ONE, &Fields::new().number(1, 6));
    apply(&mut copy, ONE, &Fields::new().number(1, 7));
    let state = |value| Fields::new().number(1, value);
    assert_eq!(written(&copy), [instance(&takes(1), &state(5), 16, &[1])]);
    assert_eq!(written(&vms), [instance(&takes(1), &state(6), 16, &[1])]);
    assert_eq!(written(&copy.clone_read_only()), written(&copy));
}

#[test]
fn a_buffer_has_as_many_programs_as_it_may() {
    let mut vms = ProtoVms::default();
    for index in 0..limits::MAX_PROTOVMS_PER_BUFFER {
        vms.set_up(&format!("source {index}"), &takes(1), 16, ONE)
            .expect("room");
    }
    let error = vms.set_up("one more", &takes(1), 16, ONE).unwrap_err();
    assert_eq!(error, SetUpError::TooMany);
    assert!(error.to_string().contains("32 programs"), "{error}");
    vms.set_up("source 0", &takes(1), 16, TWO)
        .expect("nothing new is made");
    let mut vms = ProtoVms::default();
    for version in 1..=limits::MAX_PROTOVM_VERSIONS {
        vms.set_up("a", &takes(version as u32), 16, ONE).expect("room");
    }
    let error = vms.set_up("a", &takes(99), 16, ONE).unwrap_err();
    assert_eq!(error, SetUpError::TooManyVersions);
    assert!(error.to_string().contains("8 different programs"), "{error}");
    vms.set_up("b", &takes(99), 16, ONE).expect("another data source");
    let mut vms = ProtoVms::default();
    let half = limits::MAX_PROTOVM_MEMORY_KB_PER_BUFFER / 2;
    vms.set_up("a", &takes(1), half, ONE).expect("room");
    vms.set_up("b", &takes(1), half, ONE).expect("room");
    let error = vms.set_up("c", &takes(1), 1, ONE).unwrap_err();
    assert_eq!(error, SetUpError::TooMuchMemory);
    let too_deep = (0..limits::MAX_PROTOVM_DEPTH).fold(set(), |inner, _| dst(&[]).then(inner));
    let error = ProtoVms::default()
        .set_up("deep", &program(vec![too_deep]), 16, ONE)
        .unwrap_err();
    assert_eq!(error, SetUpError::Program(ProgramError::TooDeep));
}

#[test]
fn packets_are_put_together_up_to_a_limit() {
    let piece = vec![0; limits::MAX_PROTOVM_PACKET];
    let merged = |more: usize| {
        let mut vms = ProtoVms::default();
        let kb = 2 * limits::MAX_PROTOVM_PACKET as u32 / 1024;
        vms.set_up("a", &takes(1), kb, ONE).expect("a program");
        // One field of bytes that fills the packet.
        let body = limits::MAX_PROTOVM_PACKET - 5 + more;
        let mut start = Writer::new();
        start.bytes_field_head(1, body);
        assert_eq!(start.len(), 5);
        vms.apply(ONE, [start.as_slice(), &piece[..body]].into_iter());
        (vms.memory_used() > body as u64, vms.complaints().count())
    };
    assert_eq!(merged(0), (true, 0));
    assert_eq!(merged(1), (false, 1));
}

#[test]
fn instances_go_into_one_packet_until_they_are_enough() {
    let mut vms = ProtoVms::default();
    for name in ["a", "b", "c"] {
        vms.set_up(name, &takes(1), 16, ONE).expect("a program");
    }
    let size = 2 + written(&vms)[0].len();
    let packets = |enough: usize| {
        let mut instances = vms.instances().peekable();
        let mut sizes = Vec::new();
        while instances.peek().is_some() {
            let mut out = Writer::new();
            write_instances(&mut instances, enough, &mut out);
            sizes.push(out.len());
        }
        sizes
    };
    assert_eq!(packets(limits::PROTOVMS_PACKET), [3 * size]);
    assert_eq!(packets(2 * size), [2 * size, size]);
    assert_eq!(packets(2 * size + 1), [3 * size]);
    assert_eq!(packets(0), [size, size, size]);
}
