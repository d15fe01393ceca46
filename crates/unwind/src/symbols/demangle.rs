//! Readable names of Rust and C++ functions.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

use crate::symbol_table::STUB;

/// Bytes of a readable name. A mangled one can refer to its own parts and so stand for one that is exponentially longer.
const LONGEST: usize = 16 << 10;
const DEEPEST: u32 = 128;

/// The name as its language has it, without the hash of Rust's, and also of the stub that calls it (`@plt`); `name` itself if it is not mangled, or if
/// the readable one would be longer than 16 KB.
pub fn demangle(name: &str) -> String {
    match name.strip_suffix(STUB) {
        Some(callee) => function(callee) + STUB,
        None => function(name),
    }
}

fn function(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut text = Bounded::default();
        if write!(text, "{rust:#}").is_ok() {
            return text.0;
        }
    }
    if name.starts_with("_Z") || name.starts_with("___Z") {
        let options = ParseOptions::default().recursion_limit(DEEPEST);
        if let Ok(symbol) = Symbol::new_with_options(name, &options) {
            let mut text = Bounded::default();
            let options = DemangleOptions::new().recursion_limit(DEEPEST);
            if symbol.structured_demangle(&mut text, &options).is_ok() {
                return text.0;
            }
        }
    }
    name.to_owned()
}

#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_and_cpp_become_readable_and_others_stay() {
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZN5Shape4areaEi"), "Shape::area(int)");
        assert_eq!(demangle("_ZN5Shape4areaEi@plt"), "Shape::area(int)@plt");
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_Zgarbage"), "_Zgarbage");
    }

    #[test]
    fn a_name_that_would_become_endless_stays_mangled() {
        // Each parameter is a pair of the one before.
        let mut name = "_Z1fSt4pairIiiE".to_owned();
        for number in 0..30 {
            let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
            let seed = char::from(digits[number + 1]);
            name += &format!("St4pairIS{seed}_S{seed}_E");
        }
        assert!(demangle(&name).len() <= LONGEST);
    }
}
