//! Filters as configs describe them, and packets through them.

use ferretto_proto::messages::SemanticType;
use ferretto_proto::messages::trace_config::TraceFilter as Config;
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};

use super::*;
use crate::limits;
use filter_bytecode::{Rule, bytecode, encode, overlay};

#[path = "../../tests/support/filter_bytecode.rs"]
pub(super) mod filter_bytecode;

/// A filter for packets that have a string in field 1 and others in a message in field 2.
fn with_strings(config: Config) -> Config {
    let messages: [&[Rule]; 3] = [
        &[Rule::Nested(1, 1)],
        &[Rule::Text(1), Rule::Nested(2, 2)],
        &[Rule::TextOf(1, 1)],
    ];
    Config {
        bytecode_v2: Some(bytecode(&messages)),
        ..config
    }
}

fn rule(pattern: &str) -> StringFilterRule {
    StringFilterRule {
        policy: Some(StringFilterPolicy::SFP_MATCH_REDACT_GROUPS),
        regex_pattern: Some(pattern.into()),
        ..Default::default()
    }
}

fn named(name: &str, pattern: &str) -> StringFilterRule {
    StringFilterRule {
        name: Some(name.into()),
        ..rule(pattern)
    }
}

fn chain(rules: &[StringFilterRule]) -> StringFilterChain {
    StringFilterChain {
        rules: rules.to_vec(),
        ..Default::default()
    }
}

fn filter(config: &Config) -> PacketFilter {
    PacketFilter::new(Arc::new(TraceFilter::new(config).expect("a good filter")))
}

fn refused(config: &Config) -> String {
    TraceFilter::new(config).expect_err("to be refused").to_string()
}

/// A packet with this string in field 1 and, in a message, once more.
fn packet(text: &str) -> Vec<u8> {
    let mut packet = ferretto_wire::Writer::new();
    packet.bytes_field(1, text.as_bytes());
    packet.nested(2, |nested| nested.bytes_field(1, text.as_bytes()));
    packet.as_slice().to_vec()
}

#[test]
fn the_second_version_of_the_bytecode_goes_before_the_first() {
    let keeping = |field| bytecode(&[&[Rule::Nested(1, 1)], &[Rule::Keep(field)]]);
    let stays = |config: &Config| {
        filter(config)
            .filter([&b"\x08\x01\x10\x02"[..]])
            .unwrap()
            .to_vec()
    };
    let mut config = Config {
        bytecode: Some(keeping(1)),
        ..Default::default()
    };
    assert_eq!(stays(&config), b"\x08\x01");
    config.bytecode_v2 = Some(Vec::new());
    assert_eq!(stays(&config), b"\x08\x01", "nothing is no bytecode");
    config.bytecode_v2 = Some(keeping(2));
    assert_eq!(stays(&config), b"\x10\x02");
    config.bytecode = Some(b"rubbish".to_vec());
    assert_eq!(stays(&config), b"\x10\x02", "it is not even looked at");
    config.bytecode_overlay_v54 = Some(overlay(&[(1, Rule::Keep(1))]));
    assert_eq!(stays(&config), b"\x08\x01\x10\x02");
    (config.bytecode, config.bytecode_v2) = (Some(keeping(3)), None);
    assert_eq!(stays(&config), b"\x08\x01", "the overlay is for either");
}

#[test]
fn bad_bytecode_is_refused_by_the_name_of_its_field() {
    let of = |bytecode: Option<&[u8]>, bytecode_v2: Option<&[u8]>, overlay: Option<&[u8]>| Config {
        bytecode: bytecode.map(<[u8]>::to_vec),
        bytecode_v2: bytecode_v2.map(<[u8]>::to_vec),
        bytecode_overlay_v54: overlay.map(<[u8]>::to_vec),
        ..Default::default()
    };
    let good = bytecode(&[&[Rule::Nested(1, 1)], &[]]);
    for (config, reason) in [
        (Config::default(), "trace_filter.bytecode: it is empty"),
        (
            of(Some(b"bad"), None, None),
            "trace_filter.bytecode: the checksum",
        ),
        (
            of(Some(&good), Some(b"bad"), None),
            "trace_filter.bytecode_v2: the checksum",
        ),
        (
            of(Some(&good), None, Some(b"bad")),
            "trace_filter.bytecode_overlay_v54: the checksum",
        ),
        (
            of(None, Some(&good), Some(&encode(&[0, 9]))),
            "trace_filter.bytecode_overlay_v54: it has 2 words",
        ),
        (
            of(None, Some(&good), Some(&overlay(&[(9, Rule::Keep(1))]))),
            "message 9",
        ),
    ] {
        let error = refused(&config);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_filter_must_be_one_for_traces() {
    for root in [&[][..], &[Rule::Keep(1)], &[Rule::Text(1)], &[Rule::Nested(2, 0)]] {
        let config = Config {
            bytecode: Some(bytecode(&[root])),
            ..Default::default()
        };
        assert!(refused(&config).contains("perfetto.protos.Trace"), "{root:?}");
    }
    let none = Config {
        bytecode: Some(encode(&[])),
        ..Default::default()
    };
    assert!(refused(&none).contains("perfetto.protos.Trace"));
    // A packet that is a trace is fine.
    filter(&Config {
        bytecode: Some(bytecode(&[&[Rule::Nested(1, 0)]])),
        ..Default::default()
    });
}

#[test]
fn the_second_chain_replaces_rules_of_the_first_by_name_and_comes_behind_it() {
    let config = with_strings(Config {
        string_filter_chain: chain(&[named("a", "a(.*)"), rule("x(.*)"), named("b", "b(.*)")]).into(),
        string_filter_chain_v54: chain(&[named("b", "xb(.*)"), rule("a(.).*"), named("a", "c(.*)")]).into(),
        ..Default::default()
    });
    let mut filter = filter(&config);
    let mut apply = |text: &str| {
        let stays = filter.filter([&packet(text)[..]]).unwrap();
        String::from_utf8_lossy(&stays[2..2 + text.len()]).into_owned()
    };
    assert_eq!(apply("a123"), "aP23");
    assert_eq!(apply("xb12"), "xP60", "its place is behind the one for all x");
    assert_eq!(apply("b123"), "b123");
    assert_eq!(apply("c123"), "cP60");
}

#[test]
fn rules_find_strings_by_semantic_type() {
    let of = |types: &[SemanticType], unknown: &[u64]| {
        let mut rule = StringFilterRule {
            semantic_type: types.to_vec(),
            ..rule("s(.*)")
        };
        for value in unknown {
            rule.unknown_fields.push_varint(5, *value);
        }
        with_strings(Config {
            string_filter_chain: chain(&[rule]).into(),
            ..Default::default()
        })
    };
    use SemanticType::{SEMANTIC_TYPE_ATRACE as ATRACE, SEMANTIC_TYPE_JOB as JOB};
    let unspecified = SemanticType::SEMANTIC_TYPE_UNSPECIFIED;
    for (types, unknown, expected) in [
        (&[][..], &[][..], (true, false)),
        (&[unspecified], &[], (true, false)),
        (&[ATRACE], &[], (false, true)),
        (&[JOB], &[], (false, false)),
        (&[unspecified, ATRACE], &[], (true, true)),
        // Types that a later schema has are types, too.
        (&[], &[127], (false, false)),
        (&[ATRACE], &[4], (false, true)),
    ] {
        let mut filter = filter(&of(types, unknown));
        let stays = filter.filter([&packet("secret")[..]]).unwrap();
        let hidden = |text: &[u8]| match text {
            b"sP60RE" => true,
            b"secret" => false,
            other => panic!("{other:?}"),
        };
        let found = (hidden(&stays[2..8]), hidden(&stays[stays.len() - 6..]));
        assert_eq!(found, expected, "{types:?} {unknown:?}");
    }
    for bad in [128, u64::MAX] {
        let error = refused(&of(&[], &[bad]));
        assert!(error.contains("semantic_type"), "{error}");
    }
}

#[test]
fn bad_rules_are_refused_by_their_place() {
    let first = |rules: &[StringFilterRule]| {
        refused(&with_strings(Config {
            string_filter_chain: chain(rules).into(),
            ..Default::default()
        }))
    };
    let no_policy = StringFilterRule {
        policy: None,
        ..rule("a")
    };
    let unspecified = StringFilterRule {
        policy: Some(StringFilterPolicy::SFP_UNSPECIFIED),
        ..rule("a")
    };
    for rules in [[rule("a"), no_policy], [rule("a"), unspecified]] {
        let error = first(&rules);
        assert!(
            error.contains("trace_filter.string_filter_chain.rules[1]: policy"),
            "{error}"
        );
    }
    let error = first(&[named("here", "(")]);
    assert!(
        error.contains("rules[0] (\"here\"): regex_pattern \"(\": "),
        "{error}"
    );
    assert!(error.contains("unclosed group"), "{error}");
    let second = refused(&with_strings(Config {
        string_filter_chain_v54: chain(&[rule("(?=a)")]).into(),
        ..Default::default()
    }));
    assert!(second.contains("string_filter_chain_v54.rules[0]") && second.contains("look-around"));
}

#[test]
fn there_is_a_limit_to_rules() {
    let with = |rules: usize| {
        with_strings(Config {
            string_filter_chain: chain(&vec![rule("a"); rules]).into(),
            ..Default::default()
        })
    };
    filter(&with(limits::MAX_STRING_FILTER_RULES));
    assert!(refused(&with(limits::MAX_STRING_FILTER_RULES + 1)).contains("rules for strings"));
    // Rules that replace others count, because the others were compiled too.
    let mut replaced = with(limits::MAX_STRING_FILTER_RULES - 1);
    let same = |count| chain(&vec![named("same", "b"); count]).into();
    replaced.string_filter_chain_v54 = same(1);
    filter(&replaced);
    replaced.string_filter_chain_v54 = same(2);
    assert!(refused(&replaced).contains("rules for strings"));
}

#[test]
fn the_total_length_of_patterns_is_limited() {
    let with = |length: usize| {
        let long = "a".repeat(limits::MAX_REGEX_TEXT / 8);
        let mut rules = vec![rule(&long); 7];
        rules.push(rule(&"a".repeat(length)));
        with_strings(Config {
            string_filter_chain: chain(&rules).into(),
            ..Default::default()
        })
    };
    filter(&with(limits::MAX_REGEX_TEXT / 8));
    let error = refused(&with(limits::MAX_REGEX_TEXT / 8 + 1));
    assert!(error.contains("bytes together"), "{error}");
}

#[test]
fn a_filter_can_be_shared() {
    let config = with_strings(Config {
        string_filter_chain: chain(&[rule("s(.*)")]).into(),
        ..Default::default()
    });
    let mut session = SessionFilter::new(Arc::new(TraceFilter::new(&config).unwrap()));
    let packet = packet("secret");
    let pieces = || [&packet[..3], &packet[3..]];
    let kept = session
        .filter(pieces(), packet.len(), Origin::Buffer(1))
        .unwrap()
        .to_vec();
    let mut clone = SessionFilter::new(session.packets.shared());
    assert_eq!(
        clone.filter(pieces(), packet.len(), Origin::Service).unwrap(),
        kept
    );
    assert_eq!(session.stats().bytes_discarded_per_buffer, [0, 0]);
    assert_eq!(clone.stats().input_packets, Some(1));
    assert_eq!(clone.stats().bytes_discarded_per_buffer, []);
}

#[test]
fn the_work_of_the_filter_is_counted() {
    let config = Config {
        bytecode: Some(bytecode(&[&[Rule::Nested(1, 1)], &[Rule::Keep(1)]])),
        ..Default::default()
    };
    let mut filter = SessionFilter::new(Arc::new(TraceFilter::new(&config).unwrap()));
    let packet = &b"\x08\x01\x10\x02"[..];
    assert!(filter.filter([packet], 4, Origin::Buffer(2)).is_some());
    assert!(filter.filter([packet], 4, Origin::Service).is_some());
    assert!(filter.filter([&packet[1..]], 3, Origin::Buffer(0)).is_none());
    filter.passed_by(10);
    assert_eq!(filter.stats().time_taken_ns, None, "nobody has said");
    filter.took(Duration::from_nanos(7));
    filter.took(Duration::from_nanos(8));
    let expected = trace_stats::FilterStats {
        input_packets: Some(4),
        input_bytes: Some(4 + 4 + 3 + 10),
        output_bytes: Some(2 + 2 + 10),
        errors: Some(1),
        time_taken_ns: Some(15),
        bytes_discarded_per_buffer: vec![0, 0, 2],
        ..Default::default()
    };
    assert_eq!(filter.stats(), expected);
}

#[test]
fn the_memory_of_a_large_packet_is_given_back() {
    let config = Config {
        bytecode: Some(bytecode(&[&[Rule::Nested(1, 1)], &[Rule::Keep(1)]])),
        ..Default::default()
    };
    let mut filter = filter(&config);
    let mut large = ferretto_wire::Writer::new();
    large.bytes_field(1, &vec![0; 4 * PacketFilter::KEPT_MEMORY]);
    assert_eq!(filter.filter([large.as_slice()]).unwrap(), large.as_slice());
    filter.filter([&b"\x08\x01"[..]]).unwrap();
    assert!(filter.packet.capacity() <= PacketFilter::KEPT_MEMORY);
}
