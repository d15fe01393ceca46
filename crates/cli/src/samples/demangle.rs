//! Names of functions as their programmers wrote them.
//!
//! The model of a profile calls it for each name that it shows. The names are other people's: a name that expands to more than [`MAX_NAME`] stays as
//! it is.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The most bytes of a demangled name. A short mangled name can stand for one of any length.
const MAX_NAME: usize = 16 << 10;

/// A string that refuses to grow beyond [`MAX_NAME`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Returns the demangled name of a Rust or C++ function, without the hash that older Rust names end with; other names as they are.
pub(super) fn demangled(name: &str) -> Cow<'_, str> {
    if !name.starts_with("_Z") && !name.starts_with("_R") && !name.starts_with("__Z") {
        return Cow::Borrowed(name);
    }
    let mut out = Bounded(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return match write!(out, "{rust:#}") {
            Ok(()) => Cow::Owned(out.0),
            Err(_) => Cow::Borrowed(name),
        };
    }
    let Ok(symbol) = cpp_demangle::Symbol::new(name) else {
        return Cow::Borrowed(name);
    };
    let options = cpp_demangle::DemangleOptions::default();
    match symbol.structured_demangle(&mut out, &options) {
        Ok(()) => Cow::Owned(out.0),
        Err(_) => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_cxx_names_are_demangled_and_others_stay() {
        assert_eq!(
            demangled("_ZN4core3ptr4drop17h0123456789abcdefE"),
            "core::ptr::drop"
        );
        assert_eq!(demangled("_RNvC7mycrate3foo"), "mycrate::foo");
        assert_eq!(demangled("_Z3addii"), "add(int, int)");
        assert_eq!(demangled("main"), "main");
        assert_eq!(demangled("_Z"), "_Z");
    }

    #[test]
    fn a_name_that_expands_without_end_stays_as_it_is() {
        // Each argument repeats the type of all before it.
        let mut bomb = String::from("_Z1fI1A");
        for index in 0..60 {
            let digit = std::char::from_digit(index % 36, 36)
                .unwrap()
                .to_ascii_uppercase();
            bomb.push_str(&format!("SI_S{digit}_"));
        }
        assert!(demangled(&bomb).len() <= MAX_NAME.max(bomb.len()));
    }
}
