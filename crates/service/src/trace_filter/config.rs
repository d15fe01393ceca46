//! From `TraceConfig.trace_filter` to a filter: everything that must hold of the config, with a reason if it does not.

use std::fmt;

use crate::expression::memory_for_each;
use crate::limits;
use crate::trace_filter::bytecode::{self, Action, BytecodeError, FieldTable, Overlay};
use crate::trace_filter::pattern::PatternError;
use crate::trace_filter::strings::{Policy, SemanticTypes, StringFilter};
use ferretto_proto::messages::trace_config::TraceFilter as Config;
use ferretto_proto::messages::trace_config::trace_filter::{StringFilterPolicy, StringFilterRule};
use ferretto_proto::write::Trace;
use ferretto_wire::Value;

/// Why a filter is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// Bytecode is invalid.
    Bytecode {
        /// The field that holds it.
        field: &'static str,
        /// The error.
        error: BytecodeError,
    },
    /// The filter is not one for traces.
    NotForTraces,
    /// There are too many rules for strings.
    TooManyRules,
    /// The patterns of these rules are too long together.
    Patterns(String),
    /// A rule for strings is invalid.
    Rule {
        /// The field that holds it.
        chain: &'static str,
        /// Its index there.
        index: usize,
        /// Its name, if it has one.
        name: String,
        /// The error.
        error: RuleError,
    },
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Bytecode { field, error } => write!(f, "trace_filter.{field}: {error}"),
            FilterError::NotForTraces => f.write_str("trace_filter: the root message has no nested field 1 (packet); make the filter for perfetto.protos.Trace"),
            FilterError::TooManyRules => write!(f, "trace_filter: more than {} rules for strings", limits::MAX_STRING_FILTER_RULES),
            FilterError::Patterns(error) => write!(f, "trace_filter: {error}"),
            FilterError::Rule { chain, index, name, error } => write!(f, "trace_filter.{chain}.rules[{index}]{}: {error}", quoted(name)),
        }
    }
}

impl std::error::Error for FilterError {}

fn quoted(name: &str) -> String {
    if name.is_empty() {
        String::new()
    } else {
        format!(" ({name:?})")
    }
}

/// Why a rule for strings is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// It has no policy, or one that this version does not know.
    NoPolicy,
    /// It names a semantic type that no field can have.
    BadSemanticType(i64),
    /// Its pattern cannot be used.
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        error: PatternError,
    },
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleError::NoPolicy => {
                f.write_str("policy is missing or not known to this version of the service")
            }
            RuleError::BadSemanticType(value) => {
                write!(f, "semantic_type {value} is no type; types are below 128")
            }
            RuleError::Pattern { pattern, error } => write!(f, "regex_pattern {pattern:?}: {error}"),
        }
    }
}

impl std::error::Error for RuleError {}

/// The rules for strings in the config: the rules of the first chain, replaced and followed by those of the second.
pub(super) fn string_filter(config: &Config) -> Result<StringFilter, FilterError> {
    let chains = [
        ("string_filter_chain", &config.string_filter_chain.rules),
        ("string_filter_chain_v54", &config.string_filter_chain_v54.rules),
    ];
    let all = || chains.iter().flat_map(|(_, rules)| rules.iter());
    if all().count() > limits::MAX_STRING_FILTER_RULES {
        return Err(FilterError::TooManyRules);
    }
    let patterns = all().filter_map(|rule| rule.regex_pattern.as_deref());
    let memory = memory_for_each("rules for strings", patterns).map_err(FilterError::Patterns)?;
    let mut filter = StringFilter::new(memory);
    for (chain, rules) in chains {
        for (index, rule) in rules.iter().enumerate() {
            add_rule(&mut filter, rule).map_err(|error| FilterError::Rule {
                chain,
                index,
                name: rule.name.clone().unwrap_or_default(),
                error,
            })?;
        }
    }
    Ok(filter)
}

fn add_rule(filter: &mut StringFilter, rule: &StringFilterRule) -> Result<(), RuleError> {
    let policy = match rule.policy.unwrap_or_default() {
        StringFilterPolicy::SFP_UNSPECIFIED => return Err(RuleError::NoPolicy),
        StringFilterPolicy::SFP_MATCH_REDACT_GROUPS => Policy::MatchRedactGroups,
        StringFilterPolicy::SFP_ATRACE_MATCH_REDACT_GROUPS => Policy::AtraceMatchRedactGroups,
        StringFilterPolicy::SFP_MATCH_BREAK => Policy::MatchBreak,
        StringFilterPolicy::SFP_ATRACE_MATCH_BREAK => Policy::AtraceMatchBreak,
        StringFilterPolicy::SFP_ATRACE_REPEATED_SEARCH_REDACT_GROUPS => {
            Policy::AtraceRepeatedSearchRedactGroups
        }
    };
    let pattern = rule.regex_pattern.as_deref().unwrap_or_default();
    filter
        .add(
            policy,
            pattern,
            rule.atrace_payload_starts_with.as_deref().unwrap_or_default(),
            rule.name.as_deref().unwrap_or_default(),
            semantic_types(rule)?,
        )
        .map_err(|error| RuleError::Pattern {
            pattern: pattern.into(),
            error,
        })
}

/// The semantic types that a rule names, including types of a later schema.
fn semantic_types(rule: &StringFilterRule) -> Result<SemanticTypes, RuleError> {
    let known = rule.semantic_type.iter().map(|known| i64::from(*known as i32));
    let unknown = rule.unknown_fields.iter().filter_map(|field| match field.value {
        Value::Varint(value) if field.number == StringFilterRule::SEMANTIC_TYPE => Some(value as i64),
        _ => None,
    });
    let mut types: Option<SemanticTypes> = None;
    for number in known.chain(unknown) {
        let with = |number| types.unwrap_or_default().with(number);
        let added = u32::try_from(number).ok().and_then(with);
        types = Some(added.ok_or(RuleError::BadSemanticType(number))?);
    }
    Ok(types.unwrap_or(SemanticTypes::UNSPECIFIED))
}

/// The table of fields that the config has, and which message a packet is.
pub(super) fn field_table(config: &Config) -> Result<(FieldTable, u32), FilterError> {
    let [v1, v2, overlay] = [
        &config.bytecode,
        &config.bytecode_v2,
        &config.bytecode_overlay_v54,
    ]
    .map(|bytes| bytes.as_deref().unwrap_or_default());
    let (field, bytes) = if v2.is_empty() {
        ("bytecode", v1)
    } else {
        ("bytecode_v2", v2)
    };
    let of = |field| move |error| FilterError::Bytecode { field, error };
    let words = bytecode::decode(bytes).map_err(of(field))?;
    let overlay = match overlay {
        [] => Ok(Overlay::default()),
        bytes => bytecode::decode(bytes).and_then(|words| Overlay::new(&words)),
    }
    .map_err(of("bytecode_overlay_v54"))?;
    let table = FieldTable::new(&words, &overlay).map_err(of(field))?;
    match table.action(0, Trace::PACKET) {
        Action::Message(packet) => Ok((table, packet)),
        _ => Err(FilterError::NotForTraces),
    }
}
