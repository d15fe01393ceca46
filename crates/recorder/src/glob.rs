//! Patterns for names, as in shells: `*` and `?`.
//!
//! The recorder matches names of units with it, and the command line names of events. It takes time proportional to the product of both lengths at
//! most.

/// Whether a pattern matches a whole text. `*` stands for any characters, `?` for one.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut in_text) = (0, 0);
    // The pattern's position after the last star, and the text's position if that star matches as little as possible.
    let mut star = None;
    while in_text < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, in_text));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[in_text] => {
                at += 1;
                in_text += 1;
            }
            _ => match star {
                Some((behind, stood)) => {
                    star = Some((behind, stood + 1));
                    at = behind;
                    in_text = stood + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// Whether a text is a pattern.
pub fn is_glob(text: &str) -> bool {
    text.contains(['*', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_letters_and_a_question_mark_is_one() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("a*c", "abc"),
            ("a*b*c", "aXbYbc"),
            ("?b*", "ab"),
            ("*switch", "sched_switch"),
        ] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a?", "a"), ("a*c", "abcd"), ("*b", "a")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
        assert!(!glob(&"*a".repeat(40), &"a".repeat(39)), "and soon");
    }
}
