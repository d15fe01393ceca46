//! The output of `#[derive(DebugAnnotation)]`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use super::{Value, entry, reads, text};
use crate::DebugAnnotation;
use crate::debug_annotation::AnnotationValue;

fn uint(number: u64) -> Value {
    Value::Uint(number)
}

fn dictionary<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Dictionary(entries.map(|(name, value)| entry(name, value)).into())
}

#[derive(DebugAnnotation)]
struct Unit;

#[derive(DebugAnnotation)]
struct Meters(u32);

#[derive(DebugAnnotation)]
struct Pair(u8, pub(crate) (u8, bool));

#[derive(DebugAnnotation)]
struct Empty {}

#[test]
fn structs_are_dictionaries_arrays_or_their_only_field() {
    #[derive(DebugAnnotation)]
    struct Request {
        /// With documentation.
        pub url: String,
        pub(crate) r#type: u8,
        distance: Meters,
        nested: Option<Box<Request>>,
    }
    let inner = Request {
        url: "b".into(),
        r#type: 2,
        distance: Meters(3),
        nested: None,
    };
    let outer = Request {
        url: "a".into(),
        r#type: 1,
        distance: Meters(4),
        nested: Some(Box::new(inner)),
    };
    let expected_inner = [
        ("url", text("b")),
        ("type", uint(2)),
        ("distance", uint(3)),
        ("nested", Value::Nothing),
    ];
    let expected = [
        ("url", text("a")),
        ("type", uint(1)),
        ("distance", uint(4)),
        ("nested", dictionary(expected_inner)),
    ];
    reads(outer, dictionary(expected));
    reads(Unit, text("Unit"));
    let inner = Value::Array(vec![uint(2), Value::Bool(true)]);
    reads(Pair(1, (2, true)), Value::Array(vec![uint(1), inner]));
    reads(Empty {}, Value::Nothing);
}

#[test]
fn variants_are_their_name_and_contents() {
    #[derive(DebugAnnotation)]
    #[allow(clippy::enum_variant_names)]
    enum Shape {
        Nothing,
        Circle(u8),
        Box(u8, u8),
        Sphere {
            radius: u8,
            #[annotation(skip)]
            #[allow(dead_code, reason = "what is not told is not read")]
            secret: u8,
        },
        #[annotation(rename = "a void")]
        Void(
            #[annotation(skip)]
            #[allow(dead_code, reason = "what is not told is not read")]
            fn(),
        ),
        Maybe(Option<u8>),
        Bare {},
    }
    reads(Shape::Nothing, text("Nothing"));
    reads(Shape::Circle(1), dictionary([("Circle", uint(1))]));
    reads(
        Shape::Box(1, 2),
        dictionary([("Box", Value::Array(vec![uint(1), uint(2)]))]),
    );
    let sphere = Shape::Sphere { radius: 3, secret: 4 };
    reads(
        sphere,
        dictionary([("Sphere", dictionary([("radius", uint(3))]))]),
    );
    reads(Shape::Void(|| ()), text("a void"));
    reads(Shape::Maybe(Some(1)), dictionary([("Maybe", uint(1))]));
    reads(Shape::Maybe(None), text("Maybe"));
    reads(Shape::Bare {}, text("Bare"));
}

#[test]
fn discriminants_may_be_any_expression() {
    #[derive(DebugAnnotation)]
    #[repr(u16)]
    enum Flag {
        Low = 1 << 2,
        High = if 2 > 1 { u16::MAX } else { 0 },
        Big = size_of::<(u8, u8)>() as u16,
    }
    reads(
        [Flag::Low, Flag::High, Flag::Big],
        Value::Array(vec![text("Low"), text("High"), text("Big")]),
    );
}

#[test]
fn an_enum_may_have_no_variants() {
    #[derive(DebugAnnotation)]
    enum Never {}
    reads(None::<Never>, Value::Nothing);
}

/// Has a `Display` and a `Debug`, and is no annotation.
struct Opaque;

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shown")
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("debugged")
    }
}

fn length(opaque: &[Opaque], value: AnnotationValue<'_>) {
    value.uint(opaque.len() as u64);
}

#[test]
fn fields_are_written_as_their_attributes_say() {
    #[derive(DebugAnnotation)]
    struct Attributes {
        #[annotation(display)]
        a: Opaque,
        #[annotation(debug, rename = "the b")]
        b: Opaque,
        #[annotation(with = length)]
        c: Vec<Opaque>,
        #[annotation(skip)]
        #[allow(dead_code, reason = "what is not told is not read")]
        d: Opaque,
        #[annotation(with = (|_: &Opaque, value: AnnotationValue<'_>| value.bool(true)))]
        #[annotation(rename = r#"e"f"#)]
        e: Opaque,
    }
    let value = Attributes {
        a: Opaque,
        b: Opaque,
        c: vec![Opaque, Opaque],
        d: Opaque,
        e: Opaque,
    };
    let expected = [
        ("a", text("shown")),
        ("the b", text("debugged")),
        ("c", uint(2)),
        ("e\"f", Value::Bool(true)),
    ];
    reads(value, dictionary(expected));
}

#[test]
fn types_are_written_as_their_attributes_say() {
    #[derive(Debug, DebugAnnotation)]
    #[annotation(debug)]
    #[allow(dead_code, reason = "what is not told is not read")]
    enum Level {
        High(u8),
    }
    reads(Level::High(5), text("High(5)"));

    #[derive(DebugAnnotation)]
    #[annotation(with = (|_, value: AnnotationValue<'_>| value.string("hidden")))]
    struct Secret;
    reads(Secret, text("hidden"));

    #[derive(DebugAnnotation)]
    #[annotation(display)]
    struct Shown<T>(T);
    impl<T: fmt::Display> fmt::Display for Shown<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "<{}>", self.0)
        }
    }
    reads(Shown(Opaque), text("<shown>"));
}

#[test]
fn a_newtype_may_be_formatted() {
    #[derive(DebugAnnotation)]
    struct Shown(#[annotation(display)] Opaque);
    reads(Shown(Opaque), text("shown"));
}

struct NotAnAnnotation;

trait Protocol {
    type Id;
}

impl Protocol for NotAnAnnotation {
    type Id = u8;
}

#[test]
fn generic_parameters_get_the_bounds_that_fields_need() {
    #[derive(DebugAnnotation)]
    struct Generic<'a, T: ?Sized, S, D, P: Protocol, const N: usize> {
        borrowed: &'a T,
        list: [S; N],
        #[annotation(display)]
        shown: D,
        id: P::Id,
        qualified: <P as Protocol>::Id,
        phantom: PhantomData<P>,
        #[annotation(skip)]
        #[allow(dead_code, reason = "what is not told is not read")]
        skipped: Option<P>,
    }
    let value = Generic::<str, u8, Opaque, NotAnAnnotation, 2> {
        borrowed: "text",
        list: [1, 2],
        shown: Opaque,
        id: 3,
        qualified: 4,
        phantom: PhantomData,
        skipped: None,
    };
    let expected = [
        ("borrowed", text("text")),
        ("list", Value::Array(vec![uint(1), uint(2)])),
        ("shown", text("shown")),
        ("id", uint(3)),
        ("qualified", uint(4)),
    ];
    reads(value, dictionary(expected));
}

#[test]
fn declarations_may_have_all_that_rust_has() {
    #[derive(DebugAnnotation)]
    struct Declared<
        'a,
        'b: 'a,
        #[allow(dead_code, reason = "what is not told is not read")] S = u8,
        F: Fn(&'a u8) -> Vec<u8> = fn(&'a u8) -> Vec<u8>,
        const N: usize = { 1 + 1 },
    >
    where
        S: Clone + Into<Option<S>>,
        for<'c> &'c [S]: IntoIterator<Item = &'c S>,
    {
        borrowed: &'a &'b [S; N],
        #[annotation(skip)]
        #[allow(dead_code, reason = "what is not told is not read")]
        function: F,
    }
    let declared = Declared::<u64, fn(&u8) -> Vec<u8>> {
        borrowed: &&[1, 2],
        function: |_| vec![],
    };
    reads(
        declared,
        dictionary([("borrowed", Value::Array(vec![uint(1), uint(2)]))]),
    );

    #[derive(DebugAnnotation)]
    struct Callback<F: Fn(u8) -> u8, T>(#[annotation(with = ignore)] F, T)
    where
        T: Clone;
    fn ignore<T>(_: &T, value: AnnotationValue<'_>) {
        value.none();
    }
    reads(Callback(|x| x, 5u8), Value::Array(vec![text("None"), uint(5)]));
}

#[test]
fn bounds_can_be_given() {
    #[derive(DebugAnnotation)]
    #[annotation(bound(T: AsRef<str>))]
    struct Name<T> {
        #[annotation(with = (|name: &T, value: AnnotationValue<'_>| value.string(name.as_ref())))]
        name: T,
    }
    reads(
        Name {
            name: Cow::Borrowed("x"),
        },
        dictionary([("name", text("x"))]),
    );
}

#[test]
fn generic_types_may_contain_themselves() {
    #[derive(DebugAnnotation)]
    enum List<T> {
        End,
        Link(T, Box<List<T>>),
    }
    let list = List::Link(1u8, Box::new(List::End));
    reads(
        list,
        dictionary([("Link", Value::Array(vec![uint(1), text("End")]))]),
    );
}

#[test]
fn macros_can_make_the_types() {
    macro_rules! make {
        ($visibility:vis $name:ident { $($field:ident: $type:ty = $label:literal),* }) => {
            #[derive(DebugAnnotation)]
            $visibility struct $name {
                $(#[annotation(rename = $label)] $visibility $field: $type,)*
            }
        };
    }
    make! { pub(crate) Made { field: Option<u8> = "label" } }
    make! { Inherited { field: u8 = "other" } }
    reads(Made { field: Some(1) }, dictionary([("label", uint(1))]));
    reads(Inherited { field: 2 }, dictionary([("other", uint(2))]));
}

#[test]
fn fields_may_have_any_name() {
    #[derive(DebugAnnotation)]
    struct Names {
        value: u8,
        fields: u8,
        field_0: u8,
        r#match: u8,
    }
    let expected = [
        ("value", uint(1)),
        ("fields", uint(2)),
        ("field_0", uint(3)),
        ("match", uint(4)),
    ];
    reads(
        Names {
            value: 1,
            fields: 2,
            field_0: 3,
            r#match: 4,
        },
        dictionary(expected),
    );
}

/// The SDK under another path.
mod facade {
    pub(super) use crate::debug_annotation;
}

#[test]
fn the_sdk_may_have_another_path() {
    #[derive(DebugAnnotation)]
    #[annotation(crate = facade)]
    enum Shape<T> {
        Circle(T),
        Rectangle {
            #[annotation(display)]
            width: T,
            height: Option<T>,
        },
    }
    reads(Shape::Circle(1u64), dictionary([("Circle", uint(1))]));
    let rectangle = Shape::Rectangle {
        width: 2u64,
        height: None,
    };
    let inner = dictionary([("width", text("2")), ("height", Value::Nothing)]);
    reads(rectangle, dictionary([("Rectangle", inner)]));
}
