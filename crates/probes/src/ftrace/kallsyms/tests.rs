//! Tests of the module.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn lookup(symbols: &KernelSymbols, address: u64) -> Option<String> {
    let mut name = "left over".to_owned();
    symbols.lookup(address, &mut name).then_some(name)
}

fn parse(text: &str) -> KernelSymbols {
    KernelSymbols::parse(text.as_bytes()).unwrap()
}

#[test]
fn only_functions_that_are_somewhere_are_kept() {
    let symbols = parse(
        "0000000000000000 T hidden\n\
         0000000000001000 D data\n\
         0000000000001000 t $x.12\n\
         0000000000001000 T first\n\
         0000000000001000 T alias\n\
         0000000000002000 t second.cfi_jt\t[module]\n\
         nonsense\n\
         0000000000003000 T third.cfi\n",
    );
    assert_eq!(symbols.len(), 3);
    assert_eq!(lookup(&symbols, 0x1000).as_deref(), Some("first"));
    assert_eq!(lookup(&symbols, 0x2fff).as_deref(), Some("second"));
    assert_eq!(lookup(&symbols, 0x3001).as_deref(), Some("third"));
    assert_eq!(lookup(&symbols, 0xfff), None, "before the first function");
    assert_eq!(
        lookup(&symbols, 0x3000 + LONGEST_FUNCTION + 1),
        None,
        "far behind the last one"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_function_is_found_at_its_addresses(
        functions in prop::collection::btree_map(1u64.., "[a-c_]{1,12}", 0..200),
    ) {
        let text: String = functions.iter().rev().map(|(at, name)| format!("{at:016x} t {name}\n")).collect();
        let symbols = parse(&text);
        prop_assert_eq!(symbols.len(), functions.len());
        let mut starts = functions.iter().peekable();
        while let Some((&start, name)) = starts.next() {
            let end = starts.peek().map_or(u64::MAX, |&(&next, _)| next - 1);
            let last = end.min(start.saturating_add(LONGEST_FUNCTION));
            for address in [start, start + (last - start) / 2, last] {
                prop_assert_eq!(lookup(&symbols, address), Some(name.clone()));
            }
            if end > last {
                prop_assert_eq!(lookup(&symbols, last + 1), None);
            }
        }
    }
}

#[test]
fn the_running_kernel_fits_into_a_third_of_its_list() {
    let read = || std::fs::read_to_string("/proc/kallsyms").unwrap();
    // Code that the kernel makes comes and goes, such as a tracer's.
    let mut unchanged = (0..100).filter_map(|_| {
        let text = read();
        let symbols = KernelSymbols::of_this_kernel().unwrap();
        (read() == text).then_some((symbols, text))
    });
    let (symbols, text) = unchanged.next().expect("a list that stays for a moment");
    if symbols.is_empty() {
        println!("skipped: /proc/kallsyms shows no addresses to this user");
        return;
    }
    let mut functions: BTreeMap<u64, &str> = BTreeMap::new();
    for (address, name) in text.lines().filter_map(parse_line) {
        functions.entry(address).or_insert(name);
    }
    assert_eq!(symbols.len(), functions.len());
    for (&address, &name) in functions.iter().step_by(97) {
        assert_eq!(lookup(&symbols, address).as_deref(), Some(name));
    }
    println!(
        "{} functions in {} bytes, of {}",
        symbols.len(),
        symbols.memory_bytes(),
        text.len()
    );
    assert!(symbols.memory_bytes() < text.len() / 3);
}
