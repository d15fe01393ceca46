//! The macros that users write; [`super`] documents their common parts.
//!
//! Their statics have names that no user's constant has, because macros do not hide items from the expressions of their callers.

/// Records a slice from here to the end of the enclosing block.
///
/// The category is a literal, a `&'static` [`Category`](crate::Category) or a [`DynamicCategory`](crate::DynamicCategory). The [module's
/// documentation](crate::track_event) lists the forms of the name and the options that can follow.
///
/// Literals, and constants and statics such as `&module::RENDERING`, cost least. Any other expression (a parameter, `Self::CATEGORY`) may be another
/// category each time, and a recorded event looks it up among those that this place in the code has had, all of which are remembered.
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
        // Where an expression is expected the compiler takes this for it, and reports that a semicolon is missing.
        {}
        let _slice = $crate::__event!(@called "trace_event!" [slice SliceBegin] $($event)*);
    };
}

/// As [`trace_event!`](crate::trace_event), but the slice is a value, and ends when the value is dropped.
///
/// ```
/// let loading = ferretto::trace_slice!("files", "Load");
/// // …
/// drop(loading);
/// ```
#[macro_export]
macro_rules! trace_slice {
    ($($event:tt)*) => {
        $crate::__event!(@called "trace_slice!" [slice SliceBegin] $($event)*)
    };
}

/// Begins a slice that [`trace_event_end!`](crate::trace_event_end) ends: on this thread, where slices must be nested, or on the given track.
///
/// ```
/// use ferretto::track::NamedTrack;
/// use ferretto::{trace_event_begin, trace_event_end};
///
/// let request = NamedTrack::new("Request").id(8086);
/// trace_event_begin!("network", "Request", track = request, "url" => "/index.html");
/// // … on whatever thread …
/// trace_event_end!("network", track = request);
/// ```
#[macro_export]
macro_rules! trace_event_begin {
    ($($event:tt)*) => {
        $crate::__event!(@called "trace_event_begin!" [emit LooseBegin] $($event)*)
    };
}

/// Ends the slice that began last on this thread, or on the given track. Takes no name.
#[macro_export]
macro_rules! trace_event_end {
    ($category:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options ["trace_event_end!" [emit LooseEnd] ($category) (static "")] [] [] [] []; $($($rest)*)?)
    };
    ($($wrong:tt)*) => {
        $crate::__event!(@too_little "trace_event_end!" "a category"; $($wrong)*)
    };
}

/// Records an event at one moment.
///
/// ```
/// ferretto::trace_event_instant!("input", "Click", "x" => 17, "y" => 4);
/// ```
#[macro_export]
macro_rules! trace_event_instant {
    ($($event:tt)*) => {
        $crate::__event!(@called "trace_event_instant!" [emit Instant] $($event)*)
    };
}

/// Records a value of a counter: of the process's counter with this name, or of a [`CounterTrack`](crate::track::CounterTrack).
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
///
/// A name is a literal, `concat!(…)` or another of the compiler's macros that makes a literal, or `const { NAME }`.
#[macro_export]
macro_rules! trace_counter {
    ($category:expr, $name:literal, $value:expr $(, $($rest:tt)*)?) => {{
        static __FERRETTO_TRACK: $crate::track::CounterTrack<'static> = $crate::track::CounterTrack::new($name);
        $crate::trace_counter!($category, &__FERRETTO_TRACK, $value $(, $($rest)*)?)
    }};
    ($category:expr, const $name:block, $value:expr $(, $($rest:tt)*)?) => {{
        static __FERRETTO_TRACK: $crate::track::CounterTrack<'static> = $crate::track::CounterTrack::new($name);
        $crate::trace_counter!($category, &__FERRETTO_TRACK, $value $(, $($rest)*)?)
    }};
    ($category:expr, concat!($($parts:tt)*), $($rest:tt)+) => {
        $crate::trace_counter!($category, const { ::core::concat!($($parts)*) }, $($rest)+)
    };
    ($category:expr, stringify!($($parts:tt)*), $($rest:tt)+) => {
        $crate::trace_counter!($category, const { ::core::stringify!($($parts)*) }, $($rest)+)
    };
    ($category:expr, module_path!(), $($rest:tt)+) => {
        $crate::trace_counter!($category, const { ::core::module_path!() }, $($rest)+)
    };
    ($category:expr, $track:expr, $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options ["trace_counter!" [emit Counter] ($category) (static "")]
            [] [&$track as &dyn $crate::track::TrackLike] [] [$crate::private::Sample($value),]; $($($rest)*)?)
    };
    ($($wrong:tt)*) => {
        $crate::__event!(@too_little "trace_counter!" "a category, a name or track, and a value"; $($wrong)*)
    };
}

/// Records a state that lasts until the next one: on the process's track with this name, or on a [`StateTrack`](crate::track::StateTrack).
///
/// ```
/// use ferretto::trace_state;
/// use ferretto::track::StateTrack;
///
/// static CONNECTION: StateTrack = StateTrack::new("Connection");
///
/// trace_state!("network", &CONNECTION, "Connecting");
/// trace_state!("network", &CONNECTION, format!("Retry {}", 3), "reason" => "timeout");
/// trace_state!("network", "Radio", "Asleep");
/// ```
///
/// States can be read by Perfetto's UI or trace processor of version 57 (June 2026) or later, which has them in a table `state`. Earlier ones do not
/// know such events.
#[macro_export]
macro_rules! trace_state {
    ($category:expr, $name:literal, $($state:tt)+) => {{
        static __FERRETTO_TRACK: $crate::track::StateTrack<'static> = $crate::track::StateTrack::new($name);
        $crate::trace_state!($category, &__FERRETTO_TRACK, $($state)+)
    }};
    ($category:expr, $track:expr, $($state:tt)+) => {
        $crate::__event!(@named "trace_state!" [emit State] ($category)
            [&$track as &dyn $crate::track::TrackLike]; $($state)+)
    };
    ($($wrong:tt)*) => {
        $crate::__event!(@too_little "trace_state!" "a category, a name or track, and a state"; $($wrong)*)
    };
}

/// Whether any session records events of this category. Use it to skip work that is only done for them.
///
/// ```
/// if ferretto::trace_category_enabled!("rendering") {
///     // … collect statistics …
/// }
/// ```
#[macro_export]
macro_rules! trace_category_enabled {
    ($category:expr $(,)?) => {{
        static __FERRETTO_SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::Instant, "", &[]);
        $crate::private::is_enabled::<{ $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(
            $category,
            &__FERRETTO_SITE,
        )
    }};
}

/// The common part of the event macros: parses a category, a name, and options one at a time, until the event can be emitted.
///
/// The known part of an event so far is its *head*, `[macro [how type] (category) (name)]`, where the name is `(static constant)` or `(dynamic
/// expression)`. Its names of annotations, track, timestamp and fields follow, each in brackets.
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    // --- The category. ---
    (@called $macro:literal $kind:tt $category:expr, $($event:tt)+) => {
        $crate::__event!(@named $macro $kind ($category) []; $($event)+)
    };
    (@called $macro:literal $kind:tt $($wrong:tt)*) => {
        $crate::__event!(@too_little $macro "a category and a name"; $($wrong)*)
    };
    (@too_little $macro:literal $needed:literal; $($category:expr $(, $name:expr)? $(,)?)?) => {
        ::core::compile_error!(::core::concat!("`", $macro, "` needs ", $needed))
    };
    (@too_little $macro:literal $needed:literal; $($wrong:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: a `,` is missing in `", ::core::stringify!($($wrong)*), "`"))
    };

    // --- The name. ---
    (@named $macro:literal $kind:tt $category:tt $track:tt; $name:literal $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (static $name)] [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; concat!($($of:tt)*) $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (static ::core::concat!($($of)*))] [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; stringify!($($of:tt)*) $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (static ::core::stringify!($($of)*))] [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; module_path!() $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (static ::core::module_path!())] [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; const $name:block $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (static $name)] [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; $name:ident $(, $($rest:tt)*)?) => {
        $crate::private::if_constant!($name {
            $crate::__event!(@options [$macro $kind $category (static $crate::private::ConstantName(&$name).get())]
                [] $track [] []; $($($rest)*)?)
        } {
            $crate::__event!(@options [$macro $kind $category (dynamic $crate::private::IntoEventName::event_name(&$name))]
                [] $track [] []; $($($rest)*)?)
        })
    };
    // No variable has such a path, so it names a constant; the type tells which kind.
    (@named $macro:literal $kind:tt $category:tt $track:tt; $first:ident $(:: $next:ident)+ $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category
            (dynamic match &$crate::private::NameOfPath($first $(:: $next)+) {
                name => { #[allow(unused_imports)] use $crate::private::IntoEventName as _; name.event_name() }
            })]
            [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; $name:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options [$macro $kind $category (dynamic $crate::private::IntoEventName::event_name(&$name))]
            [] $track [] []; $($($rest)*)?)
    };
    (@named $macro:literal $kind:tt $category:tt $track:tt; $($wrong:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: a `,` is missing after the name, in `",
            ::core::stringify!($($wrong)*), "`"))
    };

    // --- Options, one at a time: head [names] [track] [timestamp] [fields]; the remaining tokens. ---
    (@options [$macro:literal [$how:ident $($kind:tt)*] $($head:tt)*] $names:tt $track:tt $timestamp:tt $fields:tt;) => {
        $crate::__event!(@$how [$($kind)* $($head)*] $names $track $timestamp $fields)
    };
    (@options $head:tt [$($names:expr,)*] $track:tt $timestamp:tt [$($fields:expr,)*];
        $annotation:literal => $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head [$($names,)* $annotation,] $track $timestamp
            [$($fields,)* $crate::private::Annotation(&$value),]; $($($rest)*)?)
    };
    (@options [$macro:literal [emit Counter] $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; track = $($rest:tt)*) => {
        ::core::compile_error!("`trace_counter!` takes no option `track`: its track is its second argument")
    };
    (@options [$macro:literal [emit State] $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; track = $($rest:tt)*) => {
        ::core::compile_error!("`trace_state!` takes no option `track`: its track is its second argument")
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt $fields:tt; track = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names [&$value as &dyn $crate::track::TrackLike] $timestamp $fields;
            $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt $fields:tt; timestamp = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track [$crate::private::Timestamp::from($value)] $fields;
            $($($rest)*)?)
    };
    // One token may be a literal. (The attempt to take more for one is an error if it begins with `-`.)
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        flow = $value:tt $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::FlowField($crate::__event!(@flow $value)),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        flow = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::FlowField($crate::private::IntoFlow::into_flow($value)),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        terminating_flow = $value:tt $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::TerminatingFlowField($crate::__event!(@flow $value)),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        terminating_flow = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::TerminatingFlowField($crate::private::IntoFlow::into_flow($value)),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        correlation_id = $value:tt $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::CorrelationField::new($crate::__event!(@id $value)),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*];
        correlation_id = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::CorrelationField::new($value),]; $($($rest)*)?)
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; callstack = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::CallstackField($value),]; $($($rest)*)?)
    };

    // Tokens that are neither an option nor an argument. Literals and `name =` cannot begin a closure.
    (@options [$macro:literal [emit LooseEnd] $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $name:literal $(, $($rest:tt)*)?) => {
        ::core::compile_error!(::core::concat!("`trace_event_end!` takes no name: it ends the slice that began last; `",
            ::core::stringify!($name), "` is too much"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $annotation:literal => $(, $($rest:tt)*)?) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: the argument `", ::core::stringify!($annotation), "` has no value"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $annotation:literal => $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: a `,` is missing after the value of the argument `",
            ::core::stringify!($annotation), "`: `", ::core::stringify!($($rest)*), "`"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $annotation:literal $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: an argument is written `\"name\" => value`, but `",
            ::core::stringify!($annotation), "` is without `=> value`"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $annotation:ident => $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: the name of an argument is a literal: write `\"",
            ::core::stringify!($annotation), "\" => value`"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; track = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro track $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; timestamp = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro timestamp $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; flow = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro flow $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; terminating_flow = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro terminating_flow $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; correlation_id = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro correlation_id $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; callstack = $($rest:tt)*) => {
        $crate::__event!(@incomplete $macro callstack $($rest)*)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $option:ident = $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: unknown option `", ::core::stringify!($option),
            "`; options are `track`, `timestamp`, `flow`, `terminating_flow`, `correlation_id` and `callstack`, and an argument is written `\"",
            ::core::stringify!($option), "\" => value`"))
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $option:ident : $value:expr $(, $($rest:tt)*)?) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: an option is written `", ::core::stringify!($option),
            " = value`, and an argument `\"", ::core::stringify!($option), "\" => value`"))
    };
    (@options $head:tt $names:tt $track:tt $timestamp:tt [$($fields:expr,)*]; $fill:expr $(, $($rest:tt)*)?) => {
        $crate::__event!(@options $head $names $track $timestamp
            [$($fields,)* $crate::private::Fill::new($fill),]; $($($rest)*)?)
    };
    (@options [$macro:literal $($head:tt)*] $a:tt $b:tt $c:tt $d:tt; $($wrong:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: this is no option, argument or closure, or a `,` is missing: `",
            ::core::stringify!($($wrong)*), "`"))
    };
    (@incomplete $macro:literal $option:ident $(, $($rest:tt)*)?) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: the option `", ::core::stringify!($option), "` has no value"))
    };
    (@incomplete $macro:literal $option:ident $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("`", $macro, "`: a `,` is missing after the value of the option `",
            ::core::stringify!($option), "`: `", ::core::stringify!($($rest)*), "`"))
    };

    // --- Emitting: [type category name] [names] [track] [timestamp] [fields]. ---
    (@emit [$event:ident ($category:expr) (static $name:expr)] [] [] [] []) => {{
        static __FERRETTO_SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::$event, $name, &[]);
        let category = $category;
        let (site, listeners) = $crate::private::listeners::<
            { $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(category, &__FERRETTO_SITE);
        if listeners != 0 {
            $crate::private::emit_plain(category, site, listeners);
        }
    }};
    (@emit [$event:ident ($category:expr) $name:tt] [$($names:expr,)*] $track:tt $timestamp:tt [$($fields:expr,)*]) => {{
        static __FERRETTO_SITE: $crate::private::CallSite = $crate::private::CallSite::new(
            $crate::private::EventType::$event, $crate::__event!(@known $name), &[$($names),*]);
        let category = $category;
        let (site, listeners) = $crate::private::listeners::<
            { $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(category, &__FERRETTO_SITE);
        if listeners != 0 {
            $crate::private::emit(
                site,
                listeners,
                $crate::private::Parts {
                    category: $crate::private::EventCategory::dynamic_name(&category),
                    name: $crate::__event!(@made $name),
                    track: $crate::__event!(@option $track),
                    timestamp: $crate::__event!(@option $timestamp),
                },
                &$crate::__event!(@list $($fields,)*),
            );
        }
    }};
    (@slice [$event:ident ($category:expr) (static $name:expr)] [] [] [] []) => {{
        static __FERRETTO_SITE: $crate::private::CallSite =
            $crate::private::CallSite::new($crate::private::EventType::$event, $name, &[]);
        let category = $category;
        let (site, listeners) = $crate::private::slice_listeners::<
            { $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(category, &__FERRETTO_SITE);
        $crate::Slice::new(if listeners == 0 {
            $crate::private::OpenSlice::none(site)
        } else {
            let mark = $crate::private::BeginMark::new();
            let recorded = $crate::private::emit_plain(category, site, listeners);
            $crate::private::OpenSlice::begun(site, mark, recorded, $crate::private::None)
        })
    }};
    (@slice [$event:ident ($category:expr) $name:tt] [$($names:expr,)*] $track:tt $timestamp:tt [$($fields:expr,)*]) => {{
        static __FERRETTO_SITE: $crate::private::CallSite = $crate::private::CallSite::new(
            $crate::private::EventType::$event, $crate::__event!(@known $name), &[$($names),*]);
        let category = $category;
        let (site, listeners) = $crate::private::slice_listeners::<
            { $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(category, &__FERRETTO_SITE);
        $crate::Slice::new(if listeners == 0 {
            $crate::private::OpenSlice::none(site)
        } else {
            match $crate::__event!(@option $track) {
                track => $crate::__event!(@begun category site listeners $name track $timestamp [$($fields,)*]),
            }
        })
    }};
    (@async_slice [$event:ident ($category:expr) $name:tt] [$($names:expr,)*] $track:tt $timestamp:tt $fields:tt) => {{
        static __FERRETTO_SITE: $crate::private::CallSite = $crate::private::CallSite::new(
            $crate::private::EventType::$event, $crate::__event!(@known $name), &[$($names),*]);
        let category = $category;
        let (site, listeners) = $crate::private::slice_listeners::<
            { $crate::private::is_same_for_all(::core::stringify!($category)) }, _>(category, &__FERRETTO_SITE);
        if listeners == 0 {
            $crate::future::AsyncSlice::none()
        } else {
            $crate::__event!(@async_begun category site listeners $name $track $timestamp $fields)
        }
    }};
    (@async_begun $category:ident $site:ident $listeners:ident $name:tt [] $timestamp:tt $fields:tt) => {{
        static __FERRETTO_LANES: $crate::future::Lanes = $crate::future::Lanes::new($crate::__event!(@of_lanes $name));
        let mut place = $crate::private::None;
        let track = $crate::private::Some(__FERRETTO_LANES.take_for(&mut place) as &dyn $crate::track::TrackLike);
        let slice = $crate::__event!(@begun $category $site $listeners $name track $timestamp $fields);
        $crate::future::AsyncSlice::begun(slice, place)
    }};
    (@async_begun $category:ident $site:ident $listeners:ident $name:tt $track:tt $timestamp:tt $fields:tt) => {
        match $crate::__event!(@option $track) {
            track => $crate::future::AsyncSlice::begun_on(
                $crate::__event!(@begun $category $site $listeners $name track $timestamp $fields), track),
        }
    };
    (@begun $category:ident $site:ident $listeners:ident $name:tt $track:ident $timestamp:tt [$($fields:expr,)*]) => {{
        let mark = $crate::private::BeginMark::new();
        let recorded = $crate::private::emit(
            $site,
            $listeners,
            $crate::private::Parts {
                category: $crate::private::EventCategory::dynamic_name(&$category),
                name: $crate::__event!(@made $name),
                track: $track,
                timestamp: $crate::__event!(@option $timestamp),
            },
            &$crate::__event!(@list $($fields,)*),
        );
        $crate::private::OpenSlice::begun($site, mark, recorded, $track)
    }};
    (@of_lanes (static $name:expr)) => { $name };
    (@of_lanes (dynamic $name:expr)) => { ::core::module_path!() };
    // Integer literals have 64 bits, which nothing else would tell the compiler.
    (@flow $value:literal) => { $crate::Flow::from($value) };
    (@flow $value:expr) => { $crate::private::IntoFlow::into_flow($value) };
    (@id $value:literal) => { $crate::private::literal_id($value) };
    (@id $value:expr) => { $value };
    // The name as the call site knows it, and as the event brings it.
    (@known (static $name:expr)) => { $name };
    (@known (dynamic $name:expr)) => { "" };
    (@made (static $name:expr)) => { $crate::private::EventName::OfSite };
    (@made (dynamic $name:expr)) => { $name };
    (@option []) => { $crate::private::None };
    (@option [$value:expr]) => { $crate::private::Some($value) };
    (@list) => { () };
    (@list $first:expr, $($rest:expr,)*) => { ($first, $crate::__event!(@list $($rest,)*)) };
}
