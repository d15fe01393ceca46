//! Categories: the names by which sessions choose events.

/// A category, with a description and tags for people and configs that choose categories.
///
/// Definitions of the same name add up: the first description and the first tags count, whichever definition has them.
///
/// Events may name a category by a literal alone. A defined one can have a description and tags, and the service can list it before its first event
/// (see [`register_categories`](crate::register_categories)):
///
/// ```
/// use ferretto::{Category, trace_event_instant};
///
/// static RENDERING: Category = Category::new("rendering").description("What the player sees");
/// static LAYOUT: Category = Category::new("rendering.layout").tags(&["slow"]);
///
/// ferretto::register_categories(&[&RENDERING, &LAYOUT]);
/// trace_event_instant!(&RENDERING, "Frame");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category {
    pub(super) name: &'static str,
    pub(super) description: Option<&'static str>,
    pub(super) tags: &'static [&'static str],
    pub(super) listing: Listing,
}

/// Whether services list a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Listed,
    TestOnly,
}

impl Category {
    /// A category of this name. A name with commas is a group: `"a,b"` is enabled if `a` or `b` is.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            description: None,
            tags: &[],
            listing: Listing::Listed,
        }
    }

    /// Sets the description of its events.
    #[must_use]
    pub const fn description(self, description: &'static str) -> Self {
        Self {
            description: Some(description),
            ..self
        }
    }

    /// Tags, by which configs can enable and disable categories. Categories tagged `slow` or `debug` are only recorded when a config asks for them.
    #[must_use]
    pub const fn tags(self, tags: &'static [&'static str]) -> Self {
        Self { tags, ..self }
    }

    /// For tests: recorded when enabled, but never listed by services.
    #[must_use]
    pub const fn test_only(self) -> Self {
        Self {
            listing: Listing::TestOnly,
            ..self
        }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Takes over what another definition of the same category says and this one leaves open.
    pub(super) fn fill_in(&mut self, other: &Category) {
        self.description = self.description.or(other.description);
        if self.tags.is_empty() {
            self.tags = other.tags;
        }
        if other.listing == Listing::TestOnly {
            self.listing = Listing::TestOnly;
        }
    }
}

/// A category whose name is only known when the event happens. Slower than others, because its name is looked up and written each time. It has no
/// tags, not even those of a [`Category`] of the same name.
///
/// ```
/// use ferretto::{DynamicCategory, trace_event_instant};
///
/// let plugin = String::from("plugin.blur");
/// trace_event_instant!(DynamicCategory(&plugin), "Loaded");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicCategory<'a>(pub &'a str);
