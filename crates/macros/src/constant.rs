//! The meaning of names: which of them are constants.

/// Whether a name is written as Rust writes constants and statics, in capitals. The compiler warns of others that are.
pub(crate) fn is_written_as_one(name: &str) -> bool {
    let name = name.strip_prefix("r#").unwrap_or(name);
    name.chars().any(char::is_uppercase) && !name.chars().any(char::is_lowercase)
}

#[cfg(test)]
mod tests {
    use super::is_written_as_one;

    #[test]
    fn constants_are_in_capitals() {
        for constant in ["NAME", "N", "_NAME_2", "ÄÖ"] {
            assert!(is_written_as_one(constant), "{constant}");
        }
        for other in ["name", "Name", "nAME", "_", "_1", "self", "Self", "名前"] {
            assert!(!is_written_as_one(other), "{other}");
        }
    }
}
