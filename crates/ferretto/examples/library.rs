//! A library that can be traced, and a program that chooses which of its categories to record.
//!
//! ```text
//! cargo run --example library [FILE [CATEGORY]]
//! ```

use ferretto::RecordingOptions;
use ferretto::session::DataSource;

/// A library. In practice this module would be a crate of its own.
mod cache {
    use std::collections::HashMap;

    use ferretto::{Category, trace_category_enabled, trace_counter, trace_event, trace_event_instant};

    static CACHE: Category = Category::new("cache").description("Loads, and how full the cache is");
    /// Only recorded if a recording asks for this category or the tag.
    static ENTRIES: Category = Category::new("cache.entries")
        .description("Each question, and whether the answer was there")
        .tags(&["debug"]);

    #[derive(Default)]
    pub(crate) struct Cache {
        values: HashMap<u32, String>,
    }

    impl Cache {
        pub(crate) fn new() -> Cache {
            // From now on anyone who records can list the categories, with their descriptions.
            ferretto::register_categories(&[&CACHE, &ENTRIES]);
            Cache::default()
        }

        pub(crate) fn get(&mut self, key: u32) -> &str {
            let known = self.values.contains_key(&key);
            trace_event_instant!(&ENTRIES, "Get", "key" => key, "hit" => known);
            self.values.entry(key).or_insert_with(|| {
                trace_event!(&CACHE, "Load", "key" => key);
                format!("value of {key}")
            });
            if trace_category_enabled!(&CACHE) {
                // The macro evaluates the expensive sum only while somebody records the category.
                let bytes: usize = self.values.values().map(String::len).sum();
                trace_counter!(&CACHE, "Cached bytes", bytes);
            }
            &self.values[&key]
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().unwrap_or("trace.pftrace".to_owned());
    let mut track_events = DataSource::track_event();
    if let Some(category) = words.next() {
        track_events = track_events.enable_category(&category);
    }
    let _trace = RecordingOptions::new()
        .track_events(track_events)
        .record_to(path)?;

    let mut cache = cache::Cache::new();
    for number in 0..100 {
        println!("{}", cache.get(number % 7));
    }
    Ok(())
}
