use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::{NonZero, Wrapping};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI8;
use std::time::Duration;

use ferretto_proto::messages::DebugAnnotation as Decoded;
use ferretto_proto::messages::Message;
use ferretto_proto::messages::debug_annotation as oneof;
use ferretto_wire::Writer;
use proptest::prelude::*;

mod derive;

use super::text::write_lossy;
use super::{AnnotationValue, DebugAnnotation, debug, display, from_fn};

/// The decoded value of an annotation. Writing one is the simplest use of everything that nests.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nothing,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Pointer(u64),
    Text(String),
    Array(Vec<Value>),
    Dictionary(Vec<(String, Value)>),
}

impl DebugAnnotation for Value {
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        match self {
            Value::Nothing => value.none(),
            Value::Bool(inner) => value.bool(*inner),
            Value::Int(inner) => value.int(*inner),
            Value::Uint(inner) => value.uint(*inner),
            Value::Double(inner) => value.double(*inner),
            Value::Pointer(inner) => value.pointer(*inner),
            Value::Text(inner) => value.string(inner),
            Value::Array(inner) => inner.write_annotation(value),
            Value::Dictionary(inner) => value.dictionary(|entries| {
                for (name, value) in inner {
                    entries.entry(name, value);
                }
            }),
        }
    }
}

impl Value {
    /// The value as readers can tell it.
    fn as_read(&self) -> Value {
        match self {
            Value::Array(elements) if elements.is_empty() => Value::Nothing,
            Value::Dictionary(entries) if entries.is_empty() => Value::Nothing,
            Value::Array(elements) => Value::Array(elements.iter().map(Value::as_element).collect()),
            Value::Dictionary(entries) => {
                let entries = entries
                    .iter()
                    .map(|(name, value)| (name.clone(), value.as_read()));
                Value::Dictionary(entries.collect())
            }
            scalar => scalar.clone(),
        }
    }

    fn as_element(&self) -> Value {
        match self {
            Value::Nothing => text("None"),
            Value::Array(elements) if elements.is_empty() => text("[]"),
            Value::Dictionary(entries) if entries.is_empty() => text("{}"),
            other => other.as_read(),
        }
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn decode(annotation: &Decoded) -> Value {
    let values = usize::from(annotation.value.is_some());
    let (elements, entries) = (&annotation.array_values, &annotation.dict_entries);
    assert!(
        values + usize::from(!elements.is_empty()) + usize::from(!entries.is_empty()) <= 1,
        "more than one value in {annotation:?}"
    );
    if !elements.is_empty() {
        assert!(elements.iter().all(|element| element.name_field.is_none()));
        return Value::Array(elements.iter().map(decode).collect());
    }
    if !entries.is_empty() {
        let named = |entry: &Decoded| match &entry.name_field {
            Some(oneof::NameField::Name(name)) => (name.clone(), decode(entry)),
            other => panic!("an entry named {other:?}"),
        };
        return Value::Dictionary(entries.iter().map(named).collect());
    }
    match &annotation.value {
        None => Value::Nothing,
        Some(oneof::Value::BoolValue(value)) => Value::Bool(*value),
        Some(oneof::Value::IntValue(value)) => Value::Int(*value),
        Some(oneof::Value::UintValue(value)) => Value::Uint(*value),
        Some(oneof::Value::DoubleValue(value)) => Value::Double(*value),
        Some(oneof::Value::PointerValue(value)) => Value::Pointer(*value),
        Some(oneof::Value::StringValue(value)) => Value::Text(value.clone()),
        Some(other) => panic!("unexpected {other:?}"),
    }
}

fn written(value: impl DebugAnnotation) -> Decoded {
    let mut writer = Writer::new();
    value.write_annotation(AnnotationValue::new(&mut writer));
    Decoded::decode_from_slice(writer.as_slice()).unwrap()
}

#[track_caller]
fn reads(value: impl DebugAnnotation, expected: Value) {
    assert_eq!(decode(&written(value)), expected);
}

fn entry(name: &str, value: Value) -> (String, Value) {
    (name.to_owned(), value)
}

fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Nothing),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<u64>().prop_map(Value::Uint),
        any::<f64>().prop_map(Value::Double),
        any::<u64>().prop_map(Value::Pointer),
        ".{0,300}".prop_map(Value::Text),
    ];
    scalar.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::vec((".{0,20}", inner), 0..8).prop_map(Value::Dictionary),
        ]
    })
}

proptest! {
    #[test]
    fn every_written_value_is_read_back(value in any_value()) {
        prop_assert_eq!(decode(&written(&value)), value.as_read());
    }

    #[test]
    fn formatted_text_is_written_like_a_string(pieces in prop::collection::vec(".{0,60}", 0..8), number: i32) {
        let formatted = format!("{pieces:?} {number:>9}");
        reads(format_args!("{pieces:?} {number:>9}"), Value::Text(formatted));
        reads(debug(&pieces), Value::Text(format!("{pieces:?}")));
        reads(display(number), Value::Text(number.to_string()));
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced_as_everywhere_else(bytes in prop::collection::vec(prop_oneof![Just(b'a'), any::<u8>()], 0..300)) {
        let mut writer = Writer::new();
        write_lossy(&mut writer, 6, &bytes);
        let decoded = Decoded::decode_from_slice(writer.as_slice()).unwrap();
        prop_assert_eq!(decode(&decoded), Value::Text(String::from_utf8_lossy(&bytes).into_owned()));
    }
}

#[test]
fn numbers_keep_their_sign_and_size() {
    reads(i8::MIN, Value::Int(-128));
    reads(i64::MIN, Value::Int(i64::MIN));
    reads(-1isize, Value::Int(-1));
    reads(u8::MAX, Value::Uint(255));
    reads(u64::MAX, Value::Uint(u64::MAX));
    reads(1.5f32, Value::Double(1.5));
    reads(f64::NEG_INFINITY, Value::Double(f64::NEG_INFINITY));
    reads(NonZero::<u32>::MAX, Value::Uint(u64::from(u32::MAX)));
    reads(Wrapping(-3i16), Value::Int(-3));
    reads(AtomicI8::new(-7), Value::Int(-7));
    reads(Cell::new(true), Value::Bool(true));
    reads(Duration::new(2, 5), Value::Uint(2_000_000_005));
}

#[test]
fn numbers_beyond_64_bits_are_text() {
    reads(-5i128, Value::Int(-5));
    reads(i128::MIN, text("-170141183460469231731687303715884105728"));
    reads(u128::from(u64::MAX), Value::Uint(u64::MAX));
    reads(u128::from(u64::MAX) + 1, text("18446744073709551616"));
    reads(
        NonZero::<u128>::MAX,
        text("340282366920938463463374607431768211455"),
    );
}

#[test]
fn text_has_many_forms() {
    reads('é', text("é"));
    reads("borrowed", text("borrowed"));
    reads(String::from("owned"), text("owned"));
    reads(Cow::Borrowed("either"), text("either"));
    reads(Box::<str>::from("boxed"), text("boxed"));
    reads(c"C's", text("C's"));
    reads(c"\xff", text("\u{fffd}"));
    reads(Path::new("/proc/self"), text("/proc/self"));
    reads(OsStr::from_bytes(b"a\xc3"), text("a\u{fffd}"));
    reads(IpAddr::V4(Ipv4Addr::LOCALHOST), text("127.0.0.1"));
    reads(format_args!("constant"), text("constant"));
}

#[test]
fn pointers_are_their_address() {
    let local = 5;
    let pointer = &raw const local;
    reads(pointer, Value::Pointer(pointer.addr() as u64));
    reads(std::ptr::null_mut::<u8>(), Value::Pointer(0));
    let slice: *const [u8] = &[1, 2];
    reads(slice, Value::Pointer(slice.addr() as u64));
}

#[test]
fn collections_are_arrays_and_dictionaries() {
    let numbers = || Value::Array(vec![Value::Uint(1), Value::Uint(2)]);
    reads(vec![1u8, 2], numbers());
    reads([1u16, 2], numbers());
    reads(&[1u32, 2][..], numbers());
    reads(VecDeque::from([1u64, 2]), numbers());
    reads(BTreeSet::from([1usize, 2]), numbers());
    reads(
        (1u8, "two", 3.0),
        Value::Array(vec![Value::Uint(1), text("two"), Value::Double(3.0)]),
    );
    let entries = vec![entry("1", text("one")), entry("2", text("two"))];
    reads(
        BTreeMap::from([(1, "one"), (2, "two")]),
        Value::Dictionary(entries),
    );
    let by_name = Value::Dictionary(vec![entry("key", Value::Int(5))]);
    reads(HashMap::from([("key", 5)]), by_name.clone());
    reads(HashMap::from([(String::from("key"), 5)]), by_name);
}

#[test]
fn nothing_is_left_out_but_among_elements() {
    reads(None::<u8>, Value::Nothing);
    reads((), Value::Nothing);
    reads(Vec::<u8>::new(), Value::Nothing);
    reads(Some(1u8), Value::Uint(1));
    reads(
        vec![None, Some(1u8)],
        Value::Array(vec![text("None"), Value::Uint(1)]),
    );
    reads(
        vec![vec![], vec![1u8]],
        Value::Array(vec![text("[]"), Value::Array(vec![Value::Uint(1)])]),
    );
    reads([BTreeMap::<u8, u8>::new()], Value::Array(vec![text("{}")]));
}

#[test]
fn an_error_is_an_entry_beside_no_value() {
    let parsed: Result<u8, _> = "300".parse::<u8>();
    let message = parsed.clone().unwrap_err().to_string();
    reads(
        parsed,
        Value::Dictionary(vec![entry("Err", Value::Text(message))]),
    );
    reads("200".parse::<u8>(), Value::Uint(200));
}

#[test]
fn trait_objects_and_closures_are_values() {
    let values: Vec<Arc<dyn DebugAnnotation>> = vec![Arc::new(5), Arc::new("five")];
    reads(values, Value::Array(vec![Value::Int(5), text("five")]));
    let size = from_fn(|value| {
        value.dictionary(|size| {
            size.entry("width", 640u32)
                .entry_display(format_args!("{}ight", "he"), 480u32);
        })
    });
    let expected = vec![
        entry("width", Value::Uint(640)),
        entry("height", Value::Uint(480)),
    ];
    reads(size, Value::Dictionary(expected));
}

#[test]
fn text_before_a_formatting_error_stands() {
    struct Broken;
    impl fmt::Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("so far")?;
            Err(fmt::Error)
        }
    }
    reads(vec![display(Broken)], Value::Array(vec![text("so far")]));
}

#[test]
fn an_alternative_is_more_than_its_name_if_it_has_a_value() {
    let variant = |inner: Option<u8>| from_fn(move |value| value.variant("Some", inner));
    reads(
        variant(Some(5)),
        Value::Dictionary(vec![entry("Some", Value::Uint(5))]),
    );
    reads(variant(None), text("Some"));
    reads([variant(None)], Value::Array(vec![text("Some")]));
}

#[test]
fn a_message_names_its_type() {
    let request = from_fn(|value| value.proto(".example.Request", |message| message.varint_field(3, 5)));
    let decoded = written(request);
    assert_eq!(
        decoded.proto_type_descriptor,
        Some(oneof::ProtoTypeDescriptor::ProtoTypeName(
            ".example.Request".to_owned()
        ))
    );
    assert_eq!(decoded.proto_value.as_deref(), Some(&b"\x18\x05"[..]));
}

#[test]
fn megabytes_are_whole() {
    let long = "x".repeat(10 << 20);
    reads(&long, Value::Text(long.clone()));
    reads([display(&long)], Value::Array(vec![Value::Text(long.clone())]));
}

#[derive(Debug)]
struct Wrapped(&'static str, Option<Box<dyn std::error::Error + Send + Sync>>);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_deref().map(|source| source as _)
    }
}

#[test]
fn errors_are_written_with_their_sources() {
    let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
    let settings = || Wrapped("reading settings", Some(missing().into()));
    let all = text("starting: reading settings: no such file");
    let chain = || Wrapped("starting", Some(settings().into()));
    reads(super::error(chain()), all.clone());
    reads(super::error(&chain()), all.clone());
    reads(&chain() as &dyn std::error::Error, all.clone());
    reads(Box::<dyn std::error::Error>::from(chain()), all.clone());
    reads(
        Box::<dyn std::error::Error + Send + Sync>::from(chain()),
        all.clone(),
    );
    reads(Arc::new(chain()) as Arc<dyn std::error::Error + Send>, all);
    reads(missing(), text("no such file"));
    reads(
        "x".parse::<i32>().unwrap_err(),
        text("invalid digit found in string"),
    );
    reads(Some(fmt::Error), text(&fmt::Error.to_string()));
}

#[test]
fn times_ranges_and_long_tuples_are_arguments() {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(951_827_696);
    reads(time, text("2000-02-29T12:34:56.000000000Z"));
    reads(Some(&time), text("2000-02-29T12:34:56.000000000Z"));
    let entries = |entries: &[(&str, i64)]| {
        let entries = entries
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Value::Int(*value)));
        Value::Dictionary(entries.collect())
    };
    reads(3..7, entries(&[("start", 3), ("end", 7)]));
    reads(3..=7, entries(&[("start", 3), ("last", 7)]));
    reads(3.., entries(&[("start", 3)]));
    reads(..7, entries(&[("end", 7)]));
    reads(
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
        Value::Array((1..=12).map(Value::Int).collect()),
    );
}

#[cfg(feature = "serde_json")]
#[test]
fn json_reads_as_it_is() {
    let value = serde_json::json!({
        "list": [1, -2, 2.5, "three", null, [], {}],
        "large": u64::MAX,
        "nothing": null,
        "sure": true,
    });
    let mut entries = vec![
        ("large".to_owned(), Value::Uint(u64::MAX)),
        (
            "list".to_owned(),
            Value::Array(vec![
                Value::Int(1),
                Value::Int(-2),
                Value::Double(2.5),
                text("three"),
                text("None"),
                text("[]"),
                text("{}"),
            ]),
        ),
        ("nothing".to_owned(), Value::Nothing),
        ("sure".to_owned(), Value::Bool(true)),
    ];
    let Value::Dictionary(mut read) = decode(&written(&value)) else {
        panic!("{value} is no dictionary")
    };
    // In its own order if something else in the program asks `serde_json` to keep it.
    read.sort_by(|one, other| one.0.cmp(&other.0));
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(read, entries);
    reads(value.as_object().unwrap()["list"][2].clone(), Value::Double(2.5));
}
