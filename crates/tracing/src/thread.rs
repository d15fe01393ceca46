//! The spans that each thread has entered, and the shortcut for spans that are made, entered, exited and closed in a row.
//!
//! Slices of a thread's track must nest, so the thread's own record of them decides: a span that is exited while others, entered after it, are still
//! open ends those too, and they begin again after it.
//!
//! The shortcut: a span is noted as the last that its thread has made ([`made`]). If the thread enters it next, much is known of it without looking
//! it up, and likewise when it is closed right after its exit. For a noted id to mean another span by now, other threads would have to have used it
//! thousands of times over meanwhile, because the ids of `tracing-subscriber` contain a generation.

use std::cell::{Cell, RefCell};

use ferretto::private::{
    BeginMark, Begun, EncodedAnnotations, EventName, Fill, KeptAnnotations, OpenSlice, Parts, emit,
    emit_plain,
};
use ferretto::{EventContext, Flow};
use tracing_core::span::Id;

use crate::sites::Site;

/// A span, as a thread knows it: of which layer's registry, and its id there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanKey {
    layer: u32,
    id: u64,
}

impl SpanKey {
    /// No span's.
    const NONE: SpanKey = SpanKey { layer: 0, id: 0 };

    #[inline(always)]
    pub(crate) fn new(layer: u32, id: &Id) -> Self {
        Self {
            layer,
            id: id.into_u64(),
        }
    }
}

/// The span that the thread made last.
#[derive(Clone, Copy)]
struct Made {
    key: SpanKey,
    what: What,
}

/// The knowledge of a span that was just made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// All there is, as it is [plain](SpanKind::Plain): its site.
    Plain(&'static Site),
    /// The span has an account.
    Tracked,
}

/// The span that the thread exited last.
#[derive(Clone, Copy)]
struct Exited {
    key: SpanKey,
    kind: SpanKind,
}

const NOTHING_MADE: Made = Made {
    key: SpanKey::NONE,
    what: What::Tracked,
};
const NOTHING_EXITED: Exited = Exited {
    key: SpanKey::NONE,
    kind: SpanKind::Tracked,
};

thread_local! {
    static MADE: Cell<Made> = const { Cell::new(NOTHING_MADE) };
    static EXITED: Cell<Exited> = const { Cell::new(NOTHING_EXITED) };
    /// The open slices of the thread's track.
    static OPEN: RefCell<Stack> = const { RefCell::new(Stack(Vec::new())) };
}

/// An open slice. Small, because it is moved when a span is entered and again when it is exited.
struct Open {
    key: SpanKey,
    kind: SpanKind,
    location: Location,
    site: &'static Site,
    begun: Begun,
    more: Option<Box<More>>,
}

/// The state that only few open slices have.
#[derive(Default)]
struct More {
    correlation: Option<u64>,
    /// Arguments that were recorded since it began.
    late: KeptAnnotations,
}

/// Where the state of a span is, besides that of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// Nothing.
    Plain,
    /// Its registry has an account of it.
    Tracked,
}

/// Whether slices tell where in the source they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Told,
    Untold,
}

/// The fields of the beginning of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) annotations: &'a [u8],
    pub(crate) flows: &'a [Flow],
    pub(crate) correlation: Option<u64>,
    pub(crate) location: Location,
}

impl Beginning<'_> {
    pub(crate) const fn plain(location: Location) -> Self {
        Self {
            annotations: &[],
            flows: &[],
            correlation: None,
            location,
        }
    }

    fn is_plain(&self) -> bool {
        self.annotations.is_empty()
            && self.flows.is_empty()
            && self.correlation.is_none()
            && self.location == Location::Untold
    }

    pub(crate) fn write(&self, site: &Site, event: &mut EventContext<'_, '_>) {
        event.encoded_annotations(self.annotations);
        for &flow in self.flows {
            event.terminating_flow(flow);
        }
        if let Some(correlation) = self.correlation {
            event.correlation_id(correlation);
        }
        if self.location == Location::Told {
            tell_location(site, event);
        }
    }
}

pub(crate) fn tell_location(site: &Site, event: &mut EventContext<'_, '_>) {
    if let (Some(file), Some(line)) = (site.metadata.file(), site.metadata.line()) {
        event.source_location(file, None, line);
    }
}

/// The thread has made a span.
#[inline(always)]
pub(crate) fn made(key: SpanKey, what: What) {
    MADE.set(Made { key, what });
}

/// Takes the knowledge of this span, if the thread made it just before.
#[inline(always)]
pub(crate) fn take_made(key: SpanKey) -> Option<What> {
    let made = MADE.get();
    (made.key == key).then(|| {
        MADE.set(NOTHING_MADE);
        made.what
    })
}

/// Takes the kind of this span, if the thread exited it just before.
#[inline(always)]
pub(crate) fn take_exited(key: SpanKey) -> Option<SpanKind> {
    let exited = EXITED.get();
    (exited.key == key).then(|| {
        EXITED.set(NOTHING_EXITED);
        exited.kind
    })
}

/// Begins the slice of a span that the thread enters.
#[inline(always)]
pub(crate) fn enter(key: SpanKey, site: &'static Site, kind: SpanKind, beginning: &Beginning<'_>) {
    let listeners = site.call_site.recorded_by();
    if listeners == 0 {
        return;
    }
    let mark = BeginMark::new();
    let recorded = if beginning.is_plain() {
        emit_plain("", site.call_site, listeners)
    } else {
        begin_with(site, listeners, beginning)
    };
    push(Open {
        key,
        kind,
        location: beginning.location,
        site,
        begun: mark.recorded_by(recorded),
        more: beginning.correlation.map(|correlation| {
            Box::new(More {
                correlation: Some(correlation),
                late: KeptAnnotations::default(),
            })
        }),
    });
}

#[inline(never)]
fn begin_with(site: &'static Site, listeners: u32, beginning: &Beginning<'_>) -> u32 {
    let parts = Parts {
        category: None,
        name: EventName::OfSite,
        track: None,
        timestamp: None,
    };
    let fill = Fill::new(|event: &mut EventContext<'_, '_>| beginning.write(site, event));
    emit(site.call_site, listeners, parts, &(fill, ()))
}

#[inline(always)]
fn push(open: Open) {
    let mut open = Some(open);
    let _ = OPEN.try_with(|stack| stack.borrow_mut().0.extend(open.take()));
    // The thread is past its thread-locals.
    if let Some(open) = open {
        open.end();
    }
}

/// Ends the slice of a span that the thread exits, if it has one.
#[inline(always)]
pub(crate) fn exit(key: SpanKey) {
    match OPEN.try_with(|stack| stack.borrow_mut().0.pop_if(|open| open.key == key)) {
        Ok(Some(open)) => {
            EXITED.set(Exited { key, kind: open.kind });
            open.end();
        }
        _ => exit_below(key),
    }
}

/// As [`exit`], for a span after which others were entered.
#[cold]
#[inline(never)]
fn exit_below(key: SpanKey) {
    let open = OPEN.try_with(|stack| {
        let stack = &mut stack.borrow_mut().0;
        let place = stack.iter().rposition(|open| open.key == key)?;
        Some(stack.split_off(place))
    });
    let Ok(Some(mut open)) = open else { return };
    let above = open.split_off(1);
    let keys: Vec<_> = above
        .into_iter()
        .rev()
        .map(|open| {
            let correlation = open.more.as_ref().and_then(|more| more.correlation);
            let again = (open.key, open.site, open.kind, correlation, open.location);
            open.end();
            again
        })
        .collect();
    for open in open {
        open.end();
    }
    for (key, site, kind, correlation, location) in keys.into_iter().rev() {
        let beginning = Beginning {
            correlation,
            ..Beginning::plain(location)
        };
        enter(key, site, kind, &beginning);
    }
}

impl Open {
    #[inline(always)]
    fn end(self) {
        let slice = self.begun.slice(self.site.call_site);
        if let Some(more) = self.more {
            end_with_more(slice, self.site, &more);
        }
    }
}

#[inline(never)]
fn end_with_more(slice: OpenSlice, site: &Site, more: &More) {
    if more.late.is_empty() {
        return drop(slice);
    }
    let fill = Fill::new(|event: &mut EventContext<'_, '_>| {
        event.encoded_annotations(more.late.as_bytes());
    });
    slice.end_with(site.end(), None, &(fill, ()));
}

/// Slices that are open when the thread ends.
struct Stack(Vec<Open>);

impl Drop for Stack {
    fn drop(&mut self) {
        while let Some(open) = self.0.pop() {
            open.end();
        }
    }
}

/// Whether the thread is in this span.
pub(crate) fn is_open(key: SpanKey) -> bool {
    OPEN.try_with(|stack| stack.borrow().0.iter().any(|open| open.key == key))
        .unwrap_or(false)
}

/// Keeps arguments for the end of the span's slice; false if the thread is not in it.
pub(crate) fn keep_for_end(key: SpanKey, annotations: &EncodedAnnotations) -> bool {
    let kept = OPEN.try_with(|stack| {
        let stack = &mut stack.borrow_mut().0;
        let open = stack.iter_mut().rev().find(|open| open.key == key);
        open.map(|open| {
            let more = open.more.get_or_insert_default();
            more.late.keep(annotations);
        })
        .is_some()
    });
    kept.unwrap_or(false)
}
