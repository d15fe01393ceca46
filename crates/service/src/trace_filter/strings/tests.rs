//! Every policy in its intended use, and rules in combination.

use super::*;
use Policy::*;

/// A chain of rules, for testing the result of applying it.
struct Chain(StringFilter);

impl Default for Chain {
    fn default() -> Chain {
        Chain(StringFilter::new(crate::limits::MAX_REGEX_MEMORY))
    }
}

impl Chain {
    fn with(self, policy: Policy, pattern: &str, payload: &str) -> Chain {
        self.named("", policy, pattern, payload)
    }

    fn named(self, name: &str, policy: Policy, pattern: &str, payload: &str) -> Chain {
        self.of(SemanticTypes::UNSPECIFIED, name, policy, pattern, payload)
    }

    fn of(mut self, types: SemanticTypes, name: &str, policy: Policy, pattern: &str, payload: &str) -> Chain {
        self.0.add(policy, pattern, payload, name, types).unwrap();
        self
    }

    #[track_caller]
    fn redacts(&self, semantic_type: u16, text: &str, expected: &str) -> &Chain {
        self.gives(semantic_type, text, (Outcome::Redacted, expected))
    }

    #[track_caller]
    fn leaves(&self, semantic_type: u16, text: &str) -> &Chain {
        self.gives(semantic_type, text, (Outcome::Unchanged, text))
    }

    #[track_caller]
    fn gives(&self, semantic_type: u16, text: &str, expected: (Outcome, &str)) -> &Chain {
        let mut bytes = text.as_bytes().to_vec();
        let mut groups = self.0.groups();
        let outcome = self.0.apply(&mut bytes, semantic_type, &mut groups).unwrap();
        assert_eq!((outcome, String::from_utf8_lossy(&bytes).as_ref()), expected);
        self
    }
}

fn rule(policy: Policy, pattern: &str, payload: &str) -> Chain {
    Chain::default().with(policy, pattern, payload)
}

fn types(types: &[u32]) -> SemanticTypes {
    let add = |set: SemanticTypes, semantic_type: &u32| set.with(*semantic_type).unwrap();
    types.iter().fold(SemanticTypes::default(), add)
}

const FOO: &str = r"B\|\d+\|foo (.*)";

#[test]
fn groups_are_overwritten_and_keep_their_length() {
    rule(MatchRedactGroups, FOO, "")
        .redacts(0, "B|1234|foo 1234 bar baz", "B|1234|foo P60REDACTED-")
        .redacts(0, "B|1234|foo 1234", "B|1234|foo P60R")
        .redacts(0, "B|1234|foo ", "B|1234|foo ")
        .leaves(0, "B|1234|fooo")
        .leaves(0, "xB|1234|foo 1")
        .leaves(0, "");
    rule(MatchRedactGroups, "(a+)(b)?(c+)", "")
        .redacts(0, "aaacc", "P60P6")
        .redacts(0, "abccc", "PPP60");
    // An inner group after the one around it.
    rule(MatchRedactGroups, "(a(bc)d)", "").redacts(0, "abcd", "PP6R");
}

#[test]
fn without_rules_nothing_changes() {
    Chain::default().leaves(0, "B|1234|foo 1").leaves(7, "");
}

#[test]
fn atrace_rules_compare_the_payload_first() {
    rule(AtraceMatchRedactGroups, FOO, "foo").redacts(
        0,
        "B|1234|foo 1234 bar baz",
        "B|1234|foo P60REDACTED-",
    );
    rule(AtraceMatchRedactGroups, FOO, "foo 1234 bar baz").redacts(
        0,
        "B|1234|foo 1234 bar baz",
        "B|1234|foo P60REDACTED-",
    );
    rule(AtraceMatchRedactGroups, FOO, "").redacts(0, "B|1234|foo 1234", "B|1234|foo P60R");
    rule(AtraceMatchRedactGroups, FOO, "foo 1234 bar baz ").leaves(0, "B|1234|foo 1234 bar baz");
    rule(AtraceMatchRedactGroups, FOO, "foo 2").leaves(0, "B|1234|foo 1234 bar baz");
    rule(AtraceMatchRedactGroups, r"B\|\d+\|(.*)", "").redacts(0, "B|1234|", "B|1234|");
}

#[test]
fn strings_without_payload_are_not_for_atrace_rules() {
    rule(AtraceMatchRedactGroups, r"(E\|\d+\|x)", "")
        .leaves(0, "E|1234")
        .leaves(0, "E|1234|x");
    rule(AtraceMatchRedactGroups, r"(B\|\d+)", "")
        .leaves(0, "B|1")
        .leaves(0, "B|");
    rule(AtraceMatchRedactGroups, "(.*)", "")
        .leaves(0, "B")
        .leaves(0, "B|")
        .redacts(0, "C||", "P60");
    rule(AtraceRepeatedSearchRedactGroups, "(.)", "").leaves(0, "foobarbaz");
}

#[test]
fn the_first_rule_that_applies_is_the_last_one_tried() {
    Chain::default()
        .with(AtraceMatchRedactGroups, FOO, "foo")
        .with(AtraceMatchRedactGroups, r"B\|\d+\|(.*)", "bar")
        .with(AtraceMatchRedactGroups, r"B\|\d+\|R(.*)", "R")
        .redacts(0, "B|1|bar 1234567", "B|1|P60REDACTED")
        .redacts(0, "B|1|Rbar", "B|1|RP60");
    Chain::default()
        .with(AtraceMatchRedactGroups, FOO, "foo")
        .with(MatchRedactGroups, r"B\|\d+\|(.*)", "")
        .redacts(0, "B|1234|foo", "B|1234|P60");
}

#[test]
fn breaks_end_the_chain_without_a_change() {
    Chain::default()
        .with(MatchBreak, r"B\|\d+", "")
        .with(MatchRedactGroups, r"B\|(\d+)", "")
        .leaves(0, "B|1234");
    Chain::default()
        .with(AtraceMatchBreak, r"B\|\d+\|foo .*", "foo")
        .with(MatchRedactGroups, r"B\|(\d+)\|.*", "")
        .leaves(0, "B|1234|foo 1234")
        .redacts(0, "B|1234|bar 1234", "B|P60R|bar 1234");
}

#[test]
fn searches_hide_the_groups_of_all_matches() {
    const TEXT: &str = "B|1234|foo x:1234 x:494 y:4904 x:dfja x:239039";
    let search = |pattern| rule(AtraceRepeatedSearchRedactGroups, pattern, "foo");
    search(r"x:(\d+)").redacts(0, TEXT, "B|1234|foo x:P60R x:P60 y:4904 x:dfja x:P60RED");
    search(r"x:(\d+)|y:(\d+)").redacts(0, TEXT, "B|1234|foo x:P60R x:P60 y:P60R x:dfja x:P60RED");
    search(r"x:([^\s-]*)").redacts(0, TEXT, "B|1234|foo x:P60R x:P60 y:4904 x:P60R x:P60RED");
    search(r"x:(\d+)")
        .leaves(0, "B|1234|foo x:dfja")
        .leaves(0, "B|1234|bar x:1");
    // The first search that finds something ends the chain.
    search(r"x:(\d+)")
        .with(AtraceRepeatedSearchRedactGroups, r"y:(\d+)", "foo")
        .redacts(0, TEXT, "B|1234|foo x:P60R x:P60 y:4904 x:dfja x:P60RED")
        .redacts(0, "B|1|foo y:12", "B|1|foo y:P6");
    // Matches of nothing go on with the next byte; the beginning is one, wherever a search begins.
    search("()").redacts(0, "B|1|foo", "B|1|foo");
    search("^(B)|(o)").redacts(0, "B|1|foo", "P|1|fPP");
    search(r"\b(o)|f(o)").redacts(0, "B|1|foo", "B|1|fPo");
}

#[test]
fn strings_are_bytes() {
    for policy in [MatchRedactGroups, AtraceMatchRedactGroups] {
        let filter = rule(policy, FOO, "").0;
        let apply = |text: &[u8]| {
            let mut text = text.to_vec();
            let outcome = filter.apply(&mut text, 0, &mut filter.groups()).unwrap();
            (outcome, text)
        };
        for text in [&b"\xff"[..], b"\xc2\x08\x00\x12\x03foo\x18\x64"] {
            assert_eq!(apply(text), (Outcome::Unchanged, text.to_vec()));
        }
        assert_eq!(
            apply(b"B|1|foo \xff\xfe\x00"),
            (Outcome::Redacted, b"B|1|foo P60".to_vec())
        );
    }
}

#[test]
fn very_long_strings_are_filtered() {
    // This many characters exhaust the stack of a backtracking matcher.
    let long = "a".repeat(30_000);
    let mut hidden = "P60REDACTED".to_owned();
    hidden.push_str(&"-".repeat(30_000 - hidden.len()));
    rule(MatchRedactGroups, "(.*)", "").redacts(0, &long, &hidden);
    rule(MatchRedactGroups, "((?:a|b|c)*)d", "").leaves(0, &long);
    rule(MatchRedactGroups, r"B\|\d+\|((?:a|b)+)", "").redacts(
        0,
        &format!("B|1|{long}"),
        &format!("B|1|{hidden}"),
    );
    rule(AtraceRepeatedSearchRedactGroups, "(a)", "a").redacts(
        0,
        &format!("B|1|{long}"),
        &format!("B|1|{}", "P".repeat(30_000)),
    );
}

#[test]
fn a_search_that_takes_too_long_is_given_up() {
    let filter = rule(AtraceRepeatedSearchRedactGroups, "(x)", "").0;
    let mut groups = filter.groups();
    let mut search = |size: usize| {
        let mut text = [&b"B||"[..], &b"x".repeat(size)].concat();
        filter.apply(&mut text, 0, &mut groups)
    };
    assert_eq!(search(32 * 1024 - 4), Ok(Outcome::Redacted));
    assert_eq!(search(33 * 1024), Err(SearchTooLong));
}

#[test]
fn a_pattern_that_looks_at_each_byte_for_long_looks_at_few() {
    // Each of its states may be visited for each byte.
    let filter = rule(MatchBreak, "[ab]*a[ab]{1000}c", "").0;
    let mut groups = filter.groups();
    let mut search = |size: usize| filter.apply(&mut b"ab".repeat(size / 2), 0, &mut groups);
    let most = (limits::MAX_SEARCH_WORK / filter.rules[0].pattern.work(1)) as usize;
    assert_eq!(search(most), Ok(Outcome::Unchanged));
    assert_eq!(search(most + 2), Err(SearchTooLong));
    // Small ones look at as much as a packet has.
    let filter = rule(MatchBreak, "[ab]*a[ab]c", "").0;
    let mut groups = filter.groups();
    let mut text = b"ab".repeat(100_000);
    assert_eq!(filter.apply(&mut text, 0, &mut groups), Ok(Outcome::Unchanged));
}

#[test]
fn many_alternatives_look_at_long_strings() {
    let names: Vec<String> = (0..100).map(|n| format!("com.example.application{n}")).collect();
    let filter = rule(MatchBreak, &names.join("|"), "").0;
    let mut groups = filter.groups();
    let mut text = b"com.example.".repeat(500);
    assert_eq!(filter.apply(&mut text, 0, &mut groups), Ok(Outcome::Unchanged));
    let filter = rule(MatchBreak, "x", "").0;
    let mut groups = filter.groups();
    let mut text = vec![b'y'; 1 << 20];
    assert_eq!(filter.apply(&mut text, 0, &mut groups), Ok(Outcome::Unchanged));
}

#[test]
fn a_packet_whose_strings_take_too_long_is_given_up_and_the_next_one_is_not() {
    /// A clock that advances by a millisecond with each look.
    fn ticking() -> u64 {
        use std::cell::Cell;
        thread_local!(static LOOKS: Cell<u64> = const { Cell::new(0) });
        LOOKS.set(LOOKS.get() + 1);
        LOOKS.get() * 1_000_000
    }
    let filter = rule(MatchBreak, "[ab]*a[ab]{200}c", "").0;
    let mut groups = filter.groups();
    groups.begin_batch(Effort::new(Some(ticking)));
    let most = limits::MAX_FILTER_TIME_PER_PACKET.as_millis();
    // The clock is looked at for each.
    let text = b"ab".repeat(8 * 1024);
    for packets in 1..3 {
        groups.begin_packet();
        let mut search = || filter.apply(&mut text.clone(), 0, &mut groups);
        let strings = (0..).take_while(|_| search() == Ok(Outcome::Unchanged)).count();
        assert_eq!(strings as u128, most);
        assert_eq!(groups.batch_took().as_millis(), packets * most);
    }
}

#[test]
fn rules_apply_to_their_semantic_types_only() {
    Chain::default()
        .of(types(&[1]), "", MatchRedactGroups, "foo:(.*)", "")
        .of(types(&[2]), "", MatchRedactGroups, "bar:(.*)", "")
        .of(types(&[1, 2]), "", MatchRedactGroups, "baz:(.*)", "")
        .of(types(&[0, 1, 2]), "", MatchRedactGroups, "all:(.*)", "")
        .redacts(1, "foo:secret", "foo:P60RED")
        .leaves(1, "bar:secret")
        .redacts(1, "baz:secret", "baz:P60RED")
        .leaves(2, "foo:secret")
        .redacts(2, "bar:secret", "bar:P60RED")
        .redacts(2, "baz:secret", "baz:P60RED")
        .leaves(0, "foo:secret")
        .leaves(3, "all:secret")
        .redacts(0, "all:secret", "all:P60RED")
        .redacts(1, "all:secret", "all:P60RED")
        .redacts(2, "all:secret", "all:P60RED");
}

#[test]
fn strings_without_a_semantic_type_are_a_type_of_their_own() {
    rule(MatchRedactGroups, "data:(.*)", "")
        .redacts(0, "data:value", "data:P60RE")
        .leaves(1, "data:value")
        .leaves(2, "data:value")
        .leaves(127, "data:value");
}

#[test]
fn semantic_types_reach_up_to_127_and_beyond_all_rules_apply() {
    for semantic_type in [0, 1, 63, 64, 66, 127] {
        let chain = Chain::default().of(types(&[semantic_type]), "", MatchRedactGroups, "t:(.*)", "");
        for other in 0..128 {
            if u32::from(other) == semantic_type {
                chain.redacts(other, "t:value", "t:P60RE");
            } else {
                chain.leaves(other, "t:value");
            }
        }
        chain
            .redacts(128, "t:value", "t:P60RE")
            .redacts(u16::MAX, "t:value", "t:P60RE");
    }
    assert_eq!(SemanticTypes::default().with(128), None);
    assert_eq!(SemanticTypes::default().with(u32::MAX), None);
}

#[test]
fn every_policy_keeps_to_semantic_types() {
    for (policy, pattern) in [
        (MatchRedactGroups, r"B\|1\|s (.*)"),
        (AtraceMatchRedactGroups, r"B\|1\|s (.*)"),
        (AtraceRepeatedSearchRedactGroups, r"s (.*)"),
    ] {
        Chain::default()
            .of(types(&[1]), "", policy, pattern, "s")
            .redacts(1, "B|1|s ecret", "B|1|s P60RE")
            .leaves(2, "B|1|s ecret")
            .leaves(0, "B|1|s ecret");
    }
    for policy in [MatchBreak, AtraceMatchBreak] {
        Chain::default()
            .of(types(&[1]), "", policy, r"B\|1\|s .*", "s")
            .of(types(&[1, 2]), "", MatchRedactGroups, r"B\|1\|s (.*)", "")
            .leaves(1, "B|1|s ecret")
            .redacts(2, "B|1|s ecret", "B|1|s P60RE");
    }
}

#[test]
fn a_rule_replaces_the_one_of_its_name_where_it_stands() {
    let chain = Chain::default().named("one", MatchRedactGroups, "foo:(.*)", "");
    chain
        .redacts(0, "foo:secret", "foo:P60RED")
        .leaves(0, "bar:secret");
    let chain =
        chain
            .named("two", MatchRedactGroups, ".*:(.).*", "")
            .named("one", MatchRedactGroups, "bar:(.*)", "");
    chain
        .redacts(0, "foo:secret", "foo:Pecret")
        .redacts(0, "bar:secret", "bar:P60RED");
    assert_eq!(chain.0.rules.len(), 2);
    // Without names, all of them are different.
    let chain = rule(MatchRedactGroups, "baz:(.*)", "").with(MatchRedactGroups, "qux:(.*)", "");
    chain
        .redacts(0, "baz:secret", "baz:P60RED")
        .redacts(0, "qux:secret", "qux:P60RED");
}
