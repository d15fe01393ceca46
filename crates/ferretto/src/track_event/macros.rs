//! The macros that users write; what they have in common is documented in [`super`].

/// Records a slice from here to the end of the enclosing block.
///
/// The category is a literal, a `&'static` [`Category`](crate::Category) or a [`DynamicCategory`](crate::DynamicCategory). The name is a
/// literal, which costs two bytes in the trace, or any string, which costs its length; or a [`StaticName`](crate::StaticName).
/// What else can follow is listed in the [module's documentation](crate::track_event).
///
/// ```
/// use ferretto::trace_event;
///
/// fn draw_player(number: u32) {
///     trace_event!("rendering", "DrawPlayer", "number" => number);
///     // …
/// }
/// # draw_player(1);
/// ```
#[macro_export]
macro_rules! trace_event {
    ($($event:tt)*) => {
        let _slice = $crate::trace_slice!($($event)*);
    };
}

/// As [`trace_event!`](crate::trace_event), but the slice is a value: it ends when that is dropped.
///
/// ```
/// let loading = ferretto::trace_slice!("files", "Load");
/// // …
/// drop(loading);
/// ```
#[macro_export]
macro_rules! trace_slice {
    ($category:expr, $name:literal $(,)?) => {{
        static SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::SliceBegin, $name, &[]);
        let category = $category;
        let listeners = $crate::private::EventCategory::listeners(category, &SITE);
        $crate::Slice::new(if listeners == 0 {
            $crate::private::OpenSlice::none(&SITE)
        } else {
            $crate::private::emit_plain(category, &SITE, listeners);
            $crate::private::OpenSlice::begun(&SITE, listeners, $crate::private::None)
        })
    }};
    ($category:expr, $name:literal, $($rest:tt)+) => {
        $crate::__event!(@options slice SliceBegin $category, $name, ($crate::private::EventName::OfSite);
            [] [$crate::private::None] [$crate::private::None] []; $($rest)+)
    };
    ($category:expr, $name:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options slice SliceBegin $category, "", ($crate::private::IntoEventName::event_name(&$name));
            [] [$crate::private::None] [$crate::private::None] []; $($($rest)*)?)
    };
}

/// Begins a slice that [`trace_event_end!`](crate::trace_event_end) ends: on this thread, where slices must be nested, or on the track given.
///
/// ```
/// use ferretto::track::Track;
/// use ferretto::{trace_event_begin, trace_event_end};
///
/// let request = Track::new(8086);
/// trace_event_begin!("network", "Request", track = request, "url" => "/index.html");
/// // … on whatever thread …
/// trace_event_end!("network", track = request);
/// ```
#[macro_export]
macro_rules! trace_event_begin {
    ($category:expr, $($event:tt)+) => {
        $crate::__event!(@named SliceBegin $category, $($event)+)
    };
}

/// Ends the slice that began last on this thread, or on the track given. Takes no name.
#[macro_export]
macro_rules! trace_event_end {
    ($category:expr $(,)?) => {
        $crate::__event!(@named SliceEnd $category, "")
    };
    ($category:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options emit SliceEnd $category, "", ($crate::private::EventName::OfSite);
            [] [$crate::private::None] [$crate::private::None] []; $($($rest)*)?)
    };
}

/// Records something that happens at one moment.
///
/// ```
/// ferretto::trace_event_instant!("input", "Click", "x" => 17, "y" => 4);
/// ```
#[macro_export]
macro_rules! trace_event_instant {
    ($category:expr, $($event:tt)+) => {
        $crate::__event!(@named Instant $category, $($event)+)
    };
}

/// Records a value of a counter: of this name, which the process then has, or of a [`CounterTrack`](crate::track::CounterTrack).
///
/// ```
/// use ferretto::trace_counter;
/// use ferretto::track::{CounterTrack, CounterUnit};
///
/// static HEAP: CounterTrack = CounterTrack::new("Heap").unit(CounterUnit::SizeBytes);
///
/// trace_counter!("memory", "Objects", 12);
/// trace_counter!("memory", &HEAP, 4096, timestamp = ferretto::clock::now());
/// ```
#[macro_export]
macro_rules! trace_counter {
    ($category:expr, $name:literal, $value:expr $(, $($rest:tt)*)?) => {{
        static TRACK: $crate::track::CounterTrack<'static> = $crate::track::CounterTrack::new($name);
        $crate::trace_counter!($category, &TRACK, $value $(, $($rest)*)?)
    }};
    ($category:expr, $track:expr, $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options emit Counter $category, "", ($crate::private::EventName::OfSite);
            [] [$crate::private::Some(&$track as &dyn $crate::track::TrackLike)] [$crate::private::None]
            [$crate::private::Sample($value),]; $($($rest)*)?)
    };
}

/// Records the state that something is in from now on: on a [`StateTrack`](crate::track::StateTrack), until the next one there.
///
/// ```
/// use ferretto::trace_state;
/// use ferretto::track::StateTrack;
///
/// static CONNECTION: StateTrack = StateTrack::new("Connection");
///
/// trace_state!("network", "Connecting", &CONNECTION);
/// trace_state!("network", format!("Retry {}", 3), &CONNECTION, "reason" => "timeout");
/// ```
#[macro_export]
macro_rules! trace_state {
    ($category:expr, $state:literal, $track:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options emit State $category, $state, ($crate::private::EventName::OfSite);
            [] [$crate::private::Some(&$track as &dyn $crate::track::TrackLike)] [$crate::private::None] [];
            $($($rest)*)?)
    };
    ($category:expr, $state:expr, $track:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options emit State $category, "", ($crate::private::IntoEventName::event_name(&$state));
            [] [$crate::private::Some(&$track as &dyn $crate::track::TrackLike)] [$crate::private::None] [];
            $($($rest)*)?)
    };
}

/// Whether any session records events of this category: to skip work that is only done for them.
///
/// ```
/// if ferretto::trace_category_enabled!("rendering") {
///     // … collect statistics …
/// }
/// ```
#[macro_export]
macro_rules! trace_category_enabled {
    ($category:expr) => {{
        static SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::Instant, "", &[]);
        $crate::private::EventCategory::listeners($category, &SITE) != 0
    }};
}

/// What the macros of events have in common. Collects annotations' names, the track, the timestamp and other fields, then emits.
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    (@named $event:ident $category:expr, $name:literal $(,)?) => {{
        static SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::$event, $name, &[]);
        let category = $category;
        let listeners = $crate::private::EventCategory::listeners(category, &SITE);
        if listeners != 0 {
            $crate::private::emit_plain(category, &SITE, listeners);
        }
    }};
    (@named $event:ident $category:expr, $name:literal, $($rest:tt)+) => {
        $crate::__event!(@options emit $event $category, $name, ($crate::private::EventName::OfSite);
            [] [$crate::private::None] [$crate::private::None] []; $($rest)+)
    };
    (@named $event:ident $category:expr, $name:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options emit $event $category, "", ($crate::private::IntoEventName::event_name(&$name));
            [] [$crate::private::None] [$crate::private::None] []; $($($rest)*)?)
    };

    // Options, one at a time: [names] [track] [timestamp] [fields]; what is left
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        [$($names:expr,)*] [$track:expr] [$timestamp:expr] [$($fields:expr,)*];
        $annotation:literal => $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic);
            [$($names,)* $annotation,] [$track] [$timestamp] [$($fields,)* $crate::private::Annotation(&$value),];
            $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt [$track:expr] $timestamp:tt $fields:tt; track = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic);
            $names [$crate::private::Some(&$value as &dyn $crate::track::TrackLike)] $timestamp $fields;
            $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt [$timestamp:expr] $fields:tt; timestamp = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic);
            $names $track [$crate::private::Some($crate::private::Timestamp::from($value))] $fields;
            $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; flow = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic); $names $track $timestamp
            [$($fields,)* $crate::private::FlowField($crate::Flow::from($value)),]; $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; terminating_flow = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic); $names $track $timestamp
            [$($fields,)* $crate::private::TerminatingFlowField($crate::Flow::from($value)),]; $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; correlation_id = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $how $event $category, $name, ($dynamic); $names $track $timestamp
            [$($fields,)* $crate::private::CorrelationField($value),]; $($($rest)*)?)
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; $fill:expr $(,)?) => {
        $crate::__event!(@$how $event $category, $name, ($dynamic); $names $track $timestamp
            [$($fields,)* $crate::private::Fill::new($fill),])
    };
    (@options $how:ident $event:ident $category:expr, $name:expr, ($dynamic:expr);
        $names:tt $track:tt $timestamp:tt $fields:tt; $(,)?) => {
        $crate::__event!(@$how $event $category, $name, ($dynamic); $names $track $timestamp $fields)
    };

    (@emit $event:ident $category:expr, $name:expr, ($dynamic:expr);
        [$($names:expr,)*] [$track:expr] [$timestamp:expr] [$($fields:expr,)*]) => {{
        static SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::$event, $name, &[$($names),*]);
        let category = $category;
        let listeners = $crate::private::EventCategory::listeners(category, &SITE);
        if listeners != 0 {
            $crate::private::emit(
                &SITE,
                listeners,
                $crate::private::Parts {
                    category: $crate::private::EventCategory::dynamic_name(&category),
                    name: $dynamic,
                    track: $track,
                    timestamp: $timestamp,
                },
                &$crate::__event!(@list $($fields,)*),
            );
        }
    }};
    (@slice $event:ident $category:expr, $name:expr, ($dynamic:expr);
        [$($names:expr,)*] [$track:expr] [$timestamp:expr] [$($fields:expr,)*]) => {{
        static SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::$event, $name, &[$($names),*]);
        let category = $category;
        let listeners = $crate::private::EventCategory::listeners(category, &SITE);
        $crate::Slice::new(if listeners == 0 {
            $crate::private::OpenSlice::none(&SITE)
        } else {
            match $track {
                track => {
                    $crate::private::emit(
                        &SITE,
                        listeners,
                        $crate::private::Parts {
                            category: $crate::private::EventCategory::dynamic_name(&category),
                            name: $dynamic,
                            track,
                            timestamp: $timestamp,
                        },
                        &$crate::__event!(@list $($fields,)*),
                    );
                    $crate::private::OpenSlice::begun(&SITE, listeners, track)
                }
            }
        })
    }};
    (@list) => { () };
    (@list $first:expr, $($rest:expr,)*) => { ($first, $crate::__event!(@list $($rest,)*)) };
}
