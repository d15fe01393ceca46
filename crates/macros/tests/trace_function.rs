//! The effect of `#[trace_function]` on functions, with macros in place of the SDK's that log their arguments.

#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use ferretto_macros::trace_function;

// The generated code names the SDK, which is this.
extern crate self as ferretto;

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn log(line: impl Into<String>) {
    LOG.with_borrow_mut(|log| log.push(line.into()));
}

/// The lines logged while `action` ran.
fn logged(action: impl FnOnce()) -> Vec<String> {
    LOG.take();
    action();
    LOG.take()
}

/// A slice, to its end.
pub struct Slice(&'static str);

impl Slice {
    #[must_use]
    pub fn begin(kind: &str, category: &str, name: &'static str, rest: &[String]) -> Self {
        log(format!("{kind} {category} {name}{}", rest.concat()));
        Self(name)
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        log(format!("end {}", self.0));
    }
}

impl Slice {
    /// Ends the slice, with the fields that `fill` adds.
    pub fn end_with(self, fill: impl Fn(&mut Event)) {
        let mut event = Event(String::new());
        fill(&mut event);
        log(format!("with{}", event.0));
    }
}

/// The fields added to the end of a slice.
#[derive(Debug)]
pub struct Event(String);

impl Event {
    pub fn annotation(&mut self, name: &str, value: impl Debug) {
        self.0 += &format!(" {name}:{value:?}");
    }
}

pub mod debug_annotation {
    use std::fmt::{self, Debug, Display, Formatter};

    pub struct Formatted(String);

    impl Debug for Formatted {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    pub fn debug(value: impl Debug) -> Formatted {
        Formatted(format!("debug {value:?}"))
    }

    pub fn display(value: impl Display) -> Formatted {
        Formatted(format!("display {value}"))
    }
}

pub mod private {
    pub fn call<T>(body: impl FnOnce() -> T) -> T {
        body()
    }

    pub fn mark_error(event: &mut super::Event, error: std::fmt::Arguments<'_>) {
        event.0 += &format!(" error:{error}");
    }
}

pub mod future {
    use super::{Event, Slice};

    pub fn in_slice<F: Future>(slice: Slice, future: F) -> InSlice<F> {
        InSlice(future, slice)
    }

    pub struct InSlice<F>(F, Slice);

    impl<F: Future> InSlice<F> {
        pub async fn with_output(self, fill: impl Fn(&F::Output, &mut Event)) -> F::Output {
            let Self(future, slice) = self;
            let output = future.await;
            slice.end_with(|event| fill(&output, event));
            output
        }
    }

    impl<F: Future> IntoFuture for InSlice<F> {
        type Output = F::Output;
        type IntoFuture = Polled<F>;

        fn into_future(self) -> Polled<F> {
            Polled {
                future: Box::pin(self.0),
                slice: Some(self.1),
            }
        }
    }

    /// A future that ends its slice when it is ready.
    pub struct Polled<F> {
        future: std::pin::Pin<Box<F>>,
        slice: Option<Slice>,
    }

    impl<F: Future> Future for Polled<F> {
        type Output = F::Output;

        fn poll(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<F::Output> {
            let polled = self.future.as_mut().poll(context);
            if polled.is_ready() {
                self.slice = None;
            }
            polled
        }
    }
}

#[macro_export]
macro_rules! trace_event {
    ($($event:tt)*) => { let _slice = $crate::begin!("slice", $($event)*); };
}

#[macro_export]
macro_rules! trace_slice {
    ($($event:tt)*) => { $crate::begin!("slice", $($event)*) };
}

#[macro_export]
macro_rules! trace_async {
    ($($event:tt)*) => { $crate::begin!("async", $($event)*) };
}

#[macro_export]
macro_rules! begin {
    ($kind:literal, $category:expr, $name:literal $(, $option:ident = $setting:expr)* $(, $label:literal => $value:expr)*) => {
        $crate::Slice::begin($kind, $category, $name, &[
            $(format!(" {}={:?}", stringify!($option), &$setting),)*
            $(format!(" {}:{:?}", $label, &$value),)*
        ])
    };
}

#[macro_export]
macro_rules! trace_elsewhere {
    ($($event:tt)*) => { let _slice = $crate::begin!("elsewhere", $($event)*); };
}

/// The SDK under another path.
mod facade {
    pub(super) mod sdk {
        pub(crate) use crate::trace_elsewhere as trace_event;
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Pending once.
async fn pause() {
    log("pause");
    let mut paused = false;
    poll_fn(|_| {
        if std::mem::replace(&mut paused, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    log("resume");
}

const CATEGORY: &str = "constant";

#[test]
fn the_slice_is_that_of_the_body() {
    #[trace_function("net")]
    fn send(_bytes: &[u8]) -> Result<u8, std::num::ParseIntError> {
        #![allow(clippy::needless_return)]
        log("body");
        let parsed = "x".parse()?;
        return Ok(parsed);
    }
    assert_eq!(logged(|| drop(send(&[]))), ["slice net send", "body", "end send"]);
}

#[test]
fn the_category_may_be_any_expression_and_the_name_another() {
    #[trace_function(CATEGORY, name = "other")]
    fn r#match() {}
    #[trace_function([CATEGORY, "x"][Vec::<(u8, u8)>::new().len()],)]
    fn r#loop() {}
    assert_eq!(logged(r#match), ["slice constant other", "end other"]);
    assert_eq!(logged(r#loop), ["slice constant loop", "end loop"]);
}

#[test]
fn arguments_are_the_parameters_or_the_listed_ones() {
    #[trace_function("c", args)]
    #[allow(unused_mut, clippy::needless_pass_by_value)]
    fn all(mut a: u8, _: u8, (_x, _y): (u8, u8), #[allow(unused)] b: String, r#type: fn(u8) -> u8) -> u8 {
        drop(b);
        r#type(a)
    }
    let lines = logged(|| assert_eq!(all(1, 2, (3, 4), "five".into(), |x| x), 1));
    assert!(
        lines[0].starts_with("slice c all a:1 b:\"five\" type:0x"),
        "{lines:?}"
    );

    #[trace_function("c", skip(b))]
    fn some(a: u8, b: u8, c: u8) -> u8 {
        a + b + c
    }
    assert_eq!(logged(|| assert_eq!(some(1, 2, 3), 6))[0], "slice c some a:1 c:3");

    struct Cache {
        hits: (u8, Option<u8>),
        size: u8,
    }
    impl Cache {
        #[trace_function("c", args(key, self.size, "hits" => self.hits.0 + 1, "large" => self.size > 2, "last" => Vec::<Option<u8>>::from([self.hits.1])))]
        fn get<'a>(self: &'a mut Cache, key: &str) -> &'a u8 {
            self.hits.0 += 1;
            &self.size
        }
    }
    let mut cache = Cache {
        hits: (4, None),
        size: 3,
    };
    let lines = logged(|| assert_eq!(*cache.get("k"), 3));
    assert_eq!(
        lines[0],
        "slice c get key:\"k\" size:3 hits:5 large:true last:[None]"
    );
    assert_eq!(cache.hits.0, 5);
}

#[test]
fn other_options_are_passed_on() {
    #[trace_function("c", track = 5 + id, args(id), flow = [id, 2])]
    fn optional(id: u8) {}
    assert_eq!(
        logged(|| optional(1))[0],
        "slice c optional track=6 flow=[1, 2] id:1"
    );
}

#[test]
fn all_kinds_of_functions_can_be_traced() {
    trait Shape {
        #[trace_function("c")]
        fn area(&self) -> f64 {
            0.0
        }
    }
    struct Point;
    impl Shape for Point {}

    #[trace_function("c", args(value))]
    #[allow(clippy::multiple_bound_locations, clippy::needless_lifetimes)]
    fn generic<'a, const N: usize, T: Debug, F: Fn(u8) -> u8>(
        value: &'a [T; N],
        f: F,
    ) -> impl Iterator<Item = &'a T>
    where
        F: Clone,
    {
        f.clone()(1);
        value.iter()
    }

    /// Documented.
    #[trace_function("c")]
    #[inline(never)]
    pub(crate) unsafe extern "C" fn foreign(pointer: *const u8) -> u8 {
        // SAFETY: the caller's.
        unsafe { *pointer }
    }

    #[trace_function("c")]
    fn diverges() -> ! {
        panic!("on purpose")
    }

    let lines = logged(|| {
        Point.area();
        assert_eq!(generic(&[1, 2], |x| x).count(), 2);
        // SAFETY: it points to a byte.
        assert_eq!(unsafe { foreign([7].as_ptr()) }, 7);
        std::panic::catch_unwind(|| diverges()).unwrap_err();
    });
    let expected = [
        "slice c area",
        "end area",
        "slice c generic value:[1, 2]",
        "end generic",
        "slice c foreign",
        "end foreign",
        "slice c diverges",
        "end diverges",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_slice_of_a_future_begins_when_it_is_polled_and_survives_being_suspended() {
    #[trace_function("net", args(text))]
    async fn fetch<T: Display + Debug>(text: T, rest: &str) -> Result<String, std::num::ParseIntError> {
        pause().await;
        let number: u8 = rest.parse()?;
        Ok(format!("{text}{number}"))
    }
    let lines = logged(|| {
        let mut future = pin!(fetch("a", "1"));
        log("made");
        assert!(poll(future.as_mut()).is_pending());
        log("between");
        assert_eq!(poll(future), Poll::Ready(Ok("a1".to_owned())));
    });
    assert_eq!(
        lines,
        [
            "made",
            "async net fetch text:\"a\"",
            "pause",
            "between",
            "resume",
            "end fetch"
        ]
    );
}

#[test]
fn the_slice_of_a_future_ends_when_it_is_dropped() {
    #[trace_function("net")]
    async fn fetch() {
        pause().await;
    }
    let lines = logged(|| {
        let mut future = Box::pin(fetch());
        assert!(poll(future.as_mut()).is_pending());
        drop(future);
    });
    assert_eq!(lines, ["async net fetch", "pause", "end fetch"]);
    assert_eq!(logged(|| drop(fetch())), [""; 0]);
}

#[test]
fn a_traced_future_can_go_to_another_thread() {
    #[trace_function("net", args)]
    async fn fetch(url: String) -> usize {
        pause().await;
        url.len()
    }
    fn is_send<T: Send>(_: &T) {}
    is_send(&fetch(String::new()));
}

/// The output of `#[async_trait]` for an `async fn`.
#[test]
fn a_boxed_future_is_a_future() {
    #[trace_function("net", args(url))]
    fn fetch<'a>(url: &'a str) -> Pin<Box<dyn Future<Output = usize> + Send + 'a>> {
        Box::pin(async move {
            pause().await;
            url.len()
        })
    }
    let lines = logged(|| {
        let mut future = fetch("abc");
        log("made");
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(poll(future.as_mut()), Poll::Ready(3));
    });
    assert_eq!(
        lines,
        [
            "made",
            "async net fetch url:\"abc\"",
            "pause",
            "resume",
            "end fetch"
        ]
    );
}

#[test]
fn a_function_that_ends_with_a_block_is_a_future() {
    struct Client {
        number: u8,
    }
    impl Client {
        #[trace_function("net", ret)]
        fn fetch(&self, more: u8) -> impl Future<Output = u8> + Send + use<> {
            let number = self.number;
            if more == 0 {
                log("nothing more");
            }
            async move {
                pause().await;
                number + more
            }
        }

        #[trace_function("net", args(self.number))]
        fn borrow(&self) -> impl Future<Output = u8> {
            #![allow(clippy::manual_async_fn)]
            async { self.number }
        }

        #[trace_function("net")]
        fn pinned(&self) -> Pin<Box<dyn Future<Output = u8> + '_>> {
            Box::pin(async { self.number })
        }
    }
    let client = Client { number: 1 };
    let lines = logged(|| {
        let mut future = pin!(client.fetch(2));
        log("made");
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(poll(future), Poll::Ready(3));
        assert_eq!(poll(pin!(client.borrow())), Poll::Ready(1));
        assert_eq!(poll(client.pinned().as_mut()), Poll::Ready(1));
    });
    assert_eq!(
        lines,
        [
            "made",
            "async net fetch",
            "pause",
            "resume",
            "with return:3",
            "end fetch",
            "async net borrow number:1",
            "end borrow",
            "async net pinned",
            "end pinned",
        ]
    );
}

#[test]
fn a_function_that_returns_a_closure_is_none() {
    #[trace_function("c")]
    fn later() -> impl Fn() -> Pin<Box<dyn Future<Output = ()>>> {
        move || Box::pin(pause())
    }
    #[trace_function("c")]
    fn blocks() -> impl AsyncFn() {
        move || async move { log("runs") }
    }
    let lines = logged(|| {
        drop(later());
        assert!(poll(pin!(blocks()())).is_ready());
    });
    assert_eq!(
        lines,
        [
            "slice c later",
            "end later",
            "slice c blocks",
            "end blocks",
            "runs"
        ]
    );
}

#[test]
fn arguments_are_taken_before_the_function_moves_them() {
    #[trace_function("c", args)]
    fn pinned(x: String) -> Pin<Box<dyn Future<Output = usize> + Send>> {
        log("before");
        let y = x;
        Box::pin(async move { y.len() })
    }
    #[trace_function("c", args(x))]
    fn block(x: String) -> impl Future<Output = usize> + Send {
        let y = x;
        async move { y.len() }
    }
    let lines = logged(|| {
        assert_eq!(poll(pinned("abc".into()).as_mut()), Poll::Ready(3));
        assert_eq!(poll(pin!(block("de".into()))), Poll::Ready(2));
    });
    assert_eq!(
        lines,
        [
            "async c pinned x:\"abc\"",
            "before",
            "end pinned",
            "async c block x:\"de\"",
            "end block"
        ]
    );
}

#[test]
fn the_sdk_may_have_another_path() {
    #[trace_function("c", crate = facade::sdk)]
    fn plain() {}
    macro_rules! make {
        ($sdk:path) => {
            #[trace_function("c", crate = $sdk)]
            fn made() {}
        };
    }
    make!(facade::sdk);
    assert_eq!(logged(plain), ["elsewhere c plain", "end plain"]);
    assert_eq!(logged(made), ["elsewhere c made", "end made"]);
}

#[test]
fn macros_can_give_the_bodies() {
    macro_rules! make {
        ($name:ident, $type:ty, $body:block) => {
            #[trace_function("c")]
            fn $name() -> $type $body
        };
        (async $name:ident, $type:ty, $body:block) => {
            #[trace_function("c", ret)]
            async fn $name() -> $type $body
        };
    }
    make!(sum, u32, { 1 + 1 });
    make!(async later, u32, {
        pause().await;
        3
    });
    assert_eq!(logged(|| assert_eq!(sum(), 2)), ["slice c sum", "end sum"]);
    let lines = logged(|| {
        let mut future = pin!(later());
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(poll(future), Poll::Ready(3));
    });
    assert_eq!(
        lines,
        ["async c later", "pause", "resume", "with return:3", "end later"]
    );
}

#[test]
fn macros_can_make_the_functions() {
    macro_rules! make {
        ($visibility:vis $name:ident, $category:literal, $argument:ident: $type:ty, $label:literal => $value:expr) => {
            #[trace_function($category, args($argument, $label => $value))]
            $visibility fn $name($argument: $type) -> $type {
                $argument
            }
        };
    }
    make!(pub(crate) made, "c", x: u8, "two" => 1 + 1);
    assert_eq!(logged(|| assert_eq!(made(1), 1))[0], "slice c made x:1 two:2");
}

#[test]
fn listed_arguments_come_beside_parameters_that_are_not_skipped() {
    #[trace_function("c", args("twice" => 2 * a, "c" => "other"), skip(b))]
    fn beside(a: u8, b: u8, c: u8) -> u8 {
        a + b + c
    }
    #[trace_function("c", skip(b), args)]
    fn all_but(a: u8, b: u8) -> u8 {
        a + b
    }
    #[trace_function("c", skip_all, args("sum" => a + b))]
    fn none(a: u8, b: u8) -> u8 {
        a + b
    }
    assert_eq!(
        logged(|| assert_eq!(beside(1, 2, 3), 6))[0],
        "slice c beside a:1 twice:2 c:\"other\""
    );
    assert_eq!(logged(|| assert_eq!(all_but(1, 2), 3))[0], "slice c all_but a:1");
    assert_eq!(logged(|| assert_eq!(none(1, 2), 3))[0], "slice c none sum:3");
}

#[test]
fn the_returned_value_is_recorded_where_the_slice_ends() {
    #[trace_function("c", ret)]
    fn plain(a: u8) -> u8 {
        if a == 0 {
            return 7;
        }
        a
    }
    #[trace_function("c", ret(Debug), err, args)]
    fn parse(text: &str) -> Result<u8, std::num::ParseIntError> {
        let number = text.parse()?;
        Ok(number)
    }
    #[trace_function("c", err(Debug))]
    fn fail() -> Result<(), &'static str> {
        Err("no")
    }
    #[trace_function("c", ret(Display))]
    fn generic<T: Display + Clone>(value: &T) -> impl Display {
        value.clone()
    }
    struct Tree {
        leaf: String,
    }
    impl Tree {
        #[trace_function("c", ret)]
        fn leaf_mut(&mut self) -> &mut String {
            &mut self.leaf
        }
        #[trace_function("c", ret)]
        fn into_leaf(self) -> String
        where
            Self: Sized,
        {
            self.leaf
        }
    }
    assert_eq!(
        logged(|| assert_eq!(plain(0), 7)),
        ["slice c plain", "with return:7", "end plain"]
    );
    let lines = logged(|| {
        parse("1").unwrap();
        parse("x").unwrap_err();
        fail().unwrap_err();
        let _ = generic(&5);
        let mut tree = Tree { leaf: "l".into() };
        tree.leaf_mut().push('m');
        tree.into_leaf();
    });
    let ends: Vec<_> = lines.iter().filter(|line| line.starts_with("with")).collect();
    assert_eq!(
        ends,
        [
            "with return:debug 1",
            "with error:invalid digit found in string",
            "with error:\"no\"",
            "with return:display 5",
            "with return:\"l\"",
            "with return:\"lm\"",
        ]
    );
}

#[test]
fn the_output_of_a_future_is_recorded_where_its_slice_ends() {
    trait Shape {
        fn area(&self) -> u8;
    }
    impl Shape for u8 {
        fn area(&self) -> u8 {
            *self
        }
    }
    // The return type has to be known inside the returned block, for a coercion.
    #[trace_function("c", name = "shape")]
    async fn shape(side: u8) -> Box<dyn Shape> {
        if side == 0 {
            return Box::new(1u8);
        }
        pause().await;
        Box::new(side)
    }
    #[trace_function("c", ret, err)]
    async fn parse(text: &str) -> Result<u8, Box<dyn std::error::Error>> {
        pause().await;
        Ok(text.parse()?)
    }
    #[trace_function("c", ret)]
    async fn opaque(x: u8) -> impl Debug + Copy {
        x
    }
    #[trace_function("c")]
    async fn for_ever() -> ! {
        loop {
            pause().await;
        }
    }
    let run = |text: &'static str| {
        let mut future = pin!(parse(text));
        assert!(poll(future.as_mut()).is_pending());
        assert!(poll(future).is_ready());
    };
    let lines = logged(|| {
        run("1");
        run("x");
        assert!(poll(pin!(opaque(5))).is_ready());
        let mut future = pin!(shape(3));
        assert!(poll(future.as_mut()).is_pending());
        let Poll::Ready(shape) = poll(future) else {
            panic!("it is ready")
        };
        assert_eq!(shape.area(), 3);
        assert!(poll(pin!(for_ever())).is_pending());
    });
    let ends: Vec<_> = lines.iter().filter(|line| line.starts_with("with")).collect();
    assert_eq!(
        ends,
        [
            "with return:1",
            "with error:invalid digit found in string",
            "with return:5"
        ]
    );
}
