//! [`DebugAnnotation`] for errors: the text of the error and those of its sources, as `reading settings: no such file`.

use std::error::Error;
use std::fmt;

use super::{AnnotationValue, DebugAnnotation};

/// An error with its sources: see [`error`].
#[derive(Clone, Copy, Debug)]
pub struct ErrorValue<T>(T);

/// Writes an error with all its sources, as text: `reading settings: no such file`. Takes a reference as well.
///
/// Errors of the standard library, and errors behind `dyn Error`, are arguments without this.
///
/// ```
/// # use ferretto::debug_annotation::error;
/// # fn annotate(_: impl ferretto::debug_annotation::DebugAnnotation) {}
/// # let refused = std::io::Error::other("no");
/// annotate(error(&refused));
/// let boxed: Box<dyn std::error::Error> = refused.into();
/// annotate(&boxed);
/// ```
#[inline]
pub const fn error<T: Error>(value: T) -> ErrorValue<T> {
    ErrorValue(value)
}

impl<T: Error> DebugAnnotation for ErrorValue<T> {
    #[inline]
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        value.display(Chain {
            text: &self.0,
            source: self.0.source(),
        });
    }
}

/// Formats an error and all its sources with `{}`.
struct Chain<'a> {
    text: &'a dyn fmt::Display,
    source: Option<&'a (dyn Error + 'static)>,
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)?;
        let mut source = self.source;
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

macro_rules! errors {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $type:ty;)*) => {$(
        /// The text of the error and the texts of its sources, separated by `: `.
        $(#[$attribute])*
        impl<$($generics)*> DebugAnnotation for $type {
            #[inline]
            fn write_annotation(&self, value: AnnotationValue<'_>) {
                value.display(Chain { text: self, source: self.source() });
            }
        }
    )*};
}

errors! {
    ['a] dyn Error + 'a;
    ['a] dyn Error + Send + 'a;
    ['a] dyn Error + Send + Sync + 'a;
    [] std::io::Error;
    [] fmt::Error;
    [] std::array::TryFromSliceError;
    [] std::cell::BorrowError;
    [] std::cell::BorrowMutError;
    [] std::char::ParseCharError;
    [] std::env::VarError;
    [] std::ffi::FromBytesWithNulError;
    [] std::ffi::NulError;
    [] std::net::AddrParseError;
    [] std::num::ParseFloatError;
    [] std::num::ParseIntError;
    [] std::num::TryFromIntError;
    [] std::str::ParseBoolError;
    [] std::str::Utf8Error;
    [] std::string::FromUtf8Error;
    [] std::sync::mpsc::RecvError;
    [] std::sync::mpsc::RecvTimeoutError;
    [] std::time::SystemTimeError;
}
