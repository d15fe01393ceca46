//! The filter against upstream's expectations and against a naive model; options and their defaults.

use proptest::prelude::*;

use super::*;

/// A config from words: categories and tags, disabled ones with a `-`, tags with a `#`.
fn config(words: &str) -> TrackEventConfig {
    let mut config = TrackEventConfig::default();
    for word in words.split_whitespace() {
        let (list, pattern) = match word.strip_prefix('-') {
            Some(tag) if tag.starts_with('#') => (&mut config.disabled_tags, &tag[1..]),
            Some(category) => (&mut config.disabled_categories, category),
            None if word.starts_with('#') => (&mut config.enabled_tags, &word[1..]),
            None => (&mut config.enabled_categories, word),
        };
        list.push(pattern.to_owned());
    }
    config
}

/// Categories with their tags; the ones that upstream's tests of this (`TrackEventConfig` in `api_integrationtest.cc`)
/// register.
const REGISTERED: [(&str, &[&str]); 9] = [
    ("test", &["tag"]),
    ("test.verbose", &["tag", "debug"]),
    ("foo", &[]),
    ("bar", &[]),
    ("cat", &["slow"]),
    ("cat.verbose", &["debug"]),
    ("cat-with-dashes", &[]),
    ("slow_category", &["slow"]),
    ("disabled-by-default-cat", &[]),
];

const GROUPS: [&str; 6] = [
    "foo,bar",
    "baz,bar,quux",
    "red,green,blue,foo",
    "red,green,blue,yellow",
    // Dynamic ones.
    "dynamic,foo",
    "dynamic,bar",
];

fn tags_of(name: &str) -> Option<&'static [&'static str]> {
    REGISTERED
        .iter()
        .find(|(registered, _)| *registered == name)
        .map(|(_, tags)| *tags)
}

/// All categories and groups that `words` enable, `dynamic` (which is not registered) among them.
fn enabled(words: &str) -> Vec<&'static str> {
    let filter = CategoryFilter::new(&config(words));
    let singles = REGISTERED.into_iter().chain([("dynamic", &[][..])]);
    let singles = singles
        .filter(|(name, tags)| filter.is_enabled(name, tags))
        .map(|(name, _)| name);
    let groups = GROUPS
        .into_iter()
        .filter(|names| filter.is_group_enabled(names, tags_of));
    singles.chain(groups).collect()
}

/// All but `except`.
fn all_but(except: &[&str]) -> Vec<&'static str> {
    let all = REGISTERED
        .into_iter()
        .map(|(name, _)| name)
        .chain(["dynamic"])
        .chain(GROUPS);
    all.filter(|name| !except.contains(name)).collect()
}

#[test]
fn an_empty_config_enables_all_but_slow_and_debug_categories() {
    assert_eq!(
        enabled(""),
        all_but(&["test.verbose", "cat", "cat.verbose", "slow_category"])
    );
}

#[test]
fn one_category_can_be_enabled() {
    assert_eq!(
        enabled("-* foo"),
        ["foo", "foo,bar", "red,green,blue,foo", "dynamic,foo"]
    );
}

#[test]
fn a_dynamic_category_can_be_enabled() {
    assert_eq!(enabled("-* dynamic"), ["dynamic", "dynamic,foo", "dynamic,bar"]);
}

#[test]
fn several_categories_can_be_enabled() {
    assert_eq!(
        enabled("-* foo baz bar"),
        [
            "foo",
            "bar",
            "foo,bar",
            "baz,bar,quux",
            "red,green,blue,foo",
            "dynamic,foo",
            "dynamic,bar"
        ]
    );
}

#[test]
fn enabling_everything_does_not_enable_slow_and_debug_categories() {
    assert_eq!(
        enabled("*"),
        all_but(&["test.verbose", "cat", "cat.verbose", "slow_category"])
    );
}

#[test]
fn a_pattern_enables_names_with_its_prefix() {
    assert_eq!(
        enabled("-* fo*"),
        ["foo", "foo,bar", "red,green,blue,foo", "dynamic,foo"]
    );
    assert_eq!(enabled("-* disabled-by-default-*"), ["disabled-by-default-cat"]);
    assert_eq!(
        enabled("-* foo*"),
        enabled("-* foo"),
        "the whole name is a beginning too"
    );
}

#[test]
fn a_tag_enables_the_categories_that_have_it() {
    // An enabled tag suspends the default about debug and slow categories: test.verbose is a debug category.
    assert_eq!(enabled("-* #tag"), ["test", "test.verbose"]);
    assert_eq!(enabled("-* #slow"), ["cat", "slow_category"]);
    assert_eq!(enabled("-* #t*"), ["test", "test.verbose"]);
}

#[test]
fn slow_and_debug_categories_can_be_enabled_with_everything_else() {
    assert_eq!(enabled("* #slow #debug"), all_but(&[]));
    assert_eq!(enabled("* #none"), all_but(&[]), "any tag lifts both");
}

#[test]
fn a_category_can_be_disabled() {
    let none = ["test.verbose", "cat", "cat.verbose", "slow_category"];
    assert_eq!(enabled("* -foo"), all_but(&[&none[..], &["foo"]].concat()));
    assert_eq!(enabled("* -fo*"), all_but(&[&none[..], &["foo"]].concat()));
}

#[test]
fn exact_names_and_tags_come_before_patterns() {
    let slow = |words| CategoryFilter::new(&config(words)).is_enabled("slow_category", &["slow"]);
    assert!(!slow("slow_* -#slow"));
    assert!(!slow("-slow_category #slow -*"));
    assert!(slow("-slow_* slow_category"));
    assert!(slow("-slow_* #slow"));
    assert!(!slow("slow_*"), "by default the tag is disabled, and exact");
    assert!(slow("slow_category"));
}

#[test]
fn of_tags_the_disabled_ones_come_first() {
    assert_eq!(enabled("#tag -#debug -*"), ["test"]);
}

#[test]
fn categories_come_before_tags_and_enabled_before_disabled() {
    let test = |words| CategoryFilter::new(&config(words)).is_enabled("test", &["tag"]);
    assert!(test("test -test -#tag"));
    assert!(!test("-test #tag"));
    assert!(!test("-#tag #tag"));
    assert!(test("te* -te* -#ta*"));
    assert!(!test("-te* #ta*"));
    assert!(test("* -*"));
    assert!(!test("-* #*"));
    assert!(!test("-#* #*"));
    assert!(test("#*"));
}

#[test]
fn characters_after_a_star_are_ignored() {
    assert_eq!(enabled("-* fo*x"), enabled("-* fo*"));
    assert_eq!(enabled("-*x foo"), enabled("-* foo"));
}

#[test]
fn a_slow_category_is_recorded_in_a_group_unless_the_config_says_otherwise() {
    let group = |words| CategoryFilter::new(&config(words)).is_group_enabled("cat,cat.verbose", tags_of);
    assert!(group(""), "without their tags they are enabled");
    assert!(!group("-*"));
    assert!(group("-* #slow"));
    assert!(!group("-* #tag"));
    assert!(group("-* cat"));
}

#[test]
fn commas_too_many_are_no_categories() {
    let filter = CategoryFilter::new(&TrackEventConfig::default());
    assert!(!filter.is_group_enabled(",", tags_of));
    let filter = CategoryFilter::new(&config("-* foo"));
    assert!(filter.is_group_enabled(",foo,", tags_of));
    assert!(!filter.is_group_enabled("bar,", tags_of));
}

/// The rules again as a table: every entry of the config is a rule with a rank, and the first one that matches decides.
fn naive(config: &TrackEventConfig, name: &str, tags: &[&str]) -> bool {
    let mut disabled_tags = config.disabled_tags.clone();
    if config.disabled_tags.len() + config.enabled_tags.len() == 0 {
        disabled_tags = vec!["slow".to_owned(), "debug".to_owned()];
    }
    let own_name = [name];
    let lists: [(&[String], &[&str], bool); 4] = [
        (&config.enabled_categories, &own_name, true),
        (&config.disabled_categories, &own_name, false),
        (&disabled_tags, tags, false),
        (&config.enabled_tags, tags, true),
    ];
    let mut rules = Vec::new();
    for (order, (patterns, words, verdict)) in lists.into_iter().enumerate() {
        for pattern in patterns {
            let (precision, matching) = if pattern == "*" {
                (2, !words.is_empty())
            } else if let Some(prefix) = pattern.strip_suffix('*') {
                (
                    1,
                    words
                        .iter()
                        .any(|word| word.len() >= prefix.len() && &word[..prefix.len()] == prefix),
                )
            } else {
                (0, words.contains(&pattern.as_str()))
            };
            if matching {
                rules.push((precision, order, verdict));
            }
        }
    }
    rules.into_iter().min().is_none_or(|(_, _, verdict)| verdict)
}

/// There are few words, so that names and patterns match often.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab]{0,3}", 1 => Just("slow".to_owned()), 1 => Just("debug".to_owned())]
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    let pattern = (word(), any::<bool>()).prop_map(|(word, star)| if star { word + "*" } else { word });
    prop::collection::vec(pattern, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn the_filter_agrees_with_the_rules(
        (enabled_categories, disabled_categories, enabled_tags, disabled_tags) in
            (patterns(), patterns(), patterns(), patterns()),
        categories in prop::collection::vec((word(), prop::collection::vec(word(), 0..3)), 1..8),
    ) {
        let config = TrackEventConfig {
            enabled_categories, disabled_categories, enabled_tags, disabled_tags, ..Default::default()
        };
        let filter = CategoryFilter::new(&config);
        for (name, tags) in &categories {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            prop_assert_eq!(filter.is_enabled(name, &tags), naive(&config, name, &tags), "{} {:?}", name, tags);
        }
        let names: Vec<&str> = categories.iter().map(|(name, _)| name.as_str()).collect();
        let any = names.iter().any(|name| !name.is_empty() && naive(&config, name, &[]));
        prop_assert_eq!(filter.is_group_enabled(&names.join(","), |_| None), any);
    }
}

#[test]
fn a_config_that_says_nothing_has_upstreams_defaults() {
    assert_eq!(
        TrackEventOptions::new(&TrackEventConfig::default()),
        TrackEventOptions {
            timestamp_unit_multiplier: NonZeroU64::MIN,
            incremental_timestamps: true,
            filter_debug_annotations: false,
            filter_dynamic_event_names: false,
            thread_time_sampling: false,
            thread_time_subsampling_ns: 0,
        }
    );
}

#[test]
fn a_config_says_how_events_are_written() {
    let config = TrackEventConfig {
        timestamp_unit_multiplier: Some(1000),
        disable_incremental_timestamps: Some(true),
        filter_debug_annotations: Some(true),
        filter_dynamic_event_names: Some(true),
        enable_thread_time_sampling: Some(true),
        thread_time_subsampling_ns: Some(5_000_000),
        ..Default::default()
    };
    assert_eq!(
        TrackEventOptions::new(&config),
        TrackEventOptions {
            timestamp_unit_multiplier: NonZeroU64::new(1000).unwrap(),
            incremental_timestamps: false,
            filter_debug_annotations: true,
            filter_dynamic_event_names: true,
            thread_time_sampling: true,
            thread_time_subsampling_ns: 5_000_000,
        }
    );
}

#[test]
fn nothing_is_ever_divided_by_zero() {
    let config = TrackEventConfig {
        timestamp_unit_multiplier: Some(0),
        ..Default::default()
    };
    assert_eq!(TrackEventOptions::new(&config).timestamp_unit_multiplier.get(), 1);
}

fn can_adopt(startup: &TrackEventConfig, session: &TrackEventConfig) -> bool {
    difference(startup, session).is_none()
}

#[test]
fn differences_are_reported_by_name() {
    let filtered = TrackEventConfig {
        filter_debug_annotations: Some(true),
        ..config("net db -#slow")
    };
    assert_eq!(
        difference(&config("net -#slow"), &filtered).as_deref(),
        Some(
            "`enabled_categories` is [\"net\"] for startup and [\"db\", \"net\"] in the session, \
             `filter_debug_annotations` is false for startup and true in the session"
        )
    );
}

#[test]
fn a_session_adopts_events_that_it_would_have_recorded() {
    assert!(can_adopt(
        &config("-* foo bar #tag -#slow"),
        &config("-#slow bar foo foo #tag -*")
    ));
    for other in ["-* foo", "foo", "-* foo bar #tag", "-* foo bar -#tag", ""] {
        assert!(!can_adopt(&config("-* foo bar"), &config(other)), "{other}");
    }
    let plain = TrackEventConfig::default();
    let said = TrackEventConfig {
        filter_debug_annotations: Some(false),
        ..Default::default()
    };
    let units = TrackEventConfig {
        timestamp_unit_multiplier: Some(1000),
        ..Default::default()
    };
    assert!(can_adopt(&plain, &said) && can_adopt(&plain, &units));
    for filtered in [
        TrackEventConfig {
            filter_debug_annotations: Some(true),
            ..Default::default()
        },
        TrackEventConfig {
            filter_dynamic_event_names: Some(true),
            ..Default::default()
        },
    ] {
        assert!(!can_adopt(&plain, &filtered) && !can_adopt(&filtered, &plain));
    }
}
