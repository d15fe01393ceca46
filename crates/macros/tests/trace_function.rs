//! What `#[trace_function]` does to functions, with macros in place of the SDK's that write down what they are given.

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

/// What was written down while `action` ran.
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

#[macro_export]
macro_rules! trace_event {
    ($($event:tt)*) => { let _slice = $crate::begin!("slice", $($event)*); };
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
fn arguments_are_the_parameters_or_what_is_listed() {
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

/// What `#[async_trait]` makes of an `async fn`.
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
