//! Sites for the categories of a place in the code where each event may have another.

use std::sync::OnceLock;

use super::super::category::Category;
use super::super::{registry, thread};
use super::CallSite;

/// The site of events of one category, at a place with several. It is never freed.
#[derive(Debug)]
pub(super) struct Variant {
    category: Category,
    /// What tells it from others with the same category.
    of: usize,
    site: CallSite,
}

impl CallSite {
    /// Returns the variant for this category, which it makes at the first event of the category. `of` tells apart what has the same category and yet
    /// needs sites of its own. `None` on a confined thread, if there is none yet.
    #[inline]
    pub(in super::super) fn variant_for(
        &'static self,
        category: &Category,
        of: usize,
    ) -> Option<&'static CallSite> {
        match self.find_variant(category, of) {
            Ok(site) => Some(site),
            Err(_) => self.add_variant(category, of),
        }
    }

    /// Returns the variant, or else the place for it.
    fn find_variant(
        &'static self,
        category: &Category,
        of: usize,
    ) -> Result<&'static CallSite, &'static OnceLock<&'static Variant>> {
        let mut place = &self.variants;
        while let Some(variant) = place.get() {
            if variant.of == of && variant.category == *category {
                return Ok(&variant.site);
            }
            place = &variant.site.variants;
        }
        Err(place)
    }

    #[cold]
    fn add_variant(&'static self, category: &Category, of: usize) -> Option<&'static CallSite> {
        if thread::is_confined() {
            thread::count_unrecorded();
            return None;
        }
        // Otherwise an event of the allocator would come here again, from inside.
        let _confined = thread::confine();
        let mut made = Some(Box::new(Variant {
            category: *category,
            of,
            site: CallSite::new(self.event, self.name, self.annotations),
        }));
        // Another thread may have been first. This variant is freed then, after the lock.
        registry::while_locked(|| match self.find_variant(category, of) {
            Ok(site) => Some(site),
            Err(place) => {
                let variant: &'static Variant = Box::leak(made.take()?);
                let _ = place.set(variant);
                Some(&variant.site)
            }
        })
    }
}
