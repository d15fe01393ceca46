//! Chooses which `ftrace/print` events a session keeps, by their text (`FtraceConfig.print_filter`).
//!
//! Consulted by the bundle writer for each print event of a session that has such a filter.

/// A rule's decision about a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep the event.
    Allow,
    /// Leave it out.
    Deny,
}

/// The condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The text starts with this.
    Prefix(Vec<u8>),
    /// The text is an atrace message, `<kind>|<process id>|<rest>`, and its rest starts with the prefix.
    AtraceMessage {
        /// The text before the process id, such as `C`.
        kind: Vec<u8>,
        /// How the rest begins.
        prefix: Vec<u8>,
    },
}

impl Pattern {
    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => text.starts_with(prefix),
            Self::AtraceMessage { kind, prefix } => {
                let after_kind = text
                    .strip_prefix(kind.as_slice())
                    .and_then(|rest| rest.strip_prefix(b"|"));
                let Some(after_kind) = after_kind else {
                    return false;
                };
                let digits = after_kind.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let rest = after_kind[digits..].strip_prefix(b"|");
                rest.is_some_and(|rest| rest.starts_with(prefix))
            }
        }
    }
}

/// One rule of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The condition.
    pub pattern: Pattern,
    /// The decision if the condition holds.
    pub verdict: Verdict,
}

/// Rules in the order of the config. The first that matches decides; a text that none matches is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintFilter {
    /// The rules.
    pub rules: Vec<Rule>,
}

impl PrintFilter {
    /// Whether to keep an event with this text, which ends at its first NUL if it has one.
    pub(crate) fn judge(&self, text: &[u8]) -> Verdict {
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = &text[..len];
        self.rules
            .iter()
            .find(|rule| rule.pattern.matches(text))
            .map_or(Verdict::Allow, |rule| rule.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[(Pattern, Verdict)]) -> PrintFilter {
        let rules = rules.iter().map(|(pattern, verdict)| Rule {
            pattern: pattern.clone(),
            verdict: *verdict,
        });
        PrintFilter {
            rules: rules.collect(),
        }
    }

    #[test]
    fn the_first_matching_rule_decides_and_none_allows() {
        let filter = filter(&[
            (Pattern::Prefix(b"keep this".into()), Verdict::Allow),
            (Pattern::Prefix(b"keep".into()), Verdict::Deny),
        ]);
        assert_eq!(filter.judge(b"keep this one"), Verdict::Allow);
        assert_eq!(filter.judge(b"keep out"), Verdict::Deny);
        assert_eq!(filter.judge(b"else"), Verdict::Allow);
        assert_eq!(
            filter.judge(b"kee\0p out"),
            Verdict::Allow,
            "the text ends at its NUL"
        );
    }

    #[test]
    fn atrace_messages_are_matched_around_the_process_id() {
        let filter = filter(&[(
            Pattern::AtraceMessage {
                kind: b"C".into(),
                prefix: b"mem".into(),
            },
            Verdict::Deny,
        )]);
        assert_eq!(filter.judge(b"C|123|memory|4"), Verdict::Deny);
        assert_eq!(filter.judge(b"C||memory|4"), Verdict::Deny);
        for other in ["C|123|cpu", "B|123|mem", "C|12x|mem", "C|123", "C", "Cmem", ""] {
            assert_eq!(filter.judge(other.as_bytes()), Verdict::Allow, "{other:?}");
        }
    }
}
