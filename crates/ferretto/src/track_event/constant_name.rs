//! Names of events that are constants: the types behind `NAME` and `module::NAME` in the macros.

use super::emit::{EventName, IntoEventName, StaticName};

/// A constant that names a call site. Types with `get` can be names.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ConstantName<T>(pub T);

impl ConstantName<&'static &'static str> {
    pub const fn get(self) -> &'static str {
        self.0
    }
}

impl ConstantName<&'static StaticName> {
    pub const fn get(self) -> &'static str {
        self.0.0
    }
}

impl ConstantName<&'static String> {
    pub const fn get(self) -> &'static str {
        self.0.as_str()
    }
}

/// The value of a path with several segments: a constant, perhaps of a type parameter, which a static call site cannot use.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct NameOfPath<T>(pub T);

impl NameOfPath<&'static str> {
    #[inline(always)]
    pub fn event_name(&self) -> EventName<'static> {
        EventName::Static(self.0)
    }
}

impl NameOfPath<StaticName> {
    #[inline(always)]
    pub fn event_name(&self) -> EventName<'static> {
        EventName::Static(self.0.0)
    }
}

/// For example a variant of an enum.
impl<T: AsRef<str>> IntoEventName for NameOfPath<T> {
    #[inline(always)]
    fn event_name(&self) -> EventName<'_> {
        EventName::Dynamic(self.0.as_ref())
    }
}
