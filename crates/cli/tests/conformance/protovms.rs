//! Programs that merge what a ring buffer overwrites: random ones, over random packets, come to the same state with both
//! services.
//!
//! A machine of ours in this process tells beforehand which packets a program aborts over. They are left out: upstream leaves
//! behind what it was doing then. `FERRETTO_CONFORMANCE_SEED=n` runs one seed.

use ferretto_client::producer::Acknowledge;
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, ProtoVmConfig, TraceConfig, VmCursorEnum, VmInstruction,
    VmOpMerge, VmOpSelect, VmProgram,
};
use ferretto_service::protovm::{Outcome, ProtoVm};
use ferretto_wire::{Reader, Writer};

use crate::data::{buffer, chunk};
use crate::parties::{Service, config, plain};
use crate::random::Random;
use crate::support::{Programs, Side};

const SEEDS: std::ops::Range<u64> = 1..200;
const MEMORY_KB: u32 = 1024;
/// Field numbers in packets and states: none that only the service may write.
const FIELDS: [u32; 4] = [1, 2, 4, 5];

#[derive(Debug)]
struct Case {
    program: VmProgram,
    packets: Vec<Vec<u8>>,
    /// As our machine has it.
    state: Vec<u8>,
}

fn any_field(random: &mut Random) -> u32 {
    FIELDS[random.below(FIELDS.len())]
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random(seed);
        let program = VmProgram {
            instructions: instructions(&mut random, 0),
            ..Default::default()
        };
        let run = |packets: &[Vec<u8>]| {
            let mut machine = ProtoVm::new(&program, u64::from(MEMORY_KB) * 1024).unwrap();
            let aborted = packets
                .iter()
                .any(|packet| matches!(machine.apply(packet), Outcome::Aborted(_)));
            (!aborted).then_some(machine)
        };
        let mut packets = Vec::new();
        for _ in 0..20 {
            let mut packet = Writer::new();
            for _ in 0..1 + random.below(6) {
                field(&mut random, &mut packet, 0);
            }
            packets.push(packet.into_vec());
            if run(&packets).is_none() {
                packets.pop();
            }
        }
        let mut state = Writer::new();
        run(&packets).unwrap().write_state(&mut state);
        Case {
            state: state.into_vec(),
            program,
            packets,
        }
    }
}

fn component(field: Field) -> PathComponent {
    PathComponent {
        field: Some(field),
        ..Default::default()
    }
}

fn instructions(random: &mut Random, depth: usize) -> Vec<VmInstruction> {
    let count = if depth == 0 {
        2 + random.below(4)
    } else {
        random.below(3)
    };
    let mut list = Vec::new();
    for _ in 0..count {
        if depth < 3 && random.one_in(2) {
            list.push(by_key(random));
            continue;
        }
        list.push(VmInstruction {
            operation: Some(operation(random)),
            abort_level: (!random.one_in(3)).then_some(AbortLevel::SKIP_CURRENT_INSTRUCTION),
            nested_instructions: if depth < 4 {
                instructions(random, depth + 1)
            } else {
                Vec::new()
            },
            ..Default::default()
        });
    }
    list
}

fn select(cursor: VmCursorEnum, path: Vec<PathComponent>, nested: Vec<VmInstruction>) -> VmInstruction {
    VmInstruction {
        operation: Some(Operation::Select(Box::new(VmOpSelect {
            cursor: Some(cursor),
            relative_path: path,
            create_if_not_exist: (cursor == VmCursorEnum::VM_CURSOR_DST).then_some(true),
            ..Default::default()
        }))),
        abort_level: Some(AbortLevel::SKIP_CURRENT_INSTRUCTION),
        nested_instructions: nested,
        ..Default::default()
    }
}

/// For each element of a repeated field of the packet, something is done with the element of the state that has its key.
fn by_key(random: &mut Random) -> VmInstruction {
    let each = PathComponent {
        is_repeated: Some(true),
        ..component(Field::FieldId(any_field(random)))
    };
    let key = any_field(random);
    let plain = |operation| VmInstruction {
        operation: Some(operation),
        ..Default::default()
    };
    let load = plain(Operation::RegLoad(Box::default()));
    let keyed = PathComponent {
        register_to_match: Some(0),
        ..component(Field::MapKeyFieldId(key))
    };
    let to = vec![component(Field::FieldId(any_field(random))), keyed];
    let change = plain(match random.below(4) {
        0 => Operation::Del(Box::default()),
        1 => Operation::Set(Box::default()),
        _ => merge(random),
    });
    let nested = vec![
        select(
            VmCursorEnum::VM_CURSOR_SRC,
            vec![component(Field::FieldId(key))],
            vec![load],
        ),
        select(VmCursorEnum::VM_CURSOR_DST, to, vec![change]),
    ];
    select(VmCursorEnum::VM_CURSOR_SRC, vec![each], nested)
}

fn merge(random: &mut Random) -> Operation {
    Operation::Merge(Box::new(VmOpMerge {
        skip_submessages: Some(random.one_in(2)),
        del_if_src_empty: Some(random.one_in(2)),
        ..Default::default()
    }))
}

fn operation(random: &mut Random) -> Operation {
    match random.below(8) {
        0..4 => {
            let in_state = random.one_in(2);
            let mut relative_path = Vec::new();
            for _ in 0..random.below(3) {
                relative_path.push(PathComponent {
                    is_repeated: Some(random.one_in(4)),
                    ..component(Field::FieldId(any_field(random)))
                });
                if in_state && random.one_in(4) {
                    relative_path.push(component(Field::ArrayIndex(random.below(3) as u32)));
                }
            }
            Operation::Select(Box::new(VmOpSelect {
                cursor: in_state.then_some(VmCursorEnum::VM_CURSOR_DST),
                relative_path,
                create_if_not_exist: in_state.then_some(!random.one_in(3)),
                ..Default::default()
            }))
        }
        4 | 5 => merge(random),
        6 => Operation::Set(Box::default()),
        _ => Operation::Del(Box::default()),
    }
}

/// Appends a field to a packet.
fn field(random: &mut Random, out: &mut Writer, depth: usize) {
    let number = any_field(random);
    match random.below(10) {
        0 => out.fixed32_field(number, random.below(4) as u32),
        1 => out.fixed64_field(number, random.below(4) as u64),
        2..5 => out.varint_field(number, random.below(4) as u64),
        5 => out.bytes_field(number, b"text"),
        _ if depth < 3 => {
            let count = random.below(4);
            out.nested(number, |out| {
                (0..count).for_each(|_| field(random, out, depth + 1))
            });
        }
        _ => out.bytes_field(number, &[]),
    }
}

/// The state in the trace of a session in which all packets were overwritten.
fn state_of(service: &Service<'_>, case: &Case) -> Option<Vec<u8>> {
    const PROTOVMS: u32 = 125;
    const INSTANCE: u32 = 1;
    const STATE: u32 = 2;
    let mut producer = service.producer("p");
    producer.register(DataSourceDescriptor {
        protovm_program: case.program.clone().into(),
        ..plain("d")
    });
    let mut other = service.producer("other");
    other.register(plain("other"));
    let mut config = TraceConfig {
        buffers: vec![buffer(4, FillPolicy::RING_BUFFER)],
        ..config("d")
    };
    config.data_sources[0]
        .config
        .get_or_insert_default()
        .protovm_config = ProtoVmConfig {
        memory_limit_kb: Some(MEMORY_KB),
        ..Default::default()
    }
    .into();
    config.data_sources.push(DataSource {
        config: DataSourceConfig {
            name: Some("other".into()),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    });
    let mut consumer = service.consumer();
    consumer.enable(&config);
    producer.settle();
    other.settle();
    for (id, packet) in case.packets.iter().enumerate() {
        let request = chunk(1, id as u32).fragment(packet).request(producer.target);
        producer.endpoint.commit(request, Acknowledge::No).unwrap();
    }
    producer.settle();
    for id in 0..4 {
        let request = chunk(1, id).large(1900).request(other.target);
        other.endpoint.commit(request, Acknowledge::No).unwrap();
    }
    other.settle();
    let packets = consumer.read();
    drop((producer, other, consumer));
    service.await_quiet();
    let field = |message: &[u8], number| {
        let mut fields = Reader::new(message).map(|field| field.expect("a message"));
        let field = fields.find(|field| field.number == number)?;
        field.value.as_bytes().map(<[u8]>::to_vec)
    };
    let vms = packets.iter().find_map(|packet| field(packet, PROTOVMS))?;
    field(&field(&vms, INSTANCE)?, STATE)
}

/// What could be a message as one, with lengths in as few bytes as they take: upstream writes them in four.
fn canonical(message: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    for field in Reader::new(message) {
        let Ok(field) = field else { return message.to_vec() };
        match field.value.as_bytes() {
            Some(bytes) => out.bytes_field(field.number, &canonical(bytes)),
            None => out.raw(field.raw),
        }
    }
    out.into_vec()
}

#[test]
fn programs_come_to_the_same_state() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let seeds = match std::env::var("FERRETTO_CONFORMANCE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => SEEDS,
    };
    let cases: Vec<(u64, Case)> = seeds.map(|seed| (seed, Case::new(seed))).collect();
    let enough = cases.iter().filter(|(_, case)| case.state.len() > 4).count();
    assert!(
        cases.len() == 1 || enough > cases.len() / 3,
        "only {enough} programs come to a state"
    );
    let run = |side| {
        let service = Service::start(&programs, side);
        cases
            .iter()
            .map(|(_, case)| state_of(&service, case))
            .collect::<Vec<_>>()
    };
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    for ((seed, case), (upstream, ours)) in cases.iter().zip(upstream.iter().zip(&ours)) {
        let expected = Some(canonical(&case.state));
        assert_eq!(
            upstream.as_deref().map(canonical),
            expected,
            "upstream's, seed {seed}: {case:?}"
        );
        assert_eq!(
            ours.as_deref().map(canonical),
            expected,
            "ours, seed {seed}: {case:?}"
        );
    }
}
