//! The stand-in for the crate `regex` where it is not built in: types without values, since none is ever compiled.

#[cfg(feature = "trace-filter")]
use std::ops::Range;

const REFUSAL: &str =
    "regular expressions are not built into this service; build it with the feature `regex`";

/// See [`super`].
pub(crate) fn build_within(_: &str, _: usize, _: usize) -> Result<Regex, String> {
    Err(REFUSAL.into())
}

/// See [`super`].
pub(crate) fn check_syntax(_: &str) -> Result<(), String> {
    Err(REFUSAL.into())
}

/// `regex::bytes::Regex`.
#[derive(Debug)]
pub(crate) enum Regex {}

impl Regex {
    pub(crate) fn is_match(&self, _: &[u8]) -> bool {
        match *self {}
    }
}

#[cfg(feature = "trace-filter")]
impl Regex {
    pub(crate) fn capture_locations(&self) -> CaptureLocations {
        match *self {}
    }

    pub(crate) fn captures_read(&self, _: &mut CaptureLocations, _: &[u8]) -> Option<Match> {
        match *self {}
    }

    pub(crate) fn captures_read_at(&self, _: &mut CaptureLocations, _: &[u8], _: usize) -> Option<Match> {
        match *self {}
    }
}

/// `regex::bytes::CaptureLocations`.
#[cfg(feature = "trace-filter")]
#[derive(Debug)]
pub(crate) enum CaptureLocations {}

#[cfg(feature = "trace-filter")]
impl CaptureLocations {
    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn get(&self, _: usize) -> Option<(usize, usize)> {
        match *self {}
    }
}

/// `regex::bytes::Match`.
#[cfg(feature = "trace-filter")]
pub(crate) enum Match {}

#[cfg(feature = "trace-filter")]
impl Match {
    pub(crate) fn range(&self) -> Range<usize> {
        match *self {}
    }
}
