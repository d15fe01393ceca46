//! The categories of events whose place in the code does not tell them: each event has its own.

use ferretto_proto::messages::TrackEventConfig;

use super::Recording;
use crate::track_event::registry;
use crate::track_event::tests::Events;
use crate::{
    Category, DynamicCategory, SampledCategory, trace_async, trace_category_enabled, trace_counter,
    trace_event, trace_event_begin, trace_event_end, trace_event_instant, trace_function, trace_slice,
};

static NET: Category = Category::new("varied.net");
static DISK: Category = Category::new("varied.disk");
static SECRET: Category = Category::new("varied.secret");
static SLOW: Category = Category::new("varied.slow").tags(&["slow"]);
static ALL_SAMPLED: SampledCategory = Category::new("varied.sampled").sample(1.0);
static NONE_SAMPLED: SampledCategory = Category::new("varied.unsampled").sample(0.0);

fn config() -> TrackEventConfig {
    TrackEventConfig {
        disabled_categories: vec!["varied.secret".into()],
        ..Default::default()
    }
}

/// Categories and names of the events, without the ends of slices.
fn recorded(events: impl FnOnce() + Send) -> Vec<(String, String)> {
    let packets = Recording::of(config(), events);
    let events = Events::of(&packets).summary().into_iter();
    events
        .filter(|(kind, ..)| !matches!(kind, super::Type::TYPE_SLICE_END | super::Type::TYPE_COUNTER))
        .map(|(_, category, name)| (category, name))
        .collect()
}

fn told(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events
        .iter()
        .map(|&(category, name)| (category.to_owned(), name.to_owned()))
        .collect()
}

fn timed(category: &'static Category, name: &'static str) {
    trace_event!(category, name);
}

#[test]
fn each_call_of_a_function_has_the_category_it_was_given() {
    let events = recorded(|| {
        for category in [&NET, &SECRET, &DISK, &NET, &SLOW] {
            timed(category, category.name());
        }
    });
    let expected = [
        ("varied.net", "varied.net"),
        ("varied.disk", "varied.disk"),
        ("varied.net", "varied.net"),
    ];
    assert_eq!(events, told(&expected));
}

#[test]
fn the_first_category_may_be_one_that_is_not_recorded() {
    fn instant(category: &'static str) {
        trace_event_instant!(category, "instant");
    }
    let events = recorded(|| {
        instant("varied.secret");
        instant("varied.net");
        instant("varied.secret,varied.disk");
    });
    let expected = [
        ("varied.net", "instant"),
        ("varied.secret,varied.disk", "instant"),
    ];
    assert_eq!(events, told(&expected));
}

#[test]
fn all_macros_ask_for_the_category_of_the_event() {
    fn everything(category: &'static str) {
        drop(trace_slice!(category, "slice", "argument" => 1));
        trace_event_begin!(category, "loose");
        trace_event_end!(category);
        trace_event_instant!(category, format!("{}", "dynamic"));
        trace_counter!(category, "counter", 1);
        drop(trace_async!(category, "async"));
    }
    let (events, counters) = {
        let packets = Recording::of(config(), || {
            everything("varied.net");
            everything("varied.secret");
            everything("varied.disk");
        });
        let summary = Events::of(&packets).summary();
        let count = |of| summary.iter().filter(|(kind, ..)| *kind == of).count();
        assert_eq!(
            count(super::Type::TYPE_SLICE_BEGIN),
            count(super::Type::TYPE_SLICE_END)
        );
        let counters = count(super::Type::TYPE_COUNTER);
        let named = summary.into_iter().filter(|(.., name)| !name.is_empty());
        (
            named
                .map(|(_, category, name)| (category, name))
                .collect::<Vec<_>>(),
            counters,
        )
    };
    let of = |category| ["slice", "loose", "dynamic", "async"].map(|name| (category, name));
    assert_eq!(events, told(&[of("varied.net"), of("varied.disk")].concat()));
    assert_eq!(counters, 2);
}

trait Plugin {
    const CATEGORY: &'static str;

    #[trace_function(Self::CATEGORY, name = "run")]
    fn run(&self) {}

    fn instant(&self) {
        trace_event_instant!(Self::CATEGORY, "instant");
    }

    fn is_enabled(&self) -> bool {
        trace_category_enabled!(Self::CATEGORY)
    }
}

struct Blur;
struct Sharpen;

impl Plugin for Blur {
    const CATEGORY: &'static str = "varied.blur";
}

impl Plugin for Sharpen {
    const CATEGORY: &'static str = "varied.secret";
}

#[test]
fn each_type_has_the_category_that_is_its_associated_constant() {
    fn generic<P: Plugin>(_: &P) {
        trace_event_instant!(P::CATEGORY, "generic");
        trace_event_instant!(<P as Plugin>::CATEGORY, "qualified");
    }
    let events = recorded(|| {
        Sharpen.run();
        Sharpen.instant();
        generic(&Sharpen);
        assert!(!Sharpen.is_enabled());
        Blur.run();
        Blur.instant();
        generic(&Blur);
        assert!(Blur.is_enabled());
        assert!(!Sharpen.is_enabled());
    });
    let expected = ["run", "instant", "generic", "qualified"].map(|name| ("varied.blur", name));
    assert_eq!(events, told(&expected));
}

#[test]
fn a_question_is_answered_for_its_own_category() {
    fn enabled(category: &'static Category) -> bool {
        trace_category_enabled!(category)
    }
    fn answers() -> [bool; 4] {
        [&NET, &SECRET, &SLOW, &DISK].map(enabled)
    }
    recorded(|| assert_eq!(answers(), [true, false, false, true]));
    let _alone = super::alone();
    assert_eq!(answers(), [false; 4]);
}

#[test]
fn sampled_categories_and_dynamic_ones_are_themselves() {
    fn sampled(category: &'static SampledCategory) {
        trace_event_instant!(category, "sampled");
    }
    fn dynamic(category: DynamicCategory<'_>) {
        trace_event_instant!(category, "dynamic");
    }
    let left_out = NONE_SAMPLED.left_out();
    let events = recorded(|| {
        sampled(&NONE_SAMPLED);
        sampled(&ALL_SAMPLED);
        dynamic(DynamicCategory("varied.secret"));
        dynamic(DynamicCategory("varied.net"));
    });
    let expected = [("varied.sampled", "sampled"), ("varied.net", "dynamic")];
    assert_eq!(events, told(&expected));
    assert_eq!(NONE_SAMPLED.left_out(), left_out + 1);
}

#[test]
fn slices_end_where_their_category_was_recorded() {
    let packets = Recording::of(config(), || {
        let open = |category: &'static str| trace_slice!(category, "slice");
        let (net, secret, disk) = (open("varied.net"), open("varied.secret"), open("varied.disk"));
        drop((secret, disk, net));
    });
    let kinds: Vec<_> = Events::of(&packets)
        .summary()
        .into_iter()
        .map(|(kind, ..)| kind)
        .collect();
    use super::Type::{TYPE_SLICE_BEGIN as BEGIN, TYPE_SLICE_END as END};
    assert_eq!(kinds, [BEGIN, BEGIN, END, END]);
}

/// What services are told of a category: its description and its tags.
fn listed(name: &str) -> Option<(Option<String>, Vec<String>)> {
    let mut all = registry::descriptor().available_categories.into_iter();
    let category = all.find(|category| category.name.as_deref() == Some(name))?;
    Some((category.description, category.tags))
}

#[test]
fn definitions_of_one_category_add_up() {
    static TAGGED: Category = Category::new("added.one").tags(&["slow"]);
    static DESCRIBED: Category = Category::new("added.one").description("What is one");
    fn tagged() -> bool {
        trace_event_instant!(&TAGGED, "each");
        trace_category_enabled!(&TAGGED)
    }
    let whole = Some((Some("What is one".to_owned()), vec!["slow".to_owned()]));
    let events = recorded(|| {
        trace_event_instant!("added.one", "by name");
        assert!(!tagged());
        trace_event_instant!(&DESCRIBED, "described");
        assert!(!tagged());
    });
    assert_eq!(events, told(&[("added.one", "by name")]));
    assert_eq!(listed("added.one"), whole);
    recorded(|| assert!(!tagged()));

    static SECOND: Category = Category::new("added.two").description("What is two");
    static SECOND_TAGGED: Category = Category::new("added.two").tags(&["debug"]);
    let events = recorded(|| {
        let described = || trace_event_instant!(&SECOND, "described");
        described();
        crate::register_categories(&[&SECOND_TAGGED]);
        described();
    });
    assert_eq!(events, told(&[("added.two", "described")]));
    let whole = Some((Some("What is two".to_owned()), vec!["debug".to_owned()]));
    assert_eq!(listed("added.two"), whole);
}

#[test]
fn a_group_does_not_describe_its_members() {
    static GROUP: Category = Category::new("member.one,member.two")
        .description("Both")
        .tags(&["slow"]);
    static MEMBER: Category = Category::new("member.one")
        .description("The first")
        .tags(&["fast"]);
    crate::register_categories(&[&GROUP, &MEMBER]);
    assert_eq!(
        listed("member.one"),
        Some((Some("The first".to_owned()), vec!["slow".to_owned()]))
    );
    assert_eq!(listed("member.two"), Some((None, vec!["slow".to_owned()])));
}

#[test]
fn a_category_for_tests_is_one_however_it_is_known_first() {
    static HIDDEN: Category = Category::new("added.hidden").test_only();
    static BY_NAME: Category = Category::new("added.hidden");
    crate::register_categories(&[&BY_NAME]);
    assert!(listed("added.hidden").is_some());
    crate::register_categories(&[&HIDDEN]);
    assert_eq!(listed("added.hidden"), None);
    crate::register_categories(&[&BY_NAME]);
    assert_eq!(listed("added.hidden"), None);
}
