//! Arbitrary packets in arbitrary fragments through a trace filter with nested messages and rules for strings. What stays is
//! a message of allowed fields, in their order, no longer than the packet; fragments make no difference, and what stays
//! stays when it is filtered again.
//!
//! The input is cut as in the target `frames`.

#![no_main]

#[path = "../../crates/service/tests/support/filter_bytecode.rs"]
mod filter_bytecode;

use std::cell::RefCell;
use std::sync::Arc;

use ferretto_fuzz::{TagWidth, assert_message, naive_fields, stream_in_pieces};
use ferretto_proto::messages::trace_config;
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};
use ferretto_service::trace_filter::{PacketFilter, TraceFilter};
use ferretto_wire::Reader;
use filter_bytecode::{Rule, bytecode};
use libfuzzer_sys::fuzz_target;

const PACKET: &[Rule] = &[
    Rule::Keep(1),
    Rule::Text(2),
    Rule::Nested(3, 1),
    Rule::Nested(4, 2),
    Rule::TextOf(5, 1),
    Rule::KeepRange(100, 50),
    Rule::Nested(900, 2),
];

fn filter() -> PacketFilter {
    let messages = [
        &[Rule::Nested(1, 1)],
        PACKET,
        &[Rule::Text(1), Rule::Keep(3), Rule::Nested(5, 2)],
    ];
    let rule = |policy, pattern: &str| StringFilterRule {
        policy: Some(policy),
        regex_pattern: Some(pattern.into()),
        ..Default::default()
    };
    let rules = vec![
        rule(StringFilterPolicy::SFP_MATCH_BREAK, "break.*"),
        rule(StringFilterPolicy::SFP_ATRACE_MATCH_BREAK, r"B\|1\|.*"),
        rule(
            StringFilterPolicy::SFP_ATRACE_MATCH_REDACT_GROUPS,
            r"B\|(\d+)\|.*a(.*)",
        ),
        rule(
            StringFilterPolicy::SFP_ATRACE_REPEATED_SEARCH_REDACT_GROUPS,
            r"(\d+)|x(.?)",
        ),
        rule(StringFilterPolicy::SFP_MATCH_REDACT_GROUPS, "((?:a|b(c))*).*"),
    ];
    let config = trace_config::TraceFilter {
        bytecode_v2: Some(bytecode(&messages)),
        string_filter_chain: StringFilterChain {
            rules,
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    PacketFilter::new(Arc::new(TraceFilter::new(&config).expect("a good filter")))
}

thread_local! {
    /// Kept, because leftovers of one packet must not reach the next.
    static FILTER: RefCell<PacketFilter> = RefCell::new(filter());
}

/// Whether a field may stay, if it is one of a length.
fn allowed(field: u64) -> bool {
    [1, 2, 3, 4, 5, 900].contains(&field) || (100..150).contains(&field)
}

fuzz_target!(|data: &[u8]| FILTER.with_borrow_mut(|filter| {
    let (packet, fragments) = stream_in_pieces(data);
    let whole = filter.filter([packet]).map(<[u8]>::to_vec);
    let in_fragments = filter.filter(fragments).map(<[u8]>::to_vec);
    assert_eq!(in_fragments, whole, "fragments make a difference");
    let fields = naive_fields(packet, TagWidth::Bits64);
    let Ok(kept) = whole else { return };
    let fields = fields.expect("what is filtered consists of whole fields");
    assert!(kept.len() <= packet.len());
    assert_message(&kept);
    let numbers: Vec<u64> = Reader::new(&kept)
        .map(|field| field.expect("a field").number.into())
        .collect();
    assert!(numbers.iter().all(|number| allowed(*number)));
    let mut candidates = fields.iter().map(|field| field.number);
    assert!(
        numbers
            .iter()
            .all(|number| candidates.any(|candidate| candidate == *number)),
        "fields that were not there, or not in this order"
    );
    let again = filter.filter([&kept[..]]).map(<[u8]>::to_vec).expect("a message");
    assert!(again.len() <= kept.len());
    let same = Reader::new(&again).map(|field| field.expect("a field").number.into());
    assert_eq!(same.collect::<Vec<u64>>(), numbers, "what stays does not stay");
}));
