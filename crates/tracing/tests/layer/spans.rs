use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ferretto::session::DataSource;
use ferretto_tracing::SpanStyle;
use tracing::{Dispatch, Subscriber, debug_span, field, info_span, trace_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::trace::{self, Argument, Recording};
use crate::{with, with_layer};

#[test]
fn a_span_is_a_slice_of_its_target_on_the_thread_that_is_in_it() {
    let recording = Recording::start();
    with_layer(|| {
        for _ in 0..3 {
            let _outer = info_span!("outer").entered();
            let _inner = info_span!(target: "elsewhere", "inner").entered();
        }
    });
    let trace = recording.stop();
    assert_eq!(trace.slices.len(), 6);
    for (index, pair) in trace.slices.chunks(2).enumerate() {
        assert_eq!([&*pair[0].name, &*pair[1].name], ["outer", "inner"]);
        assert_eq!([pair[0].parent, pair[1].parent], [None, Some(index * 2)]);
        assert_eq!(
            [&*pair[0].category, &*pair[1].category],
            ["layer::spans", "elsewhere"]
        );
        assert!(trace.is_on_thread(&pair[0]) && pair[0].correlation.is_none());
    }
}

#[test]
fn fields_are_arguments_whenever_they_are_recorded() {
    let recording = Recording::start();
    let error = std::io::Error::other("no");
    with_layer(|| {
        let span = info_span!(
            "all", signed = -1, unsigned = u64::MAX, float = 0.5, truth = true, text = "words", wide = 1i128 << 100,
            debugged = ?Some(1), displayed = %"shown", error = &error as &dyn std::error::Error,
            before = field::Empty, within = field::Empty, after = field::Empty,
        );
        span.record("before", 1);
        span.in_scope(|| {
            span.record("within", "2");
            let _inner = info_span!("inner", own = 7).entered();
        });
    });
    let trace = recording.stop();
    let text = |text: &str| Argument::Text(text.into());
    let expected = [
        ("before", Argument::Int(1)),
        ("debugged", text("Some(1)")),
        ("displayed", text("shown")),
        ("error", text("no")),
        ("float", Argument::Double(0.5)),
        ("signed", Argument::Int(-1)),
        ("text", text("words")),
        ("truth", Argument::Bool(true)),
        ("unsigned", Argument::Uint(u64::MAX)),
        ("wide", text("1267650600228229401496703205376")),
        ("within", text("2")),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(trace.slice("all").arguments, expected.into());
    assert_eq!(
        trace.slice("inner").arguments,
        [("own".to_owned(), Argument::Int(7))].into()
    );
}

#[test]
fn a_field_that_is_recorded_again_and_again_has_its_last_value() {
    const TIMES: u64 = 1000;
    for style in [SpanStyle::Threads, SpanStyle::Lives] {
        let recording = Recording::start();
        with(ferretto_tracing::layer().spans(style), || {
            let again = |span: &tracing::Span| {
                for step in 1..=TIMES {
                    span.record("step", step);
                    span.record("text", "x".repeat(step as usize % 7));
                }
            };
            let early = info_span!("early", kept = 1, step = 0, text = field::Empty);
            again(&early);
            early.in_scope(|| {});
            let late = info_span!("late", kept = 1, step = 0, text = field::Empty);
            late.in_scope(|| again(&late));
        });
        let trace = recording.stop();
        for name in ["early", "late"] {
            let slice = trace.slice(name);
            let expected = [
                ("kept", Argument::Int(1)),
                ("step", Argument::Uint(TIMES)),
                ("text", Argument::Text("x".repeat(TIMES as usize % 7))),
            ];
            let expected = expected.map(|(name, value)| (name.to_owned(), value));
            assert_eq!(slice.arguments, expected.into(), "{style:?} {name}");
            // The field is recorded at the beginning and at the end.
            assert!(
                slice.arguments_told <= 4,
                "{style:?} {name}: {}",
                slice.arguments_told
            );
        }
    }
}

#[test]
fn a_session_that_begins_amid_a_life_has_the_arguments_where_the_span_is_entered() {
    let recording = Recording::start();
    with(ferretto_tracing::layer().spans(SpanStyle::Auto), || {
        let span = info_span!("request", number = 7);
        // Its life begins when it is entered again.
        span.in_scope(|| {});
        span.in_scope(|| {});
        // The second session takes the place of the first.
        recording.stop_early();
        let second = recording.also(DataSource::track_event());
        span.in_scope(|| {});
        drop(span);
        let trace = trace::stop(&second);
        let (runs, lives) = trace.runs_and_lives("request");
        assert_eq!((runs.len(), lives.len()), (1, 0));
        assert_eq!(
            runs[0].arguments,
            [("number".to_owned(), Argument::Int(7))].into()
        );
    });
}

#[test]
fn arrows_to_where_a_span_is_entered_next_are_not_without_number() {
    let recording = Recording::start();
    with_layer(|| {
        let cause = info_span!("cause").entered();
        let effect = info_span!("effect");
        for _ in 0..1000 {
            effect.follows_from(&*cause);
        }
        effect.in_scope(|| {});
        effect.follows_from(&*cause);
        effect.in_scope(|| {});
    });
    let trace = recording.stop();
    let (runs, _) = trace.runs_and_lives("effect");
    assert_eq!(
        runs.iter().map(|run| run.flows_in.len()).collect::<Vec<_>>(),
        [64, 1]
    );
    // Each that begins has an end.
    assert_eq!(trace.instants.len(), 65);
}

#[test]
fn call_sites_are_off_but_for_sessions_that_record_their_target_and_level() {
    fn enabled() -> [bool; 4] {
        [
            info_span!(target: "chosen::a", "info"),
            debug_span!(target: "chosen::a", "debug"),
            trace_span!(target: "chosen::a", "trace"),
            info_span!(target: "other", "other"),
        ]
        .map(|span| !span.is_disabled())
    }
    with_layer(|| {
        let during = |source: DataSource| {
            let recording = Recording::of(source);
            let during = enabled();
            recording.stop();
            during
        };
        {
            let _alone = trace::alone();
            assert_eq!(enabled(), [false; 4]);
        }
        assert_eq!(during(DataSource::track_event()), [true, false, false, true]);
        let chosen = || {
            DataSource::track_event()
                .enable_category("chosen*")
                .disable_category("*")
        };
        assert_eq!(during(chosen()), [true, false, false, false]);
        assert_eq!(during(chosen().enable_tag("debug")), [true, true, true, false]);
        let not_trace = DataSource::track_event().enable_tag("debug").disable_tag("trace");
        assert_eq!(during(not_trace), [true, true, false, true]);
        let _alone = trace::alone();
        assert_eq!(enabled(), [false; 4]);
        assert_eq!(
            tracing::level_filters::LevelFilter::current(),
            tracing::level_filters::LevelFilter::OFF
        );
    });
}

/// Counts the spans that it is shown.
struct Counting(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Counting {
    fn on_new_span(&self, _: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn other_layers_see_spans_that_no_session_records_and_this_one_does_not() {
    let seen = Arc::new(AtomicUsize::new(0));
    let make = || {
        let _span = info_span!(target: "recorded", "one").entered();
        let _span = info_span!(target: "not recorded", "two").entered();
    };
    let counting = || Counting(seen.clone());
    let below = || {
        let registry = tracing_subscriber::registry();
        Dispatch::new(registry.with(counting()).with(ferretto_tracing::layer()))
    };
    let above = || {
        let registry = tracing_subscriber::registry();
        Dispatch::new(registry.with(ferretto_tracing::layer()).with(counting()))
    };
    let both: [&dyn Fn() -> Dispatch; 2] = [&below, &above];
    for dispatch in both {
        seen.store(0, Ordering::Relaxed);
        let alone = trace::alone();
        // `tracing` asks all subscribers of the process whether a call site is of interest, so this one must not be there during other tests.
        let dispatch = dispatch();
        tracing::dispatcher::with_default(&dispatch, make);
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        let source = DataSource::track_event()
            .enable_category("recorded")
            .disable_category("*");
        let recording = Recording::begun(alone, source);
        tracing::dispatcher::with_default(&dispatch, make);
        drop(dispatch);
        let trace = recording.stop();
        assert_eq!(seen.load(Ordering::Relaxed), 4);
        assert_eq!(trace.slices.len(), 1);
        assert_eq!(trace.slice("one").category, "recorded");
    }
}

#[test]
fn filters_of_users_hold_for_every_part_of_a_span() {
    let recording = Recording::start();
    let only = tracing_subscriber::filter::filter_fn(|metadata| metadata.name() != "hidden");
    let filtered = ferretto_tracing::layer().with_filter(only);
    let subscriber = tracing_subscriber::registry()
        .with(filtered)
        .with(Counting(Arc::default()));
    tracing::subscriber::with_default(subscriber, || {
        let _shown = info_span!("shown").entered();
        let hidden = info_span!("hidden", field = field::Empty);
        hidden.record("field", 1);
        hidden.in_scope(|| ());
        hidden.in_scope(|| ());
        hidden.follows_from(tracing::Span::current().id());
    });
    let trace = recording.stop();
    assert_eq!((trace.slices.len(), trace.instants.len()), (1, 0));
    trace.slice("shown");
}

#[test]
fn spans_that_are_exited_in_another_order_are_cut_so_that_slices_nest() {
    let recording = Recording::start();
    with_layer(|| {
        let (a, b, c) = (info_span!("a"), info_span!("b", field = 1), info_span!("c"));
        let first = a.enter();
        let second = b.enter();
        let third = c.enter();
        drop(first);
        b.record("field", 2);
        drop(third);
        drop(second);
    });
    let trace = recording.stop();
    let shape: Vec<_> = trace
        .slices
        .iter()
        .map(|slice| (&*slice.name, slice.depth))
        .collect();
    assert_eq!(shape, [("a", 0), ("b", 1), ("c", 2), ("b", 0), ("c", 1)]);
}

#[test]
fn a_span_that_is_entered_within_itself_is_two_slices_and_one_life() {
    let recording = Recording::start();
    with_layer(|| {
        let span = info_span!("recursive");
        let _outer = span.enter();
        let _inner = span.enter();
    });
    let trace = recording.stop();
    let (runs, lives) = trace.runs_and_lives("recursive");
    assert_eq!([runs.len(), lives.len()], [2, 1]);
    assert!(lives[0].begin <= runs[0].begin && runs[0].end <= lives[0].end);
}

#[test]
fn a_span_may_be_entered_and_closed_by_other_threads_than_its_maker() {
    let recording = Recording::start();
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(ferretto_tracing::layer()));
    // The first teaches that such spans are simple, which the others are not.
    for elsewhere in [false, true, true] {
        let span = tracing::dispatcher::with_default(&dispatch, || info_span!("job"));
        match elsewhere {
            false => drop(span.entered()),
            true => std::thread::scope(|scope| {
                scope.spawn(|| drop(span.entered()));
            }),
        }
    }
    let trace = recording.stop();
    let (runs, lives) = trace.runs_and_lives("job");
    assert_eq!([runs.len(), lives.len()], [3, 0]);
    let tracks: std::collections::BTreeSet<_> = runs.iter().map(|slice| slice.track).collect();
    assert_eq!(tracks.len(), 3);
}

#[test]
fn styles_show_where_spans_run_or_how_long_they_take_only() {
    let twice = || {
        let span = info_span!("twice");
        span.in_scope(|| ());
        span.in_scope(|| info_span!("once").in_scope(|| ()));
    };
    for (style, expected) in [
        (SpanStyle::Auto, ([2, 1], [1, 0])),
        (SpanStyle::Threads, ([2, 0], [1, 0])),
        (SpanStyle::Lives, ([0, 1], [0, 1])),
    ] {
        let recording = Recording::start();
        with(ferretto_tracing::layer().spans(style), twice);
        let trace = recording.stop();
        let count = |name| {
            let (runs, lives) = trace.runs_and_lives(name);
            [runs.len(), lives.len()]
        };
        assert_eq!((count("twice"), count("once")), expected, "{style:?}");
    }
}

#[test]
fn source_locations_are_recorded_if_asked_for() {
    let recording = Recording::start();
    let line = with(ferretto_tracing::layer().with_source_locations(), || {
        for _ in 0..2 {
            let _span = info_span!("here").entered();
        }
        line!() - 2
    });
    let trace = recording.stop();
    let lines: Vec<_> = trace.named("here").map(|slice| slice.line).collect();
    assert_eq!(lines, [Some(line), Some(line)]);
}

#[test]
fn a_span_that_follows_another_is_connected_to_the_call() {
    let recording = Recording::start();
    with_layer(|| {
        let cause = info_span!("cause");
        let effect = info_span!("effect");
        cause.in_scope(|| {
            effect.follows_from(&cause);
        });
        effect.in_scope(|| ());
    });
    let trace = recording.stop();
    let said = trace.instant("effect");
    let (cause, effect) = (trace.slice("cause"), trace.slice("effect"));
    assert!(cause.track == said.track && cause.begin <= said.time && said.time <= cause.end);
    assert_eq!(said.flows_out.len(), 1);
    assert_eq!(effect.flows_in, said.flows_out);
}

#[test]
fn sessions_that_start_and_stop_while_spans_are_open_have_whole_slices_only() {
    let first = Recording::start();
    let during = with_layer(|| {
        let outer = info_span!("outer");
        let entered = outer.enter();
        let second = first.also(DataSource::track_event());
        let inner = info_span!("inner").entered();
        first.stop_early();
        drop(inner);
        drop(entered);
        drop(info_span!("last").entered());
        trace::stop(&second)
    });
    let names: Vec<_> = during.slices.iter().map(|slice| &*slice.name).collect();
    assert_eq!(names, ["inner", "last"]);
}

#[test]
fn subscribers_do_not_mix_up_their_spans() {
    // Ids of two registries are the same.
    let recording = Recording::start();
    let make = || Dispatch::new(tracing_subscriber::registry().with(ferretto_tracing::layer()));
    let (one, two) = (make(), make());
    for _ in 0..2 {
        let first = tracing::dispatcher::with_default(&one, || info_span!("first"));
        let second = tracing::dispatcher::with_default(&two, || info_span!("second"));
        let (first, second) = (first.entered(), second.entered());
        drop(first);
        drop(second);
    }
    let trace = recording.stop();
    let shape: Vec<_> = trace
        .slices
        .iter()
        .map(|slice| (&*slice.name, slice.depth))
        .collect();
    assert_eq!(shape, [("first", 0), ("second", 1), ("second", 0)].repeat(2));
}

#[test]
fn a_thread_that_ends_within_a_span_ends_its_slice() {
    let recording = Recording::start();
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(ferretto_tracing::layer()));
    let kept = Mutex::new(None);
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| {
            let span = tracing::dispatcher::with_default(&dispatch, || info_span!("left open"));
            std::mem::forget(span.enter());
            *kept.lock().unwrap() = Some(span);
        });
        // This test is about the very end of threads, for which a scope does not wait.
        ends.join().unwrap();
    });
    drop(kept);
    recording.stop().slice("left open");
}
