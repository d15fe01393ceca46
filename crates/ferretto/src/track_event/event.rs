//! The fields of an event beyond its name: arguments, flows, and fields that users write themselves.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use ferretto_proto::write;
use ferretto_wire::{Cursor, Writer};

use super::config::TrackEventOptions;
use super::local_strings::LocalStrings;
use super::wire::AnnotationFront;
use crate::callstack::Frames;
use crate::debug_annotation::{AnnotationValue, DebugAnnotation};
use crate::track::Track;
use crate::track::TrackLike;

/// An event while it is being written.
///
/// The macros take a closure as their last argument, and pass it an event for fields that have no shorter form:
///
/// ```
/// use ferretto::trace_event_instant;
///
/// let rows = vec![3, 4];
/// trace_event_instant!("database", "Query", |event| {
///     for (index, row) in rows.iter().enumerate() {
///         event.annotation(&format!("row {index}"), row);
///     }
///     event.source_location(file!(), None, line!());
/// });
/// ```
///
/// It runs once for each session that records the event, and not at all if none does.
pub struct EventContext<'a, 'w> {
    event: &'a mut write::TrackEvent<'w>,
    strings: &'a mut LocalStrings,
    /// Ids of the remaining names of the site's annotations.
    annotations: slice::Iter<'a, u32>,
    options: &'a TrackEventOptions,
    /// The last value of a counter that is written as differences.
    last_value: Option<&'a mut LastValue>,
}

/// The last value of a counter that is written as differences, as far as readers know.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LastValue {
    integer: i64,
    float: f64,
}

impl fmt::Debug for EventContext<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventContext").finish_non_exhaustive()
    }
}

impl<'a, 'w> EventContext<'a, 'w> {
    #[inline]
    pub(super) fn new(
        event: &'a mut write::TrackEvent<'w>,
        strings: &'a mut LocalStrings,
        annotations: &'a [u32],
        options: &'a TrackEventOptions,
        last_value: Option<&'a mut LastValue>,
    ) -> Self {
        Self {
            event,
            strings,
            annotations: annotations.iter(),
            options,
            last_value,
        }
    }

    /// Adds an argument whose name is only known now. Configs can leave all arguments out.
    pub fn annotation(&mut self, name: &str, value: impl DebugAnnotation) -> &mut Self {
        if self.has_annotations() {
            self.event.debug_annotations(|annotation| {
                annotation.name(name);
                value.write_annotation(AnnotationValue::new(annotation.writer()));
            });
        }
        self
    }

    /// Whether the config lets annotations through.
    #[doc(hidden)]
    #[inline]
    pub fn has_annotations(&self) -> bool {
        !self.options.filter_debug_annotations
    }

    /// Whether the config lets names through that are made at run time.
    #[doc(hidden)]
    pub fn has_dynamic_names(&self) -> bool {
        !self.options.filter_dynamic_event_names
    }

    /// Writes the next argument of those whose names the site knows.
    #[inline]
    fn site_annotation(&mut self, value: &(impl DebugAnnotation + ?Sized)) {
        let Some(&name) = self.annotations.next() else {
            return;
        };
        if self.options.filter_debug_annotations {
            return;
        }
        self.event.debug_annotations(|annotation| {
            annotation.name_iid(u64::from(name));
            value.write_annotation(AnnotationValue::new(annotation.writer()));
        });
    }

    /// Draws an arrow from and to other events with this flow.
    pub fn flow(&mut self, flow: Flow) -> &mut Self {
        self.event.flow_ids(flow.id);
        self
    }

    /// As [`EventContext::flow`]; the arrows end here.
    pub fn terminating_flow(&mut self, flow: Flow) -> &mut Self {
        self.event.terminating_flow_ids(flow.id);
        self
    }

    /// Gives the event a number that events which belong together share; viewers show them in one colour.
    pub fn correlation_id(&mut self, id: u64) -> &mut Self {
        self.event.correlation_id(id);
        self
    }

    /// As [`EventContext::correlation_id`], with text.
    pub fn correlation_text(&mut self, id: &str) -> &mut Self {
        self.event.correlation_id_str(id);
        self
    }

    /// Adds the event's place in the source: `file!()`, the function if it is known, `line!()`.
    pub fn source_location(&mut self, file: &'static str, function: Option<&str>, line: u32) -> &mut Self {
        let id = self.strings.source_location(file, function, line);
        self.event.source_location_iid(id);
        self
    }

    /// Adds the call stack that led to the event, or none if it has no frames. See [`callstack`](crate::callstack).
    pub fn callstack(&mut self, stack: &(impl Frames + ?Sized)) -> &mut Self {
        if let Some(id) = self.strings.callstack(&stack) {
            self.event.callstack_iid(id);
        }
        self
    }

    /// Says how much the event's call stack stands for: bytes of an allocation, for example. Totals of call stacks add these numbers up. As soon as some
    /// events have one, the weighted totals leave out the events without one, so give it to all events that are to be added up. The numbers are known to
    /// readers of version 58 (August 2026) or later.
    pub fn callstack_weight(&mut self, weight: f64) -> &mut Self {
        self.event.callstack_weight(weight);
        self
    }

    /// Makes the event a log message, which viewers list with the log.
    pub fn log_message(&mut self, body: &str, priority: LogPriority) -> &mut Self {
        let id = self.strings.log_message_body(body);
        self.event.log_message(|message| {
            message.body_iid(id);
            message.prio(priority.to_wire());
        });
        self
    }

    /// As [`EventContext::log_message`], with the message's place in the source.
    pub fn log_message_at(
        &mut self,
        body: &str,
        priority: LogPriority,
        file: &'static str,
        line: u32,
    ) -> &mut Self {
        let location = self.strings.source_location(file, None, line);
        let id = self.strings.log_message_body(body);
        self.event.log_message(|message| {
            message
                .source_location_iid(location)
                .body_iid(id)
                .prio(priority.to_wire());
        });
        self
    }

    /// Adds a message in a field of this number: of `TrackEvent`, or of an extension of it (1000 to 9999).
    pub fn message(&mut self, number: u32, fill: impl FnOnce(&mut Writer)) -> &mut Self {
        self.writer().nested(number, fill);
        self
    }

    /// The encoded `TrackEvent` so far, to append fields to.
    pub fn writer(&mut self) -> &mut Writer {
        self.event.writer()
    }

    /// The event, to write any field of it. Of the schema's types, so [not part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn proto(&mut self) -> &mut write::TrackEvent<'w> {
        self.event
    }
}

/// The severity of a log message; Android's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum LogPriority {
    Verbose,
    Debug,
    Info,
    Warning,
    Error,
    Fatal,
}

impl LogPriority {
    fn to_wire(self) -> ferretto_proto::messages::log_message::Priority {
        use ferretto_proto::messages::log_message::Priority;
        match self {
            LogPriority::Verbose => Priority::PRIO_VERBOSE,
            LogPriority::Debug => Priority::PRIO_DEBUG,
            LogPriority::Info => Priority::PRIO_INFO,
            LogPriority::Warning => Priority::PRIO_WARN,
            LogPriority::Error => Priority::PRIO_ERROR,
            LogPriority::Fatal => Priority::PRIO_FATAL,
        }
    }
}

/// A flow between events: viewers connect the events of one flow by arrows, in the order of their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    id: u64,
}

impl Flow {
    /// A flow within this process.
    pub fn process_scoped(id: u64) -> Self {
        Self {
            id: id ^ Track::process().uuid(),
        }
    }

    /// A flow that other processes may continue: all of them must agree on `id`, and no other flow may use it.
    pub const fn global(id: u64) -> Self {
        Self { id }
    }

    /// A flow within this process that follows an object, known by its address.
    pub fn from_pointer<T: ?Sized>(pointer: *const T) -> Self {
        Self::process_scoped(pointer.addr() as u64)
    }

    /// The id of the flow in the trace.
    pub const fn id(self) -> u64 {
        self.id
    }
}

impl From<u64> for Flow {
    fn from(id: u64) -> Self {
        Self::process_scoped(id)
    }
}

/// A type that can be the flow in `flow = flow`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a flow",
    label = "neither a `Flow` nor an integer",
    note = "`Flow::from_pointer` makes a flow of an object, and `impl From<{Self}> for Flow` one of your type"
)]
pub trait IntoFlow {
    fn into_flow(self) -> Flow;
}

#[diagnostic::do_not_recommend]
impl<T> IntoFlow for T
where
    Flow: From<T>,
{
    #[inline(always)]
    fn into_flow(self) -> Flow {
        Flow::from(self)
    }
}

/// The value of a counter.
///
/// Traces have integers of 64 bits with a sign, so a larger `u64` is recorded as the largest of those.
pub trait CounterValue: Copy {
    #[doc(hidden)]
    fn write(self, event: &mut write::TrackEvent<'_>, last: Option<&mut LastValue>);
    #[doc(hidden)]
    fn put(self, event: Cursor<'_>) -> Option<Cursor<'_>>;
}

macro_rules! integer_counter_values {
    ($($integer:ty),* => $value:expr) => {$(
        impl CounterValue for $integer {
            #[inline]
            fn write(self, event: &mut write::TrackEvent<'_>, last: Option<&mut LastValue>) {
                let value = $value(self);
                event.counter_value(match last {
                    None => value,
                    Some(last) => value.wrapping_sub(mem::replace(&mut last.integer, value)),
                });
            }

            #[inline(always)]
            fn put(self, event: Cursor<'_>) -> Option<Cursor<'_>> {
                event.varint_field(write::TrackEvent::COUNTER_VALUE, $value(self) as u64)
            }
        }
    )*};
}

integer_counter_values!(u8, u16, u32, i8, i16, i32, i64 => i64::from);
// A counter that stands at the largest value, for no limit, must not fall below zero.
integer_counter_values!(u64, usize, isize => |value| i64::try_from(value).unwrap_or(i64::MAX));

macro_rules! float_counter_values {
    ($($float:ty),*) => {$(
        impl CounterValue for $float {
            #[inline]
            fn write(self, event: &mut write::TrackEvent<'_>, last: Option<&mut LastValue>) {
                let value = f64::from(self);
                event.double_counter_value(match last {
                    None => value,
                    Some(last) => value - mem::replace(&mut last.float, value),
                });
            }

            #[inline(always)]
            fn put(self, event: Cursor<'_>) -> Option<Cursor<'_>> {
                event.fixed64_field(write::TrackEvent::DOUBLE_COUNTER_VALUE, f64::from(self).to_bits())
            }
        }
    )*};
}

float_counter_values!(f32, f64);

/// The fields of an event, which the macros build from their arguments, in nested pairs.
#[doc(hidden)]
pub trait EventFields {
    fn write(&self, event: &mut EventContext<'_, '_>);

    /// Writes the same into a short event, if it fits. `names` are the names of the remaining annotations.
    fn put<'w>(&self, event: Cursor<'w>, names: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>>;
}

impl EventFields for () {
    #[inline(always)]
    fn write(&self, _: &mut EventContext<'_, '_>) {}

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        Some(event)
    }
}

impl<First: EventFields, Rest: EventFields> EventFields for (First, Rest) {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        self.0.write(event);
        self.1.write(event);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, names: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        self.1.put(self.0.put(event, names)?, names)
    }
}

/// `"name" => value`
#[doc(hidden)]
#[derive(Debug)]
pub struct Annotation<'a, T: ?Sized>(pub &'a T);

impl<T: DebugAnnotation + ?Sized> EventFields for Annotation<'_, T> {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.site_annotation(self.0);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, names: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        self.0.as_scalar()?.put(event, names.next()?)
    }
}

/// `flow = value`
#[doc(hidden)]
#[derive(Debug)]
pub struct FlowField(pub Flow);

impl EventFields for FlowField {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.flow(self.0);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        event.fixed64_field(write::TrackEvent::FLOW_IDS, self.0.id)
    }
}

/// `terminating_flow = value`
#[doc(hidden)]
#[derive(Debug)]
pub struct TerminatingFlowField(pub Flow);

impl EventFields for TerminatingFlowField {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.terminating_flow(self.0);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        event.fixed64_field(write::TrackEvent::TERMINATING_FLOW_IDS, self.0.id)
    }
}

/// A type that can be the id in `correlation_id = id`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a `correlation_id`",
    label = "neither an integer nor text",
    note = "other types can be made one: `correlation_id = id.number`, or `correlation_id = id.to_string()`"
)]
pub trait CorrelationId {
    fn write(&self, event: &mut EventContext<'_, '_>);
    fn put<'w>(&self, event: Cursor<'w>) -> Option<Cursor<'w>>;
}

macro_rules! integer_ids {
    ($($integer:ty),*) => {$(
        impl CorrelationId for $integer {
            #[inline(always)]
            fn write(&self, event: &mut EventContext<'_, '_>) {
                event.correlation_id(*self as u64);
            }

            #[inline(always)]
            fn put<'w>(&self, event: Cursor<'w>) -> Option<Cursor<'w>> {
                event.varint_field(write::TrackEvent::CORRELATION_ID, *self as u64)
            }
        }

        impl IntoFlow for $integer {
            #[inline(always)]
            fn into_flow(self) -> Flow {
                Flow::process_scoped(self as u64)
            }
        }
    )*};
}

integer_ids!(u8, u16, u32, usize, i8, i16, i32, i64, isize);

impl CorrelationId for u64 {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.correlation_id(*self);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>) -> Option<Cursor<'w>> {
        event.varint_field(write::TrackEvent::CORRELATION_ID, *self)
    }
}

impl CorrelationId for str {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.correlation_text(self);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>) -> Option<Cursor<'w>> {
        event.bytes_field(write::TrackEvent::CORRELATION_ID_STR, self.as_bytes())
    }
}

macro_rules! ids_behind_pointers {
    ($([$($generics:tt)*] $pointer:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($generics)*> CorrelationId for $pointer {
            #[inline(always)]
            fn write(&self, event: &mut EventContext<'_, '_>) {
                CorrelationId::write(&**self, event);
            }

            #[inline(always)]
            fn put<'w>(&self, event: Cursor<'w>) -> Option<Cursor<'w>> {
                CorrelationId::put(&**self, event)
            }
        }
    )*};
}

ids_behind_pointers!([T: CorrelationId + ?Sized] &T, [] String, [] Cow<'_, str>, [] Box<str>, [] Rc<str>, [] Arc<str>);

/// A literal in `correlation_id = literal`: one type of integers only, which gives literals theirs.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the literal of a `correlation_id` is text, or an integer without a suffix",
    label = "this is a `{Self}`"
)]
pub trait LiteralId: CorrelationId {}

impl LiteralId for u64 {}
impl LiteralId for &'static str {}

/// Returns the literal.
#[doc(hidden)]
#[inline(always)]
pub fn literal_id<T: LiteralId>(id: T) -> T {
    id
}

/// `correlation_id = value`
#[doc(hidden)]
#[derive(Debug)]
pub struct CorrelationField<T>(pub T);

impl<T: CorrelationId> CorrelationField<T> {
    #[inline(always)]
    pub fn new(id: T) -> Self {
        Self(id)
    }
}

impl<T: CorrelationId> EventFields for CorrelationField<T> {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        self.0.write(event);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        self.0.put(event)
    }
}

/// `callstack = value`
#[doc(hidden)]
pub struct CallstackField<T>(pub T);

impl<T: Frames> EventFields for CallstackField<T> {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        event.callstack(&self.0);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        // Only the sequence knows the ids of stacks.
        let _ = event;
        None
    }
}

/// The value of a counter's sample.
#[doc(hidden)]
#[derive(Debug)]
pub struct Sample<T>(pub T);

impl<T: CounterValue> EventFields for Sample<T> {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        self.0.write(event.event, event.last_value.as_deref_mut());
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        self.0.put(event)
    }
}

/// `|event| …`
#[doc(hidden)]
pub struct Fill<F>(pub F);

/// A type that can stand in a macro without a name in front of it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an argument nor an option of an event",
    label = "not a closure `|event| …`",
    note = "an argument is written `\"name\" => value`, an option `track = value`"
)]
pub trait FillsEvent: Fn(&mut EventContext<'_, '_>) {}

#[diagnostic::do_not_recommend]
impl<F: Fn(&mut EventContext<'_, '_>)> FillsEvent for F {}

impl<F: FillsEvent> Fill<F> {
    /// Lets closures be written without the type of their argument.
    #[inline(always)]
    pub fn new(fill: F) -> Self {
        Self(fill)
    }
}

impl<F: FillsEvent> EventFields for Fill<F> {
    #[inline(always)]
    fn write(&self, event: &mut EventContext<'_, '_>) {
        (self.0)(event);
    }

    #[inline(always)]
    fn put<'w>(&self, event: Cursor<'w>, _: &mut slice::Iter<'_, AnnotationFront>) -> Option<Cursor<'w>> {
        // It may write anything.
        let _ = event;
        None
    }
}
