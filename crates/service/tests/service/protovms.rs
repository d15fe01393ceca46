//! Programs of data sources that merge packets which a ring buffer overwrites (`protovm_config`): the packets that each program gets, and the
//! trace's packets about programs.

use ferretto_proto::messages::test_event::ProtoVmPatch;
use ferretto_proto::messages::trace_packet::{self, proto_vms};
use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceDescriptor, Message, ProtoVmConfig, TestEvent, TraceConfig, TracePacket,
    VmCursorEnum, VmInstruction, VmOpSelect, VmProgram, trace_config,
};
use ferretto_service::limits;
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConsumerId, Original, ProducerId, Scraping, SessionId,
};

use super::world::{World, config, packets_of};

const MEMORY_KB: u32 = 16;

/// A program that copies the text of a patch, and then its number, into the state.
fn copies(version: u32) -> VmProgram {
    const FOR_TESTING: u32 = 900;
    const PATCH: u32 = 6;
    const STATE: u32 = 7;
    let select = |cursor, path: [u32; 3], nested| {
        let component = |number| PathComponent {
            field: Some(Field::FieldId(number)),
            ..Default::default()
        };
        VmInstruction {
            operation: Some(Operation::Select(Box::new(VmOpSelect {
                cursor: Some(cursor),
                relative_path: path.map(component).to_vec(),
                create_if_not_exist: (cursor == VmCursorEnum::VM_CURSOR_DST).then_some(true),
                ..Default::default()
            }))),
            nested_instructions: vec![nested],
            ..Default::default()
        }
    };
    let set = || VmInstruction {
        operation: Some(Operation::Set(Box::default())),
        ..Default::default()
    };
    let copy = |field| {
        let to = select(VmCursorEnum::VM_CURSOR_DST, [FOR_TESTING, STATE, field], set());
        select(VmCursorEnum::VM_CURSOR_SRC, [FOR_TESTING, PATCH, field], to)
    };
    VmProgram {
        version: Some(version),
        instructions: vec![copy(1), copy(2)],
        ..Default::default()
    }
}

/// A patch that takes about a quarter of a buffer of 4 KB.
fn patch(text: &str) -> Vec<u8> {
    let text = format!("{text}{}", "#".repeat(900));
    let patch = ProtoVmPatch {
        string_to_merge: Some(text),
        int_to_merge: Some(7),
        ..Default::default()
    };
    let packet = TracePacket {
        data: Some(trace_packet::Data::ForTesting(Box::new(TestEvent {
            protovm_patch: patch.into(),
            ..Default::default()
        }))),
        ..Default::default()
    };
    packet.encode_to_vec()
}

fn offer_with(world: &mut World, producer: ProducerId, name: &str, program: Option<VmProgram>) {
    let descriptor = DataSourceDescriptor {
        name: Some(name.into()),
        protovm_program: program.map(Into::into).unwrap_or_default(),
        ..Default::default()
    };
    world.register(producer, &descriptor);
}

/// A config with one ring buffer of 4 KB, and programs for these data sources.
fn merging(sources: &[&str]) -> TraceConfig {
    let mut config = config(sources);
    config.buffers[0].size_kb = Some(4);
    for source in &mut config.data_sources {
        source.config.get_or_insert_default().protovm_config = ProtoVmConfig {
            memory_limit_kb: Some(MEMORY_KB),
            ..Default::default()
        }
        .into();
    }
    config
}

fn write(world: &mut World, producer: ProducerId, text: &str) {
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&patch(text)]);
}

fn event(packet: &TracePacket) -> Option<&TestEvent> {
    match &packet.data {
        Some(trace_packet::Data::ForTesting(event)) => Some(event),
        _ => None,
    }
}

fn unfilled(text: &str) -> String {
    text.trim_end_matches('#').to_owned()
}

/// The texts of the patches that the trace contains unchanged.
fn patches(packets: &[TracePacket]) -> Vec<String> {
    let events = packets.iter().filter_map(event);
    let texts = events.filter_map(|event| event.protovm_patch.string_to_merge.as_deref());
    texts.map(unfilled).collect()
}

/// The trace's packets about programs, with their instances.
fn instances(packets: &[TracePacket]) -> Vec<Vec<proto_vms::Instance>> {
    let told = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::Protovms(vms)) => Some(vms.instance.clone()),
        _ => None,
    });
    told.collect()
}

/// The text in the state of each program.
fn states(packets: &[TracePacket]) -> Vec<String> {
    let text = |instance: &proto_vms::Instance| {
        assert_eq!(instance.memory_limit_kb, Some(MEMORY_KB));
        assert!(instance.program.is_set() && instance.state.is_set());
        let event = instance.state.as_option().and_then(event);
        let state = event.map(|event| &event.protovm_incremental_state);
        let text = state.and_then(|state| {
            assert_eq!(state.int_merged, Some(7));
            state.string_merged.as_deref()
        });
        text.map_or_else(String::new, unfilled)
    };
    instances(packets).iter().flatten().map(text).collect()
}

struct Scene {
    world: World,
    producer: ProducerId,
    consumer: ConsumerId,
    session: SessionId,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(&merging(&["d"]))
    }

    fn with(config: &TraceConfig) -> Scene {
        let mut world = World::new();
        let producer = world.producer("p");
        offer_with(&mut world, producer, "d", Some(copies(1)));
        let consumer = world.consumer();
        let session = world.enable(consumer, config);
        Scene {
            world,
            producer,
            consumer,
            session,
        }
    }

    fn write(&mut self, texts: &[&str]) {
        for text in texts {
            write(&mut self.world, self.producer, text);
        }
    }

    fn read(&mut self) -> Vec<TracePacket> {
        self.world.read(self.consumer)
    }

    fn clone_session(&mut self) -> Vec<TracePacket> {
        let cloner = self.world.consumer();
        let request = CloneRequest {
            original: Original::Id(self.session.0),
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: CloneFile::None,
        };
        self.world.try_clone(cloner, request).expect("a clone");
        self.world.acknowledge_flushes(self.producer);
        let packets = self.world.read(cloner);
        self.world.lose_consumer(cloner);
        packets
    }
}

#[test]
fn a_program_of_which_nothing_was_overwritten_has_an_empty_state() {
    let mut scene = Scene::new();
    scene.write(&["1", "2", "3"]);
    let packets = scene.read();
    assert_eq!(states(&packets), [""]);
    assert_eq!(patches(&packets), ["1", "2", "3"]);
}

#[test]
fn overwritten_packets_are_in_the_state_which_comes_before_the_others() {
    let mut scene = Scene::new();
    scene.write(&["1", "2", "3", "4", "5", "6"]);
    let packets = scene.read();
    assert_eq!(states(&packets), ["2"]);
    assert_eq!(patches(&packets), ["3", "4", "5", "6"]);
    let place = |is: &dyn Fn(&TracePacket) -> bool| packets.iter().position(is).expect("there");
    let provenance = place(&|packet| matches!(packet.data, Some(trace_packet::Data::TraceProvenance(_))));
    let told = place(&|packet| matches!(packet.data, Some(trace_packet::Data::Protovms(_))));
    let first_patch = place(&|packet| event(packet).is_some());
    assert!(
        provenance < told && told < first_patch,
        "readers know the writers of producers from the provenance: {provenance}, {told}, {first_patch}"
    );
    let instance = &instances(&packets)[0][0];
    assert_eq!(instance.program.as_option(), Some(&copies(1)));
    assert_eq!(instance.producer_id, [scene.producer.0 as i32]);
    assert_eq!(packets[told].timestamp_clock_id, Some(6));
    assert_eq!(
        packets[told].optional_trusted_uid,
        Some(trace_packet::OptionalTrustedUid::TrustedUid(42))
    );
    // This comes once in a trace.
    scene.write(&["7", "8", "9", "10", "11"]);
    let packets = scene.read();
    assert_eq!(instances(&packets), Vec::<Vec<proto_vms::Instance>>::new());
}

#[test]
fn without_programs_the_trace_has_no_instances_of_them() {
    let mut world = World::new();
    let producer = world.producer("p");
    offer_with(&mut world, producer, "d", Some(copies(1)));
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    write(&mut world, producer, "1");
    let packets = world.read(consumer);
    assert_eq!(instances(&packets), Vec::<Vec<proto_vms::Instance>>::new());
    assert_eq!(patches(&packets), ["1"]);
}

#[test]
fn a_producer_that_comes_late_has_its_program_too() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &merging(&["d"]));
    let producer = world.producer("p");
    offer_with(&mut world, producer, "d", Some(copies(1)));
    for text in ["1", "2", "3", "4", "5", "6"] {
        write(&mut world, producer, text);
    }
    let packets = world.read(consumer);
    assert_eq!(states(&packets), ["2"]);
    assert_eq!(patches(&packets), ["3", "4", "5", "6"]);
}

#[test]
fn packets_of_a_gone_producer_are_merged() {
    let mut scene = Scene::new();
    scene.write(&["1", "2", "3"]);
    scene.world.lose_producer(scene.producer);
    let other = scene.world.producer("other");
    offer_with(&mut scene.world, other, "d", Some(copies(1)));
    for text in ["4", "5", "6"] {
        write(&mut scene.world, other, text);
    }
    let packets = scene.read();
    assert_eq!(states(&packets), ["2"]);
    assert_eq!(patches(&packets), ["3", "4", "5", "6"]);
    let both = [scene.producer, other].map(|producer| producer.0 as i32);
    assert_eq!(instances(&packets)[0][0].producer_id, both);
}

#[test]
fn a_clone_has_the_state_of_its_time_and_the_original_its_own() {
    let mut scene = Scene::new();
    scene.write(&["1", "2", "3", "4", "5"]);
    let packets = scene.clone_session();
    assert_eq!(states(&packets), ["1"]);
    assert_eq!(patches(&packets), ["2", "3", "4", "5"]);
    scene.write(&["6"]);
    let packets = scene.clone_session();
    assert_eq!(states(&packets), ["2"]);
    scene.write(&["7"]);
    let packets = scene.read();
    assert_eq!(states(&packets), ["3"]);
    assert_eq!(patches(&packets), ["4", "5", "6", "7"]);
}

#[test]
fn a_trace_file_has_it_once() {
    let mut scene = Scene::with(&TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(60_000),
        ..merging(&["d"])
    });
    scene.write(&["1", "2", "3", "4", "5", "6"]);
    for _ in 0..3 {
        scene.world.advance(60_000);
    }
    let file = scene.world.files[&scene.session].clone();
    let decode = |packet: Vec<u8>| TracePacket::decode_from_slice(&packet).expect("a packet");
    let packets: Vec<TracePacket> = packets_of(&file).into_iter().map(decode).collect();
    assert_eq!(states(&packets), ["2"]);
    assert_eq!(patches(&packets), ["3", "4", "5", "6"]);
}

/// Producers of three data sources: of the first all have the same program, of the second different ones, and of the third none.
#[test]
fn packets_go_through_the_programs_of_their_producers() {
    let mut world = World::new();
    let offers = [
        ("single", Some(1)),
        ("single", Some(1)),
        ("multi", Some(1)),
        ("multi", Some(2)),
        ("none", None),
    ];
    let producers = offers.map(|(name, version)| {
        let producer = world.producer(name);
        offer_with(&mut world, producer, name, version.map(copies));
        producer
    });
    let [single_1, single_2, multi_1, multi_2, none] = producers;
    let mut config = merging(&["single", "multi", "none"]);
    config.data_sources[2]
        .config
        .get_or_insert_default()
        .protovm_config = Default::default();
    let consumer = world.consumer();
    world.enable(consumer, &config);
    for (producer, text) in [
        (single_1, "single 1, lost"),
        (single_2, "single 2, lost"),
        (multi_1, "multi 1, lost"),
        (multi_2, "multi 2, lost"),
        (none, "none, lost"),
        (single_2, "single 2"),
        (multi_1, "multi 1"),
        (multi_2, "multi 2"),
        (none, "none"),
    ] {
        write(&mut world, producer, text);
    }
    let packets = world.read(consumer);
    assert_eq!(
        states(&packets),
        ["single 2, lost", "multi 1, lost", "multi 2, lost"]
    );
    let left = ["single 2", "multi 1", "multi 2", "none"];
    assert_eq!(patches(&packets), left);
    let told = instances(&packets).concat();
    let ids = |producers: &[ProducerId]| producers.iter().map(|id| id.0 as i32).collect::<Vec<_>>();
    let producers: Vec<Vec<i32>> = told.iter().map(|instance| instance.producer_id.clone()).collect();
    assert_eq!(
        producers,
        [ids(&[single_1, single_2]), ids(&[multi_1]), ids(&[multi_2])]
    );
    assert!(
        world.log.iter().all(|line| !line.contains("ProtoVM")),
        "{:?}",
        world.log
    );
}

#[test]
fn each_buffer_has_programs_of_its_own() {
    let mut world = World::new();
    let producer = world.producer("p");
    offer_with(&mut world, producer, "d", Some(copies(1)));
    offer_with(&mut world, producer, "e", Some(copies(1)));
    let mut config = merging(&["d", "e"]);
    config.buffers.push(config.buffers[0].clone());
    config.data_sources[1]
        .config
        .get_or_insert_default()
        .target_buffer = Some(1);
    let consumer = world.consumer();
    world.enable(consumer, &config);
    let set_up = world.instances(producer);
    let targets = set_up
        .iter()
        .map(|(_, config)| config.target_buffer.expect("set") as u16);
    let targets: Vec<u16> = targets.collect();
    for text in ["1", "2", "3", "4", "5", "6"] {
        for (writer, target) in (1..).zip(&targets) {
            let text = format!("{text} of {writer}");
            world.commit(producer, writer, *target, &[&patch(&text)]);
        }
    }
    let packets = world.read(consumer);
    assert_eq!(states(&packets), ["2 of 1", "2 of 2"]);
    assert_eq!(instances(&packets).len(), 1, "in one packet");
}

#[test]
fn a_buffer_that_is_handed_over_takes_its_programs_along() {
    let mut config = merging(&["d"]);
    config.buffers[0].transfer_on_clone = Some(true);
    let mut scene = Scene::with(&config);
    scene.write(&["1", "2", "3", "4", "5"]);
    let packets = scene.clone_session();
    assert_eq!(states(&packets), ["1"]);
    assert_eq!(patches(&packets), ["2", "3", "4", "5"]);
    // As with upstream, this lasts until a producer brings the program again.
    scene.write(&["6"]);
    let packets = scene.clone_session();
    assert_eq!(patches(&packets), ["6"]);
    assert_eq!(instances(&packets), Vec::<Vec<proto_vms::Instance>>::new());
}

#[test]
fn a_program_that_cannot_be_set_up_is_logged_and_the_data_source_records() {
    let without_limit = |config: &mut TraceConfig| {
        config.data_sources[0]
            .config
            .get_or_insert_default()
            .protovm_config = ProtoVmConfig::default().into();
    };
    let long = || VmProgram {
        instructions: vec![VmInstruction::default(); limits::MAX_PROTOVM_INSTRUCTIONS + 1],
        ..Default::default()
    };
    type Change = fn(&mut TraceConfig);
    let as_it_is: Change = |_| {};
    let cases: [(Option<VmProgram>, Change, &str); 3] = [
        (None, as_it_is, "the producer offers no protovm_program"),
        (
            Some(copies(1)),
            without_limit,
            "the protovm_config has no memory_limit_kb",
        ),
        (Some(long()), as_it_is, "more than 4096 instructions"),
    ];
    for (program, change, why) in cases {
        let mut world = World::new();
        let producer = world.producer("p");
        offer_with(&mut world, producer, "d", program);
        let mut config = merging(&["d"]);
        change(&mut config);
        let consumer = world.consumer();
        world.enable(consumer, &config);
        let complaints = world.log.iter().filter(|line| line.contains(why));
        assert_eq!(complaints.count(), 1, "{why}: {:?}", world.log);
        write(&mut world, producer, "1");
        let packets = world.read(consumer);
        assert_eq!(patches(&packets), ["1"]);
        assert_eq!(instances(&packets), Vec::<Vec<proto_vms::Instance>>::new());
    }
}

#[test]
fn the_state_keeps_to_the_memory_it_may_have_and_the_log_says_so() {
    let mut config = merging(&["d"]);
    let source = config.data_sources[0].config.get_or_insert_default();
    source.protovm_config.get_or_insert_default().memory_limit_kb = Some(1);
    let mut scene = Scene::with(&config);
    scene.write(&["1", "2", "3", "4", "5", "6"]);
    let packets = scene.read();
    let instance = &instances(&packets)[0][0];
    assert_eq!(instance.memory_limit_kb, Some(1));
    scene.world.run();
    let lines = scene.world.log.iter().filter(|line| {
        line.contains("ProtoVM of data source \"d\": 2 packets")
            && line.contains("more than the 1024 bytes of its memory_limit_kb")
    });
    assert_eq!(lines.count(), 1, "{:?}", scene.world.log);
}

#[test]
fn a_memory_limit_beyond_what_a_packet_holds_is_refused() {
    let with_limit = |kb| {
        let mut config = merging(&["d"]);
        let source = config.data_sources[0].config.get_or_insert_default();
        source.protovm_config.get_or_insert_default().memory_limit_kb = Some(kb);
        let mut world = World::new();
        let consumer = world.consumer();
        world.try_enable(consumer, &config).map(drop)
    };
    assert_eq!(with_limit(limits::MAX_PROTOVM_MEMORY_KB), Ok(()));
    let error = with_limit(limits::MAX_PROTOVM_MEMORY_KB + 1).unwrap_err();
    assert!(error.contains("131073") && error.contains("131072"), "{error}");
}

#[test]
fn the_config_reaches_the_producer() {
    let scene = Scene::new();
    let (_, config) = &scene.world.instances(scene.producer)[0];
    assert_eq!(config.protovm_config.memory_limit_kb, Some(MEMORY_KB));
}

#[test]
fn a_trace_filter_applies_to_the_state_too() {
    let mut config = merging(&["d"]);
    let bytecode = super::filter_bytecode::bytecode(&[
        &[super::filter_bytecode::Rule::Nested(1, 1)],
        &[super::filter_bytecode::Rule::Keep(900)],
    ]);
    config.trace_filter = trace_config::TraceFilter {
        bytecode_v2: Some(bytecode),
        ..Default::default()
    }
    .into();
    let mut scene = Scene::with(&config);
    scene.write(&["1", "2", "3", "4", "5", "6"]);
    let packets = scene.read();
    assert_eq!(instances(&packets), Vec::<Vec<proto_vms::Instance>>::new());
    assert_eq!(patches(&packets), ["3", "4", "5", "6"]);
}

/// A program that takes a message as its state and then, for each number in a packet, goes through the whole state. It merges nothing permanently,
/// so the packet goes on to other programs.
fn hungry() -> VmProgram {
    const NUMBER: u32 = 1;
    /// A number in every packet.
    const ELEMENT: u32 = 8;
    const STATE: u32 = 4;
    let select = |cursor, number: u32, is_repeated| VmInstruction {
        operation: Some(Operation::Select(Box::new(VmOpSelect {
            cursor: Some(cursor),
            relative_path: vec![PathComponent {
                field: Some(Field::FieldId(number)),
                is_repeated: Some(is_repeated),
                ..Default::default()
            }],
            ..Default::default()
        }))),
        abort_level: Some(AbortLevel::SKIP_CURRENT_INSTRUCTION),
        ..Default::default()
    };
    let with = |outer: VmInstruction, nested_instructions| VmInstruction {
        nested_instructions,
        ..outer
    };
    let (packet, state) = (VmCursorEnum::VM_CURSOR_SRC, VmCursorEnum::VM_CURSOR_DST);
    let nothing = || VmInstruction {
        operation: Some(Operation::Select(Box::new(VmOpSelect {
            cursor: Some(packet),
            ..Default::default()
        }))),
        ..Default::default()
    };
    let merge = VmInstruction {
        operation: Some(Operation::Merge(Box::default())),
        ..Default::default()
    };
    let visit = with(select(state, ELEMENT, true), (0..6).map(|_| nothing()).collect());
    let finds_nothing = VmInstruction {
        abort_level: None,
        ..select(packet, STATE + 1, false)
    };
    VmProgram {
        instructions: vec![
            with(select(packet, STATE, false), vec![merge]),
            with(select(packet, NUMBER, true), vec![visit]),
            finds_nothing,
        ],
        ..Default::default()
    }
}

#[test]
fn packets_that_one_request_overwrites_are_merged_within_bounds_and_later_ones_begin_afresh() {
    const COUNT: usize = 1800;
    const FILL: usize = 8;
    const AT_ONCE: usize = 12;
    let numbers = |field: u32| {
        let mut out = ferretto_wire::Writer::new();
        (0..COUNT).for_each(|_| out.varint_field(field, 1));
        out.into_vec()
    };
    let mut state = ferretto_wire::Writer::new();
    state.bytes_field(4, &numbers(8));
    let (state, visits) = (state.into_vec(), numbers(1));
    // Two programs together may save as much work as all programs may use at once.
    assert_eq!(2 * limits::MAX_PROTOVM_WORK, limits::MAX_PROTOVM_WORK_AT_ONCE);
    let mut world = World::new();
    let producer = world.producer_with("p", Scraping::Enabled);
    for (name, program) in [("a", hungry()), ("b", hungry()), ("c", copies(1))] {
        offer_with(&mut world, producer, name, Some(program));
    }
    let mut config = merging(&["a", "b", "c"]);
    config.buffers[0].size_kb = Some(16);
    for source in &mut config.data_sources {
        let source = source.config.get_or_insert_default();
        source.protovm_config.get_or_insert_default().memory_limit_kb = Some(1024);
    }
    let consumer = world.consumer();
    world.enable(consumer, &config);
    let target = world.target(producer);
    world.service.register_trace_writer(producer, 1, target.into());
    world.commit(producer, 1, target, &[&state]);
    world.commit(producer, 1, target, &[&visits]);
    for _ in 0..FILL {
        write(&mut world, producer, "early");
    }
    world.flush(consumer, 1, 5000);
    let mut request = CommitDataRequest::default();
    for _ in 0..AT_ONCE {
        let one = world.write(producer, 1, target, &[&patch("early")]);
        request.chunks_to_move.extend(one.chunks_to_move);
    }
    world.service.commit(producer, &request, &world.now);
    let _ = world.write(producer, 1, target, &[&patch("scraped")]);
    world.advance(5000);
    let packets = world.read(consumer);
    world.run();
    // The log does not repeat it.
    world.read(consumer);
    world.run();
    assert!(patches(&packets).contains(&"scraped".to_owned()));
    let merged = &instances(&packets)[0][2];
    let merged = merged.state.as_option().and_then(event);
    let text = merged.and_then(|event| event.protovm_incremental_state.string_merged.as_deref());
    assert_eq!(text.map(unfilled).as_deref(), Some("early"));
    // One complaint is about the packet that took so long. The other is about the patches that were overwritten together with it.
    let complaint = |line: &&String| line.contains("of data source \"c\"") && line.contains("takes too long");
    let complaints: Vec<_> = world.log.iter().filter(complaint).collect();
    assert!(
        complaints.len() == 1 && complaints[0].contains(": 5 packets"),
        "{:?}",
        world.log
    );
}
