use super::*;
use tracing_core::field::FieldSet;
use tracing_core::metadata::Kind;
use tracing_core::{callsite, identify_callsite};

/// A call site that metadata can name, and of no other use.
struct Nowhere;

static NOWHERE: Nowhere = Nowhere;

impl callsite::Callsite for Nowhere {
    fn set_interest(&self, _: tracing_core::Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        unreachable!("it is not registered")
    }
}

pub(crate) fn metadata(
    name: &'static str,
    kind: Kind,
    fields: &'static [&'static str],
) -> &'static Metadata<'static> {
    let fields = FieldSet::new(fields, identify_callsite!(&NOWHERE));
    Box::leak(Box::new(Metadata::new(
        name,
        "sites",
        Level::INFO,
        Some("file.rs"),
        Some(7),
        None,
        fields,
        kind,
    )))
}

#[test]
fn every_site_is_found_again_however_many_there_are_and_from_all_threads() {
    let sites = Sites {
        tables: [const { OnceLock::new() }; TABLES],
        making: Mutex::new(()),
    };
    // More sites than the first tables hold.
    let all: Vec<_> = (0..4000).map(|_| metadata("span", Kind::SPAN, &[])).collect();
    assert!(all.iter().all(|metadata| sites.find(metadata).is_none()));
    let found = std::thread::scope(|scope| {
        let look = || {
            let sites = all
                .iter()
                .map(|metadata| std::ptr::from_ref(sites.of(metadata)).addr());
            sites.collect::<Vec<_>>()
        };
        let (one, other) = (scope.spawn(look), scope.spawn(look));
        (one.join().unwrap(), other.join().unwrap())
    });
    assert_eq!(found.0, found.1);
    for (metadata, address) in all.iter().zip(found.0) {
        let site = sites.find(metadata).unwrap();
        assert!(std::ptr::eq(site.metadata, *metadata));
        assert_eq!(std::ptr::from_ref(site).addr(), address);
    }
    assert!(sites.find(metadata("another", Kind::SPAN, &[])).is_none());
}

#[test]
fn fields_have_roles_by_their_names() {
    let names = &[
        "message",
        "counter.c",
        "monotonic_counter.m",
        "gauge.g",
        "counter.",
        "plain.x",
        "log.target",
    ];
    let event = Site::new(metadata("event src/file.rs:7", Kind::EVENT, names));
    let roles = [
        Role::Message,
        Role::Counter(0),
        Role::Counter(1),
        Role::Counter(2),
        Role::Argument,
        Role::Argument,
        Role::Argument,
    ];
    assert_eq!(*event.roles, roles);
    assert!(!event.is_named && !event.is_log());
    let names = &[
        "message",
        "counter.c",
        "monotonic_counter.of_spans",
        "gauge.g",
        "counter.",
        "plain.x",
        "log.target",
    ];
    let span = Site::new(metadata("span", Kind::SPAN, names));
    assert_eq!(*span.roles, [Role::Argument; 7]);
    assert!(span.is_named && span.counters.is_empty());
    let sums = crate::counters::sums();
    assert!(
        sums.contains_key("m") && !sums.contains_key("of_spans"),
        "made for nothing"
    );
    assert_eq!(span.call_site.annotation_ids().len(), names.len());
}
