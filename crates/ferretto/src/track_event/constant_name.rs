//! Names of events that are constants: what the macros make of `NAME` and `module::NAME`.

use super::emit::{EventName, IntoEventName, StaticName};

/// A constant, by which a call site is to be called. What has `get` can be a name.
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

/// What a path of several segments leads to: a constant, perhaps one of a type parameter's, which no call site can have.
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

/// A variant of an enum, say.
impl<T: AsRef<str>> IntoEventName for NameOfPath<T> {
    #[inline(always)]
    fn event_name(&self) -> EventName<'_> {
        EventName::Dynamic(self.0.as_ref())
    }
}
