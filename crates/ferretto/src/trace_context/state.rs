//! The header `tracestate`: data of others, which is checked and passed on, never interpreted.

use std::sync::Arc;

/// The standard's limits: what everybody passes on, and what no list may exceed.
const MAX_LEN: usize = 512;
const MAX_MEMBERS: usize = 32;
/// Longer members are left out before others.
const LONG_MEMBER: usize = 128;
const MAX_KEY: usize = 256;
const MAX_VALUE: usize = 256;

/// The optional whitespace around members.
const SPACE: [char; 2] = [' ', '\t'];

/// Returns what is to be passed on of the header's value; `None` if it is invalid or empty.
pub(super) fn passed_on(header: &str) -> Option<Arc<str>> {
    let header = header.trim_matches(SPACE);
    let members = || {
        let all = header.split(',').map(|member| member.trim_matches(SPACE));
        all.filter(|member| !member.is_empty())
    };
    let count = members().count();
    if count == 0 || count > MAX_MEMBERS || !members().all(is_valid) {
        return None;
    }
    if header.len() <= MAX_LEN {
        return Some(header.into());
    }
    let mut kept: Vec<&str> = members().collect();
    // Each with a comma, but for the last.
    while kept.iter().map(|member| member.len() + 1).sum::<usize>() > MAX_LEN + 1 {
        let long = kept.iter().rposition(|member| member.len() > LONG_MEMBER);
        kept.remove(long.unwrap_or(kept.len() - 1));
    }
    (!kept.is_empty()).then(|| kept.join(",").into())
}

/// Whether this is `key=value`, as the standard's second level has it.
fn is_valid(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let in_key = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let in_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    (1..=MAX_KEY).contains(&key.len())
        && (1..=MAX_VALUE).contains(&value.len())
        && key.as_bytes()[0].is_ascii_alphanumeric()
        && key.bytes().all(in_key)
        && value.bytes().all(in_value)
}
