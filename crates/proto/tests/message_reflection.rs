//! The generated messages against an independent implementation, `prost-reflect`, which reads the schema itself: what one encodes the
//! other decodes, nothing that the schema does not know is lost, and no bytes do harm.
#![allow(unsafe_code, reason = "the allocator that counts")]

#[path = "support/dice.rs"]
mod dice;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;

use ferretto_proto::messages::{self, MAX_ELEMENT_MEMORY, Message};
use ferretto_wire::{Reader, Writer};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use dice::{Dice, config};

/// Counts what each thread has allocated at once.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn account(bytes: isize) {
    // Not of threads that end.
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if let Ok(held) = held {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held)));
    }
}

// SAFETY: each call goes to the system's allocator, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        account(layout.size() as isize);
        // SAFETY: the caller's promises are those that are asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        account(-(layout.size() as isize));
        // SAFETY: likewise; what we gave out was the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` holds at once.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before) as usize)
}

/// The schema, as another compiler and another reader of descriptors see it.
fn schema() -> &'static DescriptorPool {
    static SCHEMA: OnceLock<DescriptorPool> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let mut compiler = protox::Compiler::new([&folder]).expect("the schema is there");
        compiler
            .include_imports(true)
            .open_files([
                "perfetto/trace/trace.proto",
                "perfetto/config/trace_config.proto",
                "perfetto/ipc/consumer_port.proto",
                "perfetto/ipc/producer_port.proto",
                "perfetto/ipc/wire_protocol.proto",
            ])
            .expect("the schema compiles");
        DescriptorPool::decode(&*compiler.encode_file_descriptor_set()).expect("it hangs together")
    })
}

/// A message, as both sides know it.
struct Type {
    descriptor: MessageDescriptor,
    /// Decodes and encodes again, by the generated code.
    again: fn(&[u8]) -> Result<Vec<u8>, messages::DecodeError>,
}

/// The messages that others send us, and those with every kind of field.
fn types() -> Vec<Type> {
    fn again<M: Message>(bytes: &[u8]) -> Result<Vec<u8>, messages::DecodeError> {
        let message = M::decode_from_slice(bytes)?;
        let encoded = message.encode_to_vec();
        assert_eq!(encoded.len(), message.encoded_len());
        Ok(encoded)
    }
    macro_rules! types {
        ($($name:ident),* $(,)?) => {
            vec![$(Type {
                descriptor: schema()
                    .get_message_by_name(concat!("perfetto.protos.", stringify!($name)))
                    .expect("the schema has it"),
                again: again::<messages::$name>,
            }),*]
        };
    }
    types![
        CommitDataRequest,
        DataSourceConfig,
        DataSourceDescriptor,
        EnableTracingRequest,
        GetAsyncCommandResponse,
        IPCFrame,
        InitializeConnectionRequest,
        ObservableEvents,
        RegisterDataSourceRequest,
        TraceConfig,
        TracePacket,
        TraceStats,
        TracingServiceState,
        TrackEvent,
    ]
}

/// Puts fields between those of an encoded message, here and in messages within, that the schema does not know.
fn sprinkle(dice: &mut Dice, descriptor: &MessageDescriptor, message: &[u8]) -> Vec<u8> {
    let mut sprinkled = Writer::new();
    let unknown = |dice: &mut Dice, to: &mut Writer| {
        // From a range that no schema of Perfetto's uses.
        let number = 60_000 + dice.below(5) as u32;
        match dice.below(8) {
            0 => to.varint_field(number, dice.roll() >> dice.below(64)),
            1 => to.fixed32_field(number, dice.roll() as u32),
            2 => to.fixed64_field(number, dice.roll()),
            3 => to.bytes_field(number, &vec![7; dice.below(200)]),
            _ => {}
        }
    };
    for field in Reader::new(message).map(|field| field.expect("it was encoded")) {
        unknown(dice, &mut sprinkled);
        let known = descriptor.get_field(field.number);
        match (known.map(|known| known.kind()), field.value.as_bytes()) {
            (Some(Kind::Message(inner)), Some(bytes)) => {
                let bytes = sprinkle(dice, &inner, bytes);
                sprinkled.bytes_field(field.number, &bytes);
            }
            _ => sprinkled.raw(field.raw),
        }
    }
    unknown(dice, &mut sprinkled);
    sprinkled.into_vec()
}

#[test]
fn nothing_is_lost_of_what_another_implementation_encodes() {
    let types = types();
    proptest!(config(), |(seed in any::<u64>(), kind in any::<prop::sample::Index>())| {
        let Type { descriptor, again } = kind.get(&types);
        let mut dice = Dice(seed);
        let message = dice.message(descriptor, 0);
        let ours = again(&message.encode_to_vec()).expect("it is well-formed");
        let read = DynamicMessage::decode(descriptor.clone(), ours.as_slice()).expect("so is this");
        prop_assert_eq!(read, message, "{}", descriptor.name());
    });
}

#[test]
fn fields_that_the_schema_does_not_know_survive_at_every_depth() {
    let types = types();
    proptest!(config(), |(seed in any::<u64>(), kind in any::<prop::sample::Index>())| {
        let Type { descriptor, again } = kind.get(&types);
        let mut dice = Dice(seed);
        let known = dice.message(descriptor, 0).encode_to_vec();
        let bytes = sprinkle(&mut dice, descriptor, &known);
        let message = DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).expect("it is well-formed");
        let ours = again(&bytes).expect("it is well-formed");
        prop_assert_eq!(ours.len(), bytes.len(), "{}", descriptor.name());
        let read = DynamicMessage::decode(descriptor.clone(), ours.as_slice()).expect("so is this");
        prop_assert_eq!(read, message, "{}", descriptor.name());
    });
}

/// Has no enum in it any more, however deep. A value that the schema does not know goes behind those it knows when ours is encoded, so
/// that where an enum comes twice the last one may be another.
fn forget_enums(message: &mut DynamicMessage) {
    let is_enum = |field: &FieldDescriptor| matches!(field.kind(), Kind::Enum(_));
    let fields: Vec<FieldDescriptor> = message.fields().map(|(field, _)| field).collect();
    for field in fields {
        match message.get_field_mut(&field) {
            _ if is_enum(&field) => message.clear_field(&field),
            Value::Message(inner) => forget_enums(inner),
            Value::List(list) => list
                .iter_mut()
                .filter_map(Value::as_message_mut)
                .for_each(forget_enums),
            _ => {}
        }
    }
}

/// Whether ours, encoded again, means to an independent implementation what `bytes` do, where both take them.
fn mean_the_same(descriptor: &MessageDescriptor, bytes: &[u8], ours: &[u8]) -> bool {
    // That one also takes groups, which nothing of Perfetto's has, and leaves limits to others.
    let decode = |bytes| DynamicMessage::decode(descriptor.clone(), bytes);
    let (Ok(mut theirs), Ok(mut read)) = (decode(bytes), decode(ours)) else {
        return true;
    };
    forget_enums(&mut theirs);
    forget_enums(&mut read);
    // Encoded, for a number that is none is not equal to itself.
    read.encode_to_vec().len() == theirs.encode_to_vec().len()
}

#[test]
fn an_unknown_value_of_an_enum_stays_behind_the_known_one() {
    // `final_flush_outcome`, unknown and then known.
    let bytes = [0x78, 0x80, 0x80, 0x80, 0x80, 0x01, 0x78, 0x02];
    let types = types();
    let stats = types.iter().find(|known| known.descriptor.name() == "TraceStats");
    let Type { descriptor, again } = stats.expect("it is among them");
    let ours = again(&bytes).expect("it is no damage");
    assert_eq!(ours, [0x78, 0x02, 0x78, 0x80, 0x80, 0x80, 0x80, 0x01]);
    assert!(mean_the_same(descriptor, &bytes, &ours));
}

#[test]
fn damaged_messages_are_refused_or_mean_the_same_to_both() {
    let types = types();
    proptest!(config(), |(
        seed in any::<u64>(),
        kind in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        junk in prop::collection::vec(any::<u8>(), 0..4),
        removed in 0_usize..4,
    )| {
        let Type { descriptor, again } = kind.get(&types);
        let mut bytes = Dice(seed).message(descriptor, 0).encode_to_vec();
        let from = at.index(bytes.len() + 1);
        let to = (from + removed).min(bytes.len());
        bytes.splice(from..to, junk);
        if let Ok(ours) = again(&bytes) {
            let third = again(&ours).expect("it was encoded");
            prop_assert_eq!(&third, &ours, "{}", descriptor.name());
            prop_assert!(mean_the_same(descriptor, &bytes, &ours), "{}", descriptor.name());
        }
    });
}

#[test]
fn few_bytes_never_take_much_memory() {
    const EMPTY_MESSAGES: usize = 1 << 20;
    for Type { descriptor, again } in types() {
        // Each of the fields that hold messages or texts, again and again, with nothing in them.
        let fields = descriptor.fields().filter(|field| field.is_list());
        for field in
            fields.filter(|field| matches!(field.kind(), Kind::Message(_) | Kind::String | Kind::Bytes))
        {
            let mut one = Writer::new();
            one.bytes_field(field.number(), &[]);
            let bytes = one.as_slice().repeat(EMPTY_MESSAGES);
            let (_, peak) = peak_of(|| again(&bytes));
            // A vector that grows takes three times what it holds; what is encoded again takes as much as it had.
            let bound = 3 * MAX_ELEMENT_MEMORY + 4 * bytes.len();
            assert!(
                peak <= bound,
                "{} bytes of {} for {peak}",
                bytes.len(),
                field.full_name()
            );
        }
    }
}
