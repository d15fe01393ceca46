//! Arbitrary text as the list of a process's mappings, whole and as pipes would deliver it: what is read is in order, and found.

#![no_main]

use std::io::Read;

use ferretto_fuzz::stream_in_pieces;
use ferretto_unwind::{Maps, Process};
use libfuzzer_sys::fuzz_target;

struct Pieces<'a, I: Iterator<Item = &'a [u8]>>(I, &'a [u8]);

impl<'a, I: Iterator<Item = &'a [u8]>> Read for Pieces<'a, I> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.1.is_empty() {
            self.1 = self.0.next().unwrap_or_default();
        }
        self.1.read(buffer)
    }
}

fuzz_target!(|data: &[u8]| {
    let (text, pieces) = stream_in_pieces(data);
    let maps = Maps::read(text).expect("text");
    let again = Maps::read(Pieces(pieces, &[])).expect("text");
    assert_eq!(maps.mappings(), again.mappings());
    for (index, mapping) in maps.mappings().iter().enumerate() {
        assert!(mapping.start < mapping.end);
        assert_eq!(maps.find(mapping.start), Some(index));
        assert_eq!(maps.find(mapping.end - 1), Some(index));
        assert!(mapping.path().is_none_or(|path| path.len() <= mapping.name.len()));
    }
    let process = Process::with_maps(maps);
    assert_eq!(process.maps().mappings(), again.mappings());
});
