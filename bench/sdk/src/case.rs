//! The subjects of the measurement: the cases, and the texts in them, which are the same with every peer.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

/// One thing that an application does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// A slice with a name known when compiling: its begin and its end.
    Pair,
    /// The same on two threads at once.
    PairOnTwoThreads,
    /// An instant with an integer and a string that are known when it happens.
    Instant,
    /// A sample of an integer counter.
    Counter,
    /// A slice whose name is known when it begins.
    DynamicName,
    /// A span of the crate `tracing`, without fields: made, entered, exited and dropped.
    Span,
}

impl Case {
    pub const ALL: [Case; 6] = [
        Case::Pair,
        Case::PairOnTwoThreads,
        Case::Instant,
        Case::Counter,
        Case::DynamicName,
        Case::Span,
    ];

    /// The word for it on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Case::Pair => "pair",
            Case::PairOnTwoThreads => "pair-2",
            Case::Instant => "instant",
            Case::Counter => "counter",
            Case::DynamicName => "dynamic-name",
            Case::Span => "span",
        }
    }

    /// How the table calls it.
    pub fn title(self) -> &'static str {
        match self {
            Case::Pair => "begin+end, static name",
            Case::PairOnTwoThreads => "  the same on two threads",
            Case::Instant => "instant, integer and string",
            Case::Counter => "counter sample",
            Case::DynamicName => "begin+end, dynamic name",
            Case::Span => "span of `tracing`",
        }
    }

    /// Events in the trace for one of it.
    pub fn events(self) -> u64 {
        match self {
            Case::Instant | Case::Counter => 1,
            Case::Pair | Case::PairOnTwoThreads | Case::DynamicName | Case::Span => 2,
        }
    }

    /// Threads that do it.
    pub fn threads(self) -> u64 {
        if self == Case::PairOnTwoThreads { 2 } else { 1 }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(word: &str) -> Result<Case, String> {
        Case::ALL
            .into_iter()
            .find(|case| case.word() == word)
            .ok_or_else(|| {
                let words: Vec<_> = Case::ALL.iter().map(|case| case.word()).collect();
                format!("no case {word}: there are {}", words.join(", "))
            })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The string argument of instants.
pub const TEXT: &str = "GET /index.html";

/// Names that are not known when compiling, as strings of Rust and of C: making them is not part of the measurement.
pub struct Names {
    pub rust: Vec<String>,
    pub c: Vec<CString>,
}

/// 64 names of 15 bytes.
pub static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let rust: Vec<_> = (0..64).map(|number| format!("request-{number:07}")).collect();
    let c = rust
        .iter()
        .map(|name| CString::new(name.as_str()).expect("no name has a zero byte"))
        .collect();
    Names { rust, c }
});
