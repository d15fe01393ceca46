//! Rules for strings: the parts to hide, and how they are found.
//!
//! The rules of a chain are tried in order on each string that the bytecode marks, until one applies. Most policies exist in two forms: for any string,
//! and for strings of Android's atrace (`B|pid|payload`), where the beginning of the payload is compared before the pattern is tried. Hiding keeps
//! the length: the text that the pattern's groups matched is overwritten.
//!
//! The message filter calls this. Strings are bytes, whatever their encoding. A pattern takes time linear in the string. Repeated searches do
//! not, so [`MAX_FILTER_SEARCH_BYTES`](limits::MAX_FILTER_SEARCH_BYTES) bounds them. The total for a packet is bounded by
//! [`MAX_FILTER_TIME_PER_PACKET`](limits::MAX_FILTER_TIME_PER_PACKET).

use std::fmt;
use std::time::Duration;

use super::effort::Effort;
use crate::expression::{CaptureLocations, Expression, Regex};
use crate::limits;
use crate::trace_filter::pattern::{Extent, PatternError, compile};

/// How a rule is applied. The values are those of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// A string that the pattern matches has its groups hidden; no further rule is tried.
    MatchRedactGroups,
    /// The same, for atrace strings with the right payload.
    AtraceMatchRedactGroups,
    /// A string that the pattern matches stays; no further rule is tried.
    MatchBreak,
    /// The same, for atrace strings with the right payload.
    AtraceMatchBreak,
    /// In atrace strings with the right payload the groups of all matches of the pattern are hidden; if there are any, no
    /// further rule is tried.
    AtraceRepeatedSearchRedactGroups,
}

impl Policy {
    fn extent(self) -> Extent {
        match self {
            Policy::AtraceRepeatedSearchRedactGroups => Extent::Part,
            _ => Extent::Whole,
        }
    }

    fn is_for_atrace(self) -> bool {
        !matches!(self, Policy::MatchRedactGroups | Policy::MatchBreak)
    }
}

/// The semantic types that a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SemanticTypes(u128);

impl SemanticTypes {
    /// Strings without a type, which are a type of their own.
    pub(super) const UNSPECIFIED: SemanticTypes = SemanticTypes(1);

    /// Adds a type; `None` if it is not below 128.
    pub(super) fn with(self, semantic_type: u32) -> Option<SemanticTypes> {
        Some(SemanticTypes(self.0 | 1u128.checked_shl(semantic_type)?))
    }

    /// Types that no rule can name are in all sets: rather hide too much.
    fn contain(self, semantic_type: u16) -> bool {
        let bit = 1u128.checked_shl(semantic_type.into());
        bit.is_none_or(|bit| self.0 & bit != 0)
    }
}

/// One rule of a chain.
#[derive(Debug)]
struct Rule {
    name: String,
    policy: Policy,
    pattern: Expression,
    atrace_payload_starts_with: Vec<u8>,
    semantic_types: SemanticTypes,
}

/// A chain of rules.
#[derive(Debug)]
pub(super) struct StringFilter {
    /// The memory that the automaton of each may take.
    memory: usize,
    rules: Vec<Rule>,
}

/// The resources for applying a chain of rules: memory for the matches of each rule's groups, and time.
#[derive(Debug, Default)]
pub(super) struct Groups {
    locations: Vec<CaptureLocations>,
    effort: Effort,
    /// The time of the clock when the packet began.
    packet_began: u64,
}

impl Groups {
    /// A batch of packets begins: the time it takes is counted from here.
    pub(super) fn begin_batch(&mut self, effort: Effort) {
        self.effort = effort;
    }

    /// A packet begins.
    pub(super) fn begin_packet(&mut self) {
        self.packet_began = self.effort.last_look();
    }

    /// The time that the packets of the batch have taken so far.
    pub(super) fn batch_took(&self) -> Duration {
        self.effort.taken()
    }
}

/// Spends the effort of searching this many bytes for a pattern.
fn spend(
    effort: &Effort,
    packet_began: u64,
    pattern: &Expression,
    bytes: usize,
) -> Result<(), SearchTooLong> {
    let work = pattern.work(bytes);
    if work > limits::MAX_SEARCH_WORK
        || effort.taken_since(packet_began) >= limits::MAX_FILTER_TIME_PER_PACKET
    {
        return Err(SearchTooLong);
    }
    effort.spend(work);
    Ok(())
}

/// A string would have to be searched for longer than is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SearchTooLong;

impl fmt::Display for SearchTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string takes too long to be searched")
    }
}

impl std::error::Error for SearchTooLong {}

impl StringFilter {
    /// A chain without rules. The automaton of each rule may take `memory` bytes.
    pub(super) fn new(memory: usize) -> Self {
        Self {
            memory,
            rules: Vec::new(),
        }
    }

    /// Adds a rule: in place of the one of this name, else, and always without a name, at the end.
    pub(super) fn add(
        &mut self,
        policy: Policy,
        pattern: &str,
        atrace_payload_starts_with: &str,
        name: &str,
        semantic_types: SemanticTypes,
    ) -> Result<(), PatternError> {
        let rule = Rule {
            name: name.into(),
            policy,
            pattern: compile(pattern, policy.extent(), self.memory)?,
            atrace_payload_starts_with: atrace_payload_starts_with.into(),
            semantic_types,
        };
        let same_name = |other: &&mut Rule| !name.is_empty() && other.name == name;
        match self.rules.iter_mut().find(same_name) {
            Some(other) => *other = rule,
            None => self.rules.push(rule),
        }
        Ok(())
    }

    /// Memory to work in.
    pub(super) fn groups(&self) -> Groups {
        let patterns = self.rules.iter().map(|rule| &rule.pattern.regex);
        Groups {
            locations: patterns.map(Regex::capture_locations).collect(),
            ..Groups::default()
        }
    }

    /// Applies the rules to a string of this semantic type. `groups` is of this filter.
    pub(super) fn apply(
        &self,
        text: &mut [u8],
        semantic_type: u16,
        groups: &mut Groups,
    ) -> Result<Outcome, SearchTooLong> {
        if text.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        let mut payload = None;
        let Groups {
            locations,
            effort,
            packet_began,
        } = groups;
        for (rule, groups) in self.rules.iter().zip(locations) {
            if !rule.semantic_types.contain(semantic_type) {
                continue;
            }
            if rule.policy.is_for_atrace() {
                let payload: Option<usize> = *payload.get_or_insert_with(|| atrace_payload(text));
                let concerned = |start| text[start..].starts_with(&rule.atrace_payload_starts_with);
                if !payload.is_some_and(concerned) {
                    continue;
                }
            }
            let spend = |bytes| spend(effort, *packet_began, &rule.pattern, bytes);
            let pattern = &rule.pattern.regex;
            match rule.policy {
                Policy::MatchBreak | Policy::AtraceMatchBreak => {
                    spend(text.len())?;
                    if pattern.is_match(text) {
                        return Ok(Outcome::Unchanged);
                    }
                }
                Policy::MatchRedactGroups | Policy::AtraceMatchRedactGroups => {
                    spend(text.len())?;
                    if pattern.captures_read(groups, text).is_some() {
                        redact(text, groups);
                        return Ok(Outcome::Redacted);
                    }
                }
                Policy::AtraceRepeatedSearchRedactGroups => {
                    if search_and_redact(text, pattern, groups, spend)? {
                        return Ok(Outcome::Redacted);
                    }
                }
            }
        }
        Ok(Outcome::Unchanged)
    }
}

/// The outcome for a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// No rule applied, or one that lets it stay.
    Unchanged,
    /// A rule applied that hides parts of it, if only parts of no length.
    Redacted,
}

/// The start of the payload in an atrace string (`B|pid|payload`), if there is a payload. Strings that end an event (`E|pid`) have none.
fn atrace_payload(text: &[u8]) -> Option<usize> {
    const BEHIND_FIRST_BAR: usize = 2;
    if text.first() == Some(&b'E') {
        return None;
    }
    let bar = text
        .get(BEHIND_FIRST_BAR..)?
        .iter()
        .position(|byte| *byte == b'|')?;
    Some(BEHIND_FIRST_BAR + bar + 1)
}

/// Hides the groups of all matches; returns whether there were any. Each search sees the result of the earlier ones.
fn search_and_redact(
    text: &mut [u8],
    pattern: &Regex,
    groups: &mut CaptureLocations,
    spend: impl Fn(usize) -> Result<(), SearchTooLong>,
) -> Result<bool, SearchTooLong> {
    let mut budget = limits::MAX_FILTER_SEARCH_BYTES;
    let mut found = false;
    let mut at = 0;
    while at <= text.len() {
        budget = budget
            .checked_sub((text.len() - at) as u64)
            .ok_or(SearchTooLong)?;
        spend(text.len() - at)?;
        let Some(range) = pattern
            .captures_read_at(groups, text, at)
            .map(|found| found.range())
        else {
            break;
        };
        found = true;
        redact(text, groups);
        at = range.end + usize::from(range.is_empty());
    }
    Ok(found)
}

/// Overwrites the matches of the groups, one after the other.
fn redact(text: &mut [u8], groups: &CaptureLocations) {
    const MARK: &[u8] = b"P60REDACTED";
    for index in 1..groups.len() {
        if let Some((start, end)) = groups.get(index) {
            let hidden = &mut text[start..end];
            hidden.fill(b'-');
            let marked = hidden.len().min(MARK.len());
            hidden[..marked].copy_from_slice(&MARK[..marked]);
        }
    }
}

#[cfg(test)]
mod tests;
