//! Answers to flags that other tools have and ours has not: what to do instead.
//!
//! `ferretto profile` and `ferretto heap` ask for them when the parser does not know a flag.

use std::ffi::OsString;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::stderr::tell;
use crate::usage;

/// Flags, and the advice about them as the end of a sentence.
pub(crate) type Advice = (&'static [&'static str], &'static str);

/// Parses the words after the program's name. If there is nothing more to do, it has printed why and returns the exit code.
pub(crate) fn arguments<A: Parser>(
    name: &'static str,
    words: Vec<OsString>,
    all: &[Advice],
) -> Result<A, u8> {
    let words = std::iter::once(name.into()).chain(words);
    A::try_parse_from(words).map_err(|message| {
        match advice_about(name, &message, all) {
            Some(advice) => tell(&advice),
            None => usage::print(name, &message),
        }
        message.exit_code() as u8
    })
}

/// Returns the advice about a mistake in the arguments of `name`, if the mistake is a flag of another tool.
pub(crate) fn advice_about(name: &str, message: &clap::Error, all: &[Advice]) -> Option<String> {
    if message.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = message.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = typed.split('=').next().unwrap_or(typed);
    let (_, advice) = all.iter().find(|(flags, _)| flags.contains(&flag))?;
    Some(format!("{name}: there is no {flag} here: {advice}\n"))
}

/// Panics if a flag has two answers, or one though it exists.
#[cfg(test)]
pub(crate) fn check(all: &[Advice], command: &clap::Command) {
    let mut seen = std::collections::HashSet::new();
    for flag in all.iter().flat_map(|(flags, _)| *flags) {
        assert!(seen.insert(flag), "{flag} has two answers");
        let exists = command.get_arguments().any(|arg| {
            let short = arg.get_short_and_visible_aliases().unwrap_or_default();
            let long = arg.get_long_and_visible_aliases().unwrap_or_default();
            short.iter().any(|short| *flag == format!("-{short}"))
                || long.iter().any(|long| *flag == format!("--{long}"))
        });
        assert!(!exists, "{flag} exists");
    }
}
