//! Spans made, entered, exited, closed and recorded into at random, on several threads, while sessions come and go.

use std::sync::mpsc;
use std::thread;

use ferretto::session::DataSource;
use ferretto_tracing::SpanStyle;
use proptest::prelude::*;
use tracing::{Dispatch, Span, field, info_span};
use tracing_subscriber::prelude::*;

use crate::trace::{self, Recording};

const THREADS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// A span of one of the kinds, below another span or below the current one.
    Make {
        thread: usize,
        kind: usize,
        parent: Option<usize>,
    },
    Enter {
        thread: usize,
        span: usize,
    },
    /// The span that was entered so many before the last.
    Exit {
        thread: usize,
        nth: usize,
    },
    Record {
        thread: usize,
        span: usize,
    },
    Follow {
        thread: usize,
        span: usize,
        cause: usize,
    },
    /// The handle that was made.
    Drop {
        thread: usize,
        span: usize,
    },
    Event {
        thread: usize,
    },
    /// Another session starts, or the one that did stops.
    Session,
}

fn step() -> impl Strategy<Value = Step> {
    let thread = 0..THREADS;
    let any = 0..64usize;
    prop_oneof![
        6 => (thread.clone(), 0..4usize, proptest::option::weighted(0.3, any.clone()))
            .prop_map(|(thread, kind, parent)| Step::Make { thread, kind, parent }),
        8 => (thread.clone(), any.clone()).prop_map(|(thread, span)| Step::Enter { thread, span }),
        // Exits are mostly in order.
        8 => (thread.clone(), prop_oneof![8 => Just(0usize), 1 => any.clone()])
            .prop_map(|(thread, nth)| Step::Exit { thread, nth }),
        2 => (thread.clone(), any.clone()).prop_map(|(thread, span)| Step::Record { thread, span }),
        1 => (thread.clone(), any.clone(), any.clone())
            .prop_map(|(thread, span, cause)| Step::Follow { thread, span, cause }),
        4 => (thread.clone(), any).prop_map(|(thread, span)| Step::Drop { thread, span }),
        2 => thread.prop_map(|thread| Step::Event { thread }),
        1 => Just(Step::Session),
    ]
}

fn make(kind: usize, parent: Option<&Span>) -> Span {
    match (kind, parent) {
        (0, None) => info_span!("plain"),
        (0, Some(parent)) => info_span!(parent: parent, "plain"),
        (1, None) => info_span!("fields", number = 1, late = field::Empty),
        (1, Some(parent)) => info_span!(parent: parent, "fields", number = 1, late = field::Empty),
        (2, None) => info_span!("other"),
        (2, Some(parent)) => info_span!(parent: parent, "other"),
        (_, None) => info_span!("third", late = field::Empty),
        (_, Some(parent)) => info_span!(parent: parent, "third", late = field::Empty),
    }
}

type Job = Box<dyn FnOnce(&mut Vec<Span>) + Send>;

/// A thread that carries out jobs, one after the other.
struct Worker {
    jobs: mpsc::Sender<(Job, mpsc::Sender<()>)>,
}

impl Worker {
    fn new<'a>(scope: &'a thread::Scope<'a, '_>, dispatch: &Dispatch) -> Self {
        let (jobs, todo) = mpsc::channel::<(Job, mpsc::Sender<()>)>();
        let dispatch = dispatch.clone();
        scope.spawn(move || {
            tracing::dispatcher::with_default(&dispatch, || {
                // The spans that the thread is in.
                let mut entered = Vec::new();
                for (job, done) in todo {
                    job(&mut entered);
                    done.send(()).unwrap();
                }
                while let Some(span) = entered.pop() {
                    exit(&span);
                }
            });
        });
        Self { jobs }
    }

    fn run(&self, job: impl FnOnce(&mut Vec<Span>) + Send + 'static) {
        let (done, wait) = mpsc::channel();
        self.jobs.send((Box::new(job), done)).unwrap();
        wait.recv().unwrap();
    }
}

fn enter(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.enter(id));
}

fn exit(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.exit(id));
}

/// Does the steps; returns how often spans were entered.
fn run(steps: Vec<Step>, style: SpanStyle) -> usize {
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(ferretto_tracing::layer().spans(style)));
    let mut enters = 0;
    let mut other = None;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| Worker::new(scope, &dispatch)).collect();
        let mut spans: Vec<Span> = Vec::new();
        let pick =
            |spans: &[Span], index: usize| (!spans.is_empty()).then(|| spans[index % spans.len()].clone());
        for step in steps {
            match step {
                Step::Make { thread, kind, parent } => {
                    let parent = parent.and_then(|parent| pick(&spans, parent));
                    let (send, made) = mpsc::channel();
                    workers[thread].run(move |_| send.send(make(kind, parent.as_ref())).unwrap());
                    spans.push(made.recv().unwrap());
                }
                Step::Enter { thread, span } => {
                    let Some(span) = pick(&spans, span) else { continue };
                    enters += 1;
                    workers[thread].run(move |entered| {
                        enter(&span);
                        entered.push(span);
                    });
                }
                Step::Exit { thread, nth } => workers[thread].run(move |entered| {
                    if nth < entered.len() {
                        exit(&entered.remove(entered.len() - 1 - nth));
                    }
                }),
                Step::Record { thread, span } => {
                    let Some(span) = pick(&spans, span) else { continue };
                    workers[thread].run(move |_| {
                        span.record("late", 2);
                    });
                }
                Step::Follow { thread, span, cause } => {
                    let (Some(span), Some(cause)) = (pick(&spans, span), pick(&spans, cause)) else {
                        continue;
                    };
                    workers[thread].run(move |_| {
                        span.follows_from(&cause);
                    });
                }
                Step::Drop { thread, span } => {
                    if spans.is_empty() {
                        continue;
                    }
                    let span = spans.swap_remove(span % spans.len());
                    workers[thread].run(move |_| drop(span));
                }
                Step::Event { thread } => workers[thread].run(|_| tracing::info!(value = 1, "event")),
                Step::Session => {
                    other = match other.take() {
                        None => Some(trace::session(DataSource::track_event())),
                        Some(session) => {
                            // Reading checks that no end is without its beginning.
                            trace::stop_amid(&session);
                            None
                        }
                    }
                }
            }
        }
    });
    enters
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn slices_are_balanced_and_nested_for_random_spans(
        steps in proptest::collection::vec(step(), 0..120),
        style in prop_oneof![Just(SpanStyle::Auto), Just(SpanStyle::Threads), Just(SpanStyle::Lives)],
    ) {
        let recording = Recording::start();
        let enters = run(steps, style);
        // Reading checks that every slice has its end, in order.
        let trace = recording.stop();
        let runs = trace.slices.iter().filter(|slice| trace.is_on_thread(slice)).count();
        match style {
            SpanStyle::Lives => prop_assert_eq!(runs, 0),
            // Slices that are cut count more than once.
            _ => prop_assert!(runs >= enters, "{} slices of {} enters", runs, enters),
        }
        for slice in &trace.slices {
            prop_assert!(slice.begin <= slice.end);
            if let Some(parent) = slice.parent {
                let parent = &trace.slices[parent];
                prop_assert!(parent.begin <= slice.begin && slice.end <= parent.end);
            }
            // On a lane, each slice above another is its child.
            prop_assert!(trace.is_on_thread(slice) || style != SpanStyle::Threads);
        }
    }
}
