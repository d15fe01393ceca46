//! Programs that merge packets which a ring buffer overwrites. Random programs over random packets must lead to the same state with both services.
//!
//! A virtual machine of ours in this process finds the packets over which a program aborts. They are left out, because upstream keeps the effects of
//! the aborted run. `FERRETTO_CONFORMANCE_SEED=n` runs one seed.

use ferretto_client::producer::CommitReply;
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::messages::vm_instruction::Operation;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, ProtoVmConfig, TraceConfig, VmInstruction, VmProgram,
};
use ferretto_service::protovm::{Outcome, ProtoVm};
use ferretto_wire::{Reader, Writer};

#[allow(unreachable_pub)] // In its own crate it is reached.
#[path = "../../../service/src/fuzz_input.rs"]
mod input;
#[path = "../../../service/src/protovm/fuzz/programs.rs"]
mod programs;

use crate::conformance::data::{buffer, chunk};
use crate::conformance::parties::{Service, config, plain};
use crate::support::random::Random;
use crate::support::{Programs, Side};
use input::Input;

const SEEDS: std::ops::Range<u64> = 1..1200;
const MEMORY_KB: u32 = 1024;

#[derive(Debug)]
struct Case {
    program: VmProgram,
    packets: Vec<Vec<u8>>,
    /// The state according to our machine.
    state: Vec<u8>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..4000).map(|_| random.below(256) as u8).collect();
        let mut input = Input(&bytes);
        let mut program = programs::program(&mut input);
        make_bearable(&mut program.instructions);
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
            for _ in 0..1 + input.byte() % 6 {
                programs::field(&mut input, &mut packet);
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

/// Before v57, upstream's merges that skip submessages never delete a message, so such merges delete nothing here.
fn make_bearable(instructions: &mut [VmInstruction]) {
    for instruction in instructions {
        if let Some(Operation::Merge(merge)) = &mut instruction.operation
            && merge.skip_submessages == Some(true)
        {
            merge.del_if_src_empty = None;
        }
        make_bearable(&mut instruction.nested_instructions);
    }
}

/// Returns the state in the trace of a session in which all packets were overwritten.
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
        producer.endpoint.commit(request, CommitReply::Unwanted).unwrap();
    }
    producer.settle();
    for id in 0..4 {
        let request = chunk(1, id).large(1900).request(other.target);
        other.endpoint.commit(request, CommitReply::Unwanted).unwrap();
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

/// Encodes fields that could be messages again, with the shortest lengths, because upstream encodes lengths in four bytes.
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
    let single = seeds.end - seeds.start == 1;
    // Most cases end with an empty state.
    let cases: Vec<(u64, Case)> = seeds
        .map(|seed| (seed, Case::new(seed)))
        .filter(|(_, case)| single || case.state.len() > 4)
        .collect();
    assert!(single || cases.len() > 100, "{}", cases.len());
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
