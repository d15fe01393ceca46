//! Whether the category of an event is the same for each event of its place in the code, as far as its text tells.
//!
//! A call site is a `static`, which all calls and all types of a generic function share. So it can have the category of its first event only if all
//! others have the same: if it is written as a literal, or as a constant or static that belongs to no type.

/// Whether `text`, the text of an expression, is a literal, a macro of the compiler's that makes one, or a path such as `&NAME` or
/// `&module::NAME`. Parameters and variables are no such path, nor is `Self::NAME`, because each type has its own.
#[doc(hidden)]
#[must_use]
pub const fn is_same_for_all(text: &str) -> bool {
    let text = text.as_bytes();
    is_literal(text) || is_path(text)
}

/// Whether it is a string, `module_path!()`, or `concat!` of what has no parenthesis outside of strings.
const fn is_literal(text: &[u8]) -> bool {
    let mut at = match text {
        [b'c', b'o', b'n', b'c', b'a', b't', b'!', b'(', ..] => 8,
        [b'"', ..] => return skip_string(text, 0) == text.len(),
        _ => return is_equal(text, b"module_path!()"),
    };
    while at < text.len() {
        match text[at] {
            b'"' => at = skip_string(text, at),
            b')' => return at + 1 == text.len(),
            _ if is_at(text, at, b"module_path!()") => at += 14,
            b'(' => return false,
            _ => at += 1,
        }
    }
    false
}

/// Returns the place behind the string that begins at this place.
const fn skip_string(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    // Not the end of the text: the string has none.
    usize::MAX
}

/// Whether it is a path in which the last name is in capitals, as those of constants are, and all others begin with small letters, as those of
/// modules do. It may have a `&` in front.
const fn is_path(text: &[u8]) -> bool {
    let mut at = 0;
    if let [b'&', ..] = text {
        at = 1;
    }
    loop {
        while at < text.len() && matches!(text[at], b' ' | b':' | b'$') {
            at += 1;
        }
        let begin = at;
        let mut has_capitals = false;
        let mut has_small = false;
        while at < text.len() && matches!(text[at], b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_') {
            has_capitals |= text[at].is_ascii_uppercase();
            has_small |= text[at].is_ascii_lowercase();
            at += 1;
        }
        if at == text.len() {
            return has_capitals && !has_small;
        }
        if at == begin || text[begin].is_ascii_uppercase() || !matches!(text[at], b' ' | b':') {
            return false;
        }
    }
}

const fn is_equal(text: &[u8], other: &[u8]) -> bool {
    text.len() == other.len() && is_at(text, 0, other)
}

/// Whether `part` is in `text` at this place.
const fn is_at(text: &[u8], at: usize, part: &[u8]) -> bool {
    let mut index = 0;
    while index < part.len() {
        if at + index >= text.len() || text[at + index] != part[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_same_for_all;

    #[test]
    fn literals_and_constants_without_a_type_are_the_same_for_all() {
        macro_rules! told {
            ($($category:expr),* $(,)?) => { [$(stringify!($category)),*] };
        }
        let same = told![
            "net",
            "a,b",
            "quoted \" (here",
            module_path!(),
            concat!("net", ".(", 1),
            concat!(module_path!(), ".net"),
            NET,
            &NET,
            &N2,
            &_NET_2,
            module::NET,
            &module::inner::NET,
            &crate::NET,
            &::other::NET,
            &self::NET,
            &super::super::NET,
        ];
        for text in same {
            assert!(is_same_for_all(text), "{text}");
        }
        macro_rules! of_macro {
            ($category:expr) => {
                stringify!($category)
            };
        }
        macro_rules! in_macro {
            () => {
                of_macro!(&$crate::NET)
            };
        }
        for text in [in_macro!(), "& NET", "& module :: NET"] {
            assert!(is_same_for_all(text), "{text}");
        }
    }

    #[test]
    fn other_expressions_may_be_different_each_time() {
        macro_rules! told {
            ($($category:expr),* $(,)?) => { [$(stringify!($category)),*] };
        }
        let others = told![
            category,
            &category,
            Self::CATEGORY,
            &Self::CATEGORY,
            T::NET,
            <T as Plugin>::NET,
            <Self as Plugin>::NET,
            &module::Type::NET,
            Type::<u32>::NET,
            module::of::<T>::NET,
            NET.category(),
            self.NET,
            NETS[0],
            NETS[index],
            *NET,
            &&NET,
            (NET),
            (),
            const { T::NET },
            { NET },
            category(),
            NET(),
            my_category!(),
            DynamicCategory(&name),
            "net".trim(),
            "a".trim_matches("b"),
            concat!("net").trim_matches("b"),
            concat!(any!()),
            if NET { NET } else { NET },
            a || NET,
            r"net",
            -1,
            1,
        ];
        for text in others
            .into_iter()
            .chain(["", "\"", "\"\\", "&", "concat!(", "::", "&:"])
        {
            assert!(!is_same_for_all(text), "{text}");
        }
    }
}
